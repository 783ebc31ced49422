"""Read a DOTA dataset: oriented boxes as text, one file an image, classes by name.

A row is eight corner coordinates in pixels, a class name and a difficulty (DOTA: Xia et al., CVPR 2018): 0 easy, 1 difficult, in
later releases 2 for the very small. A row without it means 0. Lines ``imagesource:...`` and ``gsd:...`` are headers.
Layout, names of folders in any case::

    images/ labelTxt/                      one split, "train" ("annfiles" is labelTxt under another name)
    train/images/ train/labelTxt/ val/...  splits by folder; one without labelTxt is pictures alone

A row's place is its line. Corners stay as published, also outside the picture, for the angle must survive; only a self-crossing
quadrilateral, which has no angle, becomes its minimum-area rectangle and is reported.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastdata import boxes
from fastdata.errors import DataError, UsageError
from fastdata.labels import DIFFICULT, OBB, Rows
from fastdata.problems import Problem, Skip
from fastdata.sources.files import list_files, list_images
from fastdata.sources.named import (
    NamedScan,
    below,
    choose_splits,
    decimal,
    given_folder,
    in_split_order,
    is_elsewhere,
    split_of_folder,
)
from fastdata.sources.scan import Scan, SourceOptions

LABEL_FOLDERS = ("labeltxt", "annfiles")
"""Folder names in lower case; a release may add its version, as labelTxt-v1.5."""

HEADERS = ("imagesource:", "gsd:")
"""Starts of header lines, in lower case."""


@dataclass(frozen=True, slots=True)
class Part:
    """One folder of pictures with its labels."""

    split: str
    images: str
    """Absolute."""
    labels: str | None
    """Absolute; None where there are pictures alone."""


def read_dota(src: Path, options: SourceOptions) -> Scan:
    """Read the dataset below a folder.

    Args:
        src: Folder of the dataset; keys are relative to it, or to ``options.images`` where that lies elsewhere.
        options: What the user says.

    Raises:
        DataError: It is no such dataset, or a fault that ``options.on_error`` does not let pass.
        UsageError: An option does not fit it.
        OSError: A file cannot be read.
    """
    if options.task not in (None, "obb"):
        raise UsageError(f"task must be obb for a DOTA dataset, which holds oriented boxes, got {options.task}")
    root = Path(os.path.abspath(src))
    parts = find_parts(root, options.images, options.labels)
    if not parts:
        raise DataError(
            f"{root}: a DOTA dataset must have the folders images and labelTxt, or train/images and train/labelTxt; "
            f"say where they are with --images and --labels"
        )
    splits = choose_splits(in_split_order({part.split for part in parts}), options.splits, root)
    out = NamedScan("dota", root, splits, 8, options)
    for number, split in enumerate(splits):
        for part in parts:
            if part.split == split:
                _read_part(out, part, number)
    if len(out.scan.keys) + len(out.scan.skips) == 0:
        looked = ", ".join(below(root, part.images) or "." for part in parts)
        raise DataError(f"{root}: a DOTA dataset must hold images, got none in {looked}; say where they are with --images")
    _learn_names(out, [part for part in parts if part.split not in splits])
    return out.finish("obb", "line", _quads)


def find_parts(root: Path, images: Path | None = None, labels: Path | None = None) -> list[Part]:
    """Find the folders of a DOTA dataset, empty when it is none.

    Raises:
        DataError: There are several folders of labels for the same pictures.
    """
    top = os.fspath(root)
    if images is not None or labels is not None:
        picture_folder = given_folder(images, "images") if images is not None else _images(top, _folders(top))
        label_folder = given_folder(labels, "labels") if labels is not None else _labels(top, _folders(top))
        return [Part("train", picture_folder, label_folder)] if label_folder else []
    folders = _folders(top)
    label_folder = _labels(top, folders)
    if label_folder is not None:
        return [Part("train", _images(top, folders), label_folder)]
    parts: list[Part] = []
    for name in folders:
        if (split := split_of_folder(name)) is not None:
            inner = os.path.join(top, name)
            inner_folders = _folders(inner)
            parts.append(Part(split, _images(inner, inner_folders), _labels(inner, inner_folders)))
    return parts if any(part.labels for part in parts) else []


def _folders(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name[0] != "." and entry.is_dir())


def _labels(folder: str, folders: list[str]) -> str | None:
    found = [name for name in folders if name.lower().startswith(LABEL_FOLDERS)]
    if len(found) > 1:
        raise DataError(f"{folder}: there must be one folder of DOTA labels, got {', '.join(found)}; choose one with --labels")
    return os.path.join(folder, found[0]) if found else None


def _images(folder: str, folders: list[str]) -> str:
    return next((os.path.join(folder, name) for name in folders if name.lower() in ("images", "image")), folder)


def _read_part(out: NamedScan, part: Part, split: int) -> None:
    root = out.scan.root
    names = list_images(part.images)
    texts = _by_stem(part.labels)
    label_of = _pair({_stem(name) for name in names}, texts)
    if part.labels is None:
        folder = below(root, part.images)
        out.report(Problem(folder, "no-label", "noted", f"no labelTxt beside it: all {len(names)} images are background"))
    read: dict[str, _Labels | None] = {}  # an image of another ending shares the file: read and reported once
    for name in names:
        path = os.path.join(part.images, name)
        key = below(root, path)
        key = name if is_elsewhere(key) else key
        text = label_of.get(_stem(name))
        if text is None:
            out.image(key, path, split)
            if part.labels is not None:
                out.report(Problem(key, "no-label", "noted", "no label file has its stem: a background image", image=key))
            continue
        assert part.labels is not None
        again = text in read
        if not again:
            read[text] = _read_file(out, os.path.join(part.labels, texts[text]))
        labels = read[text]
        if labels is None:
            label = below(root, os.path.join(part.labels, texts[text]))
            out.scan.skips.append(Skip(key, "unreadable", f"its label file {label} cannot be read"))
            continue
        image = out.image(key, path, split, file=labels.file, found=len(labels.rows) + labels.dropped)
        out.scan.rows_dropped += labels.dropped
        for row in labels.rows:
            out.row(image, *row)
    for stem in sorted(texts.keys() - set(label_of.values())):
        label = below(root, os.path.join(part.labels or "", texts[stem]))
        out.report(Problem(label, "unused-label-file", "noted", "no image has its stem"))


def _pair(pictures: set[str], texts: dict[str, str]) -> dict[str, str]:
    """Return stem of picture → stem of label file: the same, else the only one with the same last name."""
    label_of = {stem: stem for stem in pictures & texts.keys()}
    free: defaultdict[str, list[str]] = defaultdict(list)  # folders of one side need not be on the other
    for stem in pictures - texts.keys():
        free[_last(stem)].append(stem)
    for stem in texts:
        near = free.get(_last(stem), [])
        if stem not in pictures and len(near) == 1 and near[0] not in label_of:
            label_of[near[0]] = stem
    return label_of


def _by_stem(folder: str | None) -> dict[str, str]:
    return {_stem(name): name for name in list_files(folder, (".txt",))} if folder is not None else {}


@dataclass(slots=True)
class _Labels:
    """What one label file holds."""

    file: int
    rows: list[tuple[int, int, int, list[float]]]
    """Provisional class, flags, line, eight numbers."""
    dropped: int
    """Rows that could not be used."""


def _read_file(out: NamedScan, path: str) -> _Labels | None:
    """Read one label file and report its faults; None when it cannot be decoded."""
    label = below(out.scan.root, path)
    try:
        data = Path(path).read_bytes()
        lines = list(read_lines(data))
    except (UnicodeDecodeError, PermissionError) as error:
        out.report(Problem(label, "unreadable-labels", "dropped", f"must be readable UTF-8 text, got: {error}"))
        return None
    labels = _Labels(out.label_file(path, data), [], 0)
    for line, words in lines:
        kind, detail, row = _row(out, line, words)
        if row is None:
            out.report(Problem(label, kind, "dropped", detail, line=line))
            labels.dropped += 1
            continue
        if kind:
            out.report(Problem(label, kind, "changed", detail, line=line))
        labels.rows.append(row)
    return labels


def read_lines(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, words) of every row of a label file; blank lines and headers are passed over.

    Raises:
        UnicodeDecodeError: It is no text.
    """
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = data.decode("utf-16") if utf16 else data.decode("utf-8-sig")
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if words and not words[0].lower().startswith(HEADERS):
            yield number, words


def _row(out: NamedScan, line: int, words: list[str]) -> tuple[str, str, tuple[int, int, int, list[float]] | None]:
    """Return (kind of problem or "", detail, row or None when it is dropped)."""
    if len(words) not in (9, 10):
        return "columns", f"a row must have 8 coordinates, a class and a difficulty, got {len(words)} columns", None
    numbers: list[float] = []
    for word in words[:8]:
        value = decimal(word)
        if value is None:
            return "bad-number", f"a coordinate must be a number, got {word!r}", None
        numbers.append(value)
    difficulty = decimal(words[9]) if len(words) == 10 else 0.0
    if difficulty is None or not 0 <= difficulty <= 2:
        return "bad-number", f"difficulty must be 0, 1 or 2, got {words[9]!r}", None
    cls = out.classes.index(words[8])
    if cls is None:
        return "class-range", out.classes.complaint(words[8]), None
    flags = DIFFICULT if difficulty >= 1 else 0
    quad = np.array(numbers).reshape(4, 2)
    if not boxes.is_self_crossing(quad):
        return "", "", (cls, flags, line, numbers)
    rectangle = boxes.min_area_rectangle(quad).reshape(-1).tolist()
    detail = f"the sides of a box must not cross, got {' '.join(words[:8])}; its minimum-area rectangle is kept"
    return "self-crossing", detail, (cls, flags, line, rectangle)


def _learn_names(out: NamedScan, parts: list[Part]) -> None:
    """Let the splits that are not read have their say on class names, so that a class has the same index whatever is read."""
    if out.classes.closed or out.classes.single:
        return
    for part in parts:
        for name in _by_stem(part.labels).values():
            try:
                rows = list(read_lines(Path(part.labels or "", name).read_bytes()))
            except (UnicodeDecodeError, PermissionError):
                continue
            for line, words in rows:
                _row(out, line, words)


def _quads(corners_px: npt.NDArray[np.float64]) -> Rows:
    n = len(corners_px)
    return Rows(
        unit="px",
        file="",
        place="line",
        cls=np.zeros(n, np.int32),
        xyxy=np.zeros((n, 4)),
        has_box=np.zeros(n, np.bool_),
        kind=np.full(n, OBB, np.uint8),
        flags=np.zeros(n, np.uint8),
        where=np.zeros(n, np.int64),
        area=np.full(n, np.nan),
        part_offsets=np.arange(n + 1),
        point_offsets=np.arange(0, 4 * n + 1, 4),
        points=corners_px.reshape(-1, 2),
        keypoints=np.zeros((n, 0, 3)),
        rle=[None] * n,
    )


def _stem(path: str) -> str:
    return os.path.splitext(path)[0]


def _last(stem: str) -> str:
    return stem.rpartition("/")[2]
