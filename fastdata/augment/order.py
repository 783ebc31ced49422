"""The order of an epoch, and which part of it a rank takes.

The order is a pseudo-random permutation that is computed, not stored: a Feistel network over the smallest even number of bits
that holds n, walked until the result lies below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). So
any position can be asked for by itself, a place in the order can be found from an id, and neither needs memory.

*Ids* are 0..n - 1 within the set that is trained on. *Positions* are places in the global order of an epoch, over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastdata import rng
from fastdata.errors import UsageError

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

ROUNDS = 8
"""Of the network. Four make a Feistel network a pseudo-random permutation (Luby and Rackoff, 1988) for long words; short ones,
as here, are given twice that."""


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch.

    Args:
        n: How many ids.
        seed: Any integer.
        epoch: From 0.
        shuffle: Ids as they are when ``False``.
    """

    n: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    _keys: U64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.n < 0:
            raise UsageError(f"n must be at least 0, got {self.n}")
        object.__setattr__(self, "_keys", rng.keys(self.seed, self.epoch, "order", np.arange(ROUNDS)))

    def at(self, positions: npt.ArrayLike) -> I64:
        """Return the ids at (k,) positions.

        Raises:
            IndexError: A position is not in 0..n - 1.
        """
        return self._walk(positions, "position", self._keys, False)

    def position_of(self, ids: npt.ArrayLike) -> I64:
        """Return the positions of (k,) ids: the inverse of :meth:`at`.

        Raises:
            IndexError: An id is not in 0..n - 1.
        """
        return self._walk(ids, "id", self._keys[::-1], True)

    def _walk(self, numbers: npt.ArrayLike, what: str, keys: U64, back: bool) -> I64:
        out = np.atleast_1d(np.asarray(numbers, np.int64)).copy()
        if len(out) and not 0 <= int(out.min()) <= int(out.max()) < self.n:
            raise IndexError(f"{what} must be in 0..{self.n - 1}, got {int(out.min())}..{int(out.max())}")
        if not self.shuffle or self.n < 2:
            return out
        half = np.uint64(max((self.n - 1).bit_length() + 1, 2) // 2)
        todo = np.arange(len(out))
        while len(todo):
            moved = _feistel(out[todo].astype(np.uint64), half, keys, back).astype(np.int64)
            out[todo] = moved
            todo = todo[moved >= self.n]
        return out


def _feistel(x: U64, half: np.uint64, keys: U64, back: bool) -> U64:
    low = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & low
    for key in keys:
        if back:
            left, right = right ^ (rng.mix64(left + key) & low), left
        else:
            left, right = right, left ^ (rng.mix64(right + key) & low)
    return (left << half) | right


def epoch_order(
    n: int, seed: int, epoch: int, rank: int = 0, world_size: int = 1, *, shuffle: bool = True, start: int = 0
) -> I64:
    """Return the ids that a rank trains on in an epoch, in order.

    Every world_size-th position from ``start + rank`` on. Over the ranks: each id once, but for the last ``(n - start) %
    world_size`` positions, which are dropped so that all ranks take as many steps; the order differs between epochs, so do they.

    Args:
        n: Size of the set.
        seed: Any integer, the same on all ranks.
        epoch: From 0.
        rank: 0..world_size - 1.
        world_size: Number of ranks.
        shuffle: Ids in ascending order when ``False``.
        start: First position that has not been trained on yet, for going on within an epoch at any world size.

    Raises:
        UsageError: A number breaks its rule, or the set has fewer ids than there are ranks. (When going on within an epoch fewer
            may be left than there are ranks; then nothing is.)
    """
    return EpochOrder(n, seed, epoch, shuffle).at(np.array(rank_positions(n, rank, world_size, start=start)))


def rank_positions(n: int, rank: int = 0, world_size: int = 1, *, start: int = 0) -> range:
    """Return the positions of :func:`epoch_order`, uncomputed: no memory for any n.

    Raises:
        UsageError: As there.
    """
    _check_share(n, rank, world_size)
    if not 0 <= start <= n:
        raise UsageError(f"start must be in 0..{n}, got {start}")
    left = n - start
    if start == 0 and left < world_size:
        raise UsageError(f"a set must have at least one image a rank, got {n} images for {world_size} ranks")
    return range(start + rank, start + left - left % world_size, world_size)


def exact_batches(n: int, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[range]:
    """Return the positions of a rank's batches when every id counts exactly once, as in validation.

    Whole batches, consecutive for each rank; ranks may differ by one batch, and a rank may have none.

    Raises:
        UsageError: A number breaks its rule.
    """
    _check_share(n, rank, world_size)
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}")
    batches = -(-n // batch_size)
    own = range(batches * rank // world_size, batches * (rank + 1) // world_size)
    return (range(b * batch_size, min((b + 1) * batch_size, n)) for b in own)


def _check_share(n: int, rank: int, world_size: int) -> None:
    if n < 0:
        raise UsageError(f"n must be at least 0, got {n}")
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(f"rank must be in 0 <= rank < world_size, got rank {rank} and world_size {world_size}")
