"""Tolerances are as wide as what they are for, and no wider: each is met by its cause and missed by a slip."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import recipe_kit as kit
from answers_kit import flat, noise
from recipe_kit import Group, Slot, Tile

from fastdata.augment.recipe import FILL
from fastdata.render import reference
from fastdata.render.tolerance import TOLERANCES, differs, near_outlines, opencv_warp

STRONG = (0.015, 1.0, 1.7, 1.4)
"""The default ranges' ends, as gains."""


def _drawn(seed: int, picture: np.ndarray, gains: tuple[float, ...] = kit.NO_GAINS, move: float = 0.0) -> tuple[Any, Any]:
    """A store and a recipe with two blended groups through random matrices."""
    rng = np.random.default_rng(seed)
    store = kit.memory_store([picture, np.ascontiguousarray(picture[::-1])])
    hw = picture.shape[:2]
    groups = [Group([Tile(i)], kit.moved(move, move) @ kit.affine(rng, hw, (80, 96)), weight=w) for i, w in ((0, 1.0), (1, 0.4))]
    return store, kit.one(store, *groups, out_hw=(80, 96), gains=gains)


def _in_steps(steps: int, monkeypatch: pytest.MonkeyPatch, store: Any, recipe: Any) -> np.ndarray:
    """The picture with every place rounded to a step."""
    right = reference.places
    with monkeypatch.context() as patch:
        patch.setattr(reference, "places", lambda m, hw: np.rint((right(m, hw) - 0.5) * steps) / steps + 0.5)
        return reference.render(store, recipe)


@pytest.mark.parametrize("seed", range(4))
def test_places_in_510ths_are_within_the_tolerance_of_the_cpu_and_in_64ths_are_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On noise, the worst of pictures; and half a pixel of shift is far away from everything."""
    store, recipe = _drawn(seed, noise(70, 80, seed))
    right = reference.render(store, recipe)
    assert differs(right, right, "cpu") is None
    assert differs(_in_steps(510, monkeypatch, store, recipe), right, "cpu") is None
    assert differs(_in_steps(64, monkeypatch, store, recipe), right, "cpu") is not None
    assert differs(_in_steps(32, monkeypatch, store, recipe), right, "trainer_32nds") is None
    assert differs(_in_steps(8, monkeypatch, store, recipe), right, "trainer_32nds") is not None
    moved = reference.render(*_drawn(seed, noise(70, 80, seed), move=0.5))
    for which in TOLERANCES:
        assert differs(moved, right, which) is not None


@pytest.mark.parametrize("seed", range(4))
def test_one_rounding_is_within_the_tolerance_of_the_cpu_s_colours_and_two_or_a_wrong_gain_are_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the strongest gains of the default policy, on places in 510ths."""
    store, recipe = _drawn(seed, noise(70, 80, seed), STRONG)
    right = reference.render(store, recipe)
    assert differs(_in_steps(510, monkeypatch, store, recipe), right, "cpu_colour") is None
    rounded = reference.render(*_drawn(seed, noise(70, 80, seed)))[0].astype(np.float64)
    for gains in (STRONG, (-0.015, 1.0, 1.7, 1.4), (0.015, 1.0, 1.4, 1.7), (0.015, 1.0, 1.7, 1.38), kit.NO_GAINS):
        other = np.floor(reference.recolour(rounded, np.array(gains)) + 0.5).astype(np.uint8)[None]
        assert differs(other, right, "cpu_colour") is not None, gains


@pytest.mark.parametrize("gains", [(0.015, 0.7, 0.4), (-0.015, -0.7, -0.4), (0.01, -0.3, 0.2), (0.0, 0.5, 0.0)])
def test_the_trainers_colours_are_within_their_tolerance(
    gains: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On noise, by the step that runs in a trainer, its drawn gains held; a picture without gains is too far away."""
    augment = pytest.importorskip("ultralytics.data.augment")
    picture = noise(80, 90, 4)
    monkeypatch.setattr(np.random, "uniform", lambda low, high, n: np.ones(n))
    bgr = np.ascontiguousarray(picture[:, :, ::-1])
    theirs = augment.RandomHSV(*gains)({"img": bgr})["img"][:, :, ::-1].transpose(2, 0, 1)
    store = kit.memory_store([picture])
    recipe = kit.one(store, Group([Tile(0)]), out_hw=(80, 90), gains=(gains[0], 1.0, 1 + gains[1], 1 + gains[2]))
    assert differs(reference.render(store, recipe)[0], theirs, "trainer_colour") is None
    assert differs(picture.transpose(2, 0, 1), theirs, "trainer_colour") is not None
    wrong = kit.one(store, Group([Tile(0)]), out_hw=(80, 90), gains=(gains[0] + 0.1, 1.0, 1 + gains[1], 1 + gains[2]))
    assert differs(reference.render(store, wrong)[0], theirs, "trainer_colour") is not None


@pytest.mark.parametrize("seed", range(4))
def test_a_truncated_blend_of_two_warps_is_within_the_tolerance_of_mixup(seed: int) -> None:
    """OpenCV's warp of each picture on whole levels, blended and truncated; with the weights exchanged it is not."""
    if opencv_warp() != "trainer":
        pytest.skip("OpenCV's warp rounds places to 1/32 px here")
    picture = noise(70, 80, seed)
    store, recipe = _drawn(seed, picture)
    warped = []
    for i, source in enumerate((picture, np.ascontiguousarray(picture[::-1]))):
        centred = kit.moved(-0.5, -0.5) @ recipe.matrix[i] @ kit.moved(0.5, 0.5)
        warped.append(cv2.warpAffine(source, centred[:2], (96, 80), flags=cv2.INTER_LINEAR, borderValue=(FILL,) * 3))
    first, second = (np.asarray(w).transpose(2, 0, 1)[None].astype(np.float64) for w in warped)
    ours = reference.render(store, recipe)
    assert differs(ours, (0.6 * first + 0.4 * second).astype(np.uint8), "trainer_mixup") is None
    assert differs(ours, (0.4 * first + 0.6 * second).astype(np.uint8), "trainer_mixup") is not None


def test_a_failure_says_how_much_where_and_why() -> None:
    """And a shape that does not fit is one."""
    a = np.full((1, 3, 4, 5), 100, np.uint8)
    b = a.copy()
    b[0, 2, 1, 3] = 104
    said = differs(a, b, "cpu")
    assert said is not None
    assert "levels must differ by at most 1, and by 0.12 on average (weights in whole 255ths" in said
    assert "got 4 and 0.067: 1 of 60 values are too far off, the worst at (0, 2, 1, 3): 100 and 104" in said
    assert differs(a, b, "cpu", ignore=a[:, :1] != b[:, 2:]) is None
    assert differs(a, b[:, :2], "cpu") == "both must be of the same shape, got (1, 3, 4, 5) and (1, 2, 4, 5)"
    assert differs(a, a + 1, "cpu") is not None  # each is fine, the mean is not
    assert differs(a[:0], b[:0], "cpu") is None


def test_only_pixels_on_an_outline_may_change_sides() -> None:
    """Those whose centre it meets, in the slots that have it, and no others."""
    store = kit.memory_store([flat(8, 10, (0, 0, 0)), flat(8, 10, (255, 255, 255))])
    ring = [[2.5, 1], [7, 1], [7, 6], [2.5, 6]]
    far = [[3.3, 0.2], [9.2, 4.1], [1.2, 7.2]]
    plain = Slot([Group([Tile(0)])])
    masked = Slot([Group([Tile(0)]), Group([Tile(1)], shapes=[[ring]])])
    other = Slot([Group([Tile(0)]), Group([Tile(1)], shapes=[[far], []])])
    recipe = kit.recipe(store, [plain, masked, other], (8, 10))
    near = near_outlines(recipe)
    assert near.shape == (3, 1, 8, 10)
    assert not near[0].any()
    assert np.argwhere(near[1, 0]).tolist() == [[y, 2] for y in range(1, 6)]
    drawn = reference.render(store, recipe)
    nudged = [[x + 0.001, y] for x, y in ring]
    moved = kit.recipe(store, [plain, Slot([Group([Tile(0)]), Group([Tile(1)], shapes=[[nudged]])]), other], (8, 10))
    assert differs(reference.render(store, moved), drawn, "cpu") is not None
    assert differs(reference.render(store, moved), drawn, "cpu", ignore=near) is None


def test_every_tolerance_has_its_reason() -> None:
    """In words that a failure shows, and bounds that leave room for a mean below the worst."""
    for tolerance in TOLERANCES.values():
        assert len(tolerance.why) > 20
        assert 0 < tolerance.mean < tolerance.levels
