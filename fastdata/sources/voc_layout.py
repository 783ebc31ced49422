"""Where a Pascal VOC dataset keeps its files: which xml belongs to which pictures, and which list names them.

A *unit* is one folder of xml with one folder of pictures: a year of a development kit, or a flat folder with both. Layouts that
are known, names of folders in any case::

    Annotations/ JPEGImages/ ImageSets/Main/<split>.txt     the development kit; also one or two folders down, several at once
    annotations/ images/                                    no lists: split folders on the way name the split, else "train"
    a.jpg a.xml b.jpg b.xml                                 xml beside pictures, also as train/ valid/ test/

Pairing: by stem (path below the xml folder without ending = path below the picture folder without ending), so that one xml labels
every picture of its stem. An xml without such a picture may claim one that no other xml has: by its last name where that is
unique, else by its ``filename`` tag.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.errors import DataError, UsageError
from fastdata.sources.files import IMAGE_SUFFIXES, list_files, list_images
from fastdata.sources.named import below, given_folder, is_elsewhere, split_of_folder
from fastdata.sources.voc_xml import Unreadable, parse

LABEL_FOLDERS = ("annotations", "annotation", "xmls", "xml", "labels")
IMAGE_FOLDERS = ("jpegimages", "images", "image", "imgs", "img")
"""Names in lower case, the likeliest first."""

DEPTH = 2
"""Folders below the one given in which units are looked for: an archive unpacks to VOCdevkit/VOC2007."""

_FLAGGED = re.compile(r"(.*\S)\s+(?:-1|0|1)")
"""A line of a per-class list: a stem, then absent, difficult or present."""


@dataclass(slots=True)
class Unit:
    """One folder of xml and its pictures. A *stem* is a path below such a folder without the last ending."""

    folder: str
    """Absolute; holds ImageSets where there is one."""
    labels: str
    """Absolute folder of the xml."""
    images: str
    """Absolute folder of the pictures."""
    lists: dict[str, str]
    """Split → absolute path of its list; empty when there are no lists."""
    class_lists: int
    """Per-class lists that were passed over."""
    xml: dict[str, str] = field(default_factory=dict)
    """Stem → path below ``labels``."""
    pictures: dict[str, list[str]] = field(default_factory=dict)
    """Stem → paths below ``images``, sorted."""
    claims: dict[str, str] = field(default_factory=dict)
    """Stem of an xml → stem of the pictures that it claims, where it has none of its own."""
    owner: dict[str, str] = field(default_factory=dict)
    """The claims the other way round."""

    def default_lists(self) -> list[str]:
        """Return the splits that together hold each image once: trainval is train and val over again."""
        return [s for s in self.lists if s != "trainval" or not {"train", "val"} <= self.lists.keys()]

    def pictures_of(self, stem: str) -> list[str]:
        """Return the pictures that belong to an entry, as paths below ``images``."""
        return self.pictures.get(self.claims.get(stem, stem), [])

    def entries(self) -> list[str]:
        """Return the stem of every entry, labelled or not, sorted; a claimed picture is part of its xml's entry."""
        return sorted((self.xml.keys() | self.pictures.keys()) - self.owner.keys())

    def resolve(self, line: str) -> str:
        """Return the stem that a line of a list means; it may be one that has no file.

        A line is a stem, perhaps with an ending or with a flag after it. What exists decides, since names may hold blanks.
        """
        flagged = _FLAGGED.fullmatch(line)
        plain = flagged[1] if flagged else line
        for name in (line, plain):
            for stem in (name, _stem(name)):
                if stem in self.xml or stem in self.pictures:
                    return self.owner.get(stem, stem)
        return _stem(plain) if os.path.splitext(plain)[1].lower() in IMAGE_SUFFIXES | {".xml"} else plain

    def split_of(self, stem: str, root: Path) -> str:
        """Return the split that the folders of an entry name, "train" where they name none."""
        for top, files in ((self.labels, [self.xml.get(stem, "")]), (self.images, self.pictures_of(stem))):
            prefix = below(root, top)
            for part in [*([] if is_elsewhere(prefix) else prefix.split("/")), *(files[0].split("/")[:-1] if files else [])]:
                if (split := split_of_folder(part)) is not None:
                    return split
        return "train"


def read_list(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of every line of a list that is not blank."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.strip()


def find_units(root: Path, images: Path | None = None, labels: Path | None = None) -> list[Unit]:
    """Find the units of a dataset, empty when it is none.

    Args:
        root: Absolute folder.
        images: Folder of the pictures, where the user says so.
        labels: Folder of the xml, where the user says so.

    Raises:
        UsageError: Folders were given, and there are several units that they could belong to.
    """
    places = find_places(root)
    if images is not None or labels is not None:
        if len(places) > 1:
            several = ", ".join(below(root, folder) for folder, *_ in places)
            raise UsageError(f"images and labels must be left out for several folders of xml, got {several}; convert one by one")
        folder, found_labels, found_images = places[0] if places else (os.fspath(root), os.fspath(root), os.fspath(root))
        if not places and images is None:
            found_images = _child(folder, _look(folder)[0], IMAGE_FOLDERS) or folder
        places = [
            (
                folder,
                found_labels if labels is None else given_folder(labels, "labels"),
                found_images if images is None else given_folder(images, "images"),
            )
        ]
        if not list_files(places[0][1], (".xml",)):
            return []
    return [_pair(root, folder, label_folder, image_folder) for folder, label_folder, image_folder in places]


def find_places(root: Path, depth: int = DEPTH) -> list[tuple[str, str, str]]:
    """Return (folder, folder of xml, folder of pictures) of every unit: those of the first depth that has any."""
    level = [os.fspath(root)]
    for _ in range(depth + 1):
        listed: dict[str, tuple[list[str], bool, bool]] = {}
        for folder in level:
            try:
                listed[folder] = _look(folder)
            except PermissionError:
                if folder == os.fspath(root):
                    raise  # below it, a folder like lost+found is nobody's dataset
        places = [place for folder, look in listed.items() if (place := _place(folder, *look))]
        if places:
            return places
        level = [os.path.join(folder, name) for folder, look in listed.items() for name in look[0]]
    return []


def _look(folder: str) -> tuple[list[str], bool, bool]:
    """Return the names of the sub-folders, whether there is xml and whether there is a picture right here."""
    folders: list[str] = []
    xml = picture = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            else:
                ending = os.path.splitext(entry.name)[1].lower()
                xml |= ending == ".xml"
                picture |= ending in IMAGE_SUFFIXES
    return sorted(folders), xml, picture


def _child(folder: str, folders: list[str], names: Iterable[str]) -> str | None:
    """Return the first sub-folder with one of the names, in their order."""
    return next((os.path.join(folder, name) for wanted in names for name in folders if name.lower() == wanted), None)


def _holds_xml(folder: str) -> bool:
    """Tell whether an xml file lies in a folder or in a folder of it."""
    folders, xml, _ = _look(folder)
    return xml or any(_look(os.path.join(folder, name))[1] for name in folders)


def _place(folder: str, folders: list[str], xml: bool, picture: bool) -> tuple[str, str, str] | None:
    likely = (os.path.join(folder, name) for wanted in LABEL_FOLDERS for name in folders if name.lower() == wanted)
    label_folder = next((path for path in likely if _holds_xml(path)), None)
    if label_folder is not None:
        return folder, label_folder, _child(folder, folders, IMAGE_FOLDERS) or folder
    return (folder, folder, folder) if xml and picture else None


def _pair(root: Path, folder: str, labels: str, images: str) -> Unit:
    lists, class_lists = _lists(folder)
    unit = Unit(folder, labels, images, lists, class_lists)
    for name in list_files(labels, (".xml",)):
        unit.xml.setdefault(_stem(name), name)
    for name in list_images(images):
        unit.pictures.setdefault(_stem(name), []).append(name)
    orphans = [stem for stem in unit.xml if stem not in unit.pictures]
    if orphans:
        _claim(unit, orphans, root)
    return unit


def _claim(unit: Unit, orphans: list[str], root: Path) -> None:
    """Give pictures that no xml has by stem to the xml that have no picture by stem."""
    free: defaultdict[str, list[str]] = defaultdict(list)  # last name without ending → stems
    for stem in unit.pictures.keys() - unit.xml.keys():
        free[_last(stem)].append(stem)
    seekers: defaultdict[str, list[str]] = defaultdict(list)
    for stem in orphans:
        seekers[_last(stem)].append(stem)
    for stem in orphans:
        name = _last(stem)
        stems = free[name] if name in free and len(seekers[name]) == 1 else []
        if len(stems) != 1:
            tag = _filename(unit, stem, root)
            stems = free.get(tag) or free.get(_stem(tag)) or []
        if len(stems) == 1 and stems[0] not in unit.owner:
            unit.claims[stem] = stems[0]
            unit.owner[stems[0]] = stem


def _filename(unit: Unit, stem: str, root: Path) -> str:
    path = os.path.join(unit.labels, unit.xml[stem])
    try:
        return parse(Path(path).read_bytes(), below(root, path)).filename
    except (Unreadable, OSError):
        return ""  # met again, and reported, when the file is read for its labels


def _lists(folder: str) -> tuple[dict[str, str], int]:
    """Return split → path of the lists, and the number of per-class lists beside them."""
    sets = _child(folder, _look(folder)[0], ("imagesets",))
    if sets is None:
        return {}, 0
    main = _child(sets, _look(sets)[0], ("main",)) or sets
    with os.scandir(main) as entries:
        found = {_stem(e.name): e.path for e in entries if e.name.lower().endswith(".txt") and e.name[0] != "." and e.is_file()}
    lists = {name: found[name] for name in sorted(found) if not _is_class_list(name, found)}
    return lists, len(found) - len(lists)


def _is_class_list(name: str, lists: dict[str, str]) -> bool:
    """Tell whether a list is of one class, as dog_train beside train: its lines end with a flag."""
    of_class, _, split = name.rpartition("_")
    if not of_class or split not in lists:
        return False
    _, line = next(read_list(Path(lists[name]).read_bytes()), (0, ""))
    return _FLAGGED.fullmatch(line) is not None


def _stem(path: str) -> str:
    return os.path.splitext(path)[0]


def _last(stem: str) -> str:
    return stem.rpartition("/")[2]


def check_pictures(units: list[Unit], root: Path) -> None:
    """Raise a :class:`DataError` if there is no picture at all."""
    if not any(unit.pictures for unit in units):
        looked = ", ".join(below(root, unit.images) or "." for unit in units)
        raise DataError(f"{root}: a Pascal VOC dataset must hold images, got none in {looked}; say where they are with --images")
