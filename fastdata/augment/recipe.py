"""One batch, fully decided: what a renderer draws, and the finished labels.

Letters: B slots (pictures of the batch), G groups, T tiles, N objects, P rings, V points, K keypoints.

How a slot is drawn. Frames are pixel edges (see ``fastdata.boxes``): pixel (i, j) has its centre at (j + 0.5, i + 0.5).

1. A **tile** is a rectangle of a stored picture, resized to ``size_hw`` by the trainers' bilinear (``fastdata.pixels.resize``; no
   resize when it has that size) and laid on its group's canvas with its upper left corner at ``origin_xy``. Of it, the pixels in
   ``visible_xyxy`` are seen. Where tiles overlap the later one is seen. A canvas pixel without a tile has the value FILL.
2. A **group** is that canvas seen through ``matrix`` (canvas to output, flips included): the value at an output pixel is the
   bilinear mean of the four canvas pixels around the place that its centre comes from. It is painted within ``clip_xyxy``, and
   if it is masked only where the pixel's centre lies in one of its shapes: ``out = out + weight * (group - out)``.
3. A **slot** is its groups, painted in order onto nothing (the first covers all and has weight 1), then the colour gains, then
   BGR.

So a mosaic is one group of four or nine tiles, a letterbox one of one tile, MixUp a second group of weight 1 - r, CutMix one with
a clip rectangle, Copy-Paste one with a mask. Nothing here is random, and nothing knows a policy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

FILL = 114
"""Value of all three channels where no picture is; the trainers' gray."""

TASKS = ("detect", "segment", "pose", "obb")


@dataclass(frozen=True, slots=True)
class Labels:
    """N objects of B slots, in pixels of the output, flips included.

    Invariant: 0 <= x0 < x1 <= W, 0 <= y0 < y1 <= H, every number is finite, slot s owns ``offsets[s]:offsets[s + 1]``.
    """

    offsets: I64
    """(B + 1,)"""
    cls: I32
    """(N,)"""
    xyxy_px: F32
    """(N, 4)"""
    instance: I64
    """(N,) number of the object in the catalog."""
    kind: U8
    """(N,) BOX, POLYGON, OBB or MASK of ``fastdata.labels``; how the rings are filled."""
    ring_offsets: I64
    """(N + 1,) rings of each object; none where the task has no use for outlines."""
    point_offsets: I64
    """(P + 1,)"""
    points_px: F32
    """(V, 2) clipped to the frame."""
    keypoints_px: F32
    """(N, K, 3) x, y, visibility; K = 0 unless the task is pose."""
    xywhr_px: F32
    """(N, 5) oriented boxes: centre, w >= h, angle in [-pi/4, 3 pi/4) radians, clockwise on the screen; (0, 5) unless obb."""

    def __len__(self) -> int:
        return len(self.cls)

    def rings(self, i: int) -> list[F32]:
        """Return the outline of object ``i`` as a list of (v, 2) rings."""
        first, last = int(self.ring_offsets[i]), int(self.ring_offsets[i + 1])
        return [self.points_px[self.point_offsets[p] : self.point_offsets[p + 1]] for p in range(first, last)]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A batch of B pictures of one size."""

    out_hw: tuple[int, int]
    task: str
    """One of :data:`TASKS`."""

    # slots
    entry: I64
    """(B,) entry of the catalog that each slot is about."""
    gains: F32
    """(B, 4) hue_add in turns (1 is 360 degrees), hue_mul, sat_mul, val_mul: ``H' = (H * hue_mul + hue_add) mod 1``, ``S' = min(S
    * sat_mul, 1)``, ``V' = min(V * val_mul, 1)``; (0, 1, 1, 1) leaves the pixels untouched."""
    bgr: Bool
    """(B,) whether the channels come out in the order B G R."""
    gain_hw: F64
    """(B, 2) pixels of the output, or of the first tile of a sample that is augmented, per pixel of the original picture."""
    pad_xy: F64
    """(B, 2) left and top margin of a letterbox, as applied; 0 for others."""
    group_offsets: I64
    """(B + 1,)"""

    # groups
    matrix: F64
    """(G, 3, 3) canvas to output."""
    weight: F32
    """(G,)"""
    clip_xyxy: I32
    """(G, 4) in pixels of the output, half-open."""
    is_masked: Bool
    """(G,) whether only the shapes are painted; a masked group without any paints nothing."""
    tile_offsets: I64
    """(G + 1,)"""
    shape_offsets: I64
    """(G + 1,) shapes of each group's mask; the mask is their union."""
    shape_ring_offsets: I64
    """(S + 1,) rings of each shape, filled even-odd."""
    ring_point_offsets: I64
    """(R + 1,)"""
    mask_points_px: F32
    """(V, 2) in pixels of the output."""

    # tiles
    tile_entry: I64
    """(T,) entry of the catalog that each tile shows."""
    record: I64
    """(T,) record that holds it."""
    source_xyxy: I32
    """(T, 4) rectangle of the record."""
    size_hw: I32
    """(T, 2) what the rectangle is resized to."""
    origin_xy: I32
    """(T, 2) of the whole resized tile, on the canvas; may be negative."""
    visible_xyxy: I32
    """(T, 4) part of the canvas that shows it, within the tile and the canvas, half-open; x0 == x1 or y0 == y1: none."""

    labels: Labels

    def __len__(self) -> int:
        return len(self.entry)

    def slots(self, first: int, last: int) -> Self:
        """Return the recipe of slots ``first:last``."""
        g0, g1 = _span(self.group_offsets, first, last)
        t0, t1 = _span(self.tile_offsets, g0, g1)
        s0, s1 = _span(self.shape_offsets, g0, g1)
        r0, r1 = _span(self.shape_ring_offsets, s0, s1)
        v0, v1 = _span(self.ring_point_offsets, r0, r1)
        cut: dict[str, Any] = {name: getattr(self, name)[first:last] for name in ("entry", "gains", "bgr", "gain_hw", "pad_xy")}
        cut |= {name: getattr(self, name)[g0:g1] for name in ("matrix", "weight", "clip_xyxy", "is_masked")}
        cut |= {
            name: getattr(self, name)[t0:t1]
            for name in ("tile_entry", "record", "source_xyxy", "size_hw", "origin_xy", "visible_xyxy")
        }
        return replace(
            self,
            **cut,
            group_offsets=_cut(self.group_offsets, first, last),
            tile_offsets=_cut(self.tile_offsets, g0, g1),
            shape_offsets=_cut(self.shape_offsets, g0, g1),
            shape_ring_offsets=_cut(self.shape_ring_offsets, s0, s1),
            ring_point_offsets=_cut(self.ring_point_offsets, r0, r1),
            mask_points_px=self.mask_points_px[v0:v1],
            labels=labels_of_slots(self.labels, first, last),
        )


def labels_of_slots(labels: Labels, first: int, last: int) -> Labels:
    """Return the labels of slots ``first:last``."""
    n0, n1 = _span(labels.offsets, first, last)
    p0, p1 = _span(labels.ring_offsets, n0, n1)
    v0, v1 = _span(labels.point_offsets, p0, p1)
    return Labels(
        offsets=_cut(labels.offsets, first, last),
        cls=labels.cls[n0:n1],
        xyxy_px=labels.xyxy_px[n0:n1],
        instance=labels.instance[n0:n1],
        kind=labels.kind[n0:n1],
        ring_offsets=_cut(labels.ring_offsets, n0, n1),
        point_offsets=_cut(labels.point_offsets, p0, p1),
        points_px=labels.points_px[v0:v1],
        keypoints_px=labels.keypoints_px[n0:n1],
        xywhr_px=labels.xywhr_px[n0:n1],
    )


def differences(a: Recipe | Labels, b: Recipe | Labels) -> list[str]:
    """Return the names of the fields in which two recipes, or two sets of labels, are not bit for bit the same."""
    found = []
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, Labels):
            found += [f"labels.{name}" for name in differences(x, y)]
        elif isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                found.append(field.name)
        elif x != y:
            found.append(field.name)
    return found


def _span(offsets: I64, first: int, last: int) -> tuple[int, int]:
    return int(offsets[first]), int(offsets[last])


def _cut(offsets: I64, first: int, last: int) -> I64:
    out: I64 = offsets[first : last + 1] - offsets[first]
    return out
