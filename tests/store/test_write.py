"""What the writer makes of what it is given, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from second_reader import SecondReader
from store_kit import (
    Label,
    Sample,
    assert_holds,
    bytes_of,
    check_all,
    feed,
    labels,
    manifest,
    pictures,
    write_store,
)
from write_kit import SAMPLES, assert_nothing_left, begin, undisturbed

import fastdata
from fastdata.checksum import crc32c
from fastdata.errors import UsageError
from fastdata.labels import Instances
from fastdata.store import staging as staging_module
from fastdata.store.read import open_store
from fastdata.store.write import Entry, Record

# What comes out


def test_the_bytes_do_not_depend_on_checkpoints(out: Path) -> None:
    """A checkpoint after every picture, or none: the same store."""
    with begin(out, checkpoint_nbytes=1) as writer:
        for k, sample in enumerate(SAMPLES):
            feed(writer, [sample])
            writer.log(b"line %d\n" % k)
            assert writer.due
            writer.checkpoint({"k": k})
            assert not writer.due
        assert writer.publish(manifest()) == out
    assert bytes_of(out) == undisturbed(out)
    assert_holds(open_store(out), SAMPLES)


def test_the_writer_fills_in_what_it_counts(out: Path) -> None:
    """Backend, splits, counts, files, uid and its own name; all else is the caller's."""
    said = manifest(imgsz=640, decisions={"a": "b"}, extra={"x": 1})
    write_store(out, SAMPLES, splits=["test"], said=said, shard_nbytes=600)
    got = open_store(out).manifest
    assert got.writer == f"fastdata {fastdata.__version__}"
    assert dict(got.splits) == {"train": (0, 6), "val": (6, 9), "test": (9, 9)}
    assert (got.counts.records, got.counts.entries) == (9, 9)
    assert got.counts.instances == sum(len(s.instances) for s in SAMPLES)
    same = replace(got, writer="", backend="", splits={}, counts=said.counts, files=(), uid="")
    assert same == said


def test_the_uid_names_the_content(out: Path) -> None:
    """It changes with a pixel, a label, a name, and with nothing else."""

    def uid(samples: list[Sample], name: str = "dog") -> str:
        write_store(out, samples, said=manifest(names=("cat", name)), overwrite=True)
        return open_store(out).manifest.uid

    first = uid(SAMPLES)
    assert uid(SAMPLES) == first
    old = SAMPLES[3]
    pixel = replace(old, payload=bytes([old.payload[0] ^ 1]) + old.payload[1:])
    label = replace(old, instances=labels(np.random.default_rng(99), len(old.instances)))
    key = replace(old, key="images/other.jpg")
    others = [uid([*SAMPLES[:3], other, *SAMPLES[4:]]) for other in (pixel, label, key)] + [uid(SAMPLES, "cow")]
    assert len({first, *others}) == 5


def test_label_files_and_the_report_are_kept(out: Path) -> None:
    """Names and digests in order; the report given, or else the running one."""
    files = [Label("labels/a.txt", bytes(range(16))), Label("x\udcff", b"\1" * 16), Label("", b"\2" * 16)]
    write_store(out, SAMPLES, label_files=files, problems=b'{"a": 1}')
    second = SecondReader(out)
    assert [second.text("label_file_offsets", "label_file_names", k) for k in range(3)] == [f.path for f in files]
    assert second.sections["label_file_digests"].tobytes() == b"".join(f.digest for f in files)
    assert second.sections["problems"].tobytes() == b'{"a": 1}'
    with begin(out, overwrite=True) as writer:
        writer.log(b"one")
        writer.log(b"two\n")
        assert writer.log_path().read_bytes() == b"one\ntwo\n"
        writer.publish(manifest())
    assert SecondReader(out).sections["problems"].tobytes() == b"one\ntwo\n"
    with begin(out, overwrite=True) as writer, pytest.raises(UsageError, match="16 bytes"):
        writer.publish(manifest(), [Label("a", b"short")])


def test_the_uid_holds_more_than_the_sums_of_the_sections(tmp_path: Path) -> None:
    """Two sets of record checksums that differ by a multiple of the polynomial have one sum, and still two uids."""
    bits = "1" + f"{0x1EDC6F41:032b}"
    difference = np.frombuffer(int(bits[::-1], 2).to_bytes(8, "little"), "<u4")
    one = np.array([123456789, 987654321], "<u4")
    two = one ^ difference
    assert crc32c(one) == crc32c(two)
    uids = set()
    for crcs in (one, two):
        with begin(tmp_path / "s.lmdb", overwrite=True) as writer:
            for crc in crcs.tolist():
                writer.add_record(Record(b"", "jpeg", (1, 1), 3, crc))
            writer.publish(manifest())
        uids.add(open_store(tmp_path / "s.lmdb").manifest.uid)
    assert len(uids) == 2


@pytest.mark.parametrize("shard_nbytes", range(192, 640, 37))
def test_no_shard_is_larger_than_asked_for(tmp_path: Path, shard_nbytes: int) -> None:
    """Unless its first record alone is; padding counts."""
    rng = np.random.default_rng(shard_nbytes)
    many = [
        Sample("train", str(k), Instances.empty(), bytes(int(n)), "jpeg", (1, 1)) for k, n in enumerate(rng.integers(0, 129, 60))
    ]
    out = write_store(tmp_path / "s", many, shard_nbytes=shard_nbytes)
    assert max(f.stat().st_size for f in out.glob("shard-*.bin")) <= shard_nbytes


def test_a_first_record_that_is_too_large_has_the_first_shard(tmp_path: Path) -> None:
    """No shard is empty."""
    big = Sample("train", "big", Instances.empty(), bytes(5000), "jpeg", (1, 1))
    out = write_store(tmp_path / "s", [big, big], shard_nbytes=640)
    assert sorted(f.name[:11] for f in out.glob("shard-*.bin")) == ["shard-00000", "shard-00001"]
    check_all(open_store(out))


def test_shards_end_where_the_next_record_would_pass_the_size(tmp_path: Path) -> None:
    """Every shard is within the size, unless one record alone is larger; the records are at multiples of 64."""
    big = Sample("train", "big", Instances.empty(), bytes(5000), "jpeg", (1, 1))
    small = [Sample("train", str(k), Instances.empty(), bytes(100), "jpeg", (1, 1)) for k in range(20)]
    out = write_store(tmp_path / "s", [*small[:5], big, *small[5:]], shard_nbytes=640)
    catalog = open_store(out).catalog
    assert (catalog.rec_offset % 64 == 0).all()
    sizes = {int(f.name[6:11]): f.stat().st_size for f in out.glob("shard-*.bin")}
    assert sorted(sizes) == list(range(len(sizes)))
    alone = int(catalog.rec_file[5])
    assert sizes.pop(alone) == 64 + 5000
    assert np.count_nonzero(catalog.rec_file == alone) == 1
    assert max(sizes.values()) <= 640
    assert all(sizes[k] + 28 + 100 > 640 for k in sizes if k + 1 in sizes and k + 1 != alone)


def test_an_entry_may_show_any_earlier_record(out: Path) -> None:
    """Also one from before a checkpoint, whose size the writer has to look up."""
    view = [Sample("val", f"view{k}", labels(np.random.default_rng(k), 1), record=k) for k in (0, 3, 8)]
    again = replace(view[1], key="again")
    assert SAMPLES[3].size_hw != SAMPLES[8].size_hw
    with begin(out) as writer:
        feed(writer, [*SAMPLES, again])
        writer.checkpoint({})
    with begin(out) as writer:
        feed(writer, view)
        assert list(writer.entries_so_far())[-1][:2] == ("view8", 8)
        writer.publish(manifest())
    assert_holds(open_store(out), [*SAMPLES, again, *view])


# What it takes

WRONG_ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "no such record": ({"record": 1}, "record must be in 0 <= record < 1"),
    "a negative record": ({"record": -1}, "record must be in"),
    "a rectangle outside": ({"rect": (0, 0, 5, 4)}, "rect of 'k' must lie in its record of 4 x 3 pixels"),
    "a rectangle of no width": ({"rect": (1, 1, 1, 2)}, "rect"),
    "a key that is no file name": ({"key": "\ud800"}, "key must be a file name"),
}
WRONG_INSTANCES: dict[str, tuple[dict[str, Any], str]] = {
    "boxes of another number": ({"xyxy_px": np.zeros((1, 4), np.float32)}, r"xyxy_px of 'k' must be of shape \(2, 4\)"),
    "keypoints that were not announced": ({"keypoints_px": np.zeros((2, 1, 3), np.float32)}, "keypoints_px"),
    "falling offsets": ({"part_offsets": np.array([0, 2, 1])}, "part_offsets of 'k' must be 3 rising numbers"),
    "offsets that do not begin at 0": ({"part_offsets": np.array([1, 1, 1])}, "part_offsets"),
    "offsets of another number": ({"part_offsets": np.array([0, 0])}, "part_offsets"),
    "points that are not there": ({"point_offsets": np.array([0, 3])}, "point_offsets|points_px"),
}


@pytest.mark.parametrize("case", [*WRONG_ENTRIES, *WRONG_INSTANCES])
def test_an_entry_that_contradicts_itself_is_refused_and_nothing_is_written(out: Path, case: str) -> None:
    """The writer goes on as if it had not been given."""
    two = replace(labels(np.random.default_rng(0), 2), part_offsets=np.zeros(3, np.int64), point_offsets=np.zeros(1, np.int64))
    two = replace(two, points_px=np.zeros((0, 2), np.float32))
    good = Entry("k", 0, (3, 4), two)
    if case in WRONG_ENTRIES:
        change, match = WRONG_ENTRIES[case]
        bad = replace(good, **change)
    else:
        change, match = WRONG_INSTANCES[case]
        bad = replace(good, instances=replace(two, **change))
    with begin(out) as writer:
        writer.begin_split("train")
        writer.add_record(Record(bytes(36), "raw", (3, 4), 3, crc32c(bytes(36))))
        with pytest.raises(UsageError, match=match):
            writer.add_entry(bad)
        writer.add_entry(good)
        writer.publish(manifest())
    assert len(open_store(out)) == 1
    check_all(open_store(out))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"payload": bytes(35)}, "3 x 3 x 4 bytes long, got 35"),
        ({"encoding": "png"}, "encoding must be one of raw, jpeg, webp"),
        ({"channels": 4}, "channels must be 1 or 3"),
        ({"size_hw": (0, 4)}, "size_hw must be at least 1 x 1"),
        ({"crc32c": -1}, "32 bits"),
        ({"payload": np.zeros((3, 6, 4), np.uint8)[:, ::2]}, "one block"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(out: Path, change: dict[str, Any], match: str) -> None:
    """Before a byte of it is written."""
    good = Record(bytes(36), "raw", (3, 4), 3, crc32c(bytes(36)))
    with begin(out) as writer:
        before = writer.payload_nbytes
        with pytest.raises(UsageError, match=match):
            writer.add_record(replace(good, **change))
        assert (writer.records, writer.payload_nbytes) == (0, before)
        assert writer.add_record(good) == 0


def test_any_buffer_is_taken(out: Path) -> None:
    """bytes, bytearray, memoryview, arrays of any shape and type."""
    data = np.arange(36, dtype=np.uint8)
    buffers: list[Any] = [data.tobytes(), bytearray(data), memoryview(data), data.reshape(3, 3, 4), data.view(np.uint16), b""]
    with begin(out) as writer:
        for buffer in buffers:
            writer.add_record(Record(buffer, "jpeg", (3, 4), 3, crc32c(buffer)))
        writer.publish(manifest())
    with open_store(out) as store:
        assert [store.read_record(r).tobytes() for r in range(6)] == [data.tobytes()] * 5 + [b""]


def test_the_order_of_calls_is_checked(out: Path) -> None:
    """No entry without a split, no split twice, nothing after publication."""
    with begin(out) as writer:
        with pytest.raises(UsageError, match="call begin_split before"):
            writer.add_entry(Entry("a", 0, (1, 1), Instances.empty()))
        writer.begin_split("a")
        writer.begin_split("a")
        writer.begin_split("b")
        with pytest.raises(UsageError, match="one after the other, got 'a' again"):
            writer.begin_split("a")
        with pytest.raises(UsageError, match="keypoints of the manifest must be 0"):
            writer.publish(manifest(3))
        writer.publish(manifest())
        for use in (lambda: writer.begin_split("c"), lambda: writer.log(b""), lambda: writer.publish(manifest())):
            with pytest.raises(UsageError, match="after publication"):
                use()
    writer.abandon()
    assert list(open_store(out).manifest.splits) == ["a", "b"]


def test_sizes_must_be_positive(out: Path) -> None:
    """A shard of no bytes, a checkpoint after none."""
    for name in ("shard_nbytes", "checkpoint_nbytes"):
        with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
            begin(out, **{name: 0})
    assert_nothing_left(out)


def test_too_many_shards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rec_file`` counts 65535."""
    monkeypatch.setattr(staging_module, "MAX_FILES", 3)
    with begin(tmp_path / "s") as writer, pytest.raises(UsageError, match="shard_nbytes must be so large"):
        feed(writer, pictures(40))
