"""Outlines cut at a frame: all at once as one by one, covering the same, and boxes of nothing but what is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shape_kit import (
    AROUND_A_CORNER,
    AROUND_ALL,
    F64,
    FRAME,
    H,
    W,
    flat,
    frames,
    listed,
    parity,
    ring_lists,
    samples,
    seen_bounds,
)

from fastdata import boxes
from fastdata.augment import outline, ragged


def cut_alone(ring: F64) -> F64:
    """The ring as ``boxes.clip_polygon`` leaves it, by the rule of what vanishes."""
    cut = boxes.clip_polygon(ring, (H, W))
    if cut is ring:
        return ring
    cut = np.clip(cut, FRAME[:2], FRAME[2:])
    return cut if len(cut) >= 3 and boxes.polygon_area(cut) > outline.SPECK_PX2 else np.zeros((0, 2))


def clip(rings: list[F64]) -> list[F64]:
    """Cut rings at the frame."""
    return listed(*outline.clip_rings(*flat(rings), frames(len(rings))))


def box_of(rings: list[F64], is_even_odd: bool = False) -> list[float]:
    """The box of one object of these rings, cut at the frame."""
    cut = outline.clip_rings(*flat(rings), frames(len(rings)))
    box = outline.object_boxes(*cut, np.array([0, len(rings)]), frames(1), np.array([is_even_odd]))
    return box[0].tolist()


@given(ring_lists())
@example([AROUND_A_CORNER, AROUND_ALL, np.array([[-10.0, -10.0], [90.0, -10.0], [-10.0, 90.0]])])
@example([np.array([[40.0, 10.0], [60.0, 10.0], [40.0, 20.0], [20.0, 15.0]])])
def test_rings_cut_together_are_as_each_cut_alone(rings: list[F64]) -> None:
    """Bit for bit; but a way around a corner outside is left out, and then the same is covered and no more is reached."""
    x, y = samples()
    for ring, got in zip(rings, clip(rings), strict=True):
        want = cut_alone(ring)
        if np.array_equal(got, want):
            continue
        assert np.array_equal(parity(got, x, y), parity(want, x, y))
        in_corner = np.isin(want[:, 0], [0, W]) & np.isin(want[:, 1], [0, H])
        assert in_corner.any() or box_of([ring]) != boxes.bounds(want).tolist()
        if len(got):
            assert boxes.bounds(got).tolist() == box_of([ring])


@given(ring_lists(rings=3), st.integers(0, 3))
def test_a_ring_does_not_depend_on_its_neighbours(rings: list[F64], cut_at: int) -> None:
    """Bit for bit, so a batch can be cut anywhere."""
    whole = clip(rings)
    parts = clip(rings[:cut_at]) + clip(rings[cut_at:])
    assert [a.tobytes() for a in whole] == [b.tobytes() for b in parts]


def test_what_is_cut_lies_within_its_own_rectangle() -> None:
    """Each ring has its own, none begins at 0, and no rounding leads over the border; moved to 0, the same is covered."""
    rng = np.random.default_rng(1)
    rings = [rng.uniform(-60, 100, (rng.integers(3, 10), 2)) for _ in range(1500)]
    rects = frames(len(rings)) * rng.uniform(0.3, 0.9, (len(rings), 1)) + np.tile(rng.uniform(-9, 9, (len(rings), 2)), 2)
    points, offsets = outline.clip_rings(*flat(rings), rects)
    rect = rects[ragged.owners(offsets)]
    assert (points >= rect[:, :2]).all()
    assert (points <= rect[:, 2:]).all()
    x, y = samples(13, 11)
    for i in range(0, len(rings), 10):
        low, size = rects[i, :2], rects[i, 2:] - rects[i, :2]
        at_x, at_y = x * size[0] / W, y * size[1] / H
        (moved,) = listed(*outline.clip_rings(*flat([rings[i] - low]), np.array([[0, 0, *size]])))
        assert np.array_equal(parity(points[offsets[i] : offsets[i + 1]] - low, at_x, at_y), parity(moved, at_x, at_y))


def test_a_cut_that_is_rounded_over_the_border_is_put_back() -> None:
    """A side from one border to a hair within the opposite one: 9.6 - 9 is 0.5999999999999996."""
    rect = np.array([[0.6, 0.0, 9.6, 10.0]])
    points, _ = outline.clip_rings(*flat([np.array([[9.6, -4.308973161612978], [0.6, 2.452254031994807e-16], [5.1, 5.0]])]), rect)
    assert points[:, 0].min() == 0.6


def test_rings_inside_are_handed_back_as_they_are() -> None:
    """Also on the border; no array is copied where nothing needs a cut."""
    points, offsets = flat([np.array([[0.0, 0], [W, 0], [W, H], [0, H]]), np.zeros((0, 2)), np.array([[1.0, 1], [2, 1], [2, 2]])])
    cut, cut_offsets = outline.clip_rings(points, offsets, frames(3))
    assert cut is points
    assert cut_offsets is offsets


@pytest.mark.parametrize(
    "ring",
    [
        [[50, 1], [60, 1], [55, 9]],
        [[30, -20], [70, -20], [70, 20]],
        [[40, 5], [60, 5], [60, 9], [40, 9]],
        [[40, 30], [60, 30], [60, 50]],
        [[-10, 5], [50, 5], [50, 5 + 1e-9], [-10, 5 + 1e-9]],
        [[-10, -10], [50, 40], [-10, -10]],
        [[-5, -5], [50, -5], [50, 50], [-5, 50], [-5, -5], [50, -5], [50, 50], [-5, 50]],
    ],
    ids=[
        "beside",
        "beyond a corner",
        "touches a border",
        "touches a corner",
        "a line across",
        "a line through two corners",
        "twice around",
    ],
)
def test_a_ring_without_visible_area_vanishes(ring: list[list[float]]) -> None:
    """And its object has no box."""
    assert [len(cut) for cut in clip([np.array(ring, np.float64)])] == [0]
    assert box_of([np.array(ring, np.float64)]) == [0, 0, 0, 0]


def test_a_side_through_a_corner_is_cut_there_once() -> None:
    """The corner is a point like any other."""
    (cut,) = clip([np.array([[20.0, 10.0], [60.0, 50.0], [0.0, 50.0]])])  # one side runs through (40, 30)
    assert cut.tolist().count([40, 30]) == 1
    assert box_of([cut]) == [10, 10, 40, 30]


def test_a_ring_that_leaves_twice_keeps_both_ends() -> None:
    """The bridge between two arms lies on the border, between true points."""
    ring = np.array([[10, 5], [50, 5], [50, 25], [10, 25], [10, 20], [45, 20], [45, 10], [10, 10]], np.float64)
    (cut,) = clip([ring])
    assert boxes.polygon_area(cut) == pytest.approx(2 * 30 * 5)
    assert box_of([ring]) == [10, 5, 40, 25]


def seen_by_sampling(rings: list[F64], is_even_odd: bool) -> F64 | None:
    """The extent of the places that the object covers."""
    x, y = samples(97, 89)
    turns = np.stack([parity(ring, x, y) for ring in rings])
    covered = turns.sum(axis=0) % 2 == 1 if is_even_odd else turns.any(axis=0)
    return np.array([x[covered].min(), y[covered].min(), x[covered].max(), y[covered].max()]) if covered.any() else None


@given(ring_lists(shortest=3, rings=3), st.booleans())
@example([AROUND_A_CORNER], False)
@example([AROUND_ALL], False)
@example([np.array([[-5.0, -5], [50, -5], [50, 50], [-5, 50]]), np.array([[-1.0, -1], [20, -1], [20, 50], [-1, 50]])], True)
def test_the_box_holds_all_that_is_seen(rings: list[F64], is_even_odd: bool) -> None:
    """Each covered place lies within, and the box lies within the frame."""
    if not rings:
        return
    box = np.array(box_of(rings, is_even_odd))
    assert (box[:2] >= FRAME[:2]).all()
    assert (box[2:] <= FRAME[2:]).all()
    seen = seen_by_sampling(rings, is_even_odd)
    if seen is not None:
        assert (box[:2] <= seen[:2]).all()
        assert (box[2:] >= seen[2:]).all()


def test_the_box_of_a_ring_is_the_extent_of_what_is_seen() -> None:
    """By another way: points within the frame, crossings with its border, and its corners within the ring."""
    rng = np.random.default_rng(0)
    rings = [AROUND_A_CORNER + 0.25, AROUND_ALL + 0.25, *(rng.uniform(-60, 100, (rng.integers(3, 10), 2)) for _ in range(1000))]
    n, cut = len(rings), outline.clip_rings(*flat(rings), frames(len(rings)))
    boxes_px = outline.object_boxes(*cut, np.arange(n + 1), frames(n), np.zeros(n, np.bool_))
    for ring, got in zip(rings, boxes_px, strict=True):
        want = seen_bounds(ring)
        if want is None or not got.any():  # not seen, or a speck of it
            assert boxes.polygon_area(boxes.clip_polygon(ring, (H, W))) <= outline.SPECK_PX2 or not parity(ring, *samples()).any()
            assert not got.any()
        else:
            assert np.abs(got - want).max() < 1e-9


SPANS = st.tuples(st.floats(-20, 50), st.floats(-20, 40), st.floats(1, 40), st.floats(1, 40))


@given(st.lists(SPANS, min_size=1, max_size=4))
def test_the_box_of_several_rings_is_around_those_that_are_seen(spans: list[tuple[float, ...]]) -> None:
    """Rectangles: exactly the box around the cut ones of some area."""
    rects = np.array([[x, y, x + w, y + h] for x, y, w, h in spans])
    cut = boxes.clip_xyxy(rects, (H, W))
    cut = cut[(cut[:, 2:] - cut[:, :2]).prod(axis=1) > outline.SPECK_PX2]
    want = [*cut[:, :2].min(axis=0), *cut[:, 2:].max(axis=0)] if len(cut) else [0, 0, 0, 0]
    assert box_of(list(outline.corners_of(rects))) == want


def test_a_hole_takes_away_the_corners_that_it_covers() -> None:
    """A ring mask around the whole frame shows nothing; one whose hole has the left half shows the right."""
    around = np.array([[-50.0, -50], [90, -50], [90, 80], [-50, 80]])
    hole = np.array([[-9.0, -9], [49, -9], [49, 39], [-9, 39]])
    half = np.array([[-9.0, -9], [15, -9], [15, 39], [-9, 39]])
    assert box_of([around, hole], is_even_odd=True) == [0, 0, 0, 0]
    assert box_of([around, hole], is_even_odd=False) == [0, 0, 40, 30]
    assert box_of([around, half], is_even_odd=True) == [15, 0, 40, 30]


def test_an_object_without_rings_has_no_box() -> None:
    """Between two that have some."""
    points, offsets = flat([np.array([[1.0, 1], [5, 1], [5, 5]]), np.array([[2.0, 2], [9, 2], [9, 7]])])
    got = outline.object_boxes(points, offsets, np.array([0, 1, 1, 2]), frames(3), np.zeros(3, np.bool_))
    assert got.tolist() == [[1, 1, 5, 5], [0, 0, 0, 0], [2, 2, 9, 7]]


def test_huge_coordinates_are_cut_to_a_millionth_of_a_pixel() -> None:
    """What perspective makes of a point near the camera's plane."""
    far = np.array([[20.0, 10.0], [20.0 + 1e9, 10.0 + 0.5e9], [20.0 - 1e9, 10.0 + 0.5e9]])
    (cut,) = clip([far])
    assert np.abs(boxes.bounds(cut) - [0, 10, 40, 30]).max() < 1e-6
    assert boxes.polygon_area(cut) == pytest.approx(20 * 40 - 20 * 10, abs=1e-4)


def test_nothing_in_nothing_out() -> None:
    """No rings, no objects; and rings without points."""
    none = np.zeros((0, 2))
    assert [part.tolist() for part in outline.clip_rings(none, np.zeros(1, np.int64), frames(0))] == [[], [0]]
    assert [part.tolist() for part in outline.clip_rings(none, np.zeros(3, np.int64), frames(2))] == [[], [0, 0, 0]]
    assert outline.object_boxes(none, np.zeros(1, np.int64), np.zeros(1, np.int64), frames(0), np.zeros(0, np.bool_)).shape == (
        0,
        4,
    )
    assert outline.ring_areas(none, np.zeros(3, np.int64)).tolist() == [0, 0]


@given(ring_lists())
def test_areas_and_bounds_are_those_of_each_ring(rings: list[F64]) -> None:
    """Signed: positive clockwise on the screen."""
    points, offsets = flat(rings)
    areas, bounds = outline.ring_areas(points, offsets), outline.ring_bounds(points, offsets)
    for ring, area, box in zip(rings, areas, bounds, strict=True):
        if len(ring):
            assert abs(area) == pytest.approx(boxes.polygon_area(ring), rel=1e-9, abs=1e-7)
            assert box.tolist() == boxes.bounds(ring).tolist()
    square = np.array([[0.0, 0.0], [0.125, 0], [0.125, 0.125], [0, 0.125]]) + 1e9
    assert outline.ring_areas(*flat([square, square[::-1]])).tolist() == [0.015625, -0.015625]
