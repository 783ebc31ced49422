"""Oriented boxes: the same rectangle under turns, the same direction at a border, the smallest one under shear."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_kit import F64, FRAME, H, W, frames, similarity, trainers_matrix

from fastdata import boxes
from fastdata.augment import oriented, outline

QUARTER = math.pi / 4
ANGLES = st.floats(-QUARTER, 3 * QUARTER, exclude_max=True)
RECTANGLES = st.tuples(st.floats(-10, 50), st.floats(-10, 40), st.floats(8, 40), st.floats(1, 7), ANGLES)


def corners(*xywhr: float) -> F64:
    """(1, 4, 2) corners of one rectangle."""
    return oriented.xywhr_to_corners(np.array([xywhr]))


def gap(a: float, b: float) -> float:
    """Difference of two directions, which are the same after half a turn."""
    return abs((a - b + math.pi / 2) % math.pi - math.pi / 2)


def same_shape(a: F64, b: F64, tol: float = 1e-9) -> bool:
    """Whether two (4, 2) shapes have the same corners, whichever comes first."""
    return all(min(math.dist(p, q) for q in b) < tol for p in a) and all(min(math.dist(p, q) for q in a) < tol for p in b)


def warp(quads: F64, matrix: F64, rects: F64 | None = None) -> tuple[F64, F64]:
    """All through one matrix, seen through the frame."""
    of = np.zeros(len(quads), np.int64)
    return oriented.warp_corners(quads, matrix[None], of, frames(len(quads)) if rects is None else rects)


@pytest.mark.parametrize(
    ("corners_px", "xywhr"),
    [
        ([[0, 0], [8, 0], [8, 2], [0, 2]], (4, 1, 8, 2, 0)),
        ([[0, 0], [2, 0], [2, 8], [0, 8]], (1, 4, 8, 2, math.pi / 2)),
        ([[0, 0], [4, 4], [3, 5], [-1, 1]], (1.5, 2.5, 32**0.5, 2**0.5, QUARTER)),
        ([[0, 0], [4, -4], [5, -3], [1, 1]], (2.5, -1.5, 32**0.5, 2**0.5, -QUARTER)),
        ([[3, 4], [3, 4], [3, 4], [3, 4]], (3, 4, 0, 0, 0)),
        ([[3, 4], [9, 4], [3, 4], [3, 4]], (6, 4, 6, 0, 0)),
    ],
    ids=["wide", "high", "falling", "rising", "a point", "a line"],
)
def test_the_longer_side_comes_first_and_its_angle_runs_clockwise(
    corners_px: list[list[float]], xywhr: tuple[float, ...]
) -> None:
    """y runs down, so a side that falls to the right has a positive angle; rising, it is -pi/4, not 3 pi/4."""
    (got,) = oriented.corners_to_xywhr(np.array([corners_px], np.float64))
    assert got[:4].tolist() == pytest.approx(xywhr[:4])
    assert gap(got[4], xywhr[4]) < 1e-12


@pytest.mark.parametrize("hairs", [0, 1, 2, 4])
def test_at_the_seam_the_angle_stays_within_its_range(hairs: int) -> None:
    """A hair steeper than 45 degrees: half a turn further, but not to 3 pi/4 itself."""
    quad = np.array([[[0.0, 0], [8, -8 * (1 + hairs * 2.0**-52)], [9, -7], [1, 1]]])
    (got,) = oriented.corners_to_xywhr(quad)
    assert -QUARTER <= got[4] < 3 * QUARTER
    assert gap(got[4], -QUARTER) < 1e-9


@given(RECTANGLES)
def test_corners_and_centre_form_are_inverse(xywhr: tuple[float, ...]) -> None:
    """Within the range of angles that is stored, and modulo half a turn at its ends."""
    (got,) = oriented.corners_to_xywhr(corners(*xywhr))
    assert got[:4].tolist() == pytest.approx(xywhr[:4], abs=1e-9)
    assert gap(got[4], xywhr[4]) < 1e-9
    assert -QUARTER <= got[4] < 3 * QUARTER


@given(st.integers(0, 2**32 - 1))
def test_it_is_the_smallest_rectangle_around_any_four_points(seed: int) -> None:
    """As ``boxes.min_area_rectangle`` finds it; dents, crossing sides, doubled points; whichever point comes first."""
    rng = np.random.default_rng(seed)
    quads = rng.uniform(-50, 50, (8, 4, 2))
    quads[::4] = np.round(quads[::4] / 20) * 20
    got = oriented.corners_to_xywhr(quads)
    for quad, fit, rolled in zip(quads, got, oriented.corners_to_xywhr(np.roll(quads, 1, axis=1)), strict=True):
        want = boxes.min_area_rectangle(quad)
        assert fit[2] * fit[3] == pytest.approx(boxes.polygon_area(want), abs=1e-7)
        assert rolled[2] * rolled[3] == pytest.approx(fit[2] * fit[3], abs=1e-7)
        u = np.array([math.cos(fit[4]), math.sin(fit[4])])
        along = (quad - fit[:2]) @ np.stack([u, [-u[1], u[0]]]).T
        assert (np.abs(along) <= fit[2:4] / 2 + 1e-9).all()
        assert fit[2] >= fit[3]


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_it_is_the_smallest_rectangle_around_an_outline(seed: int, count: int, is_coarse: bool) -> None:
    """As ``boxes.min_area_rectangle`` finds it among all directions; on a coarse grid points coincide and lie on one line."""
    points = np.random.default_rng(seed).uniform(-50, 50, (count, 2))
    points = np.round(points / 20) * 20 if is_coarse else points
    found = oriented.rectangle_around(oriented.convex_hull(points))
    want = boxes.min_area_rectangle(points)
    assert boxes.polygon_area(found) == pytest.approx(boxes.polygon_area(want), abs=1e-7)
    (x, y, w, h, angle) = oriented.corners_to_xywhr(found[None])[0]
    u = np.array([math.cos(angle), math.sin(angle)])
    along = (points - (x, y)) @ np.stack([u, [-u[1], u[0]]]).T
    assert (np.abs(along) <= np.array([w, h]) / 2 + 1e-7).all()


@given(RECTANGLES, st.floats(-180, 180), st.floats(0.3, 2), st.booleans())
def test_turned_zoomed_and_mirrored_it_is_the_same_rectangle(
    xywhr: tuple[float, ...], degrees: float, zoom: float, mirror: bool
) -> None:
    """Sides times the zoom, the angle with the turn; a mirror turns it the other way first."""
    big = np.array([[-1e4, -1e4, 1e4, 1e4]])
    quads, xyxy = warp(corners(*xywhr), similarity(degrees, zoom, (3, 4), mirror), big)
    (got,) = oriented.corners_to_xywhr(quads)
    assert got[2:4].tolist() == pytest.approx([xywhr[2] * zoom, xywhr[3] * zoom])
    assert gap(got[4], (-xywhr[4] if mirror else xywhr[4]) + math.radians(degrees)) < 1e-7
    assert xyxy[0].tolist() == boxes.bounds(quads[0]).tolist()


@given(RECTANGLES)
def test_at_a_border_it_keeps_its_direction_and_fits_what_is_left(xywhr: tuple[float, ...]) -> None:
    """The tight rectangle around the visible part, along the sides of the whole; the box is the extent of the visible part."""
    whole = corners(*xywhr)
    quads, xyxy = oriented.clip_corners(whole, frames(1))
    seen = boxes.clip_polygon(whole[0], (H, W))
    if len(seen) < 3 or boxes.polygon_area(seen) < 1e-5:
        return
    assert xyxy[0].tolist() == pytest.approx(boxes.bounds(seen).tolist(), abs=1e-9)
    u = np.array([math.cos(xywhr[4]), math.sin(xywhr[4])])
    turn = np.stack([u, [-u[1], u[0]]])
    assert same_shape(boxes.bounds(quads[0] @ turn.T).reshape(2, 2), boxes.bounds(seen @ turn.T).reshape(2, 2))
    assert boxes.polygon_area(quads[0]) == pytest.approx(np.ptp(seen @ turn.T, axis=0).prod())


def test_within_the_frame_nothing_changes() -> None:
    """Bit for bit, also a shape that is no rectangle, also on the border."""
    quads = np.array([[[0.0, 0], [W, 3], [30, H], [2, 9]], [[1.0, 1], [5, 2], [4, 6], [0, 5]]])
    got, xyxy = oriented.clip_corners(quads, frames(2))
    assert got.tobytes() == quads.tobytes()
    assert xyxy.tolist() == [[0, 0, W, H], [0, 1, 5, 6]]


def test_outside_nothing_is_left() -> None:
    """Also beyond a corner, also touching the border, also behind the camera; and no boxes are no boxes."""
    beyond = [[[40.0, -20], [70, 10], [60, 20], [36, -10]], [[40, 5], [60, 5], [60, 9], [40, 9]]]
    behind = [[[-300.0, 1], [-200, 1], [-200, 9], [-300, 9]]]
    lens = np.array([[1.0, 0, 0], [0, 1, 0], [0.01, 0, 1]])
    for got in (oriented.clip_corners(np.array(beyond), frames(2)), warp(np.array(behind), lens)):
        assert not got[0].any()
        assert not got[1].any()
    assert [part.shape for part in warp(np.zeros((0, 4, 2)), lens)] == [(0, 4, 2), (0, 4)]
    assert oriented.corners_to_xywhr(np.zeros((0, 4, 2))).shape == (0, 5)


def test_a_box_partly_behind_the_camera_is_cut_before_it_is_fitted() -> None:
    """With one, two or three corners behind: the extent is that of the outline, the rectangle holds it, and both are finite."""
    lens = np.array([[1.0, 0, 0], [0, 1, 0], [0.05, 0.01, 1]])
    rng = np.random.default_rng(5)
    quads = oriented.xywhr_to_corners(
        np.column_stack(
            [rng.uniform(-60, 40, (400, 2)), rng.uniform(40, 90, 400), rng.uniform(20, 80, 400), rng.uniform(-0.7, 2, 400)]
        )
    )
    behind = (quads @ lens[2, :2] + 1 < outline.NEAR).sum(axis=1)
    corners_px, xyxy = warp(quads, lens)
    rings = outline.warp_rings(quads.reshape(-1, 2), 4 * np.arange(401), lens[None], np.zeros(400, np.int64))
    points, offsets = outline.clip_rings(*rings, frames(400))
    is_seen = np.diff(offsets) > 0
    assert min(np.bincount(behind[is_seen])[:4]) > 5
    assert np.array_equal(xyxy.any(axis=1), is_seen)
    assert np.abs(xyxy - outline.ring_bounds(points, offsets))[is_seen].max() < 1e-6
    for i in np.flatnonzero(is_seen):
        seen = points[offsets[i] : offsets[i + 1]]
        (fit,) = oriented.corners_to_xywhr(corners_px[i : i + 1])
        u = np.array([math.cos(fit[4]), math.sin(fit[4])])
        assert (np.abs((seen - fit[:2]) @ np.stack([u, [-u[1], u[0]]]).T) <= fit[2:4] / 2 + 1e-5).all()


def test_a_shape_with_a_dent_stands_for_its_smallest_rectangle() -> None:
    """At a border; cut as it is, the dent could decide what is seen."""
    dented = np.array([[[30.0, 5], [50, 5], [50, 15], [45, 6]]])
    quads, xyxy = oriented.clip_corners(dented, frames(1))
    want, want_xyxy = oriented.clip_corners(oriented.xywhr_to_corners(oriented.corners_to_xywhr(dented)), frames(1))
    assert same_shape(quads[0], want[0])
    assert np.allclose(xyxy, want_xyxy, rtol=0, atol=1e-9)


@given(st.lists(st.tuples(RECTANGLES, st.integers(0, 1)), max_size=6), st.integers(0, 6))
def test_a_box_does_not_depend_on_its_neighbours(rows: list[tuple[tuple[float, ...], int]], cut_at: int) -> None:
    """Bit for bit, flat warps and a strong lens in one batch."""
    matrices = np.stack([similarity(20, 1.1, (-3, 2)), np.array([[1.0, 0, 9], [0.1, 1, 0], [0.03, 0.02, 1]])])
    quads = oriented.xywhr_to_corners(np.array([row[0] for row in rows]).reshape(-1, 5))
    of = np.array([row[1] for row in rows], np.int64)
    whole = oriented.warp_corners(quads, matrices, of, frames(len(rows)))
    parts = [
        oriented.warp_corners(quads[s], matrices, of[s], frames(len(of[s]))) for s in (slice(0, cut_at), slice(cut_at, None))
    ]
    for k in range(2):
        assert np.concatenate([part[k] for part in parts]).tobytes() == whole[k].tobytes()


def test_a_cut_rotated_box_points_the_same_way() -> None:
    """Case geo-rotated-box-cut: 60 x 16 at 20 degrees, shifted 40 px over the left border."""
    quad = np.array([[[34.5454, 22.2219], [90.9269, 42.7431], [85.4546, 57.7781], [29.0731, 37.2569]]])
    quads, _ = warp(quad, similarity(0, 1, (-40, 0)), np.array([[0.0, 0, 120, 80]]))
    (got,) = oriented.corners_to_xywhr(quads)
    assert got[:4].tolist() == pytest.approx([22.727, 40.993, 54.195, 16.0], abs=0.001)
    assert math.degrees(got[4]) == pytest.approx(20, abs=0.001)


def test_under_shear_it_is_the_smallest_rectangle_and_cut_along_that() -> None:
    """Inside the corners stay a parallelogram; across the border the direction is that of its smallest rectangle."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        matrix, _ = trainers_matrix((W, H), (W, H), rng, degrees=180, shear=30, perspective=0.001)
        quads = corners(*rng.uniform(0, W, 2), rng.uniform(15, 40), rng.uniform(4, 12), rng.uniform(-0.7, 2))
        uncut = warp(quads, matrix, np.array([[-1e4, -1e4, 1e4, 1e4]]))[0]
        cut, xyxy = warp(quads, matrix)
        if not xyxy.any():
            continue
        angle = oriented.corners_to_xywhr(uncut)[0, 4]
        side = cut[0, 1] - cut[0, 0]
        turned = abs(math.sin(2 * (math.atan2(side[1], side[0]) - angle)))
        assert turned < 1e-7 or (FRAME[:2] <= uncut.min(axis=1)).all()
