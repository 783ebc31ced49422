"""A JSON file of any size, read a window at a time: where its top-level values lie, then the elements of a list, block by block.

Two steps. :func:`outline_json` reads the file once and finds brackets and strings with array operations, without building any
value; it hashes the file on the way. :func:`read_blocks` parses one top-level list in blocks of about a window. So lists may be
in any order in the file and read in any order. What is never asked for is never parsed.

Invariant: the lists of ``read_blocks(outline_json(path), key)``, joined, equal ``json.load(file)[key]``; memory stays at a few
windows and the values of one block. Offsets count bytes from the start of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastdata.errors import DataError
from fastdata.sources.files import DIGEST_NBYTES

WINDOW_NBYTES = 8 << 20
"""Large enough that a step per window costs nothing, small enough that a parsed block (up to ten times its text) stays cheap."""

MAX_BLOCK_NBYTES = 256 << 20
"""No element of a list may be larger: a real one has kilobytes, and a lost quotation mark must not pull the whole file in."""

MAX_SKELETON_NBYTES = 1 << 20
"""Limit of everything at top level that is not within a list or an object: keys, numbers, texts."""

HEAD_NBYTES = 4096
"""Within these the opening bracket must stand."""

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_IS_MARK = bytes(c in b'"\\{}[]' for c in range(256))
_STEP = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1


@dataclass(slots=True)
class Section:
    """A list or object at top level."""

    is_list: bool
    start: int
    """Offset of its opening bracket."""
    stop: int = -1
    """Offset after its closing bracket; -1 while that is not known."""
    cuts: list[int] = field(default_factory=list)
    """Offsets right after an element, ascending: where blocks end."""


@dataclass(frozen=True, slots=True)
class JsonOutline:
    """What stands at the top level of a JSON object in a file."""

    path: Path
    name: str
    """The file as messages call it."""
    nbytes: int
    digest: bytes
    """16 bytes: BLAKE2b of the whole file."""
    values: dict[str, Any]
    """Top-level keys in the order of the file. A list or an object is a :class:`Section`, anything else its value."""


def outline_json(path: Path, *, name: str, window_nbytes: int = WINDOW_NBYTES) -> JsonOutline:
    """Find the top-level values of a JSON object.

    Args:
        path: The file, UTF-8 with or without a byte order mark.
        name: How messages call it.
        window_nbytes: Bytes read at a time.

    Raises:
        DataError: The file holds no JSON object, or its brackets and strings do not close.
    """
    with open(path, "rb", buffering=0) as file:
        hasher = hashlib.blake2b(digest_size=DIGEST_NBYTES)
        scan = _Scan(file, name, base=_check_start(os.pread(file.fileno(), HEAD_NBYTES, 0), name))
        hasher.update(file.read(scan.base))
        while window := file.read(window_nbytes):
            hasher.update(window)
            scan.feed(window)
        return JsonOutline(path, name, scan.base, hasher.digest(), scan.finish())


def read_blocks(outline: JsonOutline, key: str) -> Iterator[list[Any]]:
    """Parse one top-level list, block by block.

    Yields:
        Lists of consecutive elements, none of them empty.

    Raises:
        DataError: There is no such list, or it is malformed; the message starts with ``file:offset``.
    """
    section = outline.values.get(key)
    if not isinstance(section, Section) or not section.is_list:
        have = ", ".join(outline.values) or "nothing"
        raise DataError(f"{outline.name}: {key} must be a list at the top level of the file; at top level there are: {have}")
    with open(outline.path, "rb", buffering=0) as file:
        for start, stop in _blocks(section, section.stop - 1):
            if block := _parse_block(file, outline.name, start, stop, first=start == section.start + 1):
                yield block


def _check_start(head: bytes, name: str) -> int:
    """Return the offset of the text, after a byte order mark, or say what the file is if it is no JSON object."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head[:4]:
        raise _Fault(name, 0, "the file must be UTF-8, got UTF-16 or UTF-32; save it as UTF-8")
    first = head.removeprefix(_BOM).lstrip(_SPACE)[:1]
    if first != b"{":
        got = {b"": "an empty file", b"[": "a list, as results of a detector are"}.get(first, repr(first.decode("latin-1")))
        raise _Fault(name, 0, f"the file must hold a JSON object, got {got}")
    return len(_BOM) if head.startswith(_BOM) else 0


def peek_block(outline: JsonOutline, key: str) -> bytes:
    """Return the text of the first block of a top-level list, unparsed; b"" where there is none."""
    section = outline.values.get(key)
    if not isinstance(section, Section) or not section.is_list:
        return b""
    start, stop = next(_blocks(section, section.stop - 1), (0, 0))
    with open(outline.path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), min(stop - start, MAX_BLOCK_NBYTES), start)


class _Scan:
    """The state between two windows of one file."""

    def __init__(self, file: BinaryIO, name: str, *, base: int) -> None:
        self.base = base
        """Offset of the next window."""
        self._file, self._name = file, name
        self._in_string = self._escape = False
        self._depth = 0
        self._sections: list[Section] = []
        self._skeleton = bytearray()  # the file with every section replaced by [its index]
        self._places: list[tuple[int, int]] = []  # (position in the skeleton, offset in the file) of each copied piece

    def feed(self, window: bytes) -> None:
        """Go through the next window."""
        at, step = self._brackets(window)
        depth = self._depth + np.cumsum(step, dtype=np.int64)
        below = int(np.argmax(depth < 0)) if len(depth) and depth.min() < 0 else len(depth)
        copied = 0 if self._depth <= 1 else len(window)  # what lies before is in the skeleton, or within a section
        for i in np.flatnonzero((((step == 1) & (depth == 2)) | ((step == -1) & (depth == 1)))[:below]).tolist():
            bracket = int(at[i])
            if step[i] == 1:
                self._copy(window, copied, bracket)
                self._skeleton += b"[%d]" % len(self._sections)
                self._sections.append(Section(window[bracket] == ord("["), self.base + bracket))
                copied = len(window)
            else:
                self._sections[-1].stop = self.base + bracket + 1
                copied = bracket + 1
        if below < len(depth):
            self._copy(window, copied, int(at[below]))
            self._fail(self.base + int(at[below]), "a closing bracket has no opening one")
        self._copy(window, copied, len(window))
        self._depth = int(depth[-1]) if len(depth) else self._depth
        if self._depth >= 2 and self._sections[-1].is_list:
            ends = np.flatnonzero((step == -1) & (depth == 2))
            if len(ends) and (cut := self.base + int(at[ends[-1]]) + 1) > self._sections[-1].start:
                self._sections[-1].cuts.append(cut)
        self.base += len(window)
        if len(self._skeleton) > MAX_SKELETON_NBYTES:
            self._fail(self.base, f"keys and values outside of lists and objects must be at most {MAX_SKELETON_NBYTES} bytes")

    def finish(self) -> dict[str, Any]:
        """Return the top-level values; the file has ended."""
        if self._in_string or self._depth:
            self._fail(self.base, f"the file breaks off within {'a text' if self._in_string else 'a list or an object'}")
        values: dict[str, Any] = {}
        for key, value in self._parse_skeleton():
            if key in values:
                raise DataError(f"{self._name}: {key} must stand once at the top level of the file")
            values[key] = self._sections[value[0]] if isinstance(value, list) else value
        return values

    def _brackets(self, window: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
        """Return the places of brackets outside of strings, and +1 or -1 for each."""
        at = np.flatnonzero(np.frombuffer(window.translate(_IS_MARK), np.bool_))
        codes = np.frombuffer(window, np.uint8)[at]
        is_backslash = codes == _BACKSLASH
        if self._escape or is_backslash.any():
            keep = ~is_backslash
            keep &= ~np.isin(at, self._escaped(at[is_backslash], len(window)), assume_unique=True)
            at, codes = at[keep], codes[keep]
        is_quote = codes == _QUOTE
        quotes_before = np.cumsum(is_quote) + self._in_string
        self._in_string = bool(quotes_before[-1] & 1) if len(at) else self._in_string
        outside = ~is_quote & ((quotes_before & 1) == 0)
        return at[outside], _STEP[codes[outside]]

    def _escaped(self, backslashes: npt.NDArray[np.int64], nbytes: int) -> npt.NDArray[np.int64]:
        """Return the places of escaped characters: every other backslash of a run, from the first, escapes what follows it."""
        pending = np.zeros(int(self._escape), np.int64)  # place 0, escaped by the end of the window before
        starts = np.ones(len(backslashes), np.bool_)
        starts[1:] = np.diff(backslashes) != 1
        numbers = np.arange(len(backslashes))
        in_run = numbers - np.maximum.accumulate(np.where(starts, numbers, 0))
        if self._escape and len(backslashes) and backslashes[0] == 0:
            in_run[: int(np.argmax(starts[1:])) + 1 if starts[1:].any() else len(in_run)] += 1  # the first one is escaped itself
        escaped = backslashes[(in_run & 1) == 0] + 1
        self._escape = bool(len(escaped)) and int(escaped[-1]) == nbytes
        return np.concatenate([pending, escaped])

    def _copy(self, window: bytes, start: int, stop: int) -> None:
        if start < stop:
            self._places.append((len(self._skeleton), self.base + start))
            self._skeleton += window[start:stop]

    def _parse_skeleton(self) -> list[tuple[str, Any]]:
        """Return the top-level members, each section as a list that holds its index."""
        try:
            members: list[tuple[str, Any]] = json.loads(self._skeleton.decode("utf-8"), object_pairs_hook=list)
        except ValueError as err:
            position, why = _position(err)
            start, offset = max((place for place in self._places if place[0] <= position), default=(0, 0))
            at_end = position >= len(self._skeleton.rstrip())
            raise _Fault(self._name, self.base if at_end else offset + position - start, why) from err
        return members

    def _fail(self, offset: int, why: str) -> None:
        """Raise for what ``why`` says at ``offset``, or for the earlier fault that is the cause of it.

        One lost quotation mark turns strings inside out up to the end of the file; a bracket too many shows only at the end. So
        what has been seen is parsed up to there, in blocks as always. That a text or a list does not end says nothing new.
        """
        faults = []
        try:
            self._parse_skeleton()
        except _Fault as fault:
            faults.append((fault, offset))
        for section in self._sections:
            end = section.stop - 1 if section.stop >= 0 else offset
            limit = max([section.start, *section.cuts]) + 2 * WINDOW_NBYTES
            for start, stop in _blocks(section, min(end, limit)) if section.is_list else ():
                try:
                    _parse_block(self._file, self._name, start, stop, first=start == section.start + 1)
                except _Fault as fault:
                    faults.append((fault, limit if limit < end else offset))
        causes = [fault for fault, seen in faults if fault.offset < seen and "Unterminated" not in str(fault)]
        raise min([*causes, _Fault(self._name, offset, why)], key=lambda fault: fault.offset)


class _Fault(DataError):
    """A fault at a place in the file."""

    def __init__(self, name: str, offset: int, why: str) -> None:
        super().__init__(f"{name}:{offset}: {why}")
        self.offset = offset


def _blocks(section: Section, end: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of every block of the list; ``end`` is the offset of its closing bracket."""
    start = section.start + 1
    for stop in (*section.cuts, end):
        if start < stop:
            yield start, stop
        start = stop


def _parse_block(file: BinaryIO, name: str, start: int, stop: int, *, first: bool) -> list[Any]:
    """Parse the elements in [start, stop). All but the first block begin with the comma that follows the block before."""
    if stop - start > MAX_BLOCK_NBYTES:
        raise _Fault(name, start, f"an element of a list must be at most {MAX_BLOCK_NBYTES} bytes, got {stop - start}")
    raw = os.pread(file.fileno(), stop - start, start)
    if len(raw) != stop - start:
        raise _Fault(name, start + len(raw), "the file must not change while it is read, but it became shorter")
    opening = "[" if first else "[0"  # with an element before it, the parser itself checks the comma
    try:
        items: list[Any] = json.loads(opening + raw.decode("utf-8") + "]")
    except RecursionError as err:
        raise _Fault(name, start, "values must not be nested so deeply (somewhere after this offset)") from err
    except UnicodeDecodeError as err:
        raise _Fault(name, start + err.start, "the file must be UTF-8") from err
    except ValueError as err:
        position, why = _position(err)
        raise _Fault(name, max(start, start + position - len(opening)), why) from err
    if not first:
        del items[0]
    return items


def _position(err: ValueError) -> tuple[int, str]:
    """Return where in the text, in bytes of UTF-8, a parser stopped, and why."""
    if isinstance(err, json.JSONDecodeError):
        return len(err.doc[: err.pos].encode("utf-8")), err.msg
    if isinstance(err, UnicodeDecodeError):
        return err.start, "the file must be UTF-8"
    return 0, f"{err} (somewhere after this offset)"  # a number with thousands of digits
