"""The GPU's kernels that draw: ``fastdata.augment.recipe``'s docstring in Triton.

Three kernels, one after another on one stream, each for what it is fast at:

* :func:`draw_upright` for slots of one group that nothing turns, shears or masks, which is what the trainers' default policy
  makes: every tile is a rectangle of the output, columns of the output are columns of the picture, so all about a column is known
  before the first row is drawn. Pixels whose four neighbours are in one tile, and the gray around.
* :func:`draw_borders` for the lines between the tiles of those slots, one or two pixels wide, whose neighbours are in several.
* :func:`draw_turned` for all other slots.

All three sample with :func:`_sample` or do the same sums, and colour with :func:`_coloured`. Places are float32: half a thousandth
of a pixel off for a canvas of 1,280 px, so 0.1 level where neighbours differ by 255.

Pixels are read at their address, in GPU memory or in page-locked host memory alike. Nothing is read that no weight is for but one
byte to the right and one row below within the same tile.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

COLUMNS = 128
"""Pixels of a row that a program draws at once: four for each thread of its one warp, which are stored in one word."""
ROWS = 32
"""Rows that a program draws, one after another."""

# Columns of the tables.
TILE_ADDRESS, TILE_PLANE, TILE_LINE, TILE_X, TILE_Y, TILE_X0, TILE_Y0, TILE_X1, TILE_Y1 = range(9)
TILE_FIELDS = 9
"""int64: address, bytes to the next channel and row, origin on the canvas, what of the canvas shows it."""
GROUP_FIELDS, GROUP_REALS = 8, 10
"""int32: first tile, end of tiles, clip x0 y0 x1 y1, number of the mask or -1, unused; float32: output to canvas, such that
``u = (m0 x + m1 y + m2) / (m6 x + m7 y + m8)`` is the place of output pixel x, y counted from the centre of the canvas's first
pixel, then the weight."""
SLOT_FIELDS, SLOT_REALS = 4, 4
"""int32: first group, end of groups, whether it is upright, whether it is BGR; float32: 6 hue_add within 0..6, hue_mul, sat_mul,
val_mul."""

GRAY = tl.constexpr(114.0)
FAR = tl.constexpr(1048576.0)
"""No canvas is that large: places beyond are as good as there, and whole numbers in float32."""
SHIFT = tl.constexpr(8388608.0)
"""2 ** 23: a float32 of that size has steps of 1, so adding it rounds, and leaves the level in the lowest byte."""
TINY = tl.constexpr(1e-6)


@triton.jit
def _one_over(x):
    """Return 1 / x of what is not negative, and something finite for 0: two instructions, where a division takes six."""
    root = tl.rsqrt(tl.maximum(x, TINY))
    return root * root


@triton.jit
def _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS: tl.constexpr):
    """Apply colour gains to levels of 0..255, as ``reference.recolour`` does.

    Hue is counted in sixths of a turn. The channels of the hexcone are ``V - C * f``, with ``f`` 0 within a sixth of the channel's
    own hue (0, 2, 4), 1 beyond two sixths, and straight between.
    """
    value = tl.maximum(red, tl.maximum(green, blue))
    chroma = value - tl.minimum(red, tl.minimum(green, blue))
    is_red = value == red
    is_green = value == green
    beyond = tl.where(is_red, green - blue, tl.where(is_green, blue - red, red - green))
    if TURNS:
        hue = beyond * _one_over(chroma) + tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0))
        hue = tl.where(hue < 0, hue + 6, hue) * hue_mul + hue_add
        hue -= 6 * tl.floor(hue * (1 / 6))
    else:
        start = tl.where(is_red, hue_add, tl.where(is_green, hue_add + 2, hue_add + 4))
        hue = beyond * _one_over(chroma) + start
        hue = tl.where(hue < 0, hue + 6, hue)
        hue = tl.where(hue >= 6, hue - 6, hue)
    brightest = tl.minimum(value * val_mul, 255.0)
    depth = tl.minimum(chroma * sat_mul * tl.minimum(val_mul, 255.0 * _one_over(value)), brightest)
    red = brightest - depth * tl.minimum(tl.maximum(2 - tl.abs(hue - 3), 0.0), 1.0)
    green = brightest - depth * tl.minimum(tl.maximum(tl.abs(hue - 2) - 1, 0.0), 1.0)
    blue = brightest - depth * tl.minimum(tl.maximum(tl.abs(hue - 4) - 1, 0.0), 1.0)
    return red, green, blue


@triton.jit
def _written(value, out, SCALED: tl.constexpr):
    """Round a level; 0..1 where the output is no byte, which is that of the rounded level."""
    shifted = value + SHIFT
    if SCALED:
        return ((shifted - SHIFT) * (1 / 255)).to(out.dtype.element_ty)
    return shifted.to(tl.int32, bitcast=True).to(tl.uint8)


@triton.jit
def _store(red, green, blue, out, bgr, channel, offset, mask, SCALED: tl.constexpr):
    """Store three channels; ``offset`` is of the first one."""
    first = tl.where(bgr, 2 * channel, 0)
    last = 2 * channel - first
    tl.store(out + (first + offset), _written(red, out, SCALED), mask=mask)
    tl.store(out + (channel + offset), _written(green, out, SCALED), mask=mask)
    tl.store(out + (last + offset), _written(blue, out, SCALED), mask=mask)


@triton.jit
def _tile(tiles, t):
    """Return the fields of tile ``t`` as scalars."""
    row = tiles + t * 9
    return (
        tl.load(row), tl.load(row + 1), tl.load(row + 2),
        tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32),
        tl.load(row + 5).to(tl.int32), tl.load(row + 6).to(tl.int32), tl.load(row + 7).to(tl.int32), tl.load(row + 8).to(tl.int32),
    )  # fmt: skip


@triton.jit
def _bytes(address):
    return address.to(tl.pointer_type(tl.uint8))


@triton.jit
def _level(pointer, mask):
    return tl.load(pointer, mask=mask, other=114).to(tl.float32)


@triton.jit
def _corner(tiles, first, end, j, i, mask):
    """Return canvas pixels in columns ``j`` and rows ``i``: three channels of 0..255."""
    address = tl.zeros_like(j).to(tl.int64)
    plane = address
    for t in range(first, end):
        base, to_plane, line, x, y, x0, y0, x1, y1 = _tile(tiles, t)
        here = (j >= x0) & (j < x1) & (i >= y0) & (i < y1)
        address = tl.where(here, base + (i - y).to(tl.int64) * line + (j - x), address)
        plane = tl.where(here, to_plane, plane)
    seen = mask & (address != 0)
    return _level(_bytes(address), seen), _level(_bytes(address + plane), seen), _level(_bytes(address + 2 * plane), seen)


@triton.jit
def _corners(tiles, first, end, u, v, mask):
    """Return the bilinear mean of the four canvas pixels around ``u``, ``v``, wherever each of them is."""
    left, top = tl.floor(u), tl.floor(v)
    j, i = left.to(tl.int32), top.to(tl.int32)
    right, bottom = u - left, v - top
    red, green, blue = tl.zeros_like(u), tl.zeros_like(u), tl.zeros_like(u)
    for corner in tl.static_range(4):
        r, g, b = _corner(tiles, first, end, j + corner % 2, i + corner // 2, mask)
        weight = (right if corner % 2 else 1 - right) * (bottom if corner // 2 else 1 - bottom)
        red += weight * r
        green += weight * g
        blue += weight * b
    return red, green, blue


@triton.jit
def _mean(a, b, c, d, right, bottom):
    """Return the bilinear mean of four levels: upper left, upper right, lower left, lower right."""
    above = a + right * (b - a)
    below = c + right * (d - c)
    return above + bottom * (below - above)


@triton.jit
def _within(pixel, line, plane, v, tile_y, right):
    """Return a row of pixels that lie in one tile."""
    top = tl.floor(v)
    bottom = v - top
    above = pixel + (top.to(tl.int32) - tile_y).to(tl.int64) * line
    r = _square(_bytes(above), _bytes(above + line), right, bottom)
    g = _square(_bytes(above + plane), _bytes(above + (line + plane)), right, bottom)
    b = _square(_bytes(above + 2 * plane), _bytes(above + (line + 2 * plane)), right, bottom)
    return r, g, b


@triton.jit
def _square(above, below, right, bottom):
    a, b = tl.load(above).to(tl.float32), tl.load(above + 1).to(tl.float32)
    c, d = tl.load(below).to(tl.float32), tl.load(below + 1).to(tl.float32)
    above_, below_ = a + right * (b - a), c + right * (d - c)
    return above_ + bottom * (below_ - above_)


@triton.jit
def draw_upright(
    out, slots, slot_reals, groups, group_reals, tiles, height, width, slot_stride, row_stride, channel,
    STEP: tl.constexpr, SCALED: tl.constexpr, TURNS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw what lies within one tile, and the gray, of the upright slots: one program for each block of COLUMNS x ROWS."""
    slot = tl.program_id(2)
    row = slots + slot * 4
    if tl.load(row + 2) == 0:
        return
    group = tl.load(row)
    bgr = tl.load(row + 3) != 0
    hue_add, hue_mul = tl.load(slot_reals + slot * 4), tl.load(slot_reals + slot * 4 + 1)
    sat_mul, val_mul = tl.load(slot_reals + slot * 4 + 2), tl.load(slot_reals + slot * 4 + 3)
    place = group_reals + group * 10
    across, start = tl.load(place), tl.load(place + 2)
    down, start_y = tl.load(place + 4), tl.load(place + 5)
    first, end = tl.load(groups + group * 8), tl.load(groups + group * 8 + 1)
    out += slot.to(tl.int64) * slot_stride

    x_first = tl.program_id(0) * COLUMNS
    y_first = tl.program_id(1) * ROWS
    y_end = tl.minimum(y_first + ROWS, height)
    x = x_first + tl.arange(0, COLUMNS)
    is_column = x < width
    u = across * x.to(tl.float32) + start
    left = tl.floor(u)
    right = u - left
    j = left.to(tl.int32)

    # The rectangle of places that the block comes from, and whether one tile has all of it.
    u_a, u_b = across * x_first + start, across * (tl.minimum(x_first + COLUMNS, width) - 1) + start
    v_a, v_b = down * y_first + start_y, down * (y_end - 1) + start_y
    u_low, u_high = tl.minimum(u_a, u_b), tl.maximum(u_a, u_b)
    v_low, v_high = tl.minimum(v_a, v_b), tl.maximum(v_a, v_b)
    is_whole = False
    for t in range(first, end):
        line = tiles + t * 9
        x0, y0 = tl.load(line + 5).to(tl.float32), tl.load(line + 6).to(tl.float32)
        x1, y1 = tl.load(line + 7).to(tl.float32), tl.load(line + 8).to(tl.float32)
        is_whole = is_whole | ((u_low >= x0) & (u_high < x1 - 1) & (v_low >= y0) & (v_high < y1 - 1))
    if not is_whole:
        gray = tl.full([COLUMNS], 114.0, tl.float32)
        red, green, blue = _coloured(gray, gray, gray, hue_add, hue_mul, sat_mul, val_mul, TURNS)
        for y in range(y_first, y_end):
            _store(red, green, blue, out, bgr, channel, y * row_stride + x * STEP, is_column, SCALED)

    for t in range(first, end):
        base, plane, line, tile_x, tile_y, x0, y0, x1, y1 = _tile(tiles, t)
        if (u_high >= x0) & (u_low < x1 - 1) & (v_high >= y0) & (v_low < y1 - 1):
            inside = is_column & (u >= x0) & (u < x1 - 1)
            column = tl.where(inside, j - tile_x, x0 - tile_x).to(tl.uint32)
            pixel = base + column
            if (u_low >= x0) & (u_high < x1 - 1):  # the usual case: its mask is the same for four columns, which are stored as one
                inside = is_column
                for y in range(y_first, y_end):
                    v = down * y + start_y
                    if (v >= y0) & (v < y1 - 1):
                        r, g, b = _within(pixel, line, plane, v, tile_y, right)
                        r, g, b = _coloured(r, g, b, hue_add, hue_mul, sat_mul, val_mul, TURNS)
                        _store(r, g, b, out, bgr, channel, y * row_stride + x * STEP, inside, SCALED)
            else:
                for y in range(y_first, y_end):
                    v = down * y + start_y
                    if (v >= y0) & (v < y1 - 1):
                        r, g, b = _within(pixel, line, plane, v, tile_y, right)
                        r, g, b = _coloured(r, g, b, hue_add, hue_mul, sat_mul, val_mul, TURNS)
                        _store(r, g, b, out, bgr, channel, y * row_stride + x * STEP, inside, SCALED)


@triton.jit
def draw_borders(
    out, slots, slot_reals, groups, group_reals, tiles, height, width, slot_stride, row_stride, channel,
    STEP: tl.constexpr, SCALED: tl.constexpr, TURNS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw the pixels of upright slots whose neighbours lie on two sides of a tile's border: after :func:`draw_upright`."""
    slot = tl.program_id(2)
    row = slots + slot * 4
    if tl.load(row + 2) == 0:
        return
    group = tl.load(row)
    bgr = tl.load(row + 3) != 0
    hue_add, hue_mul = tl.load(slot_reals + slot * 4), tl.load(slot_reals + slot * 4 + 1)
    sat_mul, val_mul = tl.load(slot_reals + slot * 4 + 2), tl.load(slot_reals + slot * 4 + 3)
    place = group_reals + group * 10
    across, start = tl.load(place), tl.load(place + 2)
    down, start_y = tl.load(place + 4), tl.load(place + 5)
    first, end = tl.load(groups + group * 8), tl.load(groups + group * 8 + 1)
    out += slot.to(tl.int64) * slot_stride

    x_first = tl.program_id(0) * COLUMNS
    y_first = tl.program_id(1) * ROWS
    x_end = tl.minimum(x_first + COLUMNS, width)
    y_end = tl.minimum(y_first + ROWS, height)
    u_a, u_b = across * x_first + start, across * (x_end - 1) + start
    v_a, v_b = down * y_first + start_y, down * (y_end - 1) + start_y
    u_low, u_high = tl.minimum(u_a, u_b), tl.maximum(u_a, u_b)
    v_low, v_high = tl.minimum(v_a, v_b), tl.maximum(v_a, v_b)
    lane = tl.arange(0, COLUMNS)
    NARROW: tl.constexpr = COLUMNS // ROWS
    for t in range(first, end):
        line = tiles + t * 9
        x0, y0 = tl.load(line + 5).to(tl.float32), tl.load(line + 6).to(tl.float32)
        x1, y1 = tl.load(line + 7).to(tl.float32), tl.load(line + 8).to(tl.float32)
        is_near = (u_high >= x0 - 1) & (u_low < x1) & (v_high >= y0 - 1) & (v_low < y1) & (x0 < x1) & (y0 < y1)
        for side in range(2):
            edge = tl.where(side == 0, x0, x1) - 1  # places of edge .. edge + 1 have one neighbour in the tile and one outside
            if is_near & (u_high >= edge) & (u_low < edge + 1):
                a, b = (edge - start) / across, (edge + 1 - start) / across
                from_x = tl.maximum(tl.floor(tl.maximum(tl.minimum(a, b), 0.0)).to(tl.int32), x_first)
                to_x = tl.minimum(tl.floor(tl.minimum(tl.maximum(a, b), 1048576.0)).to(tl.int32) + 1, x_end)
                for column in range(from_x, to_x, NARROW):
                    x, y = column + lane % NARROW, y_first + lane // NARROW
                    u, v = across * x.to(tl.float32) + start, down * y.to(tl.float32) + start_y
                    mask = (x < to_x) & (y < y_end) & (u >= edge) & (u < edge + 1) & (v >= y0 - 1) & (v < y1)
                    r, g, b_ = _corners(tiles, first, end, u, v, mask)
                    r, g, b_ = _coloured(r, g, b_, hue_add, hue_mul, sat_mul, val_mul, TURNS)
                    _store(r, g, b_, out, bgr, channel, y * row_stride + x * STEP, mask, SCALED)
        for side in range(2):
            edge = tl.where(side == 0, y0, y1) - 1
            if is_near & (v_high >= edge) & (v_low < edge + 1):
                a, b = (edge - start_y) / down, (edge + 1 - start_y) / down
                from_y = tl.maximum(tl.floor(tl.maximum(tl.minimum(a, b), 0.0)).to(tl.int32), y_first)
                to_y = tl.minimum(tl.floor(tl.minimum(tl.maximum(a, b), 1048576.0)).to(tl.int32) + 1, y_end)
                for y in range(from_y, to_y):
                    x = x_first + lane
                    u, v = across * x.to(tl.float32) + start, tl.zeros([COLUMNS], tl.float32) + (down * y + start_y)
                    mask = (x < x_end) & (v >= edge) & (v < edge + 1) & (u >= x0 - 1) & (u < x1)
                    r, g, b_ = _corners(tiles, first, end, u, v, mask)
                    r, g, b_ = _coloured(r, g, b_, hue_add, hue_mul, sat_mul, val_mul, TURNS)
                    _store(r, g, b_, out, bgr, channel, y * row_stride + x * STEP, mask, SCALED)


@triton.jit
def _seen(tiles, first, end, u, v, mask):
    """Return the canvas at any places, three channels of 0..255: gray where no tile is."""
    left, top = tl.floor(u), tl.floor(v)
    j, i = left.to(tl.int32), top.to(tl.int32)
    right, bottom = u - left, v - top
    address = tl.zeros_like(j).to(tl.int64)
    plane, step = address, address
    is_touched = j != j
    for t in range(first, end):
        base, to_plane, line, x, y, x0, y0, x1, y1 = _tile(tiles, t)
        touches = mask & (j >= x0 - 1) & (j < x1) & (i >= y0 - 1) & (i < y1) & (x0 < x1) & (y0 < y1)
        within = touches & (j >= x0) & (j < x1 - 1) & (i >= y0) & (i < y1 - 1)
        # A later tile hides an earlier one: what it touches in part is no longer within that.
        address = tl.where(within, base + (i - y).to(tl.int64) * line + (j - x), tl.where(touches, 0, address))
        plane = tl.where(within, to_plane, plane)
        step = tl.where(within, line, step)
        is_touched = is_touched | touches
    inside = address != 0
    red = _masked_square(address, step, right, bottom, inside)
    green = _masked_square(address + plane, step, right, bottom, inside)
    blue = _masked_square(address + 2 * plane, step, right, bottom, inside)
    is_mixed = is_touched & (address == 0)
    if tl.max(is_mixed.to(tl.int32), 0) > 0:
        r, g, b = _corners(tiles, first, end, u, v, is_mixed)
        red = tl.where(is_mixed, r, red)
        green = tl.where(is_mixed, g, green)
        blue = tl.where(is_mixed, b, blue)
    return red, green, blue


@triton.jit
def _masked_square(address, line, right, bottom, mask):
    a, b = _level(_bytes(address), mask), _level(_bytes(address + 1), mask)
    c, d = _level(_bytes(address + line), mask), _level(_bytes(address + line + 1), mask)
    return _mean(a, b, c, d, right, bottom)


@triton.jit
def draw_turned(
    out, slots, slot_reals, groups, group_reals, tiles, masks, height, width, slot_stride, row_stride, channel,
    STEP: tl.constexpr, SCALED: tl.constexpr, TURNS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw the slots that are not upright: any transform, and any number of groups with weights, clips and masks."""
    slot = tl.program_id(2)
    row = slots + slot * 4
    if tl.load(row + 2) != 0:
        return
    first_group, end_group = tl.load(row), tl.load(row + 1)
    bgr = tl.load(row + 3) != 0
    hue_add, hue_mul = tl.load(slot_reals + slot * 4), tl.load(slot_reals + slot * 4 + 1)
    sat_mul, val_mul = tl.load(slot_reals + slot * 4 + 2), tl.load(slot_reals + slot * 4 + 3)
    out += slot.to(tl.int64) * slot_stride
    x = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    y_first = tl.program_id(1) * ROWS
    is_column = x < width
    x_middle = x.to(tl.float32)
    for y in range(y_first, tl.minimum(y_first + ROWS, height)):
        red = tl.zeros([COLUMNS], tl.float32)
        green, blue = red, red
        for group in range(first_group, end_group):
            fields = groups + group * 8
            clip_x0, clip_y0 = tl.load(fields + 2), tl.load(fields + 3)
            clip_x1, clip_y1 = tl.load(fields + 4), tl.load(fields + 5)
            painted = is_column & (x >= clip_x0) & (x < clip_x1) & (y >= clip_y0) & (y < clip_y1)
            mask_number = tl.load(fields + 6)
            if mask_number >= 0:
                at = masks + (mask_number.to(tl.int64) * height + y) * width
                painted = painted & (tl.load(at + x, mask=painted, other=0) != 0)
            if tl.max(painted.to(tl.int32), 0) > 0:
                place = group_reals + group * 10
                depth = tl.load(place + 6) * x_middle + (tl.load(place + 7) * y + tl.load(place + 8))
                is_before = depth > 0  # behind the viewer there is nothing to be seen
                scale = 1.0 / tl.where(is_before, depth, 1.0)
                u = (tl.load(place) * x_middle + (tl.load(place + 1) * y + tl.load(place + 2))) * scale
                v = (tl.load(place + 3) * x_middle + (tl.load(place + 4) * y + tl.load(place + 5))) * scale
                u = tl.minimum(tl.maximum(u, -FAR), FAR)
                v = tl.minimum(tl.maximum(v, -FAR), FAR)
                seen = painted & is_before
                r, g, b = _seen(tiles, tl.load(fields), tl.load(fields + 1), u, v, seen)
                weight = tl.where(painted, tl.load(place + 9), 0.0)
                red += weight * (r - red)
                green += weight * (g - green)
                blue += weight * (b - blue)
        r, g, b = _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS)
        _store(r, g, b, out, bgr, channel, y * row_stride + x * STEP, is_column, SCALED)
