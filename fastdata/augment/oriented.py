"""Oriented boxes through a warp, cut at a frame without being turned.

An oriented box is its four corners, (N, 4, 2), until the very end; then it is ``xywhr``: centre, the longer and the shorter side,
and the direction of the longer one in [-pi/4, 3 pi/4) radians from the x axis, clockwise on the screen.

- Under a turn, a mirror, a zoom it stays a rectangle. Shear and perspective make it another four-sided shape; that is kept as it
  is until it must be a rectangle, and then it is the smallest one around it, at any angle. That is what the trainers learn
  (``minAreaRect`` of the warped corners), and no other rectangle is both as tight and defined without the object's outline.
- Wholly within the frame, nothing changes. Across the border, what is left is the tight rectangle around the visible part, **in
  the direction of the uncut box**: cutting a picture does not turn the object (ultralytics#10181).
- The axis-aligned box is the extent of the visible part, not of the rectangle, which may reach over the frame.
"""

from __future__ import annotations

import math

import numpy as np

from fastdata.augment import outline, ragged
from fastdata.augment.ragged import F64, I64, Bool

MOST_CORNERS = 8
"""Of what a cut at one plane leaves of four corners: one more for every second side."""


def warp_corners(corners: F64, matrices: F64, of: I64, rects_xyxy: F64) -> tuple[F64, F64]:
    """Map oriented boxes and cut them at a frame.

    Args:
        corners: (N, 4, 2)
        matrices: (k, 3, 3)
        of: (N,) matrix of each.
        rects_xyxy: (N, 4) frame of each.

    Returns:
        (N, 4, 2) corners, and (N, 4) boxes around the visible parts; both all zeros where nothing can be seen.
    """
    points, offsets = outline.warp_rings(corners.reshape(-1, 2), 4 * np.arange(len(corners) + 1), matrices, of)
    return _clipped(points, offsets, rects_xyxy)


def clip_corners(corners: F64, rects_xyxy: F64) -> tuple[F64, F64]:
    """Cut oriented boxes at a frame as they are, as on the canvas of a mosaic; see :func:`warp_corners`."""
    return _clipped(corners.reshape(-1, 2), 4 * np.arange(len(corners) + 1), rects_xyxy)


def corners_to_xywhr(corners: F64) -> F64:
    """Return (N, 5) smallest rectangles, at any angle, around (N, m, 2) corners; zeros for one without extent."""
    origin, u, low, high = _smallest(corners)
    middle, size = (low + high) / 2, high - low
    is_upright = size[:, 1] > size[:, 0]
    longer = np.where(is_upright[:, None], np.stack([-u[:, 1], u[:, 0]], axis=1), u)
    angle = (np.arctan2(longer[:, 1], longer[:, 0]) + math.pi / 4) % math.pi - math.pi / 4
    angle = np.where(angle >= 0.75 * math.pi, angle - math.pi, angle)  # the remainder of a hair below 0 is rounded to pi
    centre = origin + _placed(middle, u)
    return np.concatenate([centre, size.max(axis=1)[:, None], size.min(axis=1)[:, None], angle[:, None]], axis=1)


def xywhr_to_corners(xywhr: F64) -> F64:
    """Return the (N, 4, 2) corners of (N, 5) rectangles, clockwise on the screen."""
    u = np.stack([np.cos(xywhr[:, 4]), np.sin(xywhr[:, 4])], axis=1)
    half = xywhr[:, 2:4] / 2
    return xywhr[:, None, :2] + _placed(outline.corners_of(np.concatenate([-half, half], axis=1)), u[:, None])


def convex_hull(points: F64) -> F64:
    """Return the corners of the convex hull of (v, 2) points in order (Andrew's monotone chain, 1979)."""
    ordered = sorted({(x, y) for x, y in points.tolist()})
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


def rectangle_around(hull: F64) -> F64:
    """Return the (4, 2) corners of the smallest rectangle, at any angle, around the (v, 2) corners of a convex shape, in order.

    One of its sides lies on a side of the shape (Freeman and Shapira, as below), so v directions are enough; points between which
    there is no way give four times the first.
    """
    points = hull - hull[0]
    side = np.roll(points, -1, axis=0) - points
    length = np.hypot(side[:, 0], side[:, 1])
    u = side[length > 0] / length[length > 0, None]
    if not len(u):
        return np.repeat(hull[:1], 4, axis=0)
    along = _turned(points[:, None], u)  # (v, directions, 2)
    low, high = along.min(axis=0), along.max(axis=0)
    best = (high - low).prod(axis=1).argmin()
    out: F64 = hull[0] + _placed(outline.corners_of(np.concatenate([low[best], high[best]])[None])[0], u[best])
    return out


def _clipped(points: F64, offsets: I64, rects: F64) -> tuple[F64, F64]:
    """Cut shapes that were four-sided, before the camera's plane took or added corners."""
    n, counts = len(rects), np.diff(offsets)
    corners, xyxy = np.zeros((n, 4, 2)), np.zeros((n, 4))
    has_four = np.flatnonzero(counts == 4)
    corners[has_four] = points.take(offsets[has_four, None] + np.arange(4), axis=0)
    x, y = corners.transpose(2, 1, 0)
    np.stack([x.min(axis=0), y.min(axis=0), x.max(axis=0), y.max(axis=0)], axis=1, out=xyxy)
    at = np.flatnonzero((counts == 4) & ~outline.is_within(xyxy, rects))
    if len(at):
        corners[at], xyxy[at] = _refitted(corners[at], rects[at])
    at = np.flatnonzero((counts > 0) & (counts != 4))
    if len(at):  # by repeating the last corner, always as many: what comes out may not depend on the other shapes
        index = offsets[at, None] + np.minimum(np.arange(MOST_CORNERS), counts[at, None] - 1)
        corners[at], xyxy[at] = _refitted(points.take(index, axis=0), rects[at])
    return corners, xyxy


def _refitted(shapes: F64, rects: F64) -> tuple[F64, F64]:
    """Return rectangles around what the frame shows of (n, m, 2) shapes, in the direction of the uncut ones; and the extents."""
    n, m = shapes.shape[:2]
    origin, u, low, high = _smallest(shapes)
    # Four points with a dent, or sides that cross, are no box that anybody drew: their smallest rectangle stands for them.
    is_odd = ~_is_convex(shapes)
    if is_odd.any():
        whole = origin[:, None] + _placed(outline.corners_of(np.concatenate([low, high], axis=1)), u[:, None])
        shapes = np.where(is_odd[:, None, None], whole[:, np.minimum(np.arange(m), 3)], shapes)
    points, offsets = outline.clip_rings(shapes.reshape(-1, 2), m * np.arange(n + 1), rects)
    is_seen = (offsets[1:] > offsets[:-1])[:, None]
    around = ragged.owners(offsets)
    along = _turned(points - origin[around], u[around])
    low = np.where(is_seen, ragged.row_min(along, offsets), 0.0)
    high = np.where(is_seen, ragged.row_max(along, offsets), 0.0)
    corners = origin[:, None] + _placed(outline.corners_of(np.concatenate([low, high], axis=1)), u[:, None])
    xyxy = outline.ring_bounds(points, offsets)
    return np.where(is_seen[:, :, None], corners, 0.0), np.where(is_seen, xyxy, 0.0)


def _smallest(shapes: F64) -> tuple[F64, F64, F64, F64]:
    """Find the smallest rectangle around each of (n, m, 2) shapes.

    One of its sides lies on a side of the convex hull (Freeman and Shapira, CACM 18(7), 1975), so every direction between two
    points is tried.

    Returns:
        (n, 2) a place, (n, 2) unit vector u of one side, and from that place the (n, 2) least and greatest distances along u and
        along the normal of u.
    """
    # Short axes first: NumPy works along the last one.
    x, y = shapes.transpose(2, 1, 0) - shapes[:, 0].T[:, None]
    i, j = np.triu_indices(shapes.shape[1], 1)
    dx, dy = x[j] - x[i], y[j] - y[i]
    length = np.hypot(dx, dy)
    is_side = length > 0
    length = np.where(is_side, length, 1.0)
    ux, uy = np.where(is_side, dx, 1.0) / length, dy / length  # of two points in one place: level, as good a try as any
    a, b = ux * x[:, None] + uy * y[:, None], ux * y[:, None] - uy * x[:, None]  # (m, directions, n)
    a0, a1, b0, b1 = a.min(axis=0), a.max(axis=0), b.min(axis=0), b.max(axis=0)
    best = ((a1 - a0) * (b1 - b0)).argmin(axis=0), np.arange(len(shapes))
    u, low, high = (np.stack([p[best], q[best]], axis=1) for p, q in ((ux, uy), (a0, b0), (a1, b1)))
    return shapes[:, 0], u, low, high


def _is_convex(shapes: F64) -> Bool:
    """Tell which (n, m, 2) shapes turn one way only; repeated points do not turn."""
    side = np.roll(shapes, -1, axis=1) - shapes
    nxt = np.roll(side, -1, axis=1)
    turn = side[:, :, 0] * nxt[:, :, 1] - side[:, :, 1] * nxt[:, :, 0]
    out: Bool = np.logical_or((turn >= 0).all(axis=1), (turn <= 0).all(axis=1))
    return out


def _turned(xy: F64, u: F64) -> F64:
    """Return distances along unit vectors u and along their normals."""
    x, y, ux, uy = xy[..., 0], xy[..., 1], u[..., 0], u[..., 1]
    return np.stack([x * ux + y * uy, y * ux - x * uy], axis=-1)


def _placed(along: F64, u: F64) -> F64:
    """Undo :func:`_turned`."""
    a, b, ux, uy = along[..., 0], along[..., 1], u[..., 0], u[..., 1]
    return np.stack([a * ux - b * uy, a * uy + b * ux], axis=-1)
