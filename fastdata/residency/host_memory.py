"""Main memory that a GPU's kernels read by themselves: mapped, filled, locked into place.

Not PyTorch's ``pin_memory``: it rounds up to a power of two, which for 19 GB of pictures is 34, and keeps what is let go.

The GPU reads at the address that the processor has. That is so on every 64-bit Linux with unified addresses and
``cudaDevAttrCanUseHostPointerForRegisteredMem`` (all GPUs since 2014 but for some of Tegra); here it is tried.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastdata.residency.budget import DoesNotFit, gb

if TYPE_CHECKING:
    from torch import device as TorchDevice

U8 = npt.NDArray[np.uint8]

PORTABLE, MAPPED = 1, 2
"""cudaHostRegisterPortable, for every GPU of the process; cudaHostRegisterMapped, for kernels (CUDA Runtime API)."""
WIPE_ON_FORK = 18
"""MADV_WIPEONFORK (madvise(2)), which Python does not name."""
PROBED_NBYTES = 64


class HostMemory:
    """Memory of a fixed size. It stays while anybody refers to it.

    Args:
        nbytes: How much, at least 1.
        file: A descriptor of memory that processes share (memfd_create(2)), which may be closed afterwards; ``None``: its own.

    Raises:
        DoesNotFit: There is no room for it.
    """

    def __init__(self, nbytes: int, file: int | None = None) -> None:
        try:
            if file is None:
                self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                self._map = mmap.mmap(file, nbytes)
        except OSError as err:
            raise DoesNotFit(f"{gb(nbytes)} of pictures must fit in main memory, got: {err}") from err
        with contextlib.suppress(OSError):  # a kernel without huge pages. With them: filled in two thirds of the time
            self._map.madvise(mmap.MADV_HUGEPAGE)
        if file is None:
            with contextlib.suppress(OSError):  # a fork copies pages that a device has locked, all at once, for a child that
                self._map.madvise(WIPE_ON_FORK)  # has no use for them
        self.array: U8 = np.frombuffer(self._map, np.uint8)
        """(nbytes,)"""
        self.address: int = self.array.__array_interface__["data"][0]

    @contextlib.contextmanager
    def block(self, chunk: int, start: int, nbytes: int) -> Iterator[U8]:
        """Give a part of it to fill; ``chunk`` is always 0."""
        yield self.array[start : start + nbytes]

    def lock(self, device: TorchDevice) -> None:
        """Lock it into place, to be read by a GPU at :attr:`address` until it goes. Fill it before: that is faster.

        Raises:
            DoesNotFit: It cannot be locked, or not be read there.
        """
        import torch

        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            code = runtime.cudaHostRegister(self.address, len(self.array), PORTABLE | MAPPED)
            if int(code):
                _forget_error(device)
                why = runtime.cudaGetErrorString(code)
                raise DoesNotFit(f"{gb(len(self.array))} of main memory must be locked for {device}, got: {why}")
        # Also when the program ends, before CUDA does. The mapping is an argument so that it is there until then.
        weakref.finalize(self, _unlock, self.address, device, os.getpid(), self._map)
        for at in (0, len(self.array) - min(PROBED_NBYTES, len(self.array))):
            want = self.array[at : at + PROBED_NBYTES]
            got = read_at(self.address + at, len(want), device)
            if not np.array_equal(got, want):
                raise DoesNotFit(f"{device} must read locked main memory at the processor's address, got other bytes there")


def read_at(address: int, nbytes: int, device: TorchDevice) -> U8:
    """Have a kernel of a GPU read bytes at an address that it knows.

    Raises:
        DoesNotFit: It does not know it (PyTorch asks cudaPointerGetAttributes).
    """
    import torch

    # The GPU array interface, version 3: shape, type, and the address, which shall not be only read: torch knows no such tensors
    view = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3}
    try:
        seen = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=view), device=device)
        return np.asarray((seen ^ 0).cpu().numpy(), np.uint8)  # an operation: a copy might be done by another engine
    except RuntimeError as err:
        why = str(err).splitlines()[0]
        raise DoesNotFit(f"{device} must read locked main memory at the processor's address, got: {why}") from err


def _unlock(address: int, device: TorchDevice, pid: int, _mapping: mmap.mmap) -> None:
    if os.getpid() != pid:  # a child that was forked has nothing locked
        return
    import torch

    with contextlib.suppress(RuntimeError):  # after an error of the GPU every call fails; the program's end unlocks
        torch.cuda.synchronize(device)  # a kernel may still read
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _forget_error(device: TorchDevice) -> None:
    """Take back the error that CUDA keeps of a call that failed: PyTorch would tell it of its next kernel."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)
