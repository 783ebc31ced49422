"""Turn an output row into bytes: the colour gains in hue, saturation and value, and one rounding.

Not by way of hue and saturation. Let V be the largest channel, C the largest less the smallest, and e = V - channel the three
deficits: one is 0, one is C. Then every gain is a small step on the deficits alone:

- **Hue**, shifted by d sixths of a turn, 0 <= d <= 1/2: with A = d * C and f the deficit of the following channel (of green for
  red, of blue for green, of red for blue), ``e' = clip(e + max(A - f, 0) - max(f - (C - A), 0), 0, C)``. A shift the other way
  is the same with green and blue changing places, a third of a turn moves the channels on by one, more than 1/2 goes in two
  steps. If hue is multiplied, d depends on the pixel, and A is a share of ``hue * C``, which needs no division either.
- **Value and saturation**: V' = min(V * val, 255), and all deficits are scaled by C' / C = V' * min(sat / V, 1 / C); where
  neither gain is above 1 that is ``sat * val`` for all pixels, else it costs the one division.

So 16 pixels go at once in 16 bits, 128 steps a level. Gains beyond a policy's take another way, pixel by pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastdata.render.kernels.axis import UNIT
from fastdata.render.kernels.compiled import part
from fastdata.render.kernels.lanes import (
    WIDTH,
    add,
    add_saturated,
    add_unsigned,
    all_f32,
    all_lanes,
    choose,
    equal,
    f32_div,
    f32_mul,
    greater,
    maximum,
    minimum,
    minimum_unsigned,
    product_q15,
    shift_right,
    sub,
    sub_unsigned,
    to_f32,
    to_i16,
)
from fastdata.render.kernels.memory import load_u8, load_u16, load_v16, store_low_bytes, store_u8

ONE = 32_767
"""1 as a factor of ``product_q15``, as near as it gets: 1/128 of a level off for the brightest pixel."""

# fields of a slot's colour: whole numbers
WAY, HUE_KIND, HUE_SHARE, HUE_SIGN, TURN, SCALE, BITS, VALUE, NARROW = range(9)
COLOUR_FIELDS, REALS = 9, 5
UNTOUCHED, EVEN, DIVIDED, BY_PIXEL = range(4)
"""Ways: no gain; one factor for all deficits; a factor for each pixel; gains out of the ordinary."""
ONE_STEP, TWO_STEPS, MULTIPLIED = range(3)
"""Kinds of hue."""


@part
def prepare_colour(gains: Any, colour: Any, reals: Any) -> None:
    """Turn gains (hue_add, hue_mul, sat_mul, val_mul) into what :func:`finish_row` works with."""
    hue_add, hue_mul, sat, val = float(gains[0]), float(gains[1]), float(gains[2]), float(gains[3])
    for i in range(COLOUR_FIELDS):
        colour[i] = 0
    reals[0], reals[1], reals[2], reals[3] = hue_add, hue_mul, sat, val
    colour[WAY] = UNTOUCHED
    if hue_add == 0 and hue_mul == 1 and sat == 1 and val == 1:
        return
    slope = 6 * (hue_mul - 1)  # sixths of a turn that the end of the circle moves by
    if not (0 <= sat <= 2 and 0 <= val <= 2) or (slope != 0 and (hue_add != 0 or abs(slope) > 0.5)):
        colour[WAY] = BY_PIXEL
        return
    if slope != 0:
        colour[HUE_KIND] = MULTIPLIED
        colour[HUE_SIGN] = 1 if slope > 0 else -1
        colour[HUE_SHARE] = int(np.rint(abs(slope) * 32768))
    else:
        sixths = 6 * (hue_add - np.rint(hue_add))
        thirds = np.rint(sixths / 2)
        rest = sixths - 2 * thirds
        colour[TURN] = (int(thirds) + 3) % 3
        colour[HUE_SIGN] = 1 if rest >= 0 else -1
        colour[HUE_KIND] = ONE_STEP if abs(rest) <= 0.5 else TWO_STEPS
        colour[HUE_SHARE] = int(np.rint(abs(rest) * (32768 if abs(rest) <= 0.5 else 16384)))
    colour[VALUE] = min(max(int(np.rint((val - 1) * 32768)), -32768), ONE)
    if sat <= 1 and val <= 1:
        colour[WAY] = EVEN
        colour[SCALE] = min(int(np.rint(sat * val * 32768)), ONE)
    else:
        colour[WAY] = DIVIDED
        while sat * val * 32768 > ONE << colour[BITS]:  # a factor above 1 is kept as its half or quarter
            colour[BITS] += 1
        colour[NARROW] = min(int(np.rint(32768 / max(sat, 1.0))), ONE)
        reals[4] = min(sat, 1.0) * 32768 / (1 << colour[BITS])


@part
def _hue_step(a: Any, b: Any, c: Any, chroma: Any, amount: Any) -> Any:
    """Move the hue of three deficits by ``amount`` / chroma sixths of a turn."""
    rest = sub(chroma, amount)
    return (
        minimum_unsigned(sub_unsigned(add_unsigned(a, sub_unsigned(amount, b)), sub_unsigned(b, rest)), chroma),
        minimum_unsigned(sub_unsigned(add_unsigned(b, sub_unsigned(amount, c)), sub_unsigned(c, rest)), chroma),
        minimum_unsigned(sub_unsigned(add_unsigned(c, sub_unsigned(amount, a)), sub_unsigned(a, rest)), chroma),
    )


@part
def _hue_amount(red: Any, green: Any, blue: Any, chroma: Any, share: int) -> Any:
    """``hue * chroma`` times a share of one sixth of a turn, from deficits; hue counts from 0 to 6."""
    zero = all_lanes(0)
    is_red, is_green = equal(red, zero), equal(green, zero)
    beyond = choose(is_red, sub(blue, green), choose(is_green, sub(red, blue), sub(green, red)))
    third = product_q15(chroma, all_lanes(share // 3))
    two_thirds = product_q15(chroma, all_lanes(2 * share // 3))
    whole = product_q15(chroma, all_lanes(share))
    start = choose(is_red, choose(greater(zero, beyond), whole, zero), choose(is_green, third, two_thirds))
    return maximum(add(start, product_q15(beyond, all_lanes(share // 6))), zero)


def _finisher(way: int, usual: bool) -> Any:
    """Make the loop over a row for one way, and for hue in one step alone or of any kind."""

    def finish(
        source0: int, source1: int, source2: int, out0: int, out1: int, out2: int, left: int, right: int, colour: Any,
        factor: float, spare_at: int,
    ) -> None:  # fmt: skip
        brightest, none = all_lanes(255 * UNIT), all_lanes(1)
        share, sign, kind = colour[HUE_SHARE], colour[HUE_SIGN], colour[HUE_KIND]
        hue_share, value, narrow = all_lanes(share), all_lanes(colour[VALUE]), all_lanes(colour[NARROW])
        scale, wide = all_lanes(colour[SCALE]), all_f32(np.float32(factor))
        bits = colour[BITS]
        half = all_lanes((UNIT // 2) >> bits)
        for j in range(left, right, WIDTH):
            a, b, c = load_v16(source0 + 2 * j), load_v16(source1 + 2 * j), load_v16(source2 + 2 * j)
            if way != UNTOUCHED:
                top = maximum(maximum(a, b), c)
                chroma = sub(top, minimum(minimum(a, b), c))
                a, b, c = sub(top, a), sub(top, b), sub(top, c)
                amount = product_q15(chroma, hue_share)
                if not usual and kind == MULTIPLIED:
                    amount = _hue_amount(a, b, c, chroma, share) if sign > 0 else _hue_amount(a, c, b, chroma, share)
                a, b, c = _hue_step(a, b, c, chroma, amount)
                if not usual and kind == TWO_STEPS:
                    a, b, c = _hue_step(a, b, c, chroma, amount)
                bright = minimum(add_saturated(top, product_q15(top, value)), brightest)
                if way == DIVIDED:
                    divisor = maximum(maximum(product_q15(top, narrow), chroma), none)
                    scale = to_i16(f32_div(f32_mul(to_f32(bright), wide), to_f32(divisor)))
                    bright = shift_right(bright, bits)
                a = sub_unsigned(bright, product_q15(a, scale))
                b = sub_unsigned(bright, product_q15(b, scale))
                c = sub_unsigned(bright, product_q15(c, scale))
            a, b, c = add(a, half), add(b, half), add(c, half)
            a, b, c = shift_right(a, 7 - bits), shift_right(b, 7 - bits), shift_right(c, 7 - bits)
            if j + WIDTH <= right:
                store_low_bytes(out0 + j, a)
                store_low_bytes(out1 + j, b)
                store_low_bytes(out2 + j, c)
            else:
                store_low_bytes(spare_at, a)
                store_low_bytes(spare_at + WIDTH, b)
                store_low_bytes(spare_at + 2 * WIDTH, c)
                for i in range(right - j):
                    store_u8(out0 + j, i, load_u8(spare_at, i))
                    store_u8(out1 + j, i, load_u8(spare_at, WIDTH + i))
                    store_u8(out2 + j, i, load_u8(spare_at, 2 * WIDTH + i))

    return part(finish)


_finish_plain = _finisher(UNTOUCHED, True)
_finish_even, _finish_even_any = _finisher(EVEN, True), _finisher(EVEN, False)
_finish_divided, _finish_divided_any = _finisher(DIVIDED, True), _finisher(DIVIDED, False)


@part
def finish_row(row_at: int, row_nbytes: int, left: int, right: int, colour: Any, reals: Any, out_at: Any, spare_at: int) -> None:
    """Write columns ``left`` to ``right`` of an output row as bytes.

    Args:
        row_at: Address of the row, 128 steps a level, red first; its channels are ``row_nbytes`` apart.
        left: A multiple of 16.
        right: Any; up to the next multiple of 16 the row must be readable.
        colour: From :func:`prepare_colour`, with ``reals``.
        out_at: (3,) addresses of the rows for red, green and blue.
        spare_at: Address of 48 bytes to write to.
    """
    way, kind = colour[WAY], colour[HUE_KIND]
    if way == BY_PIXEL:
        _finish_by_pixel(row_at, row_nbytes, left, right, reals, out_at)
        return
    turn = colour[TURN]
    a = row_at + (3 - turn) % 3 * row_nbytes
    b = row_at + (4 - turn) % 3 * row_nbytes
    c = row_at + (5 - turn) % 3 * row_nbytes
    x, y, z = out_at[0], out_at[1], out_at[2]
    if colour[HUE_SIGN] < 0:
        b, c, y, z = c, b, z, y
    if way == UNTOUCHED:
        _finish_plain(a, b, c, x, y, z, left, right, colour, reals[4], spare_at)
    elif way == EVEN and kind == ONE_STEP:
        _finish_even(a, b, c, x, y, z, left, right, colour, reals[4], spare_at)
    elif way == EVEN:
        _finish_even_any(a, b, c, x, y, z, left, right, colour, reals[4], spare_at)
    elif kind == ONE_STEP:
        _finish_divided(a, b, c, x, y, z, left, right, colour, reals[4], spare_at)
    else:
        _finish_divided_any(a, b, c, x, y, z, left, right, colour, reals[4], spare_at)


@part
def _finish_by_pixel(row_at: int, row_nbytes: int, left: int, right: int, reals: Any, out_at: Any) -> None:
    """Any gains, by way of hue, saturation and value."""
    hue_add, hue_mul, sat, val = reals[0], reals[1], reals[2], reals[3]
    full = 255.0 * UNIT
    for j in range(left, right):
        red = float(load_u16(row_at, j))
        green = float(load_u16(row_at + row_nbytes, j))
        blue = float(load_u16(row_at + 2 * row_nbytes, j))
        top = max(red, green, blue)
        chroma = top - min(red, green, blue)
        hue = 0.0
        if chroma > 0:
            if top == red:
                hue = (green - blue) / chroma
                hue = hue + 6 if hue < 0 else hue
            elif top == green:
                hue = (blue - red) / chroma + 2
            else:
                hue = (red - green) / chroma + 4
        hue = hue / 6 * hue_mul + hue_add
        hue = (hue - np.floor(hue)) * 6
        bright = min(max(top * val, 0.0), full)
        deep = min(max(chroma / top * sat, 0.0), 1.0) * bright if top > 0 else 0.0
        for channel in range(3):
            away = abs((hue - 2 * channel + 3) % 6 - 3)  # sixths of a turn from the channel's own hue
            level = bright - deep * min(max(away - 1, 0.0), 1.0)
            store_u8(out_at[channel], j, int(level / UNIT + 0.5))
