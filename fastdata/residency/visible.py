"""Which rectangle of each tile a batch can show: what has to travel to the GPU, and no more.

Found backwards: the part of the output that a group is painted in is taken through the inverse of its matrix to the canvas, where
its bounding box is cut with what is visible of each tile. For the trainers' mosaic that is about half of four pictures.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

MARGIN_PX = 2
"""Around the places of the centres of output pixels: 1 for the bilinear neighbour, which lies less than a pixel away, and 1 for
renderers that compute places in float32, or read a neighbour that has no weight."""

NEAR = 1 / 1024
"""A depth that is this small against the numbers that it is the sum of is taken for none: in float32 it would be off by
2^-24 / NEAR of itself, 1/16000, so a place on a canvas of 4,000 px by a quarter of a pixel."""

_FAR = float(1 << 30)
"""No canvas is that large: places beyond are as good as there, and fit an integer."""


def visible_rects(recipe: Recipe) -> I64:
    """Return the part of each tile that a renderer may read.

    Returns:
        (T, 4) x0, y0, x1, y1 in pixels of the tile at ``size_hw``, half-open, within the tile; zeros where there is none.
    """
    box = np.repeat(_boxes(recipe), np.diff(recipe.tile_offsets), axis=0)
    origin = recipe.origin_xy.astype(np.int64)
    low = np.maximum(box[:, :2], recipe.visible_xyxy[:, :2]) - origin
    high = np.minimum(box[:, 2:], recipe.visible_xyxy[:, 2:]) - origin
    rects = np.concatenate([np.maximum(low, 0), np.minimum(high, recipe.size_hw[:, ::-1])], axis=1)
    rects[(rects[:, :2] >= rects[:, 2:]).any(axis=1)] = 0
    return rects


def _boxes(recipe: Recipe) -> I64:
    """Return the part of its canvas that each group shows, (G, 4); of a group that is painted nowhere: nothing."""
    painted = _painted(recipe)
    x0, y0, x1, y1 = painted.T
    # Centres of the outermost pixels.
    x, y = np.stack([x0, x1 - 1, x0, x1 - 1]) + 0.5, np.stack([y0, y0, y1 - 1, y1 - 1]) + 0.5
    back = np.linalg.inv(recipe.matrix).transpose(1, 2, 0)  # (3, 3, G)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        terms = back[2, 0] * x, back[2, 1] * y, back[2, 2]
        depth = terms[0] + terms[1] + terms[2]
        size = np.abs(terms[0]) + np.abs(terms[1]) + np.abs(terms[2])
        place = (back[:2, :1] * x + back[:2, 1:2] * y + back[:2, 2:]) / depth  # (2, 4, G)
        # Depth is linear: above 0 at the corners it is so between them, and a rectangle becomes the hull of its corners.
        is_plain = ((depth > NEAR * size) & np.isfinite(place).all(axis=0)).all(axis=0)
    place = np.where(is_plain, place, 0.0)
    low = np.floor(np.maximum(place.min(axis=1), -_FAR)) - MARGIN_PX
    high = np.ceil(np.minimum(place.max(axis=1), _FAR)) + MARGIN_PX
    box = np.concatenate([np.where(is_plain, low, -_FAR), np.where(is_plain, high, _FAR)]).T.astype(np.int64)
    box[(x0 >= x1) | (y0 >= y1)] = 0
    return box


def _painted(recipe: Recipe) -> I64:
    """Return the part of the output that each group is painted in, (G, 4): its clip, cut with the box of its shapes if any."""
    height, width = recipe.out_hw
    low = np.maximum(recipe.clip_xyxy[:, :2], 0).astype(np.int64)
    high = np.minimum(recipe.clip_xyxy[:, 2:], (width, height)).astype(np.int64)
    edges = recipe.ring_point_offsets[recipe.shape_ring_offsets[recipe.shape_offsets]]
    for g in np.flatnonzero(recipe.is_masked).tolist():
        points = recipe.mask_points_px[edges[g] : edges[g + 1]]
        if len(points):
            low[g] = np.maximum(low[g], np.floor(points.min(axis=0)))
            high[g] = np.minimum(high[g], np.ceil(points.max(axis=0)))
        else:
            high[g] = low[g]
    return np.concatenate([low, high], axis=1)
