"""Where a COCO dataset lies: which JSON file holds which split, and below which folder its images are.

    annotations/instances_train2017.json  images/train2017/ or train2017/     as published: one file a split
    annotations.json                      images/                             one file
    train/_annotations.coco.json          train/                              one file in each split's folder

The image folder is found by looking, never assumed: the candidate that holds the most of a few sampled images wins, the first of
equals. All paths are absolute; links are kept as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import DataError
from fastdata.sources.named import below, choose_splits, given_folder, in_split_order, split_of_folder
from fastdata.sources.scan import SourceOptions

INSTANCES, KEYPOINTS = "instances_", "person_keypoints_"
"""How the published file of boxes and outlines of a split begins, and that of its keypoints."""

NO_DETECTION = ("captions_", "panoptic_", "stuff_", "image_info_", "sem_", "pixelmaps_")
"""Files that lie beside them and hold no objects with boxes."""

SPLIT_FILE = "_annotations.coco.json"
"""Name of the file in a split's folder, as labelling sites export it."""

SAYS_NOTHING = frozenset(
    ("all", "annotation", "annotations", "coco", "data", "dataset", "default", "export", "instance", "instances", "keypoints",
     "label", "labels", "objects", "output", "result", "results")
)  # fmt: skip
"""Words in a file's name that name no split."""

ANNOTATION_FOLDERS = ("annotations", "annotation")
"""Names, in lower case, of a folder of JSON files within the dataset's folder."""

IMAGE_FOLDERS = ("images", "data", "JPEGImages", "imgs")
"""Usual names of an image folder that has no name of a split."""

YEARS = ("2017", "2014")
"""Published folders carry one of these; a file called ``train.json`` does not say which."""

PEEK_NBYTES = 1 << 16
"""Bytes at the start and at the end of a file that are looked at to see whether it is one of COCO's."""

MAX_SHOWN = 12
"""Places that an error lists."""

_LIST = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_YEAR = re.compile(r"[-_.]?(19|20)\d\d$")


@dataclass(frozen=True, slots=True)
class LabelJson:
    """One JSON file and the split that it holds."""

    path: Path
    split: str
    suffix: str
    """What the name says in full, such as ``train2017``."""

    @property
    def folder_names(self) -> tuple[str, ...]:
        """Names that a folder of its images may have, the likeliest first."""
        other = {"val": "valid", "valid": "val"}.get(self.split, self.split)
        return tuple(dict.fromkeys([self.suffix, self.split, other, *(self.split + year for year in YEARS), self.path.stem]))


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of a dataset, and where to look for their images."""

    root: Path
    """The folder of the dataset."""
    files: tuple[LabelJson, ...]
    """In the order of the splits."""
    images: Path | None
    """The folder of images that the user names."""
    is_single: bool
    """Whether one file was named and not a folder: its images may lie beside its folder too."""

    def candidates(self, file: LabelJson) -> Iterator[Path]:
        """Yield the folders where images of a file may lie, the likeliest first."""
        names = file.folder_names
        if self.images is not None:
            yield self.images
            for top in (self.images, self.images / "images"):
                yield from (top / name for name in names)
            yield self.images / "images"
            return
        folder = file.path.parent
        if file.path.name == SPLIT_FILE:
            yield folder
        for top in dict.fromkeys((self.root, folder)):
            yield from (top / "images" / name for name in names)
            yield from (top / name for name in names)
            yield from (top / name for name in IMAGE_FOLDERS)
            yield top
        if self.is_single:
            beside = self.root.parent
            yield from (beside / "images" / name for name in names)
            yield from (beside / name for name in names)
            yield beside / "images"

    def key_root(self, folders: Sequence[Path]) -> Path:
        """Return the folder that keys are relative to, given the image folder of each file: the root, if all lie in it."""
        if all(folder.is_relative_to(self.root) for folder in folders):
            return self.root
        return self.images if self.images is not None else self.root.parent

    def find_images(self, file: LabelJson, sample: Sequence[str]) -> Path:
        """Return the folder that ``file_name`` is relative to.

        Args:
            file: The file.
            sample: A few of its file names.

        Raises:
            DataError: None of them is anywhere.
        """
        best, most = None, 0
        looked = list(dict.fromkeys(self.candidates(file)))
        for folder in looked:
            hits = sum(os.path.isfile(folder / name) for name in sample)
            if hits > most:
                best, most = folder, hits
        if best is None and sample:
            there = [folder for folder in looked if folder.is_dir()] or looked
            shown = ", ".join(str(folder) for folder in there[:MAX_SHOWN]) + (", ..." if len(there) > MAX_SHOWN else "")
            raise DataError(
                f"{self.name(file)}: its images must lie in a folder of the dataset, but of {len(sample)} that were tried (first "
                f"{sample[0]}) none is in {shown}; say where they are with --images, or leave the split out with --split"
            )
        return best or self.root

    def name(self, file: LabelJson) -> str:
        """Return how reports call a file: relative to the root."""
        return below(self.root, str(file.path))


def lay_out(src: Path, options: SourceOptions) -> Layout:
    """Find the files of a COCO dataset.

    Args:
        src: A JSON file, or the folder of a dataset.
        options: ``splits``, ``images`` and ``task`` are looked at.

    Raises:
        DataError: There is no JSON file, or several of which none can be preferred.
        UsageError: A split or folder that the user names does not exist.
    """
    src = Path(os.path.abspath(src))
    images = None if options.images is None else Path(given_folder(options.images, "images"))
    if src.is_dir():
        return Layout(src, _choose(_in_folder(src, options), options, src), images, is_single=False)
    split, suffix = split_of(src.stem)
    split = split or split_of_folder(src.parent.name) or ""
    if split_of_folder(split) is None and options.splits is not None and len(options.splits) == 1:
        split = options.splits[0]  # a file that does not say what it is can be any one split
    split = split or "train"
    root = src.parent.parent if src.parent.name.lower() in ANNOTATION_FOLDERS else src.parent
    return Layout(root, _choose([LabelJson(src, split, suffix or split)], options, src), images, is_single=True)


def split_of(stem: str) -> tuple[str, str]:
    """Return the split that a file's name states and the word that states it, ("", "") where it states none.

    The last word that names a split counts (``instances_train2017``, ``train_coco``); else the last word, whatever it is
    (``cats_night`` is the split ``night``), unless it is one that says nothing.
    """
    words = [word for word in re.split(r"[_.\s]+", stem) if word]
    for word in reversed(words):
        if (split := split_of_folder(word)) is not None:
            return split, word
    last = words[-1] if words else ""
    if not _YEAR.sub("", last) or _YEAR.sub("", last).lower() in SAYS_NOTHING:
        return "", ""
    return _YEAR.sub("", last), last


def _in_folder(src: Path, options: SourceOptions) -> list[LabelJson]:
    annotations = [folder for folder in _folders(src) if folder.name.lower() in ANNOTATION_FOLDERS]
    for folder in annotations:
        if files := _jsons(folder):
            return _one_a_split(files, options)
    for folder in (src, *annotations):
        if found := _in_split_folders(folder):
            return found
    if files := _jsons(src):
        return _one_a_split(files, options)
    raise DataError(
        f"{src}: a COCO dataset must have JSON files in annotations/, in split folders (train/{SPLIT_FILE}) or in the folder "
        "itself, got none; name the JSON file itself"
    )


def _folders(top: Path) -> list[Path]:
    return [top / name for name in sorted(os.listdir(top)) if name[0] != "." and (top / name).is_dir()]


def _in_split_folders(top: Path) -> list[LabelJson]:
    splits = {folder: split for folder in _folders(top) if (split := split_of_folder(folder.name)) is not None}
    files = {folder: file for folder in splits if (file := _of_split_folder(folder)) is not None}
    stated = [splits[folder] for folder in files]
    return [
        LabelJson(file, split if stated.count(split) == 1 else folder.name, folder.name)
        for (folder, file), split in zip(files.items(), stated, strict=True)
    ]


def _jsons(folder: Path) -> list[Path]:
    """List the files that may hold objects, by name."""
    files = [
        folder / name
        for name in sorted(os.listdir(folder))
        if name.lower().endswith(".json") and name[0] != "." and not name.startswith(NO_DETECTION) and (folder / name).is_file()
    ]
    return [file for file in files if _shows_lists(file)] or files


def _shows_lists(path: Path) -> bool:
    """Tell whether one of COCO's lists begins near the start or the end of a file: settings are JSON files too."""
    with open(path, "rb") as file:
        head = file.read(PEEK_NBYTES)
        file.seek(max(0, file.seek(0, os.SEEK_END) - PEEK_NBYTES))
        return _LIST.search(head) is not None or _LIST.search(file.read()) is not None


def _of_split_folder(folder: Path) -> Path | None:
    files = _jsons(folder)
    if len(files) > 1:
        named = [file for file in files if file.name.lower().endswith(".coco.json")]
        if len(named) != 1:
            listed = ", ".join(file.name for file in files[:MAX_SHOWN])
            raise DataError(f"{folder}: a split's folder must hold one COCO file, got {listed}; name the JSON file to read")
        files = named
    return files[0] if files else None


def _one_a_split(files: list[Path], options: SourceOptions) -> list[LabelJson]:
    """Choose the file of each split: that of the wanted kind; years are kept in the names of splits that would else be equal."""
    first, second = (KEYPOINTS, INSTANCES) if options.task == "pose" else (INSTANCES, KEYPOINTS)

    def rank(file: LabelJson) -> int:
        return 0 if file.path.name.startswith(first) else 1 if file.path.name.startswith(second) else 2

    found = []
    for path in files:
        split, suffix = split_of(path.stem)
        nothing = "train" if len(files) == 1 else path.stem
        found.append(LabelJson(path, split or nothing, suffix or nothing))
    by_split: dict[str, list[LabelJson]] = {}
    for file in found:
        by_split.setdefault(file.split, []).append(file)
    chosen: list[LabelJson] = []
    for group in by_split.values():
        best = [file for file in group if rank(file) == min(map(rank, group))]
        suffixes = [file.suffix for file in best]
        if len(best) > 1:
            best = [LabelJson(f.path, f.suffix if suffixes.count(f.suffix) == 1 else f.path.stem, f.suffix) for f in best]
        chosen += best
    return chosen


def _choose(found: list[LabelJson], options: SourceOptions, root: Path) -> tuple[LabelJson, ...]:
    """Return the files of the splits that are wanted, in order; a split may also be called by its full suffix."""
    by_split = {file.split: file for file in found}
    by_suffix = {file.suffix: file.split for file in found}
    wanted = options.splits
    if wanted is not None:
        wanted = tuple(name if name in by_split else by_suffix.get(name, split_of_folder(name) or name) for name in wanted)
    return tuple(by_split[split] for split in choose_splits(in_split_order(set(by_split)), wanted, root))
