"""A cut ring without its ways along the border: covers the same, reaches no further than what it covers."""

from __future__ import annotations

import numpy as np
import pytest
from shape_kit import AROUND_A_CORNER, AROUND_ALL, FRAME, H, W, flat, frames, listed, parity, samples, seen_bounds, similarity

from fastdata import boxes
from fastdata.augment import outline
from fastdata.augment.detours import without_detours


def test_a_ring_around_a_corner_outside_does_not_reach_into_it() -> None:
    """Cut border by border, the way back would lead over the upper right corner; nothing of the object is there."""
    assert boxes.bounds(boxes.clip_polygon(AROUND_A_CORNER, (H, W))).tolist() == [30, 0, 40, 25]
    (cut,) = listed(*outline.clip_rings(*flat([AROUND_A_CORNER]), frames(1)))
    assert boxes.bounds(cut).tolist() == [30, 20, 40, 25]
    assert boxes.polygon_area(cut) == 50


def test_two_arms_around_three_corners_are_joined_without_them() -> None:
    """One ring of two arms, joined straight; turned afterwards its extent is still that of the arms."""
    (cut,) = listed(*outline.clip_rings(*flat([AROUND_ALL]), frames(1)))
    x, y = samples()
    assert np.array_equal(parity(cut, x, y), parity(AROUND_ALL, x, y))
    arms = [np.array([[10.0, 5], [10, 0], [15, 0], [15, 5]]), np.array([[0.0, 10], [3, 10], [0, 11]])]
    assert boxes.bounds(cut).tolist() == boxes.bounds(np.concatenate(arms)).tolist()
    turn = similarity(45, 1, (0, 0))[:2, :2]
    assert np.allclose(boxes.bounds(cut @ turn.T), boxes.bounds(np.concatenate(arms) @ turn.T))


def test_a_corner_between_two_arms_is_left_out_though_the_box_holds_it() -> None:
    """Upright it makes no difference; a turn afterwards would bring the corner out."""
    ring = np.array(
        [[5, 5], [5, -10], [60, -10], [60, 25], [30, 25], [30, 20], [50, 20], [50, -5], [10, -5], [10, 5]], np.float64
    )
    assert [40, 0] in boxes.clip_polygon(ring, (H, W)).tolist()
    (cut,) = listed(*outline.clip_rings(*flat([ring]), frames(1)))
    assert [40, 0] not in cut.tolist()
    assert boxes.bounds(cut).tolist() == [5, 0, 40, 25]
    assert boxes.polygon_area(cut) == 5 * 5 + 10 * 5


def test_a_ring_that_needs_no_straightening_is_left_alone() -> None:
    """No side along the border: nothing to take away."""
    ring = np.array([[1.0, 1], [5, 1], [5, 5]])
    assert without_detours(ring, FRAME) is ring


@pytest.mark.parametrize("whole", [False, True], ids=["anywhere", "on whole numbers"])
def test_a_tangle_covers_the_same_and_reaches_only_what_it_covers(whole: bool) -> None:
    """Random rings with many sides that leave the frame often, each side of it, with points and sides on the border."""
    rng = np.random.default_rng(2)
    x, y = samples()
    changed = 0
    for _ in range(400):
        ring = rng.integers(-3, 10, (rng.integers(3, 12), 2)) * 5.0 if whole else rng.uniform(-60, 100, (rng.integers(3, 14), 2))
        cut = boxes.clip_polygon(ring, (H, W))
        if len(cut) < 3 or not parity(cut, x, y).any():
            continue
        got = without_detours(np.clip(cut, FRAME[:2], FRAME[2:]), FRAME)
        assert np.array_equal(parity(got, x, y), parity(cut, x, y))
        changed += len(got) != len(cut)
        want = None if whole else seen_bounds(ring)
        if want is not None:
            assert np.abs(boxes.bounds(got) - want).max() < 1e-9
        if whole:  # turned, no place that is covered lies outside, and no corner of the frame that is not covered sticks out
            reach = boxes.bounds(got)
            assert (reach[:2] <= [x[parity(got, x, y)].min(), y[parity(got, x, y)].min()]).all()
    assert changed > 50


@pytest.mark.parametrize("left_out", range(4))
def test_a_ring_that_covers_all_but_one_corner_of_the_frame_stays(left_out: int) -> None:
    """The middle of its way along the border is a corner, where it cannot be told on which side cover lies."""
    corners = np.array([[0.0, 0], [W, 0], [W, H], [0, H]])
    before, corner, after = (corners[(left_out + n) % 4] for n in (-1, 0, 1))
    ring = np.array([(corner + after) / 2, after, corners[(left_out + 2) % 4], before, (before + corner) / 2])
    x, y = samples()
    assert np.array_equal(parity(without_detours(ring, FRAME), x, y), parity(ring, x, y))


def test_a_rectangle_of_another_place_and_shape_is_as_good() -> None:
    """Moved and stretched by powers of two, the same ring comes out, bit for bit."""
    cut = boxes.clip_polygon(AROUND_ALL, (H, W))
    gain, shift = np.array([4.0, 0.5]), np.array([-64.0, 1024.0])
    moved = without_detours(cut * gain + shift, np.concatenate([shift, FRAME[2:] * gain + shift]))
    assert moved.tolist() == (without_detours(cut, FRAME) * gain + shift).tolist()
