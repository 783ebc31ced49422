"""Killed at any instant, begun again, fed the rest: the published bytes are those of an undisturbed run.

Children are real processes that die of SIGKILL: forked ones at one chosen system call, before it or in the middle of its bytes,
and interpreters of their own at a random time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_kit import BACKENDS, Label, assert_holds, bytes_of, check_all, feed, manifest, pictures, place, write_store

from fastdata.errors import StoreError, UsageError
from fastdata.store.read import open_store
from fastdata.store.write import StoreWriter

CALLS = ("pwritev", "pwrite", "fsync", "rename", "unlink", "rmdir", "mkdir", "ftruncate")
"""What changes a file system, as the writer uses it."""

NEW = pictures(11, seed=1, keypoints=2)
OLD = pictures(5, seed=2)


def job(out: Path, *, overwrite: bool = False) -> None:
    """A conversion that takes a checkpoint every third picture, so that the last two are never in one."""
    with StoreWriter.begin(out, fingerprint="f", keypoints=2, overwrite=overwrite, shard_nbytes=1200) as writer:
        start = writer.resumed["position"] if writer.resumed else 0
        for k in range(start, len(NEW)):
            feed(writer, [NEW[k]])
            writer.log(b'{"picture": %d}' % k)
            if k % 3 == 2:
                writer.checkpoint({"position": k + 1})
        writer.publish(manifest(2), [Label("labels.json", bytes(16))])


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; return its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def die_at(moment: int, half: bool) -> None:
    """Let this process be killed at its ``moment``-th call that changes a file system; with ``half``, amid its bytes."""
    passed = 0

    def deadly(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal passed
            passed += 1
            if passed == moment:
                if half and name == "pwritev":
                    data = b"".join(args[1])
                    real(args[0], [data[: len(data) // 2]], args[2])
                elif half and name == "pwrite":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                elif half:
                    real(*args, **more)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    for name in CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


def calls_of(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run and return the calls that change a file system."""
    made: list[str] = []
    with monkeypatch.context() as m:
        for name in CALLS:
            real = getattr(os, name)
            m.setattr(os, name, lambda *a, name=name, real=real, **k: made.append(name) or real(*a, **k))
        work()
    return made


def assert_whole_or_absent(out: Path, overwrite: bool) -> bool:
    """After a kill: the old store or the new one; without an old one, also none. Return whether it is the new one."""
    try:
        store = open_store(out)
    except (FileNotFoundError, StoreError) as e:
        if overwrite or not any(word in str(e) for word in ("unfinished", "No such")):
            raise
        return False
    with store:
        check_all(store)
        is_new = len(store) == len(NEW)
        assert_holds(store, NEW if is_new else OLD)
        assert overwrite or is_new
        return is_new


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_any_call_the_next_run_publishes_the_same_bytes(
    backend: str, overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or amid every call that renames, makes or cuts off, the last calls, and some of each other kind."""
    want_at = place(tmp_path, backend, "want")
    calls = calls_of(lambda: job(want_at), monkeypatch)
    want = bytes_of(want_at)
    moments: set[int] = set(range(len(calls) - 5, len(calls) + 1))
    for name in CALLS:
        at = [k for k, made in enumerate(calls, 1) if made == name]
        assert at, name
        moments |= set(at[:: max(1, len(at) // 6)])
    resumed = 0
    for n, moment in enumerate(sorted(moments)):
        for half in (False, True) if n % 3 == 0 else (n % 2 == 0,):
            folder = tmp_path / f"{moment}-{half}"
            folder.mkdir()
            out = place(folder, backend)
            if overwrite:
                write_store(out, OLD, shard_nbytes=1200)

            def work(moment: int = moment, half: bool = half, out: Path = out) -> None:
                die_at(moment, half)
                job(out, overwrite=overwrite)

            status = in_child(work)
            if not os.WIFSIGNALED(status):  # the old store and its removal shift the numbers
                assert os.WEXITSTATUS(status) == 0
            is_new = assert_whole_or_absent(out, overwrite)
            try:
                job(out, overwrite=overwrite)
                resumed += 1
            except UsageError:  # killed after publication, when only the lock was left to be removed
                assert is_new
                left = folder / f"{out.name}.partial"
                assert not left.exists() or os.listdir(left) in ([], ["lock"])
                continue
            assert_holds(open_store(out), NEW)
            if overwrite and backend == "shards":
                assert set(bytes_of(out)) == set(want)
            assert bytes_of(out) == want
            assert [p.name for p in folder.iterdir()] == [out.name]
    assert resumed > len(moments)


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_again_and_again_it_still_comes_out_right(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten kills in a row at random calls, over an old store that opens all the while."""
    want_at = place(tmp_path, backend, "want")
    total = len(calls_of(lambda: job(want_at), monkeypatch))
    rng = random.Random(backend)
    for round_ in range(2):
        out = place(tmp_path, backend, f"store{round_}")
        write_store(out, OLD, shard_nbytes=1200)
        kills = 0
        for _ in range(10):
            moment, half = rng.randrange(1, total), rng.random() < 0.5

            def work(moment: int = moment, half: bool = half, out: Path = out) -> None:
                die_at(moment, half)
                job(out, overwrite=True)

            kills += os.WIFSIGNALED(in_child(work))
            assert_whole_or_absent(out, True)
        assert kills
        job(out, overwrite=True)
        assert bytes_of(out) == bytes_of(want_at)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interpreter_killed_at_a_random_time_leaves_something_to_continue(backend: str, tmp_path: Path) -> None:
    """Killed from outside, by the clock, until one of the runs gets through."""
    want_at, out = place(tmp_path, backend, "want"), place(tmp_path, backend)
    job(want_at)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import time, pathlib, test_killed\n"
        "feed = test_killed.feed\n"
        "test_killed.feed = lambda *a: (time.sleep(0.03), feed(*a))\n"
        "print('ready', flush=True)\n"
        f"test_killed.job(pathlib.Path({str(out)!r}))\n"
    )
    rng = random.Random(backend)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.3 * rng.random())
            child.kill()
        if child.returncode == 0 or assert_whole_or_absent(out, False):
            break
    else:
        job(out)
    assert bytes_of(out) == bytes_of(want_at)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_half_built_store_is_called_unfinished_and_the_next_build_is_undisturbed(backend: str, tmp_path: Path) -> None:
    """Killed after 5 of 12 records without any checkpoint: nothing opens, and nothing of it is left after the second build."""
    out = place(tmp_path, backend)
    samples = pictures(12, side=30)

    def work() -> None:
        writer = StoreWriter.begin(out, fingerprint="f", keypoints=0)
        feed(writer, samples[:5])
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WIFSIGNALED(in_child(work))
    with pytest.raises(StoreError, match="unfinished"):
        open_store(out)
    with StoreWriter.begin(out, fingerprint="f", keypoints=0) as writer:
        assert writer.resumed is None
        assert writer.why_not_resumed == "it had not come to its first checkpoint"
        feed(writer, samples)
        writer.publish(manifest())
    assert_holds(open_store(out), samples)
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
