"""Where the parts of a JPEG lie: its segments up to the first scan, and the end mark of the picture.

Marker syntax after ITU-T T.81, annex B; tolerant where libjpeg is: bytes between segments are skipped (and remembered), the
first frame header counts. A thumbnail inside APP1 and a second JPEG after the end mark are never taken for the picture, because
segments are skipped as a whole and the walk ends at the first end mark outside of them.

Invariant: ``start <= scan_at <= end`` and ``data[end - 2:end] == FF D9`` where ``end`` is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_ALONE = frozenset([0x01, *range(0xD0, 0xD9)])  # TEM, RST0..7 and SOI carry no length
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_APP0, _APP1, _APP14, _COM, _EOI, _SOS = 0xE0, 0xE1, 0xEE, 0xFE, 0xD9, 0xDA

BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2
HUFFMAN_DCT = (BASELINE, EXTENDED, PROGRESSIVE)


@dataclass(frozen=True, slots=True)
class JpegLayout:
    """The parts of one JPEG, as offsets into its bytes."""

    frame: int
    """Marker of the frame header, 0xC0 to 0xCF; 0 when there is none."""
    precision: int
    """Bits per sample."""
    size_hw: tuple[int, int]
    components: int
    segments: tuple[tuple[int, int, int], ...]
    """(marker, start, stop) of each segment before the first scan, in the order of the file; the scan header is the last."""
    scan_at: int
    """Where the data of the first scan begin; -1 when the file ends before."""
    scan_components: int
    """Components in the first scan."""
    exif: bytes | None
    xmp: bytes | None
    junk_nbytes: int
    """Bytes between segments that belong to none."""
    fault: str
    """Why the header cannot be walked to a scan; empty when it can."""
    cut: bool
    """Whether ``fault`` is the end of the file."""

    @property
    def one_pass(self) -> bool:
        """Whether a single Huffman-coded scan holds everything, so that no bit can be missing without a decoder noticing."""
        return self.frame in (BASELINE, EXTENDED) and self.scan_components == self.components


def jpeg_layout(data: bytes) -> JpegLayout:
    """Walk the segments of a JPEG up to its first scan. ``data`` begins with ``FF D8``."""
    frame = precision = components = scan_components = junk = 0
    size_hw = (0, 0)
    segments: list[tuple[int, int, int]] = []
    exif: bytes | None = None
    xmp: bytes | None = None
    scan_at, fault, cut = -1, "", False
    at = 2
    while not fault:
        mark = data.find(b"\xff", at)
        marker_at = mark
        while marker_at >= 0 and marker_at < len(data) and data[marker_at] == 0xFF:  # any number of fill bytes
            marker_at += 1
        if mark < 0 or marker_at + 3 > len(data):
            last = data[marker_at] if 0 <= marker_at < len(data) else 0
            fault, cut = ("it ends before its first scan", last != _EOI)
            break
        junk += mark - at
        marker = data[marker_at]
        if marker == _EOI:
            fault = f"its end mark at byte {mark} comes before any scan"
        elif marker == 0x00:
            junk += marker_at + 1 - mark
            at = marker_at + 1
        elif marker in _ALONE:
            at = marker_at + 1
        else:
            stop = marker_at + 1 + int.from_bytes(data[marker_at + 1 : marker_at + 3], "big")
            if stop < marker_at + 3:
                fault = f"the segment at byte {mark} has an impossible length"
                break
            if stop > len(data):
                fault, cut = f"the segment at byte {mark} goes on after the end of the file", True
                break
            body = marker_at + 3
            segments.append((marker, marker_at - 1, stop))
            if marker in _FRAMES and not frame and stop - body >= 6:
                frame, precision, components = marker, data[body], data[body + 5]
                size_hw = (int.from_bytes(data[body + 1 : body + 3], "big"), int.from_bytes(data[body + 3 : body + 5], "big"))
            elif marker == _APP1 and exif is None and data[body : body + 5] == b"Exif\0":
                exif = data[body:stop]
            elif marker == _APP1 and xmp is None and data[body : body + 29] == b"http://ns.adobe.com/xap/1.0/\0":
                xmp = data[body + 29 : stop]
            elif marker == _SOS:
                scan_at, scan_components = stop, data[body] if stop > body else 0
                break
            at = stop
    return JpegLayout(
        frame, precision, size_hw, components, tuple(segments), scan_at, scan_components, exif, xmp, junk, fault, cut
    )


def jpeg_end(data: bytes, layout: JpegLayout) -> tuple[int | None, int]:
    """Find the end of the picture.

    Returns:
        The offset after its end mark, or None when the file ends without one; and the number of scans.
    """
    at, scans = layout.scan_at, 1
    while 0 <= at < len(data):
        found = _SCAN_END.search(data, at)
        if found is None:
            break
        marker, at = data[found.end() - 1], found.end()
        if marker == _EOI:
            return at, scans
        scans += marker == _SOS
        if marker not in _ALONE:
            length = int.from_bytes(data[at : at + 2], "big")
            if length < 2:
                continue  # damage, not a segment: libjpeg stops there, the decoder will say so
            at += length
    return None, scans


def essential(data: bytes, layout: JpegLayout) -> bytes:
    """Return the JPEG without what has no part in its pixels: application data, comments, and bytes between segments.

    JFIF (APP0) and Adobe (APP14) stay, they say what the components mean. A version or colour code in them that nobody knows is
    replaced by the one that libjpeg assumes then.
    """
    keep = [b"\xff\xd8"]
    for marker, start, stop in layout.segments:
        segment = data[start:stop]
        if marker == _APP0 and segment[4:9] == b"JFIF\0" and len(segment) > 9:
            keep.append(segment[:9] + b"\1" + segment[10:])
        elif marker == _APP14 and segment[4:9] == b"Adobe" and len(segment) > 15:
            assumed = {3: 1, 4: 2}.get(layout.components, 0)  # YCbCr, YCCK
            code = segment[15] if segment[15] in (0, assumed) else assumed
            keep.append(segment[:15] + bytes([code]) + segment[16:])
        elif not (_APP0 <= marker <= 0xEF or marker == _COM):
            keep.append(segment)
    return b"".join(keep) + data[layout.scan_at :]
