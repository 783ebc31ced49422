"""The pixels of a recipe's tiles: read, decoded, cut out and resized, before any geometry.

Two-stage form: a picture is first brought to the size that the trainers load it at, by their own resize, and only then warped. So
a tile is bit for bit what a trainer warps, whatever the store keeps.

Records of one call are taken in their order in the store, one after another, and what a decoder made of one is let go before the
next: a batch of large photographs needs the memory of one photograph and of its tiles.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.errors import StoreError, UsageError
from fastdata.pixels import decode_payload, resize, to_interleaved, to_planar
from fastdata.store.format import ENCODINGS
from fastdata.store.read import Store

U8 = npt.NDArray[np.uint8]


class BadRecord(StoreError):
    """A record that cannot be drawn: damaged, or not what the catalog says.

    Args:
        message: As of every StoreError.
        entry: Entry of the catalog that was to be drawn; -1 when a torch loader has made the error anew from its text.
        record: The record that it shows; -1 likewise.
    """

    def __init__(self, message: str, entry: int = -1, record: int = -1) -> None:
        super().__init__(message)
        self.entry = entry
        self.record = record

    def __reduce__(self) -> tuple[type[BadRecord], tuple[str, int, int]]:
        return type(self), (str(self), self.entry, self.record)


def load_tiles(store: Store, recipe: Recipe) -> list[U8]:
    """Return the pixels of every tile.

    Args:
        store: Where the records are.
        recipe: Of which ``tile_entry``, ``record``, ``source_xyxy``, ``size_hw`` and ``visible_xyxy`` are used.

    Returns:
        T arrays (C, h, w) of ``size_hw``, to be read only, rows not always adjacent; C is 1 for a gray record. A view of the
        store where the record is raw and has that size; tiles that show the same are the same array. A tile of which nothing is
        visible is not read: (1, 0, 0).

    Raises:
        BadRecord: The bytes of a record are damaged, or are no picture of the stated size.
    """
    nothing: U8 = np.zeros((1, 0, 0), np.uint8)
    tiles = [nothing] * len(recipe.record)
    x0, y0, x1, y1 = recipe.visible_xyxy.T
    seen = np.flatnonzero((x0 < x1) & (y0 < y1))
    by_record = seen[np.argsort(recipe.record[seen], kind="stable")]
    records = recipe.record[by_record]
    # As lists at once: a batch has hundreds of tiles, and a number taken out of an array costs more than a view of a record.
    rows = zip(
        by_record.tolist(),
        records.tolist(),
        recipe.tile_entry[by_record].tolist(),
        store.catalog.rec_hw[records].tolist(),
        store.catalog.rec_channels[records].tolist(),
        store.catalog.rec_encoding[records].tolist(),
        recipe.source_xyxy[by_record].tolist(),
        recipe.size_hw[by_record].tolist(),
        strict=True,
    )
    now, picture = -1, nothing
    made: dict[tuple[int, ...], U8] = {}
    for t, record, entry, stored_hw, channels, encoding, source, size_hw in rows:
        if record != now:
            try:
                picture = decode_payload(store.read_record(record), ENCODINGS[encoding], tuple(stored_hw), channels)
            except StoreError as err:
                # The picture's own name first: it is what a person can look at, or convert anew.
                message = f"{store.catalog.key(entry)}: entry {entry}, record {record} of {store.path}: {err}"
                raise BadRecord(message, entry, record) from err
            now = record
            made.clear()
        form = (*source, *size_hw)
        tile = made.get(form)
        if tile is None:
            tile = made[form] = _resized(picture, *form)
        tiles[t] = tile
    return tiles


def _resized(picture: U8, x0: int, y0: int, x1: int, y1: int, height: int, width: int) -> U8:
    """Return a rectangle of a picture at the size of its tile."""
    cut = picture[:, y0:y1, x0:x1]
    if cut.shape[1:] == (height, width):
        return cut
    # On the interleaved picture, as the trainers do it; one gray plane gives the same numbers as three equal ones.
    interleaved = cut[0] if len(cut) == 1 else to_interleaved(cut)
    return to_planar(resize(interleaved, (height, width), "trainer"))


def check_visible(recipe: Recipe) -> None:
    """Refuse tiles that show more than there is of them: a wrong recipe is an error, never another program's memory.

    Raises:
        UsageError: A tile is such.
    """
    x0, y0, x1, y1 = recipe.visible_xyxy.T
    left, top = recipe.origin_xy.T
    right, bottom = left + recipe.size_hw[:, 1], top + recipe.size_hw[:, 0]
    wrong = (x0 < x1) & (y0 < y1) & ((x0 < left) | (y0 < top) | (x1 > right) | (y1 > bottom))
    if wrong.any():
        t = int(np.flatnonzero(wrong)[0])
        tile = [int(side[t]) for side in (left, top, right, bottom)]
        raise UsageError(f"visible_xyxy of tile {t} must lie within the tile, {tile}, got {recipe.visible_xyxy[t].tolist()}")
