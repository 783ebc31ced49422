"""Formats whose header stands at the front of the file: GIF, BMP, WebP and the portable anymaps."""

from __future__ import annotations

import re
import struct

from fastdata.headers.header import Header, Unusable
from fastdata.orientation import found_orientation

_GAP = rb"(?:\s|#[^\n\r]*[\n\r])+"
_PNM = re.compile(rb"P([1-6])" + _GAP + rb"(\d{1,10})" + _GAP + rb"(\d{1,10})(?:" + _GAP + rb"(\d{1,5}))?")


def gif_header(data: bytes, *, body: bool) -> Header:
    """Read a GIF (GIF89a specification): the screen, and the blocks as far as the second picture.

    The size is the screen, grown where the first picture leaves it. ``body`` False stops at the first picture.
    """
    if len(data) < 13:
        raise Unusable("truncated", "the file ends within its screen descriptor")
    w, h, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    pictures = 0
    ends_early = "there is no picture"
    while at < len(data):
        kind = data[at]
        if kind == 0x3B:
            break
        if kind == 0x21:
            at = _after_blocks(data, at + 2)
        elif kind == 0x2C:
            pictures += 1
            if pictures == 2 or at + 10 > len(data):
                break
            left, top, width, height, flags = struct.unpack_from("<HHHHB", data, at + 1)
            w, h = max(w, left + width), max(h, top + height)
            at = _after_blocks(data, at + 11 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0))
            ends_early = "the first picture goes on after the end of the file" if at > len(data) else ""
            if not body:
                break
        else:
            break
    if pictures == 0 and at < len(data):
        raise Unusable("unreadable", "the file has no picture")
    return Header("gif", (h, w), more="animated" if pictures > 1 else "", ends_early=ends_early)


def _after_blocks(data: bytes, at: int) -> int:
    """Return the offset after a row of data sub-blocks; beyond the file when its end comes first."""
    while at < len(data):
        length = data[at]
        at += 1 + length
        if length == 0:
            return at
    return len(data) + 1


def bmp_header(data: bytes) -> Header:
    """Read a Windows or OS/2 bitmap. An early end is only judged for uncompressed rows."""
    if len(data) < 26:
        raise Unusable("truncated", "the file ends within its header")
    pixels_at, header_nbytes = struct.unpack_from("<II", data, 10)
    compression = 0
    if header_nbytes == 12:
        w, h, _, bits = struct.unpack_from("<HHHH", data, 18)
    elif len(data) < 34:
        raise Unusable("truncated", "the file ends within its header")
    else:
        w, h, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
        h = abs(h)  # negative: the top row comes first
    ends_early = ""
    if w > 0 and compression in (0, 3, 6):
        stride = (w * bits + 31) // 32 * 4
        needed = pixels_at + stride * (h - 1) + (w * bits + 7) // 8
        if needed > len(data):
            ends_early = f"its rows need {needed} bytes, the file has {len(data)}"
    return Header("bmp", (h, w), ends_early=ends_early)


def webp_header(data: bytes) -> Header:
    """Read a WebP (RFC 9649): the canvas, or the largest picture in it, and the EXIF and XMP chunks."""
    if len(data) < 30:
        raise Unusable("truncated", "the file ends within its header")
    end = 8 + int.from_bytes(data[4:8], "little")
    h = w = 0
    alpha = animated = False
    exif: bytes | None = None
    xmp: bytes | None = None
    at = 12
    while at + 8 <= min(len(data), end):
        name, length = struct.unpack_from("<4sI", data, at)
        chunk = data[at + 8 : at + 8 + min(length, 1 << 20)]
        if name == b"VP8X" and len(chunk) >= 10:
            animated, alpha = bool(chunk[0] & 0x02), bool(chunk[0] & 0x10)
            w, h = 1 + int.from_bytes(chunk[4:7], "little"), 1 + int.from_bytes(chunk[7:10], "little")
        elif name == b"VP8 " and chunk[3:6] == b"\x9d\x01\x2a":
            w, h = max(w, _u16(chunk, 6) & 0x3FFF), max(h, _u16(chunk, 8) & 0x3FFF)
        elif name == b"VP8L" and len(chunk) >= 5 and chunk[0] == 0x2F:
            packed = int.from_bytes(chunk[1:5], "little")
            w, h = max(w, 1 + (packed & 0x3FFF)), max(h, 1 + (packed >> 14 & 0x3FFF))
            alpha = alpha or bool(packed >> 28 & 1)
        elif name == b"EXIF" and exif is None:
            exif = chunk
        elif name == b"XMP " and xmp is None:
            xmp = chunk
        at += 8 + length + (length & 1)
    return Header(
        "webp",
        (h, w),
        alpha=alpha,
        orientation=found_orientation(exif, xmp),
        more="animated" if animated else "",
        ends_early=f"its header says {end} bytes, the file has {len(data)}" if end > len(data) else "",
        tail_nbytes=max(len(data) - end - (end & 1), 0),
    )


def pnm_header(data: bytes) -> Header:
    """Read a portable bitmap, graymap or pixmap, plain or raw (Netpbm formats P1 to P6)."""
    found = _PNM.match(data[:4096])
    if found is None:
        raise Unusable("unreadable", "width and height must follow the magic number")
    kind = int(found[1])
    top = 1 if kind in (1, 4) else int(found[4] or 0)
    if not 1 <= top <= 65535:
        raise Unusable("unreadable", f"the largest sample must be 1 to 65535, got {top}")
    return Header(
        "pnm",
        (int(found[3]), int(found[2])),
        channels=3 if kind in (3, 6) else 1,
        bits={1: 8 if kind in (1, 4) else 0, 255: 8, 65535: 16}.get(top, 0),
    )


def _u16(chunk: bytes, at: int) -> int:
    return int.from_bytes(chunk[at : at + 2], "little")
