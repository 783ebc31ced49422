"""Annotations of a COCO file → label rows: a block of parsed JSON in, flat arrays and problems out.

Invariant: every annotation becomes a row or a problem with the action "dropped", in the order of the file. Coordinates stay as
published, pixels from the top left edge; only [x, y, width, height] becomes corners. What is clipped, empty or not finite is for
``settle`` to judge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.labels import BOX, CROWD, MASK, POLYGON, Rows
from fastdata.problems import Problem
from fastdata.sources.named import decimal

I64 = npt.NDArray[np.int64]

MIN_RING_NUMBERS = 6
"""Three points of x and y."""

_NUMBER_TYPES = frozenset((int, float))
_YES, _NO = ("1", "true", "yes"), ("", "0", "false", "no")


@dataclass(frozen=True, slots=True)
class IdTable:
    """Published ids, sorted, and the index that each stands for."""

    ids: I64
    """(n,) ascending."""
    index: I64
    """(n,) of each id; -1 for one that is left out."""

    @classmethod
    def of(cls, ids: npt.ArrayLike, index: npt.ArrayLike) -> IdTable:
        """Make a table of ids in any order; of equal ones the first counts."""
        unique, first = np.unique(np.asarray(ids, np.int64), return_index=True)
        return cls(unique, np.asarray(index, np.int64)[first])

    def find(self, values: Sequence[Any]) -> list[int]:
        """Return the index of each value, -1 where it is no known id."""
        if set(map(type, values)) != {int}:
            values = [number if (number := whole(value)) is not None else None for value in values]
        fits = [value if value is not None and -(2**63) <= value < 2**63 else None for value in values]
        wanted = np.array([0 if value is None else value for value in fits], np.int64)
        if not len(self.ids):
            return [-1] * len(wanted)
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        found = np.where(self.ids[at] == wanted, self.index[at], -1)
        found[[i for i, value in enumerate(fits) if value is None]] = -1
        return found.tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class RowRule:
    """What the annotations of one file refer to."""

    file: str
    """The file as reports call it."""
    images: IdTable
    """Image id → index of the image."""
    categories: IdTable
    """Category id → index of the class."""
    keypoint_counts: tuple[int, ...]
    """Keypoints of each class."""
    keypoints: int
    """K, the largest of them: rows are filled up with points that are not labelled."""
    single_cls: bool
    """Every class becomes 0, before any check."""


@dataclass(slots=True)
class Block:
    """What a block of annotations holds."""

    image: I64
    """(n,) index of the image of each row."""
    rows: Rows
    """n rows."""
    problems: list[Problem] = field(default_factory=list)
    """In the order of the file."""
    texts: list[int] = field(default_factory=list)
    """Annotation ids whose numbers are written as text."""
    posed: int = 0
    """Rows with keypoints, labelled or not."""


def whole(value: object) -> int | None:
    """Return the whole number that a value is or plainly stands for (7, 7.0, "7"), None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        number = decimal(value) if len(value) < 20 else None
        return int(number) if number is not None and number.is_integer() and "e" not in value.lower() else None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def parse(items: Sequence[Any], rule: RowRule, *, careful: bool = False) -> Block:
    """Turn annotations into rows.

    Args:
        items: Parsed annotations, in the order of the file.
        rule: What they refer to.
        careful: Look at every outline number on its own; set by this function itself where a block holds one that is no number.
    """
    records = [item if type(item) is dict else {} for item in items]
    images = rule.images.find([record.get("image_id") for record in records])
    classes = rule.categories.find([record.get("category_id") for record in records])
    out = _Columns(rule)
    for item, record, image, cls in zip(items, records, images, classes, strict=True):
        place = record.get("id")
        out.place = place if type(place) is int and 0 <= place < 2**63 else _place(place)
        if record is not item:
            out.tell("columns", "dropped", f"an annotation must be an object, got {item!r:.40}")
            continue
        if image < 0:
            out.tell("unknown-image", "dropped", f"image_id must be that of a listed image, got {record.get('image_id')!r:.40}")
            continue
        if cls < 0 and not rule.single_cls:
            given = record.get("category_id")
            out.tell("unknown-category", "dropped", f"category_id must be that of a listed category, got {given!r:.40}")
            continue
        out.add(record, image, cls, careful)
    block = out.finish()
    return parse(items, rule, careful=True) if block is None else block


def _place(value: object) -> int:
    number = whole(value)
    return number if number is not None and 0 <= number < 2**63 else -1


class _Columns:
    """The rows of one block while they are collected."""

    def __init__(self, rule: RowRule) -> None:
        self.rule = rule
        self.place = -1
        self.problems: list[Problem] = []
        self.texts: list[int] = []
        self.image: list[int] = []
        self.cls: list[int] = []
        self.xyxy: list[float] = []
        self.has_box: list[bool] = []
        self.kind: list[int] = []
        self.flags: list[int] = []
        self.where: list[int] = []
        self.area: list[float] = []
        self.part_counts: list[int] = []
        self.parts: list[list[Any]] = []
        self.keypoints: list[tuple[int, list[float]]] = []
        self.rle: list[bytes | None] = []

    def tell(self, kind: str, action: str, detail: str) -> None:
        """Report something about the annotation at ``place``."""
        place = self.place if self.place >= 0 else None
        self.problems.append(Problem(file=self.rule.file, kind=kind, action=action, detail=detail, annotation_id=place))

    def add(self, record: dict[str, Any], image: int, cls: int, careful: bool) -> None:
        """Add one annotation of a known image and class, or say why not."""
        bbox = record.get("bbox")
        box: tuple[float, float, float, float] | None = None
        try:
            x, y, w, h = bbox  # type: ignore[misc]
            if type(x) in _NUMBER_TYPES and type(y) in _NUMBER_TYPES and type(w) in _NUMBER_TYPES and type(h) in _NUMBER_TYPES:
                x0, y0 = x + 0.0, y + 0.0
                box = (x0, y0, x0 + w, y0 + h)
        except (TypeError, ValueError, OverflowError):
            pass
        if box is None and bbox is not None and bbox != []:
            box = self._odd_box(bbox)
            if box is None:
                return
        segmentation = record.get("segmentation")
        kind, parts, packed = self._outline(segmentation, careful) if segmentation else (BOX, [], None)
        if box is None and kind == BOX:
            self.tell("columns", "dropped", f"bbox must be [x, y, width, height], got {bbox!r:.40} and no outline")
            return
        crowd = record.get("iscrowd")
        area = record.get("area")
        self.image.append(image)
        self.cls.append(0 if self.rule.single_cls else cls)
        self.xyxy += box or (0.0, 0.0, 0.0, 0.0)
        self.has_box.append(box is not None)
        self.kind.append(kind)
        self.flags.append(CROWD if crowd and self._is_crowd(crowd) else 0)
        self.where.append(self.place)
        self.area.append(area if type(area) is float else _number_or_nan(area))
        self.part_counts.append(len(parts))
        self.parts += parts
        self.rle.append(packed)
        if record.get("keypoints"):
            self._add_keypoints(record["keypoints"], cls)

    def _odd_box(self, bbox: object) -> tuple[float, float, float, float] | None:
        """Return the corners of a box that is not four plain numbers, None (and a problem) where there is no saying them."""
        if not isinstance(bbox, list):
            self.tell("bad-number", "dropped", f"bbox must be [x, y, width, height], got {bbox!r:.40}")
            return None
        if len(bbox) != 4:
            self.tell("columns", "dropped", f"bbox must have 4 numbers, got {len(bbox)}")
            return None
        numbers = _numbers(bbox)
        if numbers is None:
            self.tell("bad-number", "dropped", f"bbox must be numbers, got {bbox!r:.80}")
            return None
        self._note_text(bbox)
        x, y, w, h = numbers
        return x, y, x + w, y + h

    def _note_text(self, values: list[Any]) -> None:
        if str in map(type, values) and (not self.texts or self.texts[-1] != self.place):
            self.texts.append(self.place)

    def _outline(self, segmentation: object, careful: bool) -> tuple[int, list[list[Any]], bytes | None]:
        """Return kind, parts and packed run lengths of a segmentation that is not empty."""
        if isinstance(segmentation, dict):
            size, counts = segmentation.get("size"), segmentation.get("counts")
            if isinstance(size, list) and isinstance(counts, list | str):
                return MASK, [], json.dumps({"size": size, "counts": counts}, separators=(",", ":")).encode("ascii")
            self.tell("odd-polygon", "changed", "run lengths must have size and counts; kept as a box")
            return BOX, [], None
        if not isinstance(segmentation, list):
            given = f"{segmentation!r:.40}"
            self.tell("odd-polygon", "changed", f"segmentation must be a list or run lengths, got {given}; kept as a box")
            return BOX, [], None
        parts = segmentation
        for part in segmentation:
            if careful or type(part) is not list or len(part) < MIN_RING_NUMBERS or len(part) & 1:
                parts = [ring for part in segmentation if (ring := self._ring(part)) is not None]
                break
        if len(parts) < len(segmentation):
            rule = "every part of an outline must be x and y of 3 or more points"
            lost = f"{len(segmentation) - len(parts)} of {len(segmentation)} are not"
            self.tell("odd-polygon", "changed", f"{rule}, {lost}; {'the others are kept' if parts else 'kept as a box'}")
        return (POLYGON if parts else BOX), parts, None

    def _ring(self, part: object) -> list[float] | None:
        if not isinstance(part, list) or len(part) < MIN_RING_NUMBERS or len(part) & 1:
            return None
        numbers = _numbers(part)
        if numbers is not None:
            self._note_text(part)
        return numbers

    def _is_crowd(self, value: object) -> bool:
        if isinstance(value, bool | int | float):
            return bool(value)
        text = value.strip().lower() if isinstance(value, str) else ""
        if text not in _YES + _NO or not isinstance(value, str):
            self.tell("bad-number", "changed", f"iscrowd must be 0 or 1, got {value!r:.40}; taken as 0")
        return text in _YES

    def _add_keypoints(self, values: object, cls: int) -> None:
        rule = self.rule
        want = rule.keypoint_counts[cls] if 0 <= cls < len(rule.keypoint_counts) else rule.keypoints
        if not isinstance(values, list) or len(values) != 3 * want:
            got = f"{len(values)} numbers" if isinstance(values, list) else f"{values!r:.40}"
            self.tell("columns", "changed", f"keypoints must be x, y and visibility of {want} points, got {got}; none is kept")
            return
        numbers = _numbers(values)
        if numbers is None:
            self.tell("bad-number", "changed", "keypoints must be numbers; none is kept")
            return
        self._note_text(values)
        self.keypoints.append((len(self.image) - 1, numbers))

    def finish(self) -> Block | None:
        """Return the block, or None where an outline holds something that is not plainly a number."""
        n, k = len(self.image), self.rule.keypoints
        try:
            flat = np.array(list(chain.from_iterable(self.parts)))
        except ValueError:  # lists within lists
            return None
        if flat.dtype.kind not in "fi" or flat.ndim != 1:
            return None
        keypoints = np.zeros((n, k, 3), np.float64)
        for row, numbers in self.keypoints:
            keypoints[row].reshape(-1)[: len(numbers)] = numbers
        return Block(
            image=np.array(self.image, np.int64),
            rows=Rows(
                unit="px",
                file=self.rule.file,
                place="annotation_id",
                cls=np.array(self.cls, np.int32),
                xyxy=np.array(self.xyxy, np.float64).reshape(-1, 4),
                has_box=np.array(self.has_box, np.bool_),
                kind=np.array(self.kind, np.uint8),
                flags=np.array(self.flags, np.uint8),
                where=np.array(self.where, np.int64),
                area=np.array(self.area, np.float64),
                part_offsets=_offsets(self.part_counts),
                point_offsets=_offsets([len(part) // 2 for part in self.parts]),
                points=flat.astype(np.float64, copy=False).reshape(-1, 2),
                keypoints=keypoints,
                rle=self.rle,
            ),
            problems=self.problems,
            texts=self.texts,
            posed=len(self.keypoints),
        )


def _numbers(values: list[Any]) -> list[float] | None:
    """Return values that are numbers, or texts that plainly are, as floats; None where one is neither."""
    out: list[float] = []
    for value in values:
        if type(value) in _NUMBER_TYPES:
            try:
                out.append(float(value))
            except OverflowError:
                return None
        else:
            number = decimal(value) if isinstance(value, str) else None
            if number is None:
                return None
            out.append(number)
    return out


def _number_or_nan(value: object) -> float:
    numbers = _numbers([value])
    return numbers[0] if numbers is not None else float("nan")


def _offsets(lengths: Sequence[int]) -> I64:
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out
