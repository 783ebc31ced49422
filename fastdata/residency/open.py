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
from fastdata.residency.device import CHUNK_NBYTES, Device
from fastdata.residency.forms import forms
from fastdata.residency.pinned import Pinned
from fastdata.residency.pull import PULLED_NBYTES
from fastdata.residency.upload import lay_out
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
            source, _ = self._first_of([self._decode, self._stream])
            return Opened(source, f"{_how(source)} until it is known what the training leaves of the memory")
        makers, reasons = [self._stream], list[str]()
        if residency == "device":
            name, why = self._choice()
            makers, reasons = self._from(name, self._stream), [] if name == "device" else [why]
        elif residency == "pinned":
            makers.insert(0, self._shared if self._may_share() else self._pinned)
        elif residency == "decode":
            makers.insert(0, self._decode)
        source, more = self._first_of(makers)
        reasons += more
        return Opened(source, f"{_how(source)}: {'; '.join(reasons) or 'as asked for'}", fell_back=bool(reasons))

    def more(self, now: Source) -> Opened:
        """Open what is faster if there is room for it, now that the peak of the training is known.

        Args:
            now: Where the pictures are read from; stays so if nothing faster fits.

        Raises:
            BadRecord: The record of a picture that is to be kept is damaged.
        """
        name, why = self._choice()
        if name not in ("device", "pinned"):
            return Opened(now, f"{_how(now)}: {why}")
        source, reasons = self._first_of(self._from(name, lambda: now))
        return Opened(source, f"{_how(source)}{'' if source is now else ' from now on'}: {'; '.join([why, *reasons])}")

    def less(self) -> Opened:
        """Open what takes no GPU memory, and no time."""
        stream = self._stream()
        return Opened(stream, f"{_how(stream)}, for the training needs the GPU memory")

    def _from(self, name: str, last: Callable[[], Source]) -> list[Callable[[], Source]]:
        """Return what may be tried, from what was chosen on."""
        makers = {"device": [self._device, self._pinned], "pinned": [self._pinned], "decode": [self._decode], "stream": []}
        return [*makers[name], last]

    def _first_of(self, makers: list[Callable[[], Source]]) -> tuple[Source, list[str]]:
        """Open the first that can be had; say why it is none before it."""
        reasons = list[str]()
        for make in makers:
            try:
                return make(), reasons
            except DoesNotFit as err:
                reasons.append(str(err))
        raise AssertionError("the last one of the makers needs nothing")

    def _device(self) -> Source:
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
        nbytes = lay_out(forms(self.samples), CHUNK_NBYTES).total_nbytes
        return choose(
            nbytes,
            gpu,
            host,
            self.samples.store.manifest.codec,
            locked_nbytes=self._locked_nbytes(),
            reserve=self.reserve_nbytes,
        )

    def _locked_nbytes(self) -> int:
        return lay_out(forms(self.samples), None, PULLED_NBYTES).total_nbytes

    def _check_main_memory(self, copies: int) -> None:
        nbytes, host = copies * self._locked_nbytes(), host_available()
        if host is not None and nbytes > HOST_SHARE * host:
            raise DoesNotFit(
                f"the {gb(nbytes)} of pictures do not fit in half of the {gb(host)} of main memory that are available"
                + (f", a copy for each of {copies} ranks" if copies > 1 else "")
            )


def _how(source: Source) -> str:
    return {
        "device": "pictures are in GPU memory",
        "pinned": "pictures are in page-locked main memory",
        "stream": "pictures are streamed from the store",
        "decode": "pictures are decoded by the GPU",
    }[source.name]


def _ranks_here() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(told), 1) if told.isdecimal() else 1
