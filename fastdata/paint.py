"""Marks on a canvas: colours of classes, lines of text, filled rings and stroked lines, blended by the area that they cover.

A canvas is (H, W, 3) RGB uint8, changed in place; points are its pixel edges (see ``fastdata.boxes``). Every shape is rasterised
at :data:`SUPERSAMPLE` sub-pixels per pixel and axis, so positions are true to a quarter of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from fastdata.boxes import F64
from fastdata.masks import polygons_to_mask, rings_to_mask

U8 = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

SUPERSAMPLE = 4
"""Sub-pixels per pixel and axis: 17 levels of coverage, more than an eye tells apart on an edge."""

HALO: Colour = (0, 0, 0)
HALO_ALPHA = 0.45
"""A dark rim beside every line keeps it readable on a picture of its own colour."""

FIRST_HUE = 306.0
LIGHTNESS = (0.70, 0.85, 0.55)
"""Chosen so that the two nearest of the first twenty colours are far apart: 0.088 in OKLCH, where 0.02 can just be seen."""

HATCH_PERIOD_PX = 7.0
HATCH_WIDTH_PX = 2.0
DASH_PX, GAP_PX = 6.0, 4.0


def class_colour(cls: int) -> Colour:
    """Return the RGB colour of a class: a function of its index alone, so that it is the same on every sheet.

    Hues are a golden angle apart, so that any first n of them are spread evenly; lightness takes turns. The colour space is OKLCH
    (B. Ottosson, "A perceptual color space for image processing", 2020), where equal steps look equal.
    """
    hue = math.radians(FIRST_HUE + 137.50776405 * cls)
    lightness = LIGHTNESS[cls % 3]
    for chroma in (0.26, 0.24, 0.22, 0.20, 0.18, 0.16, 0.14, 0.12, 0.10):  # the strongest that sRGB can show
        a, b = chroma * math.cos(hue), chroma * math.sin(hue)
        long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
        mid = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
        linear = (
            4.0767416621 * long - 3.3077115913 * mid + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * mid - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * mid + 1.7076147010 * short,
        )
        if all(-0.002 <= x <= 1.002 for x in linear):
            break
    red, green, blue = (
        round(255 * (12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055))
        for x in (min(max(x, 0.0), 1.0) for x in linear)
    )
    return red, green, blue


def text_colour(under: Colour) -> Colour:
    """Return black or white, whichever is easier to read on ``under`` (its luma by ITU-R BT.601)."""
    return (0, 0, 0) if 0.299 * under[0] + 0.587 * under[1] + 0.114 * under[2] > 118 else (255, 255, 255)


# Text


@lru_cache(maxsize=4096)
def text_mask(text: str, size: int) -> U8:
    """Return (h, w) coverage 0..255 of one line of text; h depends on ``size`` alone.

    The font is the one that Pillow brings, or OpenCV's (from 5.0) for characters that it lacks.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    height = round(size * 1.25)
    if not all(_has_glyph(c, size) for c in set(text)) and hasattr(cv2, "FontFace"):
        face = cv2.FontFace("uni")
        _, _, width, _ = cv2.getTextSize((1, 1), text, (0, 0), face, size)
        plate = np.zeros((height, width + 2, 3), np.uint8)
        cv2.putText(plate, text, (0, round(size * 0.98)), (255, 255, 255), face, size)
        return np.ascontiguousarray(plate[..., 0])
    image = Image.new("L", (max(1, math.ceil(font.getlength(text))), height))
    ImageDraw.Draw(image).text((0, round(size * 0.98)), text, fill=255, font=font, anchor="ls")
    return np.asarray(image)


@lru_cache(maxsize=4096)
def _has_glyph(character: str, size: int) -> bool:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    drawn = []
    for c in (character, "\U0010fffd"):  # the second is in no font
        image = Image.new("L", (2 * size, 2 * size))
        ImageDraw.Draw(image).text((0, 0), c, fill=255, font=font)
        drawn.append(image.tobytes())
    return character == " " or drawn[0] != drawn[1]


def put_text(canvas: U8, xy: tuple[int, int], text: str, size: int, colour: Colour) -> int:
    """Write one line with its upper left corner at ``xy``; what reaches over the canvas is cut. Returns its width."""
    mask = text_mask(text, size)
    x, y = xy
    room = canvas[max(y, 0) : y + mask.shape[0], max(x, 0) : x + mask.shape[1]]
    if room.size:
        _blend(room, mask[max(-y, 0) :, max(-x, 0) :][: room.shape[0], : room.shape[1]].astype(np.float32) / 255, colour, 1.0)
    return int(mask.shape[1])


# Shapes


def _blend(view: U8, share: npt.NDArray[np.floating], colour: Colour, alpha: float) -> None:
    weight = np.asarray(share * alpha, np.float32)[..., None]
    view[:] = np.rint(view + (np.array(colour, np.float32) - view) * weight).astype(np.uint8)


class _Window:
    """The part of a canvas that a shape touches, at sub-pixel size."""

    def __init__(self, canvas: U8, points: F64, margin_px: float) -> None:
        h, w = canvas.shape[:2]
        low = np.floor(points.min(axis=0) - margin_px).clip(0, [w, h]).astype(int)
        high = np.ceil(points.max(axis=0) + margin_px).clip(0, [w, h]).astype(int)
        self.x, self.y = int(low[0]), int(low[1])
        self.view = canvas[low[1] : high[1], low[0] : high[0]]
        self.fine_hw = (self.view.shape[0] * SUPERSAMPLE, self.view.shape[1] * SUPERSAMPLE)

    def fine(self, points: F64) -> F64:
        return (points - [self.x, self.y]) * SUPERSAMPLE

    def paint(self, fine: U8, colour: Colour, alpha: float) -> None:
        """Blend ``colour`` where the sub-pixels of ``fine`` are 1."""
        if not self.view.size:
            return
        h, w = self.view.shape[:2]
        share = cv2.resize(fine * np.uint8(240), (w, h), interpolation=cv2.INTER_AREA)
        _blend(self.view, share.astype(np.float32) / 240, colour, alpha)


def fill(canvas: U8, rings: Sequence[F64], colour: Colour, alpha: float, *, even_odd: bool = True, hatch: bool = False) -> None:
    """Fill rings of canvas points; ``even_odd`` False fills their union."""
    window = _Window(canvas, np.concatenate(rings), 1.0)
    if not window.view.size:
        return
    local = [window.fine(ring) for ring in rings]
    fine = rings_to_mask(local, window.fine_hw) if even_odd else polygons_to_mask(local, window.fine_hw)
    if hatch:
        rows, columns = (np.arange(n) + at * SUPERSAMPLE for n, at in zip(window.fine_hw, (window.y, window.x), strict=True))
        phase = (rows[:, None] + columns[None, :]) % round(HATCH_PERIOD_PX * SUPERSAMPLE * math.sqrt(2))
        fine &= (phase < HATCH_WIDTH_PX * SUPERSAMPLE * math.sqrt(2)).astype(np.uint8)
    window.paint(fine, colour, alpha)


def stroke(
    canvas: U8,
    lines: Sequence[F64],
    colour: Colour,
    width_px: float,
    *,
    closed: bool = True,
    dashed: bool = False,
    alpha: float = 1.0,
) -> None:
    """Draw lines of canvas points, centred on them, over a dark rim: those of a rectangle exactly, others to a quarter pixel."""
    is_frame = closed and not dashed and len(lines) == 1 and _is_rectangle(lines[0])
    if closed:
        lines = [np.concatenate([line, line[:1]]) for line in lines]
    if dashed:
        lines = [dash for line in lines for dash in _dashes(line)]
    window = _Window(canvas, np.concatenate(lines), width_px + 2)
    if not window.view.size:
        return
    # OpenCV counts from pixel centres, here in steps of 1/16 of a sub-pixel.
    low, high = lines[0].min(axis=0), lines[0].max(axis=0)
    paths = [np.rint((window.fine(line) - 0.5) * 16).astype(np.int32) for line in lines]
    for extra_px, rim in ((1.2, True), (0.0, False)):
        half = round((width_px + extra_px) / 2 * SUPERSAMPLE) / SUPERSAMPLE  # whole sub-pixels: the same on both sides
        if is_frame and (high - low > 2 * half).all():
            rings = [corners(np.concatenate([low - d, high + d])) for d in (half, -half)]
            fine = rings_to_mask([window.fine(ring) for ring in rings], window.fine_hw)
        else:
            fine = np.zeros(window.fine_hw, np.uint8)
            thickness = max(1, round(2 * half * SUPERSAMPLE) - 1)  # OpenCV adds the sub-pixel under the line's centre
            cv2.polylines(fine, paths, False, 1, thickness, cv2.LINE_8, 4)
        window.paint(fine, HALO if rim else colour, HALO_ALPHA * alpha if rim else alpha)


def _is_rectangle(ring: F64) -> bool:
    """Tell whether a ring is a rectangle along the axes."""
    return len(ring) == 4 and bool(((np.diff(ring, axis=0, append=ring[:1]) == 0).sum(axis=1) == 1).all())


def _dashes(line: F64) -> list[F64]:
    """Cut an open line of (v, 2) points into dashes by its length."""
    steps = np.hypot(*np.diff(line, axis=0).T)
    at = np.concatenate([[0.0], np.cumsum(steps)])
    if at[-1] < DASH_PX + GAP_PX:
        return [line]
    keep = np.concatenate([[True], steps > 0])  # interpolation wants rising positions
    line, at = line[keep], at[keep]
    out = []
    for start in np.arange(0.0, at[-1], DASH_PX + GAP_PX):
        stop = min(start + DASH_PX, at[-1])
        inner = line[(at > start) & (at < stop)]
        ends = np.stack([np.interp([start, stop], at, line[:, axis]) for axis in (0, 1)], axis=1)
        out.append(np.concatenate([ends[:1], inner, ends[1:]]))
    return out


def disc(xy: F64, radius: float) -> F64:
    """Return the (24, 2) ring of a circle."""
    return xy + _CIRCLE * radius


def corners(xyxy: npt.NDArray[np.floating]) -> F64:
    """Return the (4, 2) corners of a box."""
    x0, y0, x1, y1 = (float(v) for v in xyxy)
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


_CIRCLE = np.stack([np.cos(np.arange(24) * np.pi / 12), np.sin(np.arange(24) * np.pi / 12)], axis=1)
