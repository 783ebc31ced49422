"""Pictures that stay in the store: what can be seen of each is gathered and copied to the GPU, batch by batch.

A raw record that has the size of its tile is read where it is, in the page cache, and only the rectangle that the output shows.
Others are decoded or resized first, by the thread that asks, so as many at once as threads ask; then the same rectangle is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.errors import StoreError
from fastdata.render.tiles import BadRecord, load_tiles
from fastdata.residency import Fetched
from fastdata.residency.pinned_ring import Ring
from fastdata.residency.visible import visible_rects
from fastdata.samples import Samples
from fastdata.store.format import ENCODINGS

if TYPE_CHECKING:
    from torch import device as Device

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

RAW = ENCODINGS.index("raw")

DECODED_AT_ONCE = 32
"""Tiles that are decoded before they are copied and let go: 40 MB of 640 x 640, and calls that cost nothing beside decoding."""


class Stream:
    """Source of pictures that are copied to the GPU when a batch wants them.

    The first element of ``Fetched.hold`` is the buffer that was filled, if any was: tell it by ``after(event)`` when the copy has
    been done.

    Args:
        samples: Whose recipes are fetched.
        device: Where they are drawn; of the processor: nothing is page-locked.
    """

    name = "stream"

    def __init__(self, samples: Samples, device: Device) -> None:
        self._store = samples.store
        self._ring = Ring(device)
        self.nbytes_device, self.nbytes_host = 0, 0

    def fetch(self, recipe: Recipe) -> Fetched:
        """Gather what a recipe shows.

        Raises:
            BadRecord: A record is damaged; the message begins with the key of its entry.
        """
        from fastdata.residency.gather import FROM, FROM_LINE, FROM_PLANE, PLANES, TO, TO_LINE, TO_PLANE, gather, table_of

        where = np.zeros((len(recipe.record), 3), np.int64)
        rects = visible_rects(recipe)
        shown = np.flatnonzero(rects[:, 2])
        if not len(shown):
            return Fetched(where)
        shown = shown[np.argsort(recipe.record[shown], kind="stable")]  # neighbours in the store, and what is decoded once
        rects, record = rects[shown], recipe.record[shown]
        planes = self._store.catalog.rec_channels[record].astype(np.int64)
        is_stored = self._is_stored(recipe, shown)
        self._check(recipe, shown[is_stored])
        source, mappings = self._stored(recipe, shown, is_stored)
        table, nbytes = table_of(source, planes, rects)
        buffer = self._ring.take(nbytes)
        self.nbytes_host = self._ring.nbytes
        try:
            block = buffer.tensor.data_ptr()
            table[:, TO] += block
            gather(table[is_stored])
            for part, tiles in self._decoded(recipe, shown, np.flatnonzero(~is_stored)):
                made = np.array([(t.__array_interface__["data"][0], *t.strides[:2]) for t in tiles], np.int64)
                table[part, FROM_PLANE : FROM_LINE + 1] = made[:, 1:]
                table[part, FROM] = made[:, 0] + rects[part, 1] * made[:, 2] + rects[part, 0]
                gather(table[part])
        except BaseException:
            buffer.after(None)
            raise
        where[shown, 0] = table[:, TO] - block - rects[:, 1] * table[:, TO_LINE] - rects[:, 0]
        where[shown, 1] = np.where(table[:, PLANES] == 1, 0, table[:, TO_PLANE])
        where[shown, 2] = table[:, TO_LINE]
        return Fetched(where, buffer.tensor, (buffer, *mappings))

    def close(self) -> None:
        """Let the page-locked memory go, when what is copied from it has been copied."""
        self._ring.close()
        self.nbytes_host = self._ring.nbytes

    def _is_stored(self, recipe: Recipe, tiles: I64) -> Bool:
        """Tell which tiles lie in the store, pixel for pixel: raw, of the tile's size, and as many bytes as that takes."""
        catalog, record = self._store.catalog, recipe.record[tiles]
        hw, source = catalog.rec_hw[record].astype(np.int64), recipe.source_xyxy[tiles].astype(np.int64)
        is_raw = catalog.rec_encoding[record] == RAW
        is_whole = catalog.rec_nbytes[record] == hw.prod(axis=1) * catalog.rec_channels[record]
        is_within = ((source[:, :2] >= 0) & (source[:, 2:] <= hw[:, ::-1])).all(axis=1)
        is_size = (source[:, 2:] - source[:, :2] == recipe.size_hw[tiles, ::-1]).all(axis=1)
        return np.asarray(is_raw & is_whole & is_within & is_size)

    def _stored(self, recipe: Recipe, tiles: I64, is_stored: Bool) -> tuple[I64, tuple[Any, ...]]:
        """Return where each tile begins, from plane to plane and row to row, of those in the store; and what keeps them there."""
        catalog, record = self._store.catalog, recipe.record[tiles[is_stored]]
        address, mappings = self._store.records_at(record)
        height, width = catalog.rec_hw[record].astype(np.int64).T
        x, y = recipe.source_xyxy[tiles[is_stored], :2].astype(np.int64).T
        source = np.zeros((len(tiles), 3), np.int64)
        source[is_stored] = np.stack([address + y * width + x, height * width, width], axis=1)
        return source, mappings

    def _check(self, recipe: Recipe, tiles: I64) -> None:
        """Compare records with their checksums at their first use, as ``Store.read_record`` does."""
        for record in self._store.unchecked(recipe.record[tiles]).tolist():
            try:
                self._store.read_record(record)
            except StoreError as err:
                entry = int(recipe.tile_entry[tiles[recipe.record[tiles] == record][0]])
                message = f"{self._store.catalog.key(entry)}: entry {entry}, record {record} of {self._store.path}: {err}"
                raise BadRecord(message, entry, record) from err

    def _decoded(self, recipe: Recipe, shown: I64, parts: I64) -> Iterator[tuple[I64, list[U8]]]:
        """Load tiles that the store has in another form, some at a time, each record once.

        Args:
            recipe: What they are of.
            shown: Numbers of tiles, by record.
            parts: Which of those are loaded.

        Yields:
            Some of ``parts``, and their pixels.
        """
        record = recipe.record[shown[parts]]
        is_first = np.diff(record, prepend=-1) != 0
        chunk = np.arange(len(parts))[is_first] // DECODED_AT_ONCE  # a record is never torn apart
        chunk = chunk[np.cumsum(is_first) - 1]
        for some in np.split(parts, np.flatnonzero(np.diff(chunk)) + 1) if len(parts) else []:
            of = shown[some]
            part = replace(
                recipe,
                tile_entry=recipe.tile_entry[of],
                record=recipe.record[of],
                source_xyxy=recipe.source_xyxy[of],
                size_hw=recipe.size_hw[of],
                visible_xyxy=recipe.visible_xyxy[of],
            )
            yield some, load_tiles(self._store, part)
