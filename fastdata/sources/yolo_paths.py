"""Where a YOLO dataset lies: the splits of a data.yaml, of a folder, or of a list file, and the root of its keys.

Paths stay as the dataset gives them; links are followed by the operating system alone. The key of an image is its path relative
to the root::

    root = the folder of the data.yaml (or the given folder, or the folder of the list),
           else its ``path``, else the deepest folder with all splits below it: the first that holds every split

An image elsewhere has its path below ``options.images`` as key where it lies there, else its way from the root, with ``..``.

A relative path is looked for below, in this order: ``options.images``, the folder of the file that names it, the folder of the
data.yaml, its ``path``, the current directory. The first place where it exists wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.errors import DataError, UsageError
from fastdata.problems import Problem
from fastdata.sources.files import is_image_name, list_images, open_regular
from fastdata.sources.scan import SourceOptions
from fastdata.sources.yolo_yaml import DataYaml, Entry, names_a_split, read_yaml

_SPLIT_NAME = re.compile(r"(?:obj_)?(train|val|test|minival)(?:ing|id|idation)?(?:_data)?(?:[-_]?(?:19|20)\d\d)?", re.IGNORECASE)
"""Folder and list names that say which split they are: train, training, valid, val2017, obj_train_data (CVAT's export)."""

_ORDER = {"train": 0, "val": 1, "test": 2, "minival": 3}

NAMES_FILES = ("classes.txt", "obj.names", "classes.names")
"""Files with one class name a line: labelImg and Label Studio, darknet, and a common spelling."""

YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of images, or a file that lists images."""

    path: str
    """Absolute."""
    is_list: bool


@dataclass(frozen=True, slots=True)
class Base:
    """A folder that relative paths are looked for in."""

    folder: str
    """Absolute."""
    said: str
    """How a report calls it; "" for the one that needs no word."""
    is_images: bool = False
    """It is ``options.images``: a component ``images`` of a path may be this folder itself."""

    def paths(self, text: str) -> tuple[str, ...]:
        """Return the paths that a relative text may mean here."""
        path = os.path.join(self.folder, text)
        parts = text.split("/")
        if not self.is_images or "images" not in parts:
            return (path,)
        parts.remove("images")
        return path, os.path.join(self.folder, *parts).rstrip("/")


@dataclass(slots=True)
class Layout:
    """A dataset's splits and where they lie. Folders are absolute."""

    root: str
    file: str
    """Name of the data.yaml, folder or list that was given, for messages."""
    splits: list[tuple[str, list[Place]]] = field(default_factory=list)
    """What to read, in this order."""
    is_whole: bool = True
    """Whether ``splits`` are all there are."""
    yaml: DataYaml | None = None
    images_root: str = ""
    """``options.images``, "" where not given."""
    bases: list[Base] = field(default_factory=list)
    """Where relative paths are looked for, after the folder of the file that names them."""
    names: tuple[str, ...] | None = None
    """Class names from a file with one name a line."""
    read_files: list[str] = field(default_factory=list)
    """Files that all this was read from."""
    decisions: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def key(self, path: str) -> str:
        """Return the key of an image, or the name of any other file for reports."""
        if "/." in path or "//" in path:
            path = os.path.normpath(path)
        for top in (self.root, self.images_root):
            if top and is_below(path, top):
                return path[len(top) :].lstrip("/")
        return os.path.relpath(path, self.root)


def is_below(path: str, top: str) -> bool:
    """Tell whether a path lies in a folder or is it; both absolute."""
    return path.startswith(top) and (len(path) == len(top) or top.endswith("/") or path[len(top)] == "/")


def split_of(name: str) -> str | None:
    """Return the split that a folder or list name stands for: train2017 → train, valid → val; ``None`` where it says nothing."""
    match = _SPLIT_NAME.fullmatch(name)
    return match[1].lower() if match else None


def lay_out(src: Path, options: SourceOptions) -> Layout:
    """Find the splits of a dataset.

    Args:
        src: data.yaml, folder, or list file.
        options: ``splits``, ``images`` and ``names`` are looked at here.

    Raises:
        DataError: A split that is needed does not exist, or the folder has no shape that is known.
        UsageError: ``src`` is none of the three, or a split is asked for that there is not.
        FileNotFoundError: There is no ``src``.
    """
    path = os.path.abspath(src)
    os.stat(path)
    images_root = os.path.abspath(options.images) if options.images is not None else ""
    if images_root and not os.path.isdir(images_root):
        raise UsageError(f"images must be an existing folder, got {options.images}")
    if os.path.isdir(path):
        found = _yaml_in(path)
        return _from_yaml(found, images_root, options) if found else _from_folder(path, images_root, options)
    suffix = os.path.splitext(path)[1].lower()
    if suffix in YAML_SUFFIXES:
        return _from_yaml(path, images_root, options)
    if suffix == ".txt":
        return _from_list(path, images_root, options)
    raise UsageError(f"src must be a data.yaml, a folder, or a .txt file that lists images, got {src}")


def read_lines(path: str, name: str) -> list[str]:
    """Return the lines of a text file: UTF-8 with or without a mark, UTF-16 with one; other bytes stay as file names have them.

    Args:
        path: The file.
        name: How an error calls it.
    """
    with open(open_regular(path), "rb") as file:
        data = file.read()
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = data.decode("utf-16")
        else:
            text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except UnicodeDecodeError as err:
        raise DataError(f"{name}:{err.start}: a list must be text in UTF-8 or UTF-16, got {err.reason}") from err
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{name}:{line}: a list must be text with one entry a line, got NUL bytes")
    return re.split("\r\n|\r|\n", text)


def _wanted(options: SourceOptions, found: Collection[str], listed: Sequence[str], file: str) -> list[str]:
    """Return the splits to read, in order: those asked for, else those listed."""
    if options.splits is None:
        return list(listed)
    if not options.splits:
        raise UsageError(f"splits must name at least one of {', '.join(listed)} in {file}, got none")
    wanted = [split if split in found else split_of(split) or split for split in options.splits]
    for at, split in enumerate(wanted):
        if split not in found:
            raise UsageError(f"split must be one of {', '.join(listed)} in {file}, got {options.splits[at]!r}")
        if split in wanted[:at]:
            raise UsageError(f"splits must differ, got {split!r} twice")
    return wanted


# data.yaml


def _yaml_in(folder: str) -> str | None:
    """Return the data.yaml of a folder, or the only other YAML in it that names a split."""
    for name in ("data.yaml", "data.yml"):
        if os.path.isfile(path := os.path.join(folder, name)):
            return path
    names = sorted(n for n in os.listdir(folder) if os.path.splitext(n)[1].lower() in YAML_SUFFIXES and n[0] != ".")
    found = [n for n in names if names_a_split(Path(folder, n))]
    if len(found) > 1:
        raise UsageError(f"src must be one of the files {', '.join(found)} in {folder}, got the folder")
    return os.path.join(folder, found[0]) if found else None


def _from_yaml(path: str, images_root: str, options: SourceOptions) -> Layout:
    yaml = read_yaml(Path(path))
    file = yaml.file.name
    folder, cwd = os.path.dirname(path), os.getcwd()
    bases = [Base(images_root, "the given folder of images", is_images=True)] if images_root else []
    bases.append(Base(folder, f"the folder of {file}"))
    path_folder = ""
    if yaml.path is not None:
        tried = (os.path.normpath(os.path.join(base, yaml.path.text)) for base in (folder, cwd))
        path_folder = next((at for at in tried if os.path.isdir(at)), "")
    if path_folder and path_folder != folder:
        bases.append(Base(path_folder, f"path of {file}"))
    if cwd not in (folder, path_folder):
        bases.append(Base(cwd, "the current directory"))

    if options.splits is None and "train" not in yaml.splits:
        raise DataError(f"{file}:1: train must be a folder or list file, got none; name the splits to read to do without it")
    layout = Layout("", file, yaml=yaml, images_root=images_root, bases=bases, read_files=[path])
    wanted = _wanted(options, [*yaml.splits, *yaml.others], list(yaml.splits), file)
    every: list[Place] = []
    for split in dict.fromkeys([*wanted, *yaml.splits]):  # the unwanted ones too: the root must not depend on what is asked for
        found = _resolve(layout, split, (yaml.splits | yaml.others)[split])
        if isinstance(found, Problem):
            if split in wanted and (options.splits is not None or split == "train"):
                raise DataError(f"{found.where}: {found.detail}")
            if split in wanted:
                layout.problems.append(found)
                layout.decisions[f"split {split}"] = "named but not there"
            continue
        places = [place for place, _ in found]
        every += places
        if split in wanted:
            layout.splits.append((split, places))
            said = sorted({base for _, base in found} - {"", f"the folder of {file}"})
            if said:
                layout.decisions[f"split {split}"] = f"found below {', '.join(said)}"
    layout.is_whole = set(yaml.splits) <= set(wanted)
    layout.root, layout.decisions["root"] = _root(folder, path_folder, every, images_root)
    return layout


def _resolve(layout: Layout, split: str, entries: tuple[Entry, ...]) -> list[tuple[Place, str]] | Problem:
    """Return the folders and lists of a split with the base of each, or what is wrong with the first that cannot be used."""
    found: list[tuple[Place, str]] = []
    for entry in entries:
        text = entry.text.rstrip("/") or "/"
        forms = [text, text[3:]] if text.startswith("../") else [text]
        forms += [form.replace("\\", "/") for form in forms if "\\" in form]
        tried = {path: base.said for form in forms for base in layout.bases for path in base.paths(form)}
        path = next((path for path in tried if os.path.exists(path)), None)
        if path is not None and (os.path.isdir(path) or not is_image_name(path)):
            found.append((Place(path, is_list=not os.path.isdir(path)), "" if text.startswith("/") else tried[path]))
            continue
        got = "which is an image" if path is not None else f"which is not at {', '.join(tried)}"
        detail = f"{split} must be an existing folder or list file, got {entry.text!r}, {got}"
        if path is None and layout.yaml is not None and layout.yaml.has_download:
            detail += "; download is never run: fetch the data first"
        return Problem(layout.file, "missing-split", "noted", detail, line=entry.line)
    return found


def _root(folder: str, path_folder: str, places: list[Place], images_root: str) -> tuple[str, str]:
    """Return the root and what it is: the first folder that holds every place outside ``options.images``."""
    paths = [os.path.normpath(place.path) for place in places]
    paths = [path for path in paths if not images_root or not is_below(path, images_root)]
    for top, said in ((folder, "folder of the file"), (path_folder, "path")):
        if top and all(is_below(path, top) for path in paths):
            return top, said
    common = os.path.commonpath([f"{path}/".rpartition("/images/")[0] or os.path.dirname(path) for path in paths])
    return (folder, "folder of the file") if common == "/" else (common, "folder that holds every split")


# A folder or a list without data.yaml


def _from_folder(root: str, images_root: str, options: SourceOptions) -> Layout:
    layout = Layout(root, os.path.basename(root) or root, images_root=images_root)
    layout.bases = [Base(images_root, "the given folder of images", is_images=True)] if images_root else []
    layout.bases += [Base(root, "the given folder"), Base(os.getcwd(), "the current directory")]
    found = _shape(layout)
    listed = sorted(found, key=lambda split: (_ORDER.get(split, len(_ORDER)), split))
    wanted = _wanted(options, found, listed, layout.file)
    layout.splits = [(split, [found[split]]) for split in wanted]
    layout.is_whole = set(wanted) == set(found)
    if options.names is None:
        _find_names(layout, [root, os.path.join(root, "labels"), *(place.path for place in found.values())])
    return layout


def _from_list(path: str, images_root: str, options: SourceOptions) -> Layout:
    folder = os.path.dirname(path)
    layout = Layout(folder, os.path.basename(path), images_root=images_root)
    layout.bases = [Base(images_root, "the given folder of images", is_images=True)] if images_root else []
    layout.bases.append(Base(os.getcwd(), "the current directory"))
    split = split_of(os.path.splitext(layout.file)[0]) or "train"
    layout.splits = [(name, [Place(path, is_list=True)]) for name in _wanted(options, [split], [split], layout.file)]
    layout.is_whole = False  # the labels of what other lists name lie in the same folders
    if options.names is None:
        _find_names(layout, [folder, os.path.join(folder, "labels")])
    return layout


def _shape(layout: Layout) -> dict[str, Place]:
    """Return the splits of a folder without data.yaml.

    Looked for in this order: a folder for each split in ``images/`` (or in ``options.images``); ``<split>/images``; a folder for
    each split; lists ``<split>.txt``. Else everything is train.
    """
    root, said = layout.root, layout.decisions
    inner = os.path.join(root, "images")
    top = layout.images_root or (inner if os.path.isdir(inner) else "")
    per_split = {d: p for d in _folders(root) if os.path.isdir(p := os.path.join(root, d, "images"))}
    per_split = {d: p for d, p in per_split.items() if split_of(d) or list_images(p)}
    if per_split and not layout.images_root:
        if top:
            raise DataError(f"{layout.file}: images must lie in images/ or in {', '.join(per_split)}, got both; give a data.yaml")
        said["layout"] = "<split>/images"
        return _by_split(per_split)
    top = top or root
    folders = {d: os.path.join(top, d) for d in _folders(top)}
    if any(split_of(d) == "train" for d in folders):
        folders = {d: p for d, p in folders.items() if split_of(d) or list_images(p)}
        loose = sorted(n for n in os.listdir(top) if n[0] != "." and is_image_name(n) and os.path.isfile(os.path.join(top, n)))
        if loose:
            rule = f"images must lie in the folders of the splits ({', '.join(folders)}) or beside each other"
            first = layout.key(os.path.join(top, loose[0]))
            raise DataError(f"{first}: {rule}, got {len(loose)} beside those folders; give a data.yaml")
        said["layout"] = "<split>" if top == root else "images/<split>"
        return _by_split(folders)
    stems = {os.path.splitext(name)[0]: name for name in sorted(os.listdir(root)) if name.endswith(".txt")}
    lists = {stem: os.path.join(root, name) for stem, name in stems.items() if split_of(stem) and _lists_images(root, name)}
    if lists:
        said["layout"] = "lists"
        return _by_split(lists, is_list=True)
    said["layout"] = "one folder" if top == root else "images"
    return {"train": Place(top, is_list=False)}


def _by_split(paths: dict[str, str], *, is_list: bool = False) -> dict[str, Place]:
    """Name each path by the split that it stands for, or as it is called where two would share a name."""
    meant = [split_of(name) for name in paths]
    names = [m if m and meant.count(m) == 1 else name for m, name in zip(meant, paths, strict=True)]
    return {name: Place(path, is_list) for name, path in zip(names, paths.values(), strict=True)}


def _folders(top: str) -> list[str]:
    return sorted(n for n in os.listdir(top) if n[0] != "." and os.path.isdir(os.path.join(top, n)))


def _lists_images(root: str, name: str) -> bool:
    path = os.path.join(root, name)
    return os.path.isfile(path) and any(is_image_name(line.strip()) for line in read_lines(path, name)[:10])


def _find_names(layout: Layout, folders: list[str]) -> None:
    """Take the class names from the first file with one name a line."""
    for folder in folders:
        for name in NAMES_FILES:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                layout.names = tuple(line.strip() for line in read_lines(path, layout.key(path)) if line.strip()) or None
            if layout.names:
                layout.decisions["names"] = layout.key(path)
                layout.read_files.append(path)
                return
