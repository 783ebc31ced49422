"""What goes into a store, one picture at a time: a record, and the entries that show it; checked, and as rows of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fastdata.catalog import Counts
from fastdata.checksum import Bytes
from fastdata.errors import UsageError
from fastdata.labels import Instances
from fastdata.store.format import ENCODINGS

Rows = dict[str, Any]
"""What is appended to columns, by their names."""


class LabelFile(Protocol):
    """A file that labels were read from, and what it held."""

    @property
    def path(self) -> str:
        """Relative to the dataset's root."""

    @property
    def digest(self) -> bytes:
        """16 bytes: BLAKE2b of the file."""


@dataclass(frozen=True, slots=True)
class Record:
    """One stored picture."""

    payload: Bytes
    """Its bytes, in one block; they are written from where they lie."""
    encoding: Literal["raw", "jpeg", "webp"]
    """``raw`` is planar: (channels, height, width) uint8."""
    size_hw: tuple[int, int]
    channels: int
    """1 or 3."""
    crc32c: int
    """Of the payload, computed where it was made, so that it protects the way here too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a split: a view of a record, with labels."""

    key: str
    """Path of the picture in its dataset."""
    record: int
    """Number of the record that it shows."""
    original_hw: tuple[int, int]
    """Height and width of the upright picture in the source."""
    instances: Instances
    """In pixels of the rectangle."""
    rect: tuple[int, int, int, int] | None = None
    """x0, y0, x1, y1 in pixels of the record; ``None`` is all of it."""
    image_id: int = -1
    source_nbytes: int = -1
    source_mtime_ns: int = 0


def payload_view(record: Record) -> memoryview:
    """Return the payload's bytes, uncopied.

    Raises:
        UsageError: They do not lie in one block.
    """
    payload = record.payload
    view = payload.data if isinstance(payload, np.ndarray) else memoryview(payload)
    if not view.c_contiguous:
        raise UsageError(f"a payload must lie in one block, got strides {view.strides} for shape {view.shape}")
    return view.cast("B") if view.nbytes else memoryview(b"")


def check_record(record: Record, nbytes: int, most_nbytes: int) -> None:
    """Refuse a record that contradicts itself or that no file of the backend can hold.

    Raises:
        UsageError: It does.
    """
    h, w = record.size_hw
    if record.encoding not in ENCODINGS:
        raise UsageError(f"encoding must be one of {', '.join(ENCODINGS)}, got {record.encoding!r}")
    if record.channels not in (1, 3):
        raise UsageError(f"channels must be 1 or 3, got {record.channels}")
    if h < 1 or w < 1:
        raise UsageError(f"size_hw must be at least 1 x 1, got {record.size_hw}")
    if record.encoding == "raw" and nbytes != record.channels * h * w:
        raise UsageError(f"a raw payload must be {record.channels} x {h} x {w} bytes long, got {nbytes}")
    if nbytes > most_nbytes:
        raise UsageError(f"a record must be at most {most_nbytes} bytes long, got {nbytes}; write shards instead of LMDB")
    if not 0 <= record.crc32c < 1 << 32:
        raise UsageError(f"crc32c must be of 32 bits, got {record.crc32c}")


def entry_rows(entry: Entry, record_hw: tuple[int, int], keypoints: int, counts: Counts, key_nbytes: int) -> Rows:
    """Return what an entry adds to each column.

    Args:
        entry: The entry.
        record_hw: Size of its record.
        keypoints: K.
        counts: What has been written before.
        key_nbytes: Length of all keys before.

    Raises:
        UsageError: The entry contradicts itself or its record.
    """
    h, w = record_hw
    x0, y0, x1, y1 = rect = entry.rect or (0, 0, w, h)
    if not (0 <= x0 < x1 <= w and 0 <= y0 < y1 <= h):
        raise UsageError(f"rect of {entry.key!r} must lie in its record of {w} x {h} pixels, got {rect}")
    try:
        key = entry.key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise UsageError(f"key must be a file name, got {entry.key!r}: {e.reason}") from None
    i, n = entry.instances, len(entry.instances)
    parts = _count(entry, "part_offsets", i.part_offsets, n)
    points = _count(entry, "point_offsets", i.point_offsets, parts)
    rows: Rows = {
        "entry_record": entry.record,
        "entry_rect": rect,
        "entry_original_hw": entry.original_hw,
        "entry_image_id": entry.image_id,
        "entry_source_nbytes": entry.source_nbytes,
        "entry_source_mtime_ns": entry.source_mtime_ns,
        "key_offsets": key_nbytes + len(key),
        "key_bytes": np.frombuffer(key, np.uint8),
        "inst_offsets": counts.instances + n,
        "part_offsets": i.part_offsets[1:] + counts.parts,
        "point_offsets": i.point_offsets[1:] + counts.points,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (n,), "xyxy_px": (n, 4), "kind": (n,), "flags": (n,), "original_id": (n,), "area_px": (n,),
        "points_px": (points, 2), "keypoints_px": (n, keypoints, 3),
    }  # fmt: skip
    for name, shape in shapes.items():
        array: npt.NDArray[Any] = getattr(i, name)
        if array.shape != shape:
            raise UsageError(f"{name} of {entry.key!r} must be of shape {shape}, got {array.shape}")
        rows[name] = array
    return rows


def _count(entry: Entry, name: str, offsets: npt.NDArray[np.int64], items: int) -> int:
    """Return how many things the offsets of ``items`` items count."""
    if offsets.shape != (items + 1,) or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
        raise UsageError(f"{name} of {entry.key!r} must be {items + 1} rising numbers from 0 on, got {offsets}")
    return int(offsets[-1])
