"""What the machine gives this process: cores, memory, shared memory, open files, the disk under a path."""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from fastdata.diagnosis.finding import GIB, Finding, gib
from fastdata.host import Roots, affinity_cores, cpu_quota, memory, nearest, storage_of, usable_cores

SHM_NBYTES = 2 * GIB
"""Below this /dev/shm is tight: 8 workers that each hold two batches of 64 pictures of 640 x 640 x 3 bytes need 1.3 GB."""

SHM_UNASKED_NBYTES = 64 << 20
"""What a container gets when nobody asks for more (docker run --shm-size): less than one such batch, which is 79 MB."""

OPEN_FILES = 4096
"""Torch's workers hand over each tensor as an open file; the usual limit of 1024 is soon reached."""

FREE_DISK_NBYTES = 10 * GIB
"""Room for a raw store of 8,700 pictures at 640."""

LITTLE_MEMORY_NBYTES = 2 * GIB
"""Below this a training with workers (about half a GB each) does not start."""

COUNTED_FILES = 20_000
"""Files below a folder that are looked at for its size: a second or so on a local disk."""


def cores(roots: Roots) -> Iterator[Finding]:
    """Look at the number of cores, who limits it, and their clock."""
    there, allowed, quota, usable = os.cpu_count() or 1, affinity_cores(), cpu_quota(roots), usable_cores(roots)
    why = "may be used at the same time: all there are" if usable == there else f"may be used at the same time, of {there}"
    yield Finding("cores", usable, "ok", why, unit="cores")
    if allowed < there:
        yield Finding("affinity", allowed, "ok", "set by a container, a job manager or taskset", unit="cores")
    if quota is None:
        yield Finding("CPU quota", None, "unknown", "no control group of this process tells one")
    elif quota < allowed:
        why = f"granted by the control group; programs count {allowed} cores, and surplus threads get all of them halted"
        yield Finding("CPU quota", quota, "warn", why, f"start at most {usable} workers and threads together", "cores")
    elif quota == math.inf:
        yield Finding("CPU quota", "none", "ok", "the control group does not limit CPU time")
    else:
        yield Finding("CPU quota", quota, "ok", "granted by the control group: no less than the cores there are", unit="cores")
    folder = roots.sys / "devices/system/cpu/cpu0/cpufreq"
    try:
        governor, driver = ((folder / f"scaling_{name}").read_text().strip() for name in ("governor", "driver"))
    except OSError:
        return  # a virtual machine has no say in it
    if governor == "powersave" and "pstate" not in driver:  # intel_pstate and amd-pstate mean "on demand" by that name
        fix = "cpupower frequency-set -g performance"
        yield Finding("CPU governor", governor, "warn", f"{driver} keeps the cores at their lowest clock", fix)
    else:
        yield Finding("CPU governor", governor, "ok", f"the clock follows the load ({driver})")


def main_memory(roots: Roots) -> Iterator[Finding]:
    """Look at the memory there is and the limit of the control group."""
    found = memory(roots)
    if found.total is None or found.available is None:
        yield Finding("memory", None, "unknown", f"{roots.proc}/meminfo does not say")
    elif found.available < LITTLE_MEMORY_NBYTES:
        why = f"available of {gib(found.total)}: too little for a training with workers"
        yield Finding("memory", found.available, "warn", why, "end what else runs here", "bytes")
    else:
        why = f"available of {gib(found.total)}, the page cache that serves a store included"
        yield Finding("memory", found.available, "ok", why, unit="bytes")
    if found.limit is None:
        yield Finding("memory limit", None, "unknown", "no control group of this process tells one")
    elif found.limit == math.inf or (found.total is not None and found.limit >= found.total):
        yield Finding("memory limit", "none", "ok", "the control group does not limit memory")
    elif found.limit < LITTLE_MEMORY_NBYTES:
        fix = "give the job more memory"
        yield Finding("memory limit", int(found.limit), "warn", "of the control group: too little for a training", fix, "bytes")
    else:
        why = "of the control group, which counts the page cache as well: a store that is larger is read from disk every epoch"
        yield Finding("memory limit", int(found.limit), "ok", why, unit="bytes")


def shared_memory(folder: Path) -> Finding:
    """Look at the size of the folder through which worker processes hand over batches."""
    try:
        there = os.statvfs(folder)
    except OSError as e:
        return Finding("shared memory", None, "unknown", f"{folder}: {e.strerror}")
    total, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    return judge_shared_memory(folder, total, free)


def judge_shared_memory(folder: Path, total: int, free: int) -> Finding:
    """Say whether ``total`` and ``free`` bytes of shared memory are enough."""
    why = f"free of {gib(total)} in {folder}, through which torch's workers hand over batches"
    if total <= SHM_UNASKED_NBYTES:
        fix = "start the container with --ipc=host or --shm-size=8g"
        return Finding("shared memory", free, "bad", f"{why}: one batch can be larger; a bus error ends its worker", fix, "bytes")
    if free < SHM_NBYTES:
        fix = f"remove what is left over in {folder}, or enlarge it (containers: --shm-size=8g)"
        return Finding("shared memory", free, "warn", f"{why}: 8 workers can need more", fix, "bytes")
    return Finding("shared memory", free, "ok", why, unit="bytes")


def open_files(soft: int, hard: int) -> Finding:
    """Look at the limits on open files (getrlimit(2))."""
    top = "none" if hard == resource.RLIM_INFINITY else str(hard)
    why = f"may be open at a time (hard limit: {top}); torch's workers hand over each tensor as an open file"
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", "unlimited", "ok", why)
    if soft < OPEN_FILES:
        enough = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        fix = f"ulimit -n {enough}" if enough > soft else "raise the hard limit (limits.conf, or --ulimit nofile of a container)"
        return Finding("open files", soft, "warn", why, fix, "files")
    return Finding("open files", soft, "ok", why, unit="files")


def disk(path: Path, roots: Roots) -> Iterator[Finding]:
    """Look at the free space and the kind of storage below ``path``."""
    there = nearest(path)
    where = f"at {there}" if there == path.absolute() else f"at {there}, the nearest folder of {path} that exists"
    try:
        free = shutil.disk_usage(there).free
    except OSError as e:
        yield Finding("disk free", None, "unknown", f"{there}: {e.strerror}")
    else:
        if free < FREE_DISK_NBYTES:
            fix = "make room, or convert with --codec jpeg or to another disk"
            yield Finding("disk free", free, "warn", f"{where}: little room for a raw store", fix, "bytes")
        else:
            yield Finding("disk free", free, "ok", where, unit="bytes")
    found = storage_of(there, roots)
    what = f"{found.type} at {found.point}: {found.why}"
    match found.kind:
        case "rotating":
            fix = "keep the store on a solid-state disk, or in memory (/dev/shm) if it fits"
            yield Finding("storage", f"rotating disk {found.device}", "warn", f"{what}; it reads some 100 pictures a second", fix)
        case "network":
            fix = "copy the store to a local disk before the training"
            yield Finding("storage", f"network {found.device}", "warn", f"{what}, which others use as well", fix)
        case "overlay":
            yield Finding("storage", None, "unknown", what, "keep datasets on a mounted volume")
        case "virtual" | None:
            yield Finding("storage", None, "unknown", what if found.type else found.why)
        case kind:
            yield Finding("storage", f"{kind} {found.device}".strip(), "ok", what)


def size(path: Path, roots: Roots) -> Finding:
    """Compare the bytes below ``path`` with the memory that could keep them."""
    try:
        nbytes = _nbytes(path)
    except OSError as e:
        return Finding("size", None, "unknown", f"{e.filename}: {e.strerror}")
    if nbytes is None:
        return Finding("size", None, "unknown", f"{path} has more than {COUNTED_FILES:,} files, which are not counted here")
    found = memory(roots)
    known = [limit for limit in (found.available, found.limit) if limit is not None]
    if not known:
        return Finding("size", nbytes, "ok", f"of {path}; whether memory can keep it cannot be told", unit="bytes")
    if nbytes > min(known):
        why = f"of {path}: more than the {gib(min(known))} of memory that could keep it, so every epoch reads it from disk"
        return Finding("size", nbytes, "warn", why, "convert with --codec jpeg or a smaller --imgsz, or add memory", "bytes")
    return Finding("size", nbytes, "ok", f"of {path}; memory can keep it between epochs", unit="bytes")


def _nbytes(path: Path) -> int | None:
    """Return the bytes of a file or of all files below a folder; ``None`` when there are too many to look at."""
    if path.is_file():
        return path.stat().st_size
    total = count = 0
    for folder, _, names in os.walk(path, onerror=_refuse):
        count += len(names)
        if count > COUNTED_FILES:
            return None
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # a link to nothing, or removed while we looked
    return total


def _refuse(error: OSError) -> None:
    raise error
