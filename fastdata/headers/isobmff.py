"""Pictures in boxes: AVIF and HEIC (ISO/IEC 23008-12), JPEG 2000 (ISO/IEC 15444-1) and JPEG XL (ISO/IEC 18181-2).

A box is a length, a name and content, and content may be boxes again (ISO/IEC 14496-12). The size of an AVIF or HEIC is a
property (``ispe``) of its primary item, and so is the turn (``irot``, ``imir``): that, not EXIF, says which way up it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

from fastdata.headers.header import Header, Unusable
from fastdata.orientation import container_orientation

JP2_SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"
JXL_SIGNATURE = b"\0\0\0\x0cJXL \r\n\x87\n"
_HEIC_BRANDS = frozenset([b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"])
_BOX_LIMIT = 10_000


def _boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int, bool]]:
    """Yield (name, start of content, end of content, whether all of it is there)."""
    for _ in range(_BOX_LIMIT):
        if at + 8 > end:
            return
        length, name = struct.unpack_from(">I4s", data, at)
        content = at + 8
        if length == 1 and at + 16 <= end:
            (length,) = struct.unpack_from(">Q", data, at + 8)
            content = at + 16
        stop = end if length == 0 else at + length
        if stop < content:
            return
        yield name, content, min(stop, end), stop <= end
        at = stop


def _find(data: bytes, at: int, end: int, name: bytes) -> tuple[int, int] | None:
    return next(((a, b) for n, a, b, _ in _boxes(data, at, end) if n == name), None)


def _cut_off(data: bytes) -> str:
    for name, start, _, whole in _boxes(data, 0, len(data)):
        if not whole:
            return f"the {name.decode('ascii', 'backslashreplace')} box at byte {start - 8} goes on after the end of the file"
    return ""


def brand(data: bytes) -> Literal["avif", "heic", ""]:
    """Tell what an ``ftyp`` box promises, from its major and its compatible brands."""
    end = min(int.from_bytes(data[:4], "big"), len(data), 1024)
    brands = [data[8:12], *(data[i : i + 4] for i in range(16, end - 3, 4))]
    if any(b in (b"avif", b"avis") for b in brands):
        return "avif"
    return "heic" if any(b in _HEIC_BRANDS for b in brands) else ""


def heif_header(data: bytes, kind: Literal["avif", "heic"]) -> Header:
    """Read an AVIF or HEIC: size, turn, depth and colour of the primary item. A sequence without one has no size here."""
    ends_early = _cut_off(data)
    size_hw: tuple[int, int] | None = None
    channels, bits = 3, 8
    steps: list[tuple[Literal["irot", "imir"], int]] = []
    meta = _find(data, 0, len(data), b"meta")
    try:
        for name, at, end in _primary_properties(data, *meta) if meta else ():
            if name == b"ispe" and end - at >= 12:
                w, h = struct.unpack_from(">II", data, at + 4)
                size_hw = (h, w)
            elif name == b"clap" and end - at >= 16 and kind == "heic":  # libheif crops to it, libavif does not
                wn, wd, hn, hd = struct.unpack_from(">IIII", data, at)
                size_hw = (hn // max(hd, 1), wn // max(wd, 1))
            elif name == b"irot" and end > at:
                steps.append(("irot", data[at] & 3))
            elif name == b"imir" and end > at:
                steps.append(("imir", data[at] & 1))
            elif name == b"av1C" and end - at >= 3:
                bits = 8 if not data[at + 2] & 0x40 else 12 if data[at + 2] & 0x20 else 10
                channels = 1 if data[at + 2] & 0x10 else 3
    except (struct.error, IndexError):
        raise Unusable("truncated" if ends_early else "unreadable", ends_early or "its meta box is damaged") from None
    if size_hw is None and ends_early:
        raise Unusable("truncated", ends_early)
    return Header(
        kind,
        size_hw,
        channels=channels,
        bits=bits,
        orientation=container_orientation(steps),
        more="animated" if data[8:12] in (b"avis", b"hevc", b"msf1") else "",
        ends_early=ends_early,
    )


def _primary_properties(data: bytes, at: int, end: int) -> list[tuple[bytes, int, int]]:
    """Return (name, start, end) of the properties of the primary item, in the order in which they apply."""
    at += 4  # a full box: version and flags
    primary = _find(data, at, end, b"pitm")
    properties = _find(data, at, end, b"iprp")
    if primary is None or properties is None:
        return []
    item = struct.unpack_from(">I" if data[primary[0]] else ">H", data, primary[0] + 4)[0]
    container = _find(data, *properties, b"ipco")
    if container is None:
        return []
    known = [(name, a, b) for name, a, b, _ in _boxes(data, *container)]
    for name, a, b, _ in _boxes(data, *properties):
        if name != b"ipma":
            continue
        version, wide = data[a], data[a + 3] & 1
        (count,) = struct.unpack_from(">I", data, a + 4)
        pos = a + 8
        for _ in range(count):
            if pos >= b:
                break
            (this,) = struct.unpack_from(">I" if version else ">H", data, pos)
            pos += 4 if version else 2
            (n,) = struct.unpack_from(">B", data, pos)
            pos += 1
            indices = struct.unpack_from(f">{n}{'H' if wide else 'B'}", data, pos)
            pos += n * (2 if wide else 1)
            if this == item:
                mask = 0x7FFF if wide else 0x7F
                return [known[(i & mask) - 1] for i in indices if 1 <= (i & mask) <= len(known)]
    return []


def jp2_header(data: bytes) -> Header:
    """Read a JPEG 2000, in boxes or bare. Its size comes from the codestream, which is what a decoder allocates."""
    if data[:4] == b"\xff\x4f\xff\x51":
        start, end, ends_early = 0, len(data), ""
    else:
        ends_early = _cut_off(data)
        stream = _find(data, 0, len(data), b"jp2c")
        if stream is None:
            raise Unusable("truncated" if ends_early else "unreadable", ends_early or "there is no codestream")
        start, end = stream
    if end - start < 44:
        raise Unusable("truncated", "the codestream ends within its header")
    x1, y1, x0, y0 = struct.unpack_from(">IIII", data, start + 8)
    channels, depth = struct.unpack_from(">HB", data, start + 40)
    bits = (depth & 0x7F) + 1
    unsupported = ""
    if depth & 0x80:
        unsupported = "samples are signed integers; scale them to 8 or 16 bits first"
    elif bits > 16:
        unsupported = f"samples have {bits} bits; scale them to 8 or 16 bits first"
    elif channels > 4:
        unsupported = f"{channels} channels without a colour meaning; choose three and write them as RGB"
    if not ends_early and data[end - 2 : end] != b"\xff\xd9":
        ends_early = "the codestream has no end mark"
    return Header(
        "jp2",
        (max(y1 - y0, 0), max(x1 - x0, 0)),
        channels=1 if channels <= 2 else 3,
        bits=max(bits, 8),
        alpha=channels in (2, 4),
        ends_early=ends_early,
        unsupported=unsupported,
    )


def jxl_header(data: bytes) -> Header:
    """Read a JPEG XL. Its size is entropy coded and left to the decoder, which also turns the picture."""
    return Header("jxl", None, ends_early=_cut_off(data) if data[:12] == JXL_SIGNATURE else "")
