"""What every store promises its readers, whichever backend it has: the conformance suite."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from second_reader import SecondReader
from store_kit import (
    BACKENDS,
    Label,
    RawIndex,
    Sample,
    assert_holds,
    assert_same_instances,
    check_all,
    labels,
    manifest,
    picture,
    pictures,
    place,
    read_some,
    same,
    write_store,
)

import fastdata
from fastdata.catalog import COLUMNS
from fastdata.errors import StoreError, UsageError
from fastdata.store.read import Store, open_store

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def store(backend: str, tmp_path: Path) -> Store:
    """A store of 12 pictures, 8 for training, 4 for validation."""
    return open_store(write_store(place(tmp_path, backend), pictures(12)))


keys = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)), max_size=12
)


@st.composite
def catalogs(draw: st.DrawFn) -> tuple[list[Sample], int]:
    """Any number of entries in any number of splits: views of earlier records, odd keys, 0 to 3 objects, K = 0 or 17."""
    keypoints = draw(st.sampled_from([0, 1, 17]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    samples: list[Sample] = []
    sizes: list[tuple[int, int]] = []
    for split in draw(st.lists(keys, unique=True, max_size=3)):
        for _ in range(draw(st.integers(0, 4))):
            key, objects = draw(keys), draw(st.integers(0, 3))
            if sizes and draw(st.booleans()):
                record = draw(st.integers(0, len(sizes) - 1))
                h, w = sizes[record]
                x0, y0 = draw(st.integers(0, w - 1)), draw(st.integers(0, h - 1))
                rect = (x0, y0, draw(st.integers(x0 + 1, w)), draw(st.integers(y0 + 1, h)))
                samples.append(Sample(split, key, labels(rng, objects, keypoints), record=record, rect=rect))
                continue
            new = picture(rng, split, key, keypoints=keypoints, objects=objects)
            if draw(st.booleans()):
                payload, encoding = draw(st.binary(max_size=200)), draw(st.sampled_from(["jpeg", "webp"]))
                new = dataclasses.replace(new, payload=payload, encoding=encoding, channels=draw(st.sampled_from([1, 3])))
            new = dataclasses.replace(
                new,
                image_id=draw(st.integers(-1, (1 << 63) - 1)),
                source_nbytes=draw(st.integers(-1, (1 << 63) - 1)),
                source_mtime_ns=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            )
            samples.append(new)
            sizes.append(new.size_hw)
    return samples, keypoints


@given(drawn=catalogs(), more=st.lists(keys, unique=True, max_size=2), problems=st.binary(max_size=100))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_is_written_is_read_back(
    backend: str, tmp_path: Path, drawn: tuple[list[Sample], int], more: list[str], problems: bytes
) -> None:
    """Round trip of arbitrary catalogs, by this package's reader and by the one written from the document."""
    samples, keypoints = drawn
    begun = list(dict.fromkeys(s.split for s in samples))
    empty = [split for split in more if split not in begun]
    files = [Label(s.key, bytes([k] * 16)) for k, s in enumerate(samples)]
    out = place(tmp_path, backend)
    write_store(
        out, samples, keypoints=keypoints, splits=empty, label_files=files, problems=problems, overwrite=True, shard_nbytes=500
    )
    with open_store(out) as store:
        assert_holds(store, samples)
        check_all(store)
        assert list(store.manifest.splits) == begun + empty
        for split in begun + empty:
            with open_store(out, split) as part:
                assert [part.key(i) for i in range(len(part))] == [s.key for s in samples if s.split == split]
    second = SecondReader(out)
    owners = [s for s in samples if s.record is None]
    assert second.records == [s.payload for s in owners]
    assert [second.text("key_offsets", "key_bytes", e) for e in range(len(samples))] == [s.key for s in samples]
    assert second.sections["problems"].tobytes() == problems
    for name in ("cls", "xyxy_px", "kind", "flags", "original_id", "area_px", "points_px", "keypoints_px"):
        want = [getattr(s.instances, name) for s in samples]
        assert second.sections[name].tobytes() == b"".join(a.tobytes() for a in want), name
    rings = [ring for s in samples for i in range(len(s.instances)) for ring in s.instances.parts(i)]
    read = [ring for i in range(second.manifest["counts"]["instances"]) for ring in second.outline(i)]
    assert len(rings) == len(read)
    assert all(same(a, b) for a, b in zip(rings, read, strict=True))


def test_a_split_counts_from_its_own_beginning(backend: str, tmp_path: Path) -> None:
    """Entry i of a split is entry ``entry_range[i]`` of the catalog, which holds all splits."""
    samples = pictures(12)
    out = write_store(place(tmp_path, backend), samples)
    val = open_store(out, "val")
    assert (len(val), val.entry_range, len(val.catalog)) == (4, range(8, 12), 12)
    for i, s in enumerate(samples[8:]):
        assert val.key(i) == s.key == val.catalog.key(8 + i)
        assert val.read(i).tobytes() == s.payload
        assert_same_instances(val.instances(i), s.instances)
    for call in (val.read, val.key, val.instances, val.image, val.prefetch):
        for i in (-1, 4):
            with pytest.raises(IndexError, match="must be in 0 <="):
                call(i)


def test_an_unknown_split_is_answered_with_those_there_are(backend: str, store: Store) -> None:
    """The message lists the splits."""
    with pytest.raises(UsageError, match=r"'train', 'val', got 'test'"):
        open_store(store.path, "test")


def test_reading_copies_nothing(backend: str, store: Store) -> None:
    """Two reads of an entry are views of one mapping, read-only, of the stored bytes alone."""
    first, second = store.read(3), store.read(3)
    assert first.dtype == np.uint8
    assert first.ndim == 1
    assert np.shares_memory(first, second)
    assert not first.flags.writeable
    assert not first.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0


def test_columns_are_views_of_the_file_and_cannot_be_written(backend: str, store: Store) -> None:
    """Every column of the catalog is read-only, uncopied, and the same array each time."""
    for name in COLUMNS:
        column = getattr(store.catalog, name)
        assert column is store.catalog.column(name)
        assert not column.flags.writeable, name
        assert not column.flags.owndata, name


def test_an_image_is_the_part_of_the_record_that_the_entry_shows(backend: str, tmp_path: Path) -> None:
    """(C, h, w) of the rectangle, cut from the decoded record."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (3, 7, 9), np.uint8)
    whole = Sample("train", "a", labels(rng, 1), pixels.tobytes(), size_hw=(7, 9))
    part = Sample("train", "b", labels(rng, 0), record=0, rect=(2, 1, 6, 5))
    gray = Sample("train", "c", labels(rng, 0), bytes(range(6)), size_hw=(2, 3), channels=1)
    store = open_store(write_store(place(tmp_path, backend), [whole, part, gray]))
    assert np.array_equal(store.image(0), pixels)
    assert np.array_equal(store.image(1), pixels[:, 1:5, 2:6])
    assert np.array_equal(store.image(2), np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
    assert [store.catalog.size_hw(e) for e in range(3)] == [(7, 9), (4, 4), (2, 3)]
    assert np.shares_memory(store.image(0), store.read(0))


def test_closing_under_live_views_is_safe(backend: str, store: Store) -> None:
    """What was handed out stays readable; what was not is refused with a message, not a crash."""
    payload, labels_, column = store.read(0), store.instances(1), store.catalog.rec_offset
    want = payload.tobytes(), labels_.xyxy_px.tobytes(), column.tobytes()
    store.close()
    store.close()
    gc.collect()
    assert (payload.tobytes(), labels_.xyxy_px.tobytes(), column.tobytes()) == want
    with pytest.raises(ValueError, match="closed"):
        store.read(1)
    with pytest.raises(ValueError, match="closed"):
        store.check_sections()


def test_a_store_that_is_deleted_can_still_be_read(backend: str, store: Store) -> None:
    """Opening maps every file, so nothing that happens to the names matters afterwards."""
    want = [open_store(store.path).read(i).tobytes() for i in range(len(store))]
    shutil.rmtree(store.path) if store.path.is_dir() else store.path.unlink()
    assert [store.read(i).tobytes() for i in range(len(store))] == want


def test_a_store_without_records_opens(backend: str, tmp_path: Path) -> None:
    """0 entries, no splits, every column there and empty."""
    store = open_store(write_store(place(tmp_path, backend), []))
    assert (len(store), store.names, dict(store.manifest.splits)) == (0, ("cat", "dog"), {})
    assert [len(store.catalog.column(name)) for name in COLUMNS] == [int("offsets" in name) for name in COLUMNS]
    check_all(store)
    with pytest.raises(IndexError):
        store.read(0)


# Pickling and processes


def test_a_store_that_has_been_read_is_sent_as_its_path(backend: str, tmp_path: Path) -> None:
    """The pickle of store and catalog is small whatever they hold, and the copy reads the same."""
    store = open_store(write_store(place(tmp_path, backend), pictures(200, side=60)), "val")
    wants = [store.read(i).tobytes() for i in range(3)]
    sent = pickle.dumps(store)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    assert (copy.path, copy.split, len(copy)) == (store.path, "val", len(store))
    assert [copy.read(i).tobytes() for i in range(3)] == wants
    assert [store.read(i).tobytes() for i in range(3)] == wants
    sent = pickle.dumps(store.catalog)
    assert len(sent) < 1000
    catalog = pickle.loads(sent)
    assert all(same(catalog.column(name), store.catalog.column(name)) for name in COLUMNS)


def test_a_store_that_was_replaced_on_the_way_is_refused(backend: str, store: Store) -> None:
    """A pickle names the content: it never opens another store that has the same place. Even one that differs in a name alone."""
    sent = pickle.dumps(store), pickle.dumps(store.catalog)
    write_store(store.path, pictures(12), said=manifest(names=("cat", "cow")), overwrite=True)
    for one in sent:
        with pytest.raises(StoreError, match="was replaced"):
            pickle.loads(one)
    assert store.read(0).tobytes() == pictures(12)[0].payload


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_store_works_in_a_child_of_any_start_method(backend: str, store: Store, method: str) -> None:
    """Opened and read before, then used in the child and again in the parent."""
    want = [store.read(i).tobytes() for i in range(3)] + [store.key(0)]
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=read_some, args=(store, queue))
    child.start()
    assert queue.get(timeout=60) == want
    child.join()
    assert child.exitcode == 0
    assert [store.read(i).tobytes() for i in range(3)] + [store.key(0)] == want


def test_threads_share_one_store(backend: str, tmp_path: Path) -> None:
    """First uses race: sections and records are checked by several threads at once, and all read the same."""
    samples = pictures(40)
    out = write_store(place(tmp_path, backend), samples)
    for _ in range(5):
        store = open_store(out)
        start = threading.Barrier(8)

        def work(k: int, store: Store = store, start: threading.Barrier = start) -> bool:
            start.wait()
            order = np.random.default_rng(k).permutation(40).tolist()
            return all(store.read(i).tobytes() == samples[i].payload and store.key(i) == samples[i].key for i in order)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))


def test_a_record_is_summed_once(backend: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read compares the record with its checksum, the second does not; ``check_record`` always does."""
    from fastdata.store import read

    sums: list[int] = []
    count = read.crc32c
    monkeypatch.setattr(read, "crc32c", lambda data, *start: sums.append(len(data)) or count(data, *start))
    size = len(store.read(5))
    assert sums == [size]
    store.read(5)
    assert sums == [size]
    store.check_record(5)
    assert sums == [size, size]


def test_opening_reads_no_section(backend: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that opening sums do not depend on the number of entries, but for a digit in the manifest."""
    from fastdata.store import format as fmt
    from fastdata.store import index

    def summed(path: Path) -> int:
        total = 0

        def count(data: object, start: int = 0) -> int:
            nonlocal total
            total += len(data)  # type: ignore[arg-type]
            return fastdata.checksum.crc32c(data, start)  # type: ignore[arg-type]

        with monkeypatch.context() as m:
            m.setattr(index, "crc32c", count)
            m.setattr(fmt, "crc32c", count)
            open_store(path)
        return total

    small = summed(store.path)
    large = summed(write_store(store.path.with_name("large" + store.path.suffix), pictures(900)))
    assert 2000 < small <= large < small + 64 + 1


def test_relative_paths_survive_a_change_of_folder(
    backend: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is made absolute at opening, so a worker elsewhere finds it."""
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(fastdata.open_store(store.path.name))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).key(0) == store.key(0)
    assert os.path.isabs(store.path)


def test_an_index_of_its_own_relabels_without_touching_the_pictures(backend: str, store: Store) -> None:
    """A new index beside the payload files, and nothing else, is a store with other names: what the format promises for later."""
    index_file = store.path / "index.fastdata" if store.path.is_dir() else store.path
    before = {f: f.stat().st_mtime_ns for f in ([*store.path.iterdir()] if store.path.is_dir() else [store.path])}
    index = RawIndex.of(index_file)
    index.manifest["names"][1] = "cow"
    for file in index.manifest["files"]:
        if not file["name"]:
            file |= {"name": store.path.name, "file_nbytes": store.path.stat().st_size}
    target = index_file.with_name("other.fastdata")
    target.write_bytes(index.encode(0))
    other = open_store(target)
    assert other.names == ("cat", "cow")
    assert [other.read(i).tobytes() for i in range(12)] == [store.read(i).tobytes() for i in range(12)]
    check_all(other)
    assert SecondReader(target).records == [store.read(i).tobytes() for i in range(12)]
    assert {f: f.stat().st_mtime_ns for f in before} == before
