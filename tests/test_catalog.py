"""The catalog: flat columns, fetched once, read-only, and cut into entries without copies."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest

from fastdata.catalog import COLUMNS, Catalog, CatalogHead, Counts, Keypoints
from fastdata.labels import Instances


def columns() -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Two entries of one record: one object of two parts, and two objects of which one has a part."""
    return {
        "rec_file": np.zeros(1, np.uint16),
        "rec_offset": np.array([64]),
        "rec_nbytes": np.array([60]),
        "rec_crc": np.zeros(1, np.uint32),
        "rec_hw": np.array([[4, 5]], np.int32),
        "rec_channels": np.array([3], np.uint8),
        "rec_encoding": np.array([0], np.uint8),
        "entry_record": np.zeros(2, np.uint32),
        "entry_rect": np.array([[0, 0, 5, 4], [1, 1, 5, 3]], np.int32),
        "entry_original_hw": np.array([[8, 10], [8, 10]], np.int32),
        "entry_image_id": np.array([1, -1]),
        "entry_source_nbytes": np.array([100, -1]),
        "entry_source_mtime_ns": np.array([7, 0]),
        "key_offsets": np.array([0, 5, 8]),
        "key_bytes": np.frombuffer("a/ü\udcff".encode("utf-8", "surrogateescape") + b"b.c", np.uint8),
        "inst_offsets": np.array([0, 1, 3]),
        "cls": np.array([4, 5, 6], np.int32),
        "xyxy_px": np.arange(12, dtype=np.float32).reshape(3, 4),
        "kind": np.array([1, 0, 2], np.uint8),
        "flags": np.array([0, 1, 2], np.uint8),
        "original_id": np.array([10, 20, 30]),
        "area_px": np.array([1, np.nan, 3], np.float32),
        "part_offsets": np.array([0, 2, 2, 3]),
        "point_offsets": np.array([0, 3, 6, 10]),
        "points_px": np.arange(20, dtype=np.float32).reshape(10, 2),
        "keypoints_px": np.zeros((3, 1, 3), np.float32),
    }


@pytest.fixture
def catalog() -> Catalog:
    """The catalog of those columns."""
    head = CatalogHead(("cat",), {"train": (0, 1), "val": (1, 2)}, Keypoints(1), Counts(1, 2, 3, 3, 10))
    return Catalog.from_columns(head, columns())


def test_an_entry_is_cut_from_the_columns(catalog: Catalog) -> None:
    """Its own objects, parts and points, with offsets that begin at 0."""
    first, second = catalog.instances(0), catalog.instances(1)
    assert (first.cls.tolist(), second.cls.tolist()) == ([4], [5, 6])
    assert (first.part_offsets.tolist(), first.point_offsets.tolist()) == ([0, 2], [0, 3, 6])
    assert (second.part_offsets.tolist(), second.point_offsets.tolist()) == ([0, 0, 1], [0, 4])
    assert [part.tolist() for part in second.parts(1)] == [[[12, 13], [14, 15], [16, 17], [18, 19]]]
    assert second.parts(0) == []
    assert second.original_id.tolist() == [20, 30]
    assert np.shares_memory(second.xyxy_px, catalog.xyxy_px)
    assert isinstance(first, Instances)


def test_keys_and_sizes(catalog: Catalog) -> None:
    """A key is a file name, whatever its bytes; a size is that of the rectangle."""
    assert [catalog.key(e) for e in range(2)] == ["a/ü\udcff", "b.c"]
    assert catalog.keys(np.array([1, 0, 1])) == ["b.c", "a/ü\udcff", "b.c"]
    assert catalog.keys(np.zeros(0, np.int64)) == []
    for wrong in (-1, 2):
        with pytest.raises(IndexError, match="entry must be in"):
            catalog.keys(np.array([0, wrong]))
    assert [catalog.size_hw(e) for e in range(2)] == [(4, 5), (2, 4)]


def test_it_says_what_it_is(catalog: Catalog) -> None:
    """Length, names, splits, a short text."""
    assert len(catalog) == 2
    assert (catalog.names, dict(catalog.splits)) == (("cat",), {"train": (0, 1), "val": (1, 2)})
    assert repr(catalog) == "Catalog(2 entries, 1 records, 3 instances, 1 classes)"


def test_entries_that_are_not_there_are_index_errors(catalog: Catalog) -> None:
    """Negative numbers too: nothing wraps around."""
    for e in (-1, 2):
        for call in (catalog.instances, catalog.key, catalog.size_hw):
            with pytest.raises(IndexError, match="entry must be in 0 <= e < 2"):
                call(e)


def test_columns_are_read_only_and_the_given_ones_stay_as_they_are() -> None:
    """The catalog freezes its own views."""
    given = columns()
    catalog = Catalog.from_columns(CatalogHead(counts=Counts(1, 2, 3, 3, 10)), given)
    for name in COLUMNS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(catalog, name)[...] = 0
        assert given[name].flags.writeable or name == "key_bytes"


def test_a_column_is_fetched_at_its_first_use_and_once() -> None:
    """Nothing is loaded before, and only what is used."""
    fetched: Counter[str] = Counter()
    given = columns()

    def load(name: str) -> np.ndarray:  # type: ignore[type-arg]
        fetched[name] += 1
        return given[name]

    catalog = Catalog(CatalogHead(counts=Counts(1, 2, 3, 3, 10)), load)
    assert (len(catalog), fetched) == (2, Counter())
    assert catalog.cls is catalog.cls
    catalog.instances(0)
    catalog.instances(1)
    assert set(fetched.values()) == {1}
    assert "rec_crc" not in fetched


def test_every_attribute_is_a_column_of_its_name(catalog: Catalog) -> None:
    """The attributes are the names of the sections, in order."""
    assert list(COLUMNS) == list(columns())
    for name in COLUMNS:
        assert getattr(catalog, name) is catalog.column(name)
        assert getattr(Catalog, name).__doc__.startswith(("(R", "(N", "(M", "(P", "(V", "All keys"))


def test_a_catalog_in_memory_is_sent_with_its_columns(catalog: Catalog) -> None:
    """It has no file that another process could open."""
    copy = pickle.loads(pickle.dumps(catalog))
    assert all(np.array_equal(copy.column(name), catalog.column(name), equal_nan=name == "area_px") for name in COLUMNS)
    assert (copy.names, dict(copy.splits), copy.keypoints, copy.counts) == (
        catalog.names, dict(catalog.splits), catalog.keypoints, catalog.counts,
    )  # fmt: skip
