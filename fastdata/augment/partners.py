"""Where the other pictures of a sample come from, and what stands in for a picture that cannot be used."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from fastdata import rng
from fastdata.augment.order import EpochOrder
from fastdata.errors import UsageError

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Pool = range | I64
"""Ascending entry numbers."""


def entries_at(pool: Pool, index: I64) -> I64:
    """Return the entries at (k,) places of a pool."""
    if isinstance(pool, range):
        return pool.start + pool.step * index
    return np.asarray(pool, np.int64)[index]


def picked(u: F64, entry: I64, slot: I64, window: int | None, seed: int, epoch: int, pool: Pool) -> I64:
    """Return the entries that numbers pick.

    Args:
        u: (k,) in [0, 1).
        entry: (B,) requested entry of each sample.
        slot: (k,) sample of each number.
        window: How many positions of the order a pick may come from; the whole pool when ``None``.
        seed: Of the order.
        epoch: Of the order.
        pool: Where entries come from; their order is that of the epoch over it, shuffled.

    Raises:
        UsageError: There is a window, and an entry is not in the pool.
    """
    if window is None:
        return entries_at(pool, rng.integers(u, len(pool)))
    # At the beginning of an epoch there are not W pictures before a sample. Its window is then the first W of the order: they
    # are about to be read anyway, and a window of one would show the first picture of an epoch four times in its own mosaic.
    window = min(window, len(pool))
    order = EpochOrder(len(pool), seed, epoch)
    first = np.maximum(order.position_of(_index_in(pool, entry)) - window + 1, 0)
    return entries_at(pool, order.at(first[slot] + rng.integers(u, window)))


def _index_in(pool: Pool, entry: I64) -> I64:
    if isinstance(pool, range):
        index = (entry - pool.start) // pool.step
    else:
        index = np.searchsorted(pool, entry).astype(np.int64)
    index = np.clip(index, 0, len(pool) - 1)
    strange = entry[entries_at(pool, index) != entry]
    if len(strange):
        raise UsageError(
            f"an entry must be in the pool when partners are a window of the order, got {strange[0]}; use partners='uniform'"
        )
    return index


def without_bad(
    bad: Collection[int] | I64, entry: I64, pick: I64, picks: int, keys: npt.NDArray[np.uint64], pool: Pool
) -> I64:
    """Draw each bad entry again, from the whole pool, until it is good.

    Args:
        bad: Entries that must not be used.
        entry: (k,)
        pick: (k,) number of each among the picks of its sample.
        picks: How many picks a sample has at most: the pitch of attempts in the stream.
        keys: (k,) of the sample of each.
        pool: Where entries come from.

    Raises:
        UsageError: All of the pool is bad.
    """
    unusable = np.fromiter(bad, np.int64, len(bad))
    out = entry.copy()
    todo = np.flatnonzero(np.isin(out, unusable))
    if len(todo) and np.isin(entries_at(pool, np.arange(len(pool))), unusable).all():
        raise UsageError(f"pool must have an entry that can be used, got {len(pool)} that are all bad")
    attempt = 0
    while len(todo):
        u = rng.uniforms(keys[todo], 1, picks * attempt + pick[todo])[:, 0]
        out[todo] = entries_at(pool, rng.integers(u, len(pool)))
        todo = todo[np.isin(out[todo], unusable)]
        attempt += 1
    return out
