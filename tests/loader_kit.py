"""Samples without a store, whose pixels say which sample they are, and a look at the threads that are left.

The loader's own work is order, threads, memory and state; with these it can be stopped, made to fail and counted at will.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.loader import Loader
from fastdata.prefetch import THREAD_NAME

U8 = npt.NDArray[np.uint8]

WAIT_S = 30.0
"""After which something that must happen has not."""


def pixels(ids: npt.ArrayLike, epoch: int, hw: tuple[int, int] = (4, 8)) -> U8:
    """The pictures of samples: different for any two samples of the tests."""
    key = np.asarray(ids, np.int64)[:, None, None, None] * 7 + epoch * 101
    plane = np.arange(3 * hw[0] * hw[1]).reshape(1, 3, *hw)
    return ((key * (plane + 1) + plane) % 256).astype(np.uint8)


class Pictures:
    """Stands in for :class:`fastdata.samples.Samples`.

    Args:
        n: How many.
        augment: For training.
        shapes_hw: Of each batch of ``batch_size`` ids, where they differ.
        batch_size: Of those.
        happens: Called with ids and epoch when samples are drawn, in the thread that draws them.
        settings: What the fingerprint says.
    """

    def __init__(
        self,
        n: int,
        *,
        augment: bool = True,
        shapes_hw: Sequence[tuple[int, int]] = (),
        batch_size: int = 16,
        happens: Callable[[list[int], int], None] = lambda ids, epoch: None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.n, self.augment, self.shapes_hw, self.batch_size, self.happens = n, augment, shapes_hw, batch_size, happens
        self.settings = {"store": "one", "policy": {"scale": (0.5, 1.5), "mosaic": 1.0}} if settings is None else settings
        self.seed, self.bad, self.shapes_differ = 3, set[int](), bool(shapes_hw)
        self.im_files = [f"train/{i}.jpg" for i in range(n)]

    def __len__(self) -> int:
        return self.n

    def shape_of(self, ids: npt.ArrayLike) -> tuple[int, int, int, int]:
        ids = np.asarray(ids)
        hw = self.shapes_hw[int(ids[0]) // self.batch_size] if self.shapes_hw else (4, 8)
        return len(ids), 3, *hw

    def draw(self, ids: npt.ArrayLike, epoch: int = 0, draws: npt.ArrayLike = 0, out: U8 | None = None) -> tuple[Any, U8]:
        assert out is not None
        numbers = np.asarray(ids).tolist()
        self.happens(numbers, epoch)
        out[...] = pixels(ids, epoch, (out.shape[2], out.shape[3]))
        return SimpleNamespace(ids=numbers, epoch=epoch), out

    def batch(self, recipe: Any, images: U8) -> dict[str, Any]:
        cls = torch.tensor(recipe.ids, dtype=torch.float32)[:, None] + recipe.epoch
        return {"img": torch.from_numpy(images), "cls": cls, "ids": recipe.ids, "epoch": recipe.epoch}

    def fingerprint(self) -> dict[str, Any]:
        return self.settings


def loader_of(samples: Any, batch_size: int = 2, **options: Any) -> Loader:
    """A loader of two threads unless told otherwise."""
    return Loader(samples, batch_size, **{"threads": 2, **options})


def ids_of(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    """The ids of each batch."""
    return [batch["ids"] for batch in batches]


def all_ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    """The ids of all batches, one after the other."""
    return list(chain.from_iterable(ids_of(batches)))


def is_right(batch: dict[str, Any]) -> bool:
    """Whether the pixels and labels of a batch are those of its samples."""
    b, _, h, w = batch["img"].shape
    right = pixels(batch["ids"], batch["epoch"], (h, w))
    labels = [[i + batch["epoch"]] for i in batch["ids"]]
    return b == len(batch["ids"]) and np.array_equal(batch["img"].numpy(), right) and batch["cls"].tolist() == labels


def threads() -> list[threading.Thread]:
    """The threads that make something ahead, of any loader."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def all_threads_end() -> bool:
    """Wait for the threads that were told to end, each of which may finish a batch; say whether they did."""
    until = time.monotonic() + WAIT_S
    while threads() and time.monotonic() < until:
        time.sleep(0.002)
    return not threads()
