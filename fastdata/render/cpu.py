"""Draw on the processor: compiled, one row of one picture after the other, without the interpreter's lock.

As ``fastdata.render.reference`` within ``fastdata.render.tolerance``. Neither threads of its own nor anything that outlives a
call: any number of threads may draw at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.errors import UsageError
from fastdata.render.tiles import check_visible, load_tiles
from fastdata.store.read import Store

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


def render(store: Store, recipe: Recipe, out: U8 | None = None) -> U8:
    """Draw a batch.

    Args:
        store: Where the records are.
        recipe: What to draw.
        out: (B, 3, H, W) contiguous, to draw into.

    Returns:
        (B, 3, H, W), RGB but for slots with ``bgr``; ``out`` where it is given.

    Raises:
        UsageError: ``out`` does not fit, or a tile shows more than there is of it.
        StoreError: A record is damaged.
    """
    shape = (len(recipe), 3, *recipe.out_hw)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError(
            f"out must be contiguous, writable uint8 of shape {shape}, got {out.dtype} {out.shape} with strides {out.strides}"
        )
    tiles = load_tiles(store, recipe)
    draw(recipe, tiles, out)
    return out


def draw(recipe: Recipe, tiles: list[U8], out: U8, *, by_vector: bool = True) -> None:
    """Draw a batch whose tiles are at hand.

    Args:
        recipe: What to draw.
        tiles: From :func:`fastdata.render.tiles.load_tiles`.
        out: (B, 3, H, W) contiguous.
        by_vector: For tests: whether the processor's widest instructions may be used. The bytes are the same.

    Raises:
        UsageError: A tile shows more than there is of it.
    """
    from fastdata.render.kernels.draw import draw_batch

    if not out.size:
        return
    tiles = [tile if tile.strides[2] == 1 else np.ascontiguousarray(tile) for tile in tiles]  # alive until all is drawn
    draw_batch(
        out,
        recipe.gains,
        recipe.bgr,
        recipe.group_offsets,
        recipe.matrix,
        np.linalg.inv(recipe.matrix),
        recipe.weight,
        recipe.clip_xyxy,
        recipe.is_masked,
        recipe.tile_offsets,
        recipe.shape_offsets,
        recipe.shape_ring_offsets,
        recipe.ring_point_offsets,
        recipe.mask_points_px,
        table_of(recipe, tiles),
        by_vector,
    )


def table_of(recipe: Recipe, tiles: list[U8]) -> I64:
    """Return the kernel's table of tiles, in the order of ``kernels.bands``: where each lies in memory and on the canvas."""
    from fastdata.render.kernels.bands import TILE_FIELDS

    table = np.empty((len(tiles), TILE_FIELDS), np.int64)
    for row, tile in zip(table, tiles, strict=True):
        plane, line, _ = tile.strides
        row[:3] = tile.__array_interface__["data"][0], plane if len(tile) == 3 else 0, line
    table[:, 3:5] = recipe.origin_xy
    table[:, 5:7] = recipe.origin_xy + recipe.size_hw[:, ::-1]
    table[:, 7:11] = recipe.visible_xyxy
    check_visible(recipe)
    return table

