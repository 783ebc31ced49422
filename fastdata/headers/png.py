"""PNG headers: size, sample depth, where EXIF and XMP hide, and whether every chunk is there and undamaged.

After the W3C recommendation "Portable Network Graphics (Third Edition)". Text is inflated to at most a MiB, so a chunk that would
grow to gigabytes costs no more than that.
"""

from __future__ import annotations

import struct
import zlib

from fastdata.headers.header import Header, Unusable
from fastdata.orientation import found_orientation, raw_profile

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TEXT_LIMIT_NBYTES = 1 << 20
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 1, 6: 3}
_EXIF_NAMES = (b"Raw profile type exif", b"Raw profile type APP1")
_XMP_NAME = b"XML:com.adobe.xmp"


def png_header(data: bytes, *, body: bool) -> Header:
    """Read a PNG.

    Args:
        data: The file.
        body: Also compare the checksums of the chunks that the pixels need.

    Raises:
        Unusable: The first chunk is no image header, there is no image data, or a checksum differs.
    """
    if len(data) < 33:
        raise Unusable("truncated", "the file ends within its image header")
    if data[12:16] != b"IHDR":
        raise Unusable("unreadable", f"the first chunk must be IHDR, got {data[12:16]!r}")
    w, h, bits, colour = struct.unpack_from(">IIBB", data, 16)
    if colour not in _CHANNELS:
        raise Unusable("unreadable", f"colour type must be 0, 2, 3, 4 or 6, got {colour}")
    exif: bytes | None = None
    text_exif: bytes | None = None
    xmp: bytes | None = None
    animated = has_pixels = False
    ends_early = "there is no IEND chunk"
    at = 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        stop = at + 12 + length
        if stop > len(data):
            ends_early = f"the {_shown(name)} chunk at byte {at} goes on after the end of the file"
            break
        if body and not name[0] & 0x20 and zlib.crc32(data[at + 4 : stop - 4]) != int.from_bytes(data[stop - 4 : stop], "big"):
            raise Unusable("unreadable", f"the checksum of the {_shown(name)} chunk at byte {at} differs")
        if name == b"IEND":
            ends_early = ""
            at = stop
            break
        if name == b"IDAT":
            has_pixels = True
        elif name == b"acTL":
            animated = int.from_bytes(data[at + 8 : at + 12], "big") > 1
        elif name == b"eXIf" and exif is None:
            exif = data[at + 8 : stop - 4]
        elif name in (b"tEXt", b"zTXt", b"iTXt"):
            keyword, text = _text(name, data[at + 8 : stop - 4])
            if keyword in _EXIF_NAMES and text_exif is None:
                text_exif = raw_profile(text)
            elif keyword == _XMP_NAME and xmp is None:
                xmp = text
        at = stop
    if not has_pixels and not ends_early:
        raise Unusable("unreadable", "there is no IDAT chunk")
    return Header(
        "png",
        (h, w),
        channels=_CHANNELS[colour],
        bits=16 if bits == 16 else 8,
        alpha=colour in (4, 6),
        orientation=found_orientation(exif or text_exif, xmp),
        more="animated" if animated else "",
        ends_early=ends_early,
        tail_nbytes=0 if ends_early else len(data) - at,
    )


def png_essential(data: bytes) -> bytes:
    """Return the PNG without ancillary chunks: what they say has no part in the samples, and libpng prints what it dislikes.

    An animated PNG becomes its default picture.
    """
    keep, at = [SIGNATURE], 8
    while at + 12 <= len(data):
        stop = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if not data[at + 4] & 0x20:
            keep.append(data[at:stop])
        at = stop
    return b"".join(keep)


def _text(name: bytes, chunk: bytes) -> tuple[bytes, bytes]:
    """Return (keyword, text) of a text chunk; the text is empty where it is of no interest or damaged."""
    keyword, _, rest = chunk[:80].partition(b"\0")
    if keyword not in _EXIF_NAMES and keyword != _XMP_NAME:
        return keyword, b""
    rest = chunk[len(keyword) + 1 :]
    if name == b"tEXt":
        return keyword, rest
    if name == b"zTXt":
        return keyword, _inflate(rest[1:])
    packed = rest[:1] == b"\1"
    text = rest[2:].split(b"\0", 2)[-1]  # after the language tag and the translated keyword
    return keyword, _inflate(text) if packed else text


def _inflate(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(packed, _TEXT_LIMIT_NBYTES)
    except zlib.error:
        return b""


def _shown(name: bytes) -> str:
    return name.decode("ascii", "backslashreplace")
