"""Boxes and outlines: conversions are inverse, cutting covers exactly the pixels inside, rectangles are the smallest."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fastdata import boxes

SIZE_HW = (30, 40)
COORDINATE = st.floats(-60, 100, allow_nan=False, width=32)
RINGS = st.lists(st.tuples(COORDINATE, COORDINATE), min_size=3, max_size=9).map(lambda p: np.array(p, np.float64))


def winding_parity(ring: boxes.F64, x: boxes.F64, y: boxes.F64) -> npt.NDArray[np.bool_]:
    """Whether each sample point lies within an odd number of turns of the ring: a ray to the right, edge by edge."""
    inside = np.zeros(x.shape, np.bool_)
    for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        if y0 == y1:
            continue
        crosses = (y0 <= y) != (y1 <= y)
        inside ^= crosses & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    return inside


def test_corners_and_centre_form_are_inverse() -> None:
    """xyxy → xywh → xyxy gives the numbers back, on a picture that is not square."""
    xyxy = np.array([[4.0, 6.0, 20.0, 26.0], [0.0, 0.0, 64.0, 40.0], [63.5, 0.25, 64.0, 0.75]])
    xywh = boxes.xyxy_px_to_xywh_norm(xyxy, (40, 64))
    assert xywh[0].tolist() == [12 / 64, 16 / 40, 16 / 64, 20 / 40]
    back = boxes.xywh_norm_to_xyxy_norm(xywh) * np.array([64, 40, 64, 40])
    assert np.allclose(back, xyxy, rtol=0, atol=1e-12)


def test_the_centre_form_of_no_boxes_is_no_boxes() -> None:
    """An image without labels needs no special case."""
    assert boxes.xyxy_px_to_xywh_norm(np.zeros((0, 4), np.float32), (40, 64)).shape == (0, 4)
    assert boxes.xywh_norm_to_xyxy_norm(np.zeros((0, 4))).shape == (0, 4)


def test_clipping_corners_moves_only_what_is_outside() -> None:
    """Each side stops at its own border: width for x, height for y."""
    given_px = np.array([[-5.0, -6.0, 45.0, 36.0], [1.0, 2.0, 3.0, 4.0], [50.0, 40.0, 60.0, 50.0]])
    assert boxes.clip_xyxy(given_px, SIZE_HW).tolist() == [[0, 0, 40, 30], [1, 2, 3, 4], [40, 30, 40, 30]]


def test_the_bounds_of_points_touch_the_outermost() -> None:
    """(v, 2) → (x0, y0, x1, y1)."""
    assert boxes.bounds(np.array([[3.0, 9.0], [1.0, 2.0], [5.0, 4.0]])).tolist() == [1, 2, 5, 9]


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("step", [1, -1])
def test_the_area_of_a_ring_does_not_depend_on_start_or_direction(start: int, step: int) -> None:
    """Shoelace formula, unsigned."""
    ring = np.array([[1.0, 1.0], [5.0, 1.0], [5.0, 4.0], [3.0, 6.0]])
    assert boxes.polygon_area(np.roll(ring, start, axis=0)[::step]) == pytest.approx(13.0)


def test_the_area_of_a_small_ring_far_away_is_exact() -> None:
    """Cancellation must not swallow an object of a square pixel at the far end of a panorama."""
    ring = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]) * 0.125 + 1e9
    assert boxes.polygon_area(ring) == 0.015625


def test_a_ring_inside_is_returned_as_it_is() -> None:
    """Also when it touches the border: nothing is cut, nothing is added."""
    ring = np.array([[0.0, 0.0], [40.0, 0.0], [40.0, 30.0], [0.0, 30.0]])
    assert boxes.clip_polygon(ring, SIZE_HW) is ring


def test_a_triangle_over_one_border_loses_its_tip() -> None:
    """Exact numbers: the cut points lie where the sides cross the border."""
    ring = np.array([[30.0, 10.0], [50.0, 15.0], [30.0, 20.0]])
    assert boxes.clip_polygon(ring, SIZE_HW).tolist() == [[30, 10], [40, 12.5], [40, 17.5], [30, 20]]


def test_a_corner_that_covers_the_picture_leaves_the_picture() -> None:
    """A ring around everything becomes the frame."""
    ring = np.array([[-10.0, -10.0], [90.0, -10.0], [-10.0, 90.0]])
    cut = boxes.clip_polygon(ring, SIZE_HW)
    assert {tuple(p) for p in cut.tolist()} == {(0, 0), (40, 0), (40, 30), (0, 30)}


def test_a_point_on_the_border_is_not_doubled() -> None:
    """A corner that lies exactly on the border is its own cut point."""
    ring = np.array([[40.0, 10.0], [60.0, 10.0], [40.0, 20.0], [20.0, 15.0]])
    assert boxes.clip_polygon(ring, SIZE_HW).tolist() == [[40, 10], [40, 20], [20, 15]]


def test_a_ring_outside_leaves_no_points() -> None:
    """Also when its bounds reach into the picture, beyond the corner."""
    assert len(boxes.clip_polygon(np.array([[50.0, 1.0], [60.0, 1.0], [55.0, 9.0]]), SIZE_HW)) == 0
    assert len(boxes.clip_polygon(np.array([[30.0, -20.0], [70.0, -20.0], [70.0, 20.0]]), SIZE_HW)) == 0
    assert boxes.polygon_area(np.zeros((0, 2))) == 0


def test_a_ring_that_leaves_and_comes_back_keeps_both_ends() -> None:
    """Two arms reach in; the bridge between them lies on the border and covers nothing."""
    ring = np.array([[10, 5], [50, 5], [50, 25], [10, 25], [10, 20], [45, 20], [45, 10], [10, 10]], np.float64)
    cut = boxes.clip_polygon(ring, SIZE_HW)
    assert boxes.polygon_area(cut) == pytest.approx(2 * 30 * 5)
    assert boxes.bounds(cut).tolist() == [10, 5, 40, 25]


@given(RINGS)
@example(np.array([[-10.0, -10.0], [90.0, -10.0], [-10.0, 90.0]]))
@example(np.array([[40.0, 10.0], [60.0, 10.0], [40.0, 20.0], [20.0, 15.0]]))
def test_a_cut_ring_covers_exactly_what_the_ring_covers_inside(ring: boxes.F64) -> None:
    """At every sample point of the picture, cut and uncut ring agree (even-odd), and the cut ring stays inside."""
    cut = boxes.clip_polygon(ring, SIZE_HW)
    assert (cut >= 0).all()
    assert (cut.astype(np.float32) <= np.array([40, 30], np.float32)).all()
    # Sample points off every sensible coordinate, so that none lies on an edge but for a cut rounded by a hair.
    x, y = np.meshgrid(np.arange(40) + math.pi / 7, np.arange(30) + math.e / 7)
    before = winding_parity(ring, x, y)
    after = winding_parity(cut, x, y) if len(cut) else np.zeros_like(before)
    assert (before != after).sum() <= _points_near(ring, x, y)


def _points_near(ring: boxes.F64, x: boxes.F64, y: boxes.F64) -> int:
    """How many sample points lie within a rounding error of an edge, where either answer is right."""
    near = np.zeros(x.shape, np.bool_)
    for (x0, y0), (x1, y1) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        length = math.hypot(x1 - x0, y1 - y0)
        if length > 0:
            near |= np.abs((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)) < 1e-6 * length
    return int(near.sum())


@given(st.lists(st.tuples(COORDINATE, COORDINATE), min_size=3, max_size=3))
def test_the_area_of_a_cut_triangle_is_what_sampling_says(corners: list[tuple[float, float]]) -> None:
    """Shoelace area of the cut against counting 20 x 20 samples a pixel, within the length of the edges."""
    ring = np.array(corners)
    x, y = np.meshgrid((np.arange(800) + 0.5) / 20, (np.arange(600) + 0.5) / 20)
    counted = winding_parity(ring, x, y).sum() / 400
    cut = boxes.clip_polygon(ring, SIZE_HW)
    area = boxes.polygon_area(cut)
    # An edge passes through at most two rows or columns of samples a step; three edges of at most the picture's diagonal.
    assert abs(area - counted) <= 3 * math.hypot(*SIZE_HW) * 2 / 20


BOW_TIE = np.array([[0.0, 0.0], [10.0, 10.0], [10.0, 0.0], [0.0, 10.0]])


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("step", [1, -1])
def test_a_bow_tie_is_seen_from_every_start(start: int, step: int) -> None:
    """Both pairs of opposite sides are looked at, whichever of them crosses."""
    assert boxes.is_self_crossing(np.roll(BOW_TIE, start, axis=0)[::step])


@pytest.mark.parametrize(
    "quad",
    [
        [[0, 0], [10, 0], [10, 10], [0, 10]],  # a square
        [[0, 0], [10, 0], [2, 2], [0, 10]],  # reflex, but simple
        [[0, 0], [5, 0], [10, 0], [5, 8]],  # three corners on a line
        [[0, 0], [10, 0], [10, 0], [0, 10]],  # a corner twice
        [[0, 0], [10, 0], [5, 0], [5, 8]],  # a side that runs back over itself touches and does not cross
        [[3, 3], [3, 3], [3, 3], [3, 3]],
    ],
)
def test_a_ring_that_only_touches_itself_is_no_bow_tie(quad: list[list[float]]) -> None:
    """Only a real crossing counts."""
    assert not boxes.is_self_crossing(np.array(quad, np.float64))


@given(st.floats(0, math.tau), st.floats(1, 50), st.floats(1, 50), st.floats(-30, 30), st.floats(-30, 30))
def test_the_smallest_rectangle_around_a_turned_rectangle_is_itself(angle: float, a: float, b: float, x: float, y: float) -> None:
    """Whatever the angle; the corners come back in order around the ring."""
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    corners = np.array([[0.0, 0.0], [a, 0.0], [a, b], [0.0, b]]) @ turn + np.array([x, y])
    found = boxes.min_area_rectangle(corners)
    assert boxes.polygon_area(found) == pytest.approx(a * b, rel=1e-6)
    for corner in corners:
        assert np.hypot(*(found - corner).T).min() < 1e-6
    assert not boxes.is_self_crossing(found)


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=3, max_size=8))
def test_the_smallest_rectangle_holds_every_point_and_none_is_smaller(corners: list[tuple[float, float]]) -> None:
    """Against a fine sweep over all angles: no box at any of them is smaller, and no point sticks out."""
    points = np.array(corners)
    assume(np.ptp(points, axis=0).max() > 0.1)
    found = boxes.min_area_rectangle(points)
    u, v = found[1] - found[0], found[3] - found[0]
    for side, other in ((u, v), (v, u)):
        length = np.hypot(*side)
        if length > 1e-6:
            along = (points - found[0]) @ side / length
            assert along.min() > -1e-4
            assert along.max() < length + 1e-4
        assert abs(side @ other) < 1e-4
    area = boxes.polygon_area(found)
    for angle in np.linspace(0, math.pi / 2, 180):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        assert area <= np.prod(np.ptp(points @ turn, axis=0)) + 1e-6


def test_the_rectangle_of_a_bow_tie_is_the_square_around_it() -> None:
    """What becomes of a self-crossing quadrilateral of a DOTA file."""
    assert boxes.polygon_area(boxes.min_area_rectangle(BOW_TIE)) == pytest.approx(100)


def test_the_rectangle_of_one_point_is_that_point_four_times() -> None:
    """No direction, no size: the rule on zero area drops it later."""
    assert boxes.min_area_rectangle(np.full((4, 2), 3.0)).tolist() == [[3, 3]] * 4
