"""From staged columns to an index, in one pass and in pieces: no column is ever in memory as a whole.

All sizes and checksums are known before the first byte is written, since columns carry their own sum. Each is compared again with
the bytes that go into the index, so a column that rotted in between is an error and not a store.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastdata.checksum import crc32c
from fastdata.errors import StoreError
from fastdata.store.format import (
    ALIGN_NBYTES,
    END_MARK,
    ENTRY,
    INDEX_NAME,
    PAGE_NBYTES,
    SECTIONS,
    VERSION,
    EndMark,
    Header,
    Manifest,
    PayloadFile,
    Section,
    aligned,
    pack_end_mark,
    pack_header,
    pack_table,
    padded_crc,
    place,
    row_shape,
)
from fastdata.store.journal import write_at
from fastdata.store.lmdb import meta_pages, plan_tree, tree_pages
from fastdata.store.shards import shard_name
from fastdata.store.staging import Layout, StagedColumn

Columns = Mapping[str, StagedColumn]

ROWS_AT_ONCE = 1 << 16
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blob:
    """An index that is ready to be written."""

    manifest: Manifest
    text: bytes
    """The manifest as it is stored."""
    sections: tuple[Section, ...]
    table_offset: int

    @property
    def nbytes(self) -> int:
        """From the header to the end mark."""
        return self.table_offset + ENTRY.size * len(self.sections) + END_MARK.size


def plan_blob(manifest: Manifest, columns: Columns) -> Blob:
    """Lay an index out. The manifest has everything but its ``uid``, which is computed here.

    The uid is BLAKE2b over the manifest without it, the section table and the checksum of every record. The length of the
    manifest does not depend on it, nor on ``gap_crc``, so a plan with other values for these has the same size.
    """
    counts = manifest.counts
    lengths = {"R": counts.records, "N": counts.entries, "M": counts.instances, "P": counts.parts, "V": counts.points}
    keypoints = manifest.keypoints.count if manifest.keypoints else 0
    sections = []
    for spec in SECTIONS:
        letter, _, more = spec.rows.partition("+")
        rows = len(columns[spec.name]) if letter == "*" else lengths[letter] + int(more or 0)
        section = Section(spec.name, spec.dtypes[0], (rows, *row_shape(spec, keypoints)), columns[spec.name].crc)
        assert section.nbytes == columns[spec.name].nbytes, (section, columns[spec.name].nbytes)
        sections.append(replace(section, crc=padded_crc(section.crc, section.nbytes)))
    placed, table_offset = place(len(replace(manifest, uid="0" * 16).encode(ALIGN_NBYTES)), sections)
    token = hashlib.blake2b(replace(manifest, uid="").encode() + pack_table(placed), digest_size=8)
    for chunk in columns["rec_crc"].chunks():
        token.update(chunk)
    manifest = replace(manifest, uid=token.hexdigest())
    return Blob(manifest, manifest.encode(ALIGN_NBYTES), placed, table_offset)


def write_blob(blob: Blob, columns: Columns, fd: int, at: int, path: Path) -> None:
    """Write an index at offset ``at``, which becomes the end of the file.

    Raises:
        OSError: No space.
        StoreError: A column is not what was appended to it.
    """
    table = pack_table(blob.sections)
    header = pack_header(
        Header(
            version=VERSION,
            index_nbytes=blob.nbytes,
            manifest_nbytes=len(blob.text),
            table_offset=blob.table_offset,
            sections=len(blob.sections),
            manifest_crc=crc32c(blob.text),
            table_crc=crc32c(table),
        )
    )
    os.ftruncate(fd, at)
    write_at(fd, [header, blob.text], at, path)
    for section in blob.sections:
        here, crc = at + section.offset, 0
        padding = bytes(section.padded_nbytes - section.nbytes)
        for chunk in chain(columns[section.name].chunks(), [padding]):
            write_at(fd, [chunk], here, path)
            here += len(chunk)
            crc = crc32c(chunk, crc)
        if crc != section.crc or here != at + section.end:
            source = columns[section.name].path
            raise StoreError(f"{source}:0: column must have CRC32C {section.crc:08x}, got {crc:08x}; the disk has changed it")
    mark = EndMark(
        version=VERSION,
        index_offset=at,
        index_nbytes=blob.nbytes,
        file_nbytes=at + blob.nbytes,
        uid=bytes.fromhex(blob.manifest.uid),
        header_crc=int.from_bytes(header[-4:], "little"),
    )
    write_at(fd, [table, pack_end_mark(mark)], at + blob.table_offset, path)


def build_lmdb(manifest: Manifest, columns: Columns, layout: Layout, payload: Path, end: int) -> dict[str, object]:
    """Complete the one file of an LMDB store: tree, index, and at last the meta pages.

    Args:
        manifest: Without ``files`` and ``uid``.
        columns: Every section.
        layout: Of this backend.
        payload: The file that holds the records.
        end: Where the last of them ends.

    Returns:
        The seal: what remains to be moved.
    """
    records = manifest.counts.records
    tree = plan_tree(records, aligned(end, PAGE_NBYTES) // PAGE_NBYTES)
    at = (tree.last_page + 1) * PAGE_NBYTES
    draft = plan_blob(replace(manifest, files=(PayloadFile("", at, 0),)), columns)
    meta = meta_pages(tree, aligned(at + draft.nbytes, PAGE_NBYTES))
    rec_offset, rec_nbytes = columns["rec_offset"].array(), columns["rec_nbytes"].array()
    crc = _frames_crc(layout, rec_offset, rec_nbytes, len(meta), crc32c(meta))
    fd = os.open(payload, os.O_RDWR | os.O_CLOEXEC)
    try:
        here = end
        for page in chain([bytes(-end % PAGE_NBYTES)], tree_pages(tree, rec_offset, rec_nbytes)):
            write_at(fd, [page], here, payload)
            here += len(page)
            crc = crc32c(page, crc)
        assert here == at, (here, at)
        blob = plan_blob(replace(manifest, files=(PayloadFile("", at, crc),)), columns)
        assert blob.nbytes == draft.nbytes
        write_blob(blob, columns, fd, at, payload)
        write_at(fd, [meta], 0, payload)
        os.fsync(fd)
    finally:
        os.close(fd)
    return {"backend": "lmdb", "uid": blob.manifest.uid, "files": [(payload.name, "")]}


def build_shards(
    manifest: Manifest, columns: Columns, layout: Layout, payloads: Sequence[Path], ends: Sequence[int]
) -> dict[str, object]:
    """Write the index of a folder of shards into the folder that holds their payload files.

    Args:
        manifest: Without ``files`` and ``uid``.
        columns: Every section.
        layout: Of this backend.
        payloads: The payload files, at least one.
        ends: Where the last record of each ends.

    Returns:
        The seal: what remains to be moved.
    """
    rec_file, rec_offset, rec_nbytes, rec_crc = (
        columns[name].array() for name in ("rec_file", "rec_offset", "rec_nbytes", "rec_crc")
    )
    edges = np.searchsorted(rec_file, np.arange(len(ends) + 1, dtype=rec_file.dtype)).tolist()
    files = []
    for number, (a, b) in enumerate(pairwise(edges)):
        if a == b:
            continue  # no record at all: the store needs no shard
        start = layout.start(number)
        crc = _frames_crc(layout, rec_offset[a:b], rec_nbytes[a:b], len(start), crc32c(start))
        name = shard_name(number, rec_offset[a:b], rec_nbytes[a:b], rec_crc[a:b])
        files.append(PayloadFile(name, ends[number], crc, ends[number]))
    blob = plan_blob(replace(manifest, files=tuple(files)), columns)
    path = payloads[0].with_name(INDEX_NAME)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        write_blob(blob, columns, fd, 0, path)
        os.fsync(fd)
    finally:
        os.close(fd)
    moves = [(payload.name, file.name) for payload, file in zip(payloads, files, strict=False)]
    return {"backend": "shards", "uid": blob.manifest.uid, "files": moves}


def _frames_crc(layout: Layout, rec_offset: I64, rec_nbytes: I64, end: int, crc: int) -> int:
    """Continue a checksum over everything between records that lie one after the other from ``end`` on."""
    for first in range(0, len(rec_offset), ROWS_AT_ONCE):
        block = slice(first, first + ROWS_AT_ONCE)
        for offset, nbytes in zip(rec_offset[block].tolist(), rec_nbytes[block].tolist(), strict=True):
            frame = layout.frame(end, nbytes)
            assert end + len(frame) == offset, (end, len(frame), offset)
            crc = crc32c(frame, crc)
            end = offset + nbytes
    return crc
