"""Where records lie in memory, for those who copy many of them at once."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from store_kit import BACKENDS, index_of, pictures, place, write_store

from fastdata.errors import StoreError
from fastdata.store.read import open_store


@pytest.mark.parametrize("backend", BACKENDS)
def test_records_lie_where_they_are_said_to(backend: str, tmp_path: Path) -> None:
    """In any order, again and again; also when the store is closed meanwhile, as long as what was handed out is alive."""
    samples = pictures(12)
    out = write_store(place(tmp_path, backend), samples, **({"shard_nbytes": 1 << 12} if backend == "shards" else {}))
    store = open_store(out)
    records = np.array([7, 0, 7, 11, 3], np.int64)
    addresses, held = store.records_at(records)
    store.close()
    for record, address in zip(records.tolist(), addresses.tolist(), strict=True):
        assert ctypes.string_at(address, len(samples[record].payload)) == samples[record].payload
    assert all(array.size for array in held)
    with pytest.raises(ValueError, match="closed"):
        store.records_at(records)


def test_no_records_lie_nowhere(tmp_path: Path) -> None:
    """A batch may show nothing."""
    with open_store(write_store(place(tmp_path, "lmdb"), pictures(3))) as store:
        addresses, held = store.records_at(np.zeros(0, np.int64))
        assert addresses.shape == (0,)
        assert held == ()


@pytest.mark.parametrize("wrong", [-1, 12])
def test_a_record_that_is_not_there_has_no_address(wrong: int, tmp_path: Path) -> None:
    """Not even one that NumPy would count from the end."""
    with (
        open_store(write_store(place(tmp_path, "lmdb"), pictures(12))) as store,
        pytest.raises(IndexError, match=r"record must be in 0 <= r < 12"),
    ):
        store.records_at(np.array([3, wrong], np.int64))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rec_offset", 1 << 62),
        ("rec_offset", -1),
        ("rec_nbytes", 1 << 40),
        ("rec_nbytes", -5),
        ("rec_file", 9),
        ("rec_offset", None),
    ],
)
def test_a_record_outside_of_its_file_has_no_address(name: str, value: int | None, tmp_path: Path) -> None:
    """An index that agrees with its checksums and says so all the same: touching that memory would end the process.

    ``None``: it begins with the last byte of the payload.
    """
    out = write_store(place(tmp_path, "lmdb"), pictures(4))
    with open_store(out) as store:
        value = store.manifest.files[0].payload_nbytes - 1 if value is None else value
    raw = index_of(out)
    column = raw.sections[name].copy()
    column[2] = value
    dataclasses.replace(raw, sections=raw.sections | {name: column}).put(out)
    with open_store(out) as store:
        assert len(store.records_at(np.array([0, 1, 3], np.int64))[0]) == 3
        with pytest.raises(StoreError, match="record 2 must lie in a payload file"):
            store.records_at(np.array([0, 2], np.int64))


def test_records_are_unchecked_until_they_have_been_read(tmp_path: Path) -> None:
    """By any way of reading."""
    with open_store(write_store(place(tmp_path, "lmdb"), pictures(6))) as store:
        some = np.array([4, 1, 4, 0], np.int64)
        assert store.unchecked(some).tolist() == [0, 1, 4]
        store.read_record(1)
        store.check_record(4)
        assert store.unchecked(some).tolist() == [0]
