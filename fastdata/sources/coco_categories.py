"""The categories of COCO files → classes 0..n-1, and what they say about keypoints.

Rule: classes are the listed categories in the order of their ids, all of them, whatever ``supercategory`` says and whether or not
an object uses them. Files of one dataset may list different categories; an id must mean the same name in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastdata.errors import DataError, UsageError
from fastdata.problems import Problem
from fastdata.sources.coco_rows import whole
from fastdata.sources.json_window import JsonOutline, read_blocks
from fastdata.sources.named import ONE_CLASS
from fastdata.sources.scan import SourceOptions

_SIDE = re.compile("left|right", re.IGNORECASE)
_OTHER_SIDE = {"left": "right", "right": "left", "LEFT": "RIGHT", "RIGHT": "LEFT", "Left": "Right", "Right": "Left"}


@dataclass(frozen=True, slots=True)
class Categories:
    """n classes."""

    ids: tuple[int, ...]
    """(n,) published ids, ascending."""
    names: tuple[str, ...]
    """(n,)"""
    keypoint_counts: tuple[int, ...]
    """(n,) keypoints of each class."""
    keypoint_names: tuple[str, ...]
    """Of the class that has the most; () without keypoints."""
    flip_idx: tuple[int, ...]
    """() where the names do not tell, or where classes differ in what a keypoint is."""
    skeleton: tuple[tuple[int, int], ...]
    """Pairs of keypoint indices from 0."""
    decisions: dict[str, str]

    @property
    def keypoints(self) -> int:
        """K: the most that a class has."""
        return max(self.keypoint_counts, default=0)


def read_categories(outlines: list[JsonOutline], options: SourceOptions, report: Callable[[Problem], None]) -> Categories:
    """Read the categories of all files.

    Args:
        outlines: The files.
        options: ``names`` renames the classes, ``on_error`` says what a doubled id is.
        report: Takes problems.

    Raises:
        DataError: An entry is unusable, an id stands twice or has two names.
        UsageError: ``names`` are not as many as the categories.
    """
    found: dict[int, dict[str, Any]] = {}
    for outline in outlines:
        here: dict[int, str] = {}
        for block in read_blocks(outline, "categories"):
            for entry in block:
                number, name = _check_entry(entry, outline.name)
                if number in here:
                    detail = f"category id must be unique, got {number} for {here[number]!r} and for {name!r}"
                    if options.on_error != "skip":
                        raise DataError(f"{outline.name}: {detail}; mend the file, or let the first count with --on-error skip")
                    report(Problem(outline.name, "duplicate", "dropped", f"{detail}; the first counts"))
                    continue
                here[number] = name
                known = found.setdefault(number, {**entry, "name": name})
                if known["name"] != name:
                    rule = f"category {number} must have one name in all files"
                    raise DataError(f"{outline.name}: {rule}, got {name!r} here and {known['name']!r} in another")
    if not found:
        raise DataError(f"{outlines[0].name}: categories must list at least one category, got none")
    ids = tuple(sorted(found))
    names = tuple(found[number]["name"] for number in ids)
    if options.names is not None and not options.single_cls:
        if len(options.names) != len(names):
            raise UsageError(f"names must be as many as the categories, {len(names)}, got {len(options.names)}")
        names = options.names
    per_class = [_keypoint_names(found[number]) for number in ids]
    largest = max(range(len(ids)), key=lambda i: len(per_class[i]))
    keypoint_names = per_class[largest]
    said: dict[str, str] = {}
    flip_idx = mirror_of(keypoint_names)
    if flip_idx and any(names_of != keypoint_names[: len(names_of)] for names_of in per_class):
        flip_idx, said["flip_idx"] = (), "unknown: the categories differ in what their keypoints are"
    skeleton = _skeleton(found[ids[largest]].get("skeleton"), len(keypoint_names), said)
    return Categories(ids, names, tuple(map(len, per_class)), keypoint_names, flip_idx, skeleton, said)


def as_one_class(categories: Categories, options: SourceOptions) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return names and ids under ``single_cls``: those of the only category, else one made-up class."""
    if options.names is not None and len(options.names) == 1:
        return options.names, categories.ids if len(categories.ids) == 1 else (0,)
    if len(categories.ids) == 1:
        return categories.names, categories.ids
    return (ONE_CLASS,), (0,)


def mirror_of(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the keypoint that each one becomes under a left-right mirror, by exchanging "left" and "right" in the names.

    Returns:
        () where no name has a side, a partner is missing, or names are not unique: then the names do not tell.
    """
    index = {name: i for i, name in enumerate(names)}
    partners = [_SIDE.sub(lambda side: _OTHER_SIDE.get(side[0], side[0]), name) for name in names]
    if len(index) != len(names) or partners == list(names) or not all(partner in index for partner in partners):
        return ()
    return tuple(index[partner] for partner in partners)


def _check_entry(entry: object, file: str) -> tuple[int, str]:
    if not isinstance(entry, dict):
        raise DataError(f"{file}: a category must be an object with id and name, got {entry!r:.80}")
    number, name = whole(entry.get("id")), entry.get("name")
    if number is None or not -(2**63) <= number < 2**63:
        raise DataError(f"{file}: a category's id must be a whole number, got {entry.get('id')!r:.40} in {entry!r:.80}")
    if isinstance(name, int | float) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise DataError(f"{file}: category {number} must have a name, got {name!r:.40}")
    return number, name


def _keypoint_names(entry: dict[str, Any]) -> tuple[str, ...]:
    names = entry.get("keypoints")
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def _skeleton(edges: object, keypoints: int, said: dict[str, str]) -> tuple[tuple[int, int], ...]:
    """Return the edges counted from 0. COCO counts from 1; a list that contains 0 counts from 0 already."""
    if not edges or not keypoints:
        return ()
    pairs: list[tuple[int, int]] = []
    for edge in edges if isinstance(edges, list) else [edges]:
        ends = [whole(end) for end in edge] if isinstance(edge, list) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            said["skeleton"] = f"left out: an edge must be two keypoints, got {edge!r:.40}"
            return ()
        pairs.append((ends[0], ends[1]))
    first = min(min(pair) for pair in pairs)
    base = 0 if first == 0 else 1
    if first < 0 or max(max(pair) for pair in pairs) >= keypoints + base:
        said["skeleton"] = f"left out: its edges must join keypoints {base}..{keypoints + base - 1}"
        return ()
    if base == 0:
        said["skeleton"] = "counts from 0 as published"
    return tuple((a - base, b - base) for a, b in pairs)
