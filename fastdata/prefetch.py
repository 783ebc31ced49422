"""Results of a function, made ahead of their use by threads and handed out in order.

Threads and not processes: what is made here is drawn by kernels that release the interpreter's lock, and nothing has to be sent.
The threads live for as long as somebody iterates, not longer: starting them costs less than a millisecond an epoch, and then no
thread is ever there to be closed, to be carried over a fork between epochs, or to be waited for by a program that ends.

Only the consumer gives out work, when it asks for a result: a thread makes one thing and never waits for room. So there is
nothing to fill up, no end mark to deliver, and no way for two sides to wait for each other.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

T = TypeVar("T")

THREAD_NAME = "fastdata"
"""How the names of the threads begin."""


class Prefetch(Generic[T]):
    """Iterator over ``make(0)``, ``make(1)``, ... ``make(count - 1)``. For one consumer at a time.

    Lazy: no thread starts before the first result is asked for. An error of ``make(k)`` is raised where result k would be, after
    all results before it; then the iterator has ended. When the iterator goes, by whatever way, what waits is not begun and what
    runs is the last that its thread does.

    Args:
        make: Called from any of the threads, several at once, maybe more than once for the same number (see :meth:`drop`). Must
            hold no reference to this iterator.
        count: How many results.
        threads: At least 1.
        ahead: How many results may be ready or in the making, at least 1.
    """

    def __init__(self, make: Callable[[int], T], count: int, threads: int, ahead: int) -> None:
        self._make, self._count, self._threads, self._ahead = make, count, threads, ahead
        self.given = 0
        """How many results were taken."""
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[T]] = deque()
        self._pid = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self.given >= self._count:
            raise StopIteration
        pool = self._start()
        try:
            while len(self._waiting) < min(self._ahead, self._count - self.given):
                self._waiting.append(pool.submit(self._make, self.given + len(self._waiting)))
        except BaseException:
            # Interrupted while a thread starts, the pool does not know of it: only its end, said now, lets the program end.
            self.drop(wait=False)
            raise
        try:
            # Interrupted while it waits, it can be asked again: nothing has been taken away yet.
            result = self._waiting[0].result()
        except Exception:
            self.given = self._count
            self.drop()
            raise
        self.given += 1  # first: an interrupt may come as the call below returns, and nothing must be counted twice then
        self._waiting.popleft()
        if self.given == self._count:
            self.drop()
        return result

    def drop(self, wait: bool = True) -> None:
        """Forget what was made ahead and end the threads. The next result that is asked for is made anew, by new threads.

        Args:
            wait: Until the threads have ended: each finishes what it is making.
        """
        pool, self._pool = self._pool, None
        self._waiting.clear()
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait, cancel_futures=True)

    def _start(self) -> ThreadPoolExecutor:
        if self._pool is not None and self._pid == os.getpid():
            return self._pool
        # A process that was forked has the futures but no thread that would ever fulfil them: it makes them itself.
        self._waiting.clear()
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(self._threads, THREAD_NAME)
        return self._pool

    def __del__(self) -> None:
        # Must not wait: a garbage collection may run this anywhere, in a thread that holds what the others wait for.
        self.drop(wait=False)
