"""A data set that does not fit into memory: what comes from the disk, and how fast.

The loader runs in a memory cgroup of ``--limit-gb``, page cache included, over a raw store that is larger; nothing of it is in
the page cache when it begins. Beside it, under the same limit, a store of JPEG bytes and Ultralytics' own loader over the plain
files: they hold the same pictures in a fifth of the bytes, and so may fit where the raw one does not. Rates are told window by
window, with the bytes that were read from the disk meanwhile: where nothing is read any more, the rest is the page cache's rate.

Where no cgroup may be made (it takes root), nothing bounds the page cache, and only the first window is cold; the rows say so.

    python benchmarks/gpu_cold.py --folder /disk/data --photos photographs --out /tmp/out --seconds 120
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_data import data_of, prepare
from gpu_loader import add_arguments, run_each, their_loader, wait
from gpu_rows import Rows, say
from loader_cpu import endless

OURS = {
    "raw": ("raw", "stream", "raw store"),
    "jpeg": ("jpeg", "stream", "JPEG store, decoded by the processor"),
    "jpeg-gpu": ("jpeg", "decode", "JPEG store, decoded on the GPU"),
}
"""Store, residency, and how results call it."""
PLAIN = "plain"
NAMES = ("raw", "raw-unread", PLAIN, "jpeg", "jpeg-gpu", "jpeg-unread")
UNREAD = "-unread"
"""Ends the names of ours that read nothing ahead."""


def title(name: str) -> str:
    """Return how results call a loader."""
    if name == PLAIN:
        return "plain files, Ultralytics, 8 workers"
    return OURS[name.removesuffix(UNREAD)][2] + (", nothing read ahead" if name.endswith(UNREAD) else "")


def make_cgroup(limit_nbytes: int) -> Path | str:
    """Make a memory cgroup; return its folder, or why there can be none."""
    why = []
    for root in (Path("/sys/fs/cgroup"), None):
        try:
            if root is None:
                root = Path(tempfile.mkdtemp(prefix="cgroup-"))
                subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], check=True, capture_output=True)
            if (root / "cgroup.controllers").exists():
                (root / "cgroup.subtree_control").write_text("+memory")
                group = root / f"fastdata-{os.getpid()}"
                group.mkdir()
                (group / "memory.max").write_text(str(limit_nbytes))
            else:
                group = root / "memory" / f"fastdata-{os.getpid()}"
                group.mkdir()
                (group / "memory.limit_in_bytes").write_text(str(limit_nbytes))
            return group
        except (OSError, subprocess.CalledProcessError) as err:
            why.append(f"{root}: {err}")
    return "; ".join(why)


def evict(folder: Path) -> float:
    """Let the page cache forget the files of a folder that no process has mapped; return how many GB they have."""
    nbytes = 0
    os.sync()  # only what is on the disk can be forgotten
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
            nbytes += path.stat().st_size
    return nbytes / 1e9


def filesystem(path: Path) -> str:
    """Return the kind of the file system that a path lies in."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(place), kind) for place, kind in mounts if path.resolve().is_relative_to(place)]
    return max(inside)[1] if inside else "unknown"


def read_gb() -> float:
    """Return what this process and its workers have read from the disk, in GB."""
    import psutil

    me = psutil.Process()
    return sum(p.io_counters().read_bytes for p in (me, *me.children(recursive=True))) / 1e9


def loader_of(options: argparse.Namespace, name: str) -> Any:
    """Return a loader."""
    if name == PLAIN:
        return their_loader(options, options.batch, min(8, options.most_workers), False)
    from fastdata.loader import Loader
    from fastdata.store.read import open_store

    kind, residency, _ = OURS[name.removesuffix(UNREAD)]
    store = open_store(getattr(data_of(options.folder), kind), "train")
    more: dict[str, Any] = {} if options.dry else {"device": "cuda", "residency": residency}
    if name.endswith(UNREAD) and not options.dry:
        more["read_ahead"] = False
    return Loader(store, options.batch, imgsz=options.imgsz, drop_last=True, **more)


def child(options: argparse.Namespace) -> None:
    """Measure one loader, in the cgroup if there is one."""
    name = options.child
    if options.cgroup:
        Path(options.cgroup, "cgroup.procs").write_text(str(os.getpid()))
    loader = loader_of(options, name)
    batches: Iterator[Any] = endless(loader)
    rates, read = [], []
    start = time.perf_counter()
    next(batches)
    first_s = time.perf_counter() - start
    for _ in range(options.windows):
        wait()
        before, start, taken = read_gb(), time.perf_counter(), 0
        while time.perf_counter() - start < options.window_s:
            next(batches)
            taken += 1
        wait()
        seconds = time.perf_counter() - start
        rates.append(taken * options.batch / seconds)
        read.append((read_gb() - before) / seconds)
    bound = f"cgroup of {options.limit_gb:g} GB" if options.cgroup else "unbounded page cache, evicted before"
    per_image = 1e6 * sum(read) / sum(rates)
    Rows("gpu_cold", options.out).add(
        f"{title(name)}, {bound}", rates, "images/s", read_gb_s=read, windows=rates, first_s=first_s, limit_gb=options.limit_gb,
        bound=bound, batch=options.batch, imgsz=options.imgsz, filesystem=filesystem(options.folder), loader=name,
        note="by window " + ", ".join(f"{r:,.0f} at {g:.2f} GB/s" for r, g in zip(rates, read, strict=True))
        + f"; {per_image:,.0f} kB from the disk an image",
    )  # fmt: skip
    loader.close()


def main() -> None:
    """Measure until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.set_defaults(seconds=120.0, repeat=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--limit-gb", type=float, default=5.0)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--cgroup", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dry and not options.child:
        options.images, options.imgsz, options.batch, options.window_s, options.most_workers = 32, 64, 4, 0.1, 2
    if options.child:
        child(options)
        return
    data = prepare(options.photos, options.folder, options.images, options.repeat, options.imgsz, Rows("gpu_data", options.out))
    if (kind := filesystem(options.folder)) in ("tmpfs", "ramfs"):
        say(f"the folder must be on a disk, got one in {kind}, which is memory: the rates below are warm")
    group = "not in a dry run" if options.dry else make_cgroup(int(options.limit_gb * 1e9))
    if isinstance(group, str):
        say(f"no memory cgroup ({group}): the page cache is not bounded, and only first windows are cold")
    else:
        options.cgroup = str(group)
    rows, well = Rows("gpu_cold", options.out), True
    deadline = time.monotonic() + options.seconds
    for name in options.names.split(","):
        options.seconds = deadline - time.monotonic()
        say(f"{evict(data.folder):.1f} GB of files evicted")
        well &= run_each(options, __file__, [name], rows, 60.0)
    if options.cgroup:
        os.rmdir(options.cgroup)
    if not well:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
