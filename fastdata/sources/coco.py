"""COCO JSON → Scan: boxes, outlines, masks and keypoints of any number of images, without holding a file in memory.

Each file is gone through twice: once for where its lists lie (and its digest), once list by list, categories and images before
annotations, whatever their order in the file. Rows go to spooled columns; an image costs about 250 bytes, mostly its names.

Invariant: ``scan.rows_in == rows in the table + scan.rows_dropped``, rows_in being all annotations of the files that are read. An
image is known by its path below the root; ``file_name`` counts as a whole and may not leave the image folder.
"""

from __future__ import annotations

import os
import posixpath
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.errors import DataError, UsageError
from fastdata.labels import BOX, CROWD
from fastdata.problems import FATAL, Problem
from fastdata.sources.coco_categories import as_one_class, read_categories
from fastdata.sources.coco_layout import LabelJson, lay_out
from fastdata.sources.coco_rows import IdTable, RowRule, parse, whole
from fastdata.sources.files import stat_image
from fastdata.sources.json_window import JsonOutline, outline_json, peek_block, read_blocks
from fastdata.sources.named import below
from fastdata.sources.scan import LabelFile, RowTable, Scan, SourceOptions, Strings

SAMPLE = 8
"""Images that are looked for at the start of a list and again spread over its first block."""

MIN_CROWD = 10
"""Annotations below which a large share of crowds says nothing about the tool that wrote the file."""

MAX_KEYPOINTS = 1000
"""Twice as many as a face mesh has; guards the table, which gives every row as many."""

_DRIVE_OR_URL = re.compile(r"[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://")


def read_coco(src: Path, options: SourceOptions) -> Scan:
    """Read a dataset of COCO JSON files.

    Args:
        src: The folder of a dataset, or one JSON file; see :mod:`fastdata.sources.coco_layout` for what is found how.
        options: What the user says about it.

    Returns:
        The scan. ``decisions`` says which file and which image folder each split has.

    Raises:
        DataError: A file is malformed, an id or a name stands twice, a file_name leaves the image folder, or no image is found;
            with ``on_error="raise"`` the first fault of any kind.
        UsageError: An argument does not fit the dataset.
        OSError: A file is there and cannot be read.
    """
    if options.task == "obb":
        raise UsageError("task must be detect, segment or pose for a COCO dataset, got obb: COCO boxes have no angle")
    layout = lay_out(Path(src), options)
    if len(layout.files) > 255:
        raise UsageError(f"splits must be at most 255, got {len(layout.files)} in {layout.root}; choose some with --split")
    outlines = [outline_json(file.path, name=layout.name(file)) for file in layout.files]
    folders = [layout.find_images(file, _sample(outline)) for file, outline in zip(layout.files, outlines, strict=True)]
    reader = _Reader(layout.key_root(folders), layout.files, outlines, options)
    for split, folder in enumerate(folders):
        reader.read_images(split, folder)
    for split in range(len(folders)):
        reader.read_annotations(split)
    return reader.finish()


@dataclass(slots=True)
class _Listed:
    """The images that one file lists."""

    names: Strings = field(default_factory=Strings)
    """file_name, normalised."""
    ids: array[int] = field(default_factory=lambda: array("q"))
    size_hw: array[int] = field(default_factory=lambda: array("i"))
    """Two for each image, 0 where nothing usable is stated."""

    def repeats(self) -> list[tuple[int, int, str]]:
        """Return (image, earlier image, what they share) for every image whose id or name an earlier one has."""
        found: dict[int, tuple[int, str]] = {}
        for kind, values in (
            ("id", np.array(self.ids, np.int64)),
            ("file_name", np.fromiter((hash(name) for name in self.names), np.int64, len(self.names))),
        ):
            _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
            for i in np.flatnonzero(first[inverse] != np.arange(len(values))).tolist():
                earlier = int(first[inverse[i]])
                if kind == "id" or self.names[i] == self.names[earlier]:  # equal hashes are not yet equal names
                    found.setdefault(i, (earlier, kind))
        return [(i, *found[i]) for i in sorted(found)]


class _Reader:
    """One call of :func:`read_coco`."""

    def __init__(self, root: Path, files: tuple[LabelJson, ...], outlines: list[JsonOutline], options: SourceOptions) -> None:
        self.options, self.outlines = options, outlines
        self.names = [below(root, str(file.path)) for file in files]
        self.scan = Scan(
            source="coco", root=root, names=(), category_ids=(), splits=tuple(file.split for file in files), task="detect"
        )
        self.scan.label_files = [LabelFile(name, o.digest) for name, o in zip(self.names, outlines, strict=True)]
        self.categories = read_categories(outlines, options, self.report)
        self.scan.decisions.update(self.categories.decisions)
        self.scan.decisions["annotation-files"] = _per_split(self.scan.splits, self.names)
        self.keypoints = self.categories.keypoints or self._keypoints_of_rows()
        if self.keypoints > MAX_KEYPOINTS:
            raise DataError(f"{self.names[0]}: keypoints must be at most {MAX_KEYPOINTS} an object, got {self.keypoints}")
        if options.task == "pose" and not self.keypoints:
            raise DataError(f"{self.names[0]}: a category must list its keypoints for task pose, got none")
        self.table = RowTable("px", "annotation_id", self.keypoints, options.spool_folder)
        self.split, self.file_of = array("B"), array("i")
        self.image_id, self.nbytes, self.mtime_ns, self.size_hw = array("q"), array("q"), array("q"), array("i")
        self.images: list[IdTable] = []
        self.folders: list[str] = []
        self.posed = self.outlined = 0

    def report(self, problem: Problem) -> None:
        """Keep a problem; stop at one that must not be passed over."""
        stop = self.options.on_error
        if problem.is_fault and (stop == "raise" or (problem.kind in FATAL and stop != "skip")):
            raise DataError(f"{problem.where}: {problem.detail}")
        self.scan.problems.append(problem)

    def read_images(self, split: int, folder: Path) -> None:
        """Append the images that a file lists."""
        file, scan = self.names[split], self.scan
        listed = _Listed()
        for block in read_blocks(self.outlines[split], "images"):
            for entry in block:
                self._list_image(listed, entry, file, folder)
        repeats = {i: (earlier, what) for i, earlier, what in listed.repeats()}
        for i, (earlier, what) in repeats.items():
            self._report_repeat(listed, i, earlier, what, file)
        prefix, top = below(scan.root, str(folder)), os.path.join(folder, "")
        index = array("q")
        for i, name in enumerate(listed.names):
            if i in repeats:
                index.append(-1)
                continue
            path = top + name
            nbytes, mtime_ns = stat_image(path)
            index.append(len(scan.keys))
            scan.keys.append(f"{prefix}/{name}" if prefix else name)
            scan.paths.append(path)
            self.split.append(split)
            self.file_of.append(split)
            self.image_id.append(listed.ids[i])
            self.nbytes.append(nbytes)
            self.mtime_ns.append(mtime_ns)
            self.size_hw.extend(listed.size_hw[2 * i : 2 * i + 2])
        self.images.append(IdTable.of(listed.ids, index))
        self.folders.append(prefix or ".")

    def _list_image(self, listed: _Listed, entry: object, file: str, folder: Path) -> None:
        if not isinstance(entry, dict):
            self._refuse(file, f"an image must be an object with id and file_name, got {entry!r:.80}")
            return
        number = whole(entry.get("id"))
        if number is None or not -(2**63) <= number < 2**63:
            self._refuse(file, f"an image's id must be a whole number, got {entry.get('id')!r:.40} in {entry!r:.120}")
            return
        name = _file_name(entry)
        if name is None:
            self._refuse(file, f"image {number}: file_name must be a text, got {entry.get('file_name')!r:.40}")
            return
        if "\\" in name and not os.path.lexists(os.path.join(folder, name)):
            name = name.replace("\\", "/")
        listed.names.append(_checked(name, f"{file}: image {number}"))
        listed.ids.append(number)
        h, w = _side(entry.get("height")), _side(entry.get("width"))
        listed.size_hw.extend((h, w) if h and w else (0, 0))

    def _refuse(self, file: str, why: str) -> None:
        """Stop at an entry that names no image, or report it."""
        if self.options.on_error != "skip":
            raise DataError(f"{file}: {why}")
        self.report(Problem(file, "columns", "dropped", why))

    def _report_repeat(self, listed: _Listed, i: int, earlier: int, what: str, file: str) -> None:
        name, first = listed.names[i], listed.names[earlier]
        if what == "id":
            detail = f"image id must be unique, got {listed.ids[i]} for {first} and for {name}"
        else:
            detail = f"file_name must be unique, got {name} for image {listed.ids[earlier]} and for image {listed.ids[i]}"
        if self.options.on_error != "skip":
            raise DataError(f"{file}: {detail}; mend the file, or let the first count with --on-error skip")
        self.report(Problem(file, "duplicate", "dropped", f"{detail}; the first counts", image=name))

    def read_annotations(self, split: int) -> None:
        """Append the rows of a file."""
        file, scan, categories = self.names[split], self.scan, self.categories
        counts = categories.keypoint_counts
        rule = RowRule(
            file=file,
            images=self.images[split],
            categories=IdTable.of(categories.ids, np.arange(len(categories.ids))),
            keypoint_counts=counts if any(counts) else (self.keypoints,) * len(counts),
            keypoints=self.keypoints,
            single_cls=self.options.single_cls,
        )
        found = kept = crowds = texts = 0
        first_text = -1
        for items in read_blocks(self.outlines[split], "annotations"):
            block = parse(items, rule)
            for problem in block.problems:
                self.report(problem)
            self.table.add(block.image, block.rows)
            found += len(items)
            kept += len(block.rows)
            crowds += int(np.count_nonzero(block.rows.flags & CROWD))
            if block.texts and not texts:
                first_text = block.texts[0]
            texts += len(block.texts)
            self.posed += block.posed
            self.outlined += int(np.count_nonzero(block.rows.kind != BOX))
        scan.rows_in += found
        scan.rows_dropped += found - kept
        if texts:
            detail = f"numbers are written as text in {texts} of {found} annotations; read as numbers"
            self.report(Problem(file, "text-number", "noted", detail, annotation_id=first_text if first_text >= 0 else None))
        if kept >= MIN_CROWD and crowds * 2 > kept:
            detail = f"{crowds} of {kept} annotations are marked as crowds, which training leaves out: is iscrowd meant?"
            self.report(Problem(file, "mostly-crowd", "kept", detail))
        if not found and scan.splits[split] == "train" and self.options.on_error != "skip":
            raise DataError(f"{file}: annotations must hold at least one object for split train, got none")

    def _keypoints_of_rows(self) -> int:
        """Return K of the first annotation with keypoints, 0 without: for files whose categories do not list them."""
        for outline in self.outlines:
            if b'"keypoints"' not in peek_block(outline, "annotations"):
                continue
            for item in next(read_blocks(outline, "annotations"), []):
                values = item.get("keypoints") if isinstance(item, dict) else None
                if isinstance(values, list) and values and len(values) % 3 == 0:
                    self.scan.decisions["keypoints"] = f"{len(values) // 3} as in the annotations; no category lists them"
                    return len(values) // 3
        return 0

    def finish(self) -> Scan:
        """Close the table and fill in what is known now."""
        scan, options, categories = self.scan, self.options, self.categories
        n = len(scan.keys)
        scan.names, scan.category_ids = categories.names, categories.ids
        if options.single_cls:
            scan.names, scan.category_ids = as_one_class(categories, options)
            scan.decisions["names"] = "one class for all objects"
        elif options.names is not None:
            scan.decisions["names"] = "as given"
        scan.decisions["image-folders"] = _per_split(scan.splits, self.folders)
        scan.task = options.task or ("pose" if self.posed else "segment" if self.outlined else "detect")
        scan.keypoints = self.keypoints
        scan.keypoint_names, scan.flip_idx, scan.skeleton = categories.keypoint_names, categories.flip_idx, categories.skeleton
        scan.split, scan.image_id = np.array(self.split, np.uint8), np.array(self.image_id, np.int64)
        scan.nbytes, scan.mtime_ns = np.array(self.nbytes, np.int64), np.array(self.mtime_ns, np.int64)
        sizes_hw = np.array(self.size_hw, np.int32).reshape(-1, 2)
        self.table.finish(n, self.names, np.array(self.file_of, np.int32), sizes_hw)
        assert scan.rows_in == len(self.table) + scan.rows_dropped, (scan.rows_in, len(self.table), scan.rows_dropped)
        scan.table = self.table
        self._note_unlabelled(self.table.counts())
        return scan

    def _note_unlabelled(self, counts: npt.NDArray[np.int64]) -> None:
        for split, name in enumerate(self.names):
            mine = counts[self.scan.split == split]
            without = int(np.count_nonzero(mine == 0))
            if without * 2 > len(mine):
                self.report(Problem(name, "no-label", "noted", f"{without} of {len(mine)} images have no annotation"))


def _per_split(splits: Iterable[str], places: Iterable[str]) -> str:
    return "; ".join(f"{split}: {place}" for split, place in zip(splits, places, strict=True))


def _sample(outline: JsonOutline) -> list[str]:
    """Return a few names of the images that a file lists, as they would be looked for."""
    block = next(read_blocks(outline, "images"), [])
    entries = block[:SAMPLE] + block[SAMPLE :: max(1, (len(block) - SAMPLE) // SAMPLE)][:SAMPLE]
    names = [_file_name(entry) for entry in entries if isinstance(entry, dict)]
    return [_checked(name.replace("\\", "/"), outline.name) for name in names if name is not None]


def _file_name(entry: dict[str, Any]) -> str | None:
    """Return the path of an image below its folder. LVIS states it as the end of ``coco_url`` alone, after the host."""
    name = entry.get("file_name")
    if name is None and isinstance(url := entry.get("coco_url"), str):
        name = "/".join(url.split("/")[-2:])
    return name if isinstance(name, str) else None


def _checked(name: str, where: str) -> str:
    """Return a file_name in its simplest form.

    Raises:
        DataError: It is no path below the image folder.
    """
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as err:
        raise DataError(f"{where}: file_name must be a name that a disk can hold, got {name!r:.80}") from err
    simple = posixpath.normpath(name)
    leaves = simple.startswith(("/", "../")) or simple in (".", "..") or _DRIVE_OR_URL.match(name) is not None
    if leaves or not name or "\0" in name:
        raise DataError(f"{where}: file_name must be a path below the image folder, got {name!r:.120}")
    return simple


def _side(value: object) -> int:
    number = whole(value)
    return number if number is not None and 0 < number < 2**31 else 0
