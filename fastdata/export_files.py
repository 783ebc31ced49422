"""Files of an export: a folder that appears at once, names that are safe and unique, pictures written while labels are made."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from fastdata.errors import UsageError
from fastdata.host import usable_cores
from fastdata.sources.files import IMAGE_SUFFIXES

MARKER = ".fastdata-export"
"""File that says that a folder is an export, which may be replaced: a dataset that somebody else made looks the same."""

PARTS = frozenset(("annotations", "images", "labels", "data.yaml", MARKER))
"""What an export may hold at its top; a folder with anything else in it is never replaced."""

LABEL_MARK = "images"
"""Trainers find labels by replacing the last folder of this name in a picture's path, so no folder below it may have it."""


@contextmanager
def new_folder(dst: Path, *, overwrite: bool, source: Path) -> Iterator[Path]:
    """Give a folder to write into, and rename it to ``dst`` when the block ends without an exception.

    Args:
        dst: Must not be there, be an empty folder, or with ``overwrite`` hold an earlier export and nothing else.
        overwrite: Whether it may be replaced.
        source: The store; must not lie in ``dst``.

    Raises:
        UsageError: ``dst`` is in use, or its parent is missing.
    """
    target = Path(os.path.realpath(dst))
    parent = target.parent
    if not parent.is_dir():
        raise UsageError(f"the folder of {dst} must exist, got none; make it with: mkdir -p '{parent}'")
    if target.exists():
        _check_replaceable(target, dst, overwrite, source)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=parent))
    try:
        partial.chmod(0o777 & ~_umask())
        (partial / MARKER).write_text("Written by fastdata export, which may replace this folder.\n")
        yield partial
        if target.exists() and any(target.iterdir()):
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=parent))
            os.rename(target, old)
            os.rename(partial, target)
            shutil.rmtree(old)
        else:
            os.rename(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_replaceable(target: Path, dst: Path, overwrite: bool, source: Path) -> None:
    if not target.is_dir():
        raise UsageError(f"{dst} must be a folder, or not be there yet, got a file; choose another name")
    found = set(os.listdir(target))
    if not found:
        return
    if not overwrite:
        raise UsageError(f"{dst} must be empty, or not be there yet; choose another name, or replace it with --overwrite")
    if MARKER not in found:
        raise UsageError(f"{dst} must be an earlier export to be replaced, got a folder that is none; choose another name")
    if found - PARTS:
        strange = ", ".join(sorted(found - PARTS)[:3])
        raise UsageError(f"{dst} must hold nothing but an export to be replaced, got {strange}; choose another name")
    if Path(os.path.realpath(source)).is_relative_to(target):
        raise UsageError(f"{dst} must not hold the store itself, got {source}; choose another name")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


# Names


def file_names(keys: Iterable[str], suffixes: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a relative path for each key: safe, and unique without its ending, whatever the case of letters.

    Folders that all keys share are dropped, and folders called ``images``. Components that would lead elsewhere (``..``, a root)
    are dropped too; a leading dot, which would hide a file, and characters that some system takes for a separator become "_".

    Args:
        keys: As in the store.
        suffixes: For each key the endings that suit its content; the first is taken unless it has one of them. None given: it
            keeps what it has.
    """
    split = [_parts(key) for key in keys]
    shared = _shared_folders(split)
    taken: set[str] = set()
    names = []
    for parts, suits in zip(split, suffixes, strict=True):
        *folders, last = parts[shared:]
        stem, ending = os.path.splitext(last)
        if ending.lower() not in IMAGE_SUFFIXES:
            stem, ending = last, ""
        new = ending if not suits or ending.lower() in suits else suits[0]
        folder = "".join(f"{name}/" for name in folders)
        if f"{folder}{stem}".casefold() in taken:
            stem = last
        again, tried = 2, stem
        while f"{folder}{tried}".casefold() in taken:
            tried, again = f"{stem}-{again}", again + 1
        taken.add(f"{folder}{tried}".casefold())
        names.append(f"{folder}{tried}{new}")
    return names


def _shared_folders(paths: list[list[str]]) -> int:
    """Return how many leading folders all paths have in common."""
    low, high = min(paths, default=[""]), max(paths, default=[""])  # what the first and the last in order share, all share
    most = min(len(low), len(high)) - 1
    return next((k for k in range(most) if low[k] != high[k]), most)


def folder_name(split: str) -> str:
    """Return a split's name as the name of one folder."""
    return "_".join(_parts(split))


def _parts(key: str) -> list[str]:
    clean = "".join("_" if c in '\\:*?"<>|' or ord(c) < 32 or ord(c) == 127 else c for c in key)
    parts = [part for part in clean.split("/") if part not in ("", ".", "..")]
    parts = [f"_{part[1:]}" if part.startswith(".") else part for part in parts]
    return [*(part for part in parts[:-1] if part != LABEL_MARK), parts[-1]] if parts else ["_"]


# Pictures


class Writer:
    """Writes files; what must be made first is made by threads while the caller goes on.

    Used in a ``with`` statement, whose end waits for all of them. At most four files a thread are under way: memory is bounded.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        """Of the files made by threads."""
        self._workers = usable_cores()
        self._pool = ThreadPoolExecutor(self._workers)
        self._pending: deque[Future[int]] = deque()
        self._folders: set[Path] = set()

    def put(self, path: Path, data: bytes) -> None:
        """Write a file now."""
        self._make_folder(path)
        path.write_bytes(data)

    def later(self, path: Path, make: Callable[[], bytes]) -> None:
        """Write what ``make`` returns, in a thread."""
        self._make_folder(path)
        self._pending.append(self._pool.submit(lambda: path.write_bytes(make())))
        while len(self._pending) > 4 * self._workers:
            self.nbytes += self._pending.popleft().result()

    def _make_folder(self, path: Path) -> None:
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._pool:
            if error is not None:
                self._pool.shutdown(cancel_futures=True)
                return
            while self._pending:
                self.nbytes += self._pending.popleft().result()
