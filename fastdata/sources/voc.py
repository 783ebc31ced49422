"""Read a Pascal VOC dataset: one xml file an image, classes by name, splits as lists of stems.

Boxes: the published form counts pixels from 1 and includes the last one, so that the edges are (xmin - 1, ymin - 1, xmax, ymax).
Many tools write edges that count from 0 instead. The set decides, not the file: if any xmin or ymin of it is 0, all of it is
taken as written. Every xml of the set is looked at for this, and for the class names, also in splits that are not read, so that
the labels of a split do not depend on which others are read with it.

A row's place is its object's number in the file, from 1. Geometry is judged elsewhere; a row is dropped here only when it cannot
be read (no box, no number, no class) or its class is none of the given names.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastdata.errors import DataError, UsageError
from fastdata.labels import BOX, Rows
from fastdata.problems import Problem, Skip
from fastdata.sources.named import NamedScan, below, choose_splits, in_split_order, is_elsewhere
from fastdata.sources.scan import Scan, SourceOptions
from fastdata.sources.voc_layout import Unit, check_pictures, find_units, read_list
from fastdata.sources.voc_xml import Annotation, Foreign, Unreadable, VocObject, parse


def read_voc(src: Path, options: SourceOptions) -> Scan:
    """Read the dataset below a folder.

    Args:
        src: Folder of the dataset (layouts: :mod:`fastdata.sources.voc_layout`). Keys are relative to it, or to
            ``options.images`` where that lies elsewhere.
        options: What the user says; ``voc_origin`` forces how boxes count.

    Raises:
        DataError: It is no such dataset, or a fault that ``options.on_error`` does not let pass.
        UsageError: An option does not fit it.
        OSError: A file cannot be read.
    """
    if options.task not in (None, "detect"):
        raise UsageError(f"task must be detect for a Pascal VOC dataset, which holds boxes only, got {options.task}")
    root = Path(os.path.abspath(src))
    units = find_units(root, options.images, options.labels)
    if not units:
        raise DataError(
            f"{root}: a Pascal VOC dataset must have a folder Annotations with xml files, or xml files beside the images; "
            f"say where they are with --labels and --images"
        )
    check_pictures(units, root)
    return _Reader(root, units, options).read()


class _Reader:
    """One reading: what is known so far about the origin, and the scan under way."""

    def __init__(self, root: Path, units: list[Unit], options: SourceOptions) -> None:
        self.root, self.units, self.options = root, units, options
        self.folder_splits = [{} if u.lists else {stem: u.split_of(stem, root) for stem in u.entries()} for u in units]
        by_folder = {split for splits in self.folder_splits for split in splits.values()}
        found = by_folder.union(*(unit.lists for unit in units))
        default = by_folder.union(*(unit.default_lists() for unit in units))
        wanted = in_split_order(default) if options.splits is None else options.splits
        self.splits = choose_splits(in_split_order(found), wanted, root)
        self.out = NamedScan("voc", root, self.splits, 4, options)
        self.zero: Problem | None = None  # the first minimum of 0
        self.told: set[str] = set()  # xml whose faults are reported

    def read(self) -> Scan:
        """Read the splits, then look at the rest of the set, then fix origin and classes."""
        done: list[set[str]] = [set() for _ in self.units]  # stems that have been read
        for split_number, split in enumerate(self.splits):
            for unit, folder_splits, seen in zip(self.units, self.folder_splits, done, strict=True):
                if split in unit.lists:
                    if self.options.splits is None and split not in unit.default_lists():
                        continue
                    self._read_list(unit, split, split_number, seen)
                for stem, its_split in folder_splits.items():
                    if its_split == split:
                        seen.add(stem)
                        self._entry(unit, stem, split_number)
        if len(self.out.scan.keys) + len(self.out.scan.skips) == 0:
            raise DataError(f"{self.root}: the splits {', '.join(self.splits)} must name at least one image, got none")
        for unit, seen in zip(self.units, done, strict=True):
            self._look_at_the_rest(unit, seen)
        self._say_what_was_decided(done)
        one_based = self._is_one_based()

        def as_rows(edges: npt.NDArray[np.float64]) -> Rows:
            if one_based:
                edges[:, :2] -= 1
            return _boxes(edges)

        return self.out.finish("detect", "object", as_rows)

    def _read_list(self, unit: Unit, split: str, split_number: int, seen: set[str]) -> None:
        """Read one list. An image that another split lists too is in both; within one list it comes once."""
        path = unit.lists[split]
        data = Path(path).read_bytes()
        self.out.label_file(path, data)
        lines: dict[str, int] = {}
        for line, text in read_list(data):
            stem = unit.resolve(text)
            first = lines.setdefault(stem, line)
            if first == line:
                self._entry(unit, stem, split_number)
            else:
                detail = f"an image must come once in {split}, got {text} again, which line {first} has; it is kept once"
                self.out.report(Problem(below(self.root, path), "duplicate", "dropped", detail, line=line))
        seen.update(lines)

    def _entry(self, unit: Unit, stem: str, split: int) -> None:
        """Read one xml and append its pictures, or the picture that has none."""
        pictures = unit.pictures_of(stem)
        if stem not in unit.xml:
            for path in [os.path.join(unit.images, name) for name in pictures or [f"{stem}.jpg"]]:
                key = self._key(unit, path)
                self.out.image(key, path, split)
                if pictures:
                    self.out.report(Problem(key, "no-label", "noted", "no xml file has its stem: a background image", image=key))
            return
        label_path = os.path.join(unit.labels, unit.xml[stem])
        label = below(self.root, label_path)
        try:
            data = Path(label_path).read_bytes()
            annotation = parse(data, label)
        except (Unreadable, PermissionError) as error:
            if isinstance(error, Foreign) and not pictures and not unit.lists:
                self.out.report(Problem(label, "unused-label-file", "noted", f"passed over: {error}"))
                return
            self.out.report(Problem(label, "unreadable-labels", "dropped", str(error)))
            for name in pictures or [f"{stem}.jpg"]:
                key = self._key(unit, os.path.join(unit.images, name))
                self.out.scan.skips.append(Skip(key, "unreadable", f"its label file {label}: {error}"))
            return
        file = self.out.label_file(label_path, data)
        told = label in self.told  # by another split
        self.told.add(label)
        if not told:
            self._note_file(label, annotation, pictures)
        paths = [os.path.join(unit.images, name) for name in pictures] or [_missing(unit, stem, annotation)]
        for at, path in enumerate(paths):
            key, found = self._key(unit, path), len(annotation.objects)
            image = self.out.image(key, path, split, file=file, found=found, size_hw=annotation.size_hw)
            for voc_object in annotation.objects:
                self._row(image, label, voc_object, told=told or at > 0)

    def _note_file(self, label: str, annotation: Annotation, pictures: list[str]) -> None:
        names = [name.rpartition("/")[2] for name in pictures]
        if annotation.filename and names and _same_text(annotation.filename) not in map(_same_text, names):
            detail = f"filename must be {' or '.join(names)}, the image that belongs to this file, got {annotation.filename!r}"
            self.out.report(Problem(label, "name-mismatch", "kept", detail))
        if annotation.size_hw is None:
            detail = f"size must be the image's width and height, got {annotation.size_text or 'none'}; the decoded image tells"
            self.out.report(Problem(label, "no-size", "noted", detail))

    def _row(self, image: int, label: str, voc_object: VocObject, *, told: bool) -> None:
        """Append one object, or report it; ``told``: its fault was reported for another picture or split with the same xml."""
        self._watch_origin(label, voc_object)
        cls = None if voc_object.fault else self.out.classes.index(voc_object.name)
        if cls is not None:
            self.out.row(image, cls, voc_object.flags, voc_object.number, voc_object.edges)
        elif told:
            self.out.scan.rows_dropped += 1
        else:
            kind, detail = voc_object.fault, voc_object.detail
            if not kind and not voc_object.name:
                kind, detail = "columns", "an object must have a name, got none"
            elif not kind:
                kind, detail = "class-range", self.out.classes.complaint(voc_object.name)
            self.out.report(Problem(label, kind, "dropped", detail, object=voc_object.number), dropped_rows=1)

    def _watch_origin(self, label: str, voc_object: VocObject) -> None:
        if self.zero is None and not voc_object.fault and 0 in voc_object.edges[:2]:
            tag = "xmin" if voc_object.edges[0] == 0 else "ymin"
            detail = f"{tag} is 0, which cannot be where pixels count from 1: the whole set is read as edges that count from 0"
            self.zero = Problem(label, "zero-based", "noted", detail, object=voc_object.number)

    def _look_at_the_rest(self, unit: Unit, seen: set[str]) -> None:
        """Let the splits that are not read have their say on class names and origin. Their faults are not reported: nothing of
        them is converted."""
        if (self.out.classes.closed or self.options.single_cls) and (self.options.voc_origin != "auto" or self.zero):
            return
        stems = (unit.resolve(text) for path in unit.lists.values() for _, text in read_list(Path(path).read_bytes()))
        for stem in dict.fromkeys(stems if unit.lists else unit.entries()):
            if stem in seen or stem not in unit.xml:
                continue
            path = os.path.join(unit.labels, unit.xml[stem])
            try:
                annotation = parse(Path(path).read_bytes(), below(self.root, path))
            except (Unreadable, PermissionError):
                continue
            for voc_object in annotation.objects:
                self._watch_origin(below(self.root, path), voc_object)
                if not voc_object.fault:
                    self.out.classes.index(voc_object.name)

    def _is_one_based(self) -> bool:
        forced = self.options.voc_origin
        if forced == "auto" and self.zero is not None:
            self.out.report(self.zero)
        one = self.zero is None if forced == "auto" else forced == "one"
        self.out.scan.decisions["voc-origin"] = ("1-based" if one else "0-based") + ("" if forced == "auto" else " (as asked)")
        return one

    def _say_what_was_decided(self, done: list[set[str]]) -> None:
        said: list[str] = []
        for unit, folder_splits, seen in zip(self.units, self.folder_splits, done, strict=True):
            place = below(self.root, unit.folder) or "."
            if not unit.lists:
                said.append(f"{place}: no ImageSets; by folder, {', '.join(in_split_order(set(folder_splits.values())))}")
                continue
            line = f"{place}: ImageSets with {', '.join(in_split_order(set(unit.lists)))}"
            if self.options.splits is None and "trainval" in unit.lists and "trainval" not in unit.default_lists():
                rest = {unit.resolve(text) for _, text in read_list(Path(unit.lists["trainval"]).read_bytes())} - seen
                line += "; trainval left out, since train and val hold its images"
                line += f" (all but {len(rest)}, for example {min(rest)}: convert them with --split trainval)" if rest else ""
            if unit.class_lists:
                line += f"; {unit.class_lists} lists of single classes passed over"
            said.append(line)
            self._note_unlisted(unit)
        self.out.scan.decisions["voc-splits"] = " | ".join(said)

    def _note_unlisted(self, unit: Unit) -> None:
        listed = {unit.resolve(text) for path in unit.lists.values() for _, text in read_list(Path(path).read_bytes())}
        rest = [stem for stem in unit.entries() if stem not in listed]
        if rest:
            folder = below(self.root, unit.labels) or "."
            detail = f"{len(rest)} xml files or images are in no list and are not read, for example {', '.join(rest[:3])}"
            self.out.report(Problem(folder, "unused-label-file", "noted", detail))

    def _key(self, unit: Unit, path: str) -> str:
        key = below(self.root, path)
        return below(unit.images, path) if is_elsewhere(key) else key


def _missing(unit: Unit, stem: str, annotation: Annotation) -> str:
    """Return where the picture of an xml should be: under the name that the file gives, unless another xml has that one."""
    name = annotation.filename
    if os.path.splitext(name)[0] != stem.rpartition("/")[2]:
        name = f"{stem.rpartition('/')[2]}.jpg"
    return os.path.join(unit.images, *stem.split("/")[:-1], name if os.path.splitext(name)[1] else f"{name}.jpg")


def _same_text(name: str) -> str:
    """Return the name with composed accents: disks and xml spell them in either way."""
    return unicodedata.normalize("NFC", name)


def _boxes(edges_px: npt.NDArray[np.float64]) -> Rows:
    n = len(edges_px)
    return Rows(
        unit="px",
        file="",
        place="object",
        cls=np.zeros(n, np.int32),
        xyxy=edges_px,
        has_box=np.ones(n, np.bool_),
        kind=np.full(n, BOX, np.uint8),
        flags=np.zeros(n, np.uint8),
        where=np.zeros(n, np.int64),
        area=np.full(n, np.nan),
        part_offsets=np.zeros(n + 1, np.int64),
        point_offsets=np.zeros(1, np.int64),
        points=np.zeros((0, 2)),
        keypoints=np.zeros((n, 0, 3)),
        rle=[None] * n,
    )
