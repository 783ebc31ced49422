"""TIFF headers: the first page, what its samples mean, and whether its compressed data are all there.

After "TIFF Revision 6.0" and its BigTIFF variant (64-bit offsets). Only the first directory is read; camera raw files, which are
TIFFs with a preview as their first page, are told apart because the preview is not the picture.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from fastdata.headers.header import Header, Unusable
from fastdata.orientation import xmp_orientation

_FORMS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q", 18: "Q"}
_SUBFILE, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 256, 257, 258, 259, 262
_STRIPS, _ORIENTATION, _SAMPLES, _STRIP_NBYTES = 273, 274, 277, 279
_TILES, _TILE_NBYTES, _EXTRA, _SAMPLE_FORMAT, _XMP, _DNG = 324, 325, 338, 339, 700, 50706
_CFA, _LINEAR_RAW = 32803, 34892
_MEANING = {2: "signed integers", 3: "floating point", 5: "complex integers", 6: "complex floating point"}
_CHANNELS = {0: 1, 1: 1, 5: 4}


@dataclass(frozen=True, slots=True)
class _Page:
    """The entries of one directory: tag → (field type, count, offset of the values)."""

    data: bytes
    order: str
    entries: dict[int, tuple[int, int, int]]
    next_at: int

    def values(self, tag: int) -> tuple[int, ...]:
        """Return the numbers of an entry, () when it is not there or leaves the file."""
        kind, count, at = self.entries.get(tag, (0, 0, 0))
        form = _FORMS.get(kind)
        if form is None or count <= 0 or at + count * struct.calcsize(form) > len(self.data):
            return ()
        return tuple(np.frombuffer(self.data, np.dtype(self.order + form), count, at).tolist())

    def value(self, tag: int, default: int) -> int:
        """Return the first number of an entry."""
        return next(iter(self.values(tag)), default)


def tiff_header(data: bytes, *, body: bool) -> Header:
    """Read a TIFF.

    Args:
        data: The file.
        body: Also look whether the compressed strips or tiles lie within the file.

    Raises:
        Unusable: The first directory is damaged or lies beyond the end of the file.
    """
    page = _first_page(data)
    h, w = page.value(_HEIGHT, 0), page.value(_WIDTH, 0)
    bits = page.values(_BITS) or (1,)
    samples = page.value(_SAMPLES, 1)
    photometric = page.value(_PHOTOMETRIC, 1)
    orientation = page.value(_ORIENTATION, 0)
    xmp_at = page.entries.get(_XMP)
    if not orientation and xmp_at is not None:
        orientation = xmp_orientation(data[xmp_at[2] : xmp_at[2] + xmp_at[1]]) or 1
    return Header(
        "tiff",
        (h, w),
        channels=_CHANNELS.get(photometric, 3),
        bits=bits[0] if bits[0] > 8 else 8,
        alpha=any(e in (1, 2) for e in page.values(_EXTRA)),
        orientation=orientation if 1 <= orientation <= 8 else 1,
        more="several pages" if page.next_at else "",
        ends_early=_missing(page) if body else "",
        unsupported=_unsupported(page, bits, samples, photometric),
    )


def _first_page(data: bytes) -> _Page:
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    try:
        if big:
            (at,) = struct.unpack_from(order + "Q", data, 8)
            (count,) = struct.unpack_from(order + "Q", data, at)
            at, step, form, inline = at + 8, 20, order + "HHQ", 8
        else:
            (at,) = struct.unpack_from(order + "I", data, 4)
            (count,) = struct.unpack_from(order + "H", data, at)
            at, step, form, inline = at + 2, 12, order + "HHI", 4
        if at + count * step > len(data):
            raise Unusable("truncated", f"its directory at byte {at} goes on after the end of the file")
        entries: dict[int, tuple[int, int, int]] = {}
        for i in range(count):
            entry_at = at + i * step
            tag, kind, n = struct.unpack_from(form, data, entry_at)
            value_at = entry_at + step - inline
            size = {2: 1, 5: 8, 7: 1, 10: 8, 11: 4, 12: 8}.get(kind) or struct.calcsize(_FORMS.get(kind, "B"))
            if n * size > inline:
                (value_at,) = struct.unpack_from(order + ("Q" if big else "I"), data, value_at)
            entries.setdefault(tag, (kind, n, value_at))
        next_form = order + ("Q" if big else "I")
        after = at + count * step
        next_at = struct.unpack_from(next_form, data, after)[0] if after + struct.calcsize(next_form) <= len(data) else 0
    except struct.error:
        raise Unusable("truncated", "its directory lies after the end of the file") from None
    return _Page(data, order, entries, next_at)


def _missing(page: _Page) -> str:
    """Return why compressed data are known to be missing, else "". Uncompressed rows are judged by the decoder."""
    if page.value(_COMPRESSION, 1) == 1:
        return ""
    for starts, lengths in ((_STRIPS, _STRIP_NBYTES), (_TILES, _TILE_NBYTES)):
        at, nbytes = page.values(starts), page.values(lengths)
        end = max((a + n for a, n in zip(at, nbytes, strict=False)), default=0)
        if end > len(page.data):
            return f"its data reach byte {end}, the file has {len(page.data)}"
    return ""


def _unsupported(page: _Page, bits: tuple[int, ...], samples: int, photometric: int) -> str:
    """Return why the samples have no agreed meaning as 8-bit RGB, else ""."""
    if _DNG in page.entries or photometric in (_CFA, _LINEAR_RAW) or page.value(_SUBFILE, 0) & 1:
        return "camera raw: the first page is sensor data or a preview; develop it to PNG or TIFF first"
    meaning = page.value(_SAMPLE_FORMAT, 1)
    if meaning in _MEANING:
        return f"samples are {_MEANING[meaning]}; scale them to 8 or 16 bits first"
    if bits[0] not in (1, 2, 4, 8, 12, 16):
        return f"samples have {bits[0]} bits; scale them to 8 or 16 bits first"
    if photometric in (0, 1) and samples > 2:
        return f"{samples} channels without a colour meaning; choose three and write them as RGB"
    return ""
