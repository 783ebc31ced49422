"""Instance masks of a batch, filled from the planned outlines at the size that the loss wants; ``render.reference_masks`` defines
them.

The trainers fill each outline at full size, with corners cut off to whole pixels and with its border, and shrink the picture of
it. Here a pixel of the small mask is asked for its own centre, which is 16 times less work at ratio 4, needs no rounding of
corners, and neither grows nor moves an object; ``render.tolerance`` says how many pixels that changes.

One call of compiled code for a whole batch, without the interpreter's lock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Labels
from fastdata.errors import UsageError
from fastdata.labels import MASK
from fastdata.render.kernels.compiled import entry, part
from fastdata.render.reference_masks import AREA_STEPS, CROSSING_LINES, MAX_NUMBER

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Outlines = tuple[F64, I64, I64, I64]
"""Points (V, 2); offsets of the points of each ring, of the rings of each unit, of the units of each object. A unit is filled
even-odd; an object is the union of its units."""


def overlap_masks(labels: Labels, out_hw: tuple[int, int], ratio: int) -> tuple[npt.NDArray[np.uint8 | np.int32], I64]:
    """Draw all objects of each slot into one mask.

    Args:
        labels: N objects of B slots.
        out_hw: H, W of the pictures.
        ratio: r, how much smaller masks are than pictures, at least 1 (``mask_ratio`` of the trainers).

    Returns:
        masks: (B, H // r, W // r): 0, or k where the k-th object of the slot in the order below is on top; uint8, or int32 when a
            slot has more than 255 objects.
        order: (N,) the objects by slot, then by area, largest first: ``x[order]`` brings per-object arrays into the masks' order.

    Raises:
        UsageError: The ratio is below 1, or leaves no pixel.
    """
    small_hw = _small_hw(out_hw, ratio)
    points, point_offsets, ring_offsets, unit_offsets = outlines = _outlines(labels)
    slot = np.repeat(np.arange(len(labels.offsets) - 1), np.diff(labels.offsets))
    steps = np.rint(_areas(*outlines, CROSSING_LINES) * AREA_STEPS)
    order = np.lexsort((-steps, slot)).astype(np.int64)
    counts = np.diff(labels.offsets)
    number = np.arange(1, len(order) + 1) - labels.offsets[:-1][slot]
    masks = np.zeros((len(counts), *small_hw), np.uint8 if counts.max(initial=0) <= MAX_NUMBER else np.int32)
    scaled = points * np.array([small_hw[1] / out_hw[1], small_hw[0] / out_hw[0]])
    _fill(masks, slot, order, number, scaled, point_offsets, ring_offsets, unit_offsets)
    return masks, order


def separate_masks(labels: Labels, out_hw: tuple[int, int], ratio: int) -> U8:
    """Draw each object into a mask of its own.

    Args:
        labels: N objects.
        out_hw: H, W of the pictures.
        ratio: As of :func:`overlap_masks`.

    Returns:
        (N, H // r, W // r) of 0 and 1, in the order of the labels.

    Raises:
        UsageError: The ratio is below 1, or leaves no pixel.
    """
    small_hw = _small_hw(out_hw, ratio)
    points, point_offsets, ring_offsets, unit_offsets = _outlines(labels)
    masks = np.zeros((len(labels), *small_hw), np.uint8)
    each = np.arange(len(labels))
    scaled = points * np.array([small_hw[1] / out_hw[1], small_hw[0] / out_hw[0]])
    _fill(masks, each, each, np.ones(len(labels), np.int64), scaled, point_offsets, ring_offsets, unit_offsets)
    return masks


def class_masks(masks: npt.NDArray[np.uint8 | np.int32], order: I64, labels: Labels) -> F32:
    """Return the class of the object on top of each pixel.

    Args:
        masks: (B, h, w) of :func:`overlap_masks`.
        order: (N,) of the same call.
        labels: The labels, in their own order.

    Returns:
        (B, h, w); 0 where no object is, which only ``masks`` tells from class 0.
    """
    classes = np.zeros(masks.shape, np.float32)
    for slot, mask in enumerate(masks):
        own = order[labels.offsets[slot] : labels.offsets[slot + 1]]
        classes[slot] = np.concatenate([[0], labels.cls[own]]).astype(np.float32)[mask]
    return classes


def _small_hw(out_hw: tuple[int, int], ratio: int) -> tuple[int, int]:
    if not 1 <= ratio <= min(out_hw):
        raise UsageError(f"mask_ratio must be 1..{min(out_hw)} for pictures of {out_hw[1]} x {out_hw[0]}, got {ratio}")
    return out_hw[0] // ratio, out_hw[1] // ratio


def _outlines(labels: Labels) -> Outlines:
    """Return the outlines of all objects, boxes where there are none."""
    rings_each, points_each = np.diff(labels.ring_offsets), np.diff(labels.point_offsets)
    points = labels.points_px.astype(np.float64)
    bare = rings_each == 0
    if bare.any():
        x0, y0, x1, y1 = labels.xyxy_px[bare].T.astype(np.float64)
        corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).reshape(-1, 2)
        before = labels.ring_offsets[:-1][bare]
        points = np.insert(points, np.repeat(labels.point_offsets[before], 4), corners, axis=0)
        points_each = np.insert(points_each, before, 4)
        rings_each = np.where(bare, 1, rings_each)
    # The rings of a MASK make one unit, any other ring makes its own.
    rings_per_unit = np.ones(int(rings_each.sum()), np.int64)
    units_each = rings_each
    joined = (labels.kind == MASK) & (rings_each > 1)
    if joined.any():
        units_each = np.where(joined, 1, rings_each)
        rings_per_unit = np.ones(int(units_each.sum()), np.int64)
        rings_per_unit[_offsets(units_each)[:-1][joined]] = rings_each[joined]
    return points, _offsets(points_each), _offsets(rings_per_unit), _offsets(units_each)


def _offsets(counts: I64) -> I64:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _fill_objects(
    masks: npt.NDArray[np.uint8 | np.int32],
    target: I64,
    order: I64,
    number: I64,
    points: F64,
    point_offsets: I64,
    ring_offsets: I64,
    unit_offsets: I64,
) -> None:
    """Fill object ``order[k]`` with ``number[k]`` into ``masks[target[k]]``, one after another; points in pixels of the masks.

    As ``fastdata.masks.rings_to_mask``, in the same arithmetic: each crossing of an edge with the line through the centres of a
    row changes sides for everything from its column on.
    """
    height, width = masks.shape[1:]
    toggles = np.zeros((height, width + 1), np.uint8)
    for k in range(len(order)):
        mask, value = masks[target[k]], number[k]
        for unit in range(unit_offsets[order[k]], unit_offsets[order[k] + 1]):
            top, bottom, left, right = height, 0, width, 0
            for ring in range(ring_offsets[unit], ring_offsets[unit + 1]):
                begin, end = point_offsets[ring], point_offsets[ring + 1]
                if end - begin < 3:
                    continue
                for p in range(begin, end):
                    q = p + 1 if p + 1 < end else begin
                    ax, ay, bx, by = points[p, 0], points[p, 1], points[q, 0], points[q, 1]
                    first = int(min(max(np.ceil(min(ay, by) - 0.5), 0), height))
                    stop = int(min(max(np.ceil(max(ay, by) - 0.5), 0), height))
                    if first >= stop:
                        continue
                    top, bottom = min(top, first), max(bottom, stop)
                    for row in range(first, stop):
                        share = (row + 0.5 - ay) / (by - ay)
                        column = int(min(max(np.ceil(ax + share * (bx - ax) - 0.5), 0), width))
                        toggles[row, column] ^= 1
                        left, right = min(left, column), max(right, column)
            for row in range(top, bottom):
                inside = 0
                for column in range(left, right + 1):
                    inside ^= toggles[row, column]
                    toggles[row, column] = 0
                    if inside and column < width:
                        mask[row, column] = value


@part
def _area(points: F64, point_offsets: I64, ring_offsets: I64, first: int, last: int, count: int, crossing_lines: int) -> float:
    """Return the area of the union of units ``first:last``, which have ``count`` points."""
    edges = np.empty((count, 4))  # upper y, lower y, x at the upper end, slope
    unit_of = np.empty(count, np.int64)
    heights = np.empty(count)
    n, e = 0, 0
    for unit in range(first, last):
        for ring in range(ring_offsets[unit], ring_offsets[unit + 1]):
            begin, end = point_offsets[ring], point_offsets[ring + 1]
            for p in range(begin, end):
                q = p + 1 if p + 1 < end else begin
                heights[n] = points[p, 1]
                n += 1
                if points[p, 1] == points[q, 1]:
                    continue
                upper, lower = (p, q) if points[p, 1] < points[q, 1] else (q, p)
                edges[e, 0], edges[e, 1], edges[e, 2] = points[upper, 1], points[lower, 1], points[upper, 0]
                edges[e, 3] = (points[lower, 0] - points[upper, 0]) / (points[lower, 1] - points[upper, 1])
                unit_of[e] = unit - first
                e += 1
    heights.sort()
    by_top = np.argsort(edges[:e, 0])
    active = np.empty(e, np.int64)
    x = np.empty(e)
    inside = np.zeros(last - first, np.uint8)
    total, alive, coming = 0.0, 0, 0
    for s in range(count - 1):
        y0, y1 = heights[s], heights[s + 1]
        if y0 == y1:
            continue
        kept = 0
        for a in range(alive):
            if edges[active[a], 1] > y0:
                active[kept] = active[a]
                kept += 1
        alive = kept
        while coming < e and edges[by_top[coming], 0] <= y0:
            active[alive] = by_top[coming]
            alive += 1
            coming += 1
        _sort_on(edges, active, x, alive, (y0 + y1) / 2)
        lines = 1
        for a in range(1, alive):
            left, right = edges[active[a - 1]], edges[active[a]]
            at_top = (right[2] + (y0 - right[0]) * right[3]) - (left[2] + (y0 - left[0]) * left[3])
            at_bottom = (right[2] + (y1 - right[0]) * right[3]) - (left[2] + (y1 - left[0]) * left[3])
            if at_top < -1e-6 or at_bottom < -1e-6:
                lines = crossing_lines
        for line in range(lines):
            if lines > 1:
                _sort_on(edges, active, x, alive, y0 + (line + 0.5) * (y1 - y0) / lines)
            within = 0
            for a in range(alive):
                if within:
                    total += (x[a] - x[a - 1]) * (y1 - y0) / lines
                unit = unit_of[active[a]]
                inside[unit] ^= 1
                within += 1 if inside[unit] else -1
    return total


@part
def _sort_on(edges: F64, active: I64, x: F64, alive: int, y: float) -> None:
    """Sort the first ``alive`` active edges, which nearly are, by where they cross the line ``y``, and put that into ``x``."""
    for a in range(alive):
        edge = active[a]
        here = edges[edge, 2] + (y - edges[edge, 0]) * edges[edge, 3]
        b = a
        while b > 0 and x[b - 1] > here:
            x[b], active[b] = x[b - 1], active[b - 1]
            b -= 1
        x[b], active[b] = here, edge


def _measure_objects(points: F64, point_offsets: I64, ring_offsets: I64, unit_offsets: I64, crossing_lines: int) -> F64:
    """Return the area of each object in px²; ``reference_masks.area_steps`` defines it.

    The number of lines is an argument because compiled code that is kept on disk would not see it change in another file.
    """
    areas = np.zeros(len(unit_offsets) - 1)
    for i in range(len(areas)):
        first, last = unit_offsets[i], unit_offsets[i + 1]
        count = point_offsets[ring_offsets[last]] - point_offsets[ring_offsets[first]]
        areas[i] = _area(points, point_offsets, ring_offsets, first, last, count, crossing_lines)
    return areas


_fill = entry(None, _fill_objects)  # compiled for the types of its first call: a training without masks never waits for it
_areas = entry(None, _measure_objects)
