"""Where tiles lie on a canvas: one picture, four around a point, or nine around the first.

The canvas of one picture is that picture. The canvas of a mosaic is twice imgsz wide and high; nine tiles are laid out on three
times imgsz, of which the middle is the canvas. Frames are pixel edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata.augment.draws import Draws
from fastdata.catalog import Catalog

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


ENDS_AT_CENTRE = np.array([[True, True], [False, True], [True, False], [False, False]])
"""Whether each of four tiles ends at the point where they meet, in x and in y; it begins there otherwise."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """T tiles of S scenes."""

    offsets: I64
    """(S + 1,)"""
    canvas_wh: I64
    """(S, 2)"""
    scene: I64
    """(T,)"""
    entry: I64
    """(T,)"""
    record: I64
    """(T,)"""
    source_xyxy: I32
    """(T, 4) rectangle of the record."""
    original_hw: I64
    """(T, 2) of the picture that the tile shows, as published: of the rectangle if it is a part of its record."""
    size_hw: I64
    """(T, 2) of the tile on the canvas."""
    origin_xy: I64
    """(T, 2)"""
    visible_xyxy: I64
    """(T, 4) the tile within the canvas; of zero width or height where it lies outside."""

    @property
    def gain_xy(self) -> F64:
        """(T, 2) pixels of the tile per pixel of the rectangle that labels are in."""
        rect_wh = (self.source_xyxy[:, 2:] - self.source_xyxy[:, :2]).astype(np.float64)
        return self.size_hw[:, ::-1] / rect_wh


def fitted_sizes(size_hw: npt.NDArray[np.integer], imgsz: int) -> I64:
    """Bring the long side of (n, 2) sizes to ``imgsz``, up or down, as the trainers round it.

    The rule of ``fastdata.pixels.fitted_size``, for many; said twice because the plan may not know of pixels. A test compares.
    """
    hw = np.asarray(size_hw, np.float64)
    long = np.maximum(hw[:, 0], hw[:, 1])
    ratio = np.repeat(imgsz / long, 2).reshape(-1, 2)  # a float64 product below, as in the trainers
    return np.where(ratio == 1, hw, np.minimum(np.maximum(np.ceil(hw * ratio), 1), imgsz)).astype(np.int64)


def place(draws: Draws, catalog: Catalog, imgsz: int) -> Tiles:
    """Lay out the tiles of every scene."""
    entry, offsets = draws.tile_entry, draws.tile_offsets
    scene = draws.tile_scene
    record = catalog.entry_record.take(entry).astype(np.int64)
    source = catalog.entry_rect.take(entry, axis=0)
    original_hw = _original_hw(catalog, entry, record, source)
    size_hw = fitted_sizes(original_hw, imgsz)
    count = offsets[1:] - offsets[:-1]
    canvas_wh = np.full((len(count), 2), 2 * imgsz, np.int64)
    single = count == 1
    canvas_wh[single] = size_hw[offsets[:-1][single], ::-1]

    wh = size_hw[:, ::-1]
    origin = np.zeros((len(entry), 2), np.int64)
    tile_count = count[scene]
    is_four = tile_count == 4
    if is_four.any():
        left_top = ENDS_AT_CENTRE.take(np.arange(len(entry)) - offsets[scene], axis=0, mode="clip")
        origin = np.where(is_four[:, None], draws.centre_yx[scene, ::-1] - wh * left_top, origin)
    if (tile_count == 9).any():
        origin[tile_count == 9] = _nine(wh[tile_count == 9].reshape(-1, 9, 2), imgsz).reshape(-1, 2)
    limit = canvas_wh.take(scene, axis=0)
    corner = np.minimum(np.maximum(origin, 0), limit)
    visible = np.concatenate([corner, np.maximum(np.minimum(origin + wh, limit), corner)], axis=1)
    return Tiles(offsets, canvas_wh, scene, entry, record, source, original_hw, size_hw, origin, visible)


def _original_hw(catalog: Catalog, entry: I64, record: I64, source: I32) -> I64:
    """A whole record is sized by its published picture, as a trainer sizes it; a part of one has only its own size."""
    rec_hw = catalog.rec_hw.take(record, axis=0)
    height, width = source[:, 3] - source[:, 1], source[:, 2] - source[:, 0]
    is_part = np.flatnonzero((height != rec_hw[:, 0]) | (width != rec_hw[:, 1]))
    out = catalog.entry_original_hw.take(entry, axis=0).astype(np.int64)
    out[is_part, 0], out[is_part, 1] = height[is_part], width[is_part]
    return out


def _nine(wh: I64, s: int) -> I64:
    """Return (m, 9, 2) origins on the canvas; wh: (m, 9, 2). Each tile leans on the one before it and on the first."""
    w, h = wh[..., 0], wh[..., 1]
    w0, h0 = w[:, 0], h[:, 0]
    zero = np.zeros_like(w0)
    x = np.stack([zero, zero, w[:, 1], w0, w0, w0 - w[:, 5], w0 - w[:, 5] - w[:, 6], -w[:, 7], -w[:, 8]], axis=1)
    y = np.stack([zero, -h[:, 1], -h[:, 2], zero, h[:, 3], h0, h0, h0 - h[:, 7], h0 - h[:, 7] - h[:, 8]], axis=1)
    return np.stack([x, y], axis=2) + (s - s // 2)
