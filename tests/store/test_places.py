"""Where a store may be written, what it replaces and when, and that one process writes at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_kit import (
    BACKENDS,
    assert_holds,
    bytes_of,
    check_all,
    feed,
    manifest,
    place,
    write_store,
)
from write_kit import SAMPLES, assert_nothing_left, begin, complete, half_built, in_child, staging

from fastdata.errors import UsageError
from fastdata.store.read import open_store
from fastdata.store.write import check_target

# Where it may be written


def test_a_store_that_is_there_is_replaced_only_when_asked(out: Path) -> None:
    """The error comes before anything is done and names the option; then the old store opens until the new one is there."""
    write_store(out, SAMPLES[:4])
    before = bytes_of(out)
    for check in (lambda: begin(out), lambda: check_target(out, overwrite=False)):
        with pytest.raises(UsageError, match="--overwrite"):
            check()
    assert_nothing_left(out)
    reader = open_store(out)
    with begin(out, overwrite=True) as writer:
        feed(writer, SAMPLES)
        writer.checkpoint({})
        assert bytes_of(out) == before
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)
    assert_holds(reader, SAMPLES[:4])
    check_all(reader)


def test_replacing_removes_the_old_shards_and_nothing_else(tmp_path: Path) -> None:
    """A note that a person put beside them stays."""
    out = write_store(tmp_path / "s", SAMPLES, shard_nbytes=600)
    (out / "README").write_text("mine")
    write_store(out, SAMPLES[:3], overwrite=True)
    assert sorted(p.name for p in out.iterdir() if not p.name.startswith("shard-00000-")) == ["README", "index.fastdata"]
    assert_holds(open_store(out), SAMPLES[:3])


def test_replacing_a_store_by_itself_changes_nothing(out: Path) -> None:
    """Shards of the same content have the same names."""
    write_store(out, SAMPLES, shard_nbytes=600)
    before = bytes_of(out)
    write_store(out, SAMPLES, shard_nbytes=600, overwrite=True)
    assert bytes_of(out) == before


def test_a_damaged_store_can_be_replaced(tmp_path: Path) -> None:
    """It need only look like one."""
    for backend in BACKENDS:
        out = write_store(place(tmp_path, backend), SAMPLES)
        file = out / "index.fastdata" if out.is_dir() else out
        raw = bytearray(file.read_bytes())
        raw[-500] ^= 1
        file.write_bytes(raw)
        write_store(out, SAMPLES, overwrite=True)
        check_all(open_store(out))


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_store_is_never_replaced(out: Path, overwrite: bool) -> None:
    """A file, a picture, a folder with anything in it: --overwrite or not."""
    for content in (b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(200)):
        out.write_bytes(content)
        with pytest.raises(UsageError, match="something else"):
            begin(out, overwrite=overwrite)
        assert out.read_bytes() == content
        out.unlink()
    out.mkdir()
    for name in ("photo.jpg", "index.fastdata"):
        (out / name).write_bytes(b"mine")
        with pytest.raises(UsageError, match="something else"):
            begin(out, overwrite=overwrite)
        assert (out / name).read_bytes() == b"mine"
        (out / name).unlink()
    assert_nothing_left(out)


def test_an_empty_folder_is_a_free_place(out: Path) -> None:
    """For a folder of shards and for a file."""
    out.mkdir()
    write_store(out, SAMPLES)
    assert_holds(open_store(out), SAMPLES)


def test_one_kind_of_store_does_not_replace_the_other(tmp_path: Path) -> None:
    """A file cannot be renamed over a folder at one instant."""
    for there, here in (("lmdb", "shards"), ("shards", "lmdb")):
        out = write_store(tmp_path / there, SAMPLES, backend=there)
        with pytest.raises(UsageError, match="to be replaced by one, got the other"):
            write_store(out, SAMPLES, backend=here, overwrite=True)
        assert_holds(open_store(out), SAMPLES)


def test_a_link_is_followed(out: Path, tmp_path: Path) -> None:
    """What it points to is written, the link stays."""
    real = tmp_path / "disk"
    real.mkdir()
    out.symlink_to(real / ("x" + out.suffix))
    for samples in (SAMPLES[:2], SAMPLES):
        write_store(out, samples, overwrite=True)
        assert out.is_symlink()
        assert_holds(open_store(out), samples)
    assert [p.name for p in real.iterdir()] == ["x" + out.suffix]


def test_a_missing_folder_is_an_error_before_anything(tmp_path: Path) -> None:
    """With the command that makes it; also when it is a file."""
    with pytest.raises(UsageError, match="mkdir -p"):
        begin(tmp_path / "no" / "s.lmdb")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="must exist"):
        begin(tmp_path / "file" / "s.lmdb")
    with pytest.raises(UsageError, match="must name"):
        begin(Path("/"))


def test_a_folder_without_permission_is_an_error_before_anything(tmp_path: Path) -> None:
    """As a user who may not write there."""
    (tmp_path / "s").mkdir()
    for folder in (tmp_path, tmp_path / "s"):
        folder.chmod(0o555)

    def work() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        begin(tmp_path / "x.lmdb")

    try:
        assert in_child(work).startswith("PermissionError: [Errno 13] the folder of a store must be writable")
    finally:
        tmp_path.chmod(0o755)

    def inside() -> None:
        if os.getuid() == 0:
            os.chown(tmp_path, 65534, 65534)
            os.setuid(65534)
        begin(tmp_path / "s")

    assert in_child(inside).startswith("PermissionError: [Errno 13] a folder of shards must be writable")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_foreign_folder_in_the_place_of_the_staging_folder_is_left_alone(out: Path) -> None:
    """Its files are somebody's."""
    staging(out).mkdir()
    (staging(out) / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="move it away"):
        begin(out, overwrite=True)
    assert [p.name for p in staging(out).iterdir()] == ["thesis.tex"]
    (staging(out) / "thesis.tex").unlink()
    staging(out).rmdir()
    staging(out).write_text("mine")
    with pytest.raises(UsageError, match="move it away"):
        begin(out, overwrite=True)


def test_files_that_workers_left_are_removed(out: Path) -> None:
    """``spill-`` files, of this run or one before."""
    half_built(out)
    (staging(out) / "spill-17").write_bytes(b"x")
    with begin(out) as writer:
        assert writer.resumed is not None
        assert not (writer.staging / "spill-17").exists()
        feed(writer, SAMPLES[6:])
        (writer.staging / "spill-18").write_bytes(b"x")
        writer.publish(manifest())
    assert_nothing_left(out)


# One writer at a time


def test_a_second_writer_is_refused_by_the_number_of_the_first(out: Path) -> None:
    """In the same process, in a child, and in a program of its own; the first one is not disturbed."""
    code = (
        "import sys; from fastdata.store.write import StoreWriter\n"
        "try: StoreWriter.begin(sys.argv[1], fingerprint='f', keypoints=0)\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    with begin(out) as writer:
        feed(writer, SAMPLES[:4])
        with pytest.raises(UsageError, match=f"process {os.getpid()} is writing"):
            begin(out)
        assert f"process {os.getpid()} is writing" in in_child(lambda: begin(out))
        done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=True)
        assert f"UsageError {out} must have one writer" in done.stdout
        assert f"process {os.getpid()} is writing" in done.stdout
        feed(writer, SAMPLES[4:])
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)


def test_a_lock_on_a_file_that_was_just_removed_is_no_lock(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner publishes and removes the folder between another's opening and locking; the other begins in a folder anew."""
    real, removed = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        if not removed:
            removed.append((staging(out) / "lock").unlink())
            staging(out).rmdir()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with begin(out) as writer:
        assert removed
        assert int((staging(out) / "lock").read_text()) == os.getpid()
        with pytest.raises(UsageError, match="one writer at a time"):
            begin(out)
        feed(writer, SAMPLES)
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_no_obstacle(out: Path, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cluster file systems have none; any other error comes through."""
    monkeypatch.setattr(fcntl, "flock", lambda *a: (_ for _ in ()).throw(OSError(error, os.strerror(error))))
    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            begin(out)
    else:
        assert complete(out).entries == 9


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(out: Path) -> None:
    """Workers are forked; the writer is killed; they live on for a while. The next writer begins at once."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        writer = begin(out)
        feed(writer, SAMPLES[:3])
        writer.checkpoint({"position": 3})
        worker = os.fork()
        if worker == 0:
            os.write(write, b"%d" % os.getpid())
            signal.pause()
            os._exit(0)
        signal.pause()
    worker = int(os.read(read, 20))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        with begin(out) as writer:
            assert writer.resumed == {"position": 3}
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_forked_child_cannot_use_or_end_the_writer(out: Path) -> None:
    """Leaving the ``with`` block there removes nothing."""
    with begin(out) as writer:
        feed(writer, SAMPLES[:2])

        def work() -> str:
            with writer:
                feed(writer, SAMPLES[2:3])
            return "no error"

        assert "UsageError: a writer must be open, and in the process that began it" in in_child(work)
        feed(writer, SAMPLES[2:])
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES)


def test_a_target_that_appears_meanwhile_is_not_replaced(out: Path, tmp_path: Path) -> None:
    """Publication looks again."""
    with begin(out) as writer:
        feed(writer, SAMPLES)
        writer.checkpoint({"position": 9})
        other = write_store(place(tmp_path, writer._backend, "other"), SAMPLES[:1])
        other.rename(out)
        with pytest.raises(UsageError, match="--overwrite"):
            writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES[:1])
    assert complete(out, overwrite=True).resumed == {"position": 9}
    assert_holds(open_store(out), SAMPLES)
