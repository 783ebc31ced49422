"""Where a store goes: what may be replaced, and how a finished store is moved into its place.

Invariant: at every instant the name ``out`` is what it was before, or the whole new store. A file is renamed over. In a folder
the shards come first, under names of their own content, then the index is renamed over the old one, then shards that it does not
name are removed. Every step can be taken twice, so a move that was cut short is simply made again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Literal

from fastdata.errors import StoreError, UsageError
from fastdata.store.format import END_MAGIC, END_MARK, INDEX_MAGIC, INDEX_NAME, unpack_end_mark
from fastdata.store.journal import JOURNAL, LOCK, is_staging, read_journal, staging_of, sync_folder
from fastdata.store.manifest import Backend
from fastdata.store.shards import NAME as SHARD_NAME

State = Literal["free", "lmdb", "shards", "shards without index", "foreign"]


def backend_of(out: Path) -> Backend:
    """Return the backend that a name asks for: one LMDB file for ``*.lmdb``, else a folder of shards."""
    return "lmdb" if out.suffix == ".lmdb" else "shards"


def resolved(out: str | os.PathLike[str]) -> Path:
    """Follow links, so that what a link points to is replaced and not the link."""
    path = Path(os.path.realpath(out))
    if not path.name:
        raise UsageError(f"out must name a file or folder to be made, got {os.fspath(out)!r}")
    return path


def look_at(out: Path) -> State:
    """Tell what lies at ``out``, from names and magic numbers alone."""
    if not out.exists():
        return "free"
    if out.is_dir():
        names = os.listdir(out)
        if not names:
            return "free"
        if INDEX_NAME in names:
            with open(out / INDEX_NAME, "rb") as index:
                return "shards" if index.read(len(INDEX_MAGIC)) == INDEX_MAGIC else "foreign"
        return "shards without index" if all(SHARD_NAME.fullmatch(name) for name in names) else "foreign"
    if not out.is_file() or out.stat().st_size < END_MARK.size:
        return "foreign"
    with open(out, "rb") as file:
        file.seek(-END_MARK.size, os.SEEK_END)
        return "lmdb" if file.read(len(END_MAGIC)) == END_MAGIC else "foreign"


def check_target(
    out: str | os.PathLike[str], *, overwrite: bool, backend: Backend | None = None, sealed: bool | None = None
) -> None:
    """Refuse a place where a store cannot or must not be written, before anything is done.

    Args:
        out: Where the store shall be.
        overwrite: Whether a store that is there may be replaced.
        backend: What will be written; by the name when ``None``.
        sealed: Whether a finished store only waits to be moved there, so that what is there may be its own first half; looked up
            when ``None``.

    Raises:
        UsageError: Something is there that must not be replaced, or the folder around it is missing.
        PermissionError: The folder around it cannot be written.
    """
    path = resolved(out)
    backend = backend or backend_of(path)
    parent, staging = path.parent, staging_of(path)
    if not parent.is_dir():
        raise UsageError(f"the folder of {path} must exist, got none; make it with: mkdir -p '{parent}'")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the folder of a store must be writable", str(parent))
    if os.path.lexists(staging) and not is_staging(staging):
        raise UsageError(f"{staging} must be free for the unfinished store, got files of something else; move it away")
    if path.is_dir() and path.stat().st_dev != parent.stat().st_dev:
        raise UsageError(f"{path} must not be a mount point, since nothing can be renamed over it; choose a folder below it")
    if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "a folder of shards must be writable", str(path))
    if sealed is None:
        found = read_journal(staging / JOURNAL)
        sealed = not isinstance(found, str | None) and found.seal is not None
    state = look_at(path)
    if state == "free" or (sealed and state in (backend, "shards without index")):
        return
    if state == "foreign":
        raise UsageError(f"{path} must be free or a fastdata store, got something else; choose another name or move it away")
    if backend not in state:
        kind = "a folder of shards" if backend == "shards" else "one LMDB file"
        raise UsageError(f"{path} must be {kind} to be replaced by one, got the other; choose another name or remove it")
    if not overwrite:
        raise UsageError(f"{path} must not exist yet, got a store; use --overwrite (overwrite=True) or choose another name")


def finish(out: Path, staging: Path, seal: dict[str, Any]) -> None:
    """Move a sealed store from its staging folder into place; may be called again after it was cut short.

    Args:
        out: The place, links followed.
        staging: Where the files are, as far as they have not been moved.
        seal: ``backend``, ``uid`` and ``files``, pairs of names in staging and in the store.

    Raises:
        StoreError: A file is in neither place, or what is there is another store.
    """
    if seal["backend"] == "lmdb":
        ((source, _),) = seal["files"]
        if out.is_dir():
            out.rmdir()  # an empty one, as has been checked; else the system refuses
        _move(staging / source, out)
        sync_folder(out.parent)
        _check_uid(out, seal["uid"])
        return
    if not out.is_dir():
        out.mkdir()
        sync_folder(out.parent)
    for source, name in seal["files"]:
        _move(staging / source, out / name)
    sync_folder(out)
    _move(staging / INDEX_NAME, out / INDEX_NAME)
    sync_folder(out)
    _check_uid(out / INDEX_NAME, seal["uid"])
    keep = {name for _, name in seal["files"]}
    for name in sorted(os.listdir(out)):
        if SHARD_NAME.fullmatch(name) and name not in keep:
            (out / name).unlink()
    sync_folder(out)


def _move(source: Path, place: Path) -> None:
    try:
        os.rename(source, place)
    except FileNotFoundError:
        if not place.exists():
            raise StoreError(f"{place}:0: the file must be here or at {source}, got neither; convert the dataset again") from None


def _check_uid(path: Path, uid: str) -> None:
    nbytes = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, nbytes - END_MARK.size))
        mark = unpack_end_mark(file.read(), path, nbytes)
    if mark is None or mark.uid.hex() != uid:
        raise StoreError(f"{path}:{nbytes}: the store must be {uid} now, got another one; convert the dataset again")


def undo(out: Path, seal: dict[str, Any]) -> None:
    """Remove what a move that is given up has already brought, unless the store that is there uses it."""
    if seal["backend"] != "shards" or not out.is_dir():
        return
    keep = shards_in_use(out)
    for _, name in seal["files"]:
        if name not in keep:
            (out / name).unlink(missing_ok=True)
    if not os.listdir(out):
        out.rmdir()


def shards_in_use(out: Path) -> set[str]:
    """Return the names that the index in a folder lists; every file of the folder when the index cannot be read."""
    from fastdata.store.index import Index

    try:
        with Index.open(out / INDEX_NAME) as index:
            return {file.name for file in index.manifest.files}
    except FileNotFoundError:
        return set()
    except StoreError:
        return set(os.listdir(out))


def clear(staging: Path, *, keep_lock: bool) -> None:
    """Remove every file of a staging folder: the journal after all that it speaks of, the lock last; with it, the folder."""
    for name in sorted(set(os.listdir(staging)) - {JOURNAL, LOCK}):
        (staging / name).unlink()
    (staging / JOURNAL).unlink(missing_ok=True)
    if not keep_lock:
        (staging / LOCK).unlink(missing_ok=True)
        staging.rmdir()
