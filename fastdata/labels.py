"""The labels of one image: as published (:class:`Rows`) and as stored (:class:`Instances`).

A reader fills :class:`Rows` with what the dataset says, in the dataset's own unit, dropping only rows that it cannot read.
``settle`` turns them into :class:`Instances`, the one place where the rules on geometry are applied (clip, drop, keep).

Ragged outlines are flat arrays with offsets: instance i owns parts ``part_offsets[i]:part_offsets[i + 1]``, part p owns points
``point_offsets[p]:point_offsets[p + 1]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

BOX, POLYGON, OBB, MASK = range(4)
"""Kinds of an instance. POLYGON: the union of its parts. MASK: pixel-edge rings, filled even-odd, so that holes stay holes.
OBB: one part of four corners, which may lie outside the picture (the angle must survive)."""

KIND_NAMES = ("box", "polygon", "obb", "mask")

CROWD, DIFFICULT, TRUNCATED = 1, 2, 4
"""Bits of ``flags``. CROWD is left out of training by default; DIFFICULT and TRUNCATED are Pascal VOC's."""


def _check(name: str, array: npt.NDArray[np.generic], *shapes: tuple[int, ...]) -> None:
    if array.shape not in shapes:
        want = " or ".join(" x ".join(map(str, shape)) for shape in shapes)
        raise ValueError(f"{name} must be of shape {want}, got {array.shape}")


@dataclass(slots=True)
class Rows:
    """n label rows of one image as published; nothing is clipped yet."""

    unit: Literal["norm", "px"]
    """Whether coordinates are fractions of the picture or pixels of it."""
    file: str
    """The label file relative to the dataset's root, for reports."""
    place: Literal["line", "annotation_id", "object"]
    """What ``where`` counts."""
    cls: npt.NDArray[np.int32]
    """(n,) class index, already in range."""
    xyxy: npt.NDArray[np.float64]
    """(n, 4) corners. x1 < x0 says that the dataset gave a negative size. Ignored where ``has_box`` is False."""
    has_box: npt.NDArray[np.bool_]
    """(n,) whether the dataset gives the box itself (else it is the bounds of the points)."""
    kind: npt.NDArray[np.uint8]
    """(n,) BOX, POLYGON, OBB or MASK."""
    flags: npt.NDArray[np.uint8]
    """(n,) bits CROWD, DIFFICULT, TRUNCATED."""
    where: npt.NDArray[np.int64]
    """(n,) line (from 1), annotation id, or object number (from 1)."""
    area: npt.NDArray[np.float64]
    """(n,) published area in source px², NaN where there is none."""
    part_offsets: npt.NDArray[np.int64]
    """(n + 1,) parts of each row. A MASK row has none: its rings come from ``rle``."""
    point_offsets: npt.NDArray[np.int64]
    """(p + 1,) points of each part."""
    points: npt.NDArray[np.float64]
    """(v, 2) outline points."""
    keypoints: npt.NDArray[np.float64]
    """(n, K, 3) x, y, visibility 0, 1 or 2; K = 0 without keypoints."""
    rle: list[bytes | None]
    """n run-length masks as JSON ``{"size": [h, w], "counts": [...] | "..."}``, None for every row that is not a MASK."""
    declared_hw: tuple[int, int] | None = None
    """Picture size that the label file states, if it states one."""

    def __post_init__(self) -> None:
        n = len(self.cls)
        _check("xyxy", self.xyxy, (n, 4))
        for name in ("has_box", "kind", "flags", "where", "area"):
            _check(name, getattr(self, name), (n,))
        _check("part_offsets", self.part_offsets, (n + 1,))
        _check("point_offsets", self.point_offsets, (int(self.part_offsets[-1]) + 1,))
        _check("points", self.points, (int(self.point_offsets[-1]), 2))
        _check("keypoints", self.keypoints, (n, *self.keypoints.shape[1:2], 3))
        if len(self.rle) != n:
            raise ValueError(f"rle must have {n} entries, got {len(self.rle)}")

    def __len__(self) -> int:
        return len(self.cls)


@dataclass(slots=True)
class Instances:
    """n objects of one image, finished.

    Invariant: every number is finite; 0 <= x0 < x1 <= w and 0 <= y0 < y1 <= h; 0 <= cls < number of names; every part has at
    least 3 points, inside the picture unless the kind is OBB; a keypoint with visibility > 0 is inside.
    """

    cls: npt.NDArray[np.int32]
    """(n,)"""
    xyxy_px: npt.NDArray[np.float32]
    """(n, 4) in pixels of the stored picture."""
    kind: npt.NDArray[np.uint8]
    """(n,)"""
    flags: npt.NDArray[np.uint8]
    """(n,)"""
    original_id: npt.NDArray[np.int64]
    """(n,) annotation id, line or object number in the source."""
    area_px: npt.NDArray[np.float32]
    """(n,) published area scaled to the stored picture, NaN where the dataset gives none."""
    part_offsets: npt.NDArray[np.int64]
    """(n + 1,)"""
    point_offsets: npt.NDArray[np.int64]
    """(p + 1,)"""
    points_px: npt.NDArray[np.float32]
    """(v, 2)"""
    keypoints_px: npt.NDArray[np.float32]
    """(n, K, 3) x, y, visibility; x = y = 0 where visibility is 0."""

    def __len__(self) -> int:
        return len(self.cls)

    @classmethod
    def empty(cls, keypoints: int = 0) -> Self:
        """Return the labels of a background picture."""
        return cls(
            cls=np.zeros(0, np.int32),
            xyxy_px=np.zeros((0, 4), np.float32),
            kind=np.zeros(0, np.uint8),
            flags=np.zeros(0, np.uint8),
            original_id=np.zeros(0, np.int64),
            area_px=np.zeros(0, np.float32),
            part_offsets=np.zeros(1, np.int64),
            point_offsets=np.zeros(1, np.int64),
            points_px=np.zeros((0, 2), np.float32),
            keypoints_px=np.zeros((0, keypoints, 3), np.float32),
        )

    def __reduce__(self) -> tuple[Callable[[bytes, int, int, int, int], Instances], tuple[bytes, int, int, int, int]]:
        """Travel as one string of bytes: ten small arrays cost a process boundary more than all else about a picture."""
        packed = b"".join(getattr(self, name).astype(dtype, copy=False).tobytes() for name, dtype, _ in _PACKED)
        counts = (len(self.cls), len(self.point_offsets) - 1, len(self.points_px), self.keypoints_px.shape[1])
        return _unpacked, (packed, *counts)

    def parts(self, i: int) -> list[npt.NDArray[np.float32]]:
        """Return the outline of instance ``i`` as a list of (v, 2) rings."""
        first, last = int(self.part_offsets[i]), int(self.part_offsets[i + 1])
        return [self.points_px[self.point_offsets[p] : self.point_offsets[p + 1]] for p in range(first, last)]


_PACKED: tuple[tuple[str, str, Callable[[int, int, int, int], tuple[int, ...]]], ...] = (
    ("original_id", "<i8", lambda n, p, v, k: (n,)),
    ("part_offsets", "<i8", lambda n, p, v, k: (n + 1,)),
    ("point_offsets", "<i8", lambda n, p, v, k: (p + 1,)),
    ("cls", "<i4", lambda n, p, v, k: (n,)),
    ("xyxy_px", "<f4", lambda n, p, v, k: (n, 4)),
    ("area_px", "<f4", lambda n, p, v, k: (n,)),
    ("points_px", "<f4", lambda n, p, v, k: (v, 2)),
    ("keypoints_px", "<f4", lambda n, p, v, k: (n, k, 3)),
    ("kind", "|u1", lambda n, p, v, k: (n,)),
    ("flags", "|u1", lambda n, p, v, k: (n,)),
)
"""Order of the arrays when they travel: wide elements first, so that all are aligned."""


def _unpacked(packed: bytes, n: int, p: int, v: int, k: int) -> Instances:
    """Return the instances that were packed; their arrays are read-only."""
    at, arrays = 0, {}
    for name, dtype, shape_of in _PACKED:
        shape = shape_of(n, p, v, k)
        count = math.prod(shape)
        arrays[name] = np.frombuffer(packed, dtype, count, at).reshape(shape)
        at += count * int(dtype[-1])
    return Instances(**arrays)
