"""What commands share: the closed sets of their options, as enumerations that the help can list, and options of several commands.

The same words as in the options of the package, which check them again.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Codec(StrEnum):
    """Choices of ``--codec``."""

    auto = "auto"
    raw = "raw"
    jpeg = "jpeg"
    webp = "webp"
    original = "original"


class Resample(StrEnum):
    """Choices of ``--resample``."""

    trainer = "trainer"
    area = "area"


class Decoder(StrEnum):
    """Choices of ``--decoder``."""

    simplejpeg = "simplejpeg"
    turbojpeg = "turbojpeg"
    opencv = "opencv"


class SourceKind(StrEnum):
    """Choices of ``--source``."""

    coco = "coco"
    yolo = "yolo"
    voc = "voc"
    dota = "dota"


class OnError(StrEnum):
    """Choices of ``--on-error``."""

    safe = "safe"
    skip = "skip"
    raise_ = "raise"


class Preset(StrEnum):
    """Choices of ``--policy``: the names of ``fastdata.augment.policy.PRESETS``."""

    yolov8 = "yolov8"
    yolov5 = "yolov5"
    light = "light"
    none = "none"


class TaskKind(StrEnum):
    """Choices of ``--task``."""

    detect = "detect"
    segment = "segment"
    pose = "pose"
    obb = "obb"


class Format(StrEnum):
    """Choices of ``export --format``."""

    coco = "coco"
    yolo = "yolo"


class VocOrigin(StrEnum):
    """Choices of ``--voc-origin``."""

    auto = "auto"
    one = "one"
    zero = "zero"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="An .lmdb file or a shard folder made by fastdata convert.")]


def commas(text: str | None) -> tuple[str, ...] | None:
    """Return the words between commas; ``None`` for ``None``."""
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())
