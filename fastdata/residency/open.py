"""Which residency is in use: opened by name, or the next best where that cannot be had, and why in a line.

``auto`` begins with what takes no memory of note: streaming, or decoding by the GPU for a store of JPEGs. When the training has
shown what it takes, :func:`more_source` moves the pictures up, to GPU memory or to page-locked memory. :func:`less_source` is the
way back.

Each rank decides for itself: that it has room says nothing of another, whose GPU may have less.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastdata.residency import Source
from fastdata.residency.budget import HOST_SHARE, DoesNotFit, GpuMemory, choose, gb, gpu_memory, host_available
from fastdata.residency.device import Device
from fastdata.residency.forms import forms
from fastdata.residency.pinned import Pinned
from fastdata.samples import Samples

if TYPE_CHECKING:
    from torch import device as TorchDevice


@dataclass(frozen=True, slots=True)
class Opened:
    """Where pictures are read from."""

    source: Source | None
    """``None``: the processor draws."""
    why: str
    """In a line."""
    fell_back: bool = False
    """Whether it is another than was asked for."""


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens pictures.

    Args:
        samples: Whose.
        device: Which GPU draws them; of the processor: main memory stands for a GPU's.
        reserve_nbytes: GPU memory that stays free beside the training; ``None``: ``budget.reserve_of`` says.
        ahead: Batches that may be in the making at once.
        ranks: How many ranks of ``torch.distributed`` open the same at the same time, so that those of a machine may share
            page-locked memory that was asked for; 1: this one alone.
        quiet: Show no progress.
    """

    samples: Samples
    device: TorchDevice
    reserve_nbytes: int | None = None
    ahead: int = 1
    ranks: int = 1
    quiet: bool = False

    def first(self, residency: str) -> Opened:
        """Open what is asked for, or the next best.

        Args:
            residency: One of :data:`fastdata.residency.RESIDENCIES`.

        Raises:
            BadRecord: All pictures are to be kept, and the record of one is damaged.
        """
        if residency == "auto":
            opened = self._first_of([self._decode, self._stream])
            return Opened(opened.source, f"{_HOW[_name(opened)]} until it is known what the training leaves of the memory")
        if residency == "device":
            return self._first_of([self._device, self._pinned, self._stream])
        if residency == "pinned":
            return self._first_of([self._shared if self._may_share() else self._pinned, self._stream])
        return self._first_of([self._decode, self._stream] if residency == "decode" else [self._stream])

    def more(self, now: Source) -> Opened:
        """Open what is faster if there is room for it, now that the peak of the training is known.

        Args:
            now: Where the pictures are read from; stays so if nothing faster fits.

        Raises:
            BadRecord: The record of a picture that is to be kept is damaged.
        """
        name, why = self._choice()
        if name not in ("device", "pinned"):
            return Opened(now, f"{_HOW[now.name]}: {why}")
        opened = self._first_of([self._device, self._pinned, lambda: now])
        return opened if opened.fell_back else Opened(opened.source, f"{_HOW[_name(opened)]} from now on: {why}")

    def less(self) -> Opened:
        """Open what takes no GPU memory, and no time."""
        return Opened(self._stream(), f"{_HOW['stream']}, for the training needs the GPU memory")

    def _first_of(self, makers: list[Callable[[], Source]]) -> Opened:
        """Open the first that can be had."""
        reasons: list[str] = []
        for make in makers:
            try:
                source = make()
            except DoesNotFit as err:
                reasons.append(str(err))
                continue
            how = _HOW[source.name]
            return Opened(source, f"{how}: {'; '.join(reasons)}" if reasons else f"{how}, as asked for", bool(reasons))
        raise AssertionError("the last one of the makers needs nothing")

    def _device(self) -> Source:
        name, why = self._choice()
        if name != "device":
            raise DoesNotFit(why)
        return Device(self.samples, self.device, progress=not self.quiet)

    def _pinned(self) -> Source:
        self._check_main_memory(_ranks_here())
        return Pinned(self.samples, self.device, progress=not self.quiet)

    def _shared(self) -> Source:
        """As :meth:`_pinned`, but one copy for all ranks of a machine: a collective, so that either all make it or none."""
        import torch.distributed as dist

        error: list[DoesNotFit | None] = [None] * self.ranks
        mine = None
        try:
            self._check_main_memory(1)
        except DoesNotFit as err:
            mine = err
        dist.all_gather_object(error, mine)
        for one in error:
            if one is not None:
                raise one
        return Pinned(self.samples, self.device, shared=True, progress=not self.quiet)

    def _stream(self) -> Source:
        from fastdata.residency.stream import Stream

        return Stream(self.samples, self.device)

    def _decode(self) -> Source:
        from fastdata.residency.decode import Decode, unavailable

        why = unavailable(self.device, self.samples)
        if why is not None:
            raise DoesNotFit(why)
        return Decode(self.samples, self.device, ahead=self.ahead * self.samples.batch_size)

    def _may_share(self) -> bool:
        import torch.distributed as dist

        return self.ranks > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() == self.ranks

    def _choice(self) -> tuple[str, str]:
        host = host_available()
        host = None if host is None else host // _ranks_here()
        gpu = gpu_memory(self.device) if self.device.type == "cuda" else GpuMemory(host or 0, host or 0, 0, 0)
        nbytes = forms(self.samples).total_nbytes
        return choose(nbytes, gpu, host, self.samples.store.manifest.codec, reserve=self.reserve_nbytes)

    def _check_main_memory(self, copies: int) -> None:
        nbytes, host = copies * forms(self.samples).total_nbytes, host_available()
        if host is not None and nbytes > HOST_SHARE * host:
            raise DoesNotFit(
                f"the {gb(nbytes)} of pictures do not fit in half of the {gb(host)} of main memory that are available"
                + (f", a copy for each of {copies} ranks" if copies > 1 else "")
            )


_HOW = {
    "device": "pictures are in GPU memory",
    "pinned": "pictures are in page-locked main memory",
    "stream": "pictures are streamed from the store",
    "decode": "pictures are decoded by the GPU",
}


def _name(opened: Opened) -> str:
    return "" if opened.source is None else opened.source.name


def _ranks_here() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(told), 1) if told.isdecimal() else 1
