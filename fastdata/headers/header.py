"""What a picture file says of itself before a pixel is decoded.

``read_header`` (read.py) fills this from bytes alone, with work bounded by the length of the file and memory bounded by a MiB,
for every format that datasets are published in. It is what decides whether decoding may be tried at all: the size is known before
anything is allocated, an early end is seen in the structure of the file, and the orientation is read once, in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.headers.jpeg_layout import JpegLayout

FORMATS = ("jpeg", "png", "gif", "bmp", "webp", "tiff", "avif", "heic", "jxl", "jp2", "pnm", "other")


class Unusable(Exception):
    """The picture cannot be used.

    Args:
        reason: One of :data:`fastdata.problems.REASONS`.
        detail: What is wrong, where.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Header:
    """The first picture of a file, as its header describes it."""

    format: str
    """One of :data:`FORMATS`; ``other`` is whatever Pillow may know and this package does not."""
    size_hw: tuple[int, int] | None
    """As stored, before the orientation; None where only the decoder knows."""
    channels: int = 3
    """Colour channels without alpha: 1 gray, 3 RGB, YCbCr or palette, 4 CMYK or YCCK."""
    bits: int = 8
    """Bits per sample; 0 where the samples have a scale of their own."""
    alpha: bool = False
    orientation: int = 1
    """1 to 8: what has to be done to the stored picture, see orientation.py."""
    more: str = ""
    """What else is in the file besides the first picture (animated, several pages); empty for one picture."""
    ends_early: str = ""
    """Why the file is known to be cut off; empty when its structure is whole."""
    unsupported: str = ""
    """Why the picture has no agreed meaning as 8-bit RGB; empty when it has."""
    tail_nbytes: int = 0
    """Bytes after the end of the picture."""
    jpeg: JpegLayout | None = None
    """Where the parts of a JPEG lie."""
