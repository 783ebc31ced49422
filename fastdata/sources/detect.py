"""Which format a dataset is published in, found by looking, and the one way in: ``read``.

What is looked for, in this order; the first that is there wins, and what else is there is said in ``scan.decisions["detected"]``:

1. yolo: a YAML file that describes a dataset (``names`` or ``nc``, and ``train``, ``val`` or ``test``), whatever it is called;
2. coco: a JSON file with the lists of COCO, here, in ``annotations/``, or in a split's folder as exported by labelling sites;
3. voc:  xml in ``Annotations/`` or beside the images, up to two folders down;
4. dota: a folder ``labelTxt``, here or in split folders;
5. yolo: a folder ``labels`` with text files, here or in split folders, or text files beside images.

A description comes before what it may lie beside: the YAML file was written for the training, exports in other forms were not.
Files are judged by content: of JSON only the head and the tail are read, of YAML no more than :data:`YAML_NBYTES`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastdata.errors import DataError, UsageError
from fastdata.sources.dota import LABEL_FOLDERS as DOTA_FOLDERS
from fastdata.sources.files import is_image_name
from fastdata.sources.named import split_of_folder
from fastdata.sources.scan import Scan, SourceOptions
from fastdata.sources.voc_layout import DEPTH, find_places
from fastdata.sources.yolo_yaml import SPLIT_KEYS

Kind = Literal["yolo", "coco", "voc", "dota"]

KINDS: tuple[Kind, ...] = ("yolo", "coco", "voc", "dota")

YAML_NBYTES = 1 << 19
"""A dataset description is a few lines; the largest published one (13,000 class names) is half of this."""

PEEK_NBYTES = 1 << 16
"""Bytes of a JSON file that are looked at, at its start and at its end."""

MAX_PEEKS = 64
"""JSON or YAML files that are opened in one folder: labelling programs write one per image."""

MAX_NEAR = 5
"""Files that an error names as almost a dataset."""

USUAL_YAML = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
"""Names that speak for themselves: such a file may leave the class names to the user."""

ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")

_YAML_KEY = re.compile(rb"""^(?:\xef\xbb\xbf)?["']?([A-Za-z_][\w-]*)["']?[ \t]*:(?=\s|$)""", re.MULTILINE)
_LIST_KEY = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_RECORD_KEY = re.compile(rb'"(file_name|image_id|category_id|supercategory|bbox)"\s*:')
_LOOKED_FOR = (
    "a YAML file with names and train or val (YOLO)",
    "a JSON file with images, annotations and categories, here, in annotations/ or in split folders (COCO)",
    "xml files in Annotations/ or beside the images, up to two folders down (Pascal VOC)",
    "a folder labelTxt, here or in split folders (DOTA)",
    "text files in labels/ or beside the images (YOLO)",
)
_FIX = "say what it is with --source yolo|coco|voc|dota, or name the data.yaml or the JSON file itself"


@dataclass(frozen=True, slots=True)
class Found:
    """A sign of a format."""

    kind: Kind
    what: str
    """The file or folder that shows it, relative to the dataset."""
    path: Path
    """What the reader is to be given."""


def detect(src: Path, kind: str | None = None) -> Kind:
    """Return the format of a dataset.

    Args:
        src: A folder, a data.yaml, a COCO JSON file, or a text file that lists images.
        kind: The format, where the user says so; ``src`` is then not looked into.

    Raises:
        UsageError: ``src`` or ``kind`` is nothing that can be read.
        DataError: It is of no known format; the message lists what was looked for and what is there.
        OSError: It may not be read.
    """
    return find(Path(src), kind)[0].kind


def read(src: Path, options: SourceOptions, kind: str | None = None) -> Scan:
    """Read a dataset of any format; arguments and errors as in :func:`detect`, and those of the reader."""
    src = Path(src)
    first, *others = find(src, kind)
    if kind is not None:
        said = f"{first.kind}, as asked"
    else:
        said = f"{first.kind}: {first.what}" + "".join(
            f"; also here: {other.what} ({other.kind}), which --source {other.kind} reads" for other in others
        )
    scan = _reader(first.kind)(first.path, options)
    scan.decisions["detected"] = said
    return scan


def _reader(kind: Kind) -> Callable[[Path, SourceOptions], Scan]:
    """Import the one reader that is needed: each brings a parser of its own."""
    if kind == "yolo":
        from fastdata.sources.yolo import read_yolo

        return read_yolo
    if kind == "coco":
        from fastdata.sources.coco import read_coco

        return read_coco
    if kind == "voc":
        from fastdata.sources.voc import read_voc

        return read_voc
    from fastdata.sources.dota import read_dota

    return read_dota


def find(src: Path, kind: str | None = None) -> list[Found]:
    """Return what the dataset shows, the format that wins first; arguments and errors as in :func:`detect`."""
    _check_there(src)
    is_file = src.is_file()
    if kind is not None:
        if kind not in KINDS:
            raise UsageError(f"source must be one of {', '.join(KINDS)}, got {kind!r}")
        chosen = KINDS[KINDS.index(kind)]
        if is_file and chosen in ("voc", "dota"):
            raise UsageError(f"a dataset of kind {kind} must be a folder, got the file {src}; give the folder that holds it")
        return [Found(chosen, src.name, src)]
    return [_of_file(src)] if is_file else _of_folder(src)


def _check_there(src: Path) -> None:
    if src.is_file() or src.is_dir():
        return
    if os.path.lexists(src):
        what = f"a link to {os.readlink(src)}, which is not there" if src.is_symlink() else "neither"
        raise UsageError(f"the dataset must be a file or a folder, got {src}, which is {what}")
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(src)):
        raise UsageError(f"the dataset must be a local file or folder, got {src}; fetch it first")
    above = next((parent for parent in Path(os.path.abspath(src)).parents if parent.is_dir()), Path("/"))
    raise UsageError(f"the dataset must be an existing file or folder, got {src}; {above} holds {_listing(above)}")


def _of_file(src: Path) -> Found:
    ending = src.suffix.lower()
    if _is_archive(src):
        raise DataError(f"{src}: a dataset must be files in folders, got an archive; unpack it first, then give the folder")
    if ending in (".yaml", ".yml"):
        fault = _yaml_fault(src, needs_names=False)
        if fault:
            raise DataError(f"{src}: a dataset description must name the images of train, val or test, got {fault}; {_FIX}")
        return Found("yolo", src.name, src)
    if ending == ".json":
        fault = _json_fault(src)
        if fault:
            raise DataError(f"{src}: a COCO file must have the lists images, annotations and categories, got {fault}; {_FIX}")
        return Found("coco", src.name, src)
    if ending == ".txt":
        line = next((text for raw in _head(src).splitlines() if (text := os.fsdecode(raw).strip("\ufeff \t\r"))), "")
        if is_image_name(line):
            return Found("yolo", src.name, src)
        raise DataError(f"{src}: a text file must list images, one a line, got {line[:80]!r}; give the folder of the dataset")
    if ending == ".xml" or is_image_name(src.name):
        raise UsageError(f"{src}: a dataset must be more than one label file or image; give the folder of the dataset")
    raise DataError(f"{src}: the file must be a data.yaml, a COCO JSON file or a text list of images, got {src.name!r}; {_FIX}")


def _of_folder(src: Path) -> list[Found]:
    names = sorted(os.listdir(src))
    if not names:
        raise DataError(f"{src}: the dataset must hold files, got an empty folder; give the folder that holds it")
    near: list[str] = []  # files that could have been it, and why they are not
    found = _signs(src, names, near)
    if not found:
        near += [f"{name} is an archive: unpack it first" for name in names if name.lower().endswith(ARCHIVES)][:MAX_NEAR]
        raise DataError(
            f"{src}: no dataset of a known format. Looked for {'; '.join(_LOOKED_FOR)}. Found {_listing(src)}"
            + (f" ({'; '.join(near)})" if near else "")
            + f"; {_deeper(src) or _FIX}"
        )
    return found


def _signs(src: Path, names: list[str], near: list[str]) -> list[Found]:
    found = [one for one in (_by_yaml(src, names, near), _by_json(src, names, near)) if one is not None]
    found += _by_xml(src, deep=not found) + _by_dota(src, names)
    return found if any(one.kind == "yolo" for one in found) else found + _by_text(src, names)


def _deeper(src: Path) -> str:
    """Return which folder below ``src`` to give instead, "" where none of the first :data:`MAX_PEEKS` is a dataset."""
    pending = [src]
    for folder in pending:  # grows while it is walked: nearer folders first
        try:
            names = sorted(os.listdir(folder))
            found = _signs(folder, names, []) if folder != src else []
        except (PermissionError, UsageError):
            continue
        if found:
            return f"{folder} holds a dataset ({found[0].kind}: {found[0].what}): give that folder"
        below = [folder / name for name in names if name[0] != "." and (folder / name).is_dir()]
        pending += below[: max(MAX_PEEKS - len(pending), 0)]
    return ""


def _by_yaml(src: Path, names: list[str], near: list[str]) -> Found | None:
    described: list[str] = []
    files = [name for name in names if name.lower().endswith((".yaml", ".yml")) and (src / name).is_file()]
    for name in sorted(files, key=lambda name: (name not in USUAL_YAML, name))[:MAX_PEEKS]:
        usual = name in USUAL_YAML
        fault = _yaml_fault(src / name, needs_names=not usual)
        if not fault and usual:
            return Found("yolo", name, src / name)
        if not fault:
            described.append(name)
        elif len(near) < MAX_NEAR:
            near.append(f"{name} has {fault}")
    if len(described) > 1:
        raise UsageError(f"{src}: one YAML file must describe the dataset, got {', '.join(described)}; name the one to read")
    return Found("yolo", described[0], src / described[0]) if described else None


def _by_json(src: Path, names: list[str], near: list[str]) -> Found | None:
    for folder, inside in _folders(src, names, "annotations"):
        files = [name for name in inside if name.lower().endswith(".json") and (src / folder / name).is_file()]
        for name in sorted(files, key=lambda name: ("coco" not in name and "instances" not in name, name))[:MAX_PEEKS]:
            fault = _json_fault(src / folder / name)
            if not fault:
                return Found("coco", (folder / name).as_posix(), src)
            if len(near) < MAX_NEAR:
                near.append(f"{(folder / name).as_posix()} has {fault}")
    return None


def _folders(src: Path, names: list[str], also: str = "") -> Iterator[tuple[Path, list[str]]]:
    """Yield the dataset's folder, those of splits in it, and the one called ``also`` with its splits; each with what it holds."""
    yield Path(), names
    for name in names:
        if (name.lower() == also or split_of_folder(name) is not None) and (src / name).is_dir():
            inside = sorted(os.listdir(src / name))
            yield Path(name), inside
            for inner in inside if name.lower() == also else []:
                if split_of_folder(inner) is not None and (src / name / inner).is_dir():
                    yield Path(name, inner), sorted(os.listdir(src / name / inner))


def _by_xml(src: Path, *, deep: bool) -> list[Found]:
    places = find_places(Path(os.path.abspath(src)), DEPTH if deep else 0)
    if not places:
        return []
    inside = [os.path.relpath(place[1], os.path.abspath(src)).split(os.sep) for place in places]
    tops = {parts[0] for parts in inside if len(parts) > 1}
    strays = _strays(src, tops)
    if strays:
        raise DataError(
            f"{src}: a dataset must be all that a folder holds, or lie in the folder itself; got Pascal VOC in "
            f"{', '.join(f'{top}/' for top in sorted(tops))} beside {', '.join(f'{name}/' for name in strays[:8])}; "
            f"give {src / min(tops)}, or another one of them"
        )
    return [Found("voc", f"xml in {os.sep.join(inside[0])}", src)]


def _strays(src: Path, tops: set[str]) -> list[str]:
    """Return the folders beside those that hold xml: whoever gives a folder of many datasets does not mean the first of them.

    The development kit keeps its years beside results and code.
    """
    if all(re.fullmatch(r"VOC\d{4}", top) for top in tops):
        return []
    return sorted(entry.name for entry in os.scandir(src) if entry.is_dir() and entry.name[0] != "." and entry.name not in tops)


def _by_dota(src: Path, names: list[str]) -> list[Found]:
    for folder, inside in _folders(src, names):
        for name in inside:
            if name.lower().startswith(DOTA_FOLDERS) and (src / folder / name).is_dir():
                return [Found("dota", (folder / name).as_posix(), src)]
    return []


def _by_text(src: Path, names: list[str]) -> list[Found]:
    """Find YOLO labels that no YAML file describes."""
    for folder, inside in _folders(src, names, "images"):
        if "images" in inside and "labels" in inside and _holds_text(src / folder / "labels"):
            return [Found("yolo", (folder / "labels").as_posix(), src)]
        stems = {os.path.splitext(name)[0] for name in inside if name.endswith(".txt")}
        if any(is_image_name(name) and os.path.splitext(name)[0] in stems for name in inside):
            return [Found("yolo", f"text files beside the images in {folder.as_posix()}", src)]
    return []


def _holds_text(folder: Path) -> bool:
    """Tell whether a text file lies in a folder or in a folder of it."""
    inside = [(folder / name) for name in os.listdir(folder)] if folder.is_dir() else []
    return any(path.name.endswith(".txt") for path in inside) or any(
        name.endswith(".txt") for path in inside if path.is_dir() for name in os.listdir(path)
    )


def _yaml_fault(path: Path, *, needs_names: bool) -> str:
    """Return what is wrong with a YAML file as a description of a dataset, "" when nothing is.

    The lines that begin with a key decide whether it is parsed at all, since that takes long. It is then looked at as a tree of
    nodes and not turned into values, so references in it cannot grow.
    """
    if path.stat().st_size > YAML_NBYTES:
        return f"more than {YAML_NBYTES:,} bytes"
    data = path.read_bytes()
    is_flow = data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")  # all in braces, as JSON is: lines say nothing
    keys = _flow_keys(data) if is_flow else [os.fsdecode(match[1]) for match in _YAML_KEY.finditer(data)]
    others = f"the keys {', '.join(keys[:6])}{', ...' if len(keys) > 6 else ''}" if keys else "no keys"
    if SPLIT_KEYS.keys().isdisjoint(keys) or (needs_names and {"names", "nc"}.isdisjoint(keys)):
        return others

    import yaml

    try:
        tree = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"no YAML: {' '.join(str(error).split())[:120]}"
    pairs = tree.value if isinstance(tree, yaml.MappingNode) else []
    paths = [value for key, value in pairs if isinstance(key, yaml.ScalarNode) and key.value in SPLIT_KEYS]
    names_images = any(isinstance(value, yaml.SequenceNode) or value.tag == "tag:yaml.org,2002:str" for value in paths)
    return "" if names_images else f"{others}, but no paths of images"


def _flow_keys(data: bytes) -> list[str]:
    """Return the keys of a mapping in braces; none where it cannot be read."""
    import yaml

    try:
        tree = yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    pairs = tree.value if isinstance(tree, yaml.MappingNode) else []
    return [str(key.value) for key, _ in pairs if isinstance(key, yaml.ScalarNode)]


def _json_fault(path: Path) -> str:
    """Return what is wrong with a JSON file as COCO labels, "" when nothing is. Reads the head and the tail alone."""
    with open(path, "rb") as file:
        head = file.read(PEEK_NBYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - PEEK_NBYTES, PEEK_NBYTES if end > PEEK_NBYTES else end))
        tail = file.read()
    if not head:
        return "an empty file"
    if not head.startswith(b"{"):
        return "a list, as results have it" if head.startswith(b"[") else "no JSON object"
    if b'"segments_info"' in head or b'"segments_info"' in tail:
        return "panoptic segments, whose masks lie in images"
    lists = {match[1] for part in (head, tail) for match in _LIST_KEY.finditer(part)}
    records = {match[1] for part in (head, tail) for match in _RECORD_KEY.finditer(part)}
    if not lists or len(lists) + len(records) < 3:
        return "other keys"
    return ""


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVES) or _head(path, 4) == b"PK\x03\x04"


def _head(path: Path, nbytes: int = PEEK_NBYTES) -> bytes:
    with open(path, "rb") as file:
        return file.read(nbytes)


def _listing(folder: Path, most: int = 8) -> str:
    names = sorted(os.listdir(folder))
    shown = [f"{name}/" if (folder / name).is_dir() else name for name in names[:most]]
    return (", ".join(shown) or "nothing") + (f" and {len(names) - most} more" if len(names) > most else "")
