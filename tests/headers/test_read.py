"""Headers: the size is known before anything is allocated, and no bytes make the reader fail, hang or grow."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import picture_kit as kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fastdata.images
from fastdata.headers.header import FORMATS, Header, Unusable
from fastdata.headers.jpeg_layout import essential, jpeg_end, jpeg_layout
from fastdata.headers.read import read_header
from fastdata.images import Decoded, Refused, decode_image, probe_size
from fastdata.problems import REASONS

RGB = kit.picture(24, 30)
FILES = {kind: kit.saved(RGB, kind) for kind in kit.FORMATS} | {
    "WEBP-lossless": kit.saved(RGB, "WEBP", lossless=True),
    "WEBP-extended": kit.saved(RGB, "WEBP", exif=kit.exif(6), xmp=kit.xmp(3)),
    "WEBP-animated": kit.saved(RGB, "WEBP", save_all=True, append_images=[Image.fromarray(RGB[::-1].copy())]),
    "AVIF-turned": kit.saved(RGB, "AVIF", exif=kit.exif(7)),
    "TIFF-lzw": kit.saved(RGB, "TIFF", compression="tiff_lzw", tiffinfo={274: 5}),
    "TIFF-big": kit.saved(RGB, "TIFF", big_tiff=True),
    "PNG-text": kit.png_with(RGB, kit.chunk(b"tEXt", b"Raw profile type exif\0" + kit.raw_profile_text(kit.exif(6)))),
    "JPEG-exif": kit.saved(RGB, "JPEG", exif=kit.exif(8), xmp=kit.xmp(2)),
    "JP2-bare": kit.saved(RGB, "JPEG2000", no_jp2=True),
}


def header_or_reason(data: bytes, *, body: bool = True) -> Header | Unusable:
    """What ``read_header`` returns, or the one exception that it may raise."""
    try:
        return read_header(data, body=body)
    except Unusable as err:
        return err


def _patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    return data[:at] + struct.pack(form, *values) + data[at + struct.calcsize(form) :]


def _png_of(w: int, h: int) -> bytes:
    return FILES["PNG"][:8] + kit.chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + FILES["PNG"][33:]


def _tiff_of(w: int, h: int) -> bytes:
    data = kit.tiff_file(24, 30, bytes(720), bits=8)
    at = data.index(struct.pack("<HHII", 256, 4, 1, 30))
    return _patched(_patched(data, at + 8, "<I", w), at + 20, "<I", h)


def _avif_of(w: int, h: int) -> bytes:
    at = FILES["AVIF"].index(b"ispe") + 8
    return _patched(FILES["AVIF"], at, ">II", w, h)


BOMBS = {
    "jpeg": _patched(FILES["JPEG"], FILES["JPEG"].index(b"\xff\xc0") + 5, ">HH", 65000, 65000),
    "png": _png_of(65000, 65000),
    "gif": _patched(FILES["GIF"], 6, "<HH", 65000, 65000),
    "gif-frame": _patched(FILES["GIF"], FILES["GIF"].index(b"\x2c\0\0\0\0") + 5, "<HH", 65000, 65000),
    "bmp": _patched(FILES["BMP"], 18, "<ii", 65000, -65000),
    "webp": _patched(FILES["WEBP"], FILES["WEBP"].index(b"\x9d\x01\x2a") + 3, "<HH", 16383, 16383),
    "webp-lossless": _patched(FILES["WEBP-lossless"], FILES["WEBP-lossless"].index(b"VP8L") + 9, "<I", 0x0FFFFFFF),
    "webp-canvas": _patched(FILES["WEBP-extended"], FILES["WEBP-extended"].index(b"VP8X") + 12, "<IH", 0xFFFFFFFF, 0xFFFF),
    "tiff": _tiff_of(65000, 65000),
    "avif": _avif_of(65000, 65000),
    "jp2": _patched(FILES["JPEG2000"], FILES["JPEG2000"].index(b"\xff\x4f\xff\x51") + 8, ">II", 65000, 65000),
    "pnm": b"P6 65000 65000 255\n" + bytes(100),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_claim_of_billions_of_pixels_is_refused_before_any_decoder_sees_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that ask for gigabytes."""
    for decoder in ("decode_jpeg", "by_opencv", "by_pillow"):
        monkeypatch.setattr(fastdata.images, decoder, lambda *_, **__: pytest.fail("a decoder was called"))
    found = decode_image(BOMBS[name])
    assert isinstance(found, Refused)
    assert found.reason == "too-large", found
    assert "limit" in found.detail


@pytest.mark.parametrize("name", FILES)
def test_the_limit_is_exact(name: str) -> None:
    """As many pixels as the limit are allowed, one more is not."""
    assert isinstance(decode_image(FILES[name], max_pixels=24 * 30), Decoded)
    found = decode_image(FILES[name], max_pixels=24 * 30 - 1)
    assert isinstance(found, Refused)
    assert found.reason == "too-large"


def test_a_higher_limit_lets_pillow_pass_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's own limit follows the caller's, here for a TIFF, and is what it was afterwards."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert isinstance(decode_image(FILES["TIFF"]), Decoded)
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("name", FILES)
def test_probing_gives_the_upright_size_that_decoding_gives(name: str) -> None:
    """Without a decoder."""
    found = decode_image(FILES[name])
    assert isinstance(found, Decoded)
    assert probe_size(FILES[name]) == found.rgb.shape[:2]


@pytest.mark.parametrize("name", sorted(set(FILES) - {"TIFF-lzw", "TIFF", "TIFF-big"}))
def test_the_first_part_of_a_file_is_enough_for_its_stored_size(name: str) -> None:
    """Two thirds will do; a TIFF keeps its directory at the end and gives None, never a wrong size."""
    assert probe_size(FILES[name][: len(FILES[name]) * 2 // 3]) in ((24, 30), (30, 24))
    assert probe_size(FILES["TIFF-lzw"][:200]) is None


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_damaged_headers_give_a_header_or_a_reason(data: st.DataObject) -> None:
    """Any file with any few bytes changed, and cut anywhere."""
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, min(len(content) - 1, 400)))] = data.draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0xDA])
        )
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    for body in (False, True):
        header = header_or_reason(cut, body=body)
        if isinstance(header, Unusable):
            assert header.reason in REASONS
            assert header.detail
        else:
            assert header.format in FORMATS
            assert 1 <= header.orientation <= 8
            assert header.size_hw is None or min(header.size_hw) > 0
            assert header.tail_nbytes >= 0


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_damaged_files_give_a_picture_or_a_reason(data: st.DataObject) -> None:
    """The same through every decoder: no exception and no crash."""
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    decode_image(bytes(content), max_pixels=100_000, allow_truncated=data.draw(st.booleans()))


@given(st.binary(max_size=300), st.sampled_from([FILES[name][:12] for name in sorted(FILES)] + [b"\xff\xd8\xff", b"P5 ", b""]))
@settings(max_examples=300, deadline=None)
def test_any_bytes_after_a_magic_number_give_a_header_or_a_reason(content: bytes, magic: bytes) -> None:
    """Nothing but the documented exception."""
    for body in (False, True):
        header_or_reason(magic + content, body=body)


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content) + 8) + name + content


HOSTILE = {
    "png-text-bomb": kit.png_with(
        RGB, *[kit.chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(bytes(200_000_000), 9))] * 2
    ),
    "png-itxt-bomb": kit.png_with(RGB, kit.chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(bytes(200_000_000), 9))),
    "tiff-count": b"II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 258, 3, 0xFFFFFFFF, 26) + bytes(100),
    "tiff-loop": b"II*\0\x08\0\0\0" + struct.pack("<HHHIII", 1, 256, 4, 1, 9, 8) + bytes(100),
    "bigtiff-count": b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 1 << 60) + bytes(100),
    "boxes": b"\0\0\0\x14ftypavif\0\0\0\0avif" + _box(b"free", b"") * 200_000,
    "box-of-itself": b"\0\0\0\x14ftypavif\0\0\0\0avif" + struct.pack(">I", 8) + b"meta" + bytes(50),
    "ipma-count": b"\0\0\0\x14ftypavif\0\0\0\0avif"
    + _box(
        b"meta",
        bytes(4)
        + _box(b"pitm", bytes(4) + b"\0\1")
        + _box(b"iprp", _box(b"ipco", _box(b"ispe", bytes(12))) + _box(b"ipma", bytes(4) + b"\xff" * 4 + bytes(200_000))),
    ),
    "gif-blocks": FILES["GIF"][:13] + b"\x21\xff" + b"\1a" * 300_000,
    "jpeg-segments": b"\xff\xd8" + b"\xff\xe0\0\2" * 100_000,
    "jpeg-fill": b"\xff\xd8" + b"\xff" * 1_000_000,
    "jpeg-scan-marks": FILES["JPEG"][:-2] + b"\xff\x01" * 300_000,
    "webp-chunks": b"RIFF" + struct.pack("<I", 900_004) + b"WEBP" + b"XYZW\0\0\0\0" * 112_500,
    "pnm-comments": b"P6 " + b"#\n" * 500_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_cost_little(name: str) -> None:
    """Counts of billions, texts that inflate to hundreds of MB, endless blocks: memory is bounded, and work, or this hangs."""
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        header_or_reason(data)
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_nbytes < 20 * len(data) + (8 << 20)


def test_what_each_header_says() -> None:
    """Channels, depth, alpha and the rest, as the files were written."""

    def told(data: bytes) -> tuple[Any, ...]:
        h = read_header(data)
        return h.format, h.size_hw, h.channels, h.bits, h.alpha

    rgba = Image.fromarray(RGB).convert("RGBA")
    rgba.putpixel((0, 0), (1, 2, 3, 4))
    assert told(FILES["JPEG"]) == ("jpeg", (24, 30), 3, 8, False)
    assert told(kit.saved(Image.fromarray(RGB).convert("CMYK"), "JPEG")) == ("jpeg", (24, 30), 4, 8, False)
    assert told(kit.saved(rgba, "PNG")) == ("png", (24, 30), 3, 8, True)
    assert told(kit.saved(rgba.convert("LA"), "PNG")) == ("png", (24, 30), 1, 8, True)
    assert told(kit.saved(rgba, "WEBP")) == ("webp", (24, 30), 3, 8, True)
    assert told(kit.saved(rgba, "WEBP", lossless=True)) == ("webp", (24, 30), 3, 8, True)
    assert told(kit.saved(rgba, "TIFF")) == ("tiff", (24, 30), 3, 8, True)
    assert told(FILES["TIFF-big"]) == ("tiff", (24, 30), 3, 8, False)
    assert told(kit.saved(rgba, "JPEG2000")) == ("jp2", (24, 30), 3, 8, True)
    assert told(b"P5\n#x\n30 24 #y\n1000\n" + bytes(1440)) == ("pnm", (24, 30), 1, 0, False)
    assert told(b"P1 30 24 " + b"0 " * 720) == ("pnm", (24, 30), 1, 8, False)
    assert read_header(FILES["PNG"] + b"tail").tail_nbytes == 4
    assert read_header(FILES["JPEG"] + b"tail").tail_nbytes == 4
    assert read_header(FILES["WEBP"] + b"tail").tail_nbytes == 4


def test_a_flipped_bit_in_a_png_is_found_by_its_checksum() -> None:
    """In what the pixels need; a damaged text chunk is nobody's loss."""
    data = kit.png_with(RGB, kit.chunk(b"tEXt", b"Comment\0hello"))
    text_at, pixels_at = data.index(b"hello"), data.index(b"IDAT") + 20
    assert isinstance(decode_image(data[:text_at] + b"j" + data[text_at + 1 :]), Decoded)
    found = decode_image(data[:pixels_at] + bytes([data[pixels_at] ^ 1]) + data[pixels_at + 1 :])
    assert isinstance(found, Refused)
    assert found.reason == "unreadable"
    assert "checksum of the IDAT chunk" in found.detail


def test_the_parts_of_a_jpeg_are_found() -> None:
    """Frame, first scan, end; and what is left without what has no part in the pixels decodes to the same."""
    data = kit.saved(RGB, "JPEG", exif=kit.exif(6), comment=b"hello", progressive=True)
    layout = jpeg_layout(data + b"tail")
    assert (layout.frame, layout.precision, layout.size_hw, layout.components) == (0xC2, 8, (24, 30), 3)
    assert data[layout.scan_at - 14 : layout.scan_at - 12] == b"\xff\xda"
    assert jpeg_end(data + b"tail", layout) == (len(data), data.count(b"\xff\xda"))
    assert not layout.one_pass
    assert jpeg_layout(FILES["JPEG"]).one_pass
    less = essential(data, layout)
    assert b"hello" not in less
    assert b"Exif" not in less
    mine, plain = decode_image(less), decode_image(kit.saved(RGB, "JPEG", progressive=True))
    assert isinstance(mine, Decoded)
    assert isinstance(plain, Decoded)
    assert (mine.rgb == plain.rgb).all()
