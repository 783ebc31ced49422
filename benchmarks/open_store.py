"""How long a store of a million pictures takes to open, and how much memory each process that has it open adds.

Writes a store of every backend with as many entries as asked for: one tiny record each, as many objects per picture as COCO has,
a short outline each. Then, for each backend:

* fresh processes, imports done, open it: seconds, page cache warm;
* eight processes hold it at once: how much private memory (unique set size) each has more than before, and again after each has
  used every column of the catalog and read a thousand pictures of its own at random. Unique set size counts pages of the page
  cache that no other process has mapped, which cost nothing; so the anonymous memory, which does, stands beside it;
* the process that wrote it: how much anonymous memory it had more at its peak.

    python benchmarks/open_store.py --folder bench-data/open --entries 1000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import psutil
import record

from fastdata.catalog import COLUMNS
from fastdata.checksum import crc32c
from fastdata.labels import Instances
from fastdata.store.format import Manifest
from fastdata.store.read import open_store
from fastdata.store.write import Entry, Record, StoreWriter

BACKENDS = {"lmdb": "store.lmdb", "shards": "store"}
PACKAGES = ("numpy", "google-crc32c")
OBJECTS = 7
"""Per picture: 860,001 annotations of 118,287 images in train2017."""
POINTS = 8
"""Per object."""
PROCESSES = 8
READS = 1000
REPEATS = 9


def anonymous_mb() -> float:
    """Memory of this process that is backed by no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("RssAnon must be in /proc/self/status")


def labels() -> Instances:
    """The objects of every picture."""
    return Instances(
        cls=np.arange(OBJECTS, dtype=np.int32),
        xyxy_px=np.tile(np.array([0, 0, 1, 1], np.float32), (OBJECTS, 1)),
        kind=np.ones(OBJECTS, np.uint8),
        flags=np.zeros(OBJECTS, np.uint8),
        original_id=np.arange(OBJECTS),
        area_px=np.ones(OBJECTS, np.float32),
        part_offsets=np.arange(OBJECTS + 1),
        point_offsets=np.arange(OBJECTS + 1) * POINTS,
        points_px=np.zeros((OBJECTS * POINTS, 2), np.float32),
        keypoints_px=np.zeros((OBJECTS, 0, 3), np.float32),
    )


def write(out: Path, entries: int) -> float:
    """Write a store; return how much anonymous memory grew at most, in MB."""
    objects, payload = labels(), bytes(12)
    crc = crc32c(payload)
    before, peak, done = anonymous_mb(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, anonymous_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with StoreWriter.begin(out, fingerprint=str(entries), keypoints=0, overwrite=True, shard_nbytes=64 << 20) as writer:
        writer.begin_split("train")
        for k in range(entries):
            number = writer.add_record(Record(payload, "raw", (2, 2), 3, crc))
            writer.add_entry(Entry(f"train2017/{k:012d}.jpg", number, (480, 640), objects, image_id=k))
            if writer.due:
                writer.checkpoint({})
        names = tuple(f"class {k}" for k in range(80))
        writer.publish(Manifest(names=names, codec="raw", task="segment"))
    done.set()
    watcher.join()
    return peak - before


def time_to_open(path: Path) -> float:
    """Open in a fresh process, imports not counted; return seconds."""
    code = (
        "import sys, time, google_crc32c, numpy\n"
        "from fastdata.store.read import open_store\n"
        "start = time.perf_counter()\n"
        "store = open_store(sys.argv[1], 'train')\n"
        "print(time.perf_counter() - start)\n"
    )
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, cwd=root)
    return float(done.stdout)


def hold(path: str, seed: int, barrier: Barrier, queue: Queue[tuple[float, ...]]) -> None:
    """Open, use and hold a store together with the others; report how much memory each step added, in MB."""
    me = psutil.Process()
    barrier.wait()
    before, anonymous = me.memory_full_info().uss, anonymous_mb()
    store = open_store(path, "train")
    barrier.wait()
    opened = me.memory_full_info().uss
    for name in COLUMNS:
        store.catalog.column(name)
    for i in np.random.default_rng(seed).integers(0, len(store), READS).tolist():
        store.read(i), store.instances(i), store.key(i)
    barrier.wait()
    used = me.memory_full_info().uss
    queue.put(((opened - before) / 1e6, (used - before) / 1e6, anonymous_mb() - anonymous))
    barrier.wait()


def growth(path: Path) -> list[tuple[float, ...]]:
    """Return what ``hold`` says in each of eight processes at once."""
    context = get_context("spawn")
    barrier, queue = context.Barrier(PROCESSES), context.Queue()
    children = [context.Process(target=hold, args=(str(path), seed, barrier, queue)) for seed in range(PROCESSES)]
    for child in children:
        child.start()
    out = [queue.get() for _ in children]
    for child in children:
        child.join()
    return out


def main() -> None:
    """Measure and append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=1_000_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for backend, name in BACKENDS.items():
        out = options.folder / name
        start = time.perf_counter()
        peak = write(out, options.entries)
        more = {"backend": backend, "entries": options.entries, "objects": options.entries * OBJECTS}
        sys.stderr.write(f"{backend}: written in {time.perf_counter() - start:.0f} s\n")
        rows.append(record.row("open_store", "write, anonymous memory", [peak], "MB", packages=PACKAGES, **more))
        seconds = [time_to_open(out) for _ in range(REPEATS)]
        rows.append(record.row("open_store", "open", seconds, "s", packages=PACKAGES, **more))
        grown = growth(out)
        steps = ("open, private memory of each of 8", "open and use, the same", "open and use, anonymous memory")
        for at, what in enumerate(steps):
            rows.append(record.row("open_store", what, [g[at] for g in grown], "MB", packages=PACKAGES, **more))
    record.append("open_store", rows)
    for row in rows:
        sys.stdout.write(json.dumps({key: row[key] for key in ("backend", "what", "value", "unit", "low", "high", "n")}) + "\n")


if __name__ == "__main__":
    main()
