"""Memory for the pictures of a batch, used again as soon as nobody refers to it.

A batch of 64 pictures of 640 px takes 79 MB. Fresh memory of that size comes from the system page by page, each one zeroed at
its first touch: more work than copying the batch. Used memory comes back at no cost, if it is certain that nobody looks at it.
That is not asked of the consumer, who may keep a slice for a plot in another thread: it is read off the references.

How. A buffer is a mapping of its own. What is handed out is an array made over it for this one time. Every view of that array, a
``torch.from_numpy`` of one and every view of that tensor keep exactly this array alive (an array of foreign memory is where NumPy
ends the chain of bases, and a tensor's storage holds the array that it was made from). So when this array dies nobody can see
the memory any more, and only then does it go back.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]


class Buffers:
    """Hands out arrays and takes their memory back by itself. Safe in any number of threads, and without a lock.

    No lock, because memory comes back wherever the last reference goes, also within a garbage collection that strikes a thread
    while it takes a buffer; and because a fork copies locks in whatever state they are.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()
        self._largest = 0

    def take(self, shape: tuple[int, ...]) -> U8:
        """Return an array to write to, of arbitrary content and contiguous; its first byte is the first of a page.

        Args:
            shape: Of the array. Buffers that are too small for it are let go, and the new one is as large as the largest ever
                asked for: batches of several shapes end up with one set of buffers that fits all.
        """
        nbytes = math.prod(shape)
        self._largest = max(self._largest, nbytes, 1)
        memory = self._pop(nbytes)
        flat = np.frombuffer(memory, np.uint8, nbytes)
        # Whatever outlives this object keeps its list; no call at exit, when memory is let go anyway.
        weakref.finalize(flat, self._free.append, memory).atexit = False
        return flat.reshape(shape)

    def _pop(self, nbytes: int) -> mmap.mmap:
        while True:
            try:
                memory = self._free.pop()  # the last one in: its pages are the likeliest to be in a cache
            except IndexError:
                # Private: a child that is forked must not draw into the pictures of its parent.
                return mmap.mmap(-1, self._largest, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if len(memory) >= nbytes:
                return memory

    def free(self) -> int:
        """Return how many buffers wait to be used again."""
        return len(self._free)
