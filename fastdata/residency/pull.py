"""Bring what a batch can show from page-locked host memory to the GPU: the GPU reads it over PCIe by itself.

The kernels that draw could read it there too, byte by byte: 25,000 pictures a second of 640 px on an H200, for a byte that is
read again travels again, and short reads waste the bus. Here each row travels once, in pieces of 16 bytes a thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.render.cuda import to_device
from fastdata.residency import Fetched
from fastdata.residency.visible import visible_rects

I64 = npt.NDArray[np.int64]

PULLED_NBYTES = 32
"""Rows must begin at multiples of it, and are copied in multiples of it: what the GPU's caches and the bus move at least."""
UNIT_NBYTES = 16
"""The widest load of a thread."""


def pull(recipe: Recipe, where: I64, device: Any) -> Fetched:
    """Copy the visible rectangles of a recipe's tiles, on the current stream, without waiting for it.

    Args:
        recipe: What will be drawn.
        where: (T, 3) where its tiles are now, as in :class:`fastdata.residency.Fetched`: memory that the device can read, every
            row at a multiple of ``PULLED_NBYTES``, and there to its next one.
        device: A torch device.

    Returns:
        Where they will be.
    """
    import torch

    from fastdata.residency import triton_pull as kernel

    table, found, nbytes = plan_copy(where, visible_rects(recipe))
    copy = torch.empty(nbytes // 4, dtype=torch.int32, device=device)
    if len(table):
        rows = int((table[:, 6] * np.where(table[:, 1] == 0, 1, 3)).max())
        placed = to_device({"table": table}, device)["table"]
        with torch.cuda.device(device if device.type == "cuda" else -1):
            grid = (len(table), -(-rows // kernel.ROWS))
            kernel.pull_rows[grid](copy, placed, ROWS=kernel.ROWS, WORDS=kernel.WORDS, num_warps=kernel.WARPS)
    found[found[:, 2] != 0, 0] += copy.data_ptr()
    return Fetched(found, hold=(copy,))


def plan_copy(where: I64, rects: I64) -> tuple[I64, I64, int]:
    """Lay rectangles out in a copy.

    Args:
        where: (T, 3) where the tiles are.
        rects: (T, 4) what of them is copied, pixels of the tile; empty for none.

    Returns:
        table: (R, 7) of ``triton_pull.pull_rows``, for the rectangles that are not empty.
        found: (T, 3) where the tiles will be, counted from the beginning of the copy; zeros where nothing is.
        nbytes: Size of the copy.
    """
    x0, y0, x1, y1 = rects.T
    seen = (x0 < x1) & (y0 < y1) & (where[:, 0] != 0)
    x0, y0, x1, y1 = rects[seen].T
    address, plane, line = where[seen].T
    x0 = x0 // PULLED_NBYTES * PULLED_NBYTES
    length = -(-(x1 - x0) // PULLED_NBYTES) * PULLED_NBYTES
    rows = y1 - y0
    copy_plane = np.where(plane == 0, 0, length * rows)
    sizes = np.where(plane == 0, 1, 3) * length * rows
    ends = np.cumsum(sizes)
    target = ends - sizes
    found = np.zeros_like(where)
    found[seen] = np.stack([target - y0 * length - x0, copy_plane, length], axis=1)
    source = address + y0 * line + x0
    table = np.stack([source, plane, line, target, copy_plane, length, rows * UNIT_NBYTES], axis=1) // UNIT_NBYTES
    return table, found, int(ends[-1]) if len(ends) else 0
