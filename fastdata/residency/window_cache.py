"""Pictures that were made once and are kept while a window of the order may show them, shared by threads.

First in, first out. Partners come from the last W samples of the order, and a sample shows its own picture, so a picture is made
when the order reaches it and is not asked for any more W samples later: the oldest is the one to drop, however lately it was
shown. Dropping the one that was shown least lately would be wrong here: with three partners a sample, a third of the pictures
rest for a third of the window at some time, and come back.

Two threads that want the same picture at once make it once. Each makes all that it has promised before it waits for another's,
so none waits for one that waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar


class HasSize(Protocol):
    """What is kept."""

    @property
    def nbytes(self) -> int: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=HasSize)


class WindowCache(Generic[K, V]):
    """The last values that were made, by key. Safe in any number of threads.

    Args:
        count: How many values are kept at most; 0: none, and then threads that want the same at once still share it.
        limit_nbytes: How many bytes are kept at most. A value that is larger is handed out and not kept.
    """

    def __init__(self, count: int, limit_nbytes: int) -> None:
        self._count, self._limit_nbytes = count, limit_nbytes
        self._lock = threading.Lock()
        self._kept: dict[K, V] = {}  # in the order in which they were made
        self._promised: dict[K, Future[Mapping[K, V]]] = {}
        self.nbytes = 0
        """Of the values that are kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, keys: Iterable[K], make: Callable[[list[K]], Mapping[K, V]]) -> dict[K, V]:
        """Return the values of keys, made where they are not there.

        Args:
            keys: Each once.
            make: Returns the value of every key that it is given. What it raises is raised here; a thread that waited for it
                then makes its own.
        """
        got: dict[K, V] = {}
        wanted = list(keys)
        while wanted:
            mine: list[K] = []
            others: list[tuple[K, Future[Mapping[K, V]]]] = []
            promise: Future[Mapping[K, V]] = Future()
            with self._lock:
                for key in wanted:
                    if (value := self._kept.get(key)) is not None:
                        got[key] = value
                    elif (other := self._promised.get(key)) is not None:
                        others.append((key, other))
                    else:
                        self._promised[key] = promise
                        mine.append(key)
            if mine:
                got.update(self._keep_promise(promise, mine, make))
            wanted = []
            for key, other in others:
                if (value := other.result().get(key)) is not None:
                    got[key] = value
                else:
                    wanted.append(key)
        return got

    def clear(self) -> None:
        """Drop what is kept, and keep nothing any more. Whoever holds a value still has it."""
        with self._lock:
            self._count = 0
            dropped = self._trimmed()
        del dropped

    def _keep_promise(
        self, promise: Future[Mapping[K, V]], mine: list[K], make: Callable[[list[K]], Mapping[K, V]]
    ) -> Mapping[K, V]:
        made: Mapping[K, V] = {}
        try:
            made = make(mine)
        finally:  # also when it fails or is interrupted, or another thread would wait for ever
            with self._lock:
                for key in mine:
                    del self._promised[key]
                    if (value := made.get(key)) is not None and value.nbytes <= self._limit_nbytes:
                        self._kept[key] = value
                        self.nbytes += value.nbytes
                dropped = self._trimmed()
            del dropped  # outside the lock: letting go of GPU memory takes its time
            promise.set_result(made)
        return made

    def _trimmed(self) -> list[V]:
        """Take out the oldest values until the rest is within bounds; with the lock held."""
        dropped = []
        while len(self._kept) > self._count or self.nbytes > self._limit_nbytes:
            value = self._kept.pop(next(iter(self._kept)))
            self.nbytes -= value.nbytes
            dropped.append(value)
        return dropped
