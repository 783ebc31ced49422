"""Decode a JPEG by libjpeg-turbo, and judge what it complains about.

libjpeg goes on after damage and only counts warnings. The first warning, or the error that ended it, decides here:

- no complaint: every sample was coded in the file;
- an early end, of the file or of the data of a scan: the picture is refused, or kept on request;
- another warning: the picture is complete as far as can be told, and kept with a note;
- an error: another decoder is asked where libjpeg-turbo lacks the ability, else the picture is damaged.

Two libraries bring the same libjpeg-turbo, simplejpeg and PyTurboJPEG. OpenCV brings it as well and gives the same pixels, but it
passes over warnings and errors alike, so libjpeg-turbo looks first.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastdata.decoders.opencv import by_opencv
from fastdata.decoders.pillow import by_pillow
from fastdata.errors import MissingExtra
from fastdata.headers.header import Header, Unusable
from fastdata.headers.jpeg_layout import JpegLayout, essential

Library = Literal["simplejpeg", "turbojpeg", "opencv"]
Notes = tuple[tuple[str, str], ...]

_END_MARK = b"\xff\xd9"
_EARLY_END = ("Premature end of JPEG file", "premature end of data segment")
# The warnings of libjpeg-turbo 3 (jerror.h, JWRN_*). Whatever else it says is an error, and the pixels are not finished.
_WARNING = re.compile(
    r"Premature end of JPEG file"
    r"|Corrupt JPEG data: (premature end of data segment|bad Huffman code|bad arithmetic code|bad ICC marker"
    r"|\d+ extraneous bytes before marker 0x[0-9a-f]+|found marker 0x[0-9a-f]+ instead of RST\d)"
    r"|Inconsistent progression sequence for component \d+ coefficient \d+"
    r"|Invalid SOS parameters for sequential JPEG"
    r"|Unknown Adobe color transform code \d+"
    r"|Warning: unknown JFIF revision number \d+\.\d+"
)
_LOSSLESS = 0xC3
_ABLE = frozenset([0xC0, 0xC1, 0xC2, 0xC9, 0xCA])
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """What a library made of the bytes. A picture without a complaint is whole."""

    pixels: npt.NDArray[np.uint8] | None
    complaint: str


def decode_jpeg(
    data: bytes, header: Header, *, library: Library, max_pixels: int, allow_truncated: bool
) -> tuple[npt.NDArray[np.uint8], Notes]:
    """Decode a JPEG as stored.

    Args:
        data: The file.
        header: What its header says.
        library: Which one decodes; OpenCV and Pillow help out where libjpeg-turbo lacks the ability.
        max_pixels: For Pillow's own check.
        allow_truncated: Keep a picture that ends early; what is missing is gray.

    Returns:
        (H, W, 3) RGB, and notes.

    Raises:
        Unusable: Truncated, damaged, or of a kind that no decoder here knows.
        MissingExtra: ``library`` is turbojpeg and it is not installed.
    """
    layout = header.jpeg
    assert layout is not None
    if layout.scan_at < 0:
        raise Unusable("truncated", header.ends_early)
    attempt_with = {"simplejpeg": by_simplejpeg, "turbojpeg": by_turbojpeg, "opencv": by_opencv_checked}[library]
    attempt = attempt_with(data, layout)
    if attempt.pixels is not None and not attempt.complaint:
        return attempt.pixels, ()
    complaint = attempt.complaint
    if layout.junk_nbytes or (attempt.pixels is None and _WARNING.fullmatch(complaint)):
        # The complaint is about something beside the pixels and may hide one about them: only the first is reported
        attempt = attempt_with(essential(data, layout), layout)
        if attempt.pixels is not None and not attempt.complaint:
            return attempt.pixels, (("decoder", f"libjpeg-turbo: {complaint}"),)
    if any(words in attempt.complaint for words in _EARLY_END):
        return _early_end(data, header, attempt, attempt_with, allow_truncated)
    if attempt.pixels is not None:
        if not header.ends_early:
            return attempt.pixels, (("decoder", f"libjpeg-turbo: {attempt.complaint}"),)
        return _early_end(data, header, attempt, attempt_with, allow_truncated)
    return _other_decoders(data, header, attempt.complaint, max_pixels)


def _early_end(
    data: bytes, header: Header, attempt: _Attempt, attempt_with: Callable[[bytes, JpegLayout], _Attempt], allow_truncated: bool
) -> tuple[npt.NDArray[np.uint8], Notes]:
    """Tell a picture that only lacks its end mark from one that lacks data."""
    layout = header.jpeg
    assert layout is not None
    if header.ends_early and layout.one_pass:
        # Where one Huffman-coded scan holds everything, a decoder that meets the end mark too early misses bits and says so
        whole = attempt_with(data + _END_MARK, layout)
        if whole.pixels is not None and not whole.complaint:
            return whole.pixels, (("decoder", "the end mark is missing, every pixel is there"),)
    if allow_truncated and attempt.pixels is not None:
        return attempt.pixels, (("truncated-kept", f"{attempt.complaint}"),)
    raise Unusable("truncated", f"libjpeg-turbo: {attempt.complaint}")


def _other_decoders(data: bytes, header: Header, complaint: str, max_pixels: int) -> tuple[npt.NDArray[np.uint8], Notes]:
    """Ask Pillow, then OpenCV, where libjpeg-turbo lacks the ability; where it met an error, the picture is damaged.

    Pillow comes first because it is strict and prints nothing.
    """
    layout = header.jpeg
    assert layout is not None
    if header.ends_early:
        raise Unusable("truncated", f"{header.ends_early} (libjpeg-turbo: {complaint})")
    able = layout.frame in _ABLE and layout.precision == 8 and "subsampling" not in complaint and "Unsupported" not in complaint
    if able:
        raise Unusable("unreadable", f"libjpeg-turbo: {complaint}")
    try:
        return by_pillow(data, header, max_pixels=max_pixels, allow_truncated=False)[0], ()
    except Unusable as err:
        if err.reason != "unreadable":
            raise
    pixels = by_opencv(data)
    if pixels is not None:
        return pixels, ()
    kind = f"JPEG with {layout.precision} bits, process SOF{layout.frame - 0xC0}"
    raise Unusable("unsupported", f"{kind}: no decoder here ({complaint})")


def by_simplejpeg(data: bytes, layout: JpegLayout) -> _Attempt:
    """Decode by simplejpeg. It reports the first warning, or the error that came later, as an exception."""
    import simplejpeg

    colour = "GRAY" if layout.frame == _LOSSLESS and layout.components == 1 else "RGB"  # no conversion in lossless JPEG
    try:
        return _Attempt(_three(simplejpeg.decode_jpeg(data, colour)), "")
    except ValueError as err:
        complaint = str(err)
    if not _WARNING.fullmatch(complaint):
        return _Attempt(None, complaint)
    try:
        return _Attempt(_three(simplejpeg.decode_jpeg(data, colour, strict=False)), complaint)
    except ValueError:  # its reading of the header knows no leniency
        return _Attempt(None, complaint)


def by_opencv_checked(data: bytes, layout: JpegLayout) -> _Attempt:
    """Decode by OpenCV what libjpeg-turbo has no complaint about, at the price of decoding twice."""
    attempt = by_simplejpeg(data, layout)
    if attempt.complaint:
        return attempt
    pixels = by_opencv(data)
    return attempt if pixels is None else _Attempt(pixels, "")


def by_turbojpeg(data: bytes, layout: JpegLayout) -> _Attempt:
    """Decode by PyTurboJPEG.

    It reports libjpeg's warnings through Python's, whose filters belong to the whole process: one picture at a time.
    """
    decoder, rgb, gray = _turbojpeg()
    pixel_format = gray if layout.frame == _LOSSLESS and layout.components == 1 else rgb
    with _lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            pixels = decoder.decode(data, pixel_format=pixel_format)
        except (OSError, ValueError) as err:
            return _Attempt(None, str(err))
    complaint = str(caught[0].message) if caught else ""
    if complaint and not _WARNING.fullmatch(complaint):
        return _Attempt(None, complaint)
    return _Attempt(_three(pixels), complaint)


@cache
def _turbojpeg() -> tuple[Any, int, int]:
    why = "decode JPEGs by turbojpeg"
    try:
        import turbojpeg
    except ImportError:
        raise MissingExtra("turbojpeg", "turbojpeg", why) from None
    try:
        return turbojpeg.TurboJPEG(), turbojpeg.TJPF_RGB, turbojpeg.TJPF_GRAY
    except (OSError, RuntimeError) as err:
        raise MissingExtra("the system library libturbojpeg", "turbojpeg", f"{why} (turbojpeg says: {err})") from None


def _three(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)
