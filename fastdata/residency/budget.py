"""How much memory the pictures may take, and so where they are kept: numbers in, a name and a reason out.

The training comes first. What it takes is known after an epoch and a validation: the peak of what PyTorch has reserved. Others
take what the driver says is in use and PyTorch does not have. Of the rest a reserve stays free, because a peak is not a bound: a
batch with more objects, a size that cuDNN sees for the first time, fragments, and what NCCL, cuBLAS and the display take outside
of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastdata.errors import FastdataError
from fastdata.host import KERNEL, Roots, group_folders, kernel_text, memory

if TYPE_CHECKING:
    from torch import device as TorchDevice

RESERVE_SHARE = 0.1
"""Of the card: workspaces and the loss of a crowded batch grow with the training, which was made to fit the card."""
RESERVE_NBYTES = 1 << 30
"""At least: on a small card a context, cuBLAS's and cuDNN's workspaces and a few objects more come to several hundred MB."""
HOST_SHARE = 0.5
"""Of the main memory that is available: page-locked memory cannot be swapped, and the page cache, other ranks' workers and the
trainer's own copies need the rest."""


class DoesNotFit(FastdataError, MemoryError):
    """Memory that was to hold all pictures is not there, whatever the numbers said before."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of a GPU, as this process sees it.

    Under ``torch.cuda.set_per_process_memory_fraction`` the card is that share of it: PyTorch gives out no more.
    """

    total: int
    free: int
    """That nobody has now."""
    reserved: int
    """That PyTorch has now in this process, whether or not tensors are in it."""
    peak: int
    """That PyTorch has had at most."""


def gpu_memory(device: TorchDevice) -> GpuMemory:
    """Ask PyTorch and the driver."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    reserved, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
    share_of = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # not in 2.6
    return capped(GpuMemory(total, free, reserved, peak), 1.0 if share_of is None else share_of(device))


def capped(card: GpuMemory, share: float) -> GpuMemory:
    """Return what is left of a card when this process may have a share of it."""
    total = int(card.total * share)
    return GpuMemory(total, max(min(card.free, total - card.reserved), 0), card.reserved, card.peak)


def host_available(roots: Roots = KERNEL) -> int | None:
    """Return the main memory that this process can still have; ``None`` when the kernel does not say.

    Both what the machine has available and what the limits of the control groups leave count. The page cache is no use of memory
    in either: it makes room.
    """
    left = [memory(roots).available]
    for folder, version in group_folders("memory", roots):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (kernel_text(folder / name).strip() for name in names)
        if limit.isdecimal() and used.isdecimal():
            told = dict(line.split(" ", 1) for line in kernel_text(folder / "memory.stat").splitlines() if " " in line)
            prefix = "" if version == 2 else "total_"
            cached = sum(int(told.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
            left.append(max(int(limit) - max(int(used) - cached, 0), 0))
    known = [nbytes for nbytes in left if nbytes is not None]
    return min(known) if known else None


def reserve_of(gpu_total: int) -> int:
    """Return the bytes of GPU memory that stay free unless the user says how many."""
    return max(RESERVE_NBYTES, int(RESERVE_SHARE * gpu_total))


def gpu_room(gpu: GpuMemory, reserve: int) -> int:
    """Return the bytes that pictures may take beside the training at its peak, other programs and a reserve; maybe below 0."""
    return gpu.free + gpu.reserved - gpu.peak - reserve


def choose(
    split_nbytes: int,
    gpu: GpuMemory,
    host: int | None,
    codec: str,
    *,
    locked_nbytes: int | None = None,
    reserve: int | None = None,
    decoder: bool = True,
) -> tuple[str, str]:
    """Choose where pictures are kept, once the peak of the training is known.

    Args:
        split_nbytes: Of all pictures in the form in which they are used, as they lie in GPU memory.
        gpu: Memory of the GPU, without pictures of this split in it.
        host: Main memory that is available, see :func:`host_available`.
        codec: Of the store.
        locked_nbytes: Of all pictures as they lie in page-locked memory, where rows are padded; ``None``: as many.
        reserve: Bytes of GPU memory that stay free; ``None``: :func:`reserve_of`.
        decoder: Whether the GPU decodes JPEGs here.

    Returns:
        ``device``, ``pinned``, ``stream`` or ``decode``, and why in one line.
    """
    reserve = reserve_of(gpu.total) if reserve is None else reserve
    room = gpu_room(gpu, reserve)
    others = gpu.total - gpu.free - gpu.reserved
    locked_nbytes = split_nbytes if locked_nbytes is None else locked_nbytes
    split = gb(split_nbytes)
    sums = f"{gb(gpu.total)} less {gb(gpu.peak)} of training at its peak, {gb(others)} of others and {gb(reserve)} in reserve"
    if split_nbytes <= room:
        return "device", f"the {split} of pictures fit in GPU memory: {gb(room)} are left, {sums}"
    short = f"the {split} of pictures do not fit in GPU memory: {gb(max(room, 0))} are left, {sums}"
    change = f"to keep them there free {gb(split_nbytes - room)}: a smaller batch, imgsz or reserve_gb"
    if host is None:
        main = "how much main memory is available cannot be told"
    elif locked_nbytes <= host * HOST_SHARE:
        return "pinned", f"{short}; they fit in half of the {gb(host)} of main memory that are available; {change}"
    else:
        main = (
            f"nor in half of the {gb(host)} of main memory that are available, for which {gb(locked_nbytes / HOST_SHARE)} must be"
        )
    name = "decode" if codec == "jpeg" and decoder else "stream"
    return name, f"{short}; {main}; {change}"


def gb(nbytes: float) -> str:
    """Return a size for people, in GB of 10**9 bytes, small enough to be added up."""
    return f"{nbytes / 1e9:.1f} GB"
