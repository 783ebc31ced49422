"""Points, boxes, keypoints and outlines through a warp, and what of them a frame shows.

Everything is float64, in pixels of edges (see ``fastdata.boxes``), for all objects of a batch at once. A warp is a list of
(k, 3, 3) matrices for column vectors (x, y, 1) and, for each thing, the number ``of`` its matrix. Rings are flat points with
offsets (see ``fastdata.augment.ragged``), closed without repeating the first point.

Behind the camera. Under perspective a point's third coordinate is its distance; at 0 it lies at infinity, and below it would
come out mirrored, on the wrong side. So outlines are cut where that coordinate is :data:`NEAR`, before the division: what is
left has a place, straight sides stay straight, and the frame cuts the rest. A single point there has no place: NaN, and as a
keypoint it is not visible.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.augment import ragged
from fastdata.augment.detours import without_detours

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

NEAR = 1e-6
"""Least third coordinate that is seen. Nearer, a canvas of thousands of pixels is thousands of millions of pixels away, or
enlarged a million times; and doubles still place a cut at the frame to a millionth of a pixel."""

SPECK_PX2 = 1e-6
"""An outline of no more area than this is a line but for rounding, and covers the centre of no pixel."""


def warp_points(points: F64, matrices: F64, of: I64) -> F64:
    """Map (V, 2) points by ``matrices[of]``; the third coordinate divides where a matrix is projective, NaN behind the camera."""
    xyw = _mapped(points, matrices, of)
    return xyw[:, :2] if xyw.shape[1] == 2 else _divided(np.where(xyw[:, 2:] >= NEAR, xyw, np.nan))


def warp_rings(points: F64, point_offsets: I64, matrices: F64, of: I64) -> tuple[F64, I64]:
    """Map rings; those that reach behind the camera are cut before the division.

    Args:
        points: (V, 2)
        point_offsets: (P + 1,)
        matrices: (k, 3, 3)
        of: (P,) matrix of each ring.

    Returns:
        Points and offsets of P rings; a ring wholly behind the camera is empty.
    """
    xyw = _mapped(points, matrices, np.repeat(of, np.diff(point_offsets)))
    if xyw.shape[1] == 2:
        return xyw, point_offsets
    depth = xyw[:, 2] - NEAR
    if (depth < 0).any():
        xyw, point_offsets = _cut(xyw, point_offsets, depth, 2, np.full(len(xyw), NEAR))
    return _divided(xyw), point_offsets


def warp_boxes(xyxy: F64, matrices: F64, of: I64) -> F64:
    """Return the boxes around the mapped corners of (N, 4) boxes, not clipped; zeros for a box wholly behind the camera."""
    points, offsets = warp_rings(corners_of(xyxy).reshape(-1, 2), 4 * np.arange(len(xyxy) + 1), matrices, of)
    out = ring_bounds(points, offsets)
    out[offsets[1:] == offsets[:-1]] = 0.0
    return out


def clip_boxes(xyxy: F64, rects_xyxy: F64) -> F64:
    """Clip (N, 4) boxes to a rectangle each; what lies outside has no width or no height afterwards."""
    return np.clip(xyxy, rects_xyxy[:, [0, 1, 0, 1]], rects_xyxy[:, [2, 3, 2, 3]])


def is_within(xyxy: F64, rects_xyxy: F64) -> Bool:
    """Tell which (N, 4) boxes lie wholly in their rectangles, the border included."""
    x0, y0, x1, y1 = (rects_xyxy[:, side] for side in range(4))
    return (xyxy[:, 0] >= x0) & (xyxy[:, 1] >= y0) & (xyxy[:, 2] <= x1) & (xyxy[:, 3] <= y1)


def corners_of(xyxy: F64) -> F64:
    """Return the (N, 4, 2) corners of (N, 4) boxes, clockwise on the screen from the upper left."""
    return xyxy[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]


def warp_keypoints(keypoints: F64, matrices: F64, of: I64, rects_xyxy: F64) -> F64:
    """Map keypoints; what falls outside loses its visibility, and a point without visibility is 0, 0.

    Visibility comes first: a point clamped to the border before would seem to be seen there (ultralytics#19920).

    Args:
        keypoints: (N, K, 3) x, y, visibility.
        matrices: (k, 3, 3)
        of: (N,) matrix of each object.
        rects_xyxy: (N, 4) what is seen; its border belongs to it.

    Returns:
        (N, K, 3)
    """
    n, k = keypoints.shape[:2]
    flat = keypoints.reshape(-1, 3)
    xy = warp_points(flat[:, :2], matrices, np.repeat(of, k))
    rect = np.repeat(rects_xyxy, k, axis=0)
    # A NaN is on no side of anything, so it is not seen.
    is_seen = (xy[:, 0] >= rect[:, 0]) & (xy[:, 1] >= rect[:, 1]) & (xy[:, 0] <= rect[:, 2]) & (xy[:, 1] <= rect[:, 3])
    is_seen &= flat[:, 2] > 0
    out = np.zeros((n * k, 3))
    for column, values in enumerate((xy[:, 0], xy[:, 1], flat[:, 2])):
        out[:, column] = np.where(is_seen, values, 0.0)
    return out.reshape(n, k, 3)


def mirror_keypoints(keypoints: F64, flip_idx: I64, is_mirrored: Bool) -> F64:
    """Exchange left and right keypoints of mirrored objects.

    Only for mirrors left to right, and for an even number of them not at all: upside down a left hand is still a left hand
    (ultralytics#21254).

    Args:
        keypoints: (N, K, 3)
        flip_idx: (K,) for each keypoint the one that it becomes in a mirror.
        is_mirrored: (N,)

    Returns:
        (N, K, 3)
    """
    return np.where(is_mirrored[:, None, None], keypoints[:, flip_idx], keypoints)


def clip_rings(points: F64, point_offsets: I64, rects_xyxy: F64) -> tuple[F64, I64]:
    """Cut each ring at its rectangle.

    Sutherland and Hodgman as ``fastdata.boxes.clip_polygon`` has it, one border after another, but for all rings at once. A ring
    that leaves and comes back keeps a bridge of no width along the border, between true points of the object; one that went
    around a corner outside does not reach into that corner (see ``fastdata.augment.detours``).

    Args:
        points: (V, 2)
        point_offsets: (P + 1,)
        rects_xyxy: (P, 4)

    Returns:
        Points and offsets of P rings, within their rectangles. A ring that needs no cut is unchanged; one of which fewer than
        three points or no area is left is empty.
    """
    box = ring_bounds(points, point_offsets)
    is_whole = is_within(box, rects_xyxy)
    if is_whole.all():
        return points, point_offsets
    is_cut: Bool = ~is_whole & ~((box[:, 2:] <= rects_xyxy[:, :2]) | (box[:, :2] >= rects_xyxy[:, 2:])).any(axis=1)
    index, offsets = ragged.gather(is_cut, point_offsets)
    cut, rects = points.take(index, axis=0), rects_xyxy[is_cut]
    for axis, side, sign in ((0, 0, 1.0), (0, 2, -1.0), (1, 1, 1.0), (1, 3, -1.0)):
        limit = np.repeat(rects[:, side], np.diff(offsets))
        depth = sign * (cut[:, axis] - limit)
        if (depth < 0).any():
            cut, offsets = _cut(cut, offsets, depth, axis, limit)
    rect = np.repeat(rects, np.diff(offsets), axis=0)
    cut = np.clip(cut, rect[:, :2], rect[:, 2:])  # a cut between two points on the border may be rounded over it
    is_left = (np.diff(offsets) >= 3) & (np.abs(ring_areas(cut, offsets)) > SPECK_PX2)
    seen, is_covered, has_detour = _seen(cut, offsets, rects)
    is_left &= (seen[:, 0] <= seen[:, 2]) | is_covered.any(axis=1)
    if (is_left & has_detour).any():
        cut, offsets = _straightened(cut, offsets, rects, is_left & has_detour)

    first, last = point_offsets[:-1] * is_whole, point_offsets[1:] * is_whole
    first[is_cut] = len(points) + offsets[:-1]
    last[is_cut] = len(points) + np.where(is_left, offsets[1:], offsets[:-1])
    return np.concatenate([points, cut]).take(ragged.ranges(first, last), axis=0), ragged.offsets_of(last - first)


def ring_bounds(points: F64, point_offsets: I64) -> F64:
    """Return the (P, 4) boxes of rings; (inf, inf, -inf, -inf) for an empty one."""
    return np.concatenate([ragged.row_min(points, point_offsets), ragged.row_max(points, point_offsets)], axis=1)


def ring_areas(points: F64, point_offsets: I64) -> F64:
    """Return the (P,) areas of rings, positive where they run clockwise on the screen (shoelace formula)."""
    first = np.zeros((len(point_offsets) - 1, 2))
    is_full = point_offsets[1:] > point_offsets[:-1]
    first[is_full] = points.take(point_offsets[:-1][is_full], axis=0)
    # Seen from a point of its own: a small ring far away loses no digits.
    x, y = (points - np.repeat(first, np.diff(point_offsets), axis=0)).T
    nxt = ragged.successors(point_offsets)
    return ragged.row_sum(x * y[nxt] - y * x[nxt], point_offsets) / 2


def object_boxes(points: F64, point_offsets: I64, ring_offsets: I64, rects_xyxy: F64, is_even_odd: Bool) -> F64:
    """Return the boxes of what can be seen of objects whose rings were cut at their rectangles.

    The extent of its rings; but a hole may take away what its outer ring covers up to a corner of the rectangle. So of objects
    with holes two kinds of points count: ends of sides that do not run along the border, and corners of the rectangle that the
    object covers.

    Args:
        points: (V, 2) cut by :func:`clip_rings`.
        point_offsets: (P + 1,)
        ring_offsets: (N + 1,)
        rects_xyxy: (N, 4)
        is_even_odd: (N,) whether a ring within another is a hole (MASK), or the object is the union of its rings (POLYGON).

    Returns:
        (N, 4), all zeros where nothing can be seen.
    """
    box = ring_bounds(points, point_offsets)
    has_hole = np.repeat(is_even_odd & (np.diff(ring_offsets) > 1), np.diff(ring_offsets))
    is_covered = np.zeros((len(box), 4), np.bool_)
    if has_hole.any():
        index, offsets = ragged.gather(has_hole, point_offsets)
        rects = rects_xyxy[ragged.owners(ring_offsets)[has_hole]]
        box[has_hole], is_covered[has_hole], _ = _seen(points.take(index, axis=0), offsets, rects)
    lows, highs = ragged.row_min(box[:, :2], ring_offsets), ragged.row_max(box[:, 2:], ring_offsets)
    if is_covered.any():
        covers = ragged.row_sum(is_covered.astype(np.float64), ring_offsets)
        holds = covers % 2 == 1
        corners = corners_of(rects_xyxy)
        lows = np.minimum(lows, np.where(holds[:, :, None], corners, np.inf).min(axis=1))
        highs = np.maximum(highs, np.where(holds[:, :, None], corners, -np.inf).max(axis=1))
    out = np.concatenate([lows, highs], axis=1)
    out[out[:, 0] > out[:, 2]] = 0.0
    return out


def _seen(points: F64, offsets: I64, rects: F64) -> tuple[F64, Bool, Bool]:
    """Look through the bridges of rings within their rectangles.

    Returns:
        (P, 4) boxes of the ends of sides that do not run along the border; (P, 4) whether the ring covers each corner of its
        rectangle, in the order of :func:`corners_of`; (P,) whether a bridge leads beyond all that.
    """
    nxt, row = ragged.successors(offsets), ragged.owners(offsets)
    at = [points[:, side % 2] == rects[:, side][row] for side in range(4)]  # left, top, right, bottom
    along = [here & here[nxt] for here in at]
    is_within = ~(along[0] | along[1] | along[2] | along[3])
    counts = is_within.copy()
    counts[nxt[is_within]] = True
    box = ring_bounds(points.take(np.flatnonzero(counts), axis=0), ragged.offsets_kept(counts, offsets))

    # Just inside a corner, a ray to the left or right meets only sides along that border that end in the corner: it lies within
    # the ring if their number is odd.
    covered = np.zeros((len(rects), 4), np.bool_)
    is_bare = np.zeros((len(rects), 4), np.bool_)
    for corner, (x_side, y_side) in enumerate(((0, 1), (2, 1), (2, 3), (0, 3))):
        ends = along[x_side] & (at[y_side] != at[y_side][nxt])
        covered[:, corner] = np.bincount(row[ends], minlength=len(rects)) % 2 == 1
        is_bare[row[at[x_side] & at[y_side] & ~counts], corner] = True
    corners = corners_of(rects)
    lows = np.minimum(box[:, :2], np.where(covered[:, :, None], corners, np.inf).min(axis=1))
    highs = np.maximum(box[:, 2:], np.where(covered[:, :, None], corners, -np.inf).max(axis=1))
    whole = ring_bounds(points, offsets)
    has_detour: Bool = (is_bare & ~covered).any(axis=1) | (lows > whole[:, :2]).any(axis=1) | (highs < whole[:, 2:]).any(axis=1)
    return box, covered, has_detour


def _straightened(points: F64, offsets: I64, rects: F64, has_detour: Bool) -> tuple[F64, I64]:
    """Replace the rings in ``has_detour`` by ones that cover the same without it: few, so one by one."""
    rings = np.split(points, offsets[1:-1])
    for i in np.flatnonzero(has_detour):
        rings[i] = without_detours(rings[i], rects[i])
    return np.concatenate(rings), ragged.offsets_of(np.array([len(ring) for ring in rings]))


def _cut(points: F64, offsets: I64, depth: F64, axis: int, limit: F64) -> tuple[F64, I64]:
    """Cut rings of (V, D) points where ``depth`` is below 0; on the cut, coordinate ``axis`` is ``limit``."""
    nxt = ragged.successors(offsets)
    is_in = depth >= 0
    # A point on the border is kept as itself; the cut beside it would be the same point again.
    crosses = (is_in != is_in[nxt]) & (depth != 0) & (depth[nxt] != 0)
    place = ragged.offsets_of(is_in.astype(np.int64) + crosses)
    here = np.flatnonzero(crosses)
    there = nxt[here]
    share = depth[here] / (depth[here] - depth[there])
    start = points.take(here, axis=0)
    new = start + share[:, None] * (points.take(there, axis=0) - start)
    new[:, axis] = limit[here]
    source = np.empty(place[-1], np.int64)
    source[place[:-1][is_in]] = np.flatnonzero(is_in)
    source[place[here] + is_in[here]] = np.arange(len(points), len(points) + len(here))  # after the point itself if that is kept
    return np.concatenate([points, new]).take(source, axis=0), place[offsets]


def _mapped(points: F64, matrices: F64, of: I64) -> F64:
    """Return (V, 3) mapped points before the division, or (V, 2) where no matrix needs one."""
    # Element by element: a product of whole arrays may round differently in a batch of another size.
    x, y = points[:, 0], points[:, 1]
    is_projective = (matrices[:, 2] != (0.0, 0.0, 1.0)).any()
    out = np.empty((len(points), 3 if is_projective else 2))
    for row in range(out.shape[1]):
        a, b, c = matrices[:, row].T
        out[:, row] = a[of] * x + b[of] * y + c[of]
    return out


def _divided(xyw: F64) -> F64:
    """Divide; exact where the third coordinate is 1."""
    out: F64 = xyw[:, :2] / xyw[:, 2:]
    return out
