"""One copy of the pictures for all ranks of a machine: the first of them fills memory that has a descriptor, the others map it.

Linux shows the open files of a process under ``/proc/<pid>/fd`` to processes of the same user. So no name is left behind, and
the memory goes with the last process that maps it, however that ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastdata.render.tiles import BadRecord
from fastdata.residency.budget import DoesNotFit
from fastdata.residency.host_memory import HostMemory
from fastdata.residency.upload import Bad

WAIT = timedelta(hours=2)
"""For the rank that fills: 19 GB from a disk or network that gives 3 MB/s. PyTorch's own limit for NCCL is 10 minutes."""


class NotShared(Exception):
    """Ranks cannot share; each may have a copy of its own."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What the rank that fills tells the others."""

    path: str = ""
    inode: tuple[int, int] = (0, 0)
    """Device and number: the path may stand for another file by now."""
    bad: tuple[tuple[int, str], ...] = ()
    error: BadRecord | DoesNotFit | None = None


def shared_copy(nbytes: int, content: str, fill: Callable[[HostMemory], Bad]) -> tuple[HostMemory, Bad]:
    """Return memory that is filled by one rank of each machine, and what was left out of it.

    A collective of the default group of ``torch.distributed``: every rank must call it, in the same order as its other
    collectives. It goes over a gloo group of its own, which may wait longer than NCCL and takes no GPU memory.

    Args:
        nbytes: How much.
        content: Says what is filled in: ranks of the same content share.
        fill: Called by one rank of each machine.

    Raises:
        NotShared: It cannot be shared. Raised by this rank, not always by the others.
        BadRecord, DoesNotFit: As ``fill`` raised it, in every rank that was to share.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise NotShared("torch.distributed is not initialised")
    try:
        group = dist.new_group(backend="gloo", timeout=WAIT)
        try:
            return _shared(group, nbytes, content, fill)
        finally:
            dist.destroy_process_group(group)  # whoever still waits for this rank learns that it is gone
    except (RuntimeError, OSError) as err:  # of the group, or of what it goes over
        raise NotShared(f"{type(err).__name__}: {(str(err).splitlines() or ['no reason'])[0]}") from err


def _shared(group: Any, nbytes: int, content: str, fill: Callable[[HostMemory], Bad]) -> tuple[HostMemory, Bad]:
    import torch.distributed as dist

    me = dist.get_rank()
    places = _gathered(group, (_node(), content))
    leader = places.index(places[me])  # the lowest rank of this machine and content
    if leader == me:
        return _led(group, nbytes, fill)
    made: _Made = _gathered(group, None)[leader]
    try:
        if made.error is not None:
            raise made.error
        return _mapped(made, nbytes), dict(made.bad)
    finally:
        dist.barrier(group)


def _led(group: Any, nbytes: int, fill: Callable[[HostMemory], Bad]) -> tuple[HostMemory, Bad]:
    """Fill memory and show it to the others, or tell them why not: they wait for one or the other."""
    import torch.distributed as dist

    file = os.memfd_create("fastdata", os.MFD_CLOEXEC)
    try:
        error: Exception | None = None
        try:
            os.ftruncate(file, nbytes)
            memory = HostMemory(nbytes, file)
            bad = fill(memory)
            status = os.fstat(file)
            made = _Made(f"/proc/{os.getpid()}/fd/{file}", (status.st_dev, status.st_ino), tuple(bad.items()))
        except Exception as err:
            error = err
            told = err if isinstance(err, (BadRecord, DoesNotFit)) else DoesNotFit(f"{type(err).__name__}: {err}")
            made = _Made(error=told)
        _gathered(group, made)
        dist.barrier(group)  # the others have opened it
    finally:
        os.close(file)
    if error is not None:
        raise error
    return memory, bad


def _mapped(made: _Made, nbytes: int) -> HostMemory:
    """Map what another process has filled."""
    file = os.open(made.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) != made.inode or status.st_size != nbytes:
            raise NotShared(f"{made.path} must be the memory that the first rank has filled, got another file")
        return HostMemory(nbytes, file)
    finally:
        os.close(file)


def _gathered(group: Any, mine: Any) -> list[Any]:
    """Return what each rank says, by rank."""
    import torch.distributed as dist

    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, mine, group=group)
    return said


def _node() -> tuple[str, str, int]:
    """Return what processes have in common that see each other's open files: the running kernel, process numbers, the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, os.readlink("/proc/self/ns/pid"), os.getuid()
