"""Read the header of any picture file: the content decides what it is, never the name."""

from __future__ import annotations

import struct

from fastdata.headers import front, isobmff, png, tiff
from fastdata.headers.header import Header, Unusable
from fastdata.headers.jpeg_layout import jpeg_end, jpeg_layout
from fastdata.orientation import found_orientation

_FLOAT = {b"PF": "PFM", b"Pf": "PFM", b"#?": "Radiance HDR", b"\x76\x2f\x31\x01": "OpenEXR"}
_OTHER = (b"qoif", b"\x01\xda", b"\x59\xa6\x6a\x95")  # QOI, SGI, Sun raster: what Pillow reads and knows by a magic number

_SCAN_LIMIT = 500  # encoders write 10 to 20 scans; each costs a pass over all pixels, however few bytes it has


def read_header(data: bytes, *, body: bool = True) -> Header:
    """Read the header of a picture.

    Args:
        data: The whole file. What lies late in it (the directory of a TIFF, EXIF of a WebP) is not found in a part.
        body: Also look for an early end, damage and trailing bytes, at the cost of a pass over the bytes.

    Raises:
        Unusable: Nothing can be decoded: no known format, or its header is damaged, cut off or of size zero.
    """
    try:
        header = _read(data, body)
    except (struct.error, IndexError, OverflowError):  # OverflowError: an offset of more than 63 bits
        raise Unusable("truncated", "the file ends within its header") from None
    if header.size_hw is not None and min(header.size_hw) <= 0:
        raise Unusable("unreadable", f"width and height must be positive, got {header.size_hw[1]} x {header.size_hw[0]}")
    return header


def _read(data: bytes, body: bool) -> Header:
    if data[:2] == b"\xff\xd8":
        return _jpeg(data, body)
    if data[:8] == png.SIGNATURE:
        return png.png_header(data, body=body)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return front.gif_header(data, body=body)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return front.webp_header(data)
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return tiff.tiff_header(data, body=body)
    if data[:2] == b"BM":
        return front.bmp_header(data)
    if data[4:8] == b"ftyp" and (kind := isobmff.brand(data)):
        return isobmff.heif_header(data, kind)
    if data[:12] == isobmff.JP2_SIGNATURE or data[:4] == b"\xff\x4f\xff\x51":
        return isobmff.jp2_header(data)
    if data[:12] == isobmff.JXL_SIGNATURE or data[:2] == b"\xff\x0a":
        return isobmff.jxl_header(data)
    if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3].isspace():
        return front.pnm_header(data)
    for magic, name in _FLOAT.items():
        if data.startswith(magic):
            return Header("other", None, unsupported=f"{name} holds floating point; scale it to 8 or 16 bits first")
    if data.startswith(_OTHER):
        return Header("other", None)
    raise Unusable("unreadable", f"no known picture format begins with {data[:8]!r}")


def _jpeg(data: bytes, body: bool) -> Header:
    layout = jpeg_layout(data)
    ends_early, tail_nbytes = "", 0
    if layout.scan_at < 0:
        if not layout.frame or not layout.cut:
            raise Unusable("truncated" if layout.cut else "unreadable", layout.fault)
        ends_early = layout.fault
    elif not layout.frame:
        raise Unusable("unreadable", "there is no frame header before the first scan")
    elif body:
        end, scans = jpeg_end(data, layout)
        if scans > _SCAN_LIMIT:
            raise Unusable("unreadable", f"it has {scans} scans, the limit is {_SCAN_LIMIT}; encoders write 10 to 20")
        ends_early, tail_nbytes = ("there is no end mark", 0) if end is None else ("", len(data) - end)
    return Header(
        "jpeg",
        layout.size_hw,
        channels=layout.components,
        bits=layout.precision,
        orientation=found_orientation(layout.exif, layout.xmp),
        ends_early=ends_early,
        tail_nbytes=tail_nbytes,
        jpeg=layout,
    )
