"""Rows of different lengths as one flat array with offsets: row i owns elements ``offsets[i]:offsets[i + 1]``.

All work is done for all rows at once. Rows may be empty; offsets begin at 0 unless said otherwise. What comes out for a row
depends on that row alone, bit for bit, so a batch can be cut anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


def offsets_of(counts: npt.NDArray[Any]) -> I64:
    """Return the (n + 1,) offsets of rows of (n,) lengths."""
    out = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=out[1:])
    return out


def ranges(first: npt.NDArray[Any], last: npt.NDArray[Any]) -> I64:
    """Return the indices of many ranges ``first[i]:last[i]``, one after the other; a range may be empty, not negative."""
    counts = np.asarray(last, np.int64) - first
    offsets = offsets_of(counts)
    out: I64 = np.arange(offsets[-1])
    out += (first - offsets[:-1]).repeat(counts)
    return out


def owners(offsets: I64) -> I64:
    """Return for each element the number of the row that owns it."""
    out: I64 = np.arange(len(offsets) - 1).repeat(offsets[1:] - offsets[:-1])
    return out


def successors(offsets: I64) -> I64:
    """Return for each element the index of the next one of its row, and for the last one the first: rows as closed rings."""
    out: I64 = np.arange(1, offsets[-1] + 1)
    is_full = offsets[1:] > offsets[:-1]
    out[offsets[1:][is_full] - 1] = offsets[:-1][is_full]
    return out


def gather(rows: npt.NDArray[Any], offsets: I64) -> tuple[I64, I64]:
    """Choose rows.

    Args:
        rows: (m,) numbers of rows, in any order and as often as wanted, or (n,) bool.
        offsets: (n + 1,); need not begin at 0.

    Returns:
        Indices of the elements of these rows, and the (m + 1,) offsets that they have as rows of their own.
    """
    if rows.dtype == np.bool_:
        rows = np.flatnonzero(rows)
    first, last = offsets[rows], offsets[rows + 1]
    return ranges(first, last), offsets_of(last - first)


def gather_nested(rows: npt.NDArray[Any], outer: I64, inner: I64) -> tuple[I64, I64, I64]:
    """Choose rows of two levels, as objects of rings of points.

    Args:
        rows: (m,) numbers of outer rows, or (n,) bool.
        outer: (n + 1,) offsets into the inner rows.
        inner: (p + 1,) offsets into the elements.

    Returns:
        Indices of the elements, outer offsets, inner offsets of what was chosen.
    """
    inner_rows, outer_offsets = gather(rows, outer)
    elements, inner_offsets = gather(inner_rows, inner)
    return elements, outer_offsets, inner_offsets


def offsets_kept(is_kept: Bool, offsets: I64) -> I64:
    """Return the offsets of the same rows after only the elements in ``is_kept`` were left in the flat array."""
    return offsets_of(is_kept)[offsets]


def row_min(values: F64, offsets: I64, empty: float = np.inf) -> F64:
    """Return the least value of each row: (V, ...) → (n, ...), ``empty`` for a row without any."""
    return _reduced(np.minimum, values, offsets, empty)


def row_max(values: F64, offsets: I64, empty: float = -np.inf) -> F64:
    """Return the greatest value of each row: (V, ...) → (n, ...), ``empty`` for a row without any."""
    return _reduced(np.maximum, values, offsets, empty)


def row_sum(values: F64, offsets: I64) -> F64:
    """Return the sum of each row: (V, ...) → (n, ...)."""
    return _reduced(np.add, values, offsets, 0.0)


def _reduced(ufunc: np.ufunc, values: F64, offsets: I64, empty: float) -> F64:
    out = np.full((len(offsets) - 1, *values.shape[1:]), empty)
    is_full = offsets[1:] > offsets[:-1]
    if is_full.any():
        # reduceat gives an element, not nothing, for an empty row: full rows only. Each then ends where the next one begins.
        out[is_full] = ufunc.reduceat(values[: offsets[-1]], offsets[:-1][is_full], axis=0)
    return out
