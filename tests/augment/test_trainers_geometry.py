"""The same outlines, keypoints and oriented boxes through Ultralytics' own functions and through ours.

Theirs are approximations of the exact cut: float32, outlines resampled to 1,000 points (100 for oriented boxes) that keep the
original ones, and OpenCV's float32 rectangles. So a box of an outline must agree to 0.01 px, an oriented one to 0.05 px.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shape_kit import F64, flat, trainers_matrix

from fastdata.augment import oriented, outline

augment = pytest.importorskip("ultralytics.data.augment")
instance = pytest.importorskip("ultralytics.utils.instance")
ops = pytest.importorskip("ultralytics.utils.ops")

CANVAS, SIZE = 1280, 640
WARPS = [
    pytest.param({"degrees": 0, "shear": 0, "perspective": 0}, id="zoom"),
    pytest.param({"degrees": 180, "shear": 0, "perspective": 0}, id="turn"),
    pytest.param({"degrees": 30, "shear": 15, "perspective": 0}, id="shear"),
    pytest.param({"degrees": 30, "shear": 15, "perspective": 0.0005}, id="perspective"),
]


def draws(warp: dict[str, float], count: int) -> Iterator[tuple[np.random.Generator, F64, Any]]:
    """Matrices as the trainer draws them, and the trainer's transform."""
    rng = np.random.default_rng(11)
    for _ in range(count):
        matrix, _ = trainers_matrix((CANVAS, CANVAS), (SIZE, SIZE), rng, **warp)
        yield rng, matrix, augment.RandomPerspective(perspective=warp["perspective"], size=(SIZE, SIZE))


def outlines(rng: np.random.Generator, n: int) -> list[F64]:
    """Stars with dents, tangles with crossing sides, rectangles, on the canvas."""
    found = []
    for i in range(n):
        v = int(rng.integers(3, 40))
        middle, size = rng.uniform(0, CANVAS, 2), rng.uniform(5, 400)
        angle = np.sort(rng.uniform(0, 2 * math.pi, v)) if i % 3 else rng.uniform(0, 2 * math.pi, v)
        reach = size * rng.uniform(0.3, 1, v)[:, None]
        found.append(np.clip(middle + reach * np.column_stack([np.cos(angle), np.sin(angle)]), 0, CANVAS))
    return found


@pytest.mark.parametrize("warp", WARPS)
def test_the_boxes_of_outlines_agree_to_a_hundredth_of_a_pixel(warp: dict[str, float]) -> None:
    """Inside, cut, and gone; nothing seen is all zeros in both."""
    frame, cut_ones, gone = np.array([[0.0, 0, SIZE, SIZE]]), 0, 0
    for rng, matrix, theirs in draws(warp, 8):
        rings = outlines(rng, 24)
        n = len(rings)
        resampled = np.stack(ops.resample_segments([ring.astype(np.float32) for ring in rings], n=1000))
        want, _ = theirs.apply_segments(resampled, matrix.astype(np.float32), (SIZE, SIZE))
        points, offsets = outline.warp_rings(*flat(rings), matrix[None], np.zeros(n, np.int64))
        cut = outline.clip_rings(points, offsets, frame.repeat(n, axis=0))
        got = outline.object_boxes(*cut, np.arange(n + 1), frame.repeat(n, axis=0), np.zeros(n, np.bool_))
        is_speck = np.minimum(want[:, 2] - want[:, 0], want[:, 3] - want[:, 1]) < 0.02  # seen or not is a matter of rounding
        assert np.abs(got - want)[~is_speck].max() < 0.01
        cut_ones += int(((got == 0) | (got == SIZE)).any(axis=1).sum() - (got == 0).all(axis=1).sum())
        gone += int((got == 0).all(axis=1).sum())
    assert cut_ones > 20
    assert gone > 5


@pytest.mark.parametrize("warp", WARPS)
def test_boxes_without_outlines_agree(warp: dict[str, float]) -> None:
    """The four corners, unclipped and clipped."""
    for rng, matrix, theirs in draws(warp, 10):
        xyxy = np.sort(rng.uniform(0, CANVAS, (50, 2, 2)), axis=1).reshape(50, 4)
        want = theirs.apply_bboxes(xyxy, matrix)
        got = outline.warp_boxes(xyxy, matrix[None], np.zeros(50, np.int64))
        assert np.abs(got - want).max() < 1e-6
        held = instance.Instances(
            want.astype(np.float32), np.zeros((0, 1000, 2), np.float32), bbox_format="xyxy", normalized=False
        )
        held.clip(SIZE, SIZE)
        assert np.abs(outline.clip_boxes(got, np.array([[0.0, 0, SIZE, SIZE]] * 50)) - held.bboxes).max() < 1e-3


@pytest.mark.parametrize("warp", WARPS)
def test_keypoints_agree(warp: dict[str, float]) -> None:
    """The same ones stay visible, in the same places."""
    seen = 0
    for rng, matrix, theirs in draws(warp, 10):
        keypoints = np.concatenate([rng.uniform(0, CANVAS, (20, 17, 2)), rng.integers(0, 3, (20, 17, 1))], axis=2)
        want = theirs.apply_keypoints(keypoints.copy(), matrix, (SIZE, SIZE))
        got = outline.warp_keypoints(keypoints, matrix[None], np.zeros(20, np.int64), np.array([[0.0, 0, SIZE, SIZE]] * 20))
        assert got[:, :, 2].tolist() == want[:, :, 2].tolist()
        is_seen = want[:, :, 2] > 0
        seen += int(is_seen.sum())
        assert np.abs(got - want)[is_seen].max() < 1e-6
        assert not got[~is_seen].any()
    assert seen > 300


def is_tie(quad: F64) -> bool:
    """Whether rectangles along different sides are as small as each other, so that rounding chooses the direction."""
    found = []
    for side in np.roll(quad, -1, axis=0) - quad:
        u = side / np.hypot(*side)
        found.append((float(np.ptp(quad @ np.stack([u, [-u[1], u[0]]]).T, axis=0).prod()), math.atan2(u[1], u[0])))
    best, angle = min(found)
    return any(area < best * (1 + 3e-6) and abs(math.sin(2 * (other - angle))) > 1e-4 for area, other in found)


@pytest.mark.parametrize("warp", WARPS)
def test_oriented_boxes_agree(warp: dict[str, float]) -> None:
    """Inside and across the border: the same rectangle in the same direction, the same box, the same ones gone."""
    cut_ones = 0
    for rng, matrix, theirs in draws(warp, 8):
        n = 40
        xywhr = np.column_stack(
            [rng.uniform(100, CANVAS - 100, (n, 2)), rng.uniform(60, 300, n), rng.uniform(10, 50, n), rng.uniform(-0.7, 2.3, n)]
        )
        quads = oriented.xywhr_to_corners(xywhr)
        theirs.preserve_obb = True
        resampled = np.stack(ops.resample_segments([quad.astype(np.float32) for quad in quads], n=100))
        boxes, segments = theirs.apply_segments(resampled, matrix.astype(np.float32), (SIZE, SIZE))
        held = instance.Instances(boxes, segments, bbox_format="xyxy", normalized=False)
        held.clip(SIZE, SIZE, preserve_obb=True)
        want = ops.xyxyxyxy2xywhr(held.segments)
        got, xyxy = oriented.warp_corners(quads, matrix[None], np.zeros(n, np.int64), np.array([[0.0, 0, SIZE, SIZE]] * n))
        fit = oriented.corners_to_xywhr(got)
        is_speck = np.minimum(held.bboxes[:, 2] - held.bboxes[:, 0], held.bboxes[:, 3] - held.bboxes[:, 1]) < 0.1
        is_seen = ~is_speck
        assert (xyxy.any(axis=1) == held.bboxes.any(axis=1))[is_seen].all()
        assert np.abs(xyxy - held.bboxes)[is_seen].max() < 0.05
        far = np.array([[-1e6, -1e6, 1e6, 1e6]] * n)
        uncut = oriented.warp_corners(quads, matrix[None], np.zeros(n, np.int64), far)[0]
        is_tied = np.array([is_tie(quad) for quad in uncut])
        assert is_tied.mean() < 0.2
        is_seen &= ~is_tied
        # The shapes, for the longer side of a near square is a matter of rounding.
        theirs_corners, ours = oriented.xywhr_to_corners(want[is_seen]), oriented.xywhr_to_corners(fit[is_seen])
        distance = np.linalg.norm(theirs_corners[:, :, None] - ours[:, None], axis=3)
        assert max(distance.min(axis=1).max(), distance.min(axis=2).max()) < 0.05
        is_long = is_seen & (want[:, 2] > 1.1 * want[:, 3]) & (want[:, 3] > 1)
        turned = (fit[:, 4] - want[:, 4] + math.pi / 2) % math.pi - math.pi / 2
        assert np.abs(turned[is_long]).max() < 0.002
        cut_ones += int((is_seen & ((xyxy == 0) | (xyxy == SIZE)).any(axis=1)).sum())
    assert cut_ones > 40
