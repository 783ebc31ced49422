"""What batches to come need is read from the disk before they are made, in large pieces."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import recipe_kit as kit
from recipe_kit import Group, Slot, Tile

from fastdata.residency import read_ahead
from fastdata.residency.read_ahead import MERGED_NBYTES, fits, merged, will_need
from fastdata.store.read import Store

PAGE = mmap.PAGESIZE
WAIT_S = 30.0
"""After which pages that were asked for have not come."""

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="only Linux says which pages are in memory")


def store_of(folder: Path, count: int = 12) -> Store:
    """Pictures of 192 kB, so that most pages belong to one record, on the disk."""
    rng = np.random.default_rng(0)
    store = kit.file_store(folder, [rng.integers(0, 256, (256, 256, 3), np.uint8) for _ in range(count)])
    with store.path.open("r+b") as file:
        os.fsync(file.fileno())
    return store


def pages_of(store: Store, record: int) -> npt.NDArray[np.bool_]:
    """Which whole pages of a record are in memory."""
    (address,), _ = store.records_at(np.array([record], np.int64))
    first = -(-int(address) // PAGE) * PAGE
    count = (int(address) + int(store.catalog.rec_nbytes[record]) - first) // PAGE
    found = (ctypes.c_ubyte * count)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(count * PAGE), found) == 0
    return np.frombuffer(found, np.uint8) % 2 == 1


def evicted(store: Store) -> Store:
    """Have the system forget a store's pages, and open it anew: pages that a process has mapped are not forgotten."""
    store.close()
    with store.path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return kit.fastdata.open_store(store.path)


def come(store: Store, record: int) -> bool:
    """Wait until a record is in memory."""
    until = time.monotonic() + WAIT_S
    while not pages_of(store, record).all() and time.monotonic() < until:
        time.sleep(0.001)
    return bool(pages_of(store, record).all())


def showing(store: Store, *records: int) -> kit.Recipe:
    """A batch with a slot for each record."""
    return kit.recipe(store, [Slot([Group([Tile(r)])]) for r in records], (256, 256))


def test_pages_come_in_before_they_are_touched(tmp_path: Path) -> None:
    """Those of the records that are shown, whole; those far from them do not, nor those of tiles without a visible part."""
    store = evicted(store_of(tmp_path, 100))
    asked, others = (2, 3, 12), (20, 25, 30)  # far from the index, around which megabytes have been read
    if any(pages_of(store, record).any() for record in asked + others):
        pytest.skip(f"the file system of {tmp_path} keeps pages that it is told to forget")
    will_need(store, kit.one(store, Group([Tile(30, visible=(4, 4, 4, 9))]), out_hw=(256, 256)))
    will_need(store, showing(store, 3, 2, 12, 3))
    assert all(come(store, record) for record in asked)
    assert not any(pages_of(store, record).all() for record in others)


def test_a_store_that_fits_is_told_about_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first use. A larger one is told each time: what was in memory may be there no more."""
    with store_of(tmp_path) as store:
        told: list[list[int]] = []
        monkeypatch.setattr(read_ahead, "merged", lambda at, nbytes: (told.append(nbytes.tolist()), merged(at, nbytes))[1])
        recipe = showing(store, 1, 2, 5)
        for is_small, count in ((True, 1), (False, 3)):
            monkeypatch.setattr(read_ahead, "fits", lambda of, is_small=is_small: is_small)
            for record in (1, 5):
                store.check_record(record)
            will_need(store, recipe)
            assert [len(numbers) for numbers in told] == [count]
            told.clear()
        store.check_record(2)
        monkeypatch.setattr(read_ahead, "fits", lambda of: True)
        will_need(store, recipe)
        assert told == []


def test_a_store_fits_if_half_of_the_memory_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the memory that this process may use; where that cannot be told it does not fit."""
    with store_of(tmp_path, 4) as store:
        nbytes = sum(file.payload_nbytes for file in store.manifest.files)
        assert nbytes >= 4 * 3 * 256 * 256
        for memory, want in ((None, False), (2 * nbytes, True), (2 * nbytes - 1, False)):
            read_ahead._memory_holds.cache_clear()
            monkeypatch.setattr(read_ahead, "usable_memory_nbytes", lambda memory=memory: memory)
            assert fits(store) is want
    read_ahead._memory_holds.cache_clear()


def test_nothing_is_told_where_the_system_has_no_such_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: not even where records lie is looked up."""
    with store_of(tmp_path, 1) as store:
        recipe = showing(store, 0)
    monkeypatch.setattr(read_ahead, "WILL_NEED", None)
    will_need(store, recipe)


def test_neighbours_are_told_as_one() -> None:
    """Whole pages, in order, overlapping and equal ones included; a gap is read through if that is less than a request."""
    gap = MERGED_NBYTES
    start = np.array([10 * gap, 3 * gap + 5, 100, 3 * gap + 5, 0, 4 * gap + 100], np.int64) + 7 * PAGE
    nbytes = np.array([9, gap - 10, 50, 3, 3 * PAGE, PAGE], np.int64)
    ranges = merged(start, nbytes).tolist()
    assert ranges == [
        [7 * PAGE, 3 * PAGE],
        [7 * PAGE + 3 * gap, gap + 100 + PAGE],
        [7 * PAGE + 10 * gap, 9],
    ]
    apart = merged(np.array([0, gap + PAGE, 2 * gap + 3 * PAGE], np.int64), np.array([PAGE, PAGE, PAGE], np.int64))
    assert apart.tolist() == [[0, gap + 2 * PAGE], [2 * gap + 3 * PAGE, PAGE]]
