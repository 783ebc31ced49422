"""Draw a group whose matrix neither rotates nor shears: each canvas row once across, then two of them into an output row.

A canvas row, resampled to the output's columns, is 16-bit ``(p - 128) * 255``: the weights of two neighbours are bytes that add
up to 255, and a pixel less 128 times such a weight fits 16 bits with its sign, so that one instruction sums 16 pairs of 8-bit
pixels. An output row is 16-bit as well, 128 units per level of a pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.augment.recipe import FILL
from fastdata.render.kernels.bands import (
    BLOCK_COLUMN,
    BLOCK_FIELDS,
    BLOCK_HIGH,
    BLOCK_LOW,
    BLOCK_PLACES,
    BLOCK_WEIGHTS,
    FULL_WEIGHT,
    RUN_BLOCK,
    RUN_BLOCKS,
    RUN_FIELDS,
    RUN_FIRST,
    RUN_LAST,
    RUN_PLANE,
    RUN_ROW,
    RUN_SOURCE,
    SEAM_COLUMN,
    SEAM_FIELDS,
    SEAM_HIGH,
    SEAM_HIGH_PLANE,
    SEAM_HIGH_ROW,
    SEAM_LOW,
    SEAM_LOW_PLANE,
    SEAM_LOW_ROW,
    SEAM_SHARE,
)
from fastdata.render.kernels.compiled import part
from fastdata.render.kernels.lanes import HAS_PAIR_SUMS, WIDTH, add, all_lanes, pair_sums, product_q15
from fastdata.render.kernels.memory import (
    load_bytes32,
    load_i64,
    load_two_halves,
    load_u8,
    load_v16,
    prefetch,
    store_i16,
    store_v16,
)

UNIT = 128
"""Steps of an output row's numbers per level of a pixel."""
ROW_WEIGHT = 16_448
"""Sum of the two weights down, in 1/32768: 128 / 255, which turns 255 into 128 steps a level (4e-6 of it are lost)."""
FILL_ACROSS = (FILL - 128) * FULL_WEIGHT
AHEAD = 4
"""Canvas rows by which pixels are asked for before they are needed: without, a store larger than the caches costs a third."""


@part
def place_samples(scale: float, shift: float, count: int, first: Any, weight: Any, full: int) -> None:
    """Say which two canvas pixels each output pixel lies between, along one axis.

    Args:
        scale: Output pixels per canvas pixel; negative for a mirrored picture.
        shift: Where canvas 0 lies in the output.
        count: Output pixels.
        first: (count,) the lower of the two pixels, on return.
        weight: (count,) share of the upper one in 1/full, on return.
        full: What stands for 1.
    """
    for i in range(count):
        at = (i + 0.5 - shift) / scale - 0.5
        at = min(max(at, -1e8), 1e8)
        low = np.floor(at)
        share = int(np.rint((at - low) * full))
        if share == full:  # the upper pixel alone: as the lower one it needs no neighbour
            low += 1
            share = 0
        first[i] = int(low)
        weight[i] = share


@part
def _mean(low: int, high: int, share: int) -> int:
    return (low - 128) * FULL_WEIGHT + (high - low) * share


@part
def resample_across(
    n_runs: int, runs_at: int, n_seams: int, seams_at: int, blocks_at: int, columns_at: int, shares_at: int, y: int,
    ahead: int, fill: bool, row_at: int, row_nbytes: int, by_vector: bool,
) -> None:  # fmt: skip
    """Resample canvas row ``y``, which lies in the band, to the output's columns.

    Tables come as addresses: this is called for every row, and an array is eight arguments.

    Args:
        ahead: Rows from here to that whose pixels are asked for already.
        fill: Whether FILL has to be written, too: it has not where the row's memory held another row of the same band.
        row_at: Address of the row; its three channels are ``row_nbytes`` apart.
        by_vector: Whether to take 16 columns at once where that goes; the numbers are the same.
    """
    for r in range(n_runs):
        run = runs_at + 8 * RUN_FIELDS * r
        source, plane, row = load_i64(run, RUN_SOURCE), load_i64(run, RUN_PLANE), load_i64(run, RUN_ROW)
        blocks = load_i64(run, RUN_BLOCKS)
        if HAS_PAIR_SUMS and by_vector and blocks > 0:
            first_block = blocks_at + 8 * BLOCK_FIELDS * load_i64(run, RUN_BLOCK)
            _resample_blocks(first_block, blocks, source + y * row, plane, ahead * row, row_at, row_nbytes)
        elif source or fill:
            for channel in range(3):
                line = source + y * row + channel * plane
                for j in range(load_i64(run, RUN_FIRST), load_i64(run, RUN_LAST)):
                    value = FILL_ACROSS
                    if source:
                        x = load_i64(columns_at, j)
                        value = _mean(load_u8(line, x), load_u8(line, x + 1), load_i64(shares_at, j))
                    store_i16(row_at + channel * row_nbytes, j, value)
    for s in range(n_seams):
        seam = seams_at + 8 * SEAM_FIELDS * s
        low = load_i64(seam, SEAM_LOW) + y * load_i64(seam, SEAM_LOW_ROW)
        high = load_i64(seam, SEAM_HIGH) + y * load_i64(seam, SEAM_HIGH_ROW)
        low_plane, high_plane = load_i64(seam, SEAM_LOW_PLANE), load_i64(seam, SEAM_HIGH_PLANE)
        for channel in range(3):
            value = _mean(load_u8(low, channel * low_plane), load_u8(high, channel * high_plane), load_i64(seam, SEAM_SHARE))
            store_i16(row_at + channel * row_nbytes, load_i64(seam, SEAM_COLUMN), value)


def _by_vector(first_block: int, count: int, source: int, plane: int, ahead: int, row_at: int, row_nbytes: int) -> None:
    for k in range(count):
        block = first_block + k * 8 * BLOCK_FIELDS
        low, high = source + load_i64(block, BLOCK_LOW), source + load_i64(block, BLOCK_HIGH)
        places, weights = load_bytes32(block + 8 * BLOCK_PLACES), load_bytes32(block + 8 * BLOCK_WEIGHTS)
        to = row_at + 2 * load_i64(block, BLOCK_COLUMN)
        prefetch(low + ahead)
        prefetch(low + plane + ahead)
        prefetch(low + 2 * plane + ahead)
        store_v16(to, pair_sums(load_two_halves(low, high), places, weights))
        store_v16(to + row_nbytes, pair_sums(load_two_halves(low + plane, high + plane), places, weights))
        twice = 2 * plane
        store_v16(to + 2 * row_nbytes, pair_sums(load_two_halves(low + twice, high + twice), places, weights))


def _never(first_block: int, count: int, source: int, plane: int, ahead: int, row_at: int, row_nbytes: int) -> None:
    pass


_resample_blocks = part(_by_vector if HAS_PAIR_SUMS else _never)


@part
def mix_down(upper_at: int, lower_at: int, share: int, row_nbytes: int, left: int, right: int, out_at: int) -> None:
    """Mix two resampled canvas rows into an output row.

    Args:
        upper_at: Address of the row; its three channels are ``row_nbytes`` apart, as those of the others are.
        lower_at: Likewise.
        share: Of the lower row, in 1/32768 of ROW_WEIGHT.
        left: Column from which to mix, a multiple of 16.
        right: Column up to which.
        out_at: Where to: 128 steps a level.
    """
    a, b, middle = all_lanes(ROW_WEIGHT - share), all_lanes(share), all_lanes(128 * UNIT)
    for channel in range(3):
        at = channel * row_nbytes
        for j in range(2 * left, 2 * right, 2 * WIDTH):
            upper = product_q15(load_v16(upper_at + at + j), a)
            lower = product_q15(load_v16(lower_at + at + j), b)
            store_v16(out_at + at + j, add(add(upper, lower), middle))
