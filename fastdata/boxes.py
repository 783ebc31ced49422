"""Conventions of boxes and outlines, and the geometry they need.

Said once: coordinates are **pixel edges**: pixel i covers [i, i + 1), a picture of width w spans [0, w]. ``xyxy_px`` is
(x0, y0, x1, y1), half-open, x0 < x1. ``xywh_norm`` is the centre and the size as fractions of width and height. ``size_hw`` is
(height, width). Stored boxes are float32, intermediate ones float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def xywh_norm_to_xyxy_norm(xywh: F64) -> F64:
    """Turn (n, 4) centre and size into (n, 4) corners, in the same unit."""
    half = xywh[:, 2:] / 2
    return np.concatenate([xywh[:, :2] - half, xywh[:, :2] + half], axis=1)


def xyxy_px_to_xywh_norm(xyxy_px: npt.NDArray[np.floating], size_hw: tuple[int, int]) -> F64:
    """Turn (n, 4) corners in pixels into (n, 4) centre and size as fractions of the picture."""
    h, w = size_hw
    # By columns: rows of four are too short for NumPy to be fast.
    x0, y0, x1, y1 = np.asarray(xyxy_px, np.float64).reshape(-1, 4).T
    x0, y0, x1, y1 = x0 / w, y0 / h, x1 / w, y1 / h
    out = np.empty((len(x0), 4))
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0
    return out


def clip_xyxy(xyxy_px: F64, size_hw: tuple[int, int]) -> F64:
    """Clip (n, 4) corners to the picture."""
    h, w = size_hw
    return np.clip(xyxy_px, 0.0, np.array([w, h, w, h], np.float64))


def bounds(points: F64) -> F64:
    """Return the (4,) axis-aligned box around (v, 2) points."""
    return np.concatenate([points.min(axis=0), points.max(axis=0)])


def polygon_area(points: F64) -> float:
    """Return the unsigned area of one ring of (v, 2) points (shoelace formula)."""
    x, y = (points - points[:1]).T  # seen from a point of its own: a small ring far away loses no digits
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)


def clip_polygon(points: F64, size_hw: tuple[int, int]) -> F64:
    """Cut one ring of (v, 2) points at the picture's border.

    Sutherland and Hodgman, "Reentrant polygon clipping", CACM 17(1), 1974: one half-plane after another. A ring that leaves and
    comes back keeps a zero-width bridge along the border, which covers no pixel.

    Returns:
        The ring that is left, (u, 2); u = 0 when nothing is.
    """
    h, w = size_hw
    for axis, limit, sign in ((0, 0.0, 1.0), (0, float(w), -1.0), (1, 0.0, 1.0), (1, float(h), -1.0)):
        if len(points) == 0:
            break
        depth = sign * (points[:, axis] - limit)  # >= 0 inside
        if (depth >= 0).all():
            continue
        nxt, depth_nxt = np.roll(points, -1, axis=0), np.roll(depth, -1)
        inside, inside_nxt = depth >= 0, depth_nxt >= 0
        kept: list[F64] = []
        for i in range(len(points)):
            if inside[i]:
                kept.append(points[i])
            # A corner on the border is kept as itself; the cut beside it would be the same point again.
            if inside[i] != inside_nxt[i] and depth[i] != 0 and depth_nxt[i] != 0:
                share = depth[i] / (depth[i] - depth_nxt[i])
                cut = points[i] + share * (nxt[i] - points[i])
                cut[axis] = limit
                kept.append(cut)
        points = np.array(kept, np.float64).reshape(-1, 2)
    return points


def is_self_crossing(quad: F64) -> bool:
    """Tell whether the (4, 2) ring is a bow-tie: two opposite sides cross."""
    return _cross(quad[0], quad[1], quad[2], quad[3]) or _cross(quad[1], quad[2], quad[3], quad[0])


def _cross(a: F64, b: F64, c: F64, d: F64) -> bool:
    def side(p: F64, q: F64, r: F64) -> float:
        return float((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def min_area_rectangle(points: F64) -> F64:
    """Return the (4, 2) corners of the smallest rectangle, at any angle, around (v, 2) points.

    One side of it lies on a side of the convex hull (Freeman and Shapira, CACM 18(7), 1975), so every direction between two
    points is tried: fine for the handful of points of a label row.
    """
    deltas = (points[None, :, :] - points[:, None, :]).reshape(-1, 2)
    lengths = np.hypot(deltas[:, 0], deltas[:, 1])
    directions = deltas[lengths > 0] / lengths[lengths > 0, None]
    best: tuple[float, F64] | None = None
    for ux, uy in directions:
        turn = np.array([[ux, uy], [-uy, ux]])
        box = bounds(points @ turn.T)
        area = (box[2] - box[0]) * (box[3] - box[1])
        if best is None or area < best[0]:
            corners = np.array([[box[0], box[1]], [box[2], box[1]], [box[2], box[3]], [box[0], box[3]]])
            best = (float(area), corners @ turn)
    return best[1] if best else np.repeat(points[:1], 4, axis=0)
