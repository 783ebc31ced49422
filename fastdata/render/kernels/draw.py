"""Draw a batch: slot by slot and row by row, so that a row's numbers stay in the nearest cache from its tiles to its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from fastdata.augment.recipe import FILL
from fastdata.render.kernels.axis import AHEAD, ROW_WEIGHT, UNIT, mix_down, place_samples, resample_across
from fastdata.render.kernels.bands import (
    BAND_BOTTOM,
    BAND_FIELDS,
    BAND_LEFT,
    BAND_RIGHT,
    BAND_RUNS,
    BAND_SEAMS,
    BAND_SERIAL,
    BAND_TOP,
    BLOCK_FIELDS,
    FULL_WEIGHT,
    RUN_FIELDS,
    SEAM_FIELDS,
    find_band,
)
from fastdata.render.kernels.colour import COLOUR_FIELDS, REALS, finish_row, prepare_colour
from fastdata.render.kernels.compiled import digest_of_sources, entry, part
from fastdata.render.kernels.lanes import WIDTH, number
from fastdata.render.kernels.memory import address_of, fill_bytes, keep
from fastdata.render.kernels.paint import clip_row, mask_row, paint_row, shape_rows
from fastdata.render.kernels.warp import LINE_FIELDS, warp_row

NO_ROW = -(1 << 40)
HELD_ROW, HELD_BAND, HELD_LEFT, HELD_RIGHT = range(4)
"""Of each of the two canvas rows that a group holds: which it is, its band, and where it is not FILL."""


@part
def is_upright(matrix: Any) -> bool:
    """Whether a matrix neither rotates nor shears nor has a perspective."""
    return bool(matrix[0, 1] == 0 and matrix[1, 0] == 0 and matrix[2, 0] == 0 and matrix[2, 1] == 0 and matrix[2, 2] == 1)


@part
def _covers(weight: float, is_masked: bool, clip: Any, width: int, height: int) -> bool:
    """Whether nothing below a group is seen."""
    return weight == 1 and not is_masked and clip[0] <= 0 and clip[1] <= 0 and clip[2] >= width and clip[3] >= height


@part
def _draw_batch(
    out: Any, gains: Any, bgr: Any, group_offsets: Any, matrix: Any, back: Any, weight: Any, clip: Any, is_masked: Any,
    tile_offsets: Any, shape_offsets: Any, shape_rings: Any, ring_points: Any, points: Any, tiles: Any, by_vector: bool,
) -> None:  # fmt: skip
    """Draw a recipe.

    Args:
        out: (B, 3, H, W) uint8.
        gains: The recipe's, as the following ones are where they have its names.
        back: (G, 3, 3) output to canvas, the inverses of ``matrix``.
        tiles: (T, TILE_FIELDS), see ``axis``.
        by_vector: Whether to resample 16 columns at once where the processor can; the bytes are the same.
    """
    batch, _, height, width = out.shape
    nothing = number(0)
    padded = (width + WIDTH - 1) // WIDTH * WIDTH
    row_nbytes = 2 * padded
    most_groups = most_tiles = 1
    for b in range(batch):
        most_groups = max(most_groups, group_offsets[b + 1] - group_offsets[b])
    for g in range(len(tile_offsets) - 1):
        most_tiles = max(most_tiles, tile_offsets[g + 1] - tile_offsets[g])
    # one of each for every group of a slot
    columns, shares = np.empty((most_groups, width), np.int64), np.empty((most_groups, width), np.int64)
    rows, row_shares = np.empty((most_groups, height), np.int64), np.empty((most_groups, height), np.int64)
    bands = np.zeros((most_groups, BAND_FIELDS), np.int64)
    runs = np.empty((most_groups, 2 * most_tiles + 1, RUN_FIELDS), np.int64)
    seams = np.empty((most_groups, width, SEAM_FIELDS), np.int64)
    blocks = np.empty((most_groups, padded // WIDTH + 2 * most_tiles + 1, BLOCK_FIELDS), np.int64)
    held = np.empty((most_groups, 2, 3, padded), np.int16)
    held_state = np.empty((most_groups, 2, 4), np.int64)
    # one of each for all
    edges, owners = np.empty(2 * most_tiles + 1, np.int64), np.empty(width, np.int64)
    line, steps = np.empty(LINE_FIELDS, np.float64), np.empty((2, WIDTH), np.int32)
    spans = np.empty((shape_offsets[-1], 2), np.int64)
    inside, toggles = np.empty(padded, np.int16), np.empty((2, width + 1), np.uint8)
    row, over = np.zeros((3, padded), np.int16), np.zeros((3, padded), np.int16)
    row_at, over_at, inside_at = address_of(row), address_of(over), address_of(inside)
    colour, reals = np.zeros(COLOUR_FIELDS, np.int64), np.zeros(REALS, np.float64)
    out_at, spare = np.empty(3, np.int64), np.empty(3 * WIDTH, np.uint8)
    spare_at = address_of(spare)
    fill, plain = np.full(1, FILL, np.uint8), np.empty((3, WIDTH), np.uint8)
    fill_at = address_of(fill)
    shape_rows(0, shape_offsets[-1], shape_rings, ring_points, points, spans)
    for b in range(batch):
        g0, g1 = group_offsets[b], group_offsets[b + 1]
        prepare_colour(gains[b], colour, reals)
        starts_whole = g0 < g1 and _covers(weight[g0], is_masked[g0], clip[g0], width, height)
        # what a column of FILL comes out as
        row[:, :WIDTH] = FILL * UNIT
        for channel in range(3):
            out_at[channel] = address_of(plain) + channel * WIDTH
        finish_row(row_at, row_nbytes, nothing, number(WIDTH), colour, reals, out_at, spare_at)
        for g in range(g0, g1):
            k = g - g0
            if is_upright(matrix[g]):
                place_samples(matrix[g, 0, 0], matrix[g, 0, 2], width, columns[k], shares[k], number(FULL_WEIGHT))
                place_samples(matrix[g, 1, 1], matrix[g, 1, 2], height, rows[k], row_shares[k], number(ROW_WEIGHT))
                bands[k, BAND_TOP] = bands[k, BAND_BOTTOM] = bands[k, BAND_SERIAL] = 0
                held_state[k, :, HELD_ROW] = NO_ROW
                held_state[k, :, HELD_BAND] = 0
        for y in range(height):
            left, right = nothing, width
            if not starts_whole:
                row[:] = 0
            for g in range(g0, g1):
                if y < clip[g, 1] or y >= clip[g, 3]:
                    continue
                first, last, k = tile_offsets[g], tile_offsets[g + 1], g - g0
                covers = _covers(weight[g], is_masked[g], clip[g], width, height)
                if not covers:
                    clip_row(clip[g, 0], min(clip[g, 2], width), inside)
                    if is_masked[g] and not mask_row(
                        y, shape_offsets[g], shape_offsets[g + 1], shape_rings, ring_points, points, spans, width, inside, toggles
                    ):
                        continue
                to_at = row_at if covers else over_at
                if not is_upright(matrix[g]):
                    warp_row(tiles, first, last, back[g], y, line, steps, owners, to_at, row_nbytes)
                else:
                    left, right = width, nothing
                    upper = lower = nothing
                    ahead = AHEAD if rows[k, 0] <= rows[k, height - 1] else -AHEAD
                    for below in range(2 if row_shares[k, y] > 0 else 1):
                        at = rows[k, y] + below
                        place = at & 1
                        memory = address_of(held) + (2 * k + place) * 3 * row_nbytes
                        state, band = held_state[k, place], bands[k]
                        if state[HELD_ROW] != at:
                            if at < band[BAND_TOP] or at >= band[BAND_BOTTOM]:
                                find_band(
                                    tiles, first, last, at, columns[k], shares[k], edges, band, runs[k], seams[k], blocks[k],
                                    fill_at,
                                )  # fmt: skip
                            resample_across(
                                band[BAND_RUNS], address_of(runs[k]), band[BAND_SEAMS], address_of(seams[k]),
                                address_of(blocks[k]), address_of(columns[k]), address_of(shares[k]), at, ahead,
                                state[HELD_BAND] != band[BAND_SERIAL], memory, row_nbytes, by_vector,
                            )  # fmt: skip
                            state[HELD_ROW], state[HELD_BAND] = at, band[BAND_SERIAL]
                            state[HELD_LEFT], state[HELD_RIGHT] = band[BAND_LEFT], band[BAND_RIGHT]
                        left, right = min(left, state[HELD_LEFT]), max(right, state[HELD_RIGHT])
                        upper = memory if below == 0 else upper
                        lower = memory
                    if g1 - g0 > 1 or not covers:
                        left, right = nothing, width
                    left, right = left // WIDTH * WIDTH, min((right + WIDTH - 1) // WIDTH * WIDTH, width)
                    mix_down(upper, lower, row_shares[k, y], row_nbytes, left, right, to_at)
                if not covers:
                    paint_row(over_at, row_at, row_nbytes, inside_at, int(np.rint(weight[g] * 32768)))
            for channel in range(3):
                plane = 3 * b + (2 - channel if bgr[b] else channel)
                out_at[channel] = address_of(out) + (plane * height + y) * width
                if left > 0 or right < width:
                    edge = left if left < right else width
                    fill_bytes(out_at[channel], edge, plain[channel, 0])
                    fill_bytes(out_at[channel] + max(right, edge), width - max(right, edge), plain[channel, 0])
            if left < right:
                finish_row(row_at, row_nbytes, left, right, colour, reals, out_at, spare_at)
    keep((columns, shares, runs, seams, blocks, held, inside, row, over, spare, fill, plain))


def _entry(sources: str) -> Any:
    def draw(
        out: Any, gains: Any, bgr: Any, group_offsets: Any, matrix: Any, back: Any, weight: Any, clip: Any, is_masked: Any,
        tile_offsets: Any, shape_offsets: Any, shape_rings: Any, ring_points: Any, points: Any, tiles: Any, by_vector: bool,
    ) -> None:  # fmt: skip
        sources  # noqa: B018  part of the closure, see ``compiled``
        _draw_batch(
            out, gains, bgr, group_offsets, matrix, back, weight, clip, is_masked, tile_offsets, shape_offsets, shape_rings,
            ring_points, points, tiles, by_vector,
        )  # fmt: skip

    def read(element: Any, ndim: int) -> Any:
        return types.Array(element, ndim, "C", readonly=True)  # takes a writable one as well

    i64, f64, f32, yes = types.int64, types.float64, types.float32, types.boolean
    signature = types.void(
        types.Array(types.uint8, 4, "C"), read(f32, 2), read(yes, 1), read(i64, 1), read(f64, 3), read(f64, 3), read(f32, 1),
        read(types.int32, 2), read(yes, 1), read(i64, 1), read(i64, 1), read(i64, 1), read(i64, 1), read(f32, 2),
        read(i64, 2), yes,
    )  # fmt: skip
    return entry(signature, draw)


draw_batch = _entry(digest_of_sources())
"""See ``_draw_batch``."""
