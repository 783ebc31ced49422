"""The GPU's kernels that fill outlines: ``fastdata.masks.rings_to_mask`` in Triton, bit for bit.

An outline is units, each some rings that are filled even-odd; an object is the union of its units. A program fills one tile of
pixels. A row of a tile is one word of 64 bits: an edge that crosses the line through the row's centres flips the bits of all
columns from the crossing on, and the exclusive or of a unit's edges is the unit. So an edge costs a row one division and one
shift, however wide the tile is.

Crossings are float64, in the order of operations of the other renderers, so that no pixel differs from theirs: a kernel here must
be launched with ``enable_fp_fusion=False``, or the compiler joins a product and a sum into one instruction that rounds once.
There are so few crossings that this costs little even where float64 is slow.

All that travels is one buffer, ``tables``; what a kernel calls ``points``, ``point_offsets``, ``ring_offsets``, ``unit_offsets``
and ``scale`` (x, y: pixels of the mask per pixel of the output, float64) is the byte at which that table begins. The offsets are
those of ``render.masks.Outlines`` as int32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 8
"""Rows of a tile: few enough that a program takes half of the registers that it may, and others run while it waits for memory."""
COLUMNS = 64
"""Columns of a tile: bits of a word."""
EDGES = 32
"""Edges that are crossed with all rows of a tile at once, one for each thread of a program's only warp."""
PIXELS = 1024
"""Pixels of a program of :func:`paint_classes`."""

FAR = tl.constexpr(1048576.0)
"""No picture is that large: extents beyond are as good as there, and fit an integer."""


@triton.jit
def _ints(tables, start):
    """Return the table of int32 that begins ``start`` bytes after the first of all tables."""
    return (tables + start).to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def _floats(tables, start):
    return (tables + start).to(tl.pointer_type(tl.float32), bitcast=True)


@triton.jit
def _doubles(tables, start):
    return (tables + start).to(tl.pointer_type(tl.float64), bitcast=True)


@triton.jit
def _exclusive_or(words, ROWS: tl.constexpr, EDGES: tl.constexpr):
    """Join the words of each row: halves with halves, since the interpreter takes milliseconds for any other reduction."""
    length: tl.constexpr = EDGES // 2
    left, right = tl.split(tl.reshape(words, [ROWS, length, 2]))
    if length == 1:
        return tl.reshape(left ^ right, [ROWS])
    else:
        return _exclusive_or(left ^ right, ROWS, length)


@triton.jit
def _ring(
    words, points, begin, end, scale_x, scale_y, y_first, x_first,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Flip what lies right of each edge of a ring: (ROWS, EDGES) words, one for each row and place in a chunk of edges."""
    line = (y_first + tl.arange(0, ROWS)).to(tl.float64)[:, None]
    for first in range(begin, end, EDGES):
        p = first + tl.arange(0, EDGES)
        is_edge = p < end
        q = tl.where(p + 1 < end, p + 1, begin)
        ax = tl.load(points + 2 * p, mask=is_edge, other=0).to(tl.float64) * scale_x
        ay = tl.load(points + 2 * p + 1, mask=is_edge, other=0).to(tl.float64) * scale_y
        bx = tl.load(points + 2 * q, mask=is_edge, other=0).to(tl.float64) * scale_x
        by = tl.load(points + 2 * q + 1, mask=is_edge, other=0).to(tl.float64) * scale_y
        # It crosses rows ceil(top) to ceil(bottom), half-open.
        top, bottom = tl.minimum(ay, by) - 0.5, tl.maximum(ay, by) - 0.5
        matters = is_edge & (top < y_first + ROWS) & (bottom > y_first) & (tl.minimum(ax, bx) < x_first + COLUMNS)
        if tl.max(matters.to(tl.int32), axis=0) > 0:
            is_crossed = matters[None, :] & (top[None, :] <= line) & (line < bottom[None, :])
            share = (line + 0.5 - ay[None, :]) / tl.where(is_crossed, (by - ay)[None, :], 1.0)
            column = tl.ceil(ax[None, :] + share * (bx - ax)[None, :] - 0.5) - x_first
            bit = tl.minimum(tl.maximum(column, 0.0), COLUMNS * 1.0).to(tl.int64)
            from_there = tl.full([1, 1], -1, tl.int64) << tl.minimum(bit, COLUMNS - 1)
            words ^= tl.where(is_crossed & (bit < COLUMNS), from_there, 0)
    return words


@triton.jit
def _object(
    tables, points, point_offsets, ring_offsets, unit_offsets, scale, k, y_first, x_first,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Return the word of each row from ``y_first`` on: bit c says whether column ``x_first + c`` lies in object ``k``."""
    points, scale = _floats(tables, points), _doubles(tables, scale)
    point_offsets, ring_offsets = _ints(tables, point_offsets), _ints(tables, ring_offsets)
    unit_offsets = _ints(tables, unit_offsets)
    scale_x, scale_y = tl.load(scale), tl.load(scale + 1)
    union = tl.zeros([ROWS], tl.int64)
    for unit in range(tl.load(unit_offsets + k), tl.load(unit_offsets + k + 1)):
        words = tl.zeros([ROWS, EDGES], tl.int64)
        for ring in range(tl.load(ring_offsets + unit), tl.load(ring_offsets + unit + 1)):
            begin, end = tl.load(point_offsets + ring), tl.load(point_offsets + ring + 1)
            if end - begin >= 3:
                words = _ring(words, points, begin, end, scale_x, scale_y, y_first, x_first, ROWS, COLUMNS, EDGES)
        union |= _exclusive_or(words, ROWS, EDGES)
    return union


@triton.jit
def _meets(extents, k, x_first, y_first, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Tell whether object ``k`` may reach into a tile."""
    x0, y0 = tl.load(extents + 4 * k), tl.load(extents + 4 * k + 1)
    x1, y1 = tl.load(extents + 4 * k + 2), tl.load(extents + 4 * k + 3)
    return (x0 < x_first + COLUMNS) & (x1 > x_first) & (y0 < y_first + ROWS) & (y1 > y_first)


@triton.jit
def _is_in(union, COLUMNS: tl.constexpr):
    """Return the bits of each word, (rows, COLUMNS)."""
    return ((union[:, None] >> tl.arange(0, COLUMNS).to(tl.int64)[None, :]) & 1) != 0


@triton.jit
def measure_extents(extents, tables, points, point_offsets, ring_offsets, unit_offsets, scale, EDGES: tl.constexpr):
    """Write which pixels each object may reach, x0 y0 x1 y1, half-open, and not sharp: one program for each object."""
    k = tl.program_id(0)
    points, scale = _floats(tables, points), _doubles(tables, scale)
    point_offsets, ring_offsets = _ints(tables, point_offsets), _ints(tables, ring_offsets)
    unit_offsets = _ints(tables, unit_offsets)
    begin = tl.load(point_offsets + tl.load(ring_offsets + tl.load(unit_offsets + k)))
    end = tl.load(point_offsets + tl.load(ring_offsets + tl.load(unit_offsets + k + 1)))
    x_low, y_low = tl.full([EDGES], FAR, tl.float32), tl.full([EDGES], FAR, tl.float32)
    x_high, y_high = tl.full([EDGES], -FAR, tl.float32), tl.full([EDGES], -FAR, tl.float32)
    scale_x, scale_y = tl.load(scale).to(tl.float32), tl.load(scale + 1).to(tl.float32)
    for first in range(begin, end, EDGES):
        p = tl.minimum(first + tl.arange(0, EDGES), end - 1)
        x, y = tl.load(points + 2 * p) * scale_x, tl.load(points + 2 * p + 1) * scale_y
        x_low, y_low = tl.minimum(x_low, x), tl.minimum(y_low, y)
        x_high, y_high = tl.maximum(x_high, x), tl.maximum(y_high, y)
    # A pixel more on each side: these sums are float32.
    row = extents + 4 * k
    tl.store(row, (tl.maximum(tl.floor(tl.min(x_low, axis=0)), -FAR) - 1).to(tl.int32))
    tl.store(row + 1, (tl.maximum(tl.floor(tl.min(y_low, axis=0)), -FAR) - 1).to(tl.int32))
    tl.store(row + 2, (tl.minimum(tl.ceil(tl.max(x_high, axis=0)), FAR) + 1).to(tl.int32))
    tl.store(row + 3, (tl.minimum(tl.ceil(tl.max(y_high, axis=0)), FAR) + 1).to(tl.int32))


@triton.jit
def fill_slots(
    masks, extents, tables, points, point_offsets, ring_offsets, unit_offsets, scale, slot_offsets, order, height, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Fill the objects of each slot over each other, numbered from 1 in the given order: one program for each tile of a slot."""
    slot = tl.program_id(0)
    x_first, y_first = tl.program_id(2) * COLUMNS, tl.program_id(1) * ROWS
    row, x = y_first + tl.arange(0, ROWS), x_first + tl.arange(0, COLUMNS)
    value = tl.zeros([ROWS, COLUMNS], tl.int32)
    first = tl.load(_ints(tables, slot_offsets) + slot)
    for i in range(first, tl.load(_ints(tables, slot_offsets) + slot + 1)):
        k = tl.load(_ints(tables, order) + i)
        if _meets(extents, k, x_first, y_first, ROWS, COLUMNS):
            union = _object(
                tables, points, point_offsets, ring_offsets, unit_offsets, scale, k, y_first, x_first, ROWS, COLUMNS, EDGES
            )
            value = tl.where(_is_in(union, COLUMNS), i - first + 1, value)
    masks += slot.to(tl.int64) * height * width
    is_pixel = (row < height)[:, None] & (x < width)[None, :]
    tl.store(masks + (row[:, None] * width + x[None, :]), value.to(masks.dtype.element_ty), mask=is_pixel)


@triton.jit
def fill_each(
    masks, extents, tables, points, point_offsets, ring_offsets, unit_offsets, scale, chosen, height, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Fill each of the chosen objects into a mask of its own, 0 and 1: one program for each tile of a mask."""
    k = tl.load(_ints(tables, chosen) + tl.program_id(0))
    x_first, y_first = tl.program_id(2) * COLUMNS, tl.program_id(1) * ROWS
    row, x = y_first + tl.arange(0, ROWS), x_first + tl.arange(0, COLUMNS)
    union = tl.zeros([ROWS], tl.int64)
    if _meets(extents, k, x_first, y_first, ROWS, COLUMNS):
        union = _object(
            tables, points, point_offsets, ring_offsets, unit_offsets, scale, k, y_first, x_first, ROWS, COLUMNS, EDGES
        )
    masks += tl.program_id(0).to(tl.int64) * height * width
    is_pixel = (row < height)[:, None] & (x < width)[None, :]
    tl.store(masks + (row[:, None] * width + x[None, :]), _is_in(union, COLUMNS).to(tl.uint8), mask=is_pixel)


@triton.jit
def paint_classes(out, masks, tables, classes, slot_offsets, pixels, PIXELS: tl.constexpr):
    """Write the class of the object that has each pixel, 0 where none has: one program for each PIXELS of a slot.

    Args:
        classes: Of the objects by slot, then by number.
        pixels: Of a slot.
    """
    slot = tl.program_id(0)
    first = tl.load(_ints(tables, slot_offsets) + slot)
    classes = _floats(tables, classes)
    at = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    is_pixel = at < pixels
    start = slot.to(tl.int64) * pixels
    number = tl.load(masks + start + at, mask=is_pixel, other=0).to(tl.int32)
    tl.store(out + start + at, tl.load(classes + (first + number - 1), mask=number > 0, other=0.0), mask=is_pixel)
