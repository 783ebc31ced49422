"""Read a YOLO dataset: images, text labels, and what a data.yaml says about them.

The order of the dataset is: splits (train, val, test, minival, then others by name), in each the images in the order of its
listing. Problems stand in that order; notes on a whole split come at its end.

Invariants: rows in = rows in the table + rows dropped. Every image that a split names is in the scan once, labelled or not, there
or not; one that two splits name is in it twice. Nothing that the dataset names is fetched or run, and no cache file of a trainer
is read.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import numpy as np

from fastdata.errors import DataError, UsageError
from fastdata.labels import BOX, POLYGON
from fastdata.problems import FATAL, Problem
from fastdata.sources.files import digest, digest_bytes
from fastdata.sources.scan import LabelFile, RowTable, Scan, SourceOptions, Task
from fastdata.sources.yolo_images import Image, walk
from fastdata.sources.yolo_labels import Finder
from fastdata.sources.yolo_paths import NAMES_FILES, Layout, Place, lay_out
from fastdata.sources.yolo_rows import Block, RowRule, parse

BLOCK_FILES = 1024
BLOCK_NBYTES = 1 << 23
"""Label files are parsed this many at a time, or as soon as they hold this many bytes: then the cost of a call vanishes."""

ONE_CLASS = "object"
"""Name of the only class under ``single_cls``, where nobody names it."""

MAX_UNNAMED = 1 << 16
"""Classes of a dataset without names; a larger number in the first column is more likely no class at all."""

MAX_LOOKED_FOR = 1000
"""Images of a split without labels whose label files are looked for elsewhere."""

MAX_LISTED = 3
"""File names that a decision lists in full."""


def read_yolo(src: Path, options: SourceOptions) -> Scan:
    """Read a dataset of YOLO text labels.

    Args:
        src: A data.yaml; a folder with one in it; a folder of images and labels; or a text file that lists images.
        options: What the user says about it.

    Returns:
        The scan. ``decisions`` says what was found out by looking: root, layout, label rule, names, backgrounds.

    Raises:
        DataError: The dataset breaks its format where ``options.on_error`` does not allow it; starts with ``file:line``.
        UsageError: An argument does not fit the dataset.
        OSError: A file is there and cannot be read.
    """
    layout = lay_out(Path(src), options)
    if len(layout.splits) > 255:
        raise UsageError(f"splits must be at most 255, got {len(layout.splits)} in {layout.file}; choose some")
    reader = _Reader(layout, options)
    for index, (split, places) in enumerate(layout.splits):
        reader.read_split(index, split, places)
    return reader.finish()


CORNERS = 4
"""Points of an outline that may as well be an oriented box."""


class _Reader:
    """One call of :func:`read_yolo`."""

    def __init__(self, layout: Layout, options: SourceOptions) -> None:
        self.layout, self.options = layout, options
        self.task, self.rule, self.names = _rule(layout, options)
        self.is_told = options.task is not None or (layout.yaml is not None and layout.yaml.task in get_args(Task))
        labels_root = os.path.abspath(options.labels) if options.labels is not None else ""
        if labels_root and not os.path.isdir(labels_root):
            raise UsageError(f"labels must be an existing folder, got {options.labels}")
        self.finder = Finder(layout, labels_root)
        self.scan = Scan(
            source="yolo",
            root=Path(layout.root),
            names=(),
            category_ids=(),
            splits=tuple(split for split, _ in layout.splits),
            task=self.task,
            keypoints=self.rule.keypoints,
            keypoint_dims=self.rule.keypoint_dims,
            decisions=layout.decisions,
        )
        if layout.yaml is not None and self.rule.keypoints:
            self.scan.keypoint_names, self.scan.flip_idx = layout.yaml.keypoint_names, layout.yaml.flip_idx
        self.table = RowTable("norm", "line", self.rule.keypoints, options.spool_folder)
        self.split, self.nbytes, self.mtime_ns, self.file_of = array("B"), array("q"), array("q"), array("i")
        self.numbers: dict[str, int] = {}  # path of a label file → its place in scan.label_files
        self.missing = self.empty = 0
        self.boxes = self.outlines = 0
        """Rows that are boxes; rows that are outlines and no four corners, which may as well be an oriented box."""
        self.largest = -1
        for path in layout.read_files:
            self.register(path, digest(path))
        self.report(layout.problems)

    def read_split(self, index: int, split: str, places: list[Place]) -> None:
        """Read the images and labels of one split."""
        for place in places:
            if place.is_list:
                self.register(place.path, digest(place.path))
        first, rows_before = len(self.scan.keys), self.scan.rows_in
        missing, empty = self.missing, self.empty
        files: list[tuple[str, bytes]] = []
        said: list[tuple[int, Problem]] = []  # (number of images before it in the block, problem)
        nbytes = 0
        for item in walk(self.layout, split, places):
            if isinstance(item, Problem):
                said.append((len(files), item))
                continue
            files.append(self.add_image(index, item))
            nbytes += len(files[-1][1])
            if len(files) == BLOCK_FILES or nbytes > BLOCK_NBYTES:
                self.add_rows(files, said)
                files, said, nbytes = [], [], 0
        self.add_rows(files, said)
        self.report(self.finder.notes())
        missing, empty = self.missing - missing, self.empty - empty
        self.judge_split(split, len(self.scan.keys) - first, missing, empty, self.scan.rows_in - rows_before)

    def add_image(self, index: int, image: Image) -> tuple[str, bytes]:
        """Append an image; return name and content of its label file."""
        scan = self.scan
        scan.keys.append(image.key)
        scan.paths.append(image.path)
        self.split.append(index)
        self.nbytes.append(image.nbytes)
        self.mtime_ns.append(image.mtime_ns)
        label = self.finder.find(image.path, image.key)
        if label is None:
            self.file_of.append(-1)
            self.missing += 1
            return "", b""
        number = self.register(label.path, digest_bytes(label.data))
        self.file_of.append(number)
        return scan.label_files[number].path, label.data

    def add_rows(self, files: list[tuple[str, bytes]], said: list[tuple[int, Problem]]) -> None:
        """Parse the labels of the images appended last."""
        block = parse(files, self.rule)
        place = [(at, 0, problem) for at, problem in said] + [(at, 1, problem) for at, problem in block.problems]
        place.sort(key=lambda item: item[:2])
        self.report(problem for _, _, problem in place)
        self.table.add(block.file + (len(self.scan.keys) - len(files)), block.rows)
        self.scan.rows_in += int(block.found.sum())
        self.scan.rows_dropped += int(block.dropped.sum())
        self.empty += _count_empty(files, block)
        counts = block.rows.point_offsets[block.rows.part_offsets[1:]] - block.rows.point_offsets[block.rows.part_offsets[:-1]]
        self.boxes += int(np.count_nonzero(block.rows.kind == BOX))
        self.outlines += int(np.count_nonzero((block.rows.kind == POLYGON) & (counts != CORNERS)))
        if len(block.rows):
            self.largest = max(self.largest, int(block.rows.cls.max()))

    def report(self, problems: Iterable[Problem]) -> None:
        """Keep problems; stop at one that must not be passed over."""
        for problem in problems:
            stop = self.options.on_error
            if problem.is_fault and (stop == "raise" or (stop == "safe" and problem.kind in FATAL)):
                raise DataError(f"{problem.where}: {problem.detail}")
            self.scan.problems.append(problem)

    def register(self, path: str, content: bytes) -> int:
        """Note a file that labels or the list of images came from by its digest; return its number."""
        number = self.numbers.get(path)
        if number is None:
            number = self.numbers[path] = len(self.scan.label_files)
            self.scan.label_files.append(LabelFile(self.layout.key(path), content))
        return number

    def judge_split(self, split: str, images: int, missing: int, empty: int, rows: int) -> None:
        """Say when most images of a split have no label; a training split without any is an error, unless nobody has made one.

        Pictures without a single label file are a set of backgrounds. Files that hold nothing, or lie where nobody looks, are
        labels that were lost on the way.
        """
        without = f"{missing} of {images} images have no label file, {empty} an empty one"
        if split == "train" and not rows and self.options.on_error != "skip":
            paths = [self.scan.paths[i] for i in range(len(self.scan.paths) - images, len(self.scan.paths))]
            lost = self.finder.elsewhere(paths[:MAX_LOOKED_FOR]) if missing == images else None
            if lost is not None or missing < images or self.options.on_error == "raise":
                looked = " or ".join(self.layout.key(p) for p, _ in self.finder.places(paths[0]))
                there = f"; there is {lost}: name its folder with --labels" if lost is not None else ""
                rule = "train must have at least one label row, got none"
                raise DataError(f"{self.layout.file}: {rule}: {without}; looked for {looked}, and so on{there}")
        if (missing + empty) * 2 > images:
            self.report([Problem(split, "no-label", "noted", without)])

    def finish(self) -> Scan:
        """Close the table and say what was found out on the way."""
        scan, said = self.scan, self.scan.decisions
        n = len(scan.keys)
        if self.names is None:
            self.names = tuple(f"class {i}" for i in range(max(self.largest, 0) + 1))
            said["names"] = f"made up: {self.names[0]} to {self.names[-1]}, as far as the labels go"
        if self.task == "detect" and not self.is_told and self.outlines and not self.boxes:
            scan.task = "segment"
            said["task"] = "segment: every row is an outline"
        scan.names = self.names
        scan.category_ids = self.rule.ids if self.rule.ids is not None else tuple(range(len(self.names)))
        scan.split = np.array(self.split, np.uint8)
        scan.image_id = np.full(n, -1, np.int64)
        scan.nbytes, scan.mtime_ns = np.array(self.nbytes, np.int64), np.array(self.mtime_ns, np.int64)
        self.table.finish(n, [file.path for file in scan.label_files], np.array(self.file_of, np.int32))
        assert scan.rows_in == len(self.table) + scan.rows_dropped, (scan.rows_in, len(self.table), scan.rows_dropped)
        scan.table = self.table

        said["label-rule"] = ", ".join(f"{rule} ({count})" for rule, count in self.finder.rules.items()) or "none found"
        said["background-missing"], said["background-empty"] = str(self.missing), str(self.empty)
        unused = self.finder.unused(self.numbers, NAMES_FILES) if self.layout.is_whole else []
        if unused:
            more = ", ..." if len(unused) > MAX_LISTED else ""
            said["unused-label-files"] = f"{len(unused)}: {', '.join(unused[:MAX_LISTED])}{more}"
        return scan


def _count_empty(files: list[tuple[str, bytes]], block: Block) -> int:
    """Count label files without a row: empty, blank, or comments alone; not those that could not be read."""
    unreadable = {at for at, problem in block.problems if problem.kind == "unreadable-labels"}
    return sum(1 for at, (name, _) in enumerate(files) if name and not block.found[at] and at not in unreadable)


def _rule(layout: Layout, options: SourceOptions) -> tuple[Task, RowRule, tuple[str, ...] | None]:
    """Decide what the columns mean: (task, rule, names or ``None`` where the labels decide how many there are)."""
    yaml, said = layout.yaml, layout.decisions
    keypoints = yaml.keypoints if yaml is not None else 0
    stated: Task | None = next((known for known in get_args(Task) if yaml is not None and yaml.task == known), None)
    task: Task = options.task or ("pose" if keypoints else stated if stated in ("segment", "obb") else "detect")
    if task == "pose" and not keypoints:
        raise DataError(f"{layout.file}: kpt_shape must be given for task pose, got none; add kpt_shape: [K, 3] to the data.yaml")
    if keypoints and task in ("segment", "obb"):
        said["keypoints"] = f"not read: the task is {task}"
        keypoints = 0
    if yaml is not None and yaml.channels not in ("", "3"):
        said["channels"] = f"{yaml.channels} are stated; pictures are read as RGB"

    names = yaml.names if yaml is not None else layout.names
    ids = yaml.ids if yaml is not None else None
    if options.names is not None:
        if not options.names:
            raise UsageError("names must hold at least one name, got none")
        ids = ids if ids is not None and len(ids) == len(options.names) else None
        names, said["names"] = options.names, "as given"
    if options.single_cls:
        names = names if names is not None and len(names) == 1 else (ONE_CLASS,)
        ids, said["names"] = None, "one class for all objects"
    if yaml is not None and names is None:
        raise DataError(f"{layout.file}:1: names must be given, got neither names nor nc")
    if ids is not None:
        said["class-ids"] = f"{len(ids)} ids from {ids[0]} to {ids[-1]}; the class of an object is the place of its id among them"
    rule = RowRule(
        classes=MAX_UNNAMED if names is None else len(names),
        ids=ids,
        limit_is="the number of names" if names is not None else "the limit for a dataset without names",
        single_cls=options.single_cls,
        keypoints=keypoints,
        keypoint_dims=yaml.keypoint_dims if yaml is not None and keypoints else 3,
        obb=task == "obb",
    )
    return task, rule, names
