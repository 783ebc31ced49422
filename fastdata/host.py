"""What this process may use of the machine it runs on: cores, memory, and the disk under a path. Linux alone.

Three limits on cores count, and the smallest wins: what the machine has, the affinity of the process, and the CPU quota of its
control group (which ``os.cpu_count`` and most frameworks do not know). Memory is the machine's, cut by the limit of the control
group. ``math.inf`` says that there is no limit, ``None`` that it cannot be told; nothing is guessed.

Every function takes the roots of the kernel's two file systems, so that a machine can be made up out of files.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

StorageKind = Literal["memory", "solid-state", "rotating", "virtual", "network", "overlay"]

NETWORK_TYPES = frozenset(
    "nfs nfs4 cifs smb3 smbfs ceph lustre gpfs beegfs glusterfs orangefs wekafs 9p afs fuse.sshfs fuse.s3fs fuse.gcsfuse"
    " fuse.goofys fuse.rclone fuse.juicefs fuse.ceph fuse.glusterfs fuse.blobfuse2 fuse.mount-s3 fuse.cunofs".split()
)
"""File system types whose reads cross a network (filesystems(5), and the names that the FUSE programs register)."""

NO_LIMIT_V1 = 1 << 62
"""Version 1 of control groups writes "no memory limit" as the largest whole number of pages below 2**63."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's files are."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


KERNEL = Roots()


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system, from ``/proc/self/mountinfo`` (proc_pid_mountinfo(5))."""

    device: str
    """``major:minor``."""
    root: str
    """Which folder of the file system is mounted."""
    point: str
    """Where."""
    options: str
    """Of the mount and of the file system, separated by commas."""
    type: str
    source: str
    """A device, or what stands for one."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of main memory; ``None`` when the kernel does not say."""

    total: int | None
    """Of the machine."""
    available: int | None
    """For new use without swapping, the page cache that can be dropped included."""
    limit: float | None
    """Of the control group; ``inf`` for none."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What lies under a path."""

    kind: StorageKind | None
    """``None`` when it cannot be told."""
    type: str
    """Of the file system."""
    device: str
    """Name of the block device, or the source of the mount."""
    point: str
    """Mount point."""
    why: str
    """How ``kind`` was found, or why not."""


def mounts(roots: Roots = KERNEL) -> list[Mount]:
    """Return the mounts that this process sees, in the order in which they were made; none when the kernel does not say."""
    found = []
    for line in kernel_text(roots.proc / "self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if len(fields) >= 6 and len(source) >= 3:
            root, point = (_unescape(field) for field in fields[3:5])
            found.append(Mount(fields[2], root, point, f"{fields[5]},{source[2]}", source[0], _unescape(source[1])))
    return found


def mount_of(path: Path, roots: Roots = KERNEL) -> Mount | None:
    """Return the mount that ``path``, or its nearest parent that exists, lies on: the longest mount point, the last made."""
    real = os.path.realpath(nearest(path))
    best: Mount | None = None
    for mount in mounts(roots):
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def nearest(path: Path) -> Path:
    """Return ``path``, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def storage_of(path: Path, roots: Roots = KERNEL) -> Storage:
    """Tell what kind of storage ``path`` lies on."""
    mount = mount_of(path, roots)
    if mount is None:
        return Storage(None, "", "", "", f"{roots.proc}/self/mountinfo names no mount that holds it")

    def told(kind: StorageKind | None, device: str, why: str) -> Storage:
        return Storage(kind, mount.type, device, mount.point, why)

    if mount.type in ("tmpfs", "ramfs", "devtmpfs"):
        return told("memory", mount.source, f"{mount.type} lies in main memory")
    if mount.type in NETWORK_TYPES:
        return told("network", mount.source, f"{mount.type} reads over a network")
    if mount.type in ("overlay", "aufs", "fuse.fuse-overlayfs"):
        return told("overlay", mount.source, "a container's layers hide the disk below them")
    folder = roots.sys / "dev/block" / mount.device
    if not folder.exists():  # file systems of many devices (btrfs, zfs) have a number of their own
        folder = roots.sys / "class/block" / os.path.basename(os.path.realpath(mount.source))
    if not folder.exists():
        return told(None, mount.source, f"no block device under {roots.sys} stands for it")
    folder = folder.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    name, flag = folder.name, kernel_text(folder / "queue/rotational").strip()
    if name.startswith(("vd", "xvd")):
        return told("virtual", name, "a virtual disk: what it is made of is not told to the machine")
    if flag not in ("0", "1"):
        return told(None, name, f"{folder}/queue/rotational does not say")
    return told("rotating" if flag == "1" else "solid-state", name, f"{name}/queue/rotational is {flag}")


def affinity_cores() -> int:
    """Return how many cores the scheduler may put this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(roots: Roots = KERNEL) -> float | None:
    """Return the cores' worth of time that the control group grants: ``inf`` for no limit, ``None`` when it cannot be told."""
    limits = []
    for folder, version in group_folders("cpu", roots):
        if version == 2:
            quota, period = [*kernel_text(folder / "cpu.max").split(), "", ""][:2]
        else:
            quota, period = (kernel_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota in ("max", "-1"):
            limits.append(math.inf)
        elif quota.isdecimal() and period.isdecimal() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def usable_cores(roots: Roots = KERNEL) -> int:
    """Return how many workers can run at the same time: affinity, cut by the quota; at least 1."""
    quota = cpu_quota(roots)
    cores = affinity_cores()
    return cores if quota is None else max(1, min(cores, math.floor(min(quota, cores))))


def memory(roots: Roots = KERNEL) -> Memory:
    """Return what there is of main memory."""
    fields = {}
    for line in kernel_text(roots.proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.removesuffix("kB").strip()
        if number.isdecimal():
            fields[name] = int(number) * 1024
    limits = []
    for folder, version in group_folders("memory", roots):
        text = kernel_text(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).strip()
        if text == "max":
            limits.append(math.inf)
        elif text.isdecimal():
            limits.append(math.inf if version == 1 and int(text) >= NO_LIMIT_V1 else int(text))
    return Memory(fields.get("MemTotal"), fields.get("MemAvailable"), min(limits, default=None))


def usable_memory_nbytes(roots: Roots = KERNEL) -> int | None:
    """Return the memory that this process may use at most, others' use not counted; ``None`` when it cannot be told."""
    found = memory(roots)
    known = [limit for limit in (found.total, found.limit) if limit is not None and limit != math.inf]
    return int(min(known)) if known else None


def group_folders(controller: str, roots: Roots) -> list[tuple[Path, int]]:
    """Return the folders of this process's control group and of all groups around it, with the version of each (cgroups(7)).

    Every one of them may set a limit. Inside a container the path may be the one that the host sees, and the mount may show a
    part of the tree only; then the group is the mount itself.
    """
    found = []
    for line in kernel_text(roots.proc / "self/cgroup").splitlines():
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and controller not in names.split(","):
            continue
        for mount in mounts(roots):
            version = {"cgroup2": 2, "cgroup": 1}.get(mount.type, 0)
            if version != (2 if number == "0" else 1) or (version == 1 and controller not in mount.options.split(",")):
                continue
            top = roots.sys / os.path.relpath(mount.point, "/sys") if mount.point.startswith("/sys/") else Path(mount.point)
            below = os.path.relpath(path, mount.root)
            folder = top if below.startswith("..") else Path(os.path.normpath(top / below))
            found += [(level, version) for level in (folder, *folder.parents) if level == top or top in level.parents]
    return found


def kernel_text(file: Path) -> str:
    """Return what a file of the kernel says; nothing when it is not there or not for us."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _unescape(field: str) -> str:
    """Undo the octal escapes that mountinfo uses for blanks and backslashes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
