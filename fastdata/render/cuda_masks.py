"""Instance masks of a batch, and the masks of pasted groups, filled on the GPU: bit for bit those of ``render.masks``.

Only the outlines travel, in one copy. All work goes to the current stream of the device, and nothing waits for it. The order by
area is measured on the processor, which takes far longer than all the rest: see :func:`area_order`.

With the processor as the device, Triton's interpreter runs the kernels: for tests.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from fastdata.augment.recipe import Labels, Recipe
from fastdata.render.masks import Outlines, _areas, _outlines, _small_hw
from fastdata.render.reference_masks import AREA_STEPS, CROSSING_LINES, MAX_NUMBER
from fastdata.render.triton_masks import COLUMNS, EDGES, PIXELS, ROWS, fill_each, fill_slots, measure_extents, paint_classes

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

ALIGNMENT = 16
"""Bytes. Triton makes one version of a kernel for numbers that this divides, and one for others: all tables begin alike."""


def overlap_masks(
    labels: Labels, out_hw: tuple[int, int], ratio: int, device: torch.device, order: I64 | None = None
) -> tuple[torch.Tensor, I64]:
    """As :func:`fastdata.render.masks.overlap_masks`, with the masks on the device.

    Args:
        labels: N objects of B slots.
        out_hw: H, W of the pictures.
        ratio: r, how much smaller masks are than pictures, at least 1.
        device: Where to fill.
        order: From :func:`area_order`, where it has been measured already.

    Returns:
        masks: (B, H // r, W // r) uint8, or int32 when a slot has more than 255 objects.
        order: (N,)

    Raises:
        UsageError: The ratio is below 1, or leaves no pixel.
    """
    small_hw = _small_hw(out_hw, ratio)
    outlines = _outlines(labels)
    if order is None:
        order = _by_area(labels, outlines)
    many = int(np.diff(labels.offsets).max(initial=0)) > MAX_NUMBER
    masks = torch.empty((len(labels.offsets) - 1, *small_hw), dtype=torch.int32 if many else torch.uint8, device=device)
    _fill(fill_slots, masks, outlines, out_hw, [labels.offsets, order])
    return masks, order


def area_order(labels: Labels) -> I64:
    """Return the order of :func:`overlap_masks`, which needs the processor alone: for whoever has more than one thread.

    A batch of 64 slots of 15 outlines of 30 corners takes a core 3.5 ms, where packing its outlines takes 0.2 ms. The lock of the
    interpreter is free meanwhile.
    """
    return _by_area(labels, _outlines(labels))


def separate_masks(labels: Labels, out_hw: tuple[int, int], ratio: int, device: torch.device) -> torch.Tensor:
    """As :func:`fastdata.render.masks.separate_masks`: (N, H // r, W // r) uint8 on the device.

    Raises:
        UsageError: The ratio is below 1, or leaves no pixel.
    """
    masks = torch.empty((len(labels), *_small_hw(out_hw, ratio)), dtype=torch.uint8, device=device)
    _fill(fill_each, masks, _outlines(labels), out_hw, [np.arange(len(labels))])
    return masks


def class_masks(masks: torch.Tensor, order: I64, labels: Labels) -> torch.Tensor:
    """As :func:`fastdata.render.masks.class_masks`, where the masks are: (B, h, w) float32.

    Args:
        masks: (B, h, w) of :func:`overlap_masks`.
        order: (N,) of the same call.
        labels: The labels, in their own order.
    """
    out = torch.empty(masks.shape, dtype=torch.float32, device=masks.device)
    if out.numel():
        pixels = masks[0].numel()
        tables: list[tuple[Array, type]] = [(labels.cls[order], np.float32), (labels.offsets, np.int32)]
        with _on(masks.device):
            paint_classes[(len(masks), triton.cdiv(pixels, PIXELS))](out, masks, *_sent(masks.device, tables), pixels, PIXELS)
    return out


def batch_masks(
    labels: Labels, out_hw: tuple[int, int], ratio: int, device: torch.device, order: I64, *, overlap: bool
) -> tuple[torch.Tensor, torch.Tensor, I64]:
    """Return ``masks`` and ``sem_masks`` of a batch, and the objects in the order of overlap masks.

    Args:
        labels: N objects of B slots.
        out_hw: H, W of the pictures.
        ratio: r, how much smaller masks are than pictures, at least 1.
        device: Where to fill.
        order: From :func:`area_order`.
        overlap: Whether ``masks`` are overlap masks, or one for each object.

    Raises:
        UsageError: The ratio is below 1, or leaves no pixel.
    """
    ranks, order = overlap_masks(labels, out_hw, ratio, device, order)
    masks = ranks if overlap else separate_masks(labels, out_hw, ratio, device)
    return masks, class_masks(ranks, order, labels), order


def group_masks(recipe: Recipe, device: torch.device) -> tuple[torch.Tensor, I32]:
    """Fill the shapes of the masked groups.

    Args:
        recipe: G groups, M of them masked.
        device: Where to fill.

    Returns:
        masks: (M, H, W) uint8: 1 where the centre of the pixel lies in one of the group's shapes, whatever its clip rectangle.
        index: (G,) number of each group's mask, -1 where it has none.
    """
    masked = np.flatnonzero(recipe.is_masked)
    index = np.full(len(recipe.is_masked), -1, np.int32)
    index[masked] = np.arange(len(masked))
    masks = torch.empty((len(masked), *recipe.out_hw), dtype=torch.uint8, device=device)
    outlines = recipe.mask_points_px, recipe.ring_point_offsets, recipe.shape_ring_offsets, recipe.shape_offsets
    _fill(fill_each, masks, outlines, recipe.out_hw, [masked])
    return masks, index


def _by_area(labels: Labels, outlines: Outlines) -> I64:
    """Return the objects by slot, then by area, largest first."""
    slot = np.repeat(np.arange(len(labels.offsets) - 1), np.diff(labels.offsets))
    steps = np.rint(_areas(*outlines, CROSSING_LINES) * AREA_STEPS)
    return np.lexsort((-steps, slot)).astype(np.int64)


def _fill(kernel: Any, masks: torch.Tensor, outlines: tuple[Array, ...], out_hw: tuple[int, int], more: list[I64]) -> None:
    """Fill masks of any size of the outlines of K objects.

    Args:
        kernel: What fills them.
        masks: (M, h, w)
        outlines: Points (V, 2) in pixels of the output, and the offsets that ``masks.Outlines`` has.
        out_hw: H, W of the output.
        more: Tables of the kernel's own.
    """
    if not masks.numel():
        return
    count, height, width = masks.shape
    points, *offsets = outlines
    scale = np.array([width / out_hw[1], height / out_hw[0]])
    tables: list[tuple[Array, type]] = [(points, np.float32), *((table, np.int32) for table in offsets), (scale, np.float64)]
    tables += [(table, np.int32) for table in more]
    tiles = (count, triton.cdiv(height, ROWS), triton.cdiv(width, COLUMNS))
    objects = len(offsets[-1]) - 1
    with _on(masks.device):
        extents = torch.empty((objects, 4), dtype=torch.int32, device=masks.device)
        sent = _sent(masks.device, tables)
        if objects:
            measure_extents[(objects,)](extents, *sent[:6], EDGES, num_warps=1)
        # Without "fusion": see triton_masks.
        kernel[tiles](masks, extents, *sent, height, width, ROWS, COLUMNS, EDGES, num_warps=1, enable_fp_fusion=False)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Launch on a device and not on the thread's own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _sent(device: torch.device, tables: list[tuple[Array, type]]) -> list[Any]:
    """Copy tables to the device in one piece, from page-locked memory.

    Args:
        device: Where to.
        tables: Numbers, and the type that they are to have there.

    Returns:
        The bytes there, and at which byte each table begins.
    """
    starts, end = [], 0
    for table, kind in tables:
        starts.append(end)
        end += -(-table.size * np.dtype(kind).itemsize // ALIGNMENT) * ALIGNMENT
    # torch keeps it until the copy is done.
    host = torch.empty(end, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    flat = host.numpy()
    for start, (table, kind) in zip(starts, tables, strict=True):
        flat[start : start + table.size * np.dtype(kind).itemsize].view(kind)[:] = table.reshape(-1)
    return [host.to(device, non_blocking=True), *starts]
