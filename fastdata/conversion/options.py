"""What a user may ask of a conversion, checked once, and the fingerprint under which a half-built store may be continued."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fastdata.errors import UsageError
from fastdata.sources.scan import Scan, SourceOptions

Codec = Literal["auto", "raw", "jpeg", "webp", "original"]
Resample = Literal["trainer", "area"]
Decoder = Literal["simplejpeg", "turbojpeg", "opencv"]

MAX_PIXELS = 178_956_970
"""Default limit of one picture, the one that Pillow takes for a decompression bomb: 512 MiB of RGB."""

MIN_IMGSZ, MAX_IMGSZ = 32, 16384
"""32 is the largest stride of the usual models; 16384 squared is about the pixel limit."""

PLAN_VERSION = 1
"""Raised whenever the same source and options would give other bytes, so that an old half-built store is not continued."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How pictures are stored, and how the conversion runs."""

    source: SourceOptions = field(default_factory=SourceOptions)
    """How the dataset is read."""
    kind: str | None = None
    """``coco``, ``yolo``, ``voc`` or ``dota``; detected by default."""
    imgsz: int | None = 640
    """Long side of the stored picture in px; ``None`` keeps every picture as it is."""
    codec: Codec = "auto"
    """``raw`` planar RGB; ``jpeg`` or ``webp`` encoded anew; ``original`` the published bytes; ``auto`` chooses raw or jpeg."""
    quality: int = 95
    """Quality of jpeg and webp, 1..100."""
    resample: Resample = "trainer"
    """``trainer``: the bilinear resize that the trainers use; ``area``: antialiased when shrinking."""
    decoder: Decoder = "simplejpeg"
    """Which library decodes JPEG first; what it cannot read goes to OpenCV, then Pillow."""
    max_pixels: int = MAX_PIXELS
    """A picture with more pixels than this is left out, before it is decoded."""
    allow_truncated: bool = False
    """Keep what could be decoded of a picture that breaks off."""
    workers: int | None = None
    """Processes that decode; as many as cores may be used by default."""

    def __post_init__(self) -> None:
        if self.imgsz is not None and not MIN_IMGSZ <= self.imgsz <= MAX_IMGSZ:
            raise UsageError(f"imgsz must be 'full' or {MIN_IMGSZ}..{MAX_IMGSZ}, got {self.imgsz}")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality must be 1..100, got {self.quality}")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels must be at least 1, got {self.max_pixels}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, got {self.workers}")
        for name, choices in (("codec", Codec), ("resample", Resample), ("decoder", Decoder)):
            if getattr(self, name) not in get_args(choices):
                raise UsageError(f"{name} must be one of {', '.join(get_args(choices))}, got {getattr(self, name)}")
        if self.codec == "original" and self.imgsz is not None:
            raise UsageError("imgsz must be 'full' with codec original, which keeps the published bytes; give --imgsz full")

    def as_json(self) -> dict[str, Any]:
        """Return what decides the bytes of the store: everything but the number of workers."""
        return {
            "imgsz": self.imgsz,
            "codec": self.codec,
            "quality": self.quality,
            "resample": self.resample,
            "decoder": self.decoder,
            "max_pixels": self.max_pixels,
            "allow_truncated": self.allow_truncated,
            "single_cls": self.source.single_cls,
            "on_error": self.source.on_error,
        }


def fingerprint(scan: Scan, options: ConvertOptions) -> str:
    """Return a hash over everything that decides the bytes of the store.

    Sizes and modification times stand for the pictures, digests for the label files. A half-built store is continued only under
    the same fingerprint.
    """
    h = hashlib.blake2b(digest_size=16)
    head = {
        "plan": PLAN_VERSION,
        "options": options.as_json(),
        "source": scan.source,
        "names": scan.names,
        "category_ids": scan.category_ids,
        "splits": scan.splits,
        "task": scan.task,
        "keypoints": [scan.keypoints, scan.keypoint_dims, scan.keypoint_names, scan.flip_idx, scan.skeleton],
        "decisions": {rule: choice for rule, choice in scan.decisions.items() if rule != "detected"},
    }
    h.update(json.dumps(head, sort_keys=True).encode())
    for key in scan.keys:
        h.update(key.encode("utf-8", "surrogateescape") + b"\0")
    for array in (scan.split, scan.image_id, scan.nbytes, scan.mtime_ns):
        h.update(array.tobytes())
    for label in scan.label_files:
        h.update(label.path.encode("utf-8", "surrogateescape") + b"\0" + label.digest)
    return h.hexdigest()
