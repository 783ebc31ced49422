"""Write a store: records and entries go in, one after the other; a whole store comes out, or nothing that could be taken for one.

::

    with StoreWriter.begin(out, fingerprint=..., keypoints=K) as writer:
        for each split: writer.begin_split(name)
            for each picture: record = writer.add_record(Record(...)); writer.add_entry(Entry(..., record=record))
            if writer.due: writer.checkpoint({"position": ...})
        writer.publish(manifest, label_files)

Invariant: the published bytes are a function of the calls since the very first beginning. Killed at any instant and begun again
with the same fingerprint, the writer stands at its last checkpoint (``resumed`` is the state given there); fed the rest, it
publishes what an undisturbed run would have. The place of the store holds what it held before until the instant of publication.

Owner: the process that began; a forked child must not use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np

import fastdata
from fastdata.catalog import Counts
from fastdata.errors import UsageError
from fastdata.store.build import build_lmdb, build_shards
from fastdata.store.format import ENCODINGS, VERSION, Manifest
from fastdata.store.journal import JOURNAL, Found, Journal, Lock, read_journal, staging_of, sync_folder
from fastdata.store.lmdb import OVERFLOW_HEADER, LmdbLayout
from fastdata.store.manifest import Backend
from fastdata.store.records import Entry, LabelFile, Record, check_record, entry_rows, payload_view
from fastdata.store.shards import ShardLayout
from fastdata.store.staging import LOG, Staging, log_of
from fastdata.store.target import backend_of, check_target, clear, finish, look_at, resolved, undo

__all__ = ["Entry", "Record", "StoreWriter", "check_target"]

STAGING_VERSION = 1
"""Raised whenever a staging folder of an older version cannot be continued."""

MAX_RECORDS = 1 << 32
"""What the element type of ``entry_record`` counts."""


@final
class StoreWriter:
    """Writes one store. Made by :meth:`begin`; a context manager that abandons what has not been published."""

    def __init__(self, out: Path, backend: Backend, keypoints: int, staging: Staging, checkpoint_nbytes: int, lock: Lock) -> None:
        self.out = out
        """Where the store will be, links followed."""
        self.staging = staging.folder
        """The folder in which it grows; workers may leave files called ``spill-<word>`` there."""
        self.resumed: dict[str, Any] | None = None
        """The state given at the checkpoint from which this run continues; ``None``: it begins at the beginning."""
        self.why_not_resumed: str | None = None
        """Why what an earlier run left was thrown away, if it was."""
        self.records = 0
        self.entries = 0
        self._backend, self._keypoints, self._staging, self._lock = backend, keypoints, staging, lock
        self._checkpoint_nbytes = checkpoint_nbytes
        self._splits: list[tuple[str, int]] = []
        self._counts = Counts()
        self._journal: Journal | None = None
        self._seal: dict[str, Any] | None = None
        self._overwrite = False
        self._has_checkpoint = False
        self._is_done = False
        self._has_failed = False
        self._since_checkpoint = 0
        self._last_hw: tuple[int, int] | None = None

    @classmethod
    def begin(
        cls,
        out: str | os.PathLike[str],
        *,
        fingerprint: str,
        keypoints: int,
        backend: Backend | None = None,
        overwrite: bool = False,
        resume: bool = True,
        checkpoint_nbytes: int = 256 << 20,
        shard_nbytes: int = 4 << 30,
    ) -> Self:
        """Begin a store, or continue the one that an earlier run with the same fingerprint left unfinished.

        Args:
            out: ``*.lmdb`` makes one LMDB file, anything else a folder of shards.
            fingerprint: Names everything that decides the bytes; work under another one is thrown away.
            keypoints: K of every label.
            backend: Instead of going by the name.
            overwrite: Replace a store that is there, at the instant of publication.
            resume: Whether to continue.
            checkpoint_nbytes: After how many bytes of payload ``due`` turns true; does not change what is published.
            shard_nbytes: Where one shard ends and the next begins.

        Raises:
            UsageError: The place must not be replaced, the folder around it is missing, or another process writes there.
            PermissionError: The folder around it cannot be written.
        """
        place = resolved(out)
        backend = backend or backend_of(place)
        for name, value in (("checkpoint_nbytes", checkpoint_nbytes), ("shard_nbytes", shard_nbytes)):
            if value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        check_target(place, overwrite=overwrite, backend=backend)
        folder = staging_of(place)
        lock = Lock.acquire(folder, place)
        staging = Staging(folder, LmdbLayout() if backend == "lmdb" else ShardLayout(shard_nbytes), keypoints)
        writer = cls(place, backend, keypoints, staging, checkpoint_nbytes, lock)
        begun = {
            "staging": STAGING_VERSION,
            "format": list(VERSION),
            "fingerprint": fingerprint,
            "keypoints": keypoints,
            "backend": backend,
            "shard_nbytes": None if backend == "lmdb" else shard_nbytes,
        }
        try:
            writer._start(begun, overwrite=overwrite, resume=resume)
        except BaseException:
            writer.abandon()
            raise
        return writer

    def _start(self, begun: dict[str, Any], *, overwrite: bool, resume: bool) -> None:
        self._overwrite = overwrite
        found = read_journal(self.staging / JOURNAL)
        old = found if isinstance(found, Found) else None
        self._has_checkpoint = old is not None and not old.is_empty
        why = found if isinstance(found, str) else None
        if old is not None:
            why = _why_other(old, begun) if resume else "it was not to be continued"
            why = why or self._restore(old)
        if why is not None and old is not None and old.seal is not None and look_at(self.out) == "shards without index":
            undo(self.out, old.seal)
        # Another process may have published here since the first look; now the lock is held.
        check_target(self.out, overwrite=overwrite, backend=self._backend, sealed=self._seal is not None)
        if old is not None and why is None:
            self._journal = Journal(self.staging / JOURNAL, old.nbytes)
            return
        self.why_not_resumed, self.resumed = why, None
        self.records, self.entries, self._splits, self._counts = 0, 0, [], Counts()
        self._staging.close()
        if old is not None and old.seal is not None:
            undo(self.out, old.seal)
        clear(self.staging, keep_lock=True)
        self._has_checkpoint = False
        self._staging.ends = []
        self._staging.create()
        self._journal = Journal(self.staging / JOURNAL)
        self._journal.append("begin", begun)
        sync_folder(self.staging)
        sync_folder(self.staging.parent)

    def _restore(self, found: Found) -> str | None:
        """Go back to the last checkpoint; return why that cannot be done."""
        if found.is_empty:
            return "it had not come to its first checkpoint"
        point = found.checkpoint
        if point is not None:
            self.resumed = point["state"]
            self.records, self.entries = point["records"], point["entries"]
            self._splits = [(name, start) for name, start in point["splits"]]
            self._counts = Counts(**point["counts"])
        self._seal = found.seal
        return None if self._seal or not point else self._staging.restore(point["staging"])

    @property
    def sealed(self) -> bool:
        """Whether an earlier run was killed between completing the store and moving it into place.

        Then everything is there: records and entries given now are counted and not written, and ``publish`` finishes the move.
        """
        return self._seal is not None

    @property
    def payload_nbytes(self) -> int:
        """Bytes in payload files so far; all of them when the store is sealed."""
        return int(self._seal["payload_nbytes"]) if self._seal else sum(self._staging.ends)

    @property
    def payload_phase(self) -> int:
        """How far into a line of 64 bytes a payload begins in its file; one that begins so in memory is copied faster."""
        return OVERFLOW_HEADER.size if self._backend == "lmdb" else 0

    @property
    def due(self) -> bool:
        """Whether so much has been written since the last checkpoint that another one is worth its time."""
        return self._since_checkpoint >= self._checkpoint_nbytes

    def begin_split(self, name: str) -> None:
        """Begin a split: entries belong to it from now on. Beginning the split that is going on changes nothing.

        Raises:
            UsageError: A split of this name has ended before.
        """
        self._check_usable()
        if self._splits and self._splits[-1][0] == name:
            return
        if any(name == other for other, _ in self._splits):
            raise UsageError(f"splits must be written one after the other, got {name!r} again")
        self._splits.append((name, self.entries))

    def add_record(self, record: Record) -> int:
        """Append a picture.

        Returns:
            Its number, counted from 0.

        Raises:
            UsageError: The record contradicts itself, or is too large for the backend.
            OSError: It could not be written; with a full disk, the message says how much was missing.
        """
        self._check_usable()
        payload = payload_view(record)
        check_record(record, len(payload), self._staging.layout.max_record_nbytes)
        number = self.records
        if number >= MAX_RECORDS:
            raise UsageError(f"records must be at most {MAX_RECORDS}, got one more")
        if self._seal is None:
            with self._writing():
                file, offset = self._staging.append_payload(payload)
                self._staging.append(
                    {
                        "rec_file": file,
                        "rec_offset": offset,
                        "rec_nbytes": len(payload),
                        "rec_crc": record.crc32c,
                        "rec_hw": record.size_hw,
                        "rec_channels": record.channels,
                        "rec_encoding": ENCODINGS.index(record.encoding),
                    }
                )
            self._since_checkpoint += len(payload)
        self.records += 1
        self._last_hw = record.size_hw
        return number

    def add_entry(self, entry: Entry) -> None:
        """Append a line to the split that is going on.

        Raises:
            UsageError: No split has begun, there is no such record, or the labels have another shape than they must.
        """
        self._check_usable()
        if not self._splits:
            raise UsageError("an entry must belong to a split, got none; call begin_split before")
        if not 0 <= entry.record < self.records:
            raise UsageError(f"record must be in 0 <= record < {self.records}, got {entry.record}")
        if self._seal is None:
            is_last = entry.record == self.records - 1 and self._last_hw is not None
            size_hw = self._last_hw if is_last and self._last_hw else self._staging.size_hw(entry.record)
            key_nbytes = self._staging.columns["key_bytes"].nbytes
            rows = entry_rows(entry, size_hw, self._keypoints, self._counts, key_nbytes)
            with self._writing():
                self._staging.append(rows)
            c, i = self._counts, entry.instances
            self._counts = replace(
                c,
                instances=c.instances + len(i),
                parts=c.parts + int(i.part_offsets[-1]),
                points=c.points + int(i.point_offsets[-1]),
            )
        self.entries += 1

    def log(self, line: bytes) -> None:
        """Append one line to the running report, which goes back with everything else when a run is resumed."""
        self._check_usable()
        if self._seal is None:
            with self._writing():
                self._staging.append({LOG: np.frombuffer(line.rstrip(b"\n") + b"\n", np.uint8)})

    def log_path(self) -> Path:
        """Return the file that holds the running report so far."""
        if self._seal is None:
            self._staging.columns[LOG].flush()
        return log_of(self.staging)

    def entries_so_far(self) -> Iterator[tuple[str, int, tuple[int, int], tuple[int, int]]]:
        """Yield key, record, size of the original and size of the record of each entry; nothing when the store is sealed."""
        if self._seal is not None:
            return
        ends, keys, records, originals, sizes = (
            self._staging.columns[name].array()
            for name in ("key_offsets", "key_bytes", "entry_record", "entry_original_hw", "rec_hw")
        )
        for e in range(self.entries):
            key = keys[int(ends[e]) : int(ends[e + 1])].tobytes().decode("utf-8", "surrogateescape")
            (oh, ow), (h, w) = originals[e].tolist(), sizes[int(records[e])].tolist()
            yield key, int(records[e]), (oh, ow), (h, w)

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Make everything so far durable, so that a run that is killed later continues here.

        Args:
            state: Where the caller stands, as JSON; ``resumed`` gives it back.
        """
        self._check_usable()
        if self._seal is not None:
            return
        with self._writing():
            point = {
                "state": state,
                "records": self.records,
                "entries": self.entries,
                "splits": self._splits,
                "counts": asdict(self._counts),
                "staging": self._staging.sync(),
            }
            self._append_journal("checkpoint", point)
        self._since_checkpoint = 0
        self._has_checkpoint = True

    def publish(self, manifest: Manifest, label_files: Iterable[LabelFile] = (), problems: bytes | None = None) -> Path:
        """Complete the store and move it into its place.

        Args:
            manifest: What the caller knows; the writer fills in what it counts (see :class:`Manifest`).
            label_files: Every file that the labels came from.
            problems: The report to keep in the store; the running report when ``None``.

        Returns:
            The place.

        Raises:
            UsageError: Something else has come to lie there meanwhile, or the manifest does not fit what was written.
            OSError: No space. What was checkpointed can still be continued.
        """
        self._check_usable()
        if self._seal is None:
            manifest = self._completed(manifest)
            with self._writing():
                seal = self._build(manifest, label_files, problems)
                check_target(self.out, overwrite=self._overwrite, backend=self._backend, sealed=False)
                self._append_journal("seal", seal)
            self._seal = seal
            self._has_checkpoint = True
        finish(self.out, self.staging, self._seal)
        self._is_done = True
        self._close_files()
        clear(self.staging, keep_lock=False)
        sync_folder(self.staging.parent)
        self._lock.release()
        return self.out

    def _completed(self, manifest: Manifest) -> Manifest:
        count = manifest.keypoints.count if manifest.keypoints else 0
        if count != self._keypoints:
            raise UsageError(f"keypoints of the manifest must be {self._keypoints}, as the store was begun, got {count}")
        stops = [start for _, start in self._splits[1:]] + [self.entries]
        return replace(
            manifest,
            writer=manifest.writer or f"fastdata {fastdata.__version__}",
            backend=self._backend,
            splits={name: (start, stop) for (name, start), stop in zip(self._splits, stops, strict=False)},
            counts=replace(self._counts, records=self.records, entries=self.entries),
        )

    def _build(self, manifest: Manifest, label_files: Iterable[LabelFile], problems: bytes | None) -> dict[str, Any]:
        columns = dict(self._staging.columns)
        columns["label_file_offsets"].append(0)
        for file in label_files:
            if len(file.digest) != 16:
                raise UsageError(f"digest of {file.path} must be 16 bytes long, got {len(file.digest)}")
            name = np.frombuffer(bytearray(file.path, "utf-8", "surrogateescape"), np.uint8)
            columns["label_file_names"].append(name)
            columns["label_file_offsets"].append(columns["label_file_names"].nbytes)
            columns["label_file_digests"].append(np.frombuffer(file.digest, np.uint8))
        if problems is None:
            columns["problems"] = columns[LOG]
        elif problems:
            columns["problems"].append(np.frombuffer(problems, np.uint8))
        s = self._staging
        s.sync_payload()
        if self._backend == "lmdb":
            seal = build_lmdb(manifest, columns, s.layout, s.payload_paths[0], s.ends[0])
        else:
            seal = build_shards(manifest, columns, s.layout, s.payload_paths, s.ends)
        sync_folder(self.staging)
        return seal | {"payload_nbytes": sum(s.ends)}

    def _append_journal(self, kind: str, row: dict[str, Any]) -> None:
        assert self._journal is not None
        self._journal.append(kind, row)

    def _check_usable(self) -> None:
        if self._is_done:
            raise UsageError(f"a writer must not be used after publication, got one of {self.out}")
        if self._has_failed:
            raise UsageError(f"a writer must not be used after an error, got one of {self.out}; begin again, it continues")
        if not self._lock.is_held:
            raise UsageError(f"a writer must be open, and in the process that began it, got another of {self.out}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Columns may be of different lengths after an error in here, so nothing may follow it."""
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    def abandon(self) -> None:
        """Stop without publishing. What was checkpointed stays and can be continued; without a checkpoint, nothing stays."""
        if not self._lock.is_held:
            return
        self._close_files()
        if not self._has_checkpoint:
            clear(self.staging, keep_lock=False)
        self._lock.release()

    def _close_files(self) -> None:
        self._staging.close()
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abandon()


def _why_other(found: Found, begun: dict[str, Any]) -> str | None:
    """Return why an earlier run's work is not of the store that is begun now."""
    if found.begin.get("fingerprint") != begun["fingerprint"]:
        return "its fingerprint differs: the source or the options have changed"
    for name, value in begun.items():
        if found.begin.get(name) != value:
            return f"its {name} was {found.begin.get(name)}, not {value}"
    return None
