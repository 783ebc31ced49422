"""From the catalog onto canvases: which objects a batch has, and where.

On the canvas an object is cut to the part of its tile that is seen, so a label never reaches into a neighbour's picture. Oriented
boxes are the exception: the trainers cut them at a mosaic's canvas only, because their corners may lie outside their own picture.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment import oriented, outline, ragged
from fastdata.augment.layout import Tiles
from fastdata.augment.objects import Objects, is_whole, keeps_axes, mapped_boxes, seen_keypoints
from fastdata.catalog import Catalog
from fastdata.labels import BOX, CROWD, MASK, POLYGON

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

FAR_PX = 1e9
"""A border that nothing reaches."""

ROUNDING_PX = 1e-6
"""Less than this is no cut, and not out of sight: a box that ends with its picture may be rounded over the border."""


@dataclass(frozen=True, slots=True)
class View:
    """What the output will show, so that boxes and outlines are fetched only where they matter."""

    matrix: F64
    """(S, 3, 3) canvas to output."""
    out_hw: tuple[int, int]
    wants_all: Bool
    """(S,) whether every outline of a scene is wanted, because something else will cut or copy it."""


def are_labels(catalog: Catalog, instances: I64, classes: Collection[int] | None) -> Bool:
    """Tell which of some instances are labels: those that are no crowd and, with ``classes``, of one of these."""
    used: Bool = catalog.flags[instances] & CROWD == 0
    return used if classes is None else used & np.isin(catalog.cls[instances], np.array(sorted(classes), np.int64))


def on_canvas(catalog: Catalog, tiles: Tiles, view: View, task: str, classes: Collection[int] | None) -> Objects:
    """Return the objects of all tiles on their canvases, in the order of the tiles.

    Crowds are left out, and with ``classes`` all others than these; of objects without outlines also those that the output will
    not show.
    """
    has_outlines = task == "segment" or catalog.counts.parts > 0
    gain_xy, visible = tiles.gain_xy, tiles.visible_xyxy.astype(np.float64)
    gain, origin = _twice(gain_xy), _twice(tiles.origin_xy).astype(np.float64)
    first, last = catalog.inst_offsets.take(tiles.entry), catalog.inst_offsets.take(tiles.entry + 1)
    if task != "obb":  # outlines that the output does not show count too: see ``fastdata.augment.assemble.kept``
        shown = visible if has_outlines else _shown(tiles, visible, view)
        last = np.where(_has_area(shown), last, first)
    tile, instance = np.repeat(np.arange(len(first)), last - first), ragged.ranges(first, last)
    boxes = catalog.xyxy_px.take(instance, axis=0)
    is_used = are_labels(catalog, instance, classes)
    if task != "obb":
        # Half of a mosaic's objects lie out of sight: told by their stored boxes, before anything else is done for them.
        limits = (shown - origin) / gain
        limits[:, :2] -= ROUNDING_PX
        limits[:, 2:] += ROUNDING_PX
        is_used &= _overlap(boxes, limits.take(tile, axis=0))
    if not is_used.all():
        used = np.flatnonzero(is_used)
        tile, instance, boxes = tile.take(used), instance.take(used), boxes.take(used, axis=0)

    # Whole rows of four doubles are what NumPy gathers and multiplies fastest.
    raw = gain.take(tile, axis=0)
    raw *= boxes
    raw += origin.take(tile, axis=0)
    xyxy = np.maximum(raw, _twice(visible[:, :2]).take(tile, axis=0))
    np.minimum(xyxy, _twice(visible[:, 2:]).take(tile, axis=0), out=xyxy)

    n = len(instance)
    keypoints = np.zeros((n, 0, 3))
    if task == "pose" and catalog.keypoints is not None:
        keypoints = catalog.keypoints_px[instance].astype(np.float64)
        lower, size = tiles.origin_xy[tile, None], tiles.size_hw[tile, None, ::-1]
        # a point on the picture's border may be rounded over it
        keypoints[:, :, :2] = np.clip(keypoints[:, :, :2] * gain_xy[tile, None] + lower, lower, lower + size)
        keypoints = seen_keypoints(keypoints, visible[tile])
    found = Objects(
        scene=tiles.scene.take(tile),
        instance=instance,
        cls=catalog.cls.take(instance),
        kind=catalog.kind.take(instance),
        xyxy=xyxy,
        has_outline=np.zeros(n, np.bool_),
        is_cut=np.abs(xyxy - raw).max(axis=1, initial=0.0) > ROUNDING_PX if has_outlines else np.zeros(n, np.bool_),
        ring_offsets=np.zeros(n + 1, np.int64),
        point_offsets=np.zeros(1, np.int64),
        points=np.zeros((0, 2)),
        keypoints=keypoints,
    )
    if task == "obb":
        found = _oriented(catalog, tiles, tile, gain_xy[tile], tiles.origin_xy[tile], found, raw)
    elif has_outlines:
        found = _outlined(catalog, view, task, gain_xy[tile], tiles.origin_xy[tile], visible[tile], found)
    is_left = _has_area(found.xyxy)
    return found if is_left.all() else found.take(is_left)


def _shown(tiles: Tiles, visible: F64, view: View) -> F64:
    """Return what the output shows of the (T, 4) visible parts of tiles, but for rounding.

    A box beyond that comes to lie beyond the frame, and no such box is ever kept. Where a matrix turns or bends, all is returned.
    """
    if not keeps_axes(view.matrix).all():
        return visible
    gain, shift = view.matrix[:, (0, 1), (0, 1)], view.matrix[:, :2, 2]
    low, high = -shift / gain, (view.out_hw[::-1] - shift) / gain
    seen = np.concatenate([low, high], axis=1).take(tiles.scene, axis=0)
    np.maximum(visible[:, :2], seen[:, :2], out=seen[:, :2])
    np.minimum(visible[:, 2:], seen[:, 2:], out=seen[:, 2:])
    return seen


def _overlap(a: npt.NDArray[np.floating[Any]], b: F64) -> Bool:
    """Tell which (N, 4) boxes have more than a border in common."""
    out: Bool = (a[:, 0] < b[:, 2]) & (a[:, 1] < b[:, 3]) & (a[:, 2] > b[:, 0]) & (a[:, 3] > b[:, 1])
    return out


def _has_area(xyxy: F64) -> Bool:
    out: Bool = (xyxy[:, 2] > xyxy[:, 0]) & (xyxy[:, 3] > xyxy[:, 1])
    return out


def _twice(xy: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(T, 2) → (T, 4): for both corners of a box."""
    return np.concatenate([xy, xy], axis=1)


def _outlined(catalog: Catalog, view: View, task: str, gain: F64, origin: I64, rect: F64, found: Objects) -> Objects:
    """Give objects their rings where the view needs them, cut to the visible part of the tile; no box where no ring is left."""
    has_outline: Bool = catalog.part_offsets[found.instance + 1] > catalog.part_offsets[found.instance]
    if task == "segment":
        has_outline |= found.kind == BOX  # its rectangle
    mapped = mapped_boxes(found.xyxy, view.matrix, found.scene)
    is_seen = (mapped[:, 2] > 0) & (mapped[:, 3] > 0) & (mapped[:, 0] < view.out_hw[1]) & (mapped[:, 1] < view.out_hw[0])
    if task != "segment":
        is_seen &= ~is_whole(found.is_cut, mapped, view.matrix, found.scene, view.out_hw)
    rows = np.flatnonzero(has_outline & (is_seen | view.wants_all[found.scene]))
    instance, kind = found.instance[rows], found.kind[rows]
    counts, point_offsets, points = _rings(catalog, instance, kind, found.xyxy[rows], gain[rows], origin[rows])
    ring_counts = np.zeros(len(found), np.int64)
    ring_counts[rows] = counts
    ring_offsets = ragged.offsets_of(ring_counts)
    points, point_offsets = outline.clip_rings(points, point_offsets, rect[ragged.owners(ring_offsets)])
    ends = point_offsets[ring_offsets]
    is_gone = (ring_counts > 0) & (ends[1:] == ends[:-1])
    xyxy = np.where(is_gone[:, None], 0.0, found.xyxy)
    return replace(
        found, xyxy=xyxy, has_outline=has_outline, ring_offsets=ring_offsets, point_offsets=point_offsets, points=points
    )


def _rings(catalog: Catalog, instance: I64, kind: U8, xyxy: F64, gain: F64, origin: I64) -> tuple[I64, I64, F64]:
    """Return how many rings each of n objects has, and all points with their offsets; a box has its four corners."""
    elements, ring_offsets, point_offsets = ragged.gather_nested(instance, catalog.part_offsets, catalog.point_offsets)
    of = ragged.owners(ring_offsets)[ragged.owners(point_offsets)]
    points = catalog.points_px[elements] * gain[of] + origin[of]
    boxes = np.flatnonzero(kind == BOX)
    if not len(boxes):
        return ring_offsets[1:] - ring_offsets[:-1], point_offsets, points
    n, steps = len(instance), np.arange(1, len(boxes) + 1)
    outer = np.concatenate([ring_offsets, ring_offsets[-1] + steps])
    inner = np.concatenate([point_offsets, point_offsets[-1] + 4 * steps])
    rows = np.arange(n)
    rows[boxes] = n + np.arange(len(boxes))
    corners = outline.corners_of(xyxy[boxes]).reshape(-1, 2)
    elements, ring_offsets, point_offsets = ragged.gather_nested(rows, outer, inner)
    return ring_offsets[1:] - ring_offsets[:-1], point_offsets, np.concatenate([points, corners])[elements]


def _oriented(catalog: Catalog, tiles: Tiles, tile: I64, gain: F64, origin: I64, found: Objects, raw: F64) -> Objects:
    """Return objects as oriented boxes: one ring of four corners each."""
    n = len(found)
    counts, point_offsets, points = _rings(catalog, found.instance, found.kind, raw, gain, origin)
    ends = point_offsets[ragged.offsets_of(counts)]
    first, last = ends[:-1], ends[1:]
    is_quad = (last - first == 4) & (found.kind != POLYGON) & (found.kind != MASK)
    corners = np.zeros((n, 4, 2))
    corners[is_quad] = points[first[is_quad, None] + np.arange(4)]
    for i in np.flatnonzero(~is_quad).tolist():  # an outline in a set of oriented boxes: rare
        corners[i] = oriented.rectangle_around(oriented.convex_hull(points[first[i] : last[i]]))
    corners, xyxy = oriented.clip_corners(corners, _canvas_rects(tiles, tile))
    return replace(
        found,
        xyxy=xyxy,
        has_outline=np.ones(n, np.bool_),
        ring_offsets=np.arange(n + 1),
        point_offsets=4 * np.arange(n + 1),
        points=corners.reshape(-1, 2),
    )


def _canvas_rects(tiles: Tiles, tile: I64) -> F64:
    """(n, 4) canvas of a mosaic; no border for a single picture."""
    scene = tiles.scene[tile]
    is_single = np.diff(tiles.offsets)[scene] == 1
    rects = np.concatenate([np.zeros((len(tile), 2)), tiles.canvas_wh[scene]], axis=1)
    return np.where(is_single[:, None], (-FAR_PX, -FAR_PX, FAR_PX, FAR_PX), rects)
