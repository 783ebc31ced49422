"""Page-locked memory that a batch is put together in before it is copied to the GPU, used again when that has been done.

Page-locked, because only such memory is copied while the program goes on; used again, because locking pages takes longer than
filling them. Whoever takes a buffer says by :meth:`Buffer.after` when it is free: then, or after an event of the GPU.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device


class Buffer:
    """Memory for one batch."""

    def __init__(self, ring: Ring, memory: Tensor, nbytes: int) -> None:
        self._ring, self._memory = ring, memory
        self.tensor = memory[:nbytes]
        """(nbytes,) uint8, of arbitrary content."""

    def after(self, event: Any) -> None:
        """Give the memory back: now when ``event`` is ``None``, else when that event of the GPU has happened. Call it once."""
        self._ring._give_back(self, event)


class Ring:
    """Hands out page-locked memory. Safe in any number of threads.

    There are at most twice as many buffers as are being filled at the same time: when as many as that wait for their copies, the
    oldest of them is waited for. A buffer that goes without :meth:`Buffer.after` is forgotten.

    Args:
        device: The GPU that reads them; of the processor: ordinary memory.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Tensor, Any]] = deque()
        self._taken: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._largest = 0
        self._is_closed = False

    @property
    def nbytes(self) -> int:
        """Host memory in use, whoever has it."""
        with self._lock:
            return sum(memory.numel() for memory, _ in self._waiting) + sum(buffer._memory.numel() for buffer in self._taken)

    def take(self, nbytes: int) -> Buffer:
        """Return memory to fill, whose first byte is the first of a line of the caches."""
        with self._lock:
            self._largest = max(self._largest, nbytes)
            memory, event = self._chosen()
        if event is not None:
            event.synchronize()
        if memory is None or memory.numel() < nbytes:
            memory = self._made(nbytes)
        buffer = Buffer(self, memory, nbytes)
        with self._lock:
            self._taken.add(buffer)
        return buffer

    def _chosen(self) -> tuple[Tensor | None, Any]:
        """Return a buffer to use again and the event to be waited for first; nothing when there shall be a new one."""
        for k, (memory, event) in enumerate(self._waiting):
            if event is None or event.query():
                del self._waiting[k]
                return memory, None
        if len(self._waiting) > len(self._taken) + 1:  # this one is about to be filled too
            return self._waiting.popleft()
        return None, None

    def _made(self, nbytes: int) -> Tensor:
        import torch

        # A power of two: PyTorch rounds page-locked memory up to one, and batches differ in what is seen of their tiles.
        nbytes = 1 << max(self._largest, nbytes, 1).bit_length()
        if self._device.type != "cuda":
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        with torch.cuda.device(self._device):  # or pages would be locked for, and a context made on, the first GPU
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def _give_back(self, buffer: Buffer, event: Any) -> None:
        with self._lock:
            self._taken.discard(buffer)
            if not self._is_closed:
                self._waiting.append((buffer._memory, event))
                return
        if event is not None:
            event.synchronize()

    def close(self) -> None:
        """Let all memory go, after the copies from it have been done; what is still taken goes when it is given back."""
        with self._lock:
            self._is_closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        for _, event in waiting:
            if event is not None:
                event.synchronize()
