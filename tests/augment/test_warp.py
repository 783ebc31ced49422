"""Points, boxes, keypoints and outlines through matrices: exact, in any mixture, and never from behind the camera."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_kit import F64, FRAME, H, W, flat, frames, listed, parity, ring_lists, similarity, trainers_matrix

from fastdata import boxes
from fastdata.augment import outline

SHIFT = np.array([[1.0, 0, 5], [0, 1, -3], [0, 0, 1]])
LENS = np.array([[1.0, 0, 0], [0, 1, 0], [0.01, 0, 1]])
"""Behind the camera is x < -100."""


def test_each_point_goes_through_its_own_matrix() -> None:
    """A shift, a quarter turn, a lens: in one call."""
    matrices = np.stack([SHIFT, similarity(90, 2, (1, 0)), LENS])
    points = np.array([[1.0, 2], [1, 2], [100, 50], [3, 4]])
    got = outline.warp_points(points, matrices, np.array([0, 1, 2, 0]))
    assert np.allclose(got, [[6, -1], [-3, 2], [50, 25], [8, 1]], rtol=0, atol=1e-12)


@given(st.lists(st.tuples(st.floats(-2000, 2000), st.floats(-2000, 2000), st.integers(0, 2)), max_size=8))
def test_a_lens_elsewhere_in_the_batch_changes_no_bit(rows: list[tuple[float, float, int]]) -> None:
    """Points of flat warps alone, and together with those of a lens."""
    matrices = np.stack([SHIFT, similarity(33, 0.7, (3, 4), mirror=True), LENS])
    points, of = np.array([row[:2] for row in rows]).reshape(-1, 2), np.array([row[2] for row in rows], np.int64)
    together = outline.warp_points(points, matrices, of)
    for i in range(len(rows)):
        alone = outline.warp_points(points[i : i + 1], matrices[of[i]][None], np.zeros(1, np.int64))
        assert alone.tobytes() == together[i].tobytes()


def test_a_point_behind_the_camera_has_no_place() -> None:
    """Not the mirrored one on the wrong side that a division would give it."""
    got = outline.warp_points(np.array([[-99.0, 1], [-100, 1], [-200, 1]]), LENS[None], np.zeros(3, np.int64))
    assert got[0].tolist() == pytest.approx([-9900, 100])
    assert np.isnan(got[1:]).all()


def test_a_box_is_around_its_mapped_corners() -> None:
    """A turn by 45 degrees makes a square of side 2 one of 2 root 2; a mirror keeps x0 < x1."""
    matrices = np.stack([similarity(45, 1, (10, 10)), similarity(0, 1, (40, 0), mirror=True)])
    got = outline.warp_boxes(np.array([[-1.0, -1, 1, 1], [3, 4, 9, 8]]), matrices, np.array([0, 1]))
    root = np.sqrt(2)
    assert np.allclose(got, [[10 - root, 10 - root, 10 + root, 10 + root], [31, 4, 37, 8]], rtol=0, atol=1e-12)
    assert outline.warp_boxes(np.zeros((0, 4)), matrices, np.zeros(0, np.int64)).shape == (0, 4)


def test_a_box_that_reaches_behind_the_camera_reaches_the_border_and_no_other() -> None:
    """Before the lens it ends at x = 10 and 20 px wide in y; behind, at infinity on the left."""
    box = outline.warp_boxes(np.array([[-300.0, 10, 10, 20], [-300, 10, -200, 20]]), LENS[None], np.zeros(2, np.int64))
    assert box[0, 2] == pytest.approx(10 / 1.1)
    assert box[0, 0] < -1e6
    assert box[1].tolist() == [0, 0, 0, 0]
    assert outline.clip_boxes(box, frames(2))[0].tolist() == pytest.approx([0, 10 / 1.1, 10 / 1.1, H])


@given(ring_lists(shortest=3, rings=3), st.integers(0, 2**32 - 1))
def test_what_a_lens_shows_of_a_ring_is_what_lies_before_it(rings: list[F64], seed: int) -> None:
    """Cut by a fine fan of the source instead: each visible place of the output comes from a place in the ring, and back."""
    rng = np.random.default_rng(seed)
    matrix, _ = trainers_matrix((W, H), (W, H), rng, degrees=30, shear=10, perspective=0.03)
    points, offsets = outline.warp_rings(*flat(rings), matrix[None], np.zeros(len(rings), np.int64))
    assert np.isfinite(points).all()
    points, offsets = outline.clip_rings(points, offsets, frames(len(rings)))
    at = rng.uniform(0, 1, (200, 2)) * FRAME[2:]
    source = np.column_stack([at, np.ones(len(at))]) @ np.linalg.inv(matrix).T
    is_before = source[:, 2] > 1e-3  # the third coordinate of the way back is one over that of the way there
    source = source[:, :2] / np.where(is_before, source[:, 2], 1.0)[:, None]
    for ring, cut in zip(rings, listed(points, offsets), strict=True):
        if boxes.polygon_area(ring) > 1e-3:
            inside, seen = parity(ring, *source.T) & is_before, parity(cut, *at.T)
            assert (inside != seen).sum() <= 1  # a place within rounding of a side


def keypoints_after(points: list[list[float]], matrix: F64 = SHIFT) -> list[list[float]]:
    """One object's keypoints, seen through the frame."""
    return outline.warp_keypoints(np.array([points]), matrix[None], np.zeros(1, np.int64), frames(1))[0].tolist()


def test_a_keypoint_on_the_border_is_seen_and_one_beyond_it_is_not() -> None:
    """Each border; visibility first, and no point clamped to the border seems to be seen there."""
    inside = [[0.0, 10, 2], [W, 10, 1], [10, 0, 2], [10, H, 2]]
    hair = 1e-9
    outside = [[-hair, 10, 2], [W + hair, 10, 1], [10, -hair, 2], [10, H + hair, 2]]
    assert keypoints_after(inside, np.eye(3)) == inside
    assert keypoints_after(outside, np.eye(3)) == [[0, 0, 0]] * 4


def test_a_keypoint_without_visibility_has_no_place() -> None:
    """Whatever numbers it came with; and one behind the camera is not seen."""
    assert keypoints_after([[3.0, 9, 0], [0, 0, 0], [1, 5, 2]]) == [[0, 0, 0], [0, 0, 0], [6, 2, 2]]
    assert keypoints_after([[-150.0, 2, 2], [20, 12, 1]], LENS) == [[0, 0, 0], [20 / 1.2, 10, 1]]


def test_no_keypoints_are_no_keypoints() -> None:
    """K = 0, and no objects."""
    assert outline.warp_keypoints(np.zeros((2, 0, 3)), SHIFT[None], np.zeros(2, np.int64), frames(2)).shape == (2, 0, 3)
    assert outline.warp_keypoints(np.zeros((0, 5, 3)), SHIFT[None], np.zeros(0, np.int64), frames(0)).shape == (0, 5, 3)


def test_a_mirror_exchanges_left_and_right_and_turning_upside_down_does_not() -> None:
    """Case geo-flip-pose: both flips of a 60 x 40 picture, with the same table at hand."""
    keypoints = np.array([[[18.0, 6, 2], [10, 20, 2], [26, 20, 1]]] * 2)
    matrices = np.array([[[-1.0, 0, 60], [0, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, -1, 40], [0, 0, 1]]])
    of, rects = np.array([0, 1]), np.array([[0.0, 0, 60, 40]] * 2)
    got = outline.mirror_keypoints(
        outline.warp_keypoints(keypoints, matrices, of, rects), np.array([0, 2, 1]), np.array([True, False])
    )
    assert got[0].tolist() == [[42, 6, 2], [34, 20, 1], [50, 20, 2]]
    assert got[1].tolist() == [[18, 34, 2], [10, 20, 2], [26, 20, 1]]
    assert outline.warp_boxes(np.array([[6.0, 4, 30, 24]] * 2), matrices, of).tolist() == [[30, 4, 54, 24], [6, 16, 30, 36]]


def test_a_mirror_table_may_be_more_than_pairs() -> None:
    """Place i takes the keypoint that the table names, so a cycle shows its direction."""
    keypoints = np.arange(9.0).reshape(1, 3, 3)
    assert outline.mirror_keypoints(keypoints, np.array([1, 2, 0]), np.array([True]))[0, :, 0].tolist() == [3, 6, 0]


def test_a_turned_outline_has_a_tight_box() -> None:
    """Case geo-turned-outline: 45 degrees to the left; the corners of its box would reach from 11.7 to 68.3 both ways."""
    r = 0.7071067812
    matrix = np.array([[[r, r, -16.5685424949], [-r, r, 40.0], [0, 0, 1]]])
    ring, rect, of = np.array([[20.0, 20], [60, 20], [20, 60]]), np.array([[0.0, 0, 80, 80]]), np.zeros(1, np.int64)
    points, offsets = outline.clip_rings(*outline.warp_rings(*flat([ring]), matrix, of), rect)
    assert np.abs(points - [[11.7157, 40.0], [40.0, 11.7157], [40.0, 68.2843]]).max() < 1e-3
    box = outline.object_boxes(points, offsets, np.array([0, 1]), rect, np.zeros(1, np.bool_))
    assert np.abs(box - [[11.7157, 11.7157, 40.0, 68.2843]]).max() < 1e-3
    loose = outline.warp_boxes(np.array([[20.0, 20, 60, 60]]), matrix, of)
    assert np.abs(loose - [[11.7157, 11.7157, 68.2843, 68.2843]]).max() < 1e-3


def test_boxes_of_a_mosaic_lie_where_their_tiles_lie() -> None:
    """Case geo-mosaic-corners: offsets of four 40 px tiles around (50, 30) on a canvas of 80; what is cut off leaves no side."""
    origins = np.array([[10.0, -10], [50, -10], [10, 30], [50, 30]])
    matrices = np.tile(np.eye(3), (4, 1, 1))
    matrices[:, :2, 2] = origins
    before = np.array(
        [[20, 15, 40, 35], [0, 0, 12, 8], [5, 10, 25, 20], [32, 20, 40, 30], [4, 10, 20, 36], [20, 20, 40, 40]], np.float64
    )
    got = outline.clip_boxes(
        outline.warp_boxes(before, matrices, np.array([0, 0, 1, 1, 2, 3])), np.tile([0.0, 0, 80, 80], (6, 1))
    )
    is_left = (got[:, 2:] > got[:, :2]).all(axis=1)
    assert got[is_left].tolist() == [[30, 5, 50, 25], [55, 0, 75, 10], [14, 40, 30, 66], [70, 50, 80, 70]]
