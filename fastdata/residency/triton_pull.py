"""The kernel of ``fastdata.residency.pull``."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16
"""Rows of a program."""
WORDS = 128
"""Words of four bytes that it reads of each at once: 16 bytes for each thread of a warp, which ask for 512 in a row together."""
WARPS = 4
FIELDS = 7
"""int64, of each rectangle, all but the last in units of 16 bytes: address of the first byte, distance to the next channel and
row; place in the copy, distance there to the next channel; length of a row, which is the distance to the next one there; rows."""


@triton.jit
def pull_rows(copy, table, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Copy rows ``ROWS * program_id(1)`` and on of rectangle ``program_id(0)``, counted through its channels."""
    fields = table + tl.program_id(0) * 7
    plane, line = tl.load(fields + 1), tl.load(fields + 2)
    rows = tl.load(fields + 6).to(tl.int32)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    end = tl.where(plane == 0, rows, 3 * rows)
    if tl.program_id(1) * ROWS < end:
        channel, y = row // rows, row % rows
        length = tl.load(fields + 5)
        words = 4 * length.to(tl.int32)
        source = (tl.load(fields) + channel * plane + y * line) * 16
        target = (tl.load(fields + 3) + channel * tl.load(fields + 4) + y * length) * 4
        pointer = tl.multiple_of(source.to(tl.pointer_type(tl.int32)), 16)
        for first in range(0, words, WORDS):
            word = first + tl.arange(0, WORDS)
            mask = (row < end)[:, None] & (word < words)[None, :]
            value = tl.load(pointer[:, None] + word[None, :], mask=mask)
            tl.store(copy + (target[:, None] + word[None, :]), value, mask=mask)
