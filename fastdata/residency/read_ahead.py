"""Have the system read what batches to come need from the disk, while earlier ones are made: for a store larger than memory.

Without it a cold record comes in as its pages are touched, one small read after the other, each waited for: a tenth of what a
disk can do (see ``fastdata.store.index``). Told early, the disk has hundreds of records to read at once.

Telling is not free where nothing has to be read: 20 µs a record of 1.2 MB, beside 30 µs that gathering what is seen of it takes.
So a store that fits into memory is told about each record once only, before its first use. Whether pages are in memory is not
asked: Linux answers that truthfully only to who may write to the file (mincore(2)).
"""

from __future__ import annotations

import functools
import mmap

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.host import usable_memory_nbytes
from fastdata.store.index import WILL_NEED
from fastdata.store.read import Store

I64 = npt.NDArray[np.int64]

MEMORY_SHARE = 0.5
"""Of the memory that a store may take up to count as one that fits: the rest is the training's, and other programs'."""

MERGED_NBYTES = 1 << 16
"""Ranges with a smaller gap between them are one: reading it through takes less than another request."""


def will_need(store: Store, recipe: Recipe) -> None:
    """Have the records of a recipe be read into memory, and do not wait: call it as soon as a batch is planned.

    Nothing happens for those that are in memory already, nor where the system has no such call.

    Raises:
        StoreError: A record must lie in a payload file, and does not.
    """
    if WILL_NEED is None:
        return
    x0, y0, x1, y1 = recipe.visible_xyxy.T
    records = np.unique(recipe.record[(x0 < x1) & (y0 < y1)])
    if fits(store):
        records = store.unchecked(records)
    if len(records):
        addresses, mappings = store.records_at(records)
        from fastdata.residency.advise import advise  # compiled: only who reads ahead should wait for that

        advise(merged(addresses, store.catalog.rec_nbytes[records]), WILL_NEED)
        del mappings  # alive until here


@functools.lru_cache(maxsize=16)
def _memory_holds(nbytes: int) -> bool:
    memory = usable_memory_nbytes()
    return memory is not None and nbytes <= MEMORY_SHARE * memory


def fits(store: Store) -> bool:
    """Return whether the page cache keeps a store once it has been read; told by the memory that there is, not what is free."""
    return _memory_holds(sum(file.payload_nbytes for file in store.manifest.files))


def merged(addresses: I64, nbytes: I64) -> I64:
    """Return ranges of memory as whole pages, in order, neighbours merged: (n, 2) address and bytes."""
    order = np.argsort(addresses)
    start = addresses[order] // mmap.PAGESIZE * mmap.PAGESIZE
    end = np.maximum.accumulate(addresses[order] + nbytes[order])
    is_first = np.ones(len(start), np.bool_)
    is_first[1:] = start[1:] > end[:-1] + MERGED_NBYTES
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(start)) - 1
    return np.stack([start[first], end[last] - start[first]], axis=1)
