"""The definition of what a recipe looks like: ``fastdata.augment.recipe``'s docstring as code, in real numbers, NumPy alone.

Written to be read and to be right; other renderers state in ``fastdata.render.tolerance`` how far they may be from it.

What the docstring leaves open is settled here:

- The canvas has no border of its own: outside of all tiles it is FILL, without end.
- Where a perspective takes an output pixel from behind the viewer (third coordinate not above 0) or from nowhere, the group is
  FILL.
- A pixel is in a shape if ``fastdata.masks.rings_to_mask`` says so; a centre on an edge belongs to the area right of or below it.
- Hue, saturation and value are those of the hexcone (A. R. Smith, "Color gamut transform pairs", SIGGRAPH 1978): V the largest
  channel, S = (V - smallest) / V, H in turns with red 0, green 1/3, blue 2/3. Gray has no hue: it stays gray.
- Everything is float64 up to one rounding at the very end, to the nearest, half up.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import FILL, Recipe
from fastdata.errors import UsageError
from fastdata.masks import rings_to_mask
from fastdata.render.tiles import load_tiles
from fastdata.store.read import Store

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_FAR = float(1 << 30)
"""No canvas is that large: places beyond are as good as there, and fit an integer."""


def render(store: Store, recipe: Recipe, out: U8 | None = None) -> U8:
    """Draw a batch.

    Args:
        store: Where the records are.
        recipe: What to draw.
        out: (B, 3, H, W) to draw into.

    Returns:
        (B, 3, H, W), RGB but for slots with ``bgr``; ``out`` where it is given.

    Raises:
        UsageError: ``out`` does not fit.
        StoreError: A record is damaged.
    """
    shape = (len(recipe), 3, *recipe.out_hw)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8 or not out.flags.writeable:
        raise UsageError(f"out must be writable uint8 of shape {shape}, got {out.dtype} {out.shape}")
    tiles = load_tiles(store, recipe)
    for slot in range(len(recipe)):
        picture = recolour(_painted(recipe, tiles, slot), recipe.gains[slot].astype(np.float64))
        if recipe.bgr[slot]:
            picture = picture[::-1]
        out[slot] = np.floor(picture + 0.5)  # 0 <= picture <= 255, so no clip
    return out


def _painted(recipe: Recipe, tiles: list[U8], slot: int) -> F64:
    """Return a slot before its colour gains, (3, H, W)."""
    height, width = recipe.out_hw
    picture = np.zeros((3, height, width))
    for g in range(int(recipe.group_offsets[slot]), int(recipe.group_offsets[slot + 1])):
        where = _mask(recipe, g)
        if where.any():
            difference = _group(recipe, tiles, g) - picture
            picture += where * float(recipe.weight[g]) * difference
    return picture


def _mask(recipe: Recipe, g: int) -> Bool:
    """Return where group ``g`` is painted, (H, W)."""
    where = np.zeros(recipe.out_hw, np.bool_)
    x0, y0, x1, y1 = np.maximum(recipe.clip_xyxy[g], 0).tolist()
    where[y0:y1, x0:x1] = True
    if not recipe.is_masked[g]:
        return where
    union = np.zeros(recipe.out_hw, np.bool_)
    for s in range(int(recipe.shape_offsets[g]), int(recipe.shape_offsets[g + 1])):
        first, last = int(recipe.shape_ring_offsets[s]), int(recipe.shape_ring_offsets[s + 1])
        edges = recipe.ring_point_offsets[first : last + 1].tolist()
        rings = [recipe.mask_points_px[a:b] for a, b in itertools.pairwise(edges)]
        union |= rings_to_mask(rings, recipe.out_hw) > 0
    return where & union


def _group(recipe: Recipe, tiles: list[U8], g: int) -> F64:
    """Return group ``g`` as seen in the whole output, (3, H, W)."""
    place = places(recipe.matrix[g], recipe.out_hw)
    seen: Bool = ~np.isnan(place[..., 0])
    x, y = np.clip(np.where(seen[..., None], place, 0.0), -_FAR, _FAR).transpose(2, 0, 1)
    # The value of a canvas pixel stands at its centre, half a pixel from its edges.
    left, top = np.floor(x - 0.5), np.floor(y - 0.5)
    right_share, bottom_share = x - 0.5 - left, y - 0.5 - top
    j, i = left.astype(np.int64), top.astype(np.int64)
    above = (1 - right_share) * _canvas(recipe, tiles, g, j, i) + right_share * _canvas(recipe, tiles, g, j + 1, i)
    below = (1 - right_share) * _canvas(recipe, tiles, g, j, i + 1) + right_share * _canvas(recipe, tiles, g, j + 1, i + 1)
    mean: F64 = (1 - bottom_share) * above + bottom_share * below
    return np.where(seen, mean, float(FILL))


def places(matrix: F64, out_hw: tuple[int, int]) -> F64:
    """Return the place on the canvas that the centre of each output pixel comes from.

    Args:
        matrix: (3, 3) canvas to output.
        out_hw: Size of the output.

    Returns:
        (H, W, 2) x, y in canvas pixels, measured from pixel edges; NaN where there is no such place.
    """
    height, width = out_hw
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    back = np.linalg.inv(matrix) @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    depth = back[2]
    seen = depth > 0
    place = np.full((2, x.size), np.nan)
    place[:, seen] = back[:2, seen] / depth[seen]
    return place.T.reshape(height, width, 2)


def _canvas(recipe: Recipe, tiles: list[U8], g: int, j: I64, i: I64) -> F64:
    """Return the canvas pixels in columns ``j`` and rows ``i``, (3, *j.shape)."""
    value = np.full((3, *j.shape), float(FILL))
    for t in range(int(recipe.tile_offsets[g]), int(recipe.tile_offsets[g + 1])):  # a later tile replaces an earlier one
        x0, y0, x1, y1 = recipe.visible_xyxy[t].tolist()
        owned = (j >= x0) & (j < x1) & (i >= y0) & (i < y1)
        if owned.any():
            left, top = recipe.origin_xy[t].tolist()
            value[:, owned] = tiles[t][:, i[owned] - top, j[owned] - left]  # one gray plane serves all three channels
    return value


def recolour(rgb: F64, gains: F64) -> F64:
    """Apply colour gains.

    Args:
        rgb: (3, ...) of 0..255.
        gains: (4,) as ``Recipe.gains`` has them.

    Returns:
        The same shape, 0..255; ``rgb`` itself for gains that change nothing.
    """
    hue_add, hue_mul, sat_mul, val_mul = gains.tolist()
    if (hue_add, hue_mul, sat_mul, val_mul) == (0, 1, 1, 1):
        return rgb
    red, green, blue = rgb
    value = rgb.max(axis=0)
    chroma = value - rgb.min(axis=0)
    saturation = chroma / np.where(value > 0, value, 1)
    apart = np.where(chroma > 0, chroma, 1)
    sector = np.where(
        value == red, (green - blue) / apart, np.where(value == green, 2 + (blue - red) / apart, 4 + (red - green) / apart)
    )
    hue = (sector / 6) % 1

    hue = (hue * hue_mul + hue_add) % 1
    saturation = np.minimum(saturation * sat_mul, 1)
    value = np.minimum(value * val_mul, 255)

    # Around the hexcone each channel is V for a third of a turn, falls, is V (1 - S) for a third, and rises.
    out = np.empty_like(rgb)
    for channel, start in enumerate((5, 3, 1)):
        k = (start + 6 * hue) % 6
        out[channel] = value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1)
    return out
