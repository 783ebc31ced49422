"""Draw a group whose matrix rotates, shears or has a perspective: each output row on its own.

A row is divided like a canvas row of an upright group: output columns whose four pixels lie in one tile go 16 at once, the others
one by one. Places are fixed-point with 16 bits behind the point, weights across are bytes that add up to 255 and weights down are
15 bits, as in ``axis``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.augment.recipe import FILL
from fastdata.render.kernels.axis import ROW_WEIGHT, UNIT
from fastdata.render.kernels.bands import (
    ADDRESS,
    FULL_WEIGHT,
    LEFT,
    PLANE,
    ROW,
    SEEN_BOTTOM,
    SEEN_LEFT,
    SEEN_RIGHT,
    SEEN_TOP,
    TOP,
    owner_at,
)
from fastdata.render.kernels.compiled import part
from fastdata.render.kernels.lanes import (
    WIDTH,
    add,
    all_i32,
    all_lanes,
    i32_add,
    i32_and,
    i32_max,
    i32_min,
    i32_mul,
    i32_shift_right,
    narrow,
    product_q15,
    ramp,
    sub,
    weighted_pairs,
)
from fastdata.render.kernels.memory import address_of, keep, load_i32, load_pairs, load_u8, store_i16, store_v16

MIXED, EMPTY = -2, -1
"""Owners of a column beside the tiles' numbers: pixels of several, no tile at all."""
FINE = 65_536
"""Steps of a place per pixel."""
FARTHEST = 1e8
"""No canvas is that large, and a place there still fits 64 bits in steps."""


# what a row of the output looks like on the canvas: column j lies at (U0 + j U1, V0 + j V1) / (D0 + j D1)
U0, U1, V0, V1, D0, D1 = range(6)
LINE_FIELDS = 6


@part
def _columns_from(a: float, b: float, width: int) -> Any:
    """Columns j of ``0..width`` with a + b * j >= 0, as first and last, half-open."""
    if b == 0:
        return (0, width) if a >= 0 else (0, 0)
    root = min(max(-a / b, -1.0), width + 1.0)
    if b > 0:
        return max(int(np.ceil(root)), 0), width
    return 0, min(int(np.floor(root)) + 1, width)


@part
def _columns_within(line: Any, x0: float, y0: float, x1: float, y1: float, width: int) -> Any:
    """Columns of ``0..width`` that lie in a rectangle and before the viewer, as first and last, half-open.

    Each side of the rectangle is a linear condition, with a perspective too: u / d >= x where u - x d >= 0. Behind the viewer,
    where d < 0, the conditions of two opposite sides exclude each other.
    """
    first, last = _columns_from(line[U0] - x0 * line[D0], line[U1] - x0 * line[D1], width)
    a, b = _columns_from(x1 * line[D0] - line[U0], x1 * line[D1] - line[U1], width)
    first, last = max(first, a), min(last, b)
    a, b = _columns_from(line[V0] - y0 * line[D0], line[V1] - y0 * line[D1], width)
    first, last = max(first, a), min(last, b)
    a, b = _columns_from(y1 * line[D0] - line[V0], y1 * line[D1] - line[V1], width)
    return max(first, a), min(last, b)


@part
def _mark_owners(tiles: Any, first: int, last: int, line: Any, owners: Any) -> None:
    """Say for each column which tile its four pixels lie in."""
    width = len(owners)
    owners[:] = EMPTY
    for t in range(first, last):
        x0, x1 = tiles[t, SEEN_LEFT], tiles[t, SEEN_RIGHT]
        y0, y1 = tiles[t, SEEN_TOP], tiles[t, SEEN_BOTTOM]
        if x0 >= x1 or y0 >= y1:
            continue
        # touched at all: one column more on both sides, because a mixed column is never wrong
        a, b = _columns_within(line, x0 - 0.5, y0 - 0.5, x1 + 0.5, y1 + 0.5, width)
        a, b = max(a - 1, 0), min(b + 1, width)
        if a < b:
            owners[a:b] = MIXED
        is_small = x1 - x0 < 32_000 and y1 - y0 < 32_000 and tiles[t, ROW] * (y1 - y0) < 1 << 31
        if x1 - x0 < 2 or y1 - y0 < 2 or not is_small:
            continue
        a, b = _columns_within(line, x0 + 0.5, y0 + 0.5, x1 - 0.5, y1 - 0.5, width)
        if a < b:
            owners[a:b] = t


@part
def _place(line: Any, j: int) -> Any:
    """Where column ``j`` lies, counted from the centre of the canvas's first pixel; far away if it lies nowhere."""
    depth = line[D0] + j * line[D1]
    if depth <= 0:
        return -FARTHEST, -FARTHEST
    u, v = (line[U0] + j * line[U1]) / depth - 0.5, (line[V0] + j * line[V1]) / depth - 0.5
    return min(max(u, -FARTHEST), FARTHEST), min(max(v, -FARTHEST), FARTHEST)


@part
def _draw_block(tiles: Any, t: int, line: Any, j: int, steps: Any, to_at: int, row_nbytes: int) -> None:
    """Draw 16 columns from ``j`` on, whose pixels lie in tile ``t``.

    Args:
        steps: (2, 16) room for numbers of 32 bits.
    """
    width, height = tiles[t, SEEN_RIGHT] - tiles[t, SEEN_LEFT], tiles[t, SEEN_BOTTOM] - tiles[t, SEEN_TOP]
    row, plane = tiles[t, ROW], tiles[t, PLANE]
    # A place may round to just outside of the tile; memory outside is never read.
    left, top = tiles[t, SEEN_LEFT], tiles[t, SEEN_TOP]
    if line[D1] == 0:
        u, v = line[U0] + j * line[U1] - 0.5, line[V0] + j * line[V1] - 0.5  # D0 is 1
        x = i32_add(all_i32(int(np.floor((u - left) * FINE))), ramp(int(np.rint(line[U1] * FINE))))
        y = i32_add(all_i32(int(np.floor((v - top) * FINE))), ramp(int(np.rint(line[V1] * FINE))))
    else:
        for i in range(WIDTH):
            u, v = _place(line, j + i)
            steps[0, i], steps[1, i] = int(np.floor((u - left) * FINE)), int(np.floor((v - top) * FINE))
        x, y = load_i32(address_of(steps)), load_i32(address_of(steps) + 4 * WIDTH)
    x = i32_min(i32_max(x, all_i32(0)), all_i32((width - 1) * FINE - 1))
    y = i32_min(i32_max(y, all_i32(0)), all_i32((height - 1) * FINE - 1))
    fraction, half = all_i32(FINE - 1), all_i32(FINE // 2)
    across = i32_shift_right(i32_add(i32_mul(i32_and(x, fraction), all_i32(FULL_WEIGHT)), half), 16)
    down = narrow(i32_shift_right(i32_add(i32_mul(i32_and(y, fraction), all_i32(ROW_WEIGHT)), half), 16))
    # low byte 255 - across, high byte across: 255 + 255 * across
    weights = narrow(i32_add(i32_mul(across, all_i32(255)), all_i32(FULL_WEIGHT)))
    places = i32_add(i32_mul(i32_shift_right(y, 16), all_i32(row)), i32_shift_right(x, 16))
    up, middle = sub(all_lanes(ROW_WEIGHT), down), all_lanes(128 * UNIT)
    source = tiles[t, ADDRESS] + (tiles[t, SEEN_TOP] - tiles[t, TOP]) * row + tiles[t, SEEN_LEFT] - tiles[t, LEFT]
    for channel in range(3):
        line = source + channel * plane
        upper = product_q15(weighted_pairs(load_pairs(line, places), weights), up)
        lower = product_q15(weighted_pairs(load_pairs(line + row, places), weights), down)
        store_v16(to_at + channel * row_nbytes, add(add(upper, lower), middle))


@part
def _pixel(tiles: Any, t: int, x: int, y: int, channel: int) -> int:
    if t < 0:
        return FILL
    at = tiles[t, ADDRESS] + channel * tiles[t, PLANE] + (y - tiles[t, TOP]) * tiles[t, ROW]
    value: int = load_u8(at, x - tiles[t, LEFT])
    return value


@part
def _product(a: int, b: int) -> int:
    return (a * b + (1 << 14)) >> 15


@part
def _draw_column(tiles: Any, first: int, last: int, u: float, v: float, to_at: int, row_nbytes: int, j: int) -> None:
    """Draw one column at (u, v), whatever its pixels are."""
    x, y = int(np.floor(u)), int(np.floor(v))
    across = (int((u - x) * FINE) * FULL_WEIGHT + FINE // 2) >> 16
    down = (int((v - y) * FINE) * ROW_WEIGHT + FINE // 2) >> 16
    a = b = c = d = EMPTY
    for t in range(last - 1, first - 1, -1):
        x0, x1 = tiles[t, SEEN_LEFT], tiles[t, SEEN_RIGHT]
        y0, y1 = tiles[t, SEEN_TOP], tiles[t, SEEN_BOTTOM]
        if x0 >= x1 or y0 >= y1 or x + 1 < x0 or x >= x1 or y + 1 < y0 or y >= y1:
            continue
        if x0 <= x and x + 1 < x1 and y0 <= y and y + 1 < y1:
            a = b = c = d = t
        else:
            a, b = owner_at(tiles, first, last, x, y), owner_at(tiles, first, last, x + 1, y)
            c, d = owner_at(tiles, first, last, x, y + 1), owner_at(tiles, first, last, x + 1, y + 1)
        break
    for channel in range(3):
        p, q = _pixel(tiles, a, x, y, channel), _pixel(tiles, b, x + 1, y, channel)
        upper = (p - 128) * FULL_WEIGHT + (q - p) * across
        p, q = _pixel(tiles, c, x, y + 1, channel), _pixel(tiles, d, x + 1, y + 1, channel)
        lower = (p - 128) * FULL_WEIGHT + (q - p) * across
        value = _product(upper, ROW_WEIGHT - down) + _product(lower, down) + 128 * UNIT
        store_i16(to_at + channel * row_nbytes, j, value)


@part
def warp_row(
    tiles: Any, first: int, last: int, back: Any, y: int, line: Any, steps: Any, owners: Any, to_at: int, row_nbytes: int
) -> None:  # fmt: skip
    """Draw row ``y`` of a group.

    Args:
        tiles: Of all groups; those of this one are ``first:last``.
        back: (3, 3) output to canvas.
        line: Room for LINE_FIELDS floats.
        steps: (2, 16) room for numbers of 32 bits.
        owners: (W,) room for whole numbers.
        to_at: Where to: 128 steps a level; its three channels are ``row_nbytes`` apart.
    """
    width = len(owners)
    for i in range(3):
        line[2 * i] = back[i, 0] * 0.5 + back[i, 1] * (y + 0.5) + back[i, 2]
        line[2 * i + 1] = back[i, 0]
    if line[D1] == 0 and line[D0] > 0:
        for i in range(4):
            line[i] /= line[D0]
        line[D0] = 1
    _mark_owners(tiles, first, last, line, owners)
    j = 0
    while j < width:
        owner = owners[j]
        end = j + 1
        while end < width and owners[end] == owner:
            end += 1
        if owner == EMPTY:
            for channel in range(3):
                for k in range(j, end):
                    store_i16(to_at + channel * row_nbytes, k, FILL * UNIT)
        elif owner == MIXED or end - j < WIDTH:
            for k in range(j, end):
                u, v = _place(line, k)
                _draw_column(tiles, first, last, u, v, to_at, row_nbytes, k)
        else:
            for block in range(j, end, WIDTH):
                k = min(block, end - WIDTH)
                _draw_block(tiles, owner, line, k, steps, to_at + 2 * k, row_nbytes)
        j = end
    keep(steps)
