"""The GPU's kernels that draw: ``fastdata.augment.recipe``'s docstring in Triton.

Three kernels, one after another on one stream, each for what it is fast at:

* :func:`draw_whole` for slots of one group that nothing turns, shears or masks, which is what the trainers' default policy makes:
  every tile is a rectangle of the output, columns of the output are columns of the picture, so all about a column is known before
  the first row is drawn. It draws the blocks that lie within one tile.
* :func:`draw_mixed` for the other blocks of those slots, with borders of tiles and the gray around.
* :func:`draw_turned` for all other slots.

Places are float32: half a thousandth
of a pixel off for a canvas of 1,280 px, so 0.1 level where neighbours differ by 255.

Pixels are read at their address, in GPU memory or in page-locked host memory alike. Nothing is read that no weight is for but one
byte to the right and one row below within the same tile.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 128
"""Pixels of a row that a program draws at once: four for each thread of its one warp, which are stored in one word."""
WARPS = 4
"""Warps of a program where tiles meet: one pixel for each thread, for much is to be known about each."""
NARROW = 32
"""Columns of a program where anything may be: one pixel for each thread of its one warp."""
ROWS, MIXED_ROWS = 16, 32
"""Rows that a program draws, one after another; the same where tiles meet, to find their columns once for more rows."""
TILES = (1, 4, 9, 64)
"""A kernel is compiled for so many tiles a group."""

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
    """Return 1 / x of what is not negative, and something finite for 0: three instructions, where a division takes six."""
    root = tl.rsqrt(x + TINY)
    return root * root


@triton.jit
def _share(x):
    """Cut to 0..1, which costs nothing: it is a flag of the instruction before."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS: tl.constexpr):
    """Apply colour gains to levels of 0..255, as ``reference.recolour`` does; return levels.

    Hue is counted in sixths of a turn. The channels of the hexcone are ``V - V S f``, with ``f`` 0 within a sixth of the own hue
    of the channel (0, 2, 4), 1 beyond two sixths, and straight between. V and S are shares, so that limits cost nothing; and what
    can be is a sum or product and no comparison, of which the GPU does half as many at once.
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
    brightest = _share(value * (val_mul * (1 / 255)))
    depth = _share(chroma * _one_over(value) * sat_mul) * brightest
    red = brightest - depth * _share(2 - tl.abs(hue - 3))
    green = brightest - depth * _share(tl.abs(hue - 2) - 1)
    blue = brightest - depth * _share(tl.abs(hue - 4) - 1)
    return 255 * red, 255 * green, 255 * blue


@triton.jit
def _written(value, out, SCALED: tl.constexpr):
    """Round a level; 0..1 where the output is no byte, which is that of the rounded level."""
    shifted = value + SHIFT
    if SCALED:
        written = ((shifted - SHIFT) * (1 / 255)).to(out.dtype.element_ty)
    else:
        written = shifted.to(tl.int32, bitcast=True).to(tl.uint8)
    return written


@triton.jit
def _store(red, green, blue, out, bgr, channel, offset, mask, SCALED: tl.constexpr):
    """Store three channels; ``offset`` is of the first one."""
    first = tl.where(bgr, 2 * channel, 0)
    last = 2 * channel - first
    tl.store(out + (first + offset), _written(red, out, SCALED), mask=mask)
    tl.store(out + (channel + offset), _written(green, out, SCALED), mask=mask)
    tl.store(out + (last + offset), _written(blue, out, SCALED), mask=mask)


@triton.jit
def _tile(tiles, t, end):
    """Return the fields of tile ``t`` as scalars; of one that shows nothing when there is none."""
    row = tiles + tl.minimum(t, end - 1) * 9
    address = tl.load(row)
    plane, line = tl.load(row + 1).to(tl.int32), tl.load(row + 2).to(tl.int32)
    x, y = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
    x0, y0 = tl.load(row + 5).to(tl.int32), tl.load(row + 6).to(tl.int32)
    x1, y1 = tl.load(row + 7).to(tl.int32), tl.load(row + 8).to(tl.int32)
    is_seen = (t < end) & (x0 < x1) & (y0 < y1)
    far = tl.where(is_seen, 0, 16777216)  # beyond every place, so that nothing touches it
    return address, plane, line, x, y, x0 + far, y0 + far, tl.where(is_seen, x1, x0) + far, tl.where(is_seen, y1, y0) + far


@triton.jit
def _bytes(address):
    return address.to(tl.pointer_type(tl.uint8))


@triton.jit
def _read(pointer, mask):
    return _raised(tl.load(pointer, mask=mask, other=114))


@triton.jit
def _raised(byte):
    """Turn a byte into the float32 SHIFT + byte by its bits alone: a conversion takes four times as long."""
    return (byte.to(tl.int32) + 0x4B000000).to(tl.float32, bitcast=True)


@triton.jit
def _corners(tiles, first, end, u, v, mask, TILES: tl.constexpr):
    """Return the bilinear mean of the four canvas pixels around ``u``, ``v``, wherever each of them is."""
    left, top = tl.floor(u), tl.floor(v)
    j, i = left.to(tl.int32), top.to(tl.int32)
    right, bottom = u - left, v - top
    red, green, blue = tl.zeros_like(u), tl.zeros_like(u), tl.zeros_like(u)
    for corner in tl.static_range(4):
        column, row = j + corner % 2, i + corner // 2
        address = tl.zeros_like(j).to(tl.int64)
        plane = tl.zeros_like(j)
        for k in tl.static_range(TILES):
            base, to_plane, line, x, y, x0, y0, x1, y1 = _tile(tiles, first + k, end)
            here = (column >= x0) & (column < x1) & (row >= y0) & (row < y1)
            address = tl.where(here, base + (row - y).to(tl.int64) * line + (column - x), address)
            plane = tl.where(here, to_plane, plane)
        seen = mask & (address != 0)
        weight = (right if corner % 2 else 1 - right) * (bottom if corner // 2 else 1 - bottom)
        red += weight * (_read(_bytes(address), seen) - SHIFT)
        green += weight * (_read(_bytes(address + plane), seen) - SHIFT)
        blue += weight * (_read(_bytes(address + 2 * plane), seen) - SHIFT)
    return red, green, blue


@triton.jit
def _mean(a, b, c, d, right, bottom):
    """Return the bilinear mean of four raised levels: upper left, upper right, lower left, lower right. Differences are exact."""
    across = b - a
    return (a - SHIFT) + right * across + bottom * ((c - a) + right * ((d - c) - across))


@triton.jit
def _square(above, below, right, bottom):
    a, b = _raised(tl.load(above)), _raised(tl.load(above + 1))
    c, d = _raised(tl.load(below)), _raised(tl.load(below + 1))
    return _mean(a, b, c, d, right, bottom)


@triton.jit
def _columns(up_l, up_r, line_l, line_r, right, bottom):
    """Return the mean where the left and the right neighbour may be of two tiles."""
    a, b = _raised(tl.load(_bytes(up_l))), _raised(tl.load(_bytes(up_r)))
    c, d = _raised(tl.load(_bytes(up_l + line_l))), _raised(tl.load(_bytes(up_r + line_r)))
    return _mean(a, b, c, d, right, bottom)


@triton.jit
def _upright(row, groups, group_reals):
    """Return what an upright slot's only group is: ``u = across x + start``, ``v = down y + start_y``, and its tiles."""
    group = tl.load(row)
    place = group_reals + group * 10
    fields = groups + group * 8
    return tl.load(place), tl.load(place + 2), tl.load(place + 4), tl.load(place + 5), tl.load(fields), tl.load(fields + 1)


@triton.jit
def _colours(row, slot_reals, slot):
    """Return whether a slot is BGR, and its gains."""
    gains = slot_reals + slot * 4
    return tl.load(row + 3) != 0, tl.load(gains), tl.load(gains + 1), tl.load(gains + 2), tl.load(gains + 3)


@triton.jit
def _whole(tiles, first, end, across, start, down, start_y, x_first, x_end, y_first, y_end, TILES: tl.constexpr):
    """Return the tile that all neighbours of a block's pixels are in; -1 where it is not one, -2 where there is none at all."""
    u_a, u_b = tl.fma(across, x_first.to(tl.float32), start), tl.fma(across, (x_end - 1).to(tl.float32), start)
    v_a, v_b = tl.fma(down, y_first.to(tl.float32), start_y), tl.fma(down, (y_end - 1).to(tl.float32), start_y)
    u_low, u_high = tl.minimum(u_a, u_b), tl.maximum(u_a, u_b)
    v_low, v_high = tl.minimum(v_a, v_b), tl.maximum(v_a, v_b)
    whole = -2
    for k in tl.static_range(TILES):
        _, _, _, _, _, x0, y0, x1, y1 = _tile(tiles, first + k, end)
        is_whole = (u_low >= x0) & (u_high < x1 - 1) & (v_low >= y0) & (v_high < y1 - 1)
        is_touched = (u_high >= x0 - 1) & (u_low < x1) & (v_high >= y0 - 1) & (v_low < y1)
        whole = tl.where(is_whole, first + k, tl.where(is_touched, -1, whole))  # a later tile hides an earlier one
    return whole


@triton.jit
def draw_whole(
    out, slots, slot_reals, groups, group_reals, tiles, height, width, slot_stride, row_stride, channel,
    STEP: tl.constexpr, SCALED: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw the blocks of upright slots that lie within one tile: one program for each."""
    slot = tl.program_id(2)
    row = slots + slot * 4
    if tl.load(row + 2) == 0:
        return
    across, start, down, start_y, first, end = _upright(row, groups, group_reals)
    x_first, y_first = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    x_end, y_end = tl.minimum(x_first + COLUMNS, width), tl.minimum(y_first + ROWS, height)
    whole = _whole(tiles, first, end, across, start, down, start_y, x_first, x_end, y_first, y_end, TILES)
    if whole == -1:
        return
    bgr, hue_add, hue_mul, sat_mul, val_mul = _colours(row, slot_reals, slot)
    out += slot.to(tl.int64) * slot_stride
    x = x_first + tl.arange(0, COLUMNS)
    if whole == -2:
        gray = tl.full([COLUMNS], 114.0, tl.float32)
        red, green, blue = _coloured(gray, gray, gray, hue_add, hue_mul, sat_mul, val_mul, TURNS)
        for k in range(y_end - y_first):
            offset = (y_first + k) * row_stride + x * STEP
            _store(red, green, blue, out, bgr, channel, offset, x < width, SCALED)
        return
    base, plane, line, tile_x, tile_y, _, _, _, _ = _tile(tiles, whole, end)
    u = tl.fma(tl.minimum(x, x_end - 1).to(tl.float32), across, start)
    left = tl.floor(u)
    share = u - left
    column = (left.to(tl.int32) - tile_x).to(tl.uint32)
    for k in range(y_end - y_first):
        y = y_first + k
        v = tl.fma(down, y.to(tl.float32), start_y)
        top = tl.floor(v)
        above = base + (top.to(tl.int32) - tile_y).to(tl.int64) * line
        red = _square(_bytes(above) + column, _bytes(above + line) + column, share, v - top)
        above += plane
        green = _square(_bytes(above) + column, _bytes(above + line) + column, share, v - top)
        above += plane
        blue = _square(_bytes(above) + column, _bytes(above + line) + column, share, v - top)
        red, green, blue = _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS)
        _store(red, green, blue, out, bgr, channel, y * row_stride + x * STEP, x < width, SCALED)


@triton.jit
def draw_mixed(
    out, slots, slot_reals, groups, group_reals, tiles, gray, height, width, slot_stride, row_stride, channel,
    STEP: tl.constexpr, SCALED: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw the blocks of upright slots that :func:`draw_whole` leaves: one program for each."""
    slot = tl.program_id(2)
    row = slots + slot * 4
    if tl.load(row + 2) == 0:
        return
    across, start, down, start_y, first, end = _upright(row, groups, group_reals)
    x_first, y_first = tl.program_id(0) * COLUMNS, tl.program_id(1) * ROWS
    x_end, y_end = tl.minimum(x_first + COLUMNS, width), tl.minimum(y_first + ROWS, height)
    if _whole(tiles, first, end, across, start, down, start_y, x_first, x_end, y_first, y_end, TILES) != -1:
        return
    bgr, hue_add, hue_mul, sat_mul, val_mul = _colours(row, slot_reals, slot)
    out += slot.to(tl.int64) * slot_stride
    x = x_first + tl.arange(0, COLUMNS)
    is_column = x < width
    u = tl.fma(tl.minimum(x, x_end - 1).to(tl.float32), across, start)  # nothing is read for columns beyond the last
    u = tl.minimum(tl.maximum(u, -FAR), FAR)
    left = tl.floor(u)
    share = u - left
    j = left.to(tl.int32)
    y = y_first
    while y < y_end:
        # From here to where the next tile begins or ends, columns keep the tiles that own them.
        i = tl.floor(tl.fma(down, y.to(tl.float32), start_y)).to(tl.int32)
        start_row, end_row = -16777216, 16777216
        nowhere = gray.to(tl.int64)  # a gray byte, which is its own neighbour: nothing has to be left out
        at_l, at_r = tl.zeros([COLUMNS], tl.int64) + nowhere, tl.zeros([COLUMNS], tl.int64) + nowhere
        line_l, line_r = tl.zeros([COLUMNS], tl.int32), tl.zeros([COLUMNS], tl.int32)
        plane_l, plane_r = tl.zeros([COLUMNS], tl.int32), tl.zeros([COLUMNS], tl.int32)
        for k in tl.static_range(TILES):
            base, plane, line, tile_x, tile_y, x0, y0, x1, y1 = _tile(tiles, first + k, end)
            start_row = tl.maximum(start_row, tl.where(y1 <= i, y1, tl.where(y0 <= i, y0, start_row)))
            end_row = tl.minimum(end_row, tl.where(y0 > i, y0, tl.where(y1 > i, y1, end_row)))
            is_row = (i >= y0) & (i < y1)
            corner = base - tile_y.to(tl.int64) * line + (j - tile_x)  # of the canvas's first row
            here_l, here_r = is_row & (j >= x0) & (j < x1), is_row & (j >= x0 - 1) & (j < x1 - 1)
            at_l, at_r = tl.where(here_l, corner, at_l), tl.where(here_r, corner + 1, at_r)
            line_l, line_r = tl.where(here_l, line, line_l), tl.where(here_r, line, line_r)
            plane_l, plane_r = tl.where(here_l, plane, plane_l), tl.where(here_r, plane, plane_r)
        if i + 1 < end_row:
            while (y < y_end) & (i >= start_row) & (i + 1 < end_row):
                bottom = tl.fma(down, y.to(tl.float32), start_y) - i.to(tl.float32)
                up_l, up_r = at_l + i * line_l, at_r + i * line_r  # a picture has fewer than 2 ** 31 bytes
                red = _columns(up_l, up_r, line_l, line_r, share, bottom)
                green = _columns(up_l + plane_l, up_r + plane_r, line_l, line_r, share, bottom)
                blue = _columns(up_l + 2 * plane_l, up_r + 2 * plane_r, line_l, line_r, share, bottom)
                red, green, blue = _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS)
                _store(red, green, blue, out, bgr, channel, y * row_stride + x * STEP, is_column, SCALED)
                y += 1
                i = tl.floor(tl.fma(down, y.to(tl.float32), start_y)).to(tl.int32)
        else:  # the row below has other owners
            v = tl.zeros_like(u) + tl.fma(down, y.to(tl.float32), start_y)
            red, green, blue = _corners(tiles, first, end, u, v, is_column, TILES)
            red, green, blue = _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS)
            _store(red, green, blue, out, bgr, channel, y * row_stride + x * STEP, is_column, SCALED)
            y += 1


@triton.jit
def _seen(tiles, first, end, u, v, mask, TILES: tl.constexpr):
    """Return the canvas at any places, three channels of 0..255: gray where no tile is."""
    left, top = tl.floor(u), tl.floor(v)
    j, i = left.to(tl.int32), top.to(tl.int32)
    right, bottom = u - left, v - top
    address = tl.zeros_like(j).to(tl.int64)
    plane, step = tl.zeros_like(j), tl.zeros_like(j)
    is_touched = j != j
    for k in tl.static_range(TILES):
        base, to_plane, line, x, y, x0, y0, x1, y1 = _tile(tiles, first + k, end)
        touches = mask & (j >= x0 - 1) & (j < x1) & (i >= y0 - 1) & (i < y1)
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
        r, g, b = _corners(tiles, first, end, u, v, is_mixed, TILES)
        red = tl.where(is_mixed, r, red)
        green = tl.where(is_mixed, g, green)
        blue = tl.where(is_mixed, b, blue)
    return red, green, blue


@triton.jit
def _masked_square(address, line, right, bottom, mask):
    a, b = _read(_bytes(address), mask), _read(_bytes(address + 1), mask)
    c, d = _read(_bytes(address + line), mask), _read(_bytes(address + line + 1), mask)
    return _mean(a, b, c, d, right, bottom)


@triton.jit
def _through(row, x, y):
    """Return one coordinate of places, before the division. Summed as precisely as the matrix is, and then rounded."""
    at = tl.load(row) * x.to(row.dtype.element_ty) + (tl.load(row + 1) * y + tl.load(row + 2))
    return at.to(tl.float32)


@triton.jit
def draw_turned(
    out, slots, slot_reals, groups, group_reals, tiles, group_places, masks, height, width, slot_stride, row_stride, channel,
    STEP: tl.constexpr, SCALED: tl.constexpr, TURNS: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Draw the slots that are not upright: any transform, and any number of groups with weights, clips and masks."""
    slot = tl.program_id(2)
    row = slots + slot * 4
    if tl.load(row + 2) != 0:
        return
    first_group, end_group = tl.load(row), tl.load(row + 1)
    bgr, hue_add, hue_mul, sat_mul, val_mul = _colours(row, slot_reals, slot)
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
                place = group_places + group * 9
                u = _through(place, x_middle, y)
                v = _through(place + 3, x_middle, y)
                depth = _through(place + 6, x_middle, y)
                is_before = depth > 0  # behind the viewer there is nothing to be seen
                scale = 1.0 / tl.where(is_before, depth, 1.0)
                u, v = u * scale, v * scale
                u = tl.minimum(tl.maximum(u, -FAR), FAR)
                v = tl.minimum(tl.maximum(v, -FAR), FAR)
                seen = painted & is_before
                r, g, b = _seen(tiles, tl.load(fields), tl.load(fields + 1), u, v, seen, TILES)
                weight = tl.where(painted, tl.load(group_reals + group * 10 + 9), 0.0)
                red += weight * (r - red)
                green += weight * (g - green)
                blue += weight * (b - blue)
        r, g, b = _coloured(red, green, blue, hue_add, hue_mul, sat_mul, val_mul, TURNS)
        _store(r, g, b, out, bgr, channel, y * row_stride + x * STEP, is_column, SCALED)
