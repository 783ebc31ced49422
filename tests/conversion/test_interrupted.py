"""A conversion that is stopped at any instant: nothing half-made passes for a store, and the next run ends in the same bytes."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import convert_kit as kit
import pytest

import fastdata
from fastdata.conversion import run as running
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.errors import FastdataError, StoreError, UsageError
from fastdata.store.write import StoreWriter

IMAGES = 240
SMALL_CHECKPOINTS = 200_000
"""Bytes between checkpoints: a few dozen pictures here, so that there is something to continue."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.yolo(tmp_path_factory.mktemp("set"), {"train": IMAGES - 40, "val": 40})


@pytest.fixture(scope="module")
def undisturbed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What a conversion that nobody stops writes, for both backends."""
    folder = tmp_path_factory.mktemp("whole")
    out = {}
    for name in ("out.lmdb", "out"):
        convert(dataset, folder / name, ConvertOptions(imgsz=None, codec="raw"))
        out[name] = kit.store_bytes(folder / name)
    return out


def start(dataset: Path, out: Path) -> subprocess.Popen[bytes]:
    """Convert in a process of its own, with a checkpoint every few dozen pictures."""
    code = (
        "import sys\n"
        "from fastdata.conversion.options import ConvertOptions\n"
        "from fastdata.conversion import run\n"
        "from fastdata.store.write import StoreWriter\n"
        "begin = StoreWriter.begin\n"
        f"run.StoreWriter.begin = lambda *a, **k: begin(*a, checkpoint_nbytes={SMALL_CHECKPOINTS}, **k)\n"
        "run.convert(sys.argv[1], sys.argv[2], ConvertOptions(imgsz=None, codec='raw', workers=2))\n"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(dataset), str(out)], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("name", ["out.lmdb", "out"])
def test_a_conversion_killed_at_random_instants_ends_in_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, dataset: Path, undisturbed: dict[str, dict[str, str]], name: str
) -> None:
    """kill -9, several times over, whenever; until then there is no store, and nothing stays behind in the end."""
    out = tmp_path / name
    chance = random.Random(name)
    for _ in range(4):
        process = start(dataset, out)
        deadline = time.monotonic() + chance.uniform(0.5, 3.0)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.returncode == 0:
            break
        if not out.exists() or name == "out":
            with pytest.raises((StoreError, FileNotFoundError)):
                fastdata.open_store(out).close()
    if not out.exists() or not list(tmp_path.glob("*.partial")) == []:
        process = start(dataset, out)
        assert process.wait(120) == 0
    assert kit.store_bytes(out) == undisturbed[name]
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["out.lmdb", "out"])
def test_a_conversion_that_fails_after_some_checkpoints_continues_there(
    tmp_path: Path, dataset: Path, undisturbed: dict[str, dict[str, str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run does not convert again what the first had made durable, and says how much that was."""
    few_bytes(monkeypatch)
    options = ConvertOptions(imgsz=None, codec="raw", workers=1)
    seen = 0

    def stop_late(progress: running.Progress) -> None:
        nonlocal seen
        seen += 1
        if progress.done > IMAGES // 2:
            raise RuntimeError("stopped")

    monkeypatch.setattr(running.time, "monotonic", ticking_clock())
    with pytest.raises(RuntimeError, match="stopped"):
        convert(dataset, tmp_path / name, options, listener=stop_late)
    assert not (tmp_path / name).exists()
    done = convert(dataset, tmp_path / name, options)
    assert 0 < done.resumed < IMAGES
    assert done.tally.stored == IMAGES
    assert kit.store_bytes(tmp_path / name) == undisturbed[name]


def test_ctrl_c_ends_at_once_and_the_same_command_continues(
    tmp_path: Path, dataset: Path, undisturbed: dict[str, dict[str, str]]
) -> None:
    """Exit code 130, one line, no traceback, no worker left; then the same store as if nothing had happened."""
    command = kit.command("convert", dataset, tmp_path / "out.lmdb", "--imgsz", "full", "--codec", "raw", "--workers", 2)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    staging = tmp_path / "out.lmdb.partial"
    while process.poll() is None and not staging.exists():
        time.sleep(0.01)
    children = worker_pids(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode != 0:  # it may have been done already
        assert process.returncode == 130
        assert "interrupted" in errors
        assert "Traceback" not in errors
        assert not (tmp_path / "out.lmdb").exists()
    assert not [pid for pid in children if alive(pid)]
    again = kit.fastdata("convert", dataset, tmp_path / "out.lmdb", "--imgsz", "full", "--codec", "raw", "--overwrite")
    assert again.returncode == 0, again.stderr
    assert kit.store_bytes(tmp_path / "out.lmdb") == undisturbed["out.lmdb"]


def test_an_edited_label_makes_an_interrupted_conversion_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same size, same time stamp, another class: the half-built store is thrown away, and the run says why."""
    few_bytes(monkeypatch)
    data = kit.yolo(tmp_path / "set", {"train": 120})
    options = ConvertOptions(imgsz=None, codec="raw", workers=1)
    monkeypatch.setattr(running.time, "monotonic", ticking_clock())
    with pytest.raises(RuntimeError):
        convert(data, tmp_path / "out.lmdb", options, listener=stopping_after(80))
    label = tmp_path / "set/labels/train/00001.txt"
    stat = label.stat()
    label.write_text(label.read_text().replace("0 0.3", "2 0.3", 1))
    os.utime(label, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    done = convert(data, tmp_path / "out.lmdb", options)
    assert done.resumed == 0
    assert done.why_not_resumed
    with fastdata.open_store(tmp_path / "out.lmdb") as store:
        assert store.instances(1).cls.tolist() == [2]


def test_a_worker_that_dies_is_named_and_the_run_can_be_continued(
    tmp_path: Path, dataset: Path, undisturbed: dict[str, dict[str, str]]
) -> None:
    """The error says which pictures it was working on; nobody waits for ever."""
    process = subprocess.Popen(
        kit.command("convert", dataset, tmp_path / "out.lmdb", "--imgsz", "full", "--codec", "raw", "--workers", 2),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    killed = False
    while process.poll() is None and not killed:
        for pid in worker_pids(process.pid):
            os.kill(pid, signal.SIGKILL)
            killed = True
            break
    _, errors = process.communicate(timeout=60)
    assert killed
    assert process.returncode == 1
    assert "a worker process must answer, got signal SIGKILL" in errors
    assert "Traceback" not in errors
    convert(dataset, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="raw"))
    assert kit.store_bytes(tmp_path / "out.lmdb") == undisturbed["out.lmdb"]


def test_a_worker_that_dies_before_it_begins_is_told_as_well(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broken pipe is not taken for one of the command's output, which ends without a word."""

    class Dead(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", ""], **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Dead)
    with pytest.raises(FastdataError, match="a worker process must answer, got exit code 0, before it had anything to do"):
        convert(dataset, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="raw", workers=2))


def test_a_full_disk_ends_in_a_plain_error_and_what_was_written_can_be_continued(
    tmp_path: Path, dataset: Path, undisturbed: dict[str, dict[str, str]]
) -> None:
    """A limit on the size of files stands for a disk that fills up in the middle."""
    limit = 700_000

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    command = kit.command("convert", dataset, tmp_path / "out.lmdb", "--imgsz", "full", "--codec", "raw", "--workers", 1)
    failed = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_disk, timeout=120, check=False)
    assert failed.returncode == 1, failed.stderr
    assert "error:" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out.lmdb").exists()
    convert(dataset, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="raw"))
    assert kit.store_bytes(tmp_path / "out.lmdb") == undisturbed["out.lmdb"]


def test_a_set_that_cannot_fit_is_refused_before_anything_is_written(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how much is needed and which codec would fit."""
    monkeypatch.setattr(running, "free_nbytes", lambda out: 2_000_000)
    with pytest.raises(OSError, match=r"must have 2\.31 MB free for codec raw, got 2 MB; --codec jpeg"):
        convert(dataset, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="raw"))
    assert list(tmp_path.iterdir()) == []


def test_a_second_converter_on_the_same_target_is_refused(tmp_path: Path, dataset: Path) -> None:
    """The first holds the lock; the second is told which process that is."""
    with (
        StoreWriter.begin(tmp_path / "out.lmdb", fingerprint="x", keypoints=0),
        pytest.raises(UsageError, match=str(os.getpid())),
    ):
        convert(dataset, tmp_path / "out.lmdb", ConvertOptions(imgsz=None, codec="raw"))


@pytest.mark.parametrize("out", ["no/such/folder/out.lmdb", "file/out.lmdb"])
def test_a_target_that_cannot_be_written_is_refused_at_once(tmp_path: Path, dataset: Path, out: str) -> None:
    """A missing folder, a file where a folder should be."""
    (tmp_path / "file").write_text("")
    done = kit.fastdata("convert", dataset, tmp_path / out)
    assert done.returncode in (1, 2)
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr


def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a checkpoint every few dozen pictures."""
    begin = StoreWriter.begin

    def often(*args: object, **kwargs: object) -> StoreWriter:
        return begin(*args, checkpoint_nbytes=SMALL_CHECKPOINTS, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(running.StoreWriter, "begin", often)


def ticking_clock() -> Callable[[], float]:
    """A clock that is a second further at every look, so that the listener hears of every picture."""
    now = 0.0

    def look() -> float:
        nonlocal now
        now += 1.0
        return now

    return look


def stopping_after(images: int) -> Callable[[running.Progress], None]:
    def stop(progress: running.Progress) -> None:
        if progress.done > images:
            raise RuntimeError("stopped")

    return stop


def worker_pids(parent: int) -> list[int]:
    """Children of a process that have begun to serve."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(stat[1]) == parent and b"serve" in (entry / "cmdline").read_bytes():
                    out.append(int(entry.name))
            except (OSError, IndexError):
                continue
    return out


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
