"""The closed sets of the command line, as enumerations that it can list in its help.

The same words as in the options of the package, which check them again.
"""

from __future__ import annotations

from enum import StrEnum


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
