"""Where the pixels of a batch are when the GPU draws it.

* **device**: every picture in GPU memory. Nothing travels but the plan.
* **pinned**: every picture in page-locked host memory, which the kernel reads over PCIe by itself, the parts that it needs.
* **stream**: pictures in the store, so in the page cache; what can be seen of each is gathered by the processor and copied.
* **decode**: a store of JPEG bytes, decoded on the GPU.
* **auto**: starts with one of the last two, and moves up when it is known what the training leaves of the memory.

Which one it is decides how fast a batch is there and how much memory it takes, never what is in it.

A *source* is one of these at work. It has a ``name``, ``fetch(recipe)`` which returns a :class:`Fetched` and may be called by
several threads at once, ``nbytes_device`` and ``nbytes_host`` (what it keeps), and ``close()``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe

I64 = npt.NDArray[np.int64]

RESIDENCIES = ("auto", "device", "pinned", "stream", "decode")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the T tiles of a recipe are."""

    where: I64
    """(T, 3) address of the tile's first pixel, bytes from channel to channel (0: one gray plane stands for all three), bytes
    from row to row; zeros for a tile of which nothing is visible. An address may be virtual: only pixels that can be seen need
    exist. With ``staged`` it counts from the beginning of that."""
    staged: Any = None
    """Bytes that must be copied to the GPU first: a uint8 tensor of one dimension, page-locked where there is a GPU."""
    hold: tuple[Any, ...] = ()
    """What must stay alive until the batch is drawn."""


class Source(Protocol):
    """What every residency can do."""

    name: str
    nbytes_device: int
    """GPU memory that is kept."""
    nbytes_host: int
    """Host memory that is kept, beside the page cache."""

    def fetch(self, recipe: Recipe) -> Fetched:
        """Return where a recipe's tiles are, after bringing them there.

        Raises:
            BadRecord: A record is damaged.
        """

    def close(self) -> None:
        """Let the memory go."""
