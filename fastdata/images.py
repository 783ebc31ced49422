"""One function from the bytes of a picture file to upright RGB, or to the reason why not.

Invariant: ``Decoded.rgb`` is what a person sees in a viewer that heeds the orientation tag, as 8-bit RGB: the tag is applied once
and for all, alpha is dropped without blending, one channel is repeated three times, a palette is looked up, CMYK is converted, 16
bits keep their high byte, and of several pictures in a file it is the first. A picture of which a part is missing is never passed
as good. The content decides what a file is, never its name.

Order of trust: the header (headers/) is read first, by this package, and settles size, orientation, early ends and what has no
meaning as RGB before anything is allocated. Then JPEG goes to libjpeg-turbo; PNG, BMP, WebP, JPEG 2000 and anymaps to OpenCV;
TIFF and GIF to Pillow, because OpenCV multiplies the hidden colours of one by alpha and paints a background into the other; AVIF
and whatever is animated as well, because not every OpenCV has a decoder. Where one fails, the other is asked, and a note says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastdata.decoders.jpeg import Library, Notes, decode_jpeg
from fastdata.decoders.opencv import by_opencv
from fastdata.decoders.pillow import by_pillow
from fastdata.errors import UsageError
from fastdata.headers.header import Header, Unusable
from fastdata.headers.png import png_essential
from fastdata.headers.read import read_header
from fastdata.orientation import turn, upright_size
from fastdata.problems import NOTES, REASONS

MAX_PIXELS = 178_956_970
"""Default limit: half a GiB of RGB, which is where Pillow refuses as well."""

JPEG_LIBRARIES: tuple[Library, ...] = ("simplejpeg", "turbojpeg", "opencv")

_PILLOW_FIRST = ("tiff", "avif", "gif")
_PILLOW_ONLY = ("heic", "jxl", "other")
_TURNED_BY_DECODER = ("tiff", "heic", "jxl")


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A picture, upright."""

    rgb: npt.NDArray[np.uint8]
    """(H, W, 3), C-contiguous, owned by the caller."""
    gray: bool
    """The source has one channel (besides alpha), so the three planes are equal."""
    orientation: int
    """1 to 8 as found in the file; already applied."""
    notes: Notes
    """(kind, detail), kinds from :data:`fastdata.problems.NOTES`: tail-bytes, decoder, animated."""

    def __post_init__(self) -> None:
        assert self.rgb.ndim == 3, self.rgb.shape
        assert self.rgb.shape[2] == 3, self.rgb.shape
        assert self.rgb.dtype == np.uint8, self.rgb.dtype
        assert self.rgb.flags.c_contiguous
        assert all(kind in NOTES for kind, _ in self.notes), self.notes


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a picture is not decoded."""

    reason: str
    """One of :data:`fastdata.problems.REASONS`."""
    detail: str
    """What is wrong, where, and the way out if there is one."""

    def __post_init__(self) -> None:
        assert self.reason in REASONS, self.reason


def decode_image(
    data: bytes | memoryview, *, max_pixels: int = MAX_PIXELS, jpeg: Library = "simplejpeg", allow_truncated: bool = False
) -> Decoded | Refused:
    """Decode the first picture of a file to upright 8-bit RGB.

    Args:
        data: The whole file.
        max_pixels: Refuse a picture of more pixels, from its header, before anything is allocated.
        jpeg: What decodes JPEGs. All give the same pixels: ``simplejpeg`` and ``turbojpeg`` (optional) are libjpeg-turbo, and
            before ``opencv`` libjpeg-turbo looks for early ends, which OpenCV passes over (twice the work).
        allow_truncated: Keep a picture that ends early, with a ``truncated-kept`` note; what is missing is gray or black.

    Returns:
        The picture, or the reason. Threads may call this at the same time; no decoder setting is left changed.

    Raises:
        UsageError: ``jpeg`` is none of :data:`JPEG_LIBRARIES`.
        MissingExtra: ``jpeg`` is turbojpeg and PyTurboJPEG or its library is not installed.
    """
    if jpeg not in JPEG_LIBRARIES:
        raise UsageError(f"jpeg must be one of {', '.join(JPEG_LIBRARIES)}, got {jpeg!r}")
    whole = data if isinstance(data, bytes) else bytes(data)
    if not whole:
        return Refused("empty-file", "the file has no bytes")
    try:
        header = read_header(whole)
        _refuse_by_header(header, max_pixels)
        if header.format == "jpeg":
            stored, notes = decode_jpeg(whole, header, library=jpeg, max_pixels=max_pixels, allow_truncated=allow_truncated)
        else:
            stored, notes = _decode_other(whole, header, max_pixels, allow_truncated)
    except Unusable as err:
        return Refused(err.reason, err.detail)
    if header.tail_nbytes:
        notes = (*notes, ("tail-bytes", f"{header.tail_nbytes} bytes after the end of the picture"))
    if header.more:
        notes = (*notes, ("animated", f"{header.more}: the first is taken"))
    rgb = np.ascontiguousarray(stored) if header.format in _TURNED_BY_DECODER else turn(stored, header.orientation)
    return Decoded(rgb, header.channels == 1, header.orientation, notes)


def probe_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """Return the (h, w) that ``decode_image`` would give, from the header alone.

    Args:
        data: The file. Its first part will do where the header is in it; an orientation that lies after it is not seen then.

    Returns:
        None when the header cannot be read, or the size is only known to a decoder (JPEG XL, some AVIF sequences).
    """
    try:
        header = read_header(data if isinstance(data, bytes) else bytes(data), body=False)
    except Unusable:
        return None
    return None if header.size_hw is None else upright_size(header.size_hw, header.orientation)


def _refuse_by_header(header: Header, max_pixels: int) -> None:
    if header.unsupported:
        raise Unusable("unsupported", header.unsupported)
    if header.size_hw is not None:
        h, w = header.size_hw
        if h * w > max_pixels:
            raise Unusable("too-large", f"its header says {w} x {h} = {h * w} pixels, the limit is {max_pixels} (max_pixels)")


def _decode_other(data: bytes, header: Header, max_pixels: int, allow_truncated: bool) -> tuple[npt.NDArray[np.uint8], Notes]:
    """Decode what is no JPEG: OpenCV and Pillow in the order that suits the format."""
    if header.ends_early and not allow_truncated:
        raise Unusable("truncated", header.ends_early)
    pillow_first = (
        header.format in _PILLOW_FIRST + _PILLOW_ONLY or header.bits == 0 or bool(header.more) or bool(header.ends_early)
    )
    deep_bits = header.bits if header.format in ("tiff", "jp2") and 8 < header.bits <= 16 else 0
    if not pillow_first:
        pixels = by_opencv(png_essential(data) if header.format == "png" else data, deep_bits=deep_bits)
        if pixels is not None:
            return pixels, ()
    try:
        pixels, incomplete = by_pillow(data, header, max_pixels=max_pixels, allow_truncated=allow_truncated)
    except Unusable as err:
        # OpenCV multiplies by alpha, which would destroy hidden colours
        if pillow_first and err.reason == "unreadable" and header.format in _PILLOW_FIRST and not header.alpha:
            pixels = by_opencv(data, deep_bits=deep_bits)
            if pixels is not None:
                return pixels, (("decoder", f"OpenCV; {err.detail}"),)
        raise
    if incomplete:
        return pixels, (("truncated-kept", f"{incomplete}"),)
    return pixels, () if pillow_first else (("decoder", "Pillow; OpenCV could not read it"),)
