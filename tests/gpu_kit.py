"""Where GPU code is tested: on the GPU where there is one, and in ordinary memory with Triton's interpreter everywhere."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fastdata.augment.recipe import Recipe
from fastdata.render import cuda
from fastdata.render.tiles import load_tiles
from fastdata.store.read import Store


def needs_cuda() -> Any:
    """Return the first GPU.

    A test without one is skipped, or fails where FASTDATA_REQUIRE_CUDA=1 says that there must be one.
    """
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    why = "needs a GPU: torch.cuda.is_available() is False"
    if os.environ.get("FASTDATA_REQUIRE_CUDA") == "1":
        pytest.fail(f"{why}, and FASTDATA_REQUIRE_CUDA=1 says that there must be one")
    pytest.skip(why)


def any_device() -> Any:
    """Return the first GPU, or the processor, whose kernels run in Triton's interpreter."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def placed(tiles: list[npt.NDArray[np.uint8]], device: Any) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Bring tiles to a device; return where they are and what must stay alive."""
    import torch

    where, kept = np.zeros((len(tiles), 3), np.int64), []
    for row, tile in zip(where, tiles, strict=True):
        if tile.size:
            moved = torch.from_numpy(tile.copy()).clone().to(device)  # PyTorch's own memory begins at multiples of 64
            kept.append(moved)
            row[:] = moved.data_ptr(), moved.stride(0) if len(tile) == 3 else 0, moved.stride(1)
    return where, kept


def render(store: Store, recipe: Recipe, **options: Any) -> npt.NDArray[Any]:
    """Draw on the GPU, or in the interpreter, and bring the pixels back: a renderer as the kits want one."""
    device = any_device()
    where, kept = placed(load_tiles(store, recipe), device)
    out: npt.NDArray[Any] = cuda.render(recipe, where, device=device, **options).float().cpu().numpy()
    del kept
    return out if "dtype" in options else out.astype(np.uint8)
