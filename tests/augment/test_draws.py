"""Chance: every number has the trainers' distribution, depends on its own sample alone, and bad pictures are replaced."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_kit import PLAIN, fixed, policies

from fastdata.augment.draws import (
    BASE,
    BASE_PASTE,
    CUTMIX,
    CUTMIX_PASTE,
    MIXUP,
    MIXUP_PASTE,
    Draws,
    _regions,
    draw,
    plain,
)
from fastdata.augment.policy import Policy

N = 10_000
IMGSZ = 640
MOST = 1.95 / np.sqrt(N)
"""Largest distance between the drawn and the stated distribution that chance leaves once in a thousand (Kolmogorov and Smirnov);
the seeds are fixed, so what passes once passes always."""

BUSY = Policy(
    degrees=10,
    translate=0.2,
    scale=(0.5, 1.7),
    shear=5,
    perspective=0.001,
    mosaic=0.7,
    mosaic9=0.2,
    mixup=0.4,
    cutmix=0.3,
    copy_paste=0.6,
    copy_paste_mode="mixup",
    flipud=0.1,
    fliplr=0.5,
    bgr=0.05,
)


def drawn(policy: Policy, n: int = N, pool: range | npt.NDArray[np.int64] | None = None, **options: object) -> Draws:
    """The draws of entries 0..n - 1."""
    settings = {"seed": 7, "epoch": 3, "imgsz": IMGSZ, "out_hw": (IMGSZ, IMGSZ)} | options
    return draw(np.arange(n), policy, pool=range(n) if pool is None else pool, **settings)  # type: ignore[arg-type]


def distance(values: npt.NDArray[np.float64], low: float, high: float) -> float:
    """Largest distance between the distribution of the values and U(low, high)."""
    assert low <= values.min() <= values.max() <= high
    share = np.sort((values.ravel() - low) / (high - low))
    n = len(share)
    return float(max((np.arange(1, n + 1) / n - share).max(), (share - np.arange(n) / n).max()))


@pytest.fixture(scope="module")
def busy() -> Draws:
    """Draws of a policy in which everything happens now and then."""
    return drawn(BUSY)


def test_the_affine_is_drawn_from_the_stated_ranges(busy: Draws) -> None:
    """Each number is uniform over its range, in the base scenes and in those of the partners."""
    for scenes in (busy.role == BASE, busy.role == MIXUP):
        most = 1.95 / np.sqrt(scenes.sum())
        for values, low, high in (
            (busy.degrees, -10, 10),
            (busy.scale, 0.5, 1.7),
            (busy.shear_deg[:, 0], -5, 5),
            (busy.shear_deg[:, 1], -5, 5),
            (busy.perspective[:, 0], -0.001, 0.001),
            (busy.perspective[:, 1], -0.001, 0.001),
            (busy.translate[:, 0], 0.3, 0.7),
            (busy.translate[:, 1], 0.3, 0.7),
        ):
            assert distance(values[scenes], low, high) < most


def test_the_check_on_distributions_sees_a_wrong_one(busy: Draws) -> None:
    """Meta-test: a range that is five percent too wide fails."""
    assert distance(busy.scale, 0.5, 1.7 * 1.05) > MOST


def test_scale_given_as_one_number_is_around_one() -> None:
    """U(1 - scale, 1 + scale)."""
    assert distance(drawn(Policy(scale=0.5)).scale, 0.5, 1.5) < MOST


def test_the_centre_of_a_mosaic_is_a_whole_pixel_of_the_middle_half(busy: Draws) -> None:
    """int(U(s / 2, 3 s / 2)), independent in y and x."""
    centre = busy.centre_yx
    assert (centre.min(), centre.max()) == (IMGSZ // 2, IMGSZ * 3 // 2 - 1)
    for axis in (0, 1):
        assert distance(centre[:, axis] + 0.5, IMGSZ / 2, IMGSZ * 3 / 2) < MOST + 0.5 / IMGSZ
    assert abs(np.corrcoef(centre.T)[0, 1]) < 0.03


def test_colour_gains_are_uniform_around_nothing() -> None:
    """U(-1, 1) times hsv_h, hsv_s, hsv_v."""
    hsv = drawn(Policy()).hsv
    for channel, most in enumerate((0.015, 0.7, 0.4)):
        assert distance(hsv[:, channel], -most, most) < MOST


def test_the_weight_of_mixup_is_beta_distributed(busy: Draws) -> None:
    """Beta(32, 32): mean 0.5, variance 1 / (4 * 65), and the distribution of NumPy's own generator."""
    weight = busy.mixup_weight
    assert abs(weight.mean() - 0.5) < 0.002
    assert weight.var() == pytest.approx(1 / 260, rel=0.05)
    other = np.sort(np.random.default_rng(0).beta(32, 32, N))
    both = np.sort(np.concatenate([weight, other]))
    gap = np.searchsorted(np.sort(weight), both, "right") - np.searchsorted(other, both, "right")
    assert np.abs(gap).max() / N < 1.95 * np.sqrt(2 / N)


def test_how_often_each_thing_happens(busy: Draws) -> None:
    """Every probability is met within four standard deviations."""
    tiles = np.diff(busy.tile_offsets)

    def share(role: int, among: npt.NDArray[np.bool_] | None = None) -> tuple[int, int]:
        slots = busy.scene_slot[busy.role == role]
        return len(slots), N if among is None else int(among.sum())

    has = {role: np.isin(np.arange(N), busy.scene_slot[busy.role == role]) for role in range(6)}
    mosaics = int((tiles > 1).sum())
    for (k, n), p in (
        ((int(busy.flip_lr.sum()), N), 0.5),
        ((int(busy.flip_ud.sum()), N), 0.1),
        ((int(busy.bgr.sum()), N), 0.05),
        ((mosaics, len(tiles)), 0.7),
        ((int((tiles == 9).sum()), mosaics), 0.2),
        (share(MIXUP), 0.4),
        (share(CUTMIX), 0.3),
        (share(BASE_PASTE), 0.6),
        (share(MIXUP_PASTE, has[MIXUP]), 0.6),
        (share(CUTMIX_PASTE, has[CUTMIX]), 0.6),
    ):
        assert abs(k - n * p) < 4 * np.sqrt(n * p * (1 - p))
    assert set(tiles.tolist()) == {1, 4, 9}


def test_the_numbers_of_a_sample_have_nothing_to_do_with_each_other() -> None:
    """No two are correlated: each has a place of its own."""
    policy = fixed(BUSY, mixup=1.0, cutmix=1.0, flipud=0.5, bgr=0.5)
    found = drawn(policy)
    base = found.role == BASE
    parts = [found.hsv, found.flip_lr, found.flip_ud, found.bgr, found.mixup_weight, found.cutmix_choice]
    parts += [found.cutmix_xyxy_px[:, :, 0]]
    parts += [
        values[scenes]
        for scenes in (base, found.role == MIXUP)
        for values in (found.perspective, found.degrees, found.scale, found.shear_deg, found.translate, found.centre_yx)
    ]
    table = np.concatenate([np.reshape(part, (N, -1)).astype(np.float64) for part in parts], axis=1)
    related = np.corrcoef(table.T) - np.eye(table.shape[1])
    assert np.abs(related).max() < 4.5 / np.sqrt(N)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_probability_of_nought_or_one_leaves_nothing_to_chance(p: float) -> None:
    """Never and always."""
    policy = Policy(mosaic=p, mosaic9=p, mixup=p, cutmix=p, copy_paste=p, copy_paste_mode="mixup", flipud=p, fliplr=p, bgr=p)
    found = drawn(policy, 500)
    assert set(np.diff(found.tile_offsets).tolist()) == {9 if p else 1}
    assert set(found.role.tolist()) == (set(range(6)) if p else {BASE})
    assert {bool(x) for x in np.concatenate([found.flip_ud, found.flip_lr, found.bgr])} == {bool(p)}


@given(policies(), st.integers(0, 2**40), st.integers(0, 100))
def test_draws_of_a_batch_are_those_of_its_samples(policy: Policy, seed: int, epoch: int) -> None:
    """Cut anywhere, the numbers are the same; other seeds, epochs and draw numbers give others."""
    entries, times = np.array([4, 0, 4, 9]), np.array([0, 0, 1, 0])
    options = {"seed": seed, "epoch": epoch, "imgsz": 64, "out_hw": (64, 96), "pool": range(10)}
    whole = draw(entries, policy, draws=times, **options)  # type: ignore[arg-type]
    parts = [draw(entries[k : k + 1], policy, draws=times[k : k + 1], **options) for k in range(4)]  # type: ignore[arg-type]
    for field in fields(Draws):
        if not field.name.endswith("offsets"):
            together = np.concatenate([getattr(part, field.name) for part in parts])
            assert getattr(whole, field.name).tobytes() == together.tobytes(), field.name


def test_seed_epoch_entry_and_draw_number_each_change_a_sample() -> None:
    """Nothing of the key is left out."""
    base = {"seed": 1, "epoch": 1, "entries": [1], "draws": 0}
    seen = set()
    for change in ({}, {"seed": 2}, {"epoch": 2}, {"entries": [2]}, {"draws": 1}):
        options = base | change
        found = draw(options.pop("entries"), Policy(), imgsz=64, out_hw=(64, 64), pool=range(9), **options)  # type: ignore[arg-type]
        seen.add((found.hsv.tobytes(), found.centre_yx.tobytes(), found.scale.tobytes()))
    assert len({a for a, _, _ in seen}) == len({c for _, _, c in seen}) == 5


def test_changing_one_probability_changes_nothing_else() -> None:
    """Numbers have places of their own: with MixUp on, mosaic, affine and colours of the first picture stay."""
    without, with_mixup = drawn(Policy(), 300), drawn(Policy(mixup=0.5, cutmix=0.5, flipud=0.5), 300)
    base = with_mixup.role == BASE
    assert (with_mixup.scale[base] == without.scale).all()
    assert (with_mixup.tile_entry[base[with_mixup.tile_scene]] == without.tile_entry).all()
    assert (with_mixup.hsv == without.hsv).all()
    assert (with_mixup.flip_lr == without.flip_lr).all()


def test_a_region_of_cutmix_is_a_share_of_the_picture_around_a_pixel_and_cut_at_the_frame() -> None:
    """Sides by sqrt(1 - lambda), halved in whole pixels; the centre is any pixel."""
    numbers = [[0.75, 0.5, 0.5], [0.75, 0.0, 0.999], [0.9999999, 0.3, 0.3]]
    found = _regions(np.array(numbers).reshape(1, 9), (401, 800))
    assert found.tolist() == [[[200, 100, 600, 300], [0, 300, 200, 401], [240, 120, 240, 120]]]


def test_regions_of_cutmix_cover_an_even_share_and_lie_anywhere() -> None:
    """lambda ~ Beta(1, 1): of regions that the frame does not cut, and of their centres, by the numbers that are drawn."""
    found = drawn(fixed(PLAIN, cutmix=1.0), out_hw=(400, 800)).cutmix_xyxy_px
    assert found.shape == (N, 3, 4)
    assert (found >= 0).all()
    assert (found <= [800, 400, 800, 400]).all()
    # A region of width w is uncut with probability (1 - w / W) in x and in y; and P(w / W > q) = q^2 puts w's density at 2 q.
    uncut = ((found > 0) & (found < [800, 400, 800, 400])).all(axis=2)
    assert uncut.mean() == pytest.approx(1 / 6, abs=0.01)  # the integral of 2 q (1 - q)^2
    q = (found[..., 2] - found[..., 0])[uncut] / 800
    assert q.mean() == pytest.approx(2 / 5, abs=0.01)  # of 2 q^2 (1 - q)^2, over 1 / 6: 1 / 15 * 6


def test_plain_draws_are_those_of_a_policy_without_anything() -> None:
    """What is set by hand begins where chance ends."""
    for name, value in ((f.name, getattr(drawn(PLAIN, 5), f.name)) for f in fields(Draws)):
        if name != "centre_yx":  # of no use without a mosaic
            assert np.array_equal(value, getattr(plain(np.arange(5)), name)), name
