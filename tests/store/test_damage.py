"""A store that opens is whole: every way in which one can be broken is an error with file and offset, and never a crash."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from store_kit import BACKENDS, RawIndex, bytes_of, check_all, files_of, index_of, pictures, place, write_store

from fastdata.errors import StoreError
from fastdata.store.format import END_MARK, SECTIONS
from fastdata.store.read import open_store

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def out(backend: str, tmp_path: Path) -> Path:
    """A store of 7 pictures; several shards."""
    return write_store(place(tmp_path, backend), pictures(7), problems=b"{}\n", shard_nbytes=700)


def read_everything(out: Path) -> None:
    """Open a store and compare every byte of it."""
    with open_store(out) as store:
        check_all(store)


def refused(out: Path, match: str | None = None) -> str:
    """Assert that a store is refused, with a place in one of its files; return the message."""
    with pytest.raises(StoreError, match=match) as caught:
        read_everything(out)
    message = str(caught.value)
    assert re.match(r".+:\d+: ", message), message
    assert message.startswith(str(out)), message
    return message


def flip(file: Path, at: int, bit: int) -> None:
    """Flip one bit of a file."""
    with open(file, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << bit]))


def regions(file: Path) -> dict[str, tuple[int, int]]:
    """The parts of a file by name, read from its raw bytes."""
    data = file.read_bytes()
    if data[-64:-60] != b"\x89FDE":
        return {"shard header": (0, 64), "payload": (64, len(data))}
    (base,) = struct.unpack_from("<Q", data, len(data) - 48)
    manifest, table, count = struct.unpack_from("<QQI", data, base + 24)
    found = {"header": (base, base + 64), "manifest": (base + 64, base + 64 + manifest)}
    for k in range(count):
        name, _, _, _, at, nbytes = struct.unpack_from("<24s3sBIQQ", data, base + table + 64 * k)
        found[f"section {name.rstrip(bytes(1)).decode()}"] = (base + at, base + at + -(-nbytes // 64) * 64)
    found["table"] = (base + table, base + table + 64 * count)
    found["end mark"] = (len(data) - 64, len(data))
    if base:
        found |= {"meta pages": (0, 8192), "records and tree": (8192, base)}
    return {name: (a, b) for name, (a, b) in found.items() if b > a}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_flipped_bit_is_found_wherever_it_lies(out: Path) -> None:
    """Each region of each file, the first and last byte of it and others at random: open and check find every one."""
    rng = np.random.default_rng(5)
    seen = set()
    read_everything(out)
    for file in files_of(out):
        for name, (a, b) in regions(file).items():
            seen.add(name)
            for at in {a, b - 1, *rng.integers(a, b, 160 if b - a > 5000 else 12).tolist()}:
                bit = int(rng.integers(8))
                flip(file, at, bit)
                refused(out)
                flip(file, at, bit)
    read_everything(out)
    assert {"header", "manifest", "table", "end mark", *(f"section {s.name}" for s in SECTIONS)} - seen <= {
        "section keypoints_px", "section label_file_names", "section label_file_digests",
    }  # fmt: skip
    assert seen >= ({"meta pages", "records and tree"} if out.is_file() else {"shard header", "payload"})


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_bytes_of_a_golden_store_are_under_checksums(backend: str, tmp_path: Path) -> None:
    """Every fifth byte, from a beginning that differs by backend; long runs of zeros in LMDB's pages are left out."""
    golden = place(GOLDEN, backend, "store-v1")
    out = place(tmp_path, backend)
    shutil.copytree(golden, out) if golden.is_dir() else shutil.copy(golden, out)
    for file in files_of(out):
        data = np.fromfile(file, np.uint8)
        busy = np.convolve(data != 0, np.ones(17), "same") > 0
        for at in np.flatnonzero(busy)[len(backend) % 5 :: 5].tolist():
            flip(file, at, at % 8)
            with pytest.raises(StoreError):
                read_everything(out)
            flip(file, at, at % 8)
    read_everything(out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_cut_at_any_length_is_refused(out: Path) -> None:
    """No length but the right one opens; nothing is touched behind the end."""
    for file in files_of(out):
        data = file.read_bytes()
        edges = {e + d for a, b in regions(file).values() for e in (a, b) for d in (-1, 0, 1)}
        lengths = {n for n in edges if 0 <= n < len(data)} | set(range(0, len(data), 997 if out.is_file() else 61))
        for n in lengths:
            file.write_bytes(data[:n])
            with pytest.raises(StoreError, match=rf"^{re.escape(str(file))}:\d+: "):
                open_store(out)
        file.write_bytes(data)
    read_everything(out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extra", [b"\0", b"garbage", bytes(64), bytes(4096), "mark"])
def test_bytes_behind_the_end_are_refused(out: Path, extra: bytes | str) -> None:
    """Even when they look like an end mark."""
    for file in files_of(out):
        data = file.read_bytes()
        file.write_bytes(data + (data[-64:] if isinstance(extra, str) else extra))
        with pytest.raises(StoreError, match=rf"^{re.escape(str(file))}:\d+: "):
            open_store(out)
        file.write_bytes(data)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_damaged_record_is_an_error_at_its_first_read_and_the_others_stay_readable(out: Path) -> None:
    """The message names file, offset and record."""
    with open_store(out) as store:
        r, want = 3, store.read(4).tobytes()
        offset, number = int(store.catalog.rec_offset[r]), int(store.catalog.rec_file[r])
        name = store.manifest.files[number].name
    file = out / name if name else out
    flip(file, offset + 5, 1)
    with open_store(out) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"^{re.escape(str(file))}:{offset}: record 3 must have CRC32C"):
                store.read(3)
        assert store.read(4).tobytes() == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["xyxy_px", "key_bytes", "inst_offsets", "rec_offset"])
def test_a_damaged_section_is_an_error_at_its_first_use_and_the_others_stay_readable(out: Path, name: str) -> None:
    """Opening does not read it; the message names it and its place, each time."""
    file = out / "index.fastdata" if out.is_dir() else out
    at = regions(file)[f"section {name}"][0]
    flip(file, at + 3, 2)
    with open_store(out) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"^{re.escape(str(file))}:{at}: section {name} must have CRC32C"):
                getattr(store.catalog, name)
        assert store.catalog.entry_rect.shape == (7, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_payload_file_is_named(out: Path) -> None:
    """Opening maps every file, so a lost one is noticed at once."""
    if out.is_file():
        return
    lost = next(file for file in files_of(out) if file.name.startswith("shard-00001"))
    lost.unlink()
    assert str(lost) in refused(out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_newer_major_version_is_refused_by_both_numbers(out: Path) -> None:
    """The message names the version of the file and that of the program, and how to get a newer one."""
    index = index_of(out)
    index.version = (2, 7)
    index.put(out)
    message = refused(out, "pip install -U fastdata-yolo")
    assert "1.0" in message
    assert "2.7" in message


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_newer_minor_version_is_read_as_far_as_it_is_known(out: Path) -> None:
    """Sections and manifest keys that this version does not know are left alone, and still under a checksum."""
    index = index_of(out)
    index.version = (1, 9)
    index.sections["zz_later"] = np.arange(5, dtype=np.float64)
    index.manifest |= {"zz": {"later": [1]}, "a": None}
    index.put(out)
    with open_store(out) as store:
        check_all(store)
        assert dict(store.manifest.extra) == {"a": None, "zz": {"later": [1]}}
        assert store.key(0) == pictures(7)[0].key
    file = out / "index.fastdata" if out.is_dir() else out
    flip(file, regions(file)["section zz_later"][0], 0)
    assert "zz_later" in refused(out)


def _without(name: str) -> Callable[[RawIndex], None]:
    return lambda index: index.sections.__delitem__(name)


def _section(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[RawIndex], None]:  # type: ignore[type-arg]
    return lambda index: index.sections.__setitem__(name, change(index.sections[name]))


def _text(text: bytes) -> Callable[[RawIndex], None]:
    return lambda index: setattr(index, "manifest_text", text)


def _manifest(**more: object) -> Callable[[RawIndex], None]:
    return lambda index: index.manifest.update(more)


def _file(**more: object) -> Callable[[RawIndex], None]:
    return lambda index: index.manifest["files"][0].update(more)


WRONG: dict[str, tuple[Callable[[RawIndex], None], str]] = {
    "no manifest": (_text(b""), "manifest must be"),
    "not JSON": (_text(b"{names}"), "manifest must be"),
    "not an object": (_text(b"[]"), "manifest must be"),
    "a key is missing": (lambda index: index.manifest.pop("names"), "names"),
    "counts of another type": (_manifest(counts=3), "manifest must be"),
    "files of another type": (_manifest(files=[3]), "manifest must be"),
    "two uids": (lambda index: setattr(index, "uid", bytes(8)), "one uid"),
    "a section is missing": (_without("cls"), "section cls must be there"),
    "a section is too short": (_section("cls", lambda a: a[:-1]), "section cls must be <i4 of shape"),
    "a section is of another type": (_section("cls", lambda a: a.astype(np.float32)), "section cls must be <i4"),
    "a section is of another shape": (_section("xyxy_px", lambda a: a.reshape(-1, 2, 2)), "section xyxy_px must be"),
    "objects as elements": (_section("problems", lambda a: np.zeros(1, "S3")), "known type"),
    "a record outside of its file": (_section("rec_offset", lambda a: a + (1 << 40)), "next record must lie"),
    "a record before its file": (_section("rec_offset", lambda a: a - (1 << 40)), "next record must lie"),
    "a record of negative length": (_section("rec_nbytes", lambda a: -a), "next record must lie"),
    "a file that is not listed": (_section("rec_file", lambda a: a + np.uint16(9)), "all but the records must"),
    "records that overlap": (_section("rec_offset", lambda a: np.full_like(a, a[0])), "next record must lie"),
    "a path that leaves the folder": (_file(name="../x", file_nbytes=3), "plain name"),
    "an absolute path": (_file(name="/etc/hostname", file_nbytes=3), "plain name"),
    "the folder itself": (_file(name="..", file_nbytes=3), "plain name"),
    "a payload part that is too long": (_file(payload_nbytes=1 << 40), "must hold its records"),
    "a payload part of negative length": (_file(payload_nbytes=-1), "must hold its records"),
}
"""What a faulty or hostile writer could make, every checksum right."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_in_no_file_is_refused_when_it_is_read(out: Path) -> None:
    """A record table that leaves the files, with a right checksum."""
    for name, value in (
        ("rec_file", 9),
        ("rec_offset", 1 << 40),
        ("rec_offset", -8),
        ("rec_nbytes", -8),
        ("rec_nbytes", 1 << 40),
    ):
        index = index_of(out)
        before = index.sections[name]
        index.sections[name] = np.full_like(before, value)
        index.put(out)
        with open_store(out) as store, pytest.raises(StoreError, match="record 0 must lie in a payload file"):
            store.read(0)
        index.sections[name] = before
        index.put(out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_index_with_right_checksums_is_refused(out: Path, case: str) -> None:
    """Nothing outside of the store's own files is read, no other error than StoreError comes out."""
    change, match = WRONG[case]
    index = index_of(out)
    change(index)
    index.put(out)
    refused(out, match)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_kit_puts_an_index_together_as_it_was(out: Path) -> None:
    """Meta-test: without a change, what the cases above write is a good store."""
    index = index_of(out)
    index.put(out)
    read_everything(out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_entry_of_a_record_that_is_not_there_is_an_index_error(out: Path) -> None:
    """A faulty writer's entry does not reach other bytes."""
    index = index_of(out)
    index.sections["entry_record"] = index.sections["entry_record"] + np.uint32(100)
    index.put(out)
    with open_store(out) as store, pytest.raises(IndexError, match="record must be in"):
        store.read(0)


def test_header_and_end_mark_of_two_indices_are_refused(tmp_path: Path) -> None:
    """Two stores of one size, the end of one behind the other."""
    out = write_store(tmp_path / "s", pictures(3))
    index = index_of(out)
    first = index.encode(0)
    index.sections["cls"] = index.sections["cls"] + np.int32(1)
    second = index.encode(0)
    (out / "index.fastdata").write_bytes(second)
    read_everything(out)
    assert len(first) == len(second)
    (out / "index.fastdata").write_bytes(second[:-64] + first[-64:])
    refused(out, "of one index")


def test_an_index_in_the_middle_of_a_page_is_refused(tmp_path: Path) -> None:
    """Sections are aligned to their file, so that they can be mapped."""
    out = write_store(tmp_path / "s", pictures(3))
    index = index_of(out)
    (out / "index.fastdata").write_bytes(bytes(64) + index.encode(64))
    refused(out, "the index must end the file")
    (out / "index.fastdata").write_bytes(bytes(4096) + index.encode(4096))
    read_everything(out)


# What is no store at all


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.lmdb", b""),
        ("one.lmdb", b"x"),
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(500)),
        ("text", b"hello\n" * 100),
        ("zeros.lmdb", bytes(100_000)),
        ("short.fastdata", b"\x89FDX\r\n\x1a\n" + bytes(50)),
    ],
)
def test_a_foreign_file_is_not_a_store(tmp_path: Path, name: str, data: bytes) -> None:
    """The message says so and how to get one."""
    file = tmp_path / name
    file.write_bytes(data)
    assert "unfinished or not a fastdata store" in refused(file, "fastdata convert")


def test_an_lmdb_file_of_another_program_is_told_to_be_converted(tmp_path: Path) -> None:
    """LMDB without the trailer, as a file and as a folder."""
    for out, subdir in ((tmp_path / "other.lmdb", False), (tmp_path / "folder", True)):
        with lmdb.open(str(out), subdir=subdir) as env, env.begin(write=True) as txn:
            txn.put(b"key", b"value")
        message = refused(out, "fastdata convert")
    assert "must hold index.fastdata" in message


def test_a_store_that_liblmdb_wrote_into_is_refused(tmp_path: Path) -> None:
    """Its end mark is no longer at the end, or no longer there."""
    out = write_store(tmp_path / "a.lmdb", pictures(3))
    with lmdb.open(str(out), subdir=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
        for k in range(40):
            txn.put(b"more %d" % k, bytes(3000))
    refused(out, "written to")


def test_an_unfinished_store_is_called_so(tmp_path: Path) -> None:
    """Folders without an index, and names that only have a staging folder beside them."""
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "unfinished or not a fastdata store")
    shutil.copytree(GOLDEN / "store-v1", tmp_path / "shards")
    (tmp_path / "shards" / "index.fastdata").unlink()
    refused(tmp_path / "shards", "unfinished or not a fastdata store")
    (tmp_path / "begun.lmdb.partial").mkdir()
    assert "begun.lmdb.partial" in refused(tmp_path / "begun.lmdb", "unfinished")
    (tmp_path / "shards.partial").mkdir()
    assert "shards.partial: run the same convert again" in refused(tmp_path / "shards", "unfinished")
    with pytest.raises(FileNotFoundError, match="No such store"):
        open_store(tmp_path / "nowhere")


def test_an_end_mark_that_points_anywhere_is_refused(tmp_path: Path) -> None:
    """Sizes and places that do not fit, with the checksum right."""
    import google_crc32c

    out = write_store(tmp_path / "s", pictures(2)) / "index.fastdata"
    data = out.read_bytes()
    n = len(data)
    for offset, index_nbytes, file_nbytes in (
        (4096, n, n),
        (0, n, n + 1),
        (0, n - 64, n),
        (n - 64, 64, n),
        (1 << 63, n, n),
        (1, n - 1, n),
    ):
        mark = bytearray(data[-64:])
        struct.pack_into("<QQQ", mark, 16, offset, index_nbytes, file_nbytes)
        struct.pack_into("<I", mark, 60, google_crc32c.value(bytes(mark[:60])))
        out.write_bytes(data[:-64] + mark)
        refused(out.parent)
    assert END_MARK.size == 64
    assert bytes_of(out.parent)
