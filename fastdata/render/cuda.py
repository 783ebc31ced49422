"""Draw on the GPU: a recipe's tables copied once, and three kernels on the current stream.

As ``fastdata.render.reference`` within ``fastdata.render.tolerance``. The pixels of the tiles are read where they are, which
``fastdata.residency`` knows: GPU memory or page-locked memory of the host.

Where there is no GPU, Triton's interpreter (``TRITON_INTERPRET=1``) runs the same kernels on ordinary memory: slowly, for tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import FILL, Recipe
from fastdata.errors import UsageError
from fastdata.render.tiles import check_visible

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

OLDEST = (7, 0)
"""Least compute capability that Triton compiles for (Volta)."""

ALIGNMENT = 16
"""Tables begin at multiples of so many bytes: Triton compiles for that, and loads more at once."""


def unsupported(device: Any) -> str | None:
    """Return why a device cannot draw; ``None``: it can.

    Args:
        device: A torch device. The processor can where Triton interprets.
    """
    import torch

    try:
        import triton
    except ImportError:
        return "Triton is not installed (it comes with torch for Linux; on Windows: pip install triton-windows)"
    if device.type == "cpu":
        from triton.runtime.interpreter import InterpretedFunction

        from fastdata.render import triton_draw

        is_interpreted = isinstance(triton_draw.draw_whole, InterpretedFunction)
        return None if is_interpreted else "the kernels were compiled for a GPU; set TRITON_INTERPRET=1 before Python starts"
    if device.type != "cuda":
        return f"batches must be drawn on a CUDA device, got {device}"
    if getattr(torch.version, "hip", None):
        return "torch was built for ROCm, which nobody has tried"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        name = torch.cuda.get_device_name(device)
        return f"{name} has compute capability {capability[0]}.{capability[1]}, and Triton {triton.__version__} needs 7.0"
    return None


def render(
    recipe: Recipe, where: I64, *, device: Any, out: Any = None, dtype: Any = None, channels_last: bool = False
) -> Any:
    """Draw a batch on the current stream of a device, and do not wait for it.

    Args:
        recipe: What to draw.
        where: (T, 3) from :class:`fastdata.residency.Fetched`: what a tile shows must be there until the drawing is done.
        device: A torch device.
        out: (B, 3, H, W) to draw into, contiguous in one of the two memory formats; new memory when ``None``.
        dtype: Of new memory: ``torch.uint8``, or a floating type, whose values are the levels over 255; uint8 when ``None``.
        channels_last: Memory format of new memory.

    Returns:
        (B, 3, H, W), RGB but for slots with ``bgr``; ``out`` where it is given.

    Raises:
        UsageError: ``out`` does not fit, or a tile shows more than there is of it.
    """
    import torch

    shape = (len(recipe), 3, *recipe.out_hw)
    if out is None:
        form = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty(shape, dtype=dtype or torch.uint8, device=device, memory_format=form)
    else:
        channels_last = not out.is_contiguous()
        fits = not channels_last or out.is_contiguous(memory_format=torch.channels_last)
        is_type = out.dtype == torch.uint8 or out.dtype.is_floating_point
        if tuple(out.shape) != shape or out.device != torch.empty(0, device=device).device or not (fits and is_type):
            raise UsageError(
                f"out must be contiguous uint8 or floating numbers of shape {shape} on {device}, got {out.dtype} "
                f"{tuple(out.shape)} on {out.device} with strides {out.stride()}"
            )
    if not out.numel():
        return out
    masks = index = None
    if recipe.is_masked.any():
        from fastdata.render.cuda_masks import group_masks

        masks, index = group_masks(recipe, device)
    tables = tables_of(recipe, where, index)
    _launch(recipe, tables, masks, out, channels_last)
    return out


def tables_of(recipe: Recipe, where: I64, mask_of_group: npt.NDArray[np.int32] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the kernels' tables, see ``triton_draw``: slots, slot_reals, groups, group_reals, group_places, tiles, gray.

    Args:
        recipe: What to draw.
        where: (T, 3).
        mask_of_group: (G,) number of each group's mask, -1 for none.

    Raises:
        UsageError: A tile shows more than there is of it.
    """
    n, g, t = len(recipe), len(recipe.matrix), len(recipe.record)
    height, width = recipe.out_hw
    check_visible(recipe)
    tiles = np.empty((t, 9), np.int64)
    tiles[:, :3] = where
    tiles[:, 3:5] = recipe.origin_xy
    tiles[:, 5:9] = recipe.visible_xyxy
    tiles[where[:, 0] == 0, 5:9] = 0  # nothing of it is there: nothing may be read

    # From centres of output pixels, (x + 1/2, y + 1/2), to places counted from the centre of the first canvas pixel.
    back = np.linalg.inv(recipe.matrix)
    back[:, :, 2] += (back[:, :, 0] + back[:, :, 1]) / 2
    back[:, :2] -= back[:, 2:] / 2
    group_reals = np.empty((g, 10), np.float32)
    group_reals[:, :9] = back.reshape(g, 9)
    group_reals[:, 9] = recipe.weight
    groups = np.zeros((g, 8), np.int32)
    groups[:, 0], groups[:, 1] = recipe.tile_offsets[:-1], recipe.tile_offsets[1:]
    groups[:, 2:6] = recipe.clip_xyxy
    groups[:, 6] = -1 if mask_of_group is None else mask_of_group

    first = recipe.group_offsets[:-1]
    flat, clip = back.reshape(g, 9), recipe.clip_xyxy
    is_upright = (flat.take([1, 3, 6, 7], axis=1) == 0).all(axis=1) & (flat[:, 8] == 1) & (flat[:, 0] != 0) & (flat[:, 4] != 0)
    is_upright &= (recipe.weight == 1) & ~recipe.is_masked
    is_upright &= (clip[:, 0] <= 0) & (clip[:, 1] <= 0) & (clip[:, 2] >= width) & (clip[:, 3] >= height)
    slots = np.empty((n, 4), np.int32)
    slots[:, 0], slots[:, 1] = first, recipe.group_offsets[1:]
    slots[:, 2] = (np.diff(recipe.group_offsets) == 1) & is_upright[np.minimum(first, max(g - 1, 0))] if g else 0
    slots[:, 3] = recipe.bgr
    slot_reals = recipe.gains.copy()
    slot_reals[:, 0] = (6.0 * recipe.gains[:, 0].astype(np.float64)) % 6
    slot_reals[slot_reals[:, 0] >= 6, 0] = 0  # rounded up to a whole turn
    # Under a perspective coordinates are large and cancel out near the horizon: float32 would be off by a hundredth of a pixel.
    is_perspective = bool((flat[:, 6:8] != 0).any())
    return {
        "tiles": tiles,
        "slots": slots,
        "groups": groups,
        "slot_reals": slot_reals,
        "group_reals": group_reals,
        "group_places": flat.astype(np.float64 if is_perspective else np.float32),
        "gray": np.full(ALIGNMENT, FILL, np.uint8),
    }


def _launch(recipe: Recipe, tables: dict[str, npt.NDArray[Any]], masks: Any, out: Any, channels_last: bool) -> None:
    """Copy the tables and start the kernels that have something to do."""
    import torch

    from fastdata.render import triton_draw as kernels

    height, width = recipe.out_hw
    placed = to_device(tables, out.device)
    grid = (-(-width // kernels.COLUMNS), -(-height // kernels.ROWS), len(recipe))
    per_slot, step = 3 * height * width, 3 if channels_last else 1
    sizes = (height, width, per_slot, width * step, 1 if channels_last else height * width)
    common = [out, placed["slots"], placed["slot_reals"], placed["groups"], placed["group_reals"], placed["tiles"]]
    forms: dict[str, Any] = {
        "STEP": step,
        "SCALED": out.dtype != torch.uint8,
        "TURNS": bool((recipe.gains[:, 1] != 1).any()),
        "TILES": next(k for k in kernels.TILES if k >= np.diff(recipe.tile_offsets).max(initial=1)),
        "COLUMNS": kernels.COLUMNS,
        "ROWS": kernels.ROWS,
        "num_warps": 1,
        "num_stages": 1,
    }
    upright = tables["slots"][:, 2]
    with torch.cuda.device(out.device if out.device.type == "cuda" else -1):
        if upright.any():
            kernels.draw_whole[grid](*common, *sizes, **forms)
            mixed = forms | {"ROWS": kernels.MIXED_ROWS, "num_warps": kernels.WARPS}
            low = grid[0], -(-height // kernels.MIXED_ROWS), grid[2]
            kernels.draw_mixed[low](*common, placed["gray"], *sizes, **mixed)
        if not upright.all():
            narrow = forms | {"COLUMNS": kernels.NARROW}
            kernels.draw_turned[-(-width // kernels.NARROW), grid[1], grid[2]](
                *common, placed["group_places"], common[0] if masks is None else masks, *sizes, **narrow
            )


def to_device(arrays: dict[str, npt.NDArray[Any]], device: Any) -> dict[str, Any]:
    """Copy arrays to a device in one piece, without waiting for it.

    Args:
        arrays: By name, of types that torch has.
        device: A torch device.

    Returns:
        A tensor for each, all of them views of one.
    """
    import torch

    starts, nbytes = {}, 0
    for name, array in arrays.items():
        starts[name] = nbytes
        nbytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    # torch keeps page-locked memory for the next one to ask, and gives it out only when the copy from it is done.
    packed = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    raw: U8 = packed.numpy()
    for name, array in arrays.items():
        raw[starts[name] : starts[name] + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved = packed.to(device, non_blocking=True)
    types = {name: torch.from_numpy(array[:0].reshape(-1)).dtype for name, array in arrays.items()}
    return {
        name: moved[starts[name] : starts[name] + array.nbytes].view(types[name]).view(array.shape)
        for name, array in arrays.items()
    }
