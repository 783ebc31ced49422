"""Results of a function, made ahead of their use by threads and handed out in order.

Threads and not processes: what is made here is drawn by kernels that release the interpreter's lock, and nothing has to be sent.
The threads live for as long as somebody iterates, not longer: starting them costs less than a millisecond an epoch, and then no
thread is ever there to be closed, to be carried over a fork between epochs, or to be waited for by a program that ends.

Only the consumer gives out work, when it asks for a result: a thread makes one thing and never waits for room. So there is
nothing to fill up, no end mark to deliver, and no way for two sides to wait for each other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

T = TypeVar("T")

BUSY_SHARE = 0.5
"""Of the time between two results, in which a gentle iterator leaves the interpreter to its consumer. A training step begins with
thousands of calls, and each gives Python's lock away for a moment: a thread that waits for it gets in, and the step is later by
all that it does. From about the middle of the step on, its backward pass and the GPU are waited for without the lock. In
a model of that on a processor, makers cost a step of 45 ms 10 % of its time, and gentle ones 3 %."""
LONGEST_S = 0.25
"""That a gentle iterator waits at most; less when its consumer does."""

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
        gentle: Make what is not urgent when the consumer does not need the interpreter, see :data:`BUSY_SHARE`. Nothing is urgent
            while half of the results that may be ready are.
    """

    def __init__(self, make: Callable[[int], T], count: int, threads: int, ahead: int, *, gentle: bool = False) -> None:
        self._make, self._count, self._threads, self._ahead = make, count, threads, ahead
        self._gentle, self._given_at = gentle, 0.0
        self._hurry = threading.Event()
        """Set while the consumer waits, and for ever when it needs nothing more."""
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
        make = self._patient() if self._gentle else self._make
        try:
            while len(self._waiting) < min(self._ahead, self._count - self.given):
                self._waiting.append(pool.submit(make, self.given + len(self._waiting)))
        except BaseException:
            # Interrupted while a thread starts, the pool does not know of it: only its end, said now, lets the program end.
            self.drop(wait=False)
            raise
        try:
            # Interrupted while it waits, it can be asked again: nothing has been taken away yet.
            if not self._waiting[0].done():
                self._hurry.set()
            result = self._waiting[0].result()
            self._hurry.clear()
        except Exception:
            self.given = self._count
            self.drop()
            raise
        self.given += 1  # first: an interrupt may come as the call below returns, and nothing must be counted twice then
        self._waiting.popleft()
        if self.given == self._count:
            self.drop()
        self._given_at = time.monotonic()
        return result

    def _patient(self) -> Callable[[int], T]:
        """Return ``make``, to be begun when the consumer will not mind; at once where its next results are not ready."""
        now, make, hurry = time.monotonic(), self._make, self._hurry
        ready = sum(future.done() for future in self._waiting)
        pause_s = min(BUSY_SHARE * (now - self._given_at), LONGEST_S)
        if not self._given_at or 2 * ready < min(self._ahead, self._count - self.given):
            return make

        def later(k: int) -> T:
            hurry.wait(max(0.0, now + pause_s - time.monotonic()))
            return make(k)

        return later

    def drop(self, wait: bool = True) -> None:
        """Forget what was made ahead and end the threads. The next result that is asked for is made anew, by new threads.

        Args:
            wait: Until the threads have ended: each finishes what it is making.
        """
        pool, self._pool = self._pool, None
        self._waiting.clear()
        self._hurry.set()
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait, cancel_futures=True)

    def _start(self) -> ThreadPoolExecutor:
        if self._pool is not None and self._pid == os.getpid():
            return self._pool
        # A process that was forked has the futures but no thread that would ever fulfil them: it makes them itself.
        self._waiting.clear()
        self._pid, self._hurry = os.getpid(), threading.Event()
        self._pool = ThreadPoolExecutor(self._threads, THREAD_NAME)
        return self._pool

    def __del__(self) -> None:
        # Must not wait: a garbage collection may run this anywhere, in a thread that holds what the others wait for.
        self.drop(wait=False)
