"""The index of a store: its fixed structures as bytes. ``docs/format.md`` is the specification; this file follows it.

::

    header (64) | manifest | section | section | ... | section table (64 each) | end mark (64)

All numbers are little-endian. Offsets are relative to the header unless they say ``file``. The header lies at a multiple of
:data:`PAGE_NBYTES` of its file, every structure at a multiple of :data:`ALIGN_NBYTES`, and the end mark ends the file. Padding is
zero and is summed with what it follows, so every byte of an index is under a checksum.

Everything here is pure: bytes in, values out. Errors name the file and the offset.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastdata.catalog import Counts
from fastdata.checksum import crc32c, crc32c_zeros
from fastdata.errors import StoreError
from fastdata.store.manifest import Manifest as Manifest
from fastdata.store.manifest import PayloadFile as PayloadFile

VERSION = (1, 0)
"""Major, minor. A reader refuses a larger major, and ignores what it does not know of a larger minor."""

INDEX_MAGIC = b"\x89FDX\r\n\x1a\n"
END_MAGIC = b"\x89FDE\r\n\x1a\n"
"""As in PNG: a byte above 127 and line ends of both kinds show a transfer that took the file for text."""

INDEX_NAME = "index.fastdata"
"""The index of a folder of shards."""

PARTIAL = ".partial"
"""What the name of a store is followed by while it is being written, beside the place where it will be."""

ALIGN_NBYTES = 64
PAGE_NBYTES = 4096

HEADER = struct.Struct("<8sHHIQQQIII8xI")
END_MARK = struct.Struct("<8sHHIQQQ8sI8xI")
ENTRY = struct.Struct("<24s3sBIQQQII")
assert HEADER.size == END_MARK.size == ENTRY.size == ALIGN_NBYTES

ENCODINGS: tuple[Literal["raw", "jpeg", "webp"], ...] = ("raw", "jpeg", "webp")
"""What ``rec_encoding`` counts."""

ITEM_NBYTES = {dtype: int(dtype[2]) for dtype in "|u1 |i1 <u2 <i2 <f2 <u4 <i4 <f4 <u8 <i8 <f8".split()}
"""Every element type that a section of any version 1.x may have, as NumPy writes it."""

DAMAGED = "the file is damaged: take it from a backup, or convert the dataset again"


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """What a section must look like."""

    name: str
    dtypes: tuple[str, ...]
    """Allowed element types; this version writes the first."""
    row_shape: tuple[int | str, ...]
    """Shape of a row; "K" is the number of keypoints."""
    rows: str
    """Number of rows: a letter of ``fastdata.catalog``, plus one for offsets; "*" is free."""


SECTIONS = tuple(
    SectionSpec(name, tuple(dtypes.split()), row_shape, rows)
    for name, dtypes, row_shape, rows in (
        ("rec_file", "<u2 <u4", (), "R"),
        ("rec_offset", "<i8", (), "R"),
        ("rec_nbytes", "<i8", (), "R"),
        ("rec_crc", "<u4", (), "R"),
        ("rec_hw", "<i4", (2,), "R"),
        ("rec_channels", "|u1", (), "R"),
        ("rec_encoding", "|u1", (), "R"),
        ("entry_record", "<u4 <i8", (), "N"),
        ("entry_rect", "<i4", (4,), "N"),
        ("entry_original_hw", "<i4", (2,), "N"),
        ("entry_image_id", "<i8", (), "N"),
        ("entry_source_nbytes", "<i8", (), "N"),
        ("entry_source_mtime_ns", "<i8", (), "N"),
        ("key_offsets", "<i8", (), "N+1"),
        ("key_bytes", "|u1", (), "*"),
        ("inst_offsets", "<i8", (), "N+1"),
        ("cls", "<i4", (), "M"),
        ("xyxy_px", "<f4", (4,), "M"),
        ("kind", "|u1", (), "M"),
        ("flags", "|u1", (), "M"),
        ("original_id", "<i8", (), "M"),
        ("area_px", "<f4", (), "M"),
        ("part_offsets", "<i8", (), "M+1"),
        ("point_offsets", "<i8", (), "P+1"),
        ("points_px", "<f4", (2,), "V"),
        ("keypoints_px", "<f4", ("K", 3), "M"),
        ("label_file_offsets", "<i8", (), "*"),
        ("label_file_names", "|u1", (), "*"),
        ("label_file_digests", "|u1", (16,), "*"),
        ("problems", "|u1", (), "*"),
    )
)
"""Every section of version 1, in the order in which it is written."""


def row_shape(spec: SectionSpec, keypoints: int) -> tuple[int, ...]:
    """Return the shape of one row for K = ``keypoints``."""
    return tuple(keypoints if n == "K" else int(n) for n in spec.row_shape)


@dataclass(frozen=True, slots=True)
class Section:
    """One named array of an index."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    crc: int
    """Over the array and its padding."""
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the array, without padding."""
        return ITEM_NBYTES[self.dtype] * math.prod(self.shape)

    @property
    def padded_nbytes(self) -> int:
        """Bytes of the array and its padding."""
        return aligned(self.nbytes)

    @property
    def end(self) -> int:
        """First byte after the padding."""
        return self.offset + self.padded_nbytes


@dataclass(frozen=True, slots=True)
class Header:
    """The first 64 bytes of an index."""

    version: tuple[int, int]
    index_nbytes: int
    """From the first byte of the header to the last of the end mark."""
    manifest_nbytes: int
    table_offset: int
    sections: int
    manifest_crc: int
    table_crc: int
    crc: int = 0
    """Of the header itself, over the bytes before it."""


@dataclass(frozen=True, slots=True)
class EndMark:
    """The last 64 bytes of the file that holds an index; it is found from the end."""

    version: tuple[int, int]
    index_offset: int
    """Of the header in the file."""
    index_nbytes: int
    file_nbytes: int
    uid: bytes
    header_crc: int


def aligned(nbytes: int, to: int = ALIGN_NBYTES) -> int:
    """Return the smallest multiple of ``to`` that is not below ``nbytes``."""
    return -(-nbytes // to) * to


def padded_crc(crc: int, nbytes: int) -> int:
    """Continue the checksum of an array over its padding."""
    return crc32c_zeros(aligned(nbytes) - nbytes, crc)


def place(manifest_nbytes: int, sections: Iterable[Section]) -> tuple[tuple[Section, ...], int]:
    """Lay sections one after the other behind the manifest.

    Returns:
        The sections with their offsets, and the offset of the section table.
    """
    at = HEADER.size + aligned(manifest_nbytes)
    placed = []
    for s in sections:
        placed.append(Section(s.name, s.dtype, s.shape, s.crc, at))
        at = placed[-1].end
    return tuple(placed), at


def pack_header(header: Header) -> bytes:
    """Return the 64 bytes, with their checksum."""
    h = header
    raw = HEADER.pack(
        INDEX_MAGIC, *h.version, HEADER.size, h.index_nbytes, h.manifest_nbytes, h.table_offset, h.sections, h.manifest_crc,
        h.table_crc, 0,
    )  # fmt: skip
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")


def pack_table(sections: Sequence[Section]) -> bytes:
    """Return the section table."""
    rows = []
    for s in sections:
        dims = (*s.shape, 0, 0)[:3]
        rows.append(ENTRY.pack(s.name.encode(), s.dtype.encode(), len(s.shape), s.crc, s.offset, s.nbytes, *dims))
    return b"".join(rows)


def pack_end_mark(mark: EndMark) -> bytes:
    """Return the 64 bytes, with their checksum."""
    m = mark
    raw = END_MARK.pack(
        END_MAGIC, *m.version, END_MARK.size, m.index_offset, m.index_nbytes, m.file_nbytes, m.uid, m.header_crc, 0
    )  # fmt: skip
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")


def _refuse_newer(version: tuple[int, int], path: Path, at: int) -> None:
    if version[0] > VERSION[0]:
        ours, theirs = (".".join(map(str, v)) for v in (VERSION, version))
        raise StoreError(
            f"{path}:{at}: format version must be at most {ours}, got {theirs}; update with: pip install -U fastdata-yolo"
        )


def _check_crc(raw: bytes, what: str, path: Path, at: int) -> int:
    want, got = int.from_bytes(raw[-4:], "little"), crc32c(raw[:-4])
    if want != got:
        raise StoreError(f"{path}:{at}: {what} must have CRC32C {want:08x}, got {got:08x}; {DAMAGED}")
    return want


def unpack_end_mark(raw: bytes, path: Path, file_nbytes: int) -> EndMark | None:
    """Read the last 64 bytes of a file of ``file_nbytes``.

    Returns:
        The mark, or ``None`` when these bytes are not one.

    Raises:
        StoreError: The mark is damaged, newer, or contradicts the size of the file.
    """
    at = file_nbytes - END_MARK.size
    if not raw.startswith(END_MAGIC):
        return None
    _check_crc(raw, "end mark", path, at)
    _, major, minor, _, offset, nbytes, total, uid, header_crc, _ = END_MARK.unpack(raw)
    _refuse_newer((major, minor), path, at)
    if total != file_nbytes:
        raise StoreError(f"{path}:{at}: the file must be {total} bytes long, got {file_nbytes}; {DAMAGED}")
    if offset % PAGE_NBYTES or offset + nbytes != total or nbytes < HEADER.size + END_MARK.size:
        raise StoreError(f"{path}:{at}: the index must end the file, got {nbytes} bytes at {offset}; {DAMAGED}")
    return EndMark((major, minor), offset, nbytes, total, uid, header_crc)


def unpack_header(raw: bytes, path: Path, mark: EndMark) -> Header:
    """Read the header that an end mark points to.

    Raises:
        StoreError: It is damaged, newer, or not the header of this end mark.
    """
    at = mark.index_offset
    if not raw.startswith(INDEX_MAGIC):
        raise StoreError(f"{path}:{at}: an index must begin with {INDEX_MAGIC!r}, got {raw[:8]!r}; {DAMAGED}")
    crc = _check_crc(raw, "header", path, at)
    _, major, minor, _, nbytes, manifest_nbytes, table_offset, sections, manifest_crc, table_crc, _ = HEADER.unpack(raw)
    _refuse_newer((major, minor), path, at)
    if nbytes != mark.index_nbytes or crc != mark.header_crc or (major, minor) != mark.version:
        raise StoreError(f"{path}:{at}: header and end mark must be of one index, got two; {DAMAGED}")
    header = Header((major, minor), nbytes, manifest_nbytes, table_offset, sections, manifest_crc, table_crc, crc)
    if (
        HEADER.size + manifest_nbytes > table_offset
        or table_offset % ALIGN_NBYTES
        or table_offset + sections * ENTRY.size + END_MARK.size != nbytes
    ):
        raise StoreError(f"{path}:{at}: the parts of an index must fill it, got {header}; {DAMAGED}")
    return header


def unpack_table(raw: bytes, path: Path, at: int, header: Header) -> dict[str, Section]:
    """Read the section table, whose checksum has been compared, at file offset ``at``.

    Raises:
        StoreError: A row is not of this format, or lies outside the index.
    """
    found: dict[str, Section] = {}
    end = HEADER.size + aligned(header.manifest_nbytes)
    for k in range(header.sections):
        raw_name, raw_dtype, ndim, crc, offset, nbytes, *dims = ENTRY.unpack_from(raw, k * ENTRY.size)
        name, dtype = (text.rstrip(b"\0").decode("ascii", "replace") for text in (raw_name, raw_dtype))
        where = f"{path}:{at + k * ENTRY.size}: section {name!r}"
        if dtype not in ITEM_NBYTES or not 1 <= ndim <= 3 or name in found:
            raise StoreError(f"{where} must be one array of 1 to 3 axes of a known type, got {ndim} axes of {dtype!r}")
        section = Section(name, dtype, tuple(dims[:ndim]), crc, offset)
        if section.nbytes != nbytes or offset != end or section.end > header.table_offset:
            raise StoreError(f"{where} must have {section.nbytes} bytes from {end} on, got {nbytes} from {offset} on")
        end = section.end
        found[name] = section
    if end != header.table_offset:
        raise StoreError(f"{path}:{at}: the sections must fill the index up to {header.table_offset}, got {end}")
    return found


def check_sections(found: dict[str, Section], counts: Counts, keypoints: int, path: Path, at: int) -> None:
    """Compare the sections with what this version needs; the others belong to a later one and are left alone.

    Raises:
        StoreError: A section is missing or of another shape or type.
    """
    lengths = {"R": counts.records, "N": counts.entries, "M": counts.instances, "P": counts.parts, "V": counts.points}
    for spec in SECTIONS:
        section = found.get(spec.name)
        if section is None:
            raise StoreError(f"{path}:{at}: section {spec.name} must be there, got {', '.join(found) or 'none'}")
        letter, _, more = spec.rows.partition("+")
        rows = section.shape[0] if letter == "*" else lengths[letter] + int(more or 0)
        want = (rows, *row_shape(spec, keypoints))
        if section.shape != want or section.dtype not in spec.dtypes:
            raise StoreError(
                f"{path}:{at}: section {spec.name} must be {' or '.join(spec.dtypes)} of shape {want}, "
                f"got {section.dtype} of shape {section.shape}"
            )
