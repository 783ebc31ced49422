"""YOLO text labels → :class:`Rows`: which columns a row has, and which rows cannot be read.

One row per object, columns parted by blank space, coordinates as fractions of the picture::

    class cx cy w h                        box
    class x1 y1 ... xn yn    n >= 3        outline; with ``obb`` and n = 4 the corners of an oriented box
    class cx cy w h  K * (x y [v])         box and keypoints, only where the dataset states K

The dataset decides what columns mean, never the single row. A row that breaks these rules is dropped and reported with its line;
the others stay. Whether a box makes sense inside its picture (NaN, size, border) is not judged here: see ``settle``.

Invariant: for every file, rows found = rows kept + rows dropped; blank lines and comments are no rows.

Files without any oddity are read together (:func:`_read_clean`), every other one row by row (:func:`_read_odd`). Where both can
answer they give the same; the short way leaves out only what has no outcome for a clean file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from fastdata.labels import BOX, OBB, POLYGON, Rows
from fastdata.problems import Problem
from fastdata.sources.yolo_numbers import read_numbers

Bools = npt.NDArray[np.bool_]

BOX_COLUMNS = 5
MIN_OUTLINE_COLUMNS = 7
OBB_COLUMNS = 9

PIXEL_LIMIT = 2.0
"""A fraction that leaves the picture is rarely beyond 2; where most numbers of a file are, they are no fractions."""

_PLAIN = b"0123456789.+-eE \t\r\n"
"""Bytes of a clean file. Of tokens made of these, :func:`float` takes what :data:`_NUMBER` takes, and none is NaN."""

_ODD_FACTOR = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, the usual factor of multiplicative hashing (Knuth, TAOCP 3, 6.4); its powers are odd too."""

_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
"""What :func:`float` takes, without underscores and without digits of other scripts."""

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class RowRule:
    """How the columns of one dataset are read."""

    classes: int
    """Number of classes."""
    ids: tuple[int, ...] | None = None
    """Published id of each class, ascending; ``None`` for 0..classes-1."""
    limit_is: str = "the number of names"
    """What ``classes`` is, for the message about a class beyond it."""
    single_cls: bool = False
    """The class column is not looked at: every object is of class 0."""
    keypoints: int = 0
    """K; 0 for a dataset without keypoints."""
    keypoint_dims: int = 3
    """2 (x y) or 3 (x y visibility)."""
    obb: bool = False
    """Nine columns are an oriented box."""

    @property
    def pose_columns(self) -> int:
        """Columns of a row with keypoints, 0 for a dataset without."""
        return BOX_COLUMNS + self.keypoints * self.keypoint_dims if self.keypoints else 0

    def known(self) -> frozenset[int]:
        """Return the ids that a class column may hold."""
        return frozenset(range(self.classes) if self.ids is None else self.ids)


@dataclass(slots=True)
class Block:
    """The rows of k label files, in the order of the files."""

    rows: Rows
    """n rows; ``rows.file`` is empty."""
    file: npt.NDArray[np.int64]
    """(n,) index of the file that each row stands in."""
    found: npt.NDArray[np.int64]
    """(k,) rows found in each file, kept or not."""
    dropped: npt.NDArray[np.int64]
    """(k,) rows dropped of each file."""
    problems: list[tuple[int, Problem]]
    """(file index, problem), ascending by file and line; notes on a whole file come last."""


@dataclass(slots=True)
class _Flat:
    """n kept rows of several files; the numbers of each row follow one another, class first."""

    file: npt.NDArray[np.int64]
    """(n,) index of the file."""
    line: npt.NDArray[np.int64]
    """(n,) from 1."""
    width: npt.NDArray[np.int64]
    """(n,) columns."""
    values: npt.NDArray[np.float64]
    """(sum of width,)"""

    def take(self, at: npt.NDArray[np.intp]) -> _Flat:
        """Return the rows of these numbers in this order."""
        width = self.width[at]
        first, first_before = np.cumsum(width) - width, (np.cumsum(self.width) - self.width)[at]
        values = self.values[np.arange(int(width.sum())) + np.repeat(first_before - first, width)]
        return _Flat(self.file[at], self.line[at], width, values)


def parse(files: Sequence[tuple[str, bytes]], rule: RowRule, *, odd: bool = False) -> Block:
    """Read k label files.

    Args:
        files: Name for reports and content of each.
        rule: What the columns mean.
        odd: Send every file the long way (for the proof that both ways agree).
    """
    k = len(files)
    flat, is_clean = _read_clean([data for _, data in files], rule, np.full(k, not odd))
    dropped = np.zeros(k, np.int64)
    problems: list[tuple[int, Problem]] = []
    rest = np.flatnonzero(~is_clean).tolist()
    if rest:
        known = rule.known()
        rows = [_read_odd(*files[i], rule, known) for i in rest]
        for i, one in zip(rest, rows, strict=True):
            dropped[i] = one.dropped
            problems += ((i, problem) for problem in one.problems)
        flat = _merged(flat, rest, rows)

    published = _as_rows(flat.values, flat.width, rule)
    published.where = flat.line
    notes = _notes(published, flat, rule, [name for name, _ in files])
    if notes:
        problems = sorted(problems + notes, key=lambda item: item[0])  # stable: notes stay behind the file's own problems
    return Block(published, flat.file, np.bincount(flat.file, minlength=k) + dropped, dropped, problems)


def _read_clean(data: Sequence[bytes], rule: RowRule, wanted: Bools) -> tuple[_Flat, Bools]:
    """Read the wanted files in which nothing is odd: their rows, and (k,) which files these are."""
    plain = np.array([i for i in np.flatnonzero(wanted).tolist() if not data[i].translate(None, _PLAIN)], np.int64)
    text = b"".join(data[i] + b"\n" for i in plain.tolist())
    first_byte = np.cumsum([0, *(len(data[i]) + 1 for i in plain.tolist())])
    starts, values, refused = read_numbers(text)
    file = np.repeat(np.arange(len(plain)), np.diff(np.searchsorted(starts, first_byte)))

    # A file ends with a line end of ours, so no line reaches into the next one; lines of a file count from its first byte.
    byte = np.frombuffer(text + b" ", np.uint8)
    line_ends = np.cumsum((byte[:-1] == 10) | ((byte[:-1] == 13) & (byte[1:] != 10)))
    line = line_ends[starts]
    row = np.flatnonzero(np.diff(line, prepend=-1))  # number of the first token of each row
    lines_before = np.concatenate([[0], line_ends])[first_byte[:-1]]
    flat = _Flat(file[row], line[row] - lines_before[file[row]] + 1, np.diff(row, append=len(line)), values)

    if rule.single_cls:
        values[row] = 0.0
    is_odd = np.zeros(len(plain), np.bool_)
    is_odd[file[refused]] = True
    is_odd[flat.file[~(_is_width(flat.width, rule) & _is_class(values[row], rule))]] = True
    is_odd[_may_hold_copies(flat, row)] = True
    good = _Flat(plain[flat.file], flat.line, flat.width, values)
    if is_odd.any():
        good = good.take(np.flatnonzero(~is_odd[flat.file]))
    is_clean = np.zeros(len(data), np.bool_)
    is_clean[plain[~is_odd]] = True
    return good, is_clean


def _is_width(width: npt.NDArray[np.int64], rule: RowRule) -> Bools:
    """Tell which numbers of columns :func:`_column_fault` lets through."""
    if rule.keypoints:
        return np.isin(width, (BOX_COLUMNS, rule.pose_columns))
    found: Bools = (width == BOX_COLUMNS) | ((width >= MIN_OUTLINE_COLUMNS) & (width % 2 == 1))
    return found


def _is_class(value: npt.NDArray[np.float64], rule: RowRule) -> Bools:
    """Tell which numbers :func:`_class_fault` lets through; 1.0 is one, 1.5 is not."""
    if rule.ids is None:
        found: Bools = (value >= 0) & (value < rule.classes) & (value == np.floor(value))
    else:
        ids = np.array(rule.ids, np.float64)
        found = ids[np.minimum(np.searchsorted(ids, value), len(ids) - 1)] == value
    return found


def _may_hold_copies(flat: _Flat, row: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Return the files in which two rows may be equal.

    Rows are told apart by a sum over the bits of their numbers, each times an odd constant of its column. Arithmetic modulo
    2**64 has no rounding, so equal rows have equal sums; a rare pair of others costs the file the long way and nothing else.
    """
    if len(row) == 0:
        return np.zeros(0, np.int64)
    column = np.arange(len(flat.values)) - np.repeat(row, flat.width)
    factor = np.cumprod(np.full(int(flat.width.max()), _ODD_FACTOR, np.uint64))
    mark = np.add.reduceat((flat.values + 0.0).view(np.uint64) * factor[column], row)  # + 0.0: -0 equals 0
    order = np.lexsort((mark, flat.file))
    mark, file = mark[order], flat.file[order]
    again: npt.NDArray[np.int64] = file[1:][(mark[1:] == mark[:-1]) & (file[1:] == file[:-1])]
    return again


@dataclass(slots=True)
class _File:
    """One file that was read row by row."""

    lines: list[int] = field(default_factory=list)
    rows: list[tuple[float, ...]] = field(default_factory=list)
    dropped: int = 0
    problems: list[Problem] = field(default_factory=list)


def _merged(clean: _Flat, at: list[int], files: list[_File]) -> _Flat:
    """Return clean rows and those of the files numbered ``at``, in the order of the files."""
    rows = [row for one in files for row in one.rows]
    both = _Flat(
        np.concatenate([clean.file, np.repeat(np.array(at, np.int64), [len(one.rows) for one in files])]),
        np.concatenate([clean.line, np.array([line for one in files for line in one.lines], np.int64)]),
        np.concatenate([clean.width, np.array([len(row) for row in rows], np.int64)]),
        np.concatenate([clean.values, np.array(list(chain.from_iterable(rows)), np.float64)]),
    )
    return both.take(np.argsort(both.file, kind="stable"))


def _read_odd(name: str, data: bytes, rule: RowRule, known: frozenset[int]) -> _File:
    """Read any file, row by row, and say what is wrong with each row that is not kept."""
    file = _File()
    text = _decode(data)
    if isinstance(text, _Undecodable):
        file.problems.append(Problem(name, "unreadable-labels", "dropped", text.why))
        return file
    comments: list[int] = []
    first: dict[tuple[float, ...], int] = {}
    for number, line in enumerate(_LINE_END.split(text), 1):
        columns = line.split()
        if not columns:
            continue
        if columns[0].startswith("#"):
            comments.append(number)
            continue
        fault = _number_fault(columns) or _column_fault(len(columns), rule)
        row = () if fault else tuple(map(float, columns))
        if not fault and rule.single_cls:
            row = (0.0, *row[1:])
        fault = fault or _class_fault(row[0], columns[0], rule, known)
        if not fault and row in first:
            fault = ("duplicate", f"a row must stand once in a file, got the row of line {first[row]} again")
        if fault:
            file.dropped += 1
            file.problems.append(Problem(name, fault[0], "dropped", fault[1], line=number))
            continue
        first[row] = number
        file.lines.append(number)
        file.rows.append(row)
    if comments:
        rest = f" and {len(comments) - 1} more" if len(comments) > 1 else ""
        file.problems.append(Problem(name, "comment", "noted", f"comment lines are passed over: {comments[0]}{rest}"))
    return file


@dataclass(frozen=True, slots=True)
class _Undecodable:
    why: str


def _decode(data: bytes) -> str | _Undecodable:
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        encoding = "utf-32"
    elif data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as err:
        got = f"bytes that are no {encoding.removesuffix('-sig').upper()} at offset {err.start}"
    else:
        if "\0" not in text:
            return text
        got = "NUL bytes; it may be UTF-16 without a byte-order mark, or no text at all"
    return _Undecodable(f"a label file must be text in UTF-8, or in UTF-16 with a byte-order mark, got {got}; save it as UTF-8")


def _number_fault(columns: list[str]) -> tuple[str, str] | None:
    for i, text in enumerate(columns):
        if not _NUMBER.fullmatch(text):
            got = text if len(text) <= 40 else text[:40] + "..."
            hint = ""
            if "," in text:
                hint = "; columns are parted by blanks, and decimals by a point"
            elif i == 0:
                hint = "; the first column is the number of the class, not its name"
            return "bad-number", f"column {i + 1} must be a number, got {got!r}{hint}"
    return None


def _column_fault(n: int, rule: RowRule) -> tuple[str, str] | None:
    if rule.keypoints:
        if n in (BOX_COLUMNS, rule.pose_columns):
            return None
        want = f"{BOX_COLUMNS} (box) or {rule.pose_columns} (box and {rule.keypoints} keypoints of {rule.keypoint_dims})"
        return "columns", f"a row must have {want} columns, got {n}"
    if n == BOX_COLUMNS or (n >= MIN_OUTLINE_COLUMNS and n % 2 == 1):
        return None
    if n == BOX_COLUMNS + 1:
        hint = "a sixth column is a confidence, as predictions are saved with; save them without it to use them as labels"
        return "columns", f"a row must have 5 (box) or 7, 9, 11, ... (outline) columns, got 6; {hint}"
    if n > BOX_COLUMNS:
        return "odd-polygon", f"an outline must have x and y for each point, got {n - 1} coordinates"
    return "columns", f"a row must have 5 (box) or 7, 9, 11, ... (outline) columns, got {n}"


def _class_fault(value: float, text: str, rule: RowRule, known: frozenset[int]) -> tuple[str, str] | None:
    if rule.single_cls:
        return None
    if not math.isfinite(value) or value != math.floor(value) or value < 0:
        return "class-integer", f"class must be a whole number from 0, got {text}"
    if value in known:
        return None
    if rule.ids is None:
        broken = f"class {value:.0f} must be < {rule.classes} ({rule.limit_is})"
    else:
        broken = f"class {value:.0f} must be one of the {len(rule.ids)} ids in names ({rule.ids[0]}..{rule.ids[-1]})"
    return "class-range", f"{broken}, so names or labels are wrong; correct them, or leave such rows out with --on-error skip"


def _as_rows(values: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], rule: RowRule) -> Rows:
    """Turn n valid rows, flat (sum of lengths,), into Rows. ``where`` is left for the caller to fill."""
    n = len(lengths)
    starts = np.cumsum(lengths) - lengths
    cls = values[starts]
    if rule.ids is not None and not rule.single_cls:
        cls = np.searchsorted(np.array(rule.ids, np.float64), cls)
    posed = lengths == rule.pose_columns
    outlined = (lengths != BOX_COLUMNS) & ~posed
    kind = np.where(outlined, POLYGON, BOX).astype(np.uint8)
    if rule.obb:
        kind[outlined & (lengths == OBB_COLUMNS)] = OBB

    xyxy = np.zeros((n, 4), np.float64)
    boxed = np.flatnonzero(~outlined)
    xywh = values[starts[boxed, None] + np.arange(1, 5)]
    with np.errstate(invalid="ignore", over="ignore"):  # infinite numbers are judged by settle
        half = xywh[:, 2:] / 2
        xyxy[boxed] = np.concatenate([xywh[:, :2] - half, xywh[:, :2] + half], axis=1)

    is_point = np.repeat(outlined, lengths)
    is_point[starts] = False
    points = values[is_point].reshape(-1, 2)

    keypoints = np.zeros((n, rule.keypoints, 3), np.float64)
    if rule.keypoints:
        at = np.flatnonzero(posed)
        columns = np.arange(BOX_COLUMNS, rule.pose_columns)
        given = values[starts[at, None] + columns].reshape(-1, rule.keypoints, rule.keypoint_dims)
        if rule.keypoint_dims == 2:
            missing = (given < 0).any(axis=2)
            given = np.where(missing[..., None], 0.0, given)
            given = np.concatenate([given, ~missing[..., None]], axis=2)
        keypoints[at] = given
    return Rows(
        unit="norm",
        file="",
        place="line",
        cls=cls.astype(np.int32),
        xyxy=xyxy,
        has_box=~outlined,
        kind=kind,
        flags=np.zeros(n, np.uint8),
        where=np.zeros(n, np.int64),
        area=np.full(n, np.nan),
        part_offsets=np.concatenate([[0], np.cumsum(outlined)]).astype(np.int64),
        point_offsets=np.concatenate([[0], np.cumsum((lengths[outlined] - 1) // 2)]).astype(np.int64),
        points=points,
        keypoints=keypoints,
        rle=[None] * n,
    )


def _notes(rows: Rows, flat: _Flat, rule: RowRule, names: Sequence[str]) -> list[tuple[int, Problem]]:
    """Return what is worth saying about whole files: kinds that stand side by side, numbers that look like pixels."""
    k = len(names)
    file, values = flat.file, flat.values
    boxes = np.bincount(file[rows.kind == BOX], minlength=k)
    outlines = np.bincount(file, minlength=k) - boxes
    notes = []
    for i in np.flatnonzero((boxes > 0) & (outlines > 0)).tolist():
        detail = f"{boxes[i]} boxes beside {outlines[i]} outlines; each row keeps its own kind"
        notes.append((i, Problem(names[i], "mixed-kinds", "noted", detail)))

    is_coordinate = np.ones(len(values), np.bool_)
    starts = np.cumsum(flat.width) - flat.width
    is_coordinate[starts] = False
    if rule.keypoints and rule.keypoint_dims == 3:
        at = starts[flat.width == rule.pose_columns]
        is_coordinate[at[:, None] + np.arange(BOX_COLUMNS + 2, rule.pose_columns, 3)] = False
    of = np.repeat(file, flat.width)
    large = np.bincount(of[is_coordinate & (values > PIXEL_LIMIT)], minlength=k)
    for i in np.flatnonzero(large * 2 > np.bincount(of[is_coordinate], minlength=k)).tolist():
        detail = f"coordinates must be fractions of the picture, got {large[i]} numbers above {PIXEL_LIMIT:g}"
        detail += "; looks like pixel coordinates"
        notes.append((i, Problem(names[i], "pixel-coordinates", "noted", detail)))
    return notes
