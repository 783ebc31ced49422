"""Open and read a store.

``open_store`` maps every file of the store and reads its head, whatever the number of pictures. ``Store.read`` gives a picture's
bytes as a view of the mapping: no copy, no call into a database, and one way for both backends.

Checked before it is believed: sizes, header, manifest, section table and end mark when the store is opened; a section at its
first use; a record at its first read through this object. So a store that opens is whole, and a flipped bit is an error with file
and offset wherever it lies.

Safe in any number of threads, over fork, and by pickling, which sends the path alone. Views keep the mapping alive: closing a
store under them is safe.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from fastdata.catalog import Catalog, CatalogHead
from fastdata.checksum import crc32c
from fastdata.errors import StoreError, UsageError
from fastdata.labels import Instances
from fastdata.store.format import DAMAGED, ENCODINGS, Manifest, PayloadFile
from fastdata.store.index import Index, MappedFile, index_path

DESCRIPTIONS = (".yaml", ".yml", ".json")
"""Endings of what people hand over in a store's place."""
ROWS_AT_ONCE = 1 << 16
U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


def open_store(path: str | os.PathLike[str], split: str | None = None) -> Store:
    """Open a store.

    Args:
        path: An LMDB file or a folder of shards that ``fastdata convert`` wrote.
        split: Count entries of this split only; of all splits when ``None``.

    Raises:
        FileNotFoundError: Nothing is there.
        UsageError: The store has no such split, or the path is that of a dataset's description.
        StoreError: The store is unfinished, damaged, newer than this version, or not one.
    """
    absolute = Path(os.path.abspath(path))
    if absolute.suffix.lower() in DESCRIPTIONS and absolute.is_file():
        fix = f"make one with: fastdata convert {path} OUT.lmdb"
        raise UsageError(f"{path} must be a store, got a description of a dataset; {fix}")
    return Store(absolute, split)


@final
class Store:
    """A store, opened read-only. Made by :func:`open_store`.

    Entries are counted from the beginning of the opened split; ``entry_range`` says where that is in the catalog, which always
    holds all splits.
    """

    __slots__ = ("_addresses", "_checked", "_files", "_index", "_limits", "catalog", "entry_range", "path", "split")

    def __init__(self, path: Path, split: str | None) -> None:
        self._index = Index.open(index_path(path))
        manifest = self._index.manifest
        self.path = path
        """Absolute."""
        self.split = split
        """Name of the opened split; ``None``: all."""
        self.entry_range = _range_of(manifest, split, path)
        """Entries of the opened split, as numbers in the catalog."""
        self._files = [_map_payload(self._index, file) for file in manifest.files]
        self._limits = [file.payload_nbytes for file in manifest.files]
        self._addresses = np.array([file.data.__array_interface__["data"][0] for file in self._files], np.int64)
        head = CatalogHead(manifest.names, manifest.splits, manifest.keypoints, manifest.counts)
        self.catalog = Catalog(head, self._index.section, (_reopen_catalog, (str(path), manifest.uid)))
        """Everything but the pixels, of all splits."""
        self._checked = np.zeros(manifest.counts.records, np.bool_)
        """Records that have been compared with their checksum; set from any thread, twice at worst."""

    @property
    def manifest(self) -> Manifest:
        """The whole-dataset facts."""
        return self._index.manifest

    @property
    def names(self) -> tuple[str, ...]:
        """Class names by index."""
        return self._index.manifest.names

    def __len__(self) -> int:
        return len(self.entry_range)

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        return f"Store({str(self.path)!r}{split}: {len(self)} entries, {self.manifest.backend}, {self.manifest.codec})"

    def __reduce__(self) -> tuple[Any, tuple[str, str | None, str]]:
        return _reopen, (str(self.path), self.split, self.manifest.uid)

    def entry(self, i: int) -> int:
        """Return the number in the catalog of entry ``i`` of the opened split.

        Raises:
            IndexError: There is none.
        """
        if not 0 <= i < len(self.entry_range):
            raise IndexError(f"entry must be in 0 <= i < {len(self.entry_range)}, got {i}")
        return self.entry_range[i]

    def key(self, i: int) -> str:
        """Return the key of entry ``i``: the picture's path in its dataset."""
        return self.catalog.key(self.entry(i))

    def instances(self, i: int) -> Instances:
        """Return the labels of entry ``i``, in pixels of its rectangle."""
        return self.catalog.instances(self.entry(i))

    def read(self, i: int) -> U8:
        """Return the stored bytes of the picture of entry ``i``, read-only, uncopied.

        Returns:
            (nbytes,) for any encoding. The whole record, even when the entry shows a part of it.

        Raises:
            StoreError: The bytes are damaged.
        """
        return self.read_record(int(self.catalog.entry_record[self.entry(i)]))

    def read_record(self, r: int) -> U8:
        """Return the stored bytes of record ``r``; as :meth:`read`."""
        file, offset, nbytes = self._place(r)
        if not self._checked[r]:
            file.will_need(offset, nbytes)
            self._compare(r)
            self._checked[r] = True
        return file.data[offset : offset + nbytes]

    def records_at(self, records: I64) -> tuple[I64, tuple[U8, ...]]:
        """Return where the bytes of many records lie in memory, at the cost of one.

        Args:
            records: (n,) their numbers. They are not compared with their checksums: see :meth:`unchecked`.

        Returns:
            (n,) addresses, and the arrays that must stay alive while they are used.

        Raises:
            IndexError: There is no such record.
            StoreError: A record must lie in a payload file, and does not.
        """
        files = self._open_files()
        c = self.catalog
        if len(records) and not 0 <= int(records.min()) <= int(records.max()) < c.counts.records:
            raise IndexError(f"record must be in 0 <= r < {c.counts.records}, got {records.min()}..{records.max()}")
        number, offset, nbytes = c.rec_file[records], c.rec_offset[records], c.rec_nbytes[records]
        limits = np.array([*self._limits, -1], np.int64)[np.minimum(number, len(files))]  # -1: no record fits
        wrong = (offset < 0) | (nbytes < 0) | (nbytes > limits) | (offset > limits - nbytes)
        if wrong.any():
            self._place(int(records[np.flatnonzero(wrong)[0]]))  # says what is wrong
        held = tuple(files[k].data for k in np.unique(number).tolist())
        return self._addresses[number] + offset, held

    def unchecked(self, records: I64) -> I64:
        """Return those of some records, ascending and each once, that have not been compared with their checksum."""
        return np.unique(records[~self._checked[records]])

    def prefetch(self, i: int) -> None:
        """Have the system read the picture of entry ``i`` into memory, and do not wait: for a store larger than memory."""
        file, offset, nbytes = self._place(int(self.catalog.entry_record[self.entry(i)]))
        file.will_need(offset, nbytes)

    def image(self, i: int) -> U8:
        """Return the picture of entry ``i``: (C, h, w) of its rectangle; a view where the record is raw."""
        from fastdata.pixels import decode_payload  # brings a decoder, which reading does not need

        e = self.entry(i)
        c = self.catalog
        r = int(c.entry_record[e])
        h, w = c.rec_hw[r].tolist()
        encoding = ENCODINGS[int(c.rec_encoding[r])]
        pixels: U8 = decode_payload(self.read_record(r), encoding, (h, w), int(c.rec_channels[r]))
        x0, y0, x1, y1 = c.entry_rect[e].tolist()
        return pixels[:, y0:y1, x0:x1]

    def check_record(self, r: int) -> None:
        """Compare record ``r`` with its checksum, whether or not that has been done before.

        Raises:
            StoreError: It is damaged.
        """
        self._compare(r)
        self._checked[r] = True

    def check_sections(self) -> None:
        """Compare every section of the index with its checksum.

        Raises:
            StoreError: One is damaged.
        """
        for name in self._index.section_names:
            self._index.check_section(name)

    def check_gaps(self) -> None:
        """Compare all bytes of the payload files that are in no record with their checksum, tree pages and padding included.

        Raises:
            StoreError: They are damaged, or records overlap.
        """
        c = self.catalog
        order = np.lexsort((c.rec_offset, c.rec_file))
        edges = np.searchsorted(c.rec_file[order], np.arange(len(self._files) + 1)).tolist()
        for number, (file, info) in enumerate(zip(self._files, self.manifest.files, strict=True)):
            crc, at, end = 0, 0, info.payload_nbytes
            for first in range(edges[number], edges[number + 1], ROWS_AT_ONCE):
                rows = order[first : min(first + ROWS_AT_ONCE, edges[number + 1])]
                for start, nbytes in zip(c.rec_offset[rows].tolist(), c.rec_nbytes[rows].tolist(), strict=True):
                    if not at <= start <= start + nbytes <= end:
                        place = f"{file.path}:{at}: the next record"
                        raise StoreError(f"{place} must lie from here to {end}, got {start} + {nbytes}")
                    crc = crc32c(file.data[at:start], crc)
                    at = start + nbytes
            crc = crc32c(file.data[at:end], crc)
            if crc != info.gap_crc:
                raise StoreError(
                    f"{file.path}:0: all but the records must have CRC32C {info.gap_crc:08x}, got {crc:08x}; {DAMAGED}"
                )

    def _place(self, r: int) -> tuple[MappedFile, int, int]:
        """Return payload file, offset and length of record ``r``."""
        c = self.catalog
        if not 0 <= r < c.counts.records:
            raise IndexError(f"record must be in 0 <= r < {c.counts.records}, got {r}")
        files = self._open_files()
        number, offset, nbytes = int(c.rec_file[r]), int(c.rec_offset[r]), int(c.rec_nbytes[r])
        if number >= len(files) or not 0 <= offset <= offset + nbytes <= self._limits[number]:
            raise StoreError(f"{self._index.path}:0: record {r} must lie in a payload file, got {offset} + {nbytes} in {number}")
        return files[number], offset, nbytes

    def _open_files(self) -> list[MappedFile]:
        if not self._files:
            raise ValueError(f"the store must be open, got one that was closed: {self.path}")
        return self._files

    def _compare(self, r: int) -> None:
        file, offset, nbytes = self._place(r)
        want, got = int(self.catalog.rec_crc[r]), crc32c(file.data[offset : offset + nbytes])
        if got != want:
            raise StoreError(f"{file.path}:{offset}: record {r} must have CRC32C {want:08x}, got {got:08x}; {DAMAGED}")

    def close(self) -> None:
        """Let the mappings go. Arrays, views and the catalog's columns that somebody holds stay valid."""
        self._files = []
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _range_of(manifest: Manifest, split: str | None, path: Path) -> range:
    if split is None:
        return range(manifest.counts.entries)
    if split not in manifest.splits:
        there = ", ".join(map(repr, manifest.splits)) or "none"
        raise UsageError(f"split must be one of {there}, got {split!r}; {path}")
    return range(*manifest.splits[split])


def _map_payload(index: Index, file: PayloadFile) -> MappedFile:
    """Map a file that holds records."""
    at = f"{index.path}:{index.mark.index_offset}: payload file {file.name!r}"
    if file.name in (".", "..") or set(file.name) & set("/\\\0"):
        raise StoreError(f"{at} must have a plain name, in the folder of the index")
    try:
        mapped = MappedFile(index.path.with_name(file.name), file.file_nbytes or 0) if file.name else index.file
    except (UnicodeEncodeError, OSError) as e:
        raise StoreError(f"{at} must be a file that can be read, got: {e}") from e
    if not 0 <= file.payload_nbytes <= (len(mapped.data) if file.name else index.mark.index_offset):
        raise StoreError(f"{at} must hold its records before anything else, got {file.payload_nbytes} bytes of them")
    return mapped


def _reopen(path: str, split: str | None, uid: str) -> Store:
    """Open a store that another process had open.

    Raises:
        StoreError: Another store has taken its place meanwhile.
    """
    store = open_store(path, split)
    if store.manifest.uid != uid:
        raise StoreError(f"{path}:0: the store must be {uid} still, got {store.manifest.uid}: it was replaced; open it anew")
    return store


def _reopen_catalog(path: str, uid: str) -> Catalog:
    return _reopen(path, None, uid).catalog
