"""An LMDB store is a valid LMDB file: proven by liblmdb itself, and by its command-line tools where they are installed."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_kit import Sample, index_of, manifest, write_store

from fastdata.errors import UsageError
from fastdata.labels import Instances
from fastdata.store.lmdb import BRANCH_FANOUT, LEAF_FANOUT, MAX_RECORD_NBYTES, LmdbLayout, is_lmdb, plan_tree, tree_pages
from fastdata.store.read import open_store
from fastdata.store.records import check_record
from fastdata.store.write import Entry, Record, StoreWriter

SIZES = (0, 1, 4079, 4080, 4081, 8176, 8177, 20_000, 3, 2038)
"""Around the ends of pages, and below the size at which LMDB would put a value into the leaf."""


def payloads(n: int, sizes: tuple[int, ...] = SIZES) -> list[bytes]:
    """n payloads that differ."""
    return [(b"%d." % k * (1 + sizes[k % len(sizes)]))[: sizes[k % len(sizes)]] for k in range(n)]


def samples(data: list[bytes]) -> list[Sample]:
    """Pictures of these bytes, without labels."""
    none = Instances.empty()
    return [Sample("train", str(k), none, payload, "jpeg", (5, 5)) for k, payload in enumerate(data)]


def store_of(path: Path, data: list[bytes]) -> Path:
    """A store of these payloads."""
    return write_store(path, samples(data))


def opened(path: Path, **more: object) -> lmdb.Environment:
    """Open by liblmdb as a reader does."""
    return lmdb.open(str(path), **({"subdir": False, "readonly": True, "lock": False} | more))  # type: ignore[arg-type]


def key(r: int) -> bytes:
    """The key of record r."""
    return f"{r:010d}".encode()


@pytest.mark.parametrize("n", [0, 1, 2, 10, LEAF_FANOUT, LEAF_FANOUT + 1, 3 * LEAF_FANOUT + 5])
def test_liblmdb_reads_every_record(tmp_path: Path, n: int) -> None:
    """Cursor forwards and backwards, ``get`` of each key, of none, and ranges between keys."""
    data = payloads(n)
    with opened(store_of(tmp_path / "s.lmdb", data)) as env, env.begin() as txn:
        assert list(txn.cursor()) == [(key(r), payload) for r, payload in enumerate(data)]
        assert list(txn.cursor().iterprev(keys=False)) == data[::-1]
        assert all(txn.get(key(r)) == payload for r, payload in enumerate(data))
        assert txn.get(key(n)) is None
        cursor = txn.cursor()
        for r in range(1, n, 7):
            assert cursor.set_range(key(r - 1) + b"+")
            assert cursor.key() == key(r)
        assert not cursor.set_range(b"a")


def test_liblmdb_counts_what_is_there(tmp_path: Path) -> None:
    """``stat`` and ``info`` say the pages that the file has, and the map that a plain copy needs."""
    out = store_of(tmp_path / "s.lmdb", payloads(300))
    runs = sum((16 + len(payload) + 4095) // 4096 for payload in payloads(300))
    with opened(out, map_size=0) as env:
        stat, info = env.stat(), env.info()
    assert (stat["psize"], stat["depth"], stat["branch_pages"], stat["leaf_pages"]) == (4096, 2, 1, 3)
    assert (stat["overflow_pages"], stat["entries"]) == (runs, 300)
    index_offset = index_of(out).manifest["files"][0]["payload_nbytes"]
    assert (info["last_pgno"] + 1) * 4096 == index_offset == (2 + runs + 4) * 4096
    assert out.stat().st_size <= info["map_size"] < out.stat().st_size + 4096


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("n", [0, 1, 400])
def test_liblmdb_copies_it(tmp_path: Path, n: int, compact: bool) -> None:
    """The compacting copy counts pages and refuses a database that has lost any; the plain one reads to the end of the file."""
    data = payloads(n)
    with opened(store_of(tmp_path / "s.lmdb", data), map_size=0) as env:
        env.copy(str(tmp_path / "copy"), compact=compact)
    with opened(tmp_path / "copy") as env, env.begin() as txn:
        assert [value for _, value in txn.cursor()] == data


@pytest.mark.parametrize("n", [1, 3, 500])
def test_a_copy_can_be_written_by_liblmdb(tmp_path: Path, n: int) -> None:
    """Puts, replacements and deletions down to nothing and up again: every page has the form that liblmdb asserts."""
    data = payloads(n)
    want = {key(r): payload for r, payload in enumerate(data)}
    copy = shutil.copy(store_of(tmp_path / "s.lmdb", data), tmp_path / "copy.lmdb")
    rng = np.random.default_rng(n)
    with lmdb.open(str(copy), subdir=False, map_size=1 << 28) as env:
        for _ in range(6):
            with env.begin(write=True) as txn:
                for _ in range(60):
                    k = key(int(rng.integers(0, 2 * n)))
                    if rng.random() < 0.5:
                        want[k] = bytes(int(rng.integers(0, 9000)))
                        txn.put(k, want[k])
                    else:
                        assert txn.delete(k) == (want.pop(k, None) is not None)
        with env.begin() as txn:
            assert dict(txn.cursor()) == want
        with env.begin(write=True) as txn:
            for k in list(want):
                assert txn.delete(k)
        with env.begin(write=True) as txn:
            assert txn.stat()["entries"] == 0
            assert txn.put(b"new", b"life")
        assert env.stat()["entries"] == 1


def test_a_tree_of_three_levels_is_valid(tmp_path: Path) -> None:
    """More records than two levels hold: read in order, at random, counted, and changed in a copy."""
    n = LEAF_FANOUT * BRANCH_FANOUT + 1
    payload = np.arange(256, dtype=np.uint8)
    path = tmp_path / "s.lmdb"
    with StoreWriter.begin(path, fingerprint="f", keypoints=0) as writer:
        writer.begin_split("train")
        for r in range(n):
            writer.add_record(Record(payload[r % 200 : r % 200 + 3], "jpeg", (1, 1), 3, 0))
        writer.add_entry(Entry("a", n - 1, (1, 1), Instances.empty()))
        writer.publish(manifest())
    with opened(path) as env:
        assert env.stat()["depth"] == 3
        with env.begin() as txn:
            for r, (k, value) in enumerate(txn.cursor()):
                assert (k, value) == (key(r), bytes((r % 200, r % 200 + 1, r % 200 + 2)))
            assert r == n - 1
            assert all(txn.get(key(r)) is not None for r in range(0, n, 997))
            assert txn.get(key(n)) is None
    with lmdb.open(str(path), subdir=False, map_size=1 << 28) as env:
        with env.begin(write=True) as txn:
            for r in range(0, n, 3):
                assert txn.delete(key(r))
            txn.put(b"zz", bytes(5000))
        assert env.stat()["entries"] == n - len(range(0, n, 3)) + 1
        with env.begin() as txn:
            assert sum(1 for _ in txn.cursor()) == env.stat()["entries"]


def test_opening_read_only_by_liblmdb_changes_nothing(tmp_path: Path) -> None:
    """The trailer is still there afterwards, and no lock file is left."""
    out = store_of(tmp_path / "s.lmdb", payloads(20))
    before = out.read_bytes()
    with opened(out) as env, env.begin() as txn:
        assert sum(1 for _ in txn.cursor()) == 20
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]
    open_store(out).check_gaps()


@pytest.mark.skipif(shutil.which("mdb_stat") is None, reason="lmdb-utils is not installed")
def test_the_command_line_tools_read_it(tmp_path: Path) -> None:
    """``mdb_stat`` and ``mdb_dump`` of another build of liblmdb; what they dump is what was stored."""
    data = payloads(200)
    out = store_of(tmp_path / "s.lmdb", data)
    stat = subprocess.run(["mdb_stat", "-n", "-e", "-f", str(out)], capture_output=True, text=True, check=True).stdout
    assert "Entries: 200" in stat
    assert "Free pages: 0" in stat
    dump = subprocess.run(["mdb_dump", "-n", str(out)], capture_output=True, text=True, check=True).stdout
    lines = dump.split("HEADER=END\n")[1].split("DATA=END")[0].split("\n")[:-1]
    assert [bytes.fromhex(line) for line in lines[1::2]] == data
    assert [bytes.fromhex(line) for line in lines[::2]] == [key(r) for r in range(200)]


def test_the_file_is_about_as_large_as_the_data(tmp_path: Path) -> None:
    """Nobody guesses a map size: 5 MB of records make a file of 5 MB."""
    data = [bytes([k]) * 131_072 for k in range(40)]
    out = store_of(tmp_path / "s.lmdb", data)
    assert 40 * 131_072 < out.stat().st_size < 40 * (131_072 + 4096) + 65_536
    with open_store(out) as store:
        assert [store.read(i).tobytes() for i in range(40)] == data


def test_a_record_beyond_32_bits_is_refused() -> None:
    """LMDB's nodes hold 32 bits of length; shards have no such limit."""
    record = Record(b"", "jpeg", (1, 1), 3, 0)
    check_record(record, MAX_RECORD_NBYTES, LmdbLayout().max_record_nbytes)
    with pytest.raises(UsageError, match="write shards instead"):
        check_record(record, MAX_RECORD_NBYTES + 1, LmdbLayout().max_record_nbytes)


@given(st.integers(0, 1 << 32), st.integers(2, 1 << 40))
@settings(max_examples=200)
def test_every_branch_has_two_children_and_no_page_more_than_it_holds(n: int, first: int) -> None:
    """The shape of the tree for any number of records, computed only."""
    tree = plan_tree(n, first)
    below, fanout = n, LEAF_FANOUT
    for level, pages in enumerate(tree.level_pages):
        fewest, most = below // pages, -(-below // pages)
        assert most <= fanout
        assert fewest >= (2 if level else 1)
        below, fanout = pages, BRANCH_FANOUT
    assert below == (1 if n else 0)
    assert tree.last_page == first + sum(tree.level_pages) - 1


def test_the_document_says_how_many_nodes_fit_on_a_page() -> None:
    """16 bytes of header, then 26 + 2 bytes per leaf node, 18 + 2 per branch node, the first of which has no key."""
    assert (LEAF_FANOUT, BRANCH_FANOUT) == (145, 204)
    assert 16 + 145 * 28 <= 4096 < 16 + 146 * 28
    assert 16 + 10 + 203 * 20 <= 4096 < 16 + 10 + 204 * 20


@pytest.mark.parametrize("n", [1, 145, 146, 145 * 204, 145 * 204 + 1, 145 * 204 * 2])
def test_a_tree_is_walked_by_hand(n: int) -> None:
    """Pages of 4096 bytes, full ones too: numbers, kinds, bounds of free space, and every record once, in order."""
    first = 2 + n
    tree = plan_tree(n, first)
    offsets = (2 + np.arange(n)) * 4096 + 16
    pages = list(tree_pages(tree, offsets, np.full(n, 77)))
    assert {len(page) for page in pages} == {4096}
    assert len(pages) == sum(tree.level_pages)

    def walk(number: int, low: bytes) -> list[tuple[bytes, int, int]]:
        page = pages[number - first]
        said, pad, flags, lower, upper = struct.unpack_from("<QHHHH", page)
        assert (said, pad) == (number, 0)
        count = (lower - 16) // 2
        at = struct.unpack_from(f"<{count}H", page, 16)
        assert min(at) == upper >= lower
        assert not any(page[lower:upper])
        found = []
        for k, node in enumerate(at):
            lo, hi, high, size = struct.unpack_from("<HHHH", page, node)
            key_ = page[node + 8 : node + 8 + size]
            assert key_ >= low or (flags == 1 and k == 0 and key_ == b"")
            if flags == 1:
                found += walk(lo | hi << 16 | high << 32, key_ or low)
            else:
                assert (flags, high, size) == (2, 1, 10)
                found.append((key_, lo | hi << 16, int.from_bytes(page[node + 18 : node + 26], "little")))
        return found

    assert walk(tree.last_page, b"") == [(key(r), 77, 2 + r) for r in range(n)]


@given(st.integers(8192, 1 << 45), st.integers(0, 1 << 32))
def test_a_frame_leads_to_byte_16_of_a_page(end: int, nbytes: int) -> None:
    """Padding up to a page, then the page's header, whose run is as long as the record needs and no longer."""
    frame = LmdbLayout().frame(end, nbytes)
    at = end + len(frame)
    assert at % 4096 == 16
    assert 16 <= len(frame) < 4096 + 16
    assert not any(frame[:-16])
    assert int.from_bytes(frame[-16:-8], "little") == at // 4096
    pages = int.from_bytes(frame[-4:], "little")
    assert (pages - 1) * 4096 < 16 + nbytes <= pages * 4096


def test_an_lmdb_file_is_known_by_its_magic(tmp_path: Path) -> None:
    """Whoever wrote it; and nothing else is."""
    with lmdb.open(str(tmp_path / "a"), subdir=False) as env:
        env.stat()
    assert is_lmdb((tmp_path / "a").read_bytes()[:64])
    assert is_lmdb(store_of(tmp_path / "s.lmdb", []).read_bytes()[:64])
    assert not is_lmdb(b"")
    assert not is_lmdb(bytes(64))
