"""Carry out the cases that are about a store alone: records of given sizes, written, killed, read and sent elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fastdata
from fastdata.checksum import crc32c
from fastdata.errors import FastdataError
from fastdata.labels import Instances
from fastdata.store.index import index_path
from fastdata.store.manifest import Manifest
from fastdata.store.write import Entry, Record, StoreWriter

PLACES = {"lmdb": "store.lmdb", "mmap": "store"}
"""A case's name of each backend, and the path that makes the writer choose it."""

TESTS = Path(__file__).resolve().parents[1]


def payload(i: int, nbytes: int) -> bytes:
    """Return the bytes of record ``i``: all different and the same each time."""
    return np.random.default_rng(i).integers(0, 256, nbytes, np.uint8).tobytes()


def build(out: Path, records: int, nbytes: int, *, after: Callable[[int], None] = lambda i: None, every: int = 0) -> None:
    """Build a store of raw one-row pictures, or continue one.

    Args:
        out: Where.
        records: How many.
        nbytes: Bytes of each.
        after: Called after each record with how many there are.
        every: A checkpoint after so many records; 0 for none.
    """
    with StoreWriter.begin(out, fingerprint=f"{records} x {nbytes}", keypoints=0) as writer:
        writer.begin_split("train")
        for i in range(writer.resumed["next"] if writer.resumed else 0, records):
            data = payload(i, nbytes)
            number = writer.add_record(Record(data, "raw", (1, nbytes), 1, crc32c(data)))
            writer.add_entry(Entry(f"{i}.png", number, (1, nbytes), Instances.empty()))
            if every and (i + 1) % every == 0:
                writer.checkpoint({"next": i + 1})
            after(i + 1)
        writer.publish(Manifest(names=("a",), codec="raw", task="detect", channels=1))


def all_equal(out: Path, records: int, nbytes: int) -> bool:
    """Read every record and compare it with what was written."""
    with fastdata.open_store(out) as store:
        return len(store) == records and all(store.read(i).tobytes() == payload(i, nbytes) for i in range(records))


def run_store_case(do: dict[str, Any], expect: dict[str, Any], folder: Path) -> None:
    """Carry out the steps, which each case has of its own, on each backend."""
    for backend in do["backends"]:
        place = folder / backend
        place.mkdir()
        RUNS[tuple(do["steps"])](do, expect, place / PLACES[backend])


def _grow(do: dict[str, Any], expect: dict[str, Any], out: Path) -> None:
    # There is no size of the map to give: the writer lays the pages out itself and needs no guess.
    build(out, do["records"], do["record_bytes"])
    assert do["records"] == expect["records"]
    assert all_equal(out, do["records"], do["record_bytes"]) == expect["all_equal"]
    assert out.stat().st_size <= expect["file_bytes_max"]
    assert out.stat().st_blocks * 512 <= expect["file_bytes_max"]
    assert [path.name for path in out.parent.iterdir()] == [out.name]


BUILDER = """
import json, sys, time
from pathlib import Path
from cases.stores import build
out, records, nbytes, stop, every = json.loads(sys.argv[1])
def after(count):
    if count == stop:
        print("there", flush=True)
        time.sleep(600)
build(Path(out), records, nbytes, after=after, every=every)
"""


def _half_built(do: dict[str, Any], expect: dict[str, Any], out: Path) -> None:
    records, nbytes = do["records"], do["record_bytes"]
    for every in (0, 2):  # killed before the first checkpoint, and after one
        place = out.parent / str(every) / out.name
        place.parent.mkdir()
        arguments = json.dumps([str(place), records, nbytes, 5, every])
        paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
        call = [sys.executable, "-c", BUILDER, arguments]
        with subprocess.Popen(call, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "there\n"
            child.send_signal(signal.SIGKILL)
        message = _message_of_opening(place)
        words = expect["open_after_kill"]["error"]["contains_any"]
        assert any(word in message.casefold() for word in words), f"the message must have one of {words}, got {message!r}"
        build(place, records, nbytes)
        after = expect["after_second_build"]
        assert records == after["records"]
        assert all_equal(place, records, nbytes) == after["all_equal"]
        assert len(_strays(place)) == after["stray_files"], _strays(place)


def _message_of_opening(out: Path) -> str:
    try:
        fastdata.open_store(out).close()
    except (FastdataError, FileNotFoundError) as err:
        return str(err)
    raise AssertionError(f"a store that was killed must not open: {out}")


def _strays(out: Path) -> list[str]:
    """Return every file beside or within a store that does not belong to it."""
    with fastdata.open_store(out) as store:
        own = {index_path(out)} | {index_path(out).with_name(file.name) for file in store.manifest.files if file.name}
    return sorted(str(path) for path in out.parent.rglob("*") if path not in own and path != out)


READER = """
import hashlib, pickle, sys
store, numbers = pickle.load(sys.stdin.buffer)
print(*(hashlib.sha256(store.read(i)).hexdigest() for i in numbers))
"""


def _pickle_after_read(do: dict[str, Any], expect: dict[str, Any], out: Path) -> None:
    records, nbytes = do["records"], do["record_bytes"]
    build(out, records, nbytes)
    numbers = [0, records // 2, records - 1]
    with fastdata.open_store(out) as store:
        read = [store.read(i) for i in numbers]
        sent = pickle.dumps((store, numbers))
        assert len(sent) <= expect["pickle_bytes_max"]
        said = subprocess.run([sys.executable, "-c", READER], input=sent, capture_output=True, check=True, cwd=out.parent)
        same = said.stdout.decode().split() == [hashlib.sha256(data).hexdigest() for data in read]
        assert same == expect["same_bytes"]
        still = all(store.read(i).tobytes() == payload(i, nbytes) for i in [1, *numbers])
        assert still == expect["parent_still_reads"]
        assert [data.tobytes() for data in read] == [payload(i, nbytes) for i in numbers]


RUNS: dict[tuple[str, ...], Callable[[dict[str, Any], dict[str, Any], Path], None]] = {
    ("write all", "close", "open read-only", "read all"): _grow,
    (
        "start a build in another process", "kill it with SIGKILL after record 5", "open", "build again at the same place",
        "open", "read all",
    ): _half_built,
    ("open", "read 3 records", "pickle", "unpickle in a spawned process", "read the same 3 records there"): _pickle_after_read,
}  # fmt: skip
"""By the words of the case: other words are another case, which must be written first."""
