"""Stores made from a trainer's ``data=``: converted once, kept in a cache folder, used again while the source is unchanged.

One store for each split, task and picture size, in ``<cache>/<name of the data.yaml>-<digest of where the data lie>/``, beside
the ``data.yaml`` that it was read from (the trainer's own, with every path absolute). Unchanged means what ``fastdata verify
--source`` means: the same label files by content, the same pictures by size and time, and by content where only the time
differs. A changed source is converted again over the old store, so the cache holds one version of each.

Two processes that want the same store do not convert it twice: the second waits for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.conversion.options import ConvertOptions
from fastdata.currency import compare
from fastdata.errors import DataError, StoreError, UsageError
from fastdata.host import usable_cores
from fastdata.sources.detect import read
from fastdata.sources.scan import SourceOptions, Task
from fastdata.store.read import open_store
from fastdata.store.target import look_at
from fastdata.terminal import say, ticking, warn
from fastdata.verification import in_order

YAML_KEYS = ("kpt_shape", "flip_idx", "kpt_names")
"""What a data.yaml says about the labels beside the names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One split of a dataset, as the trainer has resolved it."""

    title: str
    """How messages call the dataset: the name of its data.yaml."""
    root: str
    """Its folder, absolute."""
    split: str
    places: tuple[str, ...]
    """Folders and list files of the split, absolute."""
    names: tuple[str, ...]
    said: Mapping[str, Any]
    """What else its data.yaml says about the labels, see :data:`YAML_KEYS`."""
    task: Task
    imgsz: int
    """Long side of the stored pictures."""


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the cache: the one given, else ``fastdata`` in the user's (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    if given is not None:
        return Path(os.path.abspath(given))
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification: a relative path is to be ignored.
    return Path(home if os.path.isabs(home) else Path.home() / ".cache") / "fastdata"


def place_of(wanted: Wanted, cache: Path) -> Path:
    """Return where the store of a split lies, or will lie."""
    where = json.dumps([wanted.root, wanted.places]).encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(where, digest_size=4).hexdigest()
    return cache / f"{Path(wanted.title).stem}-{digest}" / f"{wanted.split}-{wanted.task}-{wanted.imgsz}.lmdb"


def cached_store(wanted: Wanted, cache: Path, *, quiet: bool = False) -> Path:
    """Return the store of a split, converted now unless that has been done and the source has not changed since.

    Args:
        wanted: The split.
        cache: The folder, see :func:`cache_folder`; is made.
        quiet: Say nothing when it is there already.

    Raises:
        UsageError: The cache folder cannot be used.
        DataError: The dataset is misread; starts with ``file:line``.
        OSError: No space, no permission.
    """
    out = place_of(wanted, cache)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise UsageError(
            f"the cache folder must be writable, got {cache}: {err}; give another one with cache=, or a store with store="
        ) from err
    source = _write_yaml(wanted, out)
    if _is_current(out, source, wanted):
        if not quiet:
            say(f"fastdata: {wanted.split} of {wanted.title} is read from {out}, converted before and unchanged since")
        return out
    with _one_at_a_time(out.with_suffix(".lock")):
        if not _is_current(out, source, wanted):  # another process may have made it meanwhile
            _convert(wanted, source, out)
    return out


def _write_yaml(wanted: Wanted, out: Path) -> Path:
    """Write the data.yaml of one split with absolute paths, as JSON, which is YAML; not again where it says so already."""
    path = out.with_suffix(".yaml")
    content = {"path": wanted.root, wanted.split: list(wanted.places), "names": list(wanted.names)}
    text = json.dumps(content | {key: wanted.said[key] for key in YAML_KEYS if wanted.said.get(key)}, indent=1)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    return path


def _options(wanted: Wanted) -> ConvertOptions:
    source = SourceOptions(splits=(wanted.split,), task=wanted.task)
    return ConvertOptions(source=source, kind="yolo", imgsz=wanted.imgsz)


def _is_current(out: Path, source: Path, wanted: Wanted) -> bool:
    """Tell whether the store is there and says what the source says now."""
    if not out.exists():
        return False
    try:
        with open_store(out) as store:
            scan = read(source, SourceOptions(splits=(wanted.split,), task=wanted.task, on_error="skip"), "yolo")
            if store.manifest.names != scan.names or store.manifest.task != scan.task:
                return False
            with ThreadPoolExecutor(usable_cores()) as pool:
                changes = compare(store, scan, frozenset(), partial(in_order, pool))
    except (StoreError, DataError):  # damaged, or of another version: make it anew, and report the source's fault in doing so
        return False
    return not (changes.changed or changes.added or changes.removed)


def _convert(wanted: Wanted, source: Path, out: Path) -> None:
    from fastdata.conversion.run import convert

    why = "the source has changed" if out.exists() else "once"
    if look_at(out) == "foreign":  # a store of ours that was cut short: no other file has this name, in this folder
        out.unlink()
    say(f"fastdata: converting {wanted.split} of {wanted.title} into {out} ({why}); it will be used again while nothing changes")
    with ticking(f"converting {wanted.split}") as ticker:
        done = convert(source, out, _options(wanted), overwrite=True, listener=ticker)
    for text in done.warnings:
        warn(f"{wanted.title}, {wanted.split}: {text}")
    say(
        f"fastdata: {wanted.split} of {wanted.title} took {done.seconds:.1f} s: {done.tally.stored:,} images, "
        f"{done.store_nbytes / 1e9:.2f} GB as {done.codec}"
    )
    if done.worth_a_report:
        say(f"every skipped image and changed label: fastdata info {out} --problems")


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait for the other processes that convert the same; the lock goes with the process, however it ends."""
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
