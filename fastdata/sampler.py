"""The ids of a rank, epoch after epoch, each tagged with what a worker must know of it.

A worker process holds an old copy of everything, so whatever changes from epoch to epoch must travel with the ids. An
:class:`Index` is the plain int that a loader expects, and carries its epoch along. The sampler derives the epoch from its own
position in the training, because a loader that fetches ahead asks for the next epoch before anybody announces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from fastdata.augment.order import EpochOrder, exact_batches, rank_positions
from fastdata.errors import UsageError

ORDER_VERSION = 1
"""Raised whenever an order changes; part of the state."""


class Index(int):
    """An id that knows its epoch. Equal to the plain int, and pickled with its tag.

    Args:
        id: From 0.
        epoch: From 0.
        draw: Tells repeated uses of an id in an epoch apart.
    """

    epoch: int
    draw: int

    def __new__(cls, id: int, epoch: int, draw: int = 0) -> Index:
        self = super().__new__(cls, id)
        self.epoch = epoch
        self.draw = draw
        return self

    def __reduce__(self) -> tuple[type[Index], tuple[int, int, int]]:
        return type(self), (int(self), self.epoch, self.draw)


class Sampler:
    """The share of a rank in each epoch, for a torch ``DataLoader``.

    Every pass over it is an epoch. A pass begins with its first id, so an iterator that nobody asks skips none. Over the ranks of
    a training each id comes once, but for a tail of fewer ids than ranks, another one in each epoch; of a validation each id
    comes exactly once, in whole batches.

    Args:
        n: How many ids there are.
        seed: Any integer, the same on all ranks.
        rank: 0..world_size - 1.
        world_size: Number of ranks.
        shuffle: Whether the order changes from epoch to epoch, or is that of the ids.
        exact: Deal whole batches of consecutive ids and drop none, as validation needs; not shuffled.
        batch_size: Of ``exact``.

    Raises:
        UsageError: A number breaks its rule.
    """

    def __init__(
        self,
        n: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        exact: bool = False,
        batch_size: int = 1,
    ) -> None:
        self.n, self.seed, self.rank, self.world_size, self.shuffle = n, seed, rank, world_size, shuffle
        self._exact = list(exact_batches(n, batch_size, rank, world_size)) if exact else None
        if self._exact is None:
            rank_positions(n, rank, world_size)  # refuses what cannot be dealt, now and not in the first epoch
        elif shuffle:
            raise UsageError("shuffle must be False where every id counts exactly once, got True")
        self.epoch = -1
        """The epoch that began last; -1 when none has, here or since a state was loaded."""
        self._next = 0
        self._start = 0  # first global position of the next pass: above 0 only when a training goes on within an epoch
        self._began = 0  # the same of the last pass
        self._given = 0  # ids of the last pass that were handed out
        self._finished = True
        self._called: int | None = None
        self._late: int | None = None

    def __len__(self) -> int:
        """Return how many ids the next pass has."""
        return self._share(self._start)

    def __iter__(self) -> Iterator[Index]:
        """Yield the ids of the next epoch."""
        if self._late is not None and not self._finished:
            self._next = self._late  # the pass that seemed to be this epoch fetched ahead was given up
        self._late = None
        epoch, start = self._next, self._start
        self.epoch, self._next, self._start, self._began, self._given, self._finished = epoch, epoch + 1, 0, start, 0, False
        for i in self._ids(epoch, start):
            self._given += self.epoch == epoch  # else another pass has begun meanwhile
            yield Index(i, epoch)
        self._finished |= self.epoch == epoch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is. Not needed: passes count themselves.

        A loader that fetches over the end of an epoch has begun the next one before this is called for it; the call that comes
        one epoch after the last and names the epoch that has just begun is taken for that, and changes nothing.

        Args:
            epoch: From 0.

        Raises:
            UsageError: It is negative.
        """
        if epoch < 0:
            raise UsageError(f"epoch must be at least 0, got {epoch}")
        if self._called is not None and epoch == self._called + 1 == self.epoch:
            self._late = epoch
        elif epoch != self._next:
            self._next, self._start, self._late = epoch, 0, None
        self._called = epoch

    def state_dict(self, taken: int | None = None) -> dict[str, int]:
        """Return where the training is, for :meth:`load_state_dict` at any world size.

        Args:
            taken: How many ids of the epoch that began last this rank has trained on. ``None``: all that were handed out, which
                is right between epochs and without workers; workers fetch ahead.
        """
        taken = self._given if taken is None else taken
        epoch, position = self.epoch, self._began + taken * self.world_size
        if epoch < 0 or taken >= self._share(self._began):
            epoch, position = self._next, self._start
        return {"version": ORDER_VERSION, "n": self.n, "seed": self.seed, "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; a validation begins its pass anew.

        Raises:
            UsageError: It is of another set, seed or version.
        """
        for name, mine in (("version", ORDER_VERSION), ("n", self.n), ("seed", self.seed)):
            if state.get(name) != mine:
                raise UsageError(f"{name} of a state must be {mine}, as of this sampler, got {state.get(name)!r}")
        self._next, self._start = int(state["epoch"]), int(state["position"])
        if self._start and self._share(self._start) == 0:  # fewer ids are left than there are ranks now
            self._next, self._start = self._next + 1, 0
        self.epoch, self._called, self._late, self._finished = -1, None, None, True

    def _share(self, start: int) -> int:
        """Return how many ids a pass has that begins at a global position."""
        if self._exact is not None:
            return sum(map(len, self._exact))
        return len(rank_positions(self.n, self.rank, self.world_size, start=start))

    def _ids(self, epoch: int, start: int) -> Iterator[int]:
        if self._exact is not None:
            yield from chain.from_iterable(self._exact)
            return
        order = EpochOrder(self.n, self.seed, epoch, self.shuffle)
        positions = rank_positions(self.n, self.rank, self.world_size, start=start)
        for first in range(0, len(positions), _AT_ONCE):
            yield from order.at(np.array(positions[first : first + _AT_ONCE])).tolist()


_AT_ONCE = 4096
"""Ids computed at a time: enough to spread NumPy's cost, few enough to cost no memory."""
