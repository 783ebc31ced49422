"""Other pictures: uniform over the pool or a window of the order, and never a bad one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from plan_kit import fixed

from fastdata.augment.draws import BASE, Draws, draw
from fastdata.augment.order import EpochOrder
from fastdata.augment.policy import Policy
from fastdata.errors import UsageError

BUSY = Policy(mosaic=0.7, mosaic9=0.2, mixup=0.4, cutmix=0.3, copy_paste=0.6, copy_paste_mode="mixup")


def drawn(policy: Policy, n: int, pool: range | npt.NDArray[np.int64] | None = None, **options: Any) -> Draws:
    """The draws of entries 0..n - 1."""
    settings = {"seed": 7, "epoch": 3, "imgsz": 64, "out_hw": (64, 64)} | options
    return draw(np.arange(n), policy, pool=range(n) if pool is None else pool, **settings)


def test_partners_are_uniform_over_the_pool_and_the_first_tile_is_the_picture_itself() -> None:
    """Every partner of every kind of scene; a chi-square of 19 degrees of freedom below 50."""
    pool = np.arange(3, 63, 3)
    found = draw(np.full(2000, 6), BUSY, seed=1, epoch=0, imgsz=64, out_hw=(64, 64), pool=pool, draws=np.arange(2000))
    first = np.zeros(len(found.tile_entry), np.bool_)
    first[found.tile_offsets[:-1]] = True
    role = found.role[found.tile_scene]
    assert set(found.tile_entry[first & (role == BASE)].tolist()) == {6}
    for chosen in [~first & (role == r) for r in range(6)] + [first & (role == r) for r in range(1, 6)]:
        entries = found.tile_entry[chosen]
        counts = np.bincount(np.searchsorted(pool, entries), minlength=len(pool))
        assert set(entries.tolist()) <= set(pool.tolist())
        assert ((counts - len(entries) / 20) ** 2).sum() / (len(entries) / 20) < 50


def test_partners_of_a_window_come_from_the_positions_up_to_the_own_one() -> None:
    """The W positions that end with the sample's own; at the beginning of the order the first W."""
    n, window = 400, 7
    policy = fixed(Policy(mixup=1.0), partners=f"window:{window}")
    pool = np.arange(0, 3 * n, 3)
    found = draw(pool, policy, seed=5, epoch=2, imgsz=64, out_hw=(64, 64), pool=pool)
    order = EpochOrder(n, 5, 2)
    own = order.position_of(np.arange(n))[found.scene_slot[found.tile_scene]]
    back = own - order.position_of(found.tile_entry // 3)
    late = own >= window - 1
    assert set(back[late].tolist()) == set(range(window))
    assert set((own - back)[~late].tolist()) == set(range(window))


def test_a_window_as_large_as_the_set_is_the_set() -> None:
    """Also when it is larger."""
    found = drawn(fixed(Policy(), partners="window:1000"), 20)
    assert set(found.tile_entry.tolist()) == set(range(20))


def test_a_window_needs_the_picture_to_have_a_place_in_the_order() -> None:
    """A picture outside the pool has no position."""
    with pytest.raises(UsageError, match=r"an entry must be in the pool .* got 5; use partners='uniform'"):
        draw([5], fixed(Policy(), partners="window:4"), seed=0, epoch=0, imgsz=64, out_hw=(64, 64), pool=np.array([1, 9]))


def test_a_pool_must_have_an_entry() -> None:
    """No picture can come from nowhere."""
    with pytest.raises(UsageError, match="pool must have at least one entry, got none"):
        draw([0], Policy(), seed=0, epoch=0, imgsz=64, out_hw=(64, 64), pool=range(0))


def test_bad_pictures_are_replaced_and_only_samples_that_touch_them_change() -> None:
    """Each pick of a bad entry is drawn anew; what was drawn for others stays, whatever else is bad."""
    policy = Policy(mixup=0.5, cutmix=0.3, copy_paste=0.5, copy_paste_mode="mixup")
    clean, one, two = (drawn(policy, 200, bad=bad) for bad in ((), {17}, [17, 90]))
    assert 17 in clean.tile_entry
    assert 17 not in one.tile_entry
    assert not {17, 90} & set(two.tile_entry.tolist())
    assert (one.tile_entry == clean.tile_entry)[clean.tile_entry != 17].all()
    touched = np.isin(one.tile_entry, [17, 90])  # a substitute may itself be bad in the larger set
    assert (two.tile_entry == one.tile_entry)[~touched].all()


def test_a_bad_picture_itself_is_shown_by_another_one_and_the_sample_is_about_that() -> None:
    """So that its name and size are those of what is seen."""
    found = drawn(Policy(), 30, bad=np.array([4, 5]))
    assert (found.entry == found.tile_entry[found.tile_offsets[:-1]]).all()
    assert not {4, 5} & set(found.entry.tolist())
    assert (np.delete(found.entry, [4, 5]) == np.delete(np.arange(30), [4, 5])).all()


def test_substitutes_are_uniform_and_found_even_when_few_are_good() -> None:
    """Two of forty are good: everything comes from them, both alike."""
    found = drawn(Policy(), 40, bad=set(range(40)) - {11, 30})
    counts = np.bincount(found.tile_entry, minlength=40)
    assert counts.sum() == counts[11] + counts[30]
    assert abs(int(counts[11]) - 80) < 26  # four standard deviations of 160 throws


def test_a_pool_without_a_good_picture_is_an_error() -> None:
    """Instead of searching for ever."""
    with pytest.raises(UsageError, match="pool must have an entry that can be used, got 3 that are all bad"):
        drawn(Policy(), 3, bad={0, 1, 2})
