"""Every picture in GPU memory: a batch needs nothing but its plan.

The memory is PyTorch's own, so its limits and its statistics know of it, and what is given back serves the training at once. It
is asked for before anything is read: too little of it shows within a moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.errors import UsageError
from fastdata.residency import Fetched
from fastdata.residency.budget import DoesNotFit, gb
from fastdata.residency.forms import forms
from fastdata.residency.pinned_ring import Ring
from fastdata.residency.upload import Table, fill, lay_out, note_bad
from fastdata.samples import Samples

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as TorchDevice

U8 = npt.NDArray[np.uint8]

CHUNK_NBYTES = (1 << 30) - 64
"""Of one piece of GPU memory, slack included a GiB: pieces of that size are found where one of the whole split's is not."""

_NO_MEMORY = re.compile("out of memory|can't allocate memory")
"""Of the GPU, of page-locked memory, of the processor's."""


class Device:
    """Source of pictures that are all in GPU memory.

    Making one uploads them, which takes as long as reading, decoding and resizing them does.

    Args:
        samples: Whose recipes are fetched.
        device: Which GPU; of the processor: ordinary memory.
        progress: Show how far the upload is.
        threads: That upload; ``None``: as many as cores may be used.

    Raises:
        DoesNotFit: There is too little GPU memory; nothing of it is kept.
        BadRecord: A record is damaged, and the samples are not planned around it; nothing is kept either.
    """

    name = "device"
    nbytes_host = 0

    def __init__(self, samples: Samples, device: TorchDevice, *, progress: bool = True, threads: int | None = None) -> None:
        import torch

        if device.type == "cuda" and device.index is None:  # the threads below have a current GPU of their own
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        made = forms(samples)
        layout = lay_out(made, CHUNK_NBYTES)
        arena = _Arena(device)
        try:
            arena.allocate(layout.chunk_nbytes)
            bad = fill(samples, made, layout, arena.block, verb="uploading", progress=progress, threads=threads)
            arena.finish()
        except BaseException as err:
            arena.drop()
            if isinstance(err, RuntimeError) and _NO_MEMORY.search(str(err)):
                why = str(err).splitlines()[0]
                raise DoesNotFit(f"{gb(layout.total_nbytes)} of pictures must fit in the memory of {device}, got: {why}") from err
            raise
        note_bad(samples, made, bad)
        table = Table(samples, made, layout, [chunk.data_ptr() for chunk in arena.chunks], bad)
        self._resident: tuple[Table, tuple[Tensor, ...]] | None = table, tuple(arena.chunks)
        self.nbytes_device = layout.total_nbytes

    def fetch(self, recipe: Recipe) -> Fetched:
        """Look up where a recipe's tiles are.

        Raises:
            BadRecord: A tile is of a record that was damaged when it was to be uploaded.
            UsageError: The source has been closed.
        """
        resident = self._resident  # once: another thread may close this
        if resident is None:
            raise UsageError("the source must be open, got one that was closed")
        return Fetched(resident[0].where(recipe), hold=resident[1])

    def close(self) -> None:
        """Give the memory back, to other programs as well; what a batch in the making holds goes later. May be called twice."""
        if self._resident is None:
            return
        _wait(self._device)  # a kernel may still read
        self._resident = None
        self.nbytes_device = 0
        _empty(self._device)


class _Arena:
    """GPU memory, filled through a ring of page-locked memory on a stream of its own."""

    def __init__(self, device: TorchDevice) -> None:
        import torch

        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ring = Ring(device)
        self.chunks: list[Tensor] = []

    def allocate(self, sizes: Sequence[int]) -> None:
        """Take all memory."""
        import torch

        # On the stream that copies: memory that another stream has let go may still be read there. Not in inference mode, which
        # may be the caller's: no other thread could write to tensors of it.
        with torch.cuda.stream(self._stream), torch.inference_mode(False):
            for nbytes in sizes:
                self.chunks.append(torch.empty(nbytes, dtype=torch.uint8, device=self._device))

    @contextmanager
    def block(self, chunk: int, start: int, nbytes: int) -> Iterator[U8]:
        """Give memory to fill, and copy it."""
        import torch

        buffer, event = self._ring.take(nbytes), None
        try:
            yield buffer.tensor.numpy()
            with torch.cuda.stream(self._stream):
                self.chunks[chunk][start : start + nbytes].copy_(buffer.tensor, non_blocking=True)
                if self._stream is not None:
                    event = self._stream.record_event()
        finally:
            buffer.after(event)

    def finish(self) -> None:
        """Wait until all has been copied, and let the ring go."""
        self._ring.close()
        _wait(self._device)

    def drop(self) -> None:
        """Give all memory back."""
        try:
            self.finish()
        finally:
            self.chunks.clear()
            _empty(self._device)


def _wait(device: TorchDevice) -> None:
    """Wait for all work of a GPU."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _empty(device: TorchDevice) -> None:
    """Have PyTorch give back to the driver what no tensor is in."""
    if device.type == "cuda":
        import torch

        with torch.cuda.device(device):
            torch.cuda.empty_cache()
