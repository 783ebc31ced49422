"""The objects of a batch while it is planned, and what of them the output shows.

An object with rings is its outline; one without is its box. Seen whole and not turned, though, an object keeps the box that it
has in the store: a dataset may give both, and validation goes by that box too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fastdata.augment import oriented, outline, ragged
from fastdata.labels import MASK

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_PER_OBJECT = ("scene", "instance", "cls", "kind", "xyxy", "has_outline", "is_cut", "keypoints")


@dataclass(frozen=True, slots=True)
class Objects:
    """N objects, P rings, V points; pixels of a canvas or of the output."""

    scene: I64
    """(N,) scene that each lies in."""
    instance: I64
    """(N,) number in the catalog."""
    cls: I32
    """(N,)"""
    kind: U8
    """(N,)"""
    xyxy: F64
    """(N, 4)"""
    has_outline: Bool
    """(N,) whether the object is an outline; its rings are left out where nobody asks for them."""
    is_cut: Bool
    """(N,) whether the canvas shows only a part of it."""
    ring_offsets: I64
    """(N + 1,)"""
    point_offsets: I64
    """(P + 1,)"""
    points: F64
    """(V, 2)"""
    keypoints: F64
    """(N, K, 3)"""

    def __len__(self) -> int:
        return len(self.scene)

    @property
    def has_rings(self) -> Bool:
        """(N,)"""
        out: Bool = self.ring_offsets[1:] > self.ring_offsets[:-1]
        return out

    @property
    def point_owner(self) -> I64:
        """(V,) object that each point belongs to."""
        return ragged.owners(self.ring_offsets)[ragged.owners(self.point_offsets)]

    def take(self, rows: I64 | Bool) -> Self:
        """Return some of the objects, in the order asked for."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        out = {name: getattr(self, name).take(rows, axis=0) for name in _PER_OBJECT}
        ring_offsets, point_offsets, points = np.zeros(len(rows) + 1, np.int64), self.point_offsets, self.points
        if self.ring_offsets[-1]:
            elements, ring_offsets, point_offsets = ragged.gather_nested(rows, self.ring_offsets, self.point_offsets)
            points = points.take(elements, axis=0)
        return type(self)(**out, ring_offsets=ring_offsets, point_offsets=point_offsets, points=points)


def merged(first: Objects, second: Objects) -> Objects:
    """Return the objects of both, ascending by scene; within a scene the first before the second."""
    both = Objects(
        **{name: np.concatenate([getattr(part, name) for part in (first, second)]) for name in (*_PER_OBJECT, "points")},
        ring_offsets=np.concatenate([first.ring_offsets, first.ring_offsets[-1] + second.ring_offsets[1:]]),
        point_offsets=np.concatenate([first.point_offsets, first.point_offsets[-1] + second.point_offsets[1:]]),
    )
    return both.take(np.argsort(both.scene, kind="stable"))


def warped(objects: Objects, matrix: F64, out_hw: tuple[int, int], task: str) -> Objects:
    """Return the objects as the output shows them, before flips; all zeros for the box of one that it does not show.

    Args:
        objects: On their canvases.
        matrix: (S, 3, 3) canvas to output.
        out_hw: Size of the output.
        task: What is made of the objects.
    """
    frame = np.array([0, 0, out_hw[1], out_hw[0]], np.float64)
    if task == "obb":
        frames = np.broadcast_to(frame, (len(objects), 4))
        corners, xyxy = oriented.warp_corners(objects.points.reshape(-1, 4, 2), matrix, objects.scene, frames)
        return replace(objects, xyxy=xyxy, points=corners.reshape(-1, 2))
    mapped = mapped_boxes(objects.xyxy, matrix, objects.scene)
    xyxy = np.maximum(mapped, 0.0)
    np.minimum(xyxy, out_hw[0] if out_hw[0] == out_hw[1] else frame[[2, 3, 2, 3]], out=xyxy)  # one number takes far less time
    points, point_offsets, keypoints = objects.points, objects.point_offsets, objects.keypoints
    if len(points):
        frames = np.broadcast_to(frame, (len(objects), 4))
        owner = ragged.owners(objects.ring_offsets)
        points, point_offsets = outline.warp_rings(points, point_offsets, matrix, objects.scene[owner])
        points, point_offsets = outline.clip_rings(points, point_offsets, frames[owner])
        seen = outline.object_boxes(points, point_offsets, objects.ring_offsets, frames, objects.kind == MASK)
        by_rings = objects.has_rings & ~is_whole(objects.is_cut, mapped, matrix, objects.scene, out_hw)
        xyxy = np.where(by_rings[:, None], seen, xyxy)
    is_seen = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    xyxy[~is_seen] = 0.0
    if keypoints.shape[1]:
        keypoints = outline.warp_keypoints(keypoints, matrix, objects.scene, np.broadcast_to(frame, (len(objects), 4)))
    return replace(objects, xyxy=xyxy, points=points, point_offsets=point_offsets, keypoints=keypoints)


def is_whole(is_cut: Bool, mapped_xyxy: F64, matrix: F64, of: I64, out_hw: tuple[int, int]) -> Bool:
    """Tell which objects are seen whole and not turned, by their (N, 4) boxes in the output."""
    is_within = (mapped_xyxy[:, 0] >= 0) & (mapped_xyxy[:, 1] >= 0)
    is_within &= (mapped_xyxy[:, 2] <= out_hw[1]) & (mapped_xyxy[:, 3] <= out_hw[0])
    out: Bool = is_within & ~is_cut & keeps_axes(matrix)[of]
    return out


def mapped_boxes(xyxy: F64, matrix: F64, of: I64) -> F64:
    """Boxes around mapped (N, 4) boxes; the short way where every matrix keeps axes: the same numbers, bit for bit."""
    if not keeps_axes(matrix).all():
        return outline.warp_boxes(xyxy, matrix, of)
    out: F64 = matrix[:, (0, 1, 0, 1), (0, 1, 0, 1)].take(of, axis=0)
    out *= xyxy
    out += matrix[:, (0, 1, 0, 1), (2, 2, 2, 2)].take(of, axis=0)
    return out


def keeps_axes(matrix: F64) -> Bool:
    """(S,) whether a (S, 3, 3) matrix only scales and moves."""
    out: Bool = (matrix[:, 0, 0] > 0) & (matrix[:, 1, 1] > 0)
    for row, column, value in ((0, 1, 0.0), (1, 0, 0.0), (2, 0, 0.0), (2, 1, 0.0), (2, 2, 1.0)):
        out &= matrix[:, row, column] == value
    return out


def seen_keypoints(keypoints: F64, rect: F64) -> F64:
    """Take visibility and place from keypoints outside the rectangle of their object; (N, K, 3) and (N, 4)."""
    xy = keypoints[:, :, :2]
    within = ((xy >= rect[:, None, :2]) & (xy <= rect[:, None, 2:])).all(axis=2) & (keypoints[:, :, 2] > 0)
    return np.where(within[:, :, None], keypoints, 0.0)
