"""Who owns which pixels of a canvas row, and what that makes of the output's columns.

The tiles divide a canvas row into **runs** of output columns whose two pixels lie in one tile, or in none (FILL); the few columns
between two runs are **seams** and look each pixel up. Runs change only where a tile begins or ends: a **band** of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.render.kernels.compiled import part
from fastdata.render.kernels.lanes import WIDTH, number

FULL_WEIGHT = 255
"""Sum of the two weights across."""
NOBODY = -1
"""Owner of a pixel without a tile."""

# columns of a table of tiles, one row a tile
ADDRESS, PLANE, ROW, LEFT, TOP, RIGHT, BOTTOM, SEEN_LEFT, SEEN_TOP, SEEN_RIGHT, SEEN_BOTTOM = range(11)
"""Address of its first pixel, bytes from plane to plane and row to row; the tile and its visible part on the canvas."""
TILE_FIELDS = 11

# fields of a band
BAND_TOP, BAND_BOTTOM, BAND_SERIAL, BAND_RUNS, BAND_SEAMS, BAND_LEFT, BAND_RIGHT = range(7)
"""Canvas rows; how many bands came before; counts; output columns outside of which all is FILL."""
BAND_FIELDS = 7

# fields of a run
RUN_SOURCE, RUN_PLANE, RUN_ROW, RUN_FIRST, RUN_LAST, RUN_BLOCK, RUN_BLOCKS = range(7)
"""Address at which canvas pixel (0, 0) would lie in the tile's memory (0: no tile), and its strides; output columns, half-open;
its first block of 16 columns and how many (0: pixel by pixel)."""
RUN_FIELDS = 7

# fields of a seam
SEAM_COLUMN, SEAM_SHARE, SEAM_LOW, SEAM_LOW_PLANE, SEAM_LOW_ROW, SEAM_HIGH, SEAM_HIGH_PLANE, SEAM_HIGH_ROW = range(8)
"""Output column, share of the second pixel, and for each of the two pixels its address in canvas row 0 and its strides."""
SEAM_FIELDS = 8

# fields of a block
BLOCK_COLUMN, BLOCK_LOW, BLOCK_HIGH, BLOCK_PLACES, BLOCK_WEIGHTS = 0, 1, 2, 3, 7
"""Output column; canvas columns from which 16 bytes are taken for its first and last 8; 32 places and 32 weights."""
BLOCK_FIELDS = 11


@part
def _first_at_least(places: Any, value: int) -> int:
    """Number of the first of ascending ``places`` that is at least ``value``; of descending ones, of the first below it."""
    low, high = 0, len(places)
    rising = places[0] <= places[high - 1]
    while low < high:
        middle = (low + high) >> 1
        before = places[middle] < value if rising else places[middle] >= value
        if before:
            low = middle + 1
        else:
            high = middle
    return low


@part
def owner_at(tiles: Any, first: int, last: int, x: int, y: int) -> int:
    """Tile that a canvas pixel shows."""
    for t in range(last - 1, first - 1, -1):
        if tiles[t, SEEN_LEFT] <= x and x < tiles[t, SEEN_RIGHT] and tiles[t, SEEN_TOP] <= y and y < tiles[t, SEEN_BOTTOM]:
            return t
    return NOBODY


@part
def _make_blocks(tiles: Any, t: int, ja: int, jb: int, columns: Any, shares: Any, blocks: Any, first_block: int) -> int:
    """Lay out a run in blocks of 16 columns, the last of which overlaps; 0 if 16 bytes do not reach over half a block."""
    if jb - ja < WIDTH or tiles[t, RIGHT] - tiles[t, LEFT] < 16:
        return 0
    count = (jb - ja + WIDTH - 1) // WIDTH
    for k in range(count):
        j0 = min(ja + k * WIDTH, jb - WIDTH)
        row = first_block + k
        blocks[row, BLOCK_COLUMN] = j0
        packed = blocks[row, BLOCK_PLACES:].view(np.uint8)
        for half in range(2):
            j = j0 + 8 * half
            base = min(columns[j], columns[j + 7])
            base = min(base, tiles[t, RIGHT] - 16)  # 16 bytes from the base end within the row
            blocks[row, BLOCK_LOW + half] = base
            for i in range(8):
                off = columns[j + i] - base
                if off > 14:
                    return 0
                at = 16 * half + 2 * i
                packed[at] = off
                packed[at + 1] = off + 1
                packed[32 + at] = FULL_WEIGHT - shares[j + i]
                packed[33 + at] = shares[j + i]
    return count


@part
def _set_side(seam: Any, field: int, tiles: Any, t: int, column: int, fill_at: int) -> None:
    seam[field] = fill_at if t == NOBODY else _source(tiles, t) + column
    seam[field + 1] = 0 if t == NOBODY else tiles[t, PLANE]
    seam[field + 2] = 0 if t == NOBODY else tiles[t, ROW]


@part
def _source(tiles: Any, t: int) -> int:
    source: int = tiles[t, ADDRESS] - tiles[t, TOP] * tiles[t, ROW] - tiles[t, LEFT]
    return source


@part
def find_band(
    tiles: Any, first: int, last: int, y: int, columns: Any, shares: Any, edges: Any, band: Any, runs: Any, seams: Any,
    blocks: Any, fill_at: int,
) -> None:  # fmt: skip
    """Divide canvas row ``y`` into runs and seams, and say for which rows that holds.

    Args:
        tiles: Of all groups; those of this one are ``first:last``.
        columns: From :func:`place_samples`, with ``shares``.
        edges: Room for 2 (last - first) + 1 numbers.
        fill_at: Address of a byte FILL.
    """
    width = len(columns)
    top, bottom = -(1 << 40), 1 << 40
    n_edges = 0
    for t in range(first, last):
        if tiles[t, SEEN_LEFT] >= tiles[t, SEEN_RIGHT] or tiles[t, SEEN_TOP] >= tiles[t, SEEN_BOTTOM]:
            continue
        for edge in (tiles[t, SEEN_TOP], tiles[t, SEEN_BOTTOM]):
            if edge <= y:
                top = max(top, edge)
            else:
                bottom = min(bottom, edge)
        if tiles[t, SEEN_TOP] <= y and y < tiles[t, SEEN_BOTTOM]:
            for edge in (tiles[t, SEEN_LEFT], tiles[t, SEEN_RIGHT]):
                k = n_edges
                while k > 0 and edges[k - 1] > edge:
                    edges[k] = edges[k - 1]
                    k -= 1
                edges[k] = edge
                n_edges += 1
    n_runs = n_seams = n_blocks = number(0)
    left, right = width, 0
    edges[n_edges] = 1 << 40
    lower = number(-(1 << 40))
    owner = number(NOBODY)
    rising = columns[0] <= columns[width - 1]
    for k in range(n_edges + 1):
        upper = edges[k]
        following = owner_at(tiles, first, last, upper, y) if k < n_edges else -2
        if following == owner:  # a hidden edge, or one that is there twice
            continue
        # columns whose two pixels lie in lower .. upper - 1
        if rising:
            ja, jb = _first_at_least(columns, lower), _first_at_least(columns, upper - 1)
        else:
            ja, jb = _first_at_least(columns, upper - 1), _first_at_least(columns, lower)
        if ja < jb:
            run = runs[n_runs]
            run[RUN_SOURCE] = run[RUN_BLOCKS] = 0
            run[RUN_FIRST], run[RUN_LAST], run[RUN_BLOCK] = ja, jb, n_blocks
            if owner != NOBODY:
                run[RUN_SOURCE], run[RUN_PLANE], run[RUN_ROW] = _source(tiles, owner), tiles[owner, PLANE], tiles[owner, ROW]
                run[RUN_BLOCKS] = _make_blocks(tiles, owner, ja, jb, columns, shares, blocks, n_blocks)
                left, right = min(left, ja), max(right, jb)
            n_blocks += run[RUN_BLOCKS]
            n_runs += 1
        lower, owner = upper, following
    # what lies between the runs, and before and behind them
    at = 0
    for k in range(n_runs + 1):
        r = k if rising else n_runs - 1 - k
        until = runs[r, RUN_FIRST] if k < n_runs else width
        for j in range(at, until):
            seam = seams[n_seams]
            seam[SEAM_COLUMN], seam[SEAM_SHARE] = j, shares[j]
            x = columns[j]
            _set_side(seam, SEAM_LOW, tiles, owner_at(tiles, first, last, x, y), x, fill_at)
            _set_side(seam, SEAM_HIGH, tiles, owner_at(tiles, first, last, x + 1, y), x + 1, fill_at)
            left, right = min(left, j), max(right, j + 1)
            n_seams += 1
        if k < n_runs:
            at = runs[r, RUN_LAST]
    band[BAND_TOP], band[BAND_BOTTOM] = top, bottom
    band[BAND_SERIAL] += 1
    band[BAND_RUNS], band[BAND_SEAMS] = n_runs, n_seams
    band[BAND_LEFT], band[BAND_RIGHT] = left, right
