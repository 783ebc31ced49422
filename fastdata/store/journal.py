"""Who may build a store, and how far it has come: the lock and the journal in the folder ``<out>.partial``.

Durability rule: a journal line is written only after everything that it speaks of is on the device, and everything behind the
last line that is whole is forgotten. So whatever instant a process is killed at, what is found is a state that its writer once
declared.

The journal is text, one line each: 8 hexadecimal digits of CRC32C, a blank, a JSON object. The first line says what is being
built, then come checkpoints, last a seal when the store is complete and only has to be moved into place.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from fastdata.checksum import crc32c
from fastdata.errors import UsageError
from fastdata.store.format import PARTIAL

LOCK: Final = "lock"
JOURNAL: Final = "journal"
MEMBER: Final = re.compile(r"lock|journal|col-\w+|payload-\d{5,}|index\.fastdata|spill-\w+")
"""Every name that this package gives a file in such a folder; ``spill-`` is what workers of a conversion leave there."""

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space, no quota, no larger file allowed."""


def staging_of(out: Path) -> Path:
    """Return the folder in which the store ``out`` is built; on the same file system, so that a rename can move it."""
    return out.with_name(out.name + PARTIAL)


def is_staging(folder: Path) -> bool:
    """Tell whether a folder holds nothing but files of this package."""
    return folder.is_dir() and all(MEMBER.fullmatch(name) for name in os.listdir(folder))


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the device."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno != errno.EINVAL:  # some network file systems cannot, and have nothing to wait for
            raise
    finally:
        os.close(fd)


def explain_full(error: OSError, path: Path, needed: int) -> OSError:
    """Return the error of a full disk with what a person needs to know; any other error as it is."""
    if error.errno not in FULL:
        return error
    free = shutil.disk_usage(path.parent).free
    return OSError(
        error.errno,
        f"{os.strerror(error.errno)}: {needed} more bytes must fit, {free} are free; make room and run the same again, "
        "it continues at its last checkpoint",
        str(path),
    )


def write_at(fd: int, buffers: Sequence[bytes | memoryview], at: int, path: Path) -> None:
    """Write buffers one after the other at offset ``at``: one call, unless the system cuts it short.

    Raises:
        OSError: With the bytes that did not fit, if the disk is full.
    """
    left = sum(len(buffer) for buffer in buffers)
    rest: list[bytes | memoryview] = list(buffers)
    try:
        while left:
            done = os.pwritev(fd, rest, at)
            at += done
            left -= done
            while left and done >= len(rest[0]):
                done -= len(rest.pop(0))
            if left and done:
                rest[0] = memoryview(rest[0])[done:]
    except OSError as e:
        raise explain_full(e, path, left) from e


@final
class Lock:
    """The right to build one store, held by one process until it ends, however it ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._pid = os.getpid()
        _held.add(self)

    @classmethod
    def acquire(cls, staging: Path, out: Path) -> Self:
        """Make the folder if there is none, and take its lock.

        Raises:
            UsageError: Another process builds the same store.
        """
        path = staging / LOCK
        while True:
            staging.mkdir(exist_ok=True)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # its owner has just published and removed the folder
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(fd, 100, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(fd)
                raise UsageError(f"{out} must have one writer at a time, got a second while process {pid} is writing") from None
            except OSError as e:
                if e.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    os.close(fd)
                    raise  # else: the file system has no locks, and the user takes care
            if _is_same_file(fd, path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return cls(path, fd)
            os.close(fd)

    @property
    def is_held(self) -> bool:
        """Whether this very process holds it; a forked child does not."""
        return self._fd >= 0 and self._pid == os.getpid()

    def release(self) -> None:
        """Let go."""
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child that lives longer than its killed parent must not keep the lock: it belongs to all who have the file open."""
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_close_in_child)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


@dataclass(frozen=True, slots=True)
class Found:
    """What a journal says."""

    begin: dict[str, Any]
    checkpoint: dict[str, Any] | None
    """The last one."""
    seal: dict[str, Any] | None
    nbytes: int
    """Length of its whole lines."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reached that could be continued."""
        return self.checkpoint is None and self.seal is None


def read_journal(path: Path) -> Found | str | None:
    """Read a journal.

    Returns:
        What it says; why it cannot be believed; ``None`` when there is none or its first line was never finished.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    lines = raw.split(b"\n")
    rows: list[dict[str, Any]] = []
    nbytes = 0
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line end was being written when its process died
        text = line[9:]
        if line[:9] != b"%08x " % crc32c(text):
            if number == len(lines) - 1 and not lines[-1]:
                break  # the same, with the line's end on the device before its middle
            return f"line {number} of its journal is damaged"
        rows.append(json.loads(text))
        nbytes += len(line) + 1
    if not rows:
        return None
    if rows[0].get("kind") != "begin":
        return "its journal does not say what was begun"
    last = {row["kind"]: row for row in rows}
    return Found(rows[0], last.get("checkpoint"), last.get("seal"), nbytes)


@final
class Journal:
    """The journal of a running writer."""

    def __init__(self, path: Path, keep_nbytes: int = 0) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._fd, keep_nbytes)
        self._end = keep_nbytes

    def append(self, kind: str, row: dict[str, Any]) -> None:
        """Write one line and wait until it is on the device."""
        text = json.dumps({"kind": kind} | row, separators=(",", ":")).encode("ascii")
        line = b"%08x %s\n" % (crc32c(text), text)
        write_at(self._fd, [line], self._end, self._path)
        os.fsync(self._fd)
        self._end += len(line)

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
