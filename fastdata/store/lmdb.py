"""The LMDB file format, written bottom-up: data pages first, the tree over them at the end, the meta pages last of all.

The file is a finished LMDB database (data version 1, 64-bit, little-endian, 4096-byte pages) that any LMDB tool opens; liblmdb is
not needed to write or to read it. Written this way the bytes depend on the records alone, not on a library's version or on a
guessed map size; a half-written file continues where it was cut; and nothing is written twice::

    page 0, 1     meta pages
    page 2 ...    one overflow run per record: 16-byte page header, payload, zeros up to the page's end
    then          leaf pages (key, length, first page of the run), branch pages level by level, the root last

Invariant: record r has key ``f"{r:010d}"`` and lies at byte 16 of its run, so offset = 16 (mod 4096). Every page but the meta
pages is reached from the root exactly once and no page is free, which is what liblmdb's compacting copy checks.

Structures and limits are those of LMDB 0.9 (``mdb.c``: MDB_page, MDB_node, MDB_db, MDB_meta). Each branch page has at least two
children, as liblmdb asserts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

PAGE_NBYTES: Final = 4096
PAGE_HEADER: Final = struct.Struct("<QHHHH")
"""Page number, pad, flags, then lower and upper bound of the free space; an overflow run has its length in pages there."""
OVERFLOW_HEADER: Final = struct.Struct("<QHHI")
META: Final = struct.Struct("<IIQQ")
"""Magic, version, address, map size; then two databases, the last page and the transaction."""
DATABASE: Final = struct.Struct("<IHHQQQQQ")
"""Pad (the page size, in the first one), flags, depth, branch pages, leaf pages, overflow pages, entries, root."""

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
"""P_BRANCH, P_LEAF, P_OVERFLOW, P_META."""
BIG_DATA: Final = 1
"""F_BIGDATA: the node holds the first page of an overflow run."""
INTEGER_KEY: Final = 8
"""MDB_INTEGERKEY, which the database of free pages always has."""
NO_PAGE: Final = (1 << 64) - 1
"""P_INVALID: the root of an empty tree."""
MAX_RECORD_NBYTES: Final = (1 << 32) - 1
"""A node's length field has 32 bits."""

KEY_DIGITS: Final = 10
LEAF_NODE: Final = np.dtype(
    [("nbytes", "<u4"), ("flags", "<u2"), ("key_nbytes", "<u2"), ("key", "u1", KEY_DIGITS), ("page", "<u8")]
)
BRANCH_NODE: Final = struct.Struct("<IHH")
"""Child page (48 bits: low 32, then high 16) and length of the key, which follows."""
LEAF_FANOUT: Final = (PAGE_NBYTES - PAGE_HEADER.size) // (LEAF_NODE.itemsize + 2)
BRANCH_FANOUT: Final = (PAGE_NBYTES - PAGE_HEADER.size - BRANCH_NODE.size - 2) // (BRANCH_NODE.size + KEY_DIGITS + 2) + 1
"""Nodes that fit on a page beside their two-byte pointers. The first key of a branch page is empty: nothing is below it."""

META_NBYTES: Final = 2 * PAGE_NBYTES

I64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Tree:
    """The size of the tree over R records."""

    entries: int
    level_pages: tuple[int, ...]
    """Pages of each level, leaves first; () without records."""
    first_page: int
    """Number of the first leaf: everything from page 2 up to it belongs to records."""

    @property
    def last_page(self) -> int:
        """The last page of the database, which is the root."""
        return self.first_page + sum(self.level_pages) - 1


def plan_tree(entries: int, first_page: int) -> Tree:
    """Return the tree over this many records, which begins at page ``first_page``."""
    levels: list[int] = []
    below, fanout = entries, LEAF_FANOUT
    while below and (not levels or below > 1):
        levels.append(-(-below // fanout))
        below, fanout = levels[-1], BRANCH_FANOUT
    return Tree(entries, tuple(levels), first_page)


def _starts(items: int, pages: int) -> I64:
    """Return (pages + 1,) first item of each page when items are dealt out evenly, so that no page is nearly empty."""
    return np.arange(pages + 1, dtype=np.int64) * items // max(pages, 1)


def _keys(numbers: I64) -> npt.NDArray[np.uint8]:
    """Return (n, 10) decimal digits in ASCII."""
    powers = 10 ** np.arange(KEY_DIGITS - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _page(number: int, flags: int, node_offsets: npt.NDArray[np.int64], nodes: bytes) -> bytes:
    """Return one page: header, pointers, free space, nodes; the first node lies at the end of the page, as liblmdb fills it."""
    lower = PAGE_HEADER.size + 2 * len(node_offsets)
    upper = PAGE_NBYTES - len(nodes)
    head = PAGE_HEADER.pack(number, 0, flags, lower, upper) + node_offsets.astype("<u2").tobytes()
    return head + bytes(upper - lower) + nodes


def tree_pages(tree: Tree, rec_offset: I64, rec_nbytes: I64) -> Iterator[bytes]:
    """Yield every page of the tree, in the order of their numbers."""
    number = tree.first_page
    if not tree.level_pages:
        return
    first = _starts(tree.entries, tree.level_pages[0])  # first record below each page of the level
    for a, b in pairwise(first.tolist()):
        nodes: npt.NDArray[Any] = np.zeros(b - a, LEAF_NODE)
        nodes["nbytes"] = rec_nbytes[a:b]
        nodes["flags"] = BIG_DATA
        nodes["key_nbytes"] = KEY_DIGITS
        nodes["key"] = _keys(np.arange(a, b, dtype=np.int64))
        nodes["page"] = rec_offset[a:b] // PAGE_NBYTES
        ends = np.arange(1, b - a + 1, dtype=np.int64) * LEAF_NODE.itemsize
        yield _page(number, LEAF, PAGE_NBYTES - ends, nodes[::-1].tobytes())
        number += 1
    for below, here in pairwise(tree.level_pages):
        child = number - below
        deal = _starts(below, here)
        for a, b in pairwise(deal.tolist()):
            keys = [b"", *(row.tobytes() for row in _keys(first[a + 1 : b]))]
            pages = range(child + a, child + b)
            raw = [BRANCH_NODE.pack(p & 0xFFFFFFFF, p >> 32, len(k)) + k for p, k in zip(pages, keys, strict=True)]
            ends = np.cumsum([len(node) for node in raw])
            yield _page(number, BRANCH, PAGE_NBYTES - ends, b"".join(reversed(raw)))
            number += 1
        first = first[deal]


def meta_pages(tree: Tree, map_nbytes: int) -> bytes:
    """Return pages 0 and 1. Both describe the tree; page 1 is the newer.

    Args:
        tree: The finished tree.
        map_nbytes: Size of the whole file. A copy without compaction reads that far, so a smaller map would end too early.
    """
    free = DATABASE.pack(PAGE_NBYTES, INTEGER_KEY, 0, 0, 0, 0, 0, NO_PAGE)
    leaves = tree.level_pages[0] if tree.level_pages else 0
    main = DATABASE.pack(
        0, 0, len(tree.level_pages), sum(tree.level_pages) - leaves, leaves, tree.first_page - 2, tree.entries,
        tree.last_page if tree.level_pages else NO_PAGE,
    )  # fmt: skip
    out = b""
    for transaction in (0, 1):
        page = PAGE_HEADER.pack(transaction, 0, META_PAGE, 0, 0) + META.pack(MAGIC, DATA_VERSION, 0, map_nbytes)
        page += free + main + struct.pack("<QQ", tree.last_page, transaction)
        out += page.ljust(PAGE_NBYTES, b"\0")
    return out


def is_lmdb(head: bytes) -> bool:
    """Tell whether a file that begins with these bytes is an LMDB database, of whichever program."""
    at = PAGE_HEADER.size
    return len(head) >= at + 4 and int.from_bytes(head[at : at + 4], "little") == MAGIC


@final
class LmdbLayout:
    """Where records lie in the one file of an LMDB store."""

    max_record_nbytes = MAX_RECORD_NBYTES

    def start(self, number: int) -> bytes:
        """Return the first bytes of the file: room for the meta pages, which liblmdb refuses as they are."""
        assert number == 0, number
        return bytes(META_NBYTES)

    def frame(self, end: int, nbytes: int) -> bytes:
        """Return what stands between the last record, which ends at ``end``, and the payload of the next one."""
        first = -(-end // PAGE_NBYTES)
        pages = (nbytes + PAGE_HEADER.size - 1) // PAGE_NBYTES + 1
        return bytes(first * PAGE_NBYTES - end) + OVERFLOW_HEADER.pack(first, 0, OVERFLOW, pages)

    def is_full(self, end: int, nbytes: int) -> bool:
        """Tell whether the next record needs another file: never."""
        return False
