"""What a conversion reports: closed lists of kinds, and the two record types.

A *skip* is an image that was not stored, with one of :data:`REASONS`. A *problem* is a row, an object or an image whose labels
were changed, dropped or are worth a look, with one of :data:`KINDS`. Nothing is lost without one of the two.

Invariants: images in = stored + skipped; rows in = kept + dropped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

REASONS = ("empty-file", "unreadable", "truncated", "unsupported", "too-large", "not-found")
"""Why an image is not in the store. ``unsupported`` = no decoder here, or no agreed meaning as 8-bit RGB."""

FAULTS = (
    "clipped", "outside", "zero-area", "negative-size", "not-finite", "bad-number", "columns", "odd-polygon", "class-range",
    "class-integer", "duplicate", "keypoint-outside", "size-mismatch", "name-mismatch", "unknown-image", "unknown-category",
    "mostly-crowd", "unreadable-labels", "self-crossing",
)  # fmt: skip
"""Kinds that mean a label was changed, lost or contradicts itself; ``on_error="raise"`` stops at the first of them."""

NOTES = (
    "no-label", "label-beside", "label-case", "list-base", "mixed-kinds", "comment", "tail-bytes", "text-number", "no-size",
    "zero-based", "confidence-column", "pixel-coordinates", "decoder", "animated", "truncated-kept", "unused-label-file",
    "missing-split",
)  # fmt: skip
"""Kinds that change nothing and are only worth knowing; they never stop a run."""

KINDS = FAULTS + NOTES

FATAL = ("class-range", "unreadable-labels")
"""Faults that mean the dataset is misread as a whole; they stop a run unless ``on_error="skip"``."""

ACTIONS = ("dropped", "clipped", "changed", "kept", "noted")


@dataclass(frozen=True, slots=True)
class Skip:
    """One image that was not stored."""

    file: str
    """Path as the dataset gives it, relative to its root where it lies below it."""
    reason: str
    """One of :data:`REASONS`."""
    detail: str = ""
    """What the decoder or the operating system said."""

    def __post_init__(self) -> None:
        assert self.reason in REASONS, self.reason

    def to_json(self) -> dict[str, Any]:
        """Return the report row."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Problem:
    """One row, object or image whose labels were changed, dropped, or are worth a look."""

    file: str
    """The label file (or image, where the label file is not the point), relative to the dataset's root."""
    kind: str
    """One of :data:`KINDS`."""
    action: str
    """One of :data:`ACTIONS`: what was done about it."""
    detail: str = ""
    """The value and the rule, as a person would want to read it."""
    line: int | None = None
    """Line in a text file, from 1, all lines counted."""
    annotation_id: int | None = None
    """``id`` of a COCO annotation."""
    object: int | None = None
    """Number of a VOC object in its file, from 1."""
    image: str | None = None
    """Key of the image, where the problem belongs to an image rather than to a place in ``file``."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        assert self.action in ACTIONS, self.action

    @property
    def is_fault(self) -> bool:
        """Whether a label was changed, lost or contradicts itself (``on_error="raise"`` stops here)."""
        return self.kind in FAULTS

    @property
    def where(self) -> str:
        """``file:line``, ``file: annotation 7``, ``file: object 2`` or ``file``: how an error message starts."""
        if self.line is not None:
            return f"{self.file}:{self.line}"
        if self.annotation_id is not None:
            return f"{self.file}: annotation {self.annotation_id}"
        if self.object is not None:
            return f"{self.file}: object {self.object}"
        return self.file

    def to_json(self) -> dict[str, Any]:
        """Return the report row, without the places that do not apply."""
        return {k: v for k, v in asdict(self).items() if v is not None and v != ""}
