"""All pictures of some samples, brought to the form in which they are used and laid one after another into memory that stays.

The memory comes in *chunks*; a picture lies in one of them, its planes and rows adjacent. Chunks are filled *block* by block,
by several threads, in the order of the store: a disk reads ahead, and a record that is shown in several forms is decoded once, or
twice where a block ends between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fastdata.augment.letterbox import letterbox
from fastdata.augment.recipe import Recipe
from fastdata.errors import StoreError
from fastdata.host import usable_cores
from fastdata.prefetch import THREAD_NAME
from fastdata.render.tiles import BadRecord, load_tiles
from fastdata.residency.forms import ENTRY, HEIGHT, RECORD, WIDTH, X0, Forms
from fastdata.samples import Samples
from fastdata.terminal import ticking

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bad = dict[int, str]
"""What is wrong with the record of a picture, by its number."""
Block = tuple[int, int, int]
"""Chunk, first picture, last + 1."""
Target = Callable[[int, int, int], AbstractContextManager[U8]]
"""Called with a chunk, a place in it and a number of bytes; gives memory to fill, and takes it to that place at the end."""

ALIGN_NBYTES = 128
"""Where a picture begins: a line of the GPU's caches, and the most that it asks for at once over PCIe."""
SLACK_NBYTES = 64
"""Behind the last picture of a chunk, so that a wide load of its last pixels stays within."""
BLOCK_NBYTES = (8 << 20) - 1
"""Filled by one thread at a time and copied in one go: seven pictures of 640 x 640, or one that is larger. Well over what a copy
needs to reach the speed of the bus (about 1 MB), and with two for each thread a few hundred MB of page-locked memory; just below
a power of two, to which that is rounded up."""
MOST_THREADS = 16
"""Copying raw pictures keeps the bus busy with half of them; decoding goes on faster with more, staging memory grows too."""
TOLD_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Layout:
    """Where m pictures lie in the chunks."""

    chunk: I64
    """(m,)"""
    start: I64
    """(m,) first byte, counted from the beginning of the chunk."""
    line: I64
    """(m,) bytes from row to row."""
    nbytes: I64
    """(m,)"""
    chunk_nbytes: tuple[int, ...]
    """Of each chunk, slack included."""
    blocks: tuple[Block, ...]

    @property
    def total_nbytes(self) -> int:
        """Bytes of all chunks."""
        return sum(self.chunk_nbytes)


def lay_out(forms: Forms, chunk_nbytes: int | None, row_align_nbytes: int = 1) -> Layout:
    """Place pictures one after another.

    Args:
        forms: Whose pictures.
        chunk_nbytes: Of a chunk at most, unless one picture is larger; ``None``: one chunk.
        row_align_nbytes: Rows begin at multiples of so many bytes; 1: they are adjacent.
    """
    line = -(-forms.rows[:, WIDTH][forms.first] // row_align_nbytes) * row_align_nbytes
    nbytes = forms.planes[forms.first] * forms.rows[:, HEIGHT][forms.first] * line
    room = -(-nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
    end = np.cumsum(room)
    chunk, start, sizes, blocks = np.empty_like(room), end - room, list[int](), list[Block]()
    for number, (a, b) in enumerate(_runs(end, 0, len(room), chunk_nbytes)):
        chunk[a:b] = number
        start[a:b] -= start[a]
        sizes.append(int(start[b - 1] + room[b - 1]) + SLACK_NBYTES)
        blocks += [(number, *run) for run in _runs(end, a, b, BLOCK_NBYTES)]
    return Layout(chunk, start, line, nbytes, tuple(sizes), tuple(blocks))


def _runs(end: I64, first: int, last: int, limit: int | None) -> list[tuple[int, int]]:
    """Cut ``first:last`` into runs of at most ``limit`` bytes, at least one picture each."""
    runs = []
    while first < last:
        begin = int(end[first - 1]) if first else 0
        fits = last if limit is None else int(np.searchsorted(end, begin + limit, "right"))
        runs.append((first, min(max(fits, first + 1), last)))
        first = runs[-1][1]
    return runs


def fill(
    samples: Samples,
    forms: Forms,
    layout: Layout,
    target: Target,
    *,
    verb: str,
    progress: bool = True,
    threads: int | None = None,
) -> Bad:
    """Bring every picture to its place.

    Args:
        samples: Where they are from; their ``on_bad`` says what a damaged record does.
        forms: Of these samples.
        layout: Of these forms.
        target: Where to; called by several threads at once.
        verb: For the display of progress: "uploading".
        progress: Whether to show it.
        threads: ``None``: as many as cores may be used, at most :data:`MOST_THREADS`.

    Returns:
        What was left out, because its record is damaged and the samples are planned without it.

    Raises:
        BadRecord: A record is damaged, and that is not passed over.
    """
    from fastdata.conversion.run import Progress

    job = _Job(samples, forms, layout, target)
    done, nbytes, told = 0, 0, time.monotonic()
    with ExitStack() as stack:
        tell = stack.enter_context(ticking(verb)) if progress else None
        pool = stack.enter_context(ThreadPoolExecutor(threads or min(usable_cores(), MOST_THREADS), THREAD_NAME))
        # After an error the blocks that wait are given up, those in the works are waited for: nobody writes to memory that goes.
        for (_, first, last), block_nbytes in zip(layout.blocks, pool.map(job.load, layout.blocks), strict=True):
            done, nbytes = done + last - first, nbytes + block_nbytes
            if tell is not None and time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                tell(Progress("upload", done, len(forms.nbytes), nbytes, len(job.bad)))
    return job.bad


class _Job:
    """What the threads of an upload share."""

    def __init__(self, samples: Samples, forms: Forms, layout: Layout, target: Target) -> None:
        self._store, self._forms, self._layout, self._target = samples.store, forms, layout, target
        self._passes_over = samples.on_bad == "replan" and samples.augment
        # Any recipe will do: its tiles are exchanged for those of a block.
        self._any = letterbox(forms.rows[:1, ENTRY], samples.store.catalog, imgsz=samples.imgsz)
        self.bad: Bad = {}

    def load(self, block: Block) -> int:
        """Fill one block; return its bytes."""
        chunk, first, last = block
        start, nbytes = self._layout.start[first:last], self._layout.nbytes[first:last]
        begin, end = int(start[0]), int(start[-1] + nbytes[-1])
        with self._target(chunk, begin, end - begin) as memory:
            for k, tile in self._tiles(first, last):
                at, line = int(start[k]) - begin, int(self._layout.line[first + k])
                rows = memory[at : at + int(nbytes[k])].reshape(*tile.shape[:2], line)
                np.copyto(rows[:, :, : tile.shape[2]], tile)
        return end - begin

    def _tiles(self, first: int, last: int) -> list[tuple[int, U8]]:
        """Return the pixels of pictures ``first:last``, with their numbers counted from ``first``; not those of bad records."""
        rows = self._forms.rows[self._forms.first[first:last]]
        left = np.arange(last - first)
        while len(left):
            try:
                return list(zip(left.tolist(), load_tiles(self._store, self._recipe(rows[left])), strict=True))
            except BadRecord as err:
                if not self._passes_over:
                    raise
                is_bad = rows[:, RECORD] == err.record
                self.bad |= {first + k: str(err.__cause__) for k in np.flatnonzero(is_bad).tolist()}
                left = left[~is_bad[left]]
        return []

    def _recipe(self, rows: I64) -> Recipe:
        return replace(
            self._any,
            tile_entry=rows[:, ENTRY],
            record=rows[:, RECORD],
            source_xyxy=rows[:, X0:HEIGHT].astype(np.int32),
            size_hw=rows[:, HEIGHT:].astype(np.int32),
            visible_xyxy=np.tile(np.array([0, 0, 1, 1], np.int32), (len(rows), 1)),
        )


def note_bad(samples: Samples, forms: Forms, bad: Bad) -> None:
    """Tell samples of the records that break their checksum, as if each of their entries had been picked.

    What has the right checksum and is no picture is met when it is drawn, here as in any renderer: then it is planned around.
    """
    for record in np.unique(forms.rows[forms.first[sorted(bad)], RECORD]).tolist():
        try:
            samples.store.check_record(record)
        except StoreError:
            samples.bad.update(forms.rows[forms.rows[:, RECORD] == record, ENTRY].tolist())


class Table:
    """Where every entry's picture is.

    Args:
        samples: Whose recipes are looked up.
        forms: Of these samples.
        layout: Of these forms.
        addresses: Of each chunk.
        bad: Pictures that are not there.
    """

    def __init__(self, samples: Samples, forms: Forms, layout: Layout, addresses: Sequence[int], bad: Bad) -> None:
        self._store, self._forms, self._bad = samples.store, forms, bad
        address = np.asarray(addresses, np.int64)[layout.chunk] + layout.start
        address[list(bad)] = -1
        line = layout.line[forms.picture]
        plane = np.where(forms.planes == 1, 0, forms.rows[:, HEIGHT] * line)
        self._where = np.stack([address[forms.picture], plane, line], axis=1)

    def where(self, recipe: Recipe) -> I64:
        """Return (T, 3) as :class:`fastdata.residency.Fetched` has it.

        Raises:
            BadRecord: A picture that is not there is wanted.
            RuntimeError: The recipe is of other samples.
        """
        row = self._forms.of(recipe)
        where = self._where.take(row, axis=0)
        x0, y0, x1, y1 = recipe.visible_xyxy.T
        where[(x0 >= x1) | (y0 >= y1)] = 0
        if self._bad and (where[:, 0] < 0).any():
            t = int(np.flatnonzero(where[:, 0] < 0)[0])
            entry, record = int(recipe.tile_entry[t]), int(recipe.record[t])
            why = self._bad[int(self._forms.picture[row[t]])]
            key = self._store.catalog.key(entry)
            raise BadRecord(f"{key}: entry {entry}, record {record} of {self._store.path}: {why}", entry, record)
        return where
