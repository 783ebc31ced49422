"""A scan under way whose classes are names: what the readers of Pascal VOC and DOTA collect before they know every class.

A class gets its index when the last label file has been read (names sorted), so rows wait in spooled columns with a provisional
class, ``class index = remap[provisional]``, and go to the :class:`RowTable` in blocks at the end.

Invariant: ``scan.rows_in == rows in the table + scan.rows_dropped``. Owner: the reader that made it, for the time of one call.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastdata.errors import DataError, UsageError
from fastdata.labels import Rows
from fastdata.problems import FATAL, Problem
from fastdata.sources.files import digest_bytes, stat_image
from fastdata.sources.scan import LabelFile, RowTable, Scan, SourceOptions, Task
from fastdata.sources.yolo_paths import split_of
from fastdata.spool import Column

BLOCK_ROWS = 1 << 14
"""Rows that are held as Python numbers before they are spooled, and rows per block on the way into the table."""

ONE_CLASS = "object"
"""Name of the only class under ``single_cls``, where the user gives none."""

SPLIT_FOLDERS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test", "testing": "test",
    "trainval": "trainval",
}  # fmt: skip
"""Folder names, in lower case, that say which split the files below them belong to."""

_SPLIT_ORDER = {"train": 0, "val": 1, "trainval": 2, "test": 3}


def in_split_order(splits: set[str]) -> tuple[str, ...]:
    """Return split names as train, val, trainval, test, then the others by name."""
    return tuple(sorted(splits, key=lambda s: (_SPLIT_ORDER.get(s, len(_SPLIT_ORDER)), s)))


def split_of_folder(name: str) -> str | None:
    """Return the split that a folder's name stands for (valid → val, train2017 → train), None where it says nothing."""
    return SPLIT_FOLDERS.get(name.lower()) or split_of(name)


def given_folder(folder: Path, option: str) -> str:
    """Return a folder that the user names as an absolute path.

    Raises:
        UsageError: There is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{option} must be an existing folder, got {folder}")
    return os.path.abspath(folder)


def choose_splits(found: tuple[str, ...], wanted: tuple[str, ...] | None, root: Path) -> tuple[str, ...]:
    """Return the splits to read: those wanted, in that order, else all that were found. ``valid`` may be asked for ``val``.

    Raises:
        UsageError: A wanted split does not exist, or comes twice, or there is none.
    """
    if wanted is None:
        return found
    if not wanted:
        raise UsageError(f"splits must name at least one of {', '.join(found)} in {root}, got none")
    chosen = tuple(split if split in found else split_of_folder(split) or split for split in wanted)
    for at, split in enumerate(chosen):
        if split not in found:
            raise UsageError(f"split must be one of {', '.join(found)} in {root}, got {wanted[at]!r}")
        if split in chosen[:at]:
            raise UsageError(f"splits must differ, got {split!r} twice")
    return chosen


def below(root: str | Path, path: str) -> str:
    """Return ``path`` relative to ``root``: "" for the root itself, with ``..`` where it lies elsewhere. Both absolute.

    Never absolute: what a store says must not depend on where the dataset and its labels lie together.
    """
    top = os.fspath(root)
    if path == top:
        return ""
    top = top if top.endswith(os.sep) else top + os.sep
    return path[len(top) :] if path.startswith(top) else os.path.relpath(path, top)


def is_elsewhere(name: str) -> bool:
    """Tell whether a path that :func:`below` gave leads out of the root."""
    return name == ".." or name.startswith("../")


def decimal(text: str) -> float | None:
    """Return the number that a text is, None where it is none.

    Python would also take digits of any script, and underscores between them: typing errors in a label.
    """
    if not text.isascii() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


class Classes:
    """Class names as they turn up, each with a provisional index.

    Args:
        options: ``names`` closes the list and fixes its order; ``single_cls`` makes all names one.
    """

    def __init__(self, options: SourceOptions) -> None:
        given = options.names
        if given == ():
            raise UsageError("names must hold at least one name, got none")
        for at, name in enumerate(given or ()):
            if name in (given or ())[:at]:
                raise UsageError(f"names must differ, got {name!r} twice")
        self.single = options.single_cls
        self.closed = given is not None and not self.single
        self._one = given[0] if given is not None and len(given) == 1 else ONE_CLASS
        self._index: dict[str, int] = {name: i for i, name in enumerate(given)} if given is not None and self.closed else {}

    def index(self, name: str) -> int | None:
        """Return the provisional index of a name, None for no name and where the list is closed and has no such name."""
        if self.single:
            return 0
        if self.closed or not name:
            return self._index.get(name)
        return self._index.setdefault(name, len(self._index))

    def complaint(self, name: str) -> str:
        """Return what is wrong with a name that has no index."""
        names = list(self._index)
        those = ", ".join(names[:20]) + (f", ... ({len(names)} names)" if len(names) > 20 else "")
        return f"class {name!r} must be one of {those}; add it to --names, or drop such rows with --on-error skip"

    def finish(self) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
        """Return the names in their final order, and the final index of each provisional one."""
        if self.single:
            return (self._one,), np.zeros(1, np.int32)
        found = list(self._index)
        order = found if self.closed else sorted(found)
        place = {name: i for i, name in enumerate(order)}
        return tuple(order), np.array([place[name] for name in found], np.int32)


class NamedScan:
    """Images, rows and problems as they are found; ``finish`` makes the :class:`Scan` of them.

    Args:
        source: The format.
        root: Absolute folder that keys and file names are relative to.
        splits: Names of the splits that are read.
        numbers: Coordinates of a row.
        options: As the user gave them.
    """

    def __init__(
        self, source: Literal["voc", "dota"], root: Path, splits: tuple[str, ...], numbers: int, options: SourceOptions
    ) -> None:
        if len(splits) > 255:
            raise UsageError(f"splits must be at most 255, got {len(splits)} in {root}; choose some with --split")
        self.options = options
        self.classes = Classes(options)
        self.scan = Scan(source=source, root=root, names=(), category_ids=(), splits=splits, task="detect")
        self._split, self._nbytes, self._mtime_ns = array("B"), array("q"), array("q")
        self._file_of, self._hw = array("i"), array("i")
        self._files: dict[str, int] = {}  # name → number in scan.label_files
        self._counts = np.zeros((len(splits), 4), np.int64)  # images, without label file, with an empty one, rows
        self._image, self._cls, self._flags, self._where, self._xy = array("q"), array("i"), array("B"), array("q"), array("d")
        folder = options.spool_folder
        self._columns = (
            Column(np.int64, (), folder=folder),
            Column(np.int32, (), folder=folder),
            Column(np.uint8, (), folder=folder),
            Column(np.int64, (), folder=folder),
            Column(np.float64, (numbers,), folder=folder),
        )
        self._numbers = numbers

    def report(self, problem: Problem, *, dropped_rows: int = 0) -> None:
        """Note a problem; ``dropped_rows`` of the rows counted in ``rows_in`` went with it.

        Raises:
            DataError: The problem is one that stops the run (``on_error``).
        """
        stop = self.options.on_error
        if problem.is_fault and (stop == "raise" or (problem.kind in FATAL and stop != "skip")):
            raise DataError(f"{problem.where}: {problem.detail}")
        self.scan.problems.append(problem)
        self.scan.rows_dropped += dropped_rows

    def label_file(self, path: str, data: bytes) -> int:
        """Register a file that labels came from by its content, once; return its number."""
        name = below(self.scan.root, path)
        number = self._files.setdefault(name, len(self._files))
        if number == len(self.scan.label_files):
            self.scan.label_files.append(LabelFile(name, digest_bytes(data)))
        return number

    def image(
        self, key: str, path: str, split: int, *, file: int = -1, found: int = 0, size_hw: tuple[int, int] | None = None
    ) -> int:
        """Append an image, there or not, and return its index.

        Args:
            key: Its key.
            path: Where it should be.
            split: Index of its split.
            file: Number of its label file, -1 for none.
            found: Rows in that file, usable or not.
            size_hw: What the label file says.
        """
        nbytes, mtime_ns = stat_image(path)
        self._counts[split] += (1, file < 0, file >= 0 and not found, found)
        self.scan.rows_in += found
        self.scan.keys.append(key)
        self.scan.paths.append(path)
        self._split.append(split)
        self._nbytes.append(nbytes)
        self._mtime_ns.append(mtime_ns)
        self._file_of.append(file)
        self._hw.extend(size_hw or (0, 0))
        return len(self.scan.keys) - 1

    def row(self, image: int, cls: int, flags: int, where: int, numbers: Sequence[float]) -> None:
        """Append one label row with its provisional class."""
        self._image.append(image)
        self._cls.append(cls)
        self._flags.append(flags)
        self._where.append(where)
        self._xy.extend(numbers)
        if len(self._image) >= BLOCK_ROWS:
            self._spool()

    def _spool(self) -> None:
        buffers: tuple[array[int] | array[float], ...] = (self._image, self._cls, self._flags, self._where, self._xy)
        for column, buffer in zip(self._columns, buffers, strict=True):
            if buffer:
                column.append(np.array(buffer, column.dtype).reshape(-1, *column.row_shape))
                del buffer[:]

    def finish(
        self,
        task: Task,
        place: Literal["line", "object"],
        as_rows: Callable[[npt.NDArray[np.float64]], Rows],
    ) -> Scan:
        """Give every row its class and make the scan.

        Args:
            task: What the set is for.
            place: What ``where`` counts.
            as_rows: Makes pixel rows of (n, numbers) coordinates; class, flags and place are filled in here.

        Raises:
            DataError: The split train has no label at all.
        """
        scan = self.scan
        for split, (images, missing, empty, found) in zip(scan.splits, self._counts.tolist(), strict=True):
            if split == "train" and images and not found and self.options.on_error != "skip":
                without = f"{missing} of {images} images have no label file, {empty} an empty one"
                raise DataError(f"{scan.root}: train must have at least one label row, got none: {without}")
        _, missing, empty, _ = self._counts.sum(axis=0).tolist()
        scan.decisions["background-missing"], scan.decisions["background-empty"] = str(missing), str(empty)
        scan.task = task
        scan.names, remap = self.classes.finish()
        scan.category_ids = tuple(range(len(scan.names)))
        scan.split = np.array(self._split, np.uint8)
        scan.image_id = np.full(len(scan.keys), -1, np.int64)
        scan.nbytes, scan.mtime_ns = np.array(self._nbytes, np.int64), np.array(self._mtime_ns, np.int64)

        self._spool()
        table = RowTable("px", place, 0, self.options.spool_folder)
        image, cls, flags, where, numbers = (column.array() for column in self._columns)
        for start in range(0, len(image), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            rows = as_rows(np.array(numbers[block], np.float64))
            rows.cls, rows.flags, rows.where = remap[cls[block]], np.array(flags[block]), np.array(where[block])
            table.add(np.array(image[block]), rows)
        sizes_hw = np.array(self._hw, np.int32).reshape(-1, 2)
        table.finish(len(scan.keys), list(self._files), np.array(self._file_of, np.int32), sizes_hw)
        for column in self._columns:
            column.close()
        assert scan.rows_in == len(table) + scan.rows_dropped, (scan.rows_in, len(table), scan.rows_dropped)
        scan.table = table
        return scan
