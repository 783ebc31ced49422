"""What a process may use: made-up machines out of files, and the one that the tests run on."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil
import pytest

from fastdata import host
from fastdata.host import Memory, Roots, cpu_quota, memory, mount_of, mounts, storage_of, usable_cores, usable_memory_nbytes

NO_LIMIT = "9223372036854771712"


def machine(tmp_path: Path, mountinfo: str = "", files: dict[str, str] | None = None) -> Roots:
    """Make up the kernel's files; names begin with proc/ or sys/."""
    for name, text in {"proc/self/mountinfo": mountinfo, **(files or {})}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Roots(tmp_path / "proc", tmp_path / "sys")


V2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 25 0:30 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", math.inf), ("150000 100000", 1.5), ("400000 100000", 4.0), ("", None), ("nonsense", None), ("1 0", None)],
)
def test_the_quota_of_version_2(text: str, cores: float | None, tmp_path: Path) -> None:
    """``cpu.max`` is a quota and a period; what cannot be read is not a limit of zero."""
    roots = machine(tmp_path, V2, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert cpu_quota(roots) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", math.inf), ("50000", 0.5), ("", None)])
def test_the_quota_of_version_1(quota: str, cores: float | None, tmp_path: Path) -> None:
    """Two files; -1 means no limit."""
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/job\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    }
    assert cpu_quota(machine(tmp_path, V1, files)) == cores


def test_the_tightest_of_nested_groups_wins(tmp_path: Path) -> None:
    """A slice around the group of the process may be the one that limits it; groups beside it do not count."""
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/cpu.max": "200000 100000",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
        "sys/fs/cgroup/outer/other/cpu.max": "1000 100000",
        "sys/fs/cgroup/outer/memory.max": "max",
        "sys/fs/cgroup/outer/inner/memory.max": "1073741824",
    }
    roots = machine(tmp_path, V2, files)
    assert cpu_quota(roots) == 2.0
    assert memory(roots).limit == 1 << 30


def test_a_container_that_sees_the_path_of_its_host(tmp_path: Path) -> None:
    """The mount shows the container's own group at its top; /proc/self/cgroup names it as the host does."""
    mountinfo = "32 25 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    files = {"proc/self/cgroup": "4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296"}
    assert memory(machine(tmp_path, mountinfo, files)).limit == 4 << 30
    files["proc/self/cgroup"] = "4:memory:/elsewhere\n"
    assert memory(machine(tmp_path, mountinfo, files)).limit == 4 << 30


def test_no_control_groups_is_not_no_limit(tmp_path: Path) -> None:
    """Without the files nothing is known, and affinity alone decides how many cores to use."""
    roots = machine(tmp_path)
    assert cpu_quota(roots) is None
    assert memory(roots) == Memory(None, None, None)
    assert usable_memory_nbytes(roots) is None
    assert usable_cores(roots) == len(os.sched_getaffinity(0))
    assert mounts(Roots(tmp_path / "nowhere", tmp_path)) == []


@pytest.mark.parametrize(("quota", "cores"), [("10000", 1), ("190000", 1), ("200000", 2), ("max", 2), ("900000", 2)])
def test_usable_cores_round_down_to_one(quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that only has nine tenths of a core is one too many."""
    monkeypatch.setattr(host, "affinity_cores", lambda: 2)
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000"}
    assert usable_cores(machine(tmp_path, V2, files)) == cores


@pytest.mark.parametrize(("limit", "usable"), [("1048576", 1 << 20), ("1099511627776", 8 << 20), (NO_LIMIT, 8 << 20)])
def test_memory_is_the_machines_cut_by_the_limit(limit: str, usable: int, tmp_path: Path) -> None:
    """Version 1 writes "no limit" as a huge number."""
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "proc/meminfo": "MemTotal:           8192 kB\nMemFree:   1 kB\nMemAvailable:       4096 kB\nHugePages_Total:       0\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": limit,
    }
    roots = machine(tmp_path, V1, files)
    assert usable_memory_nbytes(roots) == usable
    found = memory(roots)
    assert (found.total, found.available) == (8 << 20, 4 << 20)
    assert (found.limit == math.inf) == (limit == NO_LIMIT)


def test_the_longest_and_last_mount_wins(tmp_path: Path) -> None:
    """A mount over a mount hides the one below; a name that only begins the same is another folder; blanks are escaped."""
    data = tmp_path / "a b"
    (data / "deep").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "abc").mkdir()
    escaped = str(data).replace(" ", "\\040")
    mountinfo = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 8:2 / {escaped} rw - xfs /dev/sdb1 rw\n"
        f"3 1 8:3 / {escaped} rw - btrfs /dev/sdc1 rw\n"
        f"4 1 8:4 / {tmp_path}/a rw - tmpfs tmpfs rw\n"
    )
    roots = machine(tmp_path / "kernel", mountinfo)
    for path, kind in ((data / "deep", "btrfs"), (data, "btrfs"), (data / "not/there/yet", "btrfs"), (tmp_path / "a", "tmpfs")):
        mount = mount_of(path, roots)
        assert mount is not None
        assert mount.type == kind
    for path in (tmp_path, tmp_path / "abc"):
        assert (outside := mount_of(path, roots)) is not None
        assert outside.type == "ext4"


def disk(tmp_path: Path, mount: str, name: str = "", rotational: str = "", partition: bool = False) -> host.Storage:
    """Return the storage below ``/`` of a machine with one mount and one block device."""
    files = {}
    if name:
        files[f"sys/devices/pci/{name}/queue/rotational"] = rotational
        files[f"sys/devices/pci/{name}/{name}1/partition" if partition else f"sys/devices/pci/{name}/dev"] = "1"
    roots = machine(tmp_path, mount, files)
    if name:
        (tmp_path / "sys/dev/block").mkdir(parents=True)
        (tmp_path / "sys/dev/block/8:1").symlink_to(tmp_path / f"sys/devices/pci/{name}" / (f"{name}1" if partition else ""))
        (tmp_path / "sys/class/block").mkdir(parents=True)
        (tmp_path / "sys/class/block" / name).symlink_to(tmp_path / f"sys/devices/pci/{name}")
    return storage_of(Path("/"), roots)


@pytest.mark.parametrize(
    ("mount", "name", "rotational", "partition", "kind"),
    [
        ("1 0 8:1 / / rw - ext4 /dev/sda1 rw", "sda", "1\n", True, "rotating"),
        ("1 0 8:1 / / rw - ext4 /dev/nvme0n1 rw", "nvme0n1", "0\n", False, "solid-state"),
        ("1 0 8:1 / / rw - ext4 /dev/vda rw", "vda", "1\n", False, "virtual"),
        ("1 0 0:44 / / rw - btrfs /dev/sdq rw", "sdq", "0\n", False, "solid-state"),
        ("1 0 8:1 / / rw - ext4 /dev/sda rw", "sda", "", False, None),
        ("1 0 0:44 / / rw - zfs pool/data rw", "", "", False, None),
        ("1 0 0:44 / / rw - tmpfs tmpfs rw", "", "", False, "memory"),
        ("1 0 0:44 / / rw - nfs4 server:/export rw", "", "", False, "network"),
        ("1 0 0:44 / / rw - fuse.gcsfuse bucket rw", "", "", False, "network"),
        ("1 0 0:44 / / rw - overlay overlay rw,lowerdir=/x", "", "", False, "overlay"),
        ("", "", "", False, None),
    ],
)
def test_the_kind_of_storage(mount: str, name: str, rotational: str, partition: bool, kind: str | None, tmp_path: Path) -> None:
    """From the file system's type and the block device's flag; whatever does not say is ``None`` with a reason."""
    found = disk(tmp_path, mount, name, rotational, partition)
    assert found.kind == kind
    assert found.why
    if name:
        assert found.device == name


def test_this_machine_agrees_with_psutil() -> None:
    """Total memory, and the file system of the current folder, as another library reads them."""
    assert memory().total == psutil.virtual_memory().total
    mount = mount_of(Path())
    assert mount is not None
    assert (mount.type, mount.point) in {(p.fstype, p.mountpoint) for p in psutil.disk_partitions(all=True)}
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert storage_of(Path("/dev/shm")).kind == "memory"
