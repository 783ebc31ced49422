"""Pictures and files for the tests of decoding: made here, byte for byte where no encoder makes them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.images import Decoded, Refused, decode_image

Pixels = npt.NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "BMP", "GIF", "JPEG2000", "PPM")


def good(data: bytes | memoryview, **options: Any) -> Decoded:
    """Decode what must decode."""
    found = decode_image(data, **options)
    assert isinstance(found, Decoded), found
    return found


def refused(data: bytes, **options: Any) -> Refused:
    """Decode what must be refused."""
    found = decode_image(data, **options)
    assert isinstance(found, Refused), found.rgb.shape
    return found


def picture(h: int, w: int, seed: int = 0) -> Pixels:
    """(h, w, 3) with no symmetry at all: two ramps, a bright corner, and a little noise."""
    yy, xx = np.mgrid[:h, :w]
    noise = np.random.default_rng(seed).integers(0, 12, (h, w))
    rgb = np.stack([yy * 200 // h + noise, xx * 200 // w + noise, (yy + xx) * 100 // (h + w) + noise], -1).astype(np.uint8)
    rgb[: h // 4, : w // 5] = (250, 240, 10)
    return rgb


def saved(pixels: Pixels | Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a file as Pillow writes it."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    if kind == "GIF":
        image = image.quantize(200) if image.mode == "RGB" else image
        options.setdefault("interlace", 0)
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def exif(orientation: int) -> bytes:
    """An EXIF block as Pillow writes it."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def tiff_block(
    value: int, *, order: str = "<", kind: int = 3, count: int = 1, before: int = 0, entries: int | None = None
) -> bytes:
    """A bare EXIF block with one orientation entry after ``before`` others, and ``entries`` as the stated number."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    body = struct.pack(order + "H", before + 1 if entries is None else entries)
    for i in range(before):
        body += struct.pack(order + "HHII", 256 + i, 4, 1, 7)
    form = {1: "B3x", 3: "H2x", 4: "I"}.get(kind, "I")
    return head + body + struct.pack(order + "HHI" + form, 0x0112, kind, count, value) + bytes(4)


def chunk(name: bytes, content: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_with(pixels: Pixels, *extra: bytes) -> bytes:
    """A PNG with more chunks before its image data."""
    data = saved(pixels, "PNG")
    return data[:33] + b"".join(extra) + data[33:]


def raw_profile_text(profile: bytes, name: str = "exif") -> bytes:
    """ImageMagick's way to put a profile into text."""
    digits = profile.hex()
    lines = "\n".join(digits[i : i + 72] for i in range(0, len(digits), 72))
    return f"\n{name}\n{len(profile):8d}\n{lines}\n".encode()


def xmp(orientation: int, *, element: bool = False) -> bytes:
    """An XMP packet that says which way up."""
    said = (
        f"<rdf:Description><tiff:Orientation>{orientation}</tiff:Orientation></rdf:Description>"
        if element
        else f'<rdf:Description tiff:Orientation="{orientation}"/>'
    )
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        f'xmlns:tiff="http://ns.adobe.com/tiff/1.0/">{said}</rdf:RDF></x:xmpmeta>'
    ).encode()


def jpeg_with(data: bytes, *segments: tuple[int, bytes]) -> bytes:
    """A JPEG with more segments right after its start."""
    extra = b"".join(b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body for marker, body in segments)
    return data[:2] + extra + data[2:]


def tiff_file(h: int, w: int, rows: bytes, *, bits: int, samples: int = 1, photometric: int = 1, **tags: int) -> bytes:
    """An uncompressed TIFF of one strip; ``tags`` are further short entries by name (``sample_format``, ``dng``, ...)."""
    numbers = {"subfile": 254, "extra": 338, "sample_format": 339, "dng": 50706}
    entries = [
        (256, 4, w), (257, 4, h), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 8), (277, 3, samples),
        (278, 4, h), (279, 4, len(rows)), *((numbers[name], 3, value) for name, value in tags.items()),
    ]  # fmt: skip
    entries.sort()
    table = struct.pack("<H", len(entries))
    for tag, kind, value in entries:
        table += struct.pack("<HHI", tag, kind, 1) + (struct.pack("<H2x", value) if kind == 3 else struct.pack("<I", value))
    padded = rows + bytes(len(rows) % 2)
    return b"II*\0" + struct.pack("<I", 8 + len(padded)) + padded + table + bytes(4)


def gif_file(
    screen_hw: tuple[int, int], place: tuple[int, int, int, int], indices: list[int], *, transparent: int | None
) -> bytes:
    """A GIF of four colours (red, green, blue, gray) with one frame at (left, top, width, height) and green as background."""
    data = b"GIF89a" + struct.pack("<HHBBB", screen_hw[1], screen_hw[0], 0x81, 1, 0)
    data += bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    if transparent is not None:
        data += b"\x21\xf9\x04" + bytes([1, 0, 0, transparent, 0])
    data += b"\x2c" + struct.pack("<HHHHB", *place, 0) + b"\x02"
    codes = [code for i, value in enumerate(indices) for code in ([4, value] if i % 2 == 0 else [value])] + [5]
    packed = sum(code << (3 * i) for i, code in enumerate(codes))
    content = packed.to_bytes((3 * len(codes) + 7) // 8, "little")
    return data + bytes([len(content)]) + content + b"\0;"
