"""Every picture in main memory that is locked into place: the GPU reads over PCIe what it needs, and no processor helps it.

A page that is locked cannot be swapped or moved, so the GPU may read it at any time; :mod:`fastdata.residency.host_memory`. What
a batch shows is read once, by a kernel that does nothing else; :mod:`fastdata.residency.pull`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from fastdata.augment.recipe import Recipe
from fastdata.checksum import crc32c
from fastdata.errors import UsageError
from fastdata.residency import Fetched
from fastdata.residency.budget import HOST_SHARE, DoesNotFit, gb, host_available
from fastdata.residency.forms import Forms, forms
from fastdata.residency.host_memory import HostMemory
from fastdata.residency.node_copy import NotShared, shared_copy
from fastdata.residency.pull import PULLED_NBYTES, pull
from fastdata.residency.upload import Bad, Table, fill, lay_out, note_bad
from fastdata.samples import Samples
from fastdata.terminal import say

if TYPE_CHECKING:
    from torch import device as TorchDevice


class Pinned:
    """Source of pictures that are all in page-locked main memory.

    Making one reads, decodes and resizes them all.

    Args:
        samples: Whose recipes are fetched.
        device: The GPU that reads them; of the processor: nothing is locked.
        shared: One copy for all ranks of a machine. Then this is a collective: every rank of ``torch.distributed``'s default
            group must make one at the same time. Where it cannot be done each rank has a copy of its own, and says so.
        progress: Show how far it is.
        threads: That read; ``None``: as many as cores may be used.

    Raises:
        DoesNotFit: There is too little main memory, or it cannot be locked; nothing of it is kept.
        BadRecord: A record is damaged, and the samples are not planned around it; nothing is kept either.
    """

    name = "pinned"
    nbytes_device = 0

    def __init__(
        self, samples: Samples, device: TorchDevice, *, shared: bool = False, progress: bool = True, threads: int | None = None
    ) -> None:
        import torch

        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        made = forms(samples)
        layout = lay_out(made, None, PULLED_NBYTES)
        nbytes = layout.total_nbytes

        def filled(memory: HostMemory) -> Bad:
            return fill(samples, made, layout, memory.block, verb="loading", progress=progress, threads=threads)

        memory = None
        if shared:
            try:
                memory, bad = shared_copy(nbytes, _content(samples, made), filled)
            except NotShared as err:
                say(f"fastdata: a copy of the pictures for this process alone, {gb(nbytes)} of main memory: {err}")
                _check_copies(nbytes)
        if memory is None:
            memory = HostMemory(nbytes)
            bad = filled(memory)
        if device.type == "cuda":
            memory.lock(device)
        note_bad(samples, made, bad)
        table = Table(samples, made, layout, [memory.address], bad)
        self._resident: tuple[Table, HostMemory] | None = table, memory
        self.nbytes_host = nbytes
        """Also where ranks share it."""

    def fetch(self, recipe: Recipe) -> Fetched:
        """Look up where a recipe's tiles are.

        Raises:
            BadRecord: A tile is of a record that was damaged when it was to be read.
            UsageError: The source has been closed.
        """
        resident = self._resident  # once: another thread may close this
        if resident is None:
            raise UsageError("the source must be open, got one that was closed")
        table, memory = resident
        where = table.where(recipe)
        if self._device.type != "cuda":
            return Fetched(where, hold=(memory,))
        pulled = pull(recipe, where, self._device)
        return Fetched(pulled.where, hold=(memory, *pulled.hold))

    def close(self) -> None:
        """Unlock the memory and let it go; what a batch in the making holds goes later. May be called twice."""
        self._resident = None
        self.nbytes_host = 0


def _content(samples: Samples, made: Forms) -> str:
    """Return what ranks must have in common to share their pictures."""
    store = samples.store
    rows = crc32c(np.ascontiguousarray(np.column_stack([made.rows, made.planes])))
    # The rule for damaged records as well: it is the first rank's that counts.
    return f"{store.manifest.uid} {rows:08x} {samples.on_bad} {samples.augment}"


def _check_copies(nbytes: int) -> None:
    """Refuse a copy for each rank of this machine where all of them would take too much."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    copies, available = max(int(told), 1) if told.isdecimal() else 1, host_available()
    if available is not None and copies * nbytes > HOST_SHARE * available:
        raise DoesNotFit(f"{copies} copies of {gb(nbytes)} must fit in half of the main memory, got {gb(available)} available")
