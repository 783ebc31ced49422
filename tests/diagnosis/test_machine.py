"""Judgements on the machine: each limit is seen on a made-up one."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from fastdata import host
from fastdata.diagnosis import machine
from fastdata.diagnosis.finding import GIB, Finding
from fastdata.host import Roots

V2 = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def make(tmp_path: Path, files: dict[str, str], mountinfo: str = V2) -> Roots:
    """Make up the kernel's files; names begin with proc/ or sys/."""
    for name, text in {"proc/self/mountinfo": mountinfo, "proc/self/cgroup": "0::/\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Roots(tmp_path / "proc", tmp_path / "sys")


def by_name(findings: object) -> dict[str, Finding]:
    """Return findings by name, each of which occurs once."""
    listed = list(findings)  # type: ignore[call-overload]
    assert len({f.name for f in listed}) == len(listed)
    return {f.name: f for f in listed}


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of sixteen cores, eight of which the scheduler may use."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for module in (host, machine):
        monkeypatch.setattr(module, "affinity_cores", lambda: 8)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("quota", "usable", "status"),
    [("250000 100000", 2, "warn"), ("800000 100000", 8, "ok"), ("max 100000", 8, "ok"), ("", 8, "unknown")],
)
def test_a_quota_below_the_cores_that_programs_count_is_a_warning(quota: str, usable: int, status: str, tmp_path: Path) -> None:
    """The usable number is the smallest of the three limits, and the fix names it."""
    found = by_name(machine.cores(make(tmp_path, {"sys/fs/cgroup/cpu.max": quota})))
    assert found["cores"].value == usable
    assert found["affinity"].value == 8
    assert found["CPU quota"].status == status
    if status == "warn":
        assert found["CPU quota"].value == 2.5
        assert found["CPU quota"].fix == "start at most 2 workers and threads together"


@pytest.mark.parametrize(
    ("driver", "governor", "status"),
    [("acpi-cpufreq", "powersave", "warn"), ("intel_pstate", "powersave", "ok"), ("acpi-cpufreq", "schedutil", "ok")],
)
def test_a_governor_that_keeps_the_clock_down_is_a_warning(driver: str, governor: str, status: str, tmp_path: Path) -> None:
    """With intel_pstate and amd-pstate the same name means something else."""
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    roots = make(tmp_path, {f"{folder}/scaling_driver": f"{driver}\n", f"{folder}/scaling_governor": f"{governor}\n"})
    assert by_name(machine.cores(roots))["CPU governor"].status == status


def test_a_machine_without_a_governor_says_nothing_about_it(tmp_path: Path) -> None:
    """Virtual machines have none."""
    assert "CPU governor" not in by_name(machine.cores(make(tmp_path, {})))


@pytest.mark.parametrize(
    ("available_gib", "limit", "statuses", "limit_value"),
    [
        (32, "max", ("ok", "ok"), "none"),
        (1, "max", ("warn", "ok"), "none"),
        (32, str(16 * GIB), ("ok", "ok"), 16 * GIB),
        (32, str(1 * GIB), ("ok", "warn"), 1 * GIB),
        (32, str(128 * GIB), ("ok", "ok"), "none"),
        (32, "", ("ok", "unknown"), None),
    ],
)
def test_little_memory_is_a_warning(
    available_gib: int, limit: str, statuses: tuple[str, str], limit_value: str | int | None, tmp_path: Path
) -> None:
    """Of the machine or of the control group; a limit above the machine's memory is none."""
    meminfo = f"MemTotal: {64 << 20} kB\nMemAvailable: {available_gib << 20} kB\n"
    found = by_name(machine.main_memory(make(tmp_path, {"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": limit})))
    assert (found["memory"].status, found["memory limit"].status) == statuses
    assert found["memory"].value == available_gib * GIB
    assert found["memory limit"].value == limit_value


def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """No number is invented."""
    found = by_name(machine.main_memory(make(tmp_path, {})))
    assert (found["memory"].value, found["memory"].status) == (None, "unknown")
    assert "meminfo does not say" in found["memory"].why


@pytest.mark.parametrize(
    ("total", "free", "status"),
    [(64 << 20, 64 << 20, "bad"), (8 * GIB, 1 * GIB, "warn"), (1 * GIB, 1 * GIB, "warn"), (8 * GIB, 8 * GIB, "ok")],
)
def test_shared_memory_that_no_batch_fits_in_is_bad(total: int, free: int, status: str) -> None:
    """64 MiB is what a container gets when nobody asks for more."""
    found = machine.judge_shared_memory(Path("/dev/shm"), total, free)
    assert (found.status, found.value) == (status, free)
    assert (found.fix is not None) == (status != "ok")


def test_the_shared_memory_of_this_machine_and_of_none(tmp_path: Path) -> None:
    """A real folder has a size; one that is not there is unknown, with what the system says."""
    assert isinstance(machine.shared_memory(tmp_path).value, int)
    missing = machine.shared_memory(tmp_path / "missing")
    assert (missing.value, missing.status) == (None, "unknown")
    assert "No such file" in missing.why


@pytest.mark.parametrize(
    ("soft", "hard", "status", "fix"),
    [
        (1024, 1048576, "warn", "ulimit -n 65536"),
        (1024, 2048, "warn", "ulimit -n 2048"),
        (1024, resource.RLIM_INFINITY, "warn", "ulimit -n 65536"),
        (1024, 1024, "warn", "raise the hard limit"),
        (65536, 65536, "ok", None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok", None),
    ],
)
def test_a_low_limit_on_open_files_is_a_warning(soft: int, hard: int, status: str, fix: str | None) -> None:
    """The fix is a command that works: it stays below the hard limit."""
    found = machine.open_files(soft, hard)
    assert found.status == status
    assert (found.fix or "").startswith(fix or "")
    assert (found.fix is None) == (fix is None)


@pytest.mark.parametrize(
    ("mount", "status", "value"),
    [
        ("1 0 8:1 / / rw - ext4 /dev/sda rw", "warn", "rotating disk sda"),
        ("1 0 8:2 / / rw - ext4 /dev/sdb rw", "ok", "solid-state sdb"),
        ("1 0 0:9 / / rw - nfs server:/x rw", "warn", "network server:/x"),
        ("1 0 0:9 / / rw - overlay overlay rw", "unknown", None),
        ("1 0 0:9 / / rw - tmpfs tmpfs rw", "ok", "memory tmpfs"),
        ("", "unknown", None),
    ],
)
def test_slow_storage_is_a_warning(mount: str, status: str, value: str | None, tmp_path: Path) -> None:
    """A disk that rotates and a network do; a layered file system cannot be told."""
    files = {f"sys/dev/block/8:{k}/queue/rotational": flag for k, flag in ((1, "1"), (2, "0"))}
    roots = make(tmp_path, files, mount)
    for k, name in ((1, "sda"), (2, "sdb")):
        (tmp_path / f"sys/dev/block/8:{k}").rename(tmp_path / "sys" / name)
        (tmp_path / f"sys/dev/block/8:{k}").symlink_to(tmp_path / "sys" / name)
    found = by_name(machine.disk(Path("/"), roots))
    assert (found["storage"].status, found["storage"].value) == (status, value)
    assert isinstance(found["disk free"].value, int)


def test_a_path_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    """Where a store is to be written counts before it is there."""
    found = by_name(machine.disk(tmp_path / "new/store.lmdb", Roots()))
    assert str(tmp_path) in found["disk free"].why
    assert "that exists" in found["disk free"].why


@pytest.mark.parametrize(("available_kb", "limit", "status"), [(1, "max", "warn"), (4, "max", "ok"), (4, "1024", "warn")])
def test_a_dataset_larger_than_memory_is_a_warning(available_kb: int, limit: str, status: str, tmp_path: Path) -> None:
    """2,000 bytes in two files, one of them reached by a link; a link to nothing counts nothing."""
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a").write_bytes(bytes(1000))
    (data / "sub/link").symlink_to(data / "a")
    (data / "dangling").symlink_to(data / "nothing")
    meminfo = f"MemTotal: 8 kB\nMemAvailable: {available_kb} kB\n"
    roots = make(tmp_path, {"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": limit})
    found = machine.size(data, roots)
    assert (found.value, found.status) == (2000, status)
    assert machine.size(data / "a", roots).value == 1000


def test_a_folder_of_very_many_files_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking must not take minutes; the answer says why there is none."""
    monkeypatch.setattr(machine, "COUNTED_FILES", 2)
    for name in "abc":
        (tmp_path / name).touch()
    found = machine.size(tmp_path, Roots())
    assert (found.value, found.status) == (None, "unknown")
    assert "more than 2 files" in found.why
