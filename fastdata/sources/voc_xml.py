"""One Pascal VOC annotation file: bytes in, what it says out; nothing is judged here but whether it can be read.

Layout after the VOC2007 development kit (Everingham and Winn, 2007, section 4.1): ``annotation`` with ``filename``, ``size`` and
any number of ``object``, each with ``name``, ``bndbox`` and flags. Units: pixels, in whatever origin the set counts.

Time and memory are bounded by :data:`MAX_NBYTES`: a document type definition, and with it every entity, is refused before
anything of it is expanded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastdata.errors import DataError
from fastdata.labels import DIFFICULT, TRUNCATED
from fastdata.sources.named import decimal

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_NBYTES = 1 << 23
"""Largest annotation file that is read: about 20,000 objects. Made of the smallest tags, it takes 0.16 GB for a second or two."""

MAX_SIDE = (1 << 31) - 1

_EDGES = ("xmin", "ymin", "xmax", "ymax")
_FLAGS = (("difficult", DIFFICULT), ("truncated", TRUNCATED))
_YES = frozenset(("true", "yes", "t", "y"))


class Unreadable(ValueError):
    """The file is no XML that can be read."""


class Foreign(Unreadable):
    """The file is XML of another kind: its root is not ``annotation``."""


@dataclass(frozen=True, slots=True)
class VocObject:
    """One object as published."""

    number: int
    """Place among the objects of its file, from 1."""
    name: str
    """Class, without surrounding blanks; "" when there is none."""
    flags: int
    """Bits DIFFICULT and TRUNCATED."""
    edges: tuple[float, float, float, float]
    """xmin, ymin, xmax, ymax as written."""
    fault: str = ""
    """Why the object cannot be used, a kind of problem; ``edges`` is then without meaning."""
    detail: str = ""
    """The value and the rule."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What one file says."""

    filename: str
    """The ``filename`` tag, without its folders; "" when there is none."""
    size_hw: tuple[int, int] | None
    """Height and width as stated, None where they are absent or no size."""
    size_text: str
    """The size as written, for a report where it is no size."""
    objects: tuple[VocObject, ...]


def parse(data: bytes, where: str) -> Annotation:
    """Read one annotation file.

    Args:
        data: The whole file.
        where: Its name, for the error.

    Raises:
        DataError: It holds a document type definition or entities.
        Unreadable: It is no XML, or (:class:`Foreign`) no annotation.
    """
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    if len(data) > MAX_NBYTES:
        raise Unreadable(f"an annotation file must be at most {MAX_NBYTES:,} bytes, got {len(data):,}")
    try:
        root: Element = fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise DataError(
            f"{where}: XML must be without a document type definition (DTD) or entities, got {type(error).__name__}; "
            f"no labelling tool writes one: look at the file, then remove its DOCTYPE"
        ) from error
    except (ParseError, ValueError, LookupError) as error:  # ValueError, LookupError: an encoding that expat does not know
        raise Unreadable(f"must be well-formed XML, got: {error}") from error
    if root.tag.rpartition("}")[2].lower() != "annotation":
        raise Foreign(f"the root of a Pascal VOC file must be <annotation>, got <{root.tag}>")
    size_hw, size_text = _size(root.find("size"))
    return Annotation(
        filename=_text(root, "filename").replace("\\", "/").rpartition("/")[2].strip(),
        size_hw=size_hw,
        size_text=size_text,
        objects=tuple(_object(element, number) for number, element in enumerate(root.findall("object"), 1)),
    )


def _object(element: Element, number: int) -> VocObject:
    name = _text(element, "name")
    flags = sum(bit for tag, bit in _FLAGS if _is_set(_text(element, tag)))
    box = element.find("bndbox")  # of the object itself: the boxes of its parts lie deeper
    if box is None:
        return VocObject(number, name, flags, (0, 0, 0, 0), "columns", "an object must have a bndbox, got none")
    edges: list[float] = []
    for tag in _EDGES:
        if box.find(tag) is None:
            detail = f"bndbox must have xmin, ymin, xmax and ymax, got no {tag}"
            return VocObject(number, name, flags, (0, 0, 0, 0), "columns", detail)
        text = _text(box, tag)
        value = decimal(text)
        if value is None:
            return VocObject(number, name, flags, (0, 0, 0, 0), "bad-number", f"{tag} must be a number, got {text!r}")
        edges.append(value)
    return VocObject(number, name, flags, (edges[0], edges[1], edges[2], edges[3]))


def _size(element: Element | None) -> tuple[tuple[int, int] | None, str]:
    if element is None:
        return None, ""
    w_text, h_text = _text(element, "width"), _text(element, "height")
    w, h = decimal(w_text), decimal(h_text)
    text = f"{w_text or '-'} x {h_text or '-'}"
    if w is None or h is None or not 1 <= w <= MAX_SIDE or not 1 <= h <= MAX_SIDE:
        return None, text
    return (int(h), int(w)), text


def _text(element: Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()


def _is_set(text: str) -> bool:
    """Tell whether a flag is on. Absent, empty, 0, false and Unspecified are off; a share of truncation above 0 is on."""
    value = decimal(text)
    return value > 0 if value is not None else text.lower() in _YES
