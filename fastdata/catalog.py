"""Everything about a dataset but its pixels, as flat arrays with offsets.

Letters: R records (stored pictures), N entries (what a split lists), M instances (labelled objects), P parts (rings), V points,
K keypoints per object. Invariants, by construction of the offsets::

    entry e  = rectangle entry_rect[e] of record entry_record[e]
    entry e  owns instances inst_offsets[e] : inst_offsets[e + 1]
    object i owns parts     part_offsets[i] : part_offsets[i + 1]
    part p   owns points    point_offsets[p] : point_offsets[p + 1]
    split s  is the range   splits[s][0] : splits[s][1]  of entries

An entry is a *view*: usually a whole record, so tiles, subsets and folds need no second copy of the pixels. Coordinates are pixel
edges (see ``fastdata.boxes``) of the entry's rectangle.

A column is fetched at its first use and stays mapped: no Python object per image exists, and opening costs the same for any
number of images. Arrays are read-only, and each keeps its own mapping alive. Columns of a store are checked against their
checksum at that first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastdata.labels import Instances

Load = Callable[[str], npt.NDArray[Any]]
"""Gives the column of a name; called once per name."""

Reopen = tuple[Callable[..., "Catalog"], tuple[Any, ...]]
"""A function and its arguments."""

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Keypoints:
    """What the K keypoints of an object are."""

    count: int
    """K, at least 1."""
    names: tuple[str, ...] = ()
    """K names, or none."""
    flip_idx: tuple[int, ...] = ()
    """For each keypoint the one that it becomes under a left-right mirror; () when unknown."""
    skeleton: tuple[tuple[int, int], ...] = ()
    """Pairs of keypoints (from 0) that a drawing joins."""
    dims: int = 3
    """2 or 3 columns per keypoint in the published rows."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How long the columns are."""

    records: int = 0
    entries: int = 0
    instances: int = 0
    parts: int = 0
    points: int = 0


@dataclass(frozen=True, slots=True)
class CatalogHead:
    """The small, whole-dataset facts of a catalog."""

    names: tuple[str, ...] = ()
    """Class names by index."""
    splits: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    """Range of entries of each split, in order."""
    keypoints: Keypoints | None = None
    counts: Counts = field(default_factory=Counts)


class Catalog:
    """Read-only columns of a dataset.

    Args:
        head: Names, splits, keypoints, counts.
        load: Fetches (and checks) one column.
        reopen: How another process gets this catalog: a function and its arguments, sent instead of the arrays. Without it the
            arrays themselves are sent.
    """

    __slots__ = ("_columns", "_load", "_reopen", "counts", "keypoints", "names", "splits")

    def __init__(self, head: CatalogHead, load: Load, reopen: Reopen | None = None) -> None:
        self.names = head.names
        self.splits = head.splits
        self.keypoints = head.keypoints
        self.counts = head.counts
        self._load = load
        self._reopen = reopen
        self._columns: dict[str, npt.NDArray[Any]] = {}

    @classmethod
    def from_columns(cls, head: CatalogHead, columns: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return a catalog of arrays in memory, keyed by the names of the attributes below."""
        frozen = {name: np.asarray(column).view() for name, column in columns.items()}
        for column in frozen.values():
            column.flags.writeable = False
        return cls(head, frozen.__getitem__)

    def __len__(self) -> int:
        return self.counts.entries

    def __repr__(self) -> str:
        c = self.counts
        return f"Catalog({c.entries} entries, {c.records} records, {c.instances} instances, {len(self.names)} classes)"

    def __reduce__(self) -> Reopen:
        if self._reopen is not None:
            return self._reopen
        head = CatalogHead(self.names, dict(self.splits), self.keypoints, self.counts)
        return type(self).from_columns, (head, {name: self.column(name) for name in COLUMNS})

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return the column called ``name``: the attributes below, and in a store every other section of its index."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._load(name)
        return found

    # Records

    @property
    def rec_file(self) -> npt.NDArray[np.uint16]:
        """(R,) payload file of each record, as an index into the manifest's files."""
        return self.column("rec_file")

    @property
    def rec_offset(self) -> I64:
        """(R,) first byte of the payload in its file."""
        return self.column("rec_offset")

    @property
    def rec_nbytes(self) -> I64:
        """(R,) length of the payload."""
        return self.column("rec_nbytes")

    @property
    def rec_crc(self) -> U32:
        """(R,) CRC32C of the payload."""
        return self.column("rec_crc")

    @property
    def rec_hw(self) -> I32:
        """(R, 2) height and width of the stored picture."""
        return self.column("rec_hw")

    @property
    def rec_channels(self) -> U8:
        """(R,) 1 or 3."""
        return self.column("rec_channels")

    @property
    def rec_encoding(self) -> U8:
        """(R,) 0 raw planar uint8 (C, H, W), 1 JPEG, 2 WebP."""
        return self.column("rec_encoding")

    # Entries

    @property
    def entry_record(self) -> U32:
        """(N,) record that each entry shows."""
        return self.column("entry_record")

    @property
    def entry_rect(self) -> I32:
        """(N, 4) x0, y0, x1, y1: the part of the record that the entry shows, in pixels of the record."""
        return self.column("entry_rect")

    @property
    def entry_original_hw(self) -> I32:
        """(N, 2) height and width of the upright picture in the source."""
        return self.column("entry_original_hw")

    @property
    def entry_image_id(self) -> I64:
        """(N,) id that the dataset gives the picture, -1 where it gives none."""
        return self.column("entry_image_id")

    @property
    def entry_source_nbytes(self) -> I64:
        """(N,) size of the source file at conversion, -1 when unknown."""
        return self.column("entry_source_nbytes")

    @property
    def entry_source_mtime_ns(self) -> I64:
        """(N,) modification time of the source file at conversion, 0 when unknown."""
        return self.column("entry_source_mtime_ns")

    @property
    def key_offsets(self) -> I64:
        """(N + 1,) where each key begins in ``key_bytes``."""
        return self.column("key_offsets")

    @property
    def key_bytes(self) -> U8:
        """All keys, one after the other, UTF-8 with surrogateescape; see :meth:`key`."""
        return self.column("key_bytes")

    @property
    def inst_offsets(self) -> I64:
        """(N + 1,) first instance of each entry."""
        return self.column("inst_offsets")

    # Instances

    @property
    def cls(self) -> I32:
        """(M,) class index."""
        return self.column("cls")

    @property
    def xyxy_px(self) -> F32:
        """(M, 4) box in pixels of the entry's rectangle."""
        return self.column("xyxy_px")

    @property
    def kind(self) -> U8:
        """(M,) BOX, POLYGON, OBB or MASK of ``fastdata.labels``."""
        return self.column("kind")

    @property
    def flags(self) -> U8:
        """(M,) bits CROWD, DIFFICULT, TRUNCATED of ``fastdata.labels``."""
        return self.column("flags")

    @property
    def original_id(self) -> I64:
        """(M,) annotation id, line or object number in the source."""
        return self.column("original_id")

    @property
    def area_px(self) -> F32:
        """(M,) published area in pixels of the record, NaN where the dataset gives none."""
        return self.column("area_px")

    @property
    def part_offsets(self) -> I64:
        """(M + 1,) first part of each instance."""
        return self.column("part_offsets")

    @property
    def point_offsets(self) -> I64:
        """(P + 1,) first point of each part."""
        return self.column("point_offsets")

    @property
    def points_px(self) -> F32:
        """(V, 2) outline points in pixels of the entry's rectangle."""
        return self.column("points_px")

    @property
    def keypoints_px(self) -> F32:
        """(M, K, 3) x, y, visibility in pixels of the entry's rectangle."""
        return self.column("keypoints_px")

    # One entry

    def key(self, e: int) -> str:
        """Return the key of entry ``e``: the picture's path in its dataset. ``os.fsencode`` gives back the very bytes."""
        first, last = self._range("key_offsets", e)
        return self.column("key_bytes")[first:last].tobytes().decode("utf-8", "surrogateescape")

    def keys(self, entries: I64) -> list[str]:
        """Return the keys of entries; as :meth:`key`, fifteen times faster for a batch.

        Raises:
            IndexError: There is no such entry.
        """
        if len(entries) and not 0 <= int(entries.min()) <= int(entries.max()) < self.counts.entries:
            raise IndexError(f"entry must be in 0 <= e < {self.counts.entries}, got {int(entries.min())}..{int(entries.max())}")
        offsets, stored = self.column("key_offsets"), memoryview(self.column("key_bytes").data)
        ranges = zip(offsets[entries].tolist(), offsets[entries + 1].tolist(), strict=True)
        return [str(stored[first:last], "utf-8", "surrogateescape") for first, last in ranges]

    def size_hw(self, e: int) -> tuple[int, int]:
        """Return height and width of entry ``e``."""
        x0, y0, x1, y1 = self.column("entry_rect")[self._entry(e)].tolist()
        return y1 - y0, x1 - x0

    def instances(self, e: int) -> Instances:
        """Return the labels of entry ``e``: views of the columns, with offsets that begin at 0."""
        i, j = self._range("inst_offsets", e)
        parts = self.column("part_offsets")[i : j + 1]
        p, q = int(parts[0]), int(parts[-1])
        points = self.column("point_offsets")[p : q + 1]
        u, v = int(points[0]), int(points[-1])
        return Instances(
            cls=self.column("cls")[i:j],
            xyxy_px=self.column("xyxy_px")[i:j],
            kind=self.column("kind")[i:j],
            flags=self.column("flags")[i:j],
            original_id=self.column("original_id")[i:j],
            area_px=self.column("area_px")[i:j],
            part_offsets=parts - p,
            point_offsets=points - u,
            points_px=self.column("points_px")[u:v],
            keypoints_px=self.column("keypoints_px")[i:j],
        )

    def _entry(self, e: int) -> int:
        if not 0 <= e < self.counts.entries:
            raise IndexError(f"entry must be in 0 <= e < {self.counts.entries}, got {e}")
        return e

    def _range(self, offsets: str, e: int) -> tuple[int, int]:
        first, last = self.column(offsets)[self._entry(e) : e + 2].tolist()
        return first, last


COLUMNS = tuple(name for name, member in vars(Catalog).items() if isinstance(member, property))
"""Names of all columns, in the order of the class."""
