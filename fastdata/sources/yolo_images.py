"""The images of one split of a YOLO dataset: folders are listed, list files are read.

Invariant: within a split every key comes once; what came twice is reported. A line of a list is never left out because its file
does not exist: the conversion reports that image as not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from fastdata.errors import DataError
from fastdata.problems import Problem
from fastdata.sources.files import list_images, stat_image
from fastdata.sources.yolo_paths import Base, Layout, Place, read_lines


class Image(NamedTuple):
    """One image of a split. A named tuple, because one is made for each image: it costs half as much as a frozen dataclass."""

    key: str
    path: str
    """Absolute, as the dataset gives it."""
    nbytes: int
    """-1 where there is no such file."""
    mtime_ns: int
    line: int = 0
    """Line of the list that names it, from 1; 0 where a folder was listed."""


def walk(layout: Layout, split: str, places: list[Place]) -> Iterator[Image | Problem]:
    """Yield the images of one split in order, and what is to be said about them in between.

    Folders are listed sorted; lists keep their order. An image that comes again within the split is yielded once.

    Raises:
        DataError: A folder or list holds no image.
    """
    seen: set[str] | None = set() if len(places) > 1 or any(place.is_list for place in places) else None
    for place in places:
        count = 0
        for item in _lines(layout, place) if place.is_list else _files(layout, place):
            if isinstance(item, Image):
                count += 1
                if seen is not None and item.key in seen:
                    yield _again(layout, split, place, item)
                    continue
                if seen is not None:
                    seen.add(item.key)
            yield item
        if not count:
            what = "a list must name at least one image" if place.is_list else "an image folder must hold at least one image"
            raise DataError(f"{layout.key(place.path) or layout.file}: {what}, got none for {split}")


def _again(layout: Layout, split: str, place: Place, image: Image) -> Problem:
    detail = f"an image must come once in {split}, got it again; it is kept once"
    return Problem(layout.key(place.path), "duplicate", "dropped", detail, line=image.line or None, image=image.key)


def _files(layout: Layout, place: Place) -> Iterator[Image]:
    top = place.path.rstrip("/") + "/"
    for name in list_images(place.path):
        path = top + name
        yield Image(layout.key(path), path, *stat_image(path))


def _lines(layout: Layout, place: Place) -> Iterator[Image | Problem]:
    """Yield the images that a list names, then a note for each base that was needed beside the list's own folder."""
    own = Base(os.path.dirname(place.path), "")
    given = [base for base in layout.bases if base.is_images]
    bases = [*given, own, *(base for base in layout.bases if not base.is_images and base.folder != own.folder)]
    elsewhere: dict[str, list[int]] = {}
    for number, text in enumerate(read_lines(place.path, layout.key(place.path)), 1):
        line = text.strip()
        if not line:
            continue
        base, image = _find(layout, line, [*given, own] if line.startswith("./") else bases, own, number)
        if base.said:
            elsewhere.setdefault(base.said, [number, 0])[1] += 1
        yield image
    for said, (first, count) in elsewhere.items():
        detail = f"{count} lines, of which this is the first, are relative to {said}, not to the folder of the list"
        yield Problem(layout.key(place.path), "list-base", "noted", detail, line=first)


def _find(layout: Layout, line: str, bases: list[Base], own: Base, number: int) -> tuple[Base, Image]:
    """Return the image that a line means and where it was found: below the list's own folder if it is nowhere.

    Lists made on Windows part folders by a backslash, which here is a letter like any other: that comes second.
    """
    for written in (line, line.replace("\\", "/")) if "\\" in line else (line,):
        form = _without_dot(written)
        for base in bases if not form.startswith("/") else (own,):
            for path in base.paths(form):
                nbytes, mtime_ns = stat_image(path)
                if nbytes >= 0:
                    return base, Image(layout.key(path), path, nbytes, mtime_ns, number)
    path = os.path.join(own.folder, _without_dot(line))
    return own, Image(layout.key(path), path, -1, 0, number)


def _without_dot(line: str) -> str:
    while line.startswith("./"):
        line = line[2:].lstrip("/")
    return line
