"""Loaders of batches on a GPU: on one where there is one, in ordinary memory everywhere.

In ordinary memory the processor draws in the kernels' place, from the addresses that they would get: what a batch holds is then
bit for bit what the processor's own loader makes, and a place that is wrong shows. Triton's interpreter would take a minute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import gpu_kit
import numpy as np
import pytest
import torch

from fastdata.augment.recipe import Recipe
from fastdata.gpu_maker import GpuMaker
from fastdata.loader import Loader
from fastdata.render import cpu
from fastdata.render.tolerance import TOLERANCES
from fastdata.residency.visible import visible_rects

ON_GPU = torch.cuda.is_available()
LEVELS = TOLERANCES["cpu_colour"].levels + TOLERANCES["cuda"].levels if ON_GPU else 0
"""How far both loaders may be apart: each is near the reference."""
MEAN = TOLERANCES["cpu_colour"].mean + TOLERANCES["cuda"].mean if ON_GPU else 0


class AnyLoader(Loader):
    """A loader that takes ordinary memory for a GPU where there is none."""

    _device_of = staticmethod(lambda device: None if device is None else gpu_kit.any_device())


def gpu_loader(source: Any, batch_size: int = 2, **options: Any) -> Loader:
    """A loader of batches on a GPU, or in ordinary memory; of two threads unless told otherwise."""
    return AnyLoader(source, batch_size, **{"device": "cuda", "threads": 2, **options})


def maker_of(loader: Loader) -> GpuMaker:
    """What makes the batches of a loader."""
    maker = loader._maker
    assert isinstance(maker, GpuMaker)
    return maker


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processor draw where there is no GPU."""
    if not ON_GPU:
        monkeypatch.setattr(GpuMaker, "_drawn", drawn_by_processor)


def drawn_by_processor(maker: GpuMaker, recipe: Recipe, where: Any) -> Any:
    """Draw from addresses, reading only what the kernels may read."""
    tiles = []
    for row, rect, (height, width) in zip(where.tolist(), visible_rects(recipe).tolist(), recipe.size_hw.tolist(), strict=True):
        (address, plane, line), (x0, y0, x1, y1) = row, rect
        tile = np.full((1 if plane == 0 else 3, height, width), 255, np.uint8)
        for channel in range(len(tile) if line else 0):
            for y in range(y0, y1):
                begin = address + channel * plane + y * line + x0
                tile[channel, y, x0:x1] = np.frombuffer((ctypes.c_uint8 * (x1 - x0)).from_address(begin), np.uint8)
        tiles.append(tile)
    out = np.empty((len(recipe), 3, *recipe.out_hw), np.uint8)
    cpu.draw(recipe, tiles, out)
    return torch.from_numpy(out)


def assert_same(got: Iterable[dict[str, Any]], want: Iterable[dict[str, Any]], levels: float = LEVELS) -> int:
    """Compare batches: labels bit for bit, pixels as near as two renderers are; return how many there were."""
    count = 0
    for a, b in zip(got, want, strict=True):
        count += 1
        assert list(a) == list(b)
        for key, value in b.items():
            if not isinstance(value, torch.Tensor):
                assert a[key] == value, key
                continue
            assert a[key].device.type == gpu_kit.any_device().type
            assert (a[key].dtype, a[key].shape) == (value.dtype, value.shape), key
            if key == "img":
                off = (a[key].cpu().int() - value.int()).abs().float()
                assert off.max() <= levels, key
                assert off.mean() <= max(MEAN, levels / 100), key
            else:
                assert torch.equal(a[key].cpu(), value), key
    return count
