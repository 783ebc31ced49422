"""The kernel of ``fastdata.residency.pull``."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc"

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16
"""Rows of a program."""
WORDS = 128
"""Words of four bytes that it reads of each at once: four requests of 128 bytes, the most that one may ask for."""
WARPS = 4
FIELDS = 8
"""int64, of each rectangle: address of the first byte, bytes to the next channel and row; the same three in the copy; words a row,
and rows. Addresses here and there, and both distances, are alike in their last two bits, so that words are words on both sides."""


@triton.jit
def pull_rows(copy, table, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Copy rows ``ROWS * program_id(1)`` and on of rectangle ``program_id(0)``, counted through its channels."""
    fields = table + tl.program_id(0) * 8
    plane, line = tl.load(fields + 1), tl.load(fields + 2)
    rows = tl.load(fields + 7).to(tl.int32)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    end = tl.where(plane == 0, rows, 3 * rows)
    if tl.program_id(1) * ROWS < end:
        channel, y = row // rows, row % rows
        words = tl.load(fields + 6).to(tl.int32)
        source = (tl.load(fields) + channel * plane + y * line) // 4 * 4
        target = (tl.load(fields + 3) + channel * tl.load(fields + 4) + y * tl.load(fields + 5)) // 4
        for first in range(0, words, WORDS):
            word = first + tl.arange(0, WORDS)
            mask = (row < end)[:, None] & (word < words)[None, :]
            value = tl.load((source[:, None] + 4 * word[None, :]).to(tl.pointer_type(tl.int32)), mask=mask)
            tl.store(copy + (target[:, None] + word[None, :]), value, mask=mask)
