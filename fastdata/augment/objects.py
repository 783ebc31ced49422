"""The objects of a batch while it is planned: on the canvas of their scene, then in the output.

An object with rings is its outline; one without is its box. On the canvas it is cut to the part of its tile that is seen, so a
label never reaches into a neighbour's picture. Oriented boxes are the exception: the trainers cut them at a mosaic's canvas only,
because their corners may lie outside their own picture.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fastdata.augment import oriented, outline, ragged
from fastdata.augment.layout import Tiles
from fastdata.boxes import min_area_rectangle
from fastdata.catalog import Catalog
from fastdata.labels import BOX, CROWD, MASK, POLYGON

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

FAR_PX = 1e9
"""A border that nothing reaches."""


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
    bound_xyxy: F64
    """(N, 4) box that the seen part of the object does not leave; tighter than ``xyxy`` where the canvas cuts an outline."""
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
    def has_outline(self) -> Bool:
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
        columns = ("scene", "instance", "cls", "kind", "xyxy", "bound_xyxy", "keypoints")
        out = {name: getattr(self, name)[rows] for name in columns}
        if self.ring_offsets[-1] == 0:
            return replace(self, **out, ring_offsets=np.zeros(len(rows) + 1, np.int64))
        elements, ring_offsets, point_offsets = ragged.gather_nested(rows, self.ring_offsets, self.point_offsets)
        return replace(self, **out, ring_offsets=ring_offsets, point_offsets=point_offsets, points=self.points[elements])


def merged(first: Objects, second: Objects) -> Objects:
    """Return the objects of both, ascending by scene; within a scene the first before the second."""
    columns = ("scene", "instance", "cls", "kind", "xyxy", "bound_xyxy", "points", "keypoints")
    both = Objects(
        **{name: np.concatenate([getattr(part, name) for part in (first, second)]) for name in columns},
        ring_offsets=np.concatenate([first.ring_offsets, first.ring_offsets[-1] + second.ring_offsets[1:]]),
        point_offsets=np.concatenate([first.point_offsets, first.point_offsets[-1] + second.point_offsets[1:]]),
    )
    return both.take(np.argsort(both.scene, kind="stable"))


def on_canvas(catalog: Catalog, tiles: Tiles, task: str, classes: Collection[int] | None) -> Objects:
    """Return the objects of all tiles on their canvases, in the order of the tiles.

    Crowds are left out, and with ``classes`` all others than these.
    """
    first = catalog.inst_offsets[tiles.entry]
    counts = catalog.inst_offsets[tiles.entry + 1] - first
    tile = np.repeat(np.arange(len(first)), counts)
    instance = ragged.ranges(first, first + counts)
    is_used = catalog.flags[instance] & CROWD == 0
    if classes is not None:
        is_used &= np.isin(catalog.cls[instance], np.array(sorted(classes), np.int64))
    if not is_used.all():
        tile, instance = tile[is_used], instance[is_used]

    gain, origin = tiles.gain_xy[tile], tiles.origin_xy[tile]
    kind = catalog.kind[instance]
    rect = tiles.visible_xyxy[tile].astype(np.float64)
    raw = catalog.xyxy_px[instance] * gain[:, [0, 1, 0, 1]] + origin[:, [0, 1, 0, 1]]
    ring_offsets, point_offsets, points = _rings(catalog, instance, gain, origin)
    if task in ("segment", "obb") and (kind == BOX).any():
        ring_offsets, point_offsets, points = _with_rectangles(ring_offsets, point_offsets, points, raw, kind == BOX)
    if task == "obb":
        return _oriented(catalog, tiles, tile, instance, kind, ring_offsets, point_offsets, points)
    xyxy = outline.clip_boxes(raw, rect)
    is_left = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    bound = xyxy
    if len(points):
        points, point_offsets = outline.clip_rings(points, point_offsets, rect[ragged.owners(ring_offsets)])
        is_cut = (xyxy != raw).any(axis=1) & (ring_offsets[1:] > ring_offsets[:-1])
        if is_cut.any():
            tight = outline.object_boxes(points, point_offsets, ring_offsets, rect, kind == MASK)
            bound = np.where(is_cut[:, None], tight, xyxy)
            is_left &= ~is_cut | (tight[:, 2] > tight[:, 0])
    keypoints = np.zeros((len(instance), 0, 3))
    if task == "pose" and catalog.keypoints is not None:
        keypoints = catalog.keypoints_px[instance].astype(np.float64)
        lower, size = origin[:, None], tiles.size_hw[tile, None, ::-1]
        # a point on the picture's border may be rounded over it
        keypoints[:, :, :2] = np.clip(keypoints[:, :, :2] * gain[:, None] + lower, lower, lower + size)
        keypoints = seen_keypoints(keypoints, rect)
    found = Objects(
        tiles.scene[tile], instance, catalog.cls[instance], kind, xyxy, bound, ring_offsets, point_offsets, points, keypoints
    )
    return found if is_left.all() else found.take(is_left)


def _oriented(
    catalog: Catalog, tiles: Tiles, tile: I64, instance: I64, kind: U8, ring_offsets: I64, point_offsets: I64, points: F64
) -> Objects:
    """Return objects as oriented boxes: one ring of four corners each."""
    n = len(instance)
    first = point_offsets[ring_offsets[:-1]]
    last = point_offsets[ring_offsets[1:]]
    corners = np.zeros((n, 4, 2))
    is_quad = (last - first == 4) & (kind != POLYGON) & (kind != MASK)
    corners[is_quad] = points[first[is_quad, None] + np.arange(4)]
    for i in np.flatnonzero(~is_quad).tolist():  # an outline in a set of oriented boxes: rare
        corners[i] = min_area_rectangle(_hull(points[first[i] : last[i]]))
    corners, xyxy = oriented.clip_corners(corners, _canvas_rects(tiles, tile))
    found = Objects(
        scene=tiles.scene[tile],
        instance=instance,
        cls=catalog.cls[instance],
        kind=kind,
        xyxy=xyxy,
        bound_xyxy=xyxy,
        ring_offsets=np.arange(n + 1),
        point_offsets=4 * np.arange(n + 1),
        points=corners.reshape(-1, 2),
        keypoints=np.zeros((n, 0, 3)),
    )
    return found.take((xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1]))


def _hull(points: F64) -> F64:
    """Return the corners of the convex hull of (v, 2) points (Andrew's monotone chain, 1979)."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    sides: list[list[tuple[float, float]]] = []
    for walk in (ordered, ordered[::-1]):
        side: list[tuple[float, float]] = []
        for x, y in walk:
            while len(side) > 1:
                (ax, ay), (bx, by) = side[-2:]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                side.pop()
            side.append((x, y))
        sides.append(side[:-1] if len(side) > 1 else side)
    return np.array(sides[0] + sides[1])


def warped(objects: Objects, matrix: F64, out_hw: tuple[int, int], task: str) -> Objects:
    """Return the objects as the output shows them, before flips; all zeros for the box of one that it does not show.

    Args:
        objects: On their canvases.
        matrix: (S, 3, 3) canvas to output.
        out_hw: Size of the output.
        task: What is made of the objects.
    """
    frame = np.array([0, 0, out_hw[1], out_hw[0]], np.float64)
    frames = np.broadcast_to(frame, (len(objects), 4))
    if task == "obb":
        corners, xyxy = oriented.warp_corners(objects.points.reshape(-1, 4, 2), matrix, objects.scene, frames)
        return replace(objects, xyxy=xyxy, bound_xyxy=xyxy, points=corners.reshape(-1, 2))
    xyxy = _clipped(_mapped_boxes(objects.bound_xyxy, matrix, objects.scene), frame)
    points, point_offsets = objects.points, objects.point_offsets
    if len(points):
        owner = ragged.owners(objects.ring_offsets)
        points, point_offsets = outline.warp_rings(points, point_offsets, matrix, objects.scene[owner])
        points, point_offsets = outline.clip_rings(points, point_offsets, frames[owner])
        seen = outline.object_boxes(points, point_offsets, objects.ring_offsets, frames, objects.kind == MASK)
        is_bound = (objects.bound_xyxy != objects.xyxy).any(axis=1)[:, None]
        # Where the canvas cut an outline, its bridges along that cut are no part of the object.
        both = np.concatenate([np.maximum(seen[:, :2], xyxy[:, :2]), np.minimum(seen[:, 2:], xyxy[:, 2:])], axis=1)
        xyxy = np.where(objects.has_outline[:, None], np.where(is_bound, both, seen), xyxy)
    is_seen = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    xyxy = np.where(is_seen[:, None], xyxy, 0.0)
    keypoints = objects.keypoints
    if keypoints.shape[1]:
        keypoints = outline.warp_keypoints(keypoints, matrix, objects.scene, frames)
    return replace(objects, xyxy=xyxy, bound_xyxy=xyxy, points=points, point_offsets=point_offsets, keypoints=keypoints)


def _mapped_boxes(xyxy: F64, matrix: F64, of: I64) -> F64:
    """Boxes around mapped boxes; the short way where every matrix keeps axes: the same numbers, bit for bit."""
    keeps_axes = (matrix[:, (0, 1, 2, 2, 2), (1, 0, 0, 1, 2)] == (0.0, 0.0, 0.0, 0.0, 1.0)).all()
    if not keeps_axes or (matrix[:, 0, 0] < 0).any() or (matrix[:, 1, 1] < 0).any():
        return outline.warp_boxes(xyxy, matrix, of)
    gain, shift = matrix[:, (0, 1, 0, 1), (0, 1, 0, 1)], matrix[:, (0, 1, 0, 1), (2, 2, 2, 2)]
    out: F64 = gain[of] * xyxy + shift[of]
    return out


def _clipped(xyxy: F64, frame: F64) -> F64:
    out: F64 = np.minimum(np.maximum(xyxy, frame[[0, 1, 0, 1]]), frame[[2, 3, 2, 3]])
    return out


def _rings(catalog: Catalog, instance: I64, gain: F64, origin: I64) -> tuple[I64, I64, F64]:
    none = np.zeros(len(instance) + 1, np.int64), np.zeros(1, np.int64), np.zeros((0, 2))
    if not catalog.counts.parts:
        return none
    elements, ring_offsets, point_offsets = ragged.gather_nested(instance, catalog.part_offsets, catalog.point_offsets)
    if not len(elements):
        return none
    of = np.repeat(ragged.owners(ring_offsets), np.diff(point_offsets))
    return ring_offsets, point_offsets, catalog.points_px[elements] * gain[of] + origin[of]


def _with_rectangles(ring_offsets: I64, point_offsets: I64, points: F64, xyxy: F64, is_box: Bool) -> tuple[I64, I64, F64]:
    """Give each box its four corners as an outline."""
    n, boxes = len(xyxy), np.flatnonzero(is_box)
    steps = np.arange(1, len(boxes) + 1)
    outer = np.concatenate([ring_offsets, ring_offsets[-1] + steps])
    inner = np.concatenate([point_offsets, point_offsets[-1] + 4 * steps])
    rows = np.arange(n)
    rows[boxes] = n + np.arange(len(boxes))
    elements, ring_offsets, point_offsets = ragged.gather_nested(rows, outer, inner)
    corners = outline.corners_of(xyxy[boxes]).reshape(-1, 2)
    return ring_offsets, point_offsets, np.concatenate([points, corners])[elements]


def _canvas_rects(tiles: Tiles, tile: I64) -> F64:
    """(n, 4) canvas of a mosaic; no border for a single picture."""
    scene = tiles.scene[tile]
    is_single = np.diff(tiles.offsets)[scene] == 1
    rects = np.concatenate([np.zeros((len(tile), 2)), tiles.canvas_wh[scene]], axis=1)
    return np.where(is_single[:, None], (-FAR_PX, -FAR_PX, FAR_PX, FAR_PX), rects)


def seen_keypoints(keypoints: F64, rect: F64) -> F64:
    """Take visibility and place from keypoints outside the rectangle of their object; (N, K, 3) and (N, 4)."""
    xy = keypoints[:, :, :2]
    within = ((xy >= rect[:, None, :2]) & (xy <= rect[:, None, 2:])).all(axis=2) & (keypoints[:, :, 2] > 0)
    return np.where(within[:, :, None], keypoints, 0.0)
