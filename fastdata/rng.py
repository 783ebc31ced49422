"""Stateless random numbers: each is a function of (seed, epoch, entry, draw, stream) and of nothing else.

No generator exists, so nothing is ever seeded and nothing depends on the order of calls, on how a set is cut into batches, or on
who asks. An *entry* is the number of a picture in the catalog; *draw* tells repeated uses of one entry in one epoch apart.

The mixing function is the finaliser of SplitMix64 in the variant "Mix13" (Stafford, "Better bit mixing", 2011; Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The numbers of one key are SplitMix64's sequence from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

STREAMS = MappingProxyType(
    {
        "order": 1,
        "sample": 2,
        "partner": 3,
        "mixup": 4,
        "cutmix": 5,
        "copy_paste": 6,
        "substitute": 7,
        "layout": 8,
        "transforms": 9,
    }
)
"""Numbers of the streams. They are part of every sample: changing one changes all that is drawn from it."""

# Arrays without dimensions: with NumPy's scalars a small operation takes nearly twice as long (0.7 against 0.4 µs).
_GAMMA = np.array(0x9E3779B97F4A7C15, np.uint64)  # 2**64 over the golden ratio, odd
_M1, _M2 = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)
_S30, _S27, _S31, _S11 = (np.array(bits, np.uint64) for bits in (30, 27, 31, 11))
_MASK = (1 << 64) - 1


def mix64(x: U64) -> U64:
    """Scatter the bits of (...,) 64-bit numbers: a bijection."""
    x = x ^ (x >> _S30)  # from here on in memory of its own
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


def _absorb(key: U64, value: npt.NDArray[np.generic] | int) -> U64:
    words = np.asarray(value & _MASK if isinstance(value, int) else value).astype(np.uint64)
    return mix64((key ^ words) + _GAMMA)


def keys(seed: int, epoch: int, stream: str, entries: npt.ArrayLike, draws: npt.ArrayLike = 0) -> U64:
    """Return the (n,) key of each entry: what its numbers in a stream are made from.

    Args:
        seed: Any integer.
        epoch: Any integer.
        stream: A name in :data:`STREAMS`.
        entries: (n,) integers.
        draws: (n,) or one integer; 0 unless an entry is used more than once in an epoch.
    """
    of: U64 = keys_of_streams(seed, epoch, (stream,), entries, draws)[0]
    return of


def keys_of_streams(seed: int, epoch: int, streams: Sequence[str], entries: npt.ArrayLike, draws: npt.ArrayLike = 0) -> U64:
    """Return the (k, n) keys of k streams at once: each row is what :func:`keys` returns for one."""
    heads = np.concatenate([_head(int(seed), int(epoch), STREAMS[stream]) for stream in streams])[:, None]
    return _absorb(_absorb(heads, np.atleast_1d(np.asarray(entries))), np.asarray(draws))


@lru_cache(maxsize=64)  # a few streams of a few epochs; it halves what a key costs when one sample is asked for at a time
def _head(seed: int, epoch: int, stream: int) -> U64:
    head = np.zeros(1, np.uint64)
    for word in (seed, epoch, stream):
        head = _absorb(head, word)
    head.flags.writeable = False
    return head


def uniforms(of: U64, count: int, first: int | I64 = 0) -> F64:
    """Return (n, count) numbers in [0, 1), 53 bits each, of (n,) keys.

    Args:
        of: Keys.
        count: How many of each.
        first: Number of the first one, for all or (n,), so that a sequence can be had in pieces.
    """
    steps = (np.asarray(first)[..., None] + np.arange(1, count + 1)).astype(np.uint64) * _GAMMA
    bits = mix64(of[:, None] + steps) >> _S11
    return bits.view(np.int64).astype(np.float64) * 2.0**-53  # signed ones become floats in one instruction


def integers(u: F64, count: int | npt.NDArray[np.integer]) -> I64:
    """Turn numbers in [0, 1) into integers 0..count - 1."""
    out: I64 = (u * count).astype(np.int64)  # u is at most 1 - 2**-53, and so much of a float is less than it after rounding too
    return out
