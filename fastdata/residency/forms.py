"""In which form each picture is used: from catalog and imgsz alone, so it can be brought to that form once and kept.

The *form* of an entry is its record, the rectangle of it, and the size that this is resized to. Every recipe of some samples
shows an entry in one form: that of ``fastdata.augment.layout.place``, which training and validation share. Entries of the same
form share one *picture*. Letters: n entries, m pictures, T tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata.augment.draws import plain
from fastdata.augment.layout import place
from fastdata.augment.recipe import Recipe
from fastdata.samples import Samples

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

ENTRY, RECORD, X0, Y0, X1, Y1, HEIGHT, WIDTH = range(8)
"""Columns of :attr:`Forms.rows`."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of all entries that samples may show."""

    rows: I64
    """(n, 8) entry, ascending; record; rectangle of it, x0 y0 x1 y1; height and width that it is brought to."""
    planes: I64
    """(n,) 3, or 1 for a gray record."""
    picture: I64
    """(n,) which picture shows each entry; they are numbered in the order of the store."""
    first: I64
    """(m,) a row of each picture."""
    nbytes: I64
    """(m,) of each picture: planes * height * width."""
    row_of: npt.NDArray[np.int32]
    """Row of each entry, counted from the first one; -1 for an entry that is not in use."""

    def of(self, recipe: Recipe) -> I64:
        """Return the (T,) row of each tile's entry.

        Raises:
            RuntimeError: A tile is not in the form of its entry. A recipe of these samples has none.
        """
        row: I64 = self.row_of.take(recipe.tile_entry - self.rows[0, ENTRY], mode="clip")
        got = np.empty((len(row), 8), np.int64)
        got[:, ENTRY], got[:, RECORD] = recipe.tile_entry, recipe.record
        got[:, X0:HEIGHT], got[:, HEIGHT:] = recipe.source_xyxy, recipe.size_hw
        wrong = self.rows.take(row, axis=0, mode="wrap") != got  # of an entry that is not in use, the entry is another one
        if wrong.any():
            t = int(np.flatnonzero(wrong.any(axis=1))[0])
            known = self.rows[self.rows[:, ENTRY] == got[t, ENTRY]].tolist()
            must = f"must be {known[0]}" if known else "must be of an entry in use"
            raise RuntimeError(
                f"tile {t} (entry, record, x0, y0, x1, y1, height, width) {must}, got {got[t].tolist()}: the recipe is of other "
                f"samples than those that are kept"
            )
        return row


def forms(samples: Samples) -> Forms:
    """Return the form of every entry in the pool of some samples."""
    catalog = samples.store.catalog
    entry = np.asarray(samples.pool, np.int64)
    tiles = place(plain(entry), catalog, samples.imgsz)
    rows = np.column_stack([entry, tiles.record, tiles.source_xyxy.astype(np.int64), tiles.size_hw])
    planes = catalog.rec_channels[tiles.record].astype(np.int64)

    order = np.lexsort(rows[:, :ENTRY:-1].T)  # by record first: the last key counts most
    ranked = rows[order, RECORD:]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    picture = np.empty(len(rows), np.int64)
    picture[order] = np.cumsum(is_first) - 1
    first = order[is_first]

    row_of = np.full(int(entry[-1] - entry[0]) + 1, -1, np.int32)
    row_of[entry - entry[0]] = np.arange(len(entry))
    nbytes = planes[first] * rows[first, HEIGHT] * rows[first, WIDTH]
    return Forms(rows, planes, picture, first, nbytes, row_of)
