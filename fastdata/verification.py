"""Verify a store: every checksum, every record decoded, every label against its rules; and whether its source has changed since.

A damaged store never raises: everything that can be found is listed, and what a fault makes unreadable is passed over. A store
that does not even open gives one fault. With a source, its labels are read again and compared by the digest of each file, its
pictures by size and time: see ``fastdata.currency``.

The store and the source are only read.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from fastdata.catalog import COLUMNS, Catalog
from fastdata.conversion.estimate import gigabytes
from fastdata.conversion.run import Listener, Progress
from fastdata.currency import LABEL_SECTIONS, Changes, compare, read_again
from fastdata.errors import StoreError
from fastdata.host import usable_cores
from fastdata.invariants import Fault, check_catalog, check_counts, check_keypoints
from fastdata.pixels import decode_payload
from fastdata.sources.scan import SourceOptions
from fastdata.store.format import ENCODINGS
from fastdata.store.read import Store, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_FAULTS = 1000
"""Faults that are listed; the others are counted."""

SHOWN = 40
"""Lines of each kind that a terminal shows."""

RECORDS_AT_ONCE = 64
"""Records that a thread takes at a time."""

UNDER_WAY = 64
"""Tasks that wait or run at a time."""

EXTRA_SECTIONS = (*LABEL_SECTIONS, "problems")
RECORD_COLUMNS = ("rec_file", "rec_offset", "rec_nbytes", "rec_crc", "rec_hw", "rec_channels", "rec_encoding")


In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True)
class Verdict:
    """What came of a verification."""

    path: Path
    faults: list[Fault] = field(default_factory=list)
    faults_not_listed: int = 0
    records: int = 0
    """Compared with their checksums and decoded."""
    images: int = 0
    annotations: int = 0
    nbytes: int = 0
    """Of these records."""
    source: Path | None = None
    """The dataset that it was compared with."""
    changes: Changes = field(default_factory=Changes)
    """What is not as it was in the source."""
    seconds: float = 0.0

    @property
    def changed(self) -> list[str]:
        """Label files and pictures of the source that are not what they were, relative to its root."""
        return self.changes.changed

    @property
    def added(self) -> list[str]:
        """Label files and pictures that the source did not have."""
        return self.changes.added

    @property
    def removed(self) -> list[str]:
        """Label files and pictures that the source does not have any more."""
        return self.changes.removed

    @property
    def ok(self) -> bool:
        """Whether the store is whole and, where a source was given, says what the source says."""
        return not self.faults and not (self.changed or self.added or self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        out = asdict(self)
        changes = out.pop("changes")
        paths = {"path": str(self.path), "source": None if self.source is None else str(self.source)}
        return {"ok": self.ok, **out, **paths, **changes}

    def add(self, faults: Iterable[Fault]) -> None:
        """Keep faults, up to a limit."""
        for fault in faults:
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(fault)
            else:
                self.faults_not_listed += 1


def verify(
    path: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    source_options: SourceOptions | None = None,
    workers: int | None = None,
    listener: Listener | None = None,
) -> Verdict:
    """Verify a store.

    Args:
        path: The store.
        source: The dataset that it was converted from; has any label or picture changed since?
        source_options: How that is read; as at the conversion by default, but for folders that were named then.
        workers: Threads; as many as cores may be used by default.
        listener: Called now and then with the progress.

    Returns:
        The verdict, with everything that was found.

    Raises:
        FileNotFoundError: Nothing is at ``path``.
        UsageError, DataError: ``source`` is not the kind of dataset that the store was made from.
        OSError: A file cannot be read.
    """
    began = time.monotonic()
    verdict = Verdict(Path(path))
    tell = listener or (lambda progress: None)
    try:
        store = open_store(path)
    except StoreError as err:
        verdict.add([_fault("store", err)])
        verdict.seconds = time.monotonic() - began
        return verdict
    with store, ThreadPoolExecutor(workers or usable_cores()) as pool:
        scan = None
        if source is not None:
            verdict.source = Path(source)
            tell(Progress("read", 0, 0, 0, 0))
            scan = read_again(store, Path(source), source_options)  # first, so that wrong usage shows at once
        damaged = _check_store(store, verdict, pool, tell)
        if scan is not None:
            verdict.changes = compare(store, scan, damaged, partial(in_order, pool))
    verdict.seconds = time.monotonic() - began
    return verdict


def _fault(kind: str, err: Exception) -> Fault:
    """Split ``file:offset: what is wrong`` at its first blank."""
    where, found, detail = str(err).partition(": ")
    return Fault(where, kind, detail) if found else Fault("", kind, where)


# The store by itself


def _check_store(store: Store, verdict: Verdict, pool: ThreadPoolExecutor, tell: Listener) -> frozenset[str]:
    """Add what is wrong with an opened store; return the sections that cannot be used."""
    manifest, catalog = store.manifest, store.catalog
    verdict.images, verdict.annotations = manifest.counts.entries, manifest.counts.instances
    damaged: set[str] = set()
    for name in (*COLUMNS, *EXTRA_SECTIONS):
        try:
            catalog.column(name)
        except StoreError as err:
            damaged.add(name)
            verdict.add([_fault("section", err)])
    if not damaged:
        _try(verdict, "section", store.check_sections)  # those of a later version, too
    verdict.add(check_catalog(catalog, frozenset(damaged)))
    verdict.add(check_counts(catalog, manifest.summary))
    if manifest.keypoints is not None:
        verdict.add(check_keypoints(manifest.keypoints))
    if manifest.category_ids and len(manifest.category_ids) != len(manifest.names):
        got = f"{len(manifest.category_ids)} for {len(manifest.names)}"
        verdict.add([Fault("manifest", "catalog", f"category ids must be as many as names, got {got}")])
    if damaged.isdisjoint(RECORD_COLUMNS):
        _try(verdict, "structure", store.check_gaps)
        _check_records(store, verdict, pool, tell)
    return frozenset(damaged)


def _try(verdict: Verdict, kind: str, check: Callable[[], None]) -> None:
    try:
        check()
    except StoreError as err:
        verdict.add([_fault(kind, err)])


def _check_records(store: Store, verdict: Verdict, pool: ThreadPoolExecutor, tell: Listener) -> None:
    """Compare and decode every record in threads; faults come in the order of the records."""
    count = store.catalog.counts.records
    blocks = (range(r, min(r + RECORDS_AT_ONCE, count)) for r in range(0, count, RECORDS_AT_ONCE))
    told = 0.0
    for faults, block, nbytes in in_order(pool, lambda block: _check_block(store, block), blocks):
        verdict.add(faults)
        verdict.records = block.stop
        verdict.nbytes += nbytes
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            tell(Progress("verify", block.stop, count, verdict.nbytes, 0))


def _check_block(store: Store, block: range) -> tuple[list[Fault], range, int]:
    faults, nbytes = [], 0
    for r in block:
        try:
            store.check_record(r)
        except StoreError as err:
            faults.append(_fault("record", err))
            continue
        payload = store.read_record(r)
        nbytes += len(payload)
        detail = _why_undecodable(store.catalog, r, payload)
        if detail:
            faults.append(Fault(f"record {r}", "decode", detail))
    return faults, block, nbytes


def _why_undecodable(catalog: Catalog, r: int, payload: npt.NDArray[np.uint8]) -> str:
    """Return why a record does not decode to the size that it states, "" if it does."""
    encoding, (h, w) = int(catalog.rec_encoding[r]), catalog.rec_hw[r].tolist()
    if encoding >= len(ENCODINGS) or h < 1 or w < 1:
        return ""  # has been told as a fault of the catalog
    try:
        decode_payload(payload, ENCODINGS[encoding], (h, w), int(catalog.rec_channels[r]))
    except Exception as err:  # whatever a decoder makes of bytes that have a checksum and are no picture
        return str(err) or type(err).__name__
    return ""


def in_order(pool: ThreadPoolExecutor, work: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """Yield the results of ``work`` in order, with a bounded number under way."""
    pending: deque[Future[Out]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > UNDER_WAY:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


# For people


def render(verdict: Verdict) -> RenderableType:
    """Return the verdict for a terminal."""
    from rich.console import Group
    from rich.text import Text

    lines = [
        Text(f"{fault.kind}: ", style="red").append(f"{fault.where}: {fault.detail}", style="default")
        for fault in verdict.faults[:SHOWN]
    ]
    hidden = len(verdict.faults[SHOWN:]) + verdict.faults_not_listed
    if hidden:
        lines.append(Text(f"and {hidden:,} more faults; --json lists up to {MAX_FAULTS:,}"))
    for word, files in (("changed", verdict.changed), ("added", verdict.added), ("removed", verdict.removed)):
        lines += [Text(f"{word}: ", style="yellow").append(file, style="default") for file in files[:SHOWN]]
        if len(files) > SHOWN:
            lines.append(Text(f"and {len(files) - SHOWN:,} more {word}; --json lists all"))
    checked = (
        f"{verdict.images:,} images, {verdict.annotations:,} objects, {verdict.records:,} records "
        f"({gigabytes(verdict.nbytes)}) in {verdict.seconds:.1f} s"
    )
    if verdict.faults:
        count = len(verdict.faults) + verdict.faults_not_listed
        lines.append(Text(f"DAMAGED: {count:,} fault{'s' if count > 1 else ''} in {verdict.path}; {checked}", style="bold red"))
    elif not verdict.ok:
        lines.append(Text(f"OUT OF DATE: {verdict.path} is whole, and its source has changed; {checked}", style="bold yellow"))
    else:
        source = ", and what its source says" if verdict.source is not None else ""
        lines.append(Text(f"OK: {verdict.path} is whole{source}; {checked}", style="bold green"))
    return Group(*lines)
