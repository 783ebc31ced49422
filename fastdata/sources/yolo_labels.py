"""The label file of a YOLO image.

Looked for in this order, with ``.txt`` in place of the last suffix; the first that exists is read::

    .../images/<rest>  →  .../labels/<rest>     the last component ``images`` of the path as given
    beside the image

With ``options.labels`` only below that folder, at the image's path relative to ``options.images`` or the root, or at what follows
the last ``images``. With ``options.images`` alone, first at its path relative to that folder below ``labels`` of the root.

A file ``.TXT`` (or ``.Txt``) is read where there is none in lower case.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fastdata.problems import Problem
from fastdata.sources.files import open_regular
from fastdata.sources.yolo_paths import Layout, is_below

BESIDE, GIVEN = "beside the image", "given folder of labels"
"""Two of the rules by which a label is found, as a decision names them."""

_READ_NBYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Label:
    """One label file as read."""

    path: str
    data: bytes


@dataclass(slots=True)
class _Tally:
    """Images of one folder that a note is about."""

    first: str
    count: int = 0


@dataclass(slots=True)
class Finder:
    """Finds and reads label files, and remembers what is worth a note. One for a whole dataset."""

    layout: Layout
    labels_root: str = ""
    """``options.labels``, "" where not given."""
    rules: dict[str, int] = field(default_factory=dict)
    """How many labels each rule found."""
    _places: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _texts: dict[str, dict[str, str]] = field(default_factory=dict)
    _notes: dict[tuple[str, str], _Tally] = field(default_factory=dict)
    _both: list[Problem] = field(default_factory=list)
    _folders: set[str] = field(default_factory=set)

    def places(self, path: str) -> list[tuple[str, str]]:
        """Return where the label of an image may lie, best first: (path, rule)."""
        folder, _, name = path.rpartition("/")
        text = os.path.splitext(name)[0] + ".txt"
        return [(f"{place}/{text}", rule) for place, rule in self._label_folders(folder)]

    def find(self, path: str, key: str) -> Label | None:
        """Return the label file of an image, ``None`` where there is none."""
        folder, _, name = path.rpartition("/")
        text = os.path.splitext(name)[0] + ".txt"
        places = self._label_folders(folder)
        for at, (place, rule) in enumerate(places):
            found = f"{place}/{text}"
            data = read_small(found)
            if data is None:
                other = self._in(place).get(text, text)
                if other == text:
                    continue
                found = f"{place}/{other}"
                data = read_small(found)
                if data is None:
                    continue
                self._note("label-case", found)
            self.rules[rule] = self.rules.get(rule, 0) + 1
            self._folders.add(place)
            if rule == BESIDE:
                if at:
                    self._note("label-beside", found)
            elif places[-1][1] == BESIDE and (beside := self._in(folder).get(text)) and f"{folder}/{beside}" != found:
                detail = f"not read: {self.layout.key(found)} comes first; remove one of the two"
                self._both.append(Problem(self.layout.key(f"{folder}/{beside}"), "label-beside", "noted", detail, image=key))
            return Label(found, data)
        return None

    def _label_folders(self, folder: str) -> list[tuple[str, str]]:
        """Return the folders that the labels of a folder's images may lie in, best first: (folder, rule)."""
        known = self._places.get(folder)
        if known is None:
            known = self._places[folder] = self._work_out(folder)
        return known

    def _work_out(self, folder: str) -> list[tuple[str, str]]:
        layout = self.layout
        head, images, tail = f"{folder}/".rpartition("/images/")
        found: list[tuple[str, str]] = []
        if self.labels_root:
            top = next((top for top in (layout.images_root, layout.root) if top and is_below(folder, top)), None)
            if top is not None:
                found.append((_join(self.labels_root, folder[len(top) :]), GIVEN))
            if images:
                found.append((_join(self.labels_root, tail), GIVEN))
            return found or [(self.labels_root, GIVEN)]
        if layout.images_root and is_below(folder, layout.images_root):
            found.append((_join(f"{layout.root}/labels", folder[len(layout.images_root) :]), "labels of the root"))
        if images:
            found.append((_join(f"{head}/labels", tail), "images to labels"))
        found.append((folder, BESIDE))
        return found

    def notes(self) -> list[Problem]:
        """Return, once, the notes on what was found since the last call."""
        out = self._both
        for (kind, folder), tally in self._notes.items():
            if kind == "label-case":
                detail = "its ending is not '.txt', which trainers look for"
            else:
                detail = "read beside its image, because labels/ has none"
            if tally.count > 1:
                detail += f"; so are {tally.count - 1} more in {folder or 'this folder'}"
            out.append(Problem(tally.first, kind, "noted", detail))
        self._both, self._notes = [], {}
        return out

    def unused(self, used: Collection[str], passed_over: Collection[str]) -> list[str]:
        """Return the names of text files that lie among the labels and belong to no image.

        Args:
            used: Paths of label files that were read.
            passed_over: Names of files that are no label files, in lower case.
        """
        found = []
        for folder in sorted(self._folders):
            for name in sorted(self._in(folder).values()):
                path = f"{folder}/{name}"
                if path not in used and name.lower() not in passed_over and path not in self.layout.read_files:
                    found.append(self.layout.key(path))
        return found

    def elsewhere(self, paths: Iterable[str]) -> str | None:
        """Return the name of a text file, anywhere below the root, that is called like one of these images."""
        names = {os.path.splitext(os.path.basename(path))[0] + ".txt" for path in paths}
        for folder, folders, files in os.walk(self.layout.root):
            folders.sort()
            for name in sorted(files):
                stem, suffix = os.path.splitext(name)
                path = f"{folder}/{name}"
                if suffix.lower() == ".txt" and stem + ".txt" in names and path not in self.layout.read_files:
                    return self.layout.key(path)
        return None

    def _note(self, kind: str, path: str) -> None:
        folder = self.layout.key(path.rpartition("/")[0])
        self._notes.setdefault((kind, folder), _Tally(self.layout.key(path))).count += 1

    def _in(self, folder: str) -> dict[str, str]:
        """Return the text files of a folder: name with the suffix in lower case → name; listed once."""
        texts = self._texts.get(folder)
        if texts is None:
            texts = self._texts[folder] = {}
            try:
                names = sorted(os.listdir(folder))  # upper case sorts first: '.txt' comes last and wins
            except (FileNotFoundError, NotADirectoryError):
                names = []
            for name in names:
                stem, suffix = os.path.splitext(name)
                if suffix.lower() == ".txt":
                    texts[stem + ".txt"] = name
        return texts


def _join(folder: str, rest: str) -> str:
    rest = rest.strip("/")
    return f"{folder}/{rest}" if rest else folder


def read_small(path: str) -> bytes | None:
    """Return the content of a file, ``None`` where there is none. No buffers as ``open`` makes: they cost more than reading.

    Raises:
        OSError: It is there and cannot be read: a broken link, a pipe. Its picture must not become background for that.
    """
    try:
        fd = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            raise
        return None
    except IsADirectoryError:
        return None  # a folder of that name is none
    try:
        data = os.read(fd, _READ_NBYTES)
        if len(data) == _READ_NBYTES:
            blocks = [data]
            while blocks[-1]:
                blocks.append(os.read(fd, _READ_NBYTES))
            data = b"".join(blocks)
        return data
    finally:
        os.close(fd)
