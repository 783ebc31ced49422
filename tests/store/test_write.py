"""The writer's rules: what it refuses, what it replaces and when, what it continues, and what it leaves behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from second_reader import SecondReader
from store_kit import (
    BACKENDS,
    Label,
    Sample,
    assert_holds,
    bytes_of,
    check_all,
    feed,
    labels,
    manifest,
    pictures,
    place,
    write_store,
)

import fastdata
from fastdata.checksum import crc32c
from fastdata.errors import UsageError
from fastdata.labels import Instances
from fastdata.store import staging as staging_module
from fastdata.store.read import open_store
from fastdata.store.write import Entry, Record, StoreWriter, check_target

SAMPLES = pictures(9, seed=4)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Either backend."""
    return str(request.param)


@pytest.fixture
def out(backend: str, tmp_path: Path) -> Path:
    """Where a store goes."""
    return place(tmp_path, backend)


def begin(out: Path, **more: Any) -> StoreWriter:
    """Begin with small shards."""
    return StoreWriter.begin(out, **({"fingerprint": "f", "keypoints": 0, "shard_nbytes": 600} | more))


def half_built(out: Path, **more: Any) -> None:
    """Leave a staging folder with a checkpoint after 6 of 9 pictures, and one more picture behind it."""
    with begin(out, **more) as writer:
        for k in range(7):
            feed_and_log(writer, k, k + 1)
            if k in (2, 5):
                writer.checkpoint({"position": k + 1})


def complete(out: Path, **more: Any) -> StoreWriter:
    """Begin again, feed the rest, publish; return the writer."""
    with begin(out, **more) as writer:
        start = writer.resumed["position"] if writer.resumed else 0
        feed_and_log(writer, start, len(SAMPLES))
        writer.publish(manifest())
    return writer


def feed_and_log(writer: StoreWriter, start: int, stop: int) -> None:
    """Give some of the samples and a line for each."""
    for k in range(start, stop):
        feed(writer, [SAMPLES[k]])
        writer.log(b"line %d" % k)


def staging(out: Path) -> Path:
    """The staging folder of ``out``."""
    return out.with_name(out.name + ".partial")


def assert_nothing_left(out: Path) -> None:
    """There is no staging folder."""
    assert not staging(out).exists()


def undisturbed(out: Path) -> dict[str, bytes]:
    """The bytes of a run without interruption."""
    other = out.with_name("undisturbed" + out.suffix)
    complete(other)
    return bytes_of(other)


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


# Continuing


def test_a_run_continues_at_its_last_checkpoint(out: Path) -> None:
    """State, counts, splits and report are those of the checkpoint; what came after it is forgotten."""
    half_built(out)
    with begin(out) as writer:
        assert writer.resumed == {"position": 6}
        assert writer.why_not_resumed is None
        assert (writer.records, writer.entries, writer.sealed) == (6, 6, False)
        assert writer.log_path().read_bytes() == b"".join(b"line %d\n" % k for k in range(6))
        assert [e[:3] for e in writer.entries_so_far()] == [(s.key, k, s.original_hw) for k, s in enumerate(SAMPLES[:6])]
        writer.begin_split("train")
    writer = complete(out)
    assert writer.resumed == {"position": 6}
    assert bytes_of(out) == undisturbed(out)
    assert_nothing_left(out)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"fingerprint": "g"}, "fingerprint differs"),
        ({"keypoints": 3}, "keypoints was 0, not 3"),
        ({"resume": False}, "not to be continued"),
    ],
)
def test_other_work_is_thrown_away_with_a_reason(out: Path, more: dict[str, Any], why: str) -> None:
    """What an earlier run left under another fingerprint is of no use."""
    half_built(out)
    with begin(out, **more) as writer:
        assert writer.resumed is None
        assert why in str(writer.why_not_resumed)
        assert (writer.records, writer.entries, writer.payload_nbytes < 10_000) == (0, 0, True)
        assert writer.log_path().read_bytes() == b""
        feed(writer, [replace(s, instances=labels(np.random.default_rng(0), 1, more.get("keypoints", 0))) for s in SAMPLES[:2]])
        writer.publish(manifest(more.get("keypoints", 0)))
    assert len(open_store(out)) == 2
    assert_nothing_left(out)


def test_other_shards_are_other_work(tmp_path: Path) -> None:
    """The size of a shard decides the bytes, so it must be the same."""
    half_built(tmp_path / "s")
    with begin(tmp_path / "s", shard_nbytes=700) as writer:
        assert writer.why_not_resumed == "its shard_nbytes was 600, not 700"


def damage(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A change to one file of a staging folder."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (damage("journal", lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]), "line 1 of its journal is damaged"),
        (damage("journal", lambda raw: raw.replace(b'"records":3', b'"records":4')), "line 2 of its journal is damaged"),
        (damage("journal", lambda raw: raw.split(b"\n", 1)[1]), "does not say what was begun"),
        (damage("col-cls", lambda raw: raw[:-1]), "col-cls has changed"),
        (damage("col-xyxy_px", lambda raw: bytes([raw[0] ^ 1]) + raw[1:]), "col-xyxy_px has changed"),
        (damage("payload-00000", lambda raw: raw[:100]), "payload-00000 is shorter"),
        (lambda folder: (folder / "payload-00000").unlink(), "payload-00000 is shorter"),
        (lambda folder: (folder / "col-rec_crc").unlink(), "col-rec_crc has changed"),
    ],
)
def test_damaged_work_is_thrown_away_with_a_reason(out: Path, change: Callable[[Path], None], why: str) -> None:
    """Never continued from a state that no checkpoint declared."""
    half_built(out)
    change(staging(out))
    writer = complete(out)
    assert writer.resumed is None
    assert why in str(writer.why_not_resumed)
    assert bytes_of(out) == undisturbed(out)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 0.97, 1.0])
def test_a_journal_that_was_cut_leads_to_an_earlier_checkpoint(out: Path, keep: float) -> None:
    """A last line that is not whole never happened."""
    half_built(out)
    journal = staging(out) / "journal"
    raw = journal.read_bytes()
    journal.write_bytes(raw[: int(len(raw) * keep)])
    whole = raw[: int(len(raw) * keep)].count(b"\n")
    writer = complete(out)
    assert (writer.resumed or {}).get("position") == {3: 6, 2: 3}.get(whole)
    assert bytes_of(out) == undisturbed(out)


def test_a_line_of_the_journal_with_a_rotten_end_never_happened(out: Path) -> None:
    """The last line may have reached the device with its end but without its middle."""
    half_built(out)
    journal = staging(out) / "journal"
    raw = bytearray(journal.read_bytes())
    raw[-30:-20] = bytes(10)
    journal.write_bytes(raw)
    writer = complete(out)
    assert writer.resumed == {"position": 3}
    assert bytes_of(out) == undisturbed(out)


def test_an_error_leaves_what_was_checkpointed_and_nothing_else(out: Path) -> None:
    """With a checkpoint the folder stays; without one there is nothing to continue and nothing is left."""
    for checkpoint in (False, True):
        with suppress(RuntimeError), begin(out) as writer:
            feed_and_log(writer, 0, 3)
            if checkpoint:
                writer.checkpoint({"position": 3})
            raise RuntimeError("stop")
        assert staging(out).exists() == checkpoint
        assert not out.exists()
    assert complete(out).resumed == {"position": 3}
    assert bytes_of(out) == undisturbed(out)


def test_a_store_that_was_sealed_is_only_moved(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error between completion and the move: the next run says so, takes everything for done, and finishes."""
    with monkeypatch.context() as m:
        m.setattr("fastdata.store.write.finish", lambda *a: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            complete(out)
    with begin(out) as writer:
        assert writer.sealed
        assert writer.resumed is None
        assert writer.payload_nbytes > 0
        assert list(writer.entries_so_far()) == []
        for sample in SAMPLES:
            feed(writer, [sample])
            writer.log(b"again")
            writer.checkpoint({})
        assert (writer.records, writer.entries) == (9, 9)
        writer.publish(manifest())
    assert bytes_of(out) == undisturbed(out)
    assert_nothing_left(out)


def test_less_than_before_may_follow_a_checkpoint(out: Path) -> None:
    """What was written behind it, to records or to an index, is cut off and leaves no trace."""
    half_built(out)
    with begin(out) as writer, pytest.MonkeyPatch.context() as m:
        m.setattr(writer, "_append_journal", lambda *a: (_ for _ in ()).throw(OSError("no")))
        feed(writer, SAMPLES[6:])
        with pytest.raises(OSError, match="no"):
            writer.publish(manifest(summary={"long": "x" * 5000}))
    with begin(out) as writer:
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES[:6])
    check_all(open_store(out))
    SecondReader(out)


def test_half_a_move_is_undone_when_other_work_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that were moved in for a store that never came are removed, without --overwrite."""
    out = tmp_path / "s"
    with monkeypatch.context() as m:
        real, moved = os.rename, []

        def rename(a: Path, b: Path) -> None:
            if len(moved) == 2:
                raise OSError("no")
            moved.append(real(a, b))

        m.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="no"):
            complete(out)
    assert len(list(out.iterdir())) == 2
    write_store(out, SAMPLES[:2], fingerprint="other")
    assert_holds(open_store(out), SAMPLES[:2])
    assert len(list(out.iterdir())) == 2


def test_undoing_half_a_move_leaves_the_shards_that_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that is there has the same shards as the one whose move is given up."""
    out = tmp_path / "s"
    complete(out)
    before = bytes_of(out)
    with monkeypatch.context() as m:
        real = os.rename

        def rename(a: Path, b: Path) -> None:
            if Path(b).name == "index.fastdata":
                raise OSError("no")
            real(a, b)

        m.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="no"):
            complete(out, overwrite=True)
    assert bytes_of(out) == before
    with begin(out, fingerprint="other", overwrite=True) as writer:
        assert writer.why_not_resumed is not None
        assert_holds(open_store(out), SAMPLES)
    assert bytes_of(out) == before


# Where it may be written


def test_a_store_that_is_there_is_replaced_only_when_asked(out: Path) -> None:
    """The error comes before anything is done and names the option; then the old store opens until the new one is there."""
    write_store(out, SAMPLES[:4])
    before = bytes_of(out)
    for check in (lambda: begin(out), lambda: check_target(out, overwrite=False)):
        with pytest.raises(UsageError, match="--overwrite"):
            check()
    assert_nothing_left(out)
    reader = open_store(out)
    with begin(out, overwrite=True) as writer:
        feed(writer, SAMPLES)
        writer.checkpoint({})
        assert bytes_of(out) == before
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)
    assert_holds(reader, SAMPLES[:4])
    check_all(reader)


def test_replacing_removes_the_old_shards_and_nothing_else(tmp_path: Path) -> None:
    """A note that a person put beside them stays."""
    out = write_store(tmp_path / "s", SAMPLES, shard_nbytes=600)
    (out / "README").write_text("mine")
    write_store(out, SAMPLES[:3], overwrite=True)
    assert sorted(p.name for p in out.iterdir() if not p.name.startswith("shard-00000-")) == ["README", "index.fastdata"]
    assert_holds(open_store(out), SAMPLES[:3])


def test_replacing_a_store_by_itself_changes_nothing(out: Path) -> None:
    """Shards of the same content have the same names."""
    write_store(out, SAMPLES, shard_nbytes=600)
    before = bytes_of(out)
    write_store(out, SAMPLES, shard_nbytes=600, overwrite=True)
    assert bytes_of(out) == before


def test_a_damaged_store_can_be_replaced(tmp_path: Path) -> None:
    """It need only look like one."""
    for backend in BACKENDS:
        out = write_store(place(tmp_path, backend), SAMPLES)
        file = out / "index.fastdata" if out.is_dir() else out
        raw = bytearray(file.read_bytes())
        raw[-500] ^= 1
        file.write_bytes(raw)
        write_store(out, SAMPLES, overwrite=True)
        check_all(open_store(out))


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_store_is_never_replaced(out: Path, overwrite: bool) -> None:
    """A file, a picture, a folder with anything in it: --overwrite or not."""
    for content in (b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(200)):
        out.write_bytes(content)
        with pytest.raises(UsageError, match="something else"):
            begin(out, overwrite=overwrite)
        assert out.read_bytes() == content
        out.unlink()
    out.mkdir()
    for name in ("photo.jpg", "index.fastdata"):
        (out / name).write_bytes(b"mine")
        with pytest.raises(UsageError, match="something else"):
            begin(out, overwrite=overwrite)
        assert (out / name).read_bytes() == b"mine"
        (out / name).unlink()
    assert_nothing_left(out)


def test_an_empty_folder_is_a_free_place(out: Path) -> None:
    """For a folder of shards and for a file."""
    out.mkdir()
    write_store(out, SAMPLES)
    assert_holds(open_store(out), SAMPLES)


def test_one_kind_of_store_does_not_replace_the_other(tmp_path: Path) -> None:
    """A file cannot be renamed over a folder at one instant."""
    for there, here in (("lmdb", "shards"), ("shards", "lmdb")):
        out = write_store(tmp_path / there, SAMPLES, backend=there)
        with pytest.raises(UsageError, match="to be replaced by one, got the other"):
            write_store(out, SAMPLES, backend=here, overwrite=True)
        assert_holds(open_store(out), SAMPLES)


def test_a_link_is_followed(out: Path, tmp_path: Path) -> None:
    """What it points to is written, the link stays."""
    real = tmp_path / "disk"
    real.mkdir()
    out.symlink_to(real / ("x" + out.suffix))
    for samples in (SAMPLES[:2], SAMPLES):
        write_store(out, samples, overwrite=True)
        assert out.is_symlink()
        assert_holds(open_store(out), samples)
    assert [p.name for p in real.iterdir()] == ["x" + out.suffix]


def test_a_missing_folder_is_an_error_before_anything(tmp_path: Path) -> None:
    """With the command that makes it; also when it is a file."""
    with pytest.raises(UsageError, match="mkdir -p"):
        begin(tmp_path / "no" / "s.lmdb")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="must exist"):
        begin(tmp_path / "file" / "s.lmdb")
    with pytest.raises(UsageError, match="must name"):
        begin(Path("/"))


def in_child(work: Callable[[], object]) -> str:
    """Run in a forked process; return what it returned or raised, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(work())
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def test_a_folder_without_permission_is_an_error_before_anything(tmp_path: Path) -> None:
    """As a user who may not write there."""
    (tmp_path / "s").mkdir()
    for folder in (tmp_path, tmp_path / "s"):
        folder.chmod(0o555)

    def work() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        begin(tmp_path / "x.lmdb")

    try:
        assert in_child(work).startswith("PermissionError: [Errno 13] the folder of a store must be writable")
    finally:
        tmp_path.chmod(0o755)

    def inside() -> None:
        if os.getuid() == 0:
            os.chown(tmp_path, 65534, 65534)
            os.setuid(65534)
        begin(tmp_path / "s")

    assert in_child(inside).startswith("PermissionError: [Errno 13] a folder of shards must be writable")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_foreign_folder_in_the_place_of_the_staging_folder_is_left_alone(out: Path) -> None:
    """Its files are somebody's."""
    staging(out).mkdir()
    (staging(out) / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="move it away"):
        begin(out, overwrite=True)
    assert [p.name for p in staging(out).iterdir()] == ["thesis.tex"]
    (staging(out) / "thesis.tex").unlink()
    staging(out).rmdir()
    staging(out).write_text("mine")
    with pytest.raises(UsageError, match="move it away"):
        begin(out, overwrite=True)


def test_files_that_workers_left_are_removed(out: Path) -> None:
    """``spill-`` files, of this run or one before."""
    half_built(out)
    (staging(out) / "spill-17").write_bytes(b"x")
    with begin(out) as writer:
        assert writer.resumed is not None
        assert not (writer.staging / "spill-17").exists()
        feed(writer, SAMPLES[6:])
        (writer.staging / "spill-18").write_bytes(b"x")
        writer.publish(manifest())
    assert_nothing_left(out)


# One writer at a time


def test_a_second_writer_is_refused_by_the_number_of_the_first(out: Path) -> None:
    """In the same process, in a child, and in a program of its own; the first one is not disturbed."""
    code = (
        "import sys; from fastdata.store.write import StoreWriter\n"
        "try: StoreWriter.begin(sys.argv[1], fingerprint='f', keypoints=0)\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    with begin(out) as writer:
        feed(writer, SAMPLES[:4])
        with pytest.raises(UsageError, match=f"process {os.getpid()} is writing"):
            begin(out)
        assert f"process {os.getpid()} is writing" in in_child(lambda: begin(out))
        done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=True)
        assert f"UsageError {out} must have one writer" in done.stdout
        assert f"process {os.getpid()} is writing" in done.stdout
        feed(writer, SAMPLES[4:])
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)


def test_a_lock_on_a_file_that_was_just_removed_is_no_lock(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner publishes and removes the folder between another's opening and locking; the other begins in a folder anew."""
    real, removed = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        if not removed:
            removed.append((staging(out) / "lock").unlink())
            staging(out).rmdir()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with begin(out) as writer:
        assert removed
        assert int((staging(out) / "lock").read_text()) == os.getpid()
        with pytest.raises(UsageError, match="one writer at a time"):
            begin(out)
        feed(writer, SAMPLES)
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_no_obstacle(out: Path, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cluster file systems have none; any other error comes through."""
    monkeypatch.setattr(fcntl, "flock", lambda *a: (_ for _ in ()).throw(OSError(error, os.strerror(error))))
    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            begin(out)
    else:
        assert complete(out).entries == 9


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(out: Path) -> None:
    """Workers are forked; the writer is killed; they live on for a while. The next writer begins at once."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        writer = begin(out)
        feed(writer, SAMPLES[:3])
        writer.checkpoint({"position": 3})
        worker = os.fork()
        if worker == 0:
            os.write(write, b"%d" % os.getpid())
            signal.pause()
            os._exit(0)
        signal.pause()
    worker = int(os.read(read, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        with begin(out) as writer:
            assert writer.resumed == {"position": 3}
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_forked_child_cannot_use_or_end_the_writer(out: Path) -> None:
    """Leaving the ``with`` block there removes nothing."""
    with begin(out) as writer:
        feed(writer, SAMPLES[:2])

        def work() -> str:
            with writer:
                feed(writer, SAMPLES[2:3])
            return "no error"

        assert "UsageError: a writer must be open, and in the process that began it" in in_child(work)
        feed(writer, SAMPLES[2:])
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)


def test_a_target_that_appears_meanwhile_is_not_replaced(out: Path, tmp_path: Path) -> None:
    """Publication looks again."""
    with begin(out) as writer:
        feed(writer, SAMPLES)
        writer.checkpoint({"position": 9})
        other = write_store(place(tmp_path, writer._backend, "other"), SAMPLES[:1])
        other.rename(out)
        with pytest.raises(UsageError, match="--overwrite"):
            writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES[:1])
    assert complete(out, overwrite=True).resumed == {"position": 9}
    assert_holds(open_store(out), SAMPLES)


# A full disk


def test_a_file_that_may_not_grow_is_an_error_with_the_bytes_and_can_be_continued(out: Path) -> None:
    """RLIMIT_FSIZE in a child, for the payload; then the rest without the limit."""
    samples = pictures(40, seed=8, side=60)

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        with StoreWriter.begin(out, fingerprint="f", keypoints=0) as writer:
            for k, sample in enumerate(samples):
                feed(writer, [sample])
                writer.checkpoint({"position": k + 1})
        return "no error"

    text = in_child(work)
    assert text.startswith("OSError: [Errno 27] File too large: "), text
    assert "more bytes must fit" in text
    assert str(staging(out)) in text
    with StoreWriter.begin(out, fingerprint="f", keypoints=0) as writer:
        assert writer.resumed is not None
        assert 0 < writer.resumed["position"] < 40
        feed(writer, samples[writer.resumed["position"] :])
        writer.publish(manifest())
    assert_holds(open_store(out), samples)
    assert bytes_of(out) == bytes_of(write_store(out.with_name("other" + out.suffix), samples))


@pytest.mark.parametrize("after", [0, 3, 17, 40, 41, 44, 48, 60, 75, 90])
def test_a_disk_that_fills_up_at_any_write_leaves_what_was_checkpointed(
    out: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC amid the n-th write, in records, columns, journal, tree or index: the error comes through, and it goes on later."""
    with monkeypatch.context() as m:
        left = after

        def full(real: Callable[..., int], cut: Callable[[Any], Any]) -> Callable[..., int]:
            def call(fd: int, data: Any, at: int) -> int:
                nonlocal left
                left -= 1
                if left >= 0:
                    return real(fd, data, at)
                if left == -1:
                    return real(fd, cut(data), at)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return call

        m.setattr(os, "pwritev", full(os.pwritev, lambda data: [bytes(b"".join(data))[: sum(map(len, data)) // 2]]))
        m.setattr(os, "pwrite", full(os.pwrite, lambda data: bytes(data)[: len(data) // 2]))
        with pytest.raises(OSError, match="No space left on device") as caught:
            (half_built(out), complete(out))
        assert caught.value.errno == errno.ENOSPC
        if after:
            assert "more bytes must fit" in str(caught.value)
    assert not out.exists()
    complete(out)
    assert bytes_of(out) == undisturbed(out)
    assert_nothing_left(out)


def test_after_an_error_the_writer_is_of_no_use(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns might be of different lengths; what was checkpointed can be continued by another."""
    with begin(out) as writer:
        feed_and_log(writer, 0, 3)
        writer.checkpoint({"position": 3})
        with monkeypatch.context() as m:
            m.setattr(os, "pwritev", lambda *a: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
            with pytest.raises(OSError, match="broken"):
                feed(writer, SAMPLES[3:4])
        for use in (lambda: feed(writer, SAMPLES[3:4]), lambda: writer.checkpoint({}), lambda: writer.publish(manifest())):
            with pytest.raises(UsageError, match="begin again"):
                use()
    assert complete(out).resumed == {"position": 3}
    assert bytes_of(out) == undisturbed(out)


def test_a_column_that_rotted_on_the_disk_does_not_become_a_store(out: Path) -> None:
    """What goes into the index is compared with what was appended."""
    with begin(out) as writer:
        feed(writer, SAMPLES)
        writer.checkpoint({})
        column = writer.staging / "col-xyxy_px"
        raw = bytearray(column.read_bytes())
        raw[5] ^= 1
        column.write_bytes(raw)
        with pytest.raises(fastdata.StoreError, match=r"col-xyxy_px:0: column must have CRC32C"):
            writer.publish(manifest())
    assert not out.exists()


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


# Memory


def test_a_record_is_written_from_where_it_lies(out: Path) -> None:
    """32 MB of pixels cost no memory on the way."""
    pixels = np.zeros((3, 2048, 5461), np.uint8)
    with begin(out, shard_nbytes=1 << 30) as writer:
        tracemalloc.start()
        try:
            writer.add_record(Record(pixels, "raw", (2048, 5461), 3, 0))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 200_000


def test_labels_of_any_number_are_published_in_pieces(out: Path) -> None:
    """40 MB of points and 8 MB of report: neither adding nor publishing needs a fraction of it."""
    n = 50_000
    rng = np.random.default_rng(0)
    many = replace(
        Instances.empty(),
        **{name: getattr(labels(rng, n), name) for name in ("cls", "xyxy_px", "kind", "flags", "original_id", "area_px")},
        part_offsets=np.arange(n + 1),
        point_offsets=np.arange(n + 1) * 5,
        points_px=np.zeros((5 * n, 2), np.float32),
        keypoints_px=np.zeros((n, 0, 3), np.float32),
    )
    with begin(out) as writer:
        writer.begin_split("train")
        writer.add_record(Record(b"", "jpeg", (3, 4), 3, 0))
        tracemalloc.start()
        try:
            for k in range(20):
                writer.add_entry(Entry(str(k), 0, (3, 4), many))
                writer.log(bytes(400_000))
            tracemalloc.reset_peak()
            writer.publish(manifest())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    with open_store(out) as store:
        assert store.catalog.points_px.nbytes == 40_000_000
        assert json.dumps(store.manifest.to_json())
    assert peak < 6_000_000, peak
