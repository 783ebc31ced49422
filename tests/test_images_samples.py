"""What samples become: alpha, gray, depths, palettes, CMYK and scales, in every format that has them."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import picture_kit as kit
import pytest
from picture_kit import good, refused
from PIL import Image, ImageOps

from fastdata.images import probe_size

RGB = kit.picture(24, 30)
GRAY = RGB[:, :, 0].copy()
ALPHA = np.dstack([RGB, np.where(np.arange(30) % 2, 255, 0).astype(np.uint8)[None].repeat(24, 0)])


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "TIFF-lzw", "AVIF", "JPEG2000"])
def test_alpha_is_dropped_and_hidden_colours_stay(kind: str) -> None:
    """Every other column is fully transparent; its colours are what a trainer of three channels sees."""
    options: dict[str, Any] = {"WEBP": {"lossless": True, "exact": True}, "TIFF-lzw": {"compression": "tiff_lzw"}}.get(kind, {})
    if kind == "AVIF":
        options = {"quality": 100, "subsampling": "4:4:4"}
    found = good(kit.saved(ALPHA, kind.partition("-")[0], **options))
    assert np.abs(found.rgb.astype(int) - RGB).max() <= (4 if kind == "AVIF" else 0)
    assert not found.gray
    assert found.notes == ()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_one_channel_is_repeated_and_said_so(kind: str) -> None:
    """Gray sources give three equal planes and ``gray``, so that a store may keep one."""
    options = {"quality": 100, "subsampling": "4:0:0"} if kind == "AVIF" else {"quality": 100} if kind == "JPEG" else {}
    found = good(kit.saved(GRAY, kind, **options))
    assert found.gray
    assert (found.rgb == found.rgb[:, :, :1]).all()
    assert np.abs(found.rgb[:, :, 0].astype(int) - GRAY).max() <= 2


def test_gray_with_alpha_is_gray() -> None:
    """LA: the luminance, also where it is transparent."""
    for kind in ("PNG", "TIFF"):
        found = good(kit.saved(Image.merge("LA", [Image.fromarray(GRAY), Image.fromarray(ALPHA[:, :, 3])]), kind))
        assert found.gray
        assert np.array_equal(found.rgb[:, :, 0], GRAY)


DEEP = np.random.default_rng(5).integers(0, 65536, (24, 30), dtype=np.uint16)
DEEP3 = np.random.default_rng(6).integers(0, 65536, (24, 30, 3), dtype=np.uint16)


def _opencv(kind: str, samples: Any) -> bytes:
    import cv2

    return bytes(cv2.imencode(kind, samples)[1])


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (kit.saved(DEEP, "PNG"), DEEP),  # type: ignore[arg-type]
        (kit.saved(DEEP, "TIFF"), DEEP),  # type: ignore[arg-type]
        (kit.saved(DEEP, "TIFF", compression="tiff_lzw"), DEEP),  # type: ignore[arg-type]
        (kit.saved(DEEP, "JPEG2000"), DEEP),  # type: ignore[arg-type]
        (kit.saved(DEEP, "PPM"), DEEP),  # type: ignore[arg-type]
        (kit.tiff_file(24, 30, DEEP.tobytes(), bits=16), DEEP),
        (_opencv(".png", DEEP3[:, :, ::-1]), DEEP3),
        (_opencv(".tiff", DEEP3[:, :, ::-1]), DEEP3),
        (_opencv(".png", np.dstack([DEEP3[:, :, ::-1], DEEP])), DEEP3),
        (_opencv(".ppm", DEEP3[:, :, ::-1]), DEEP3),
    ],
    ids=["png", "tiff", "tiff-lzw", "jp2", "pgm", "tiff-raw", "png-rgb", "tiff-rgb", "png-rgba", "ppm-rgb"],
)
def test_sixteen_bits_keep_their_high_byte(data: bytes, wanted: Any) -> None:
    """``value >> 8`` for every value, gray and colour, whichever decoder would clip, round or scale."""
    found = good(data)
    high = (wanted >> 8).astype(np.uint8)
    assert np.array_equal(found.rgb, high if high.ndim == 3 else np.repeat(high[:, :, None], 3, axis=2))


def test_twelve_bits_keep_their_high_byte() -> None:
    """Two samples in three bytes: 0xABC becomes 0xAB."""
    samples = np.random.default_rng(7).integers(0, 4096, (6, 8))
    packed = b"".join(struct.pack(">I", int(a) << 12 | int(b))[1:] for a, b in samples.reshape(-1, 2))
    found = good(kit.tiff_file(6, 8, packed, bits=12))
    assert np.array_equal(found.rgb[:, :, 0], (samples >> 4).astype(np.uint8))


def test_a_jpeg_2000_of_twelve_bits_keeps_their_high_byte() -> None:
    """Satellite pictures. Made from 16 bits: the zero of the samples moves by 2**15 - 2**11, which is added beforehand."""
    samples = np.random.default_rng(8).integers(0, 4096, (24, 30), dtype=np.uint16)
    data = kit.saved(samples + 30720, "JPEG2000")  # type: ignore[arg-type]
    size_at = data.index(b"\xff\x4f\xff\x51") + 42
    box_at = data.index(b"ihdr") + 14
    assert (data[size_at], data[box_at]) == (15, 15)
    twelve = bytearray(data)
    twelve[size_at] = twelve[box_at] = 11
    assert np.array_equal(good(bytes(twelve)).rgb[:, :, 0], (samples >> 4).astype(np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM", "GIF"])
def test_one_bit_becomes_black_and_white(kind: str) -> None:
    """0 and 255, whatever 0 means in the format."""
    bits = (np.add.outer(np.arange(9), np.arange(13)) % 3 == 0).astype(np.uint8) * 255
    found = good(kit.saved(Image.fromarray(bits).convert("1"), kind))
    assert np.array_equal(found.rgb, np.repeat(bits[:, :, None], 3, axis=2))


@pytest.mark.parametrize("options", [{}, {"transparency": 3}, {"transparency": bytes(range(0, 120, 2))}])
def test_a_palette_is_looked_up_also_where_it_is_transparent(options: dict[str, Any]) -> None:
    """tRNS with one index or one value per index changes no colour."""
    indexed = Image.fromarray(RGB).quantize(60)
    for kind in ("PNG", "GIF", "TIFF", "BMP"):
        if kind == "PNG" or not isinstance(options.get("transparency"), bytes):
            found = good(kit.saved(indexed, kind, **(options if kind in ("PNG", "GIF") else {})))
            assert np.array_equal(found.rgb, np.asarray(indexed.convert("RGB"))), kind
            assert not found.gray


def test_a_gif_shows_its_own_colours_not_a_background() -> None:
    """Red is marked as transparent and green is the background: transparent pixels are red all the same."""
    found = good(kit.gif_file((8, 8), (0, 0, 8, 8), [0, 2] * 32, transparent=0))
    assert np.array_equal(found.rgb[0, :2], [[255, 0, 0], [0, 0, 255]])
    assert good(kit.gif_file((8, 8), (2, 2, 9, 4), [2] * 36, transparent=None)).rgb.shape == (8, 11, 3)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_is_shown_as_a_viewer_shows_it(kind: str) -> None:
    """Not inverted, and not noted as a problem."""
    found = good(kit.saved(Image.fromarray(RGB).convert("CMYK"), kind))
    assert np.abs(found.rgb.astype(int) - RGB).mean() < 3
    assert found.notes == ()


def test_an_anymap_with_its_own_scale_is_scaled() -> None:
    """A largest sample of 100 means that 100 is white."""
    data = b"P6\n# made here\n30 24\n100\n" + (RGB.astype(int) * 100 // 255).astype(np.uint8).tobytes()
    assert np.abs(good(data).rgb.astype(int) - RGB).max() <= 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (kit.saved(Image.fromarray(GRAY.astype(np.float32)), "TIFF"), "floating point"),
        (kit.saved(Image.fromarray(GRAY.astype(np.int32)), "TIFF"), "signed"),
        (kit.tiff_file(24, 30, DEEP.tobytes(), bits=16, sample_format=2), "signed"),
        (kit.tiff_file(24, 30, bytes(24 * 30 * 4), bits=32), "32 bits"),
        (kit.tiff_file(24, 30, bytes(24 * 30 * 8), bits=64, sample_format=3), "floating point"),
        (kit.tiff_file(24, 30, bytes(24 * 30 * 5), bits=8, samples=5), "5 channels"),
        (kit.tiff_file(24, 30, GRAY.tobytes(), bits=8, dng=1), "camera raw"),
        (kit.tiff_file(24, 30, GRAY.tobytes(), bits=8, subfile=1), "camera raw"),
        (kit.tiff_file(24, 30, DEEP.tobytes(), bits=16, photometric=32803), "camera raw"),
        (b"Pf\n3 3\n-1.0\n" + bytes(36), "PFM"),
        (b"#?RADIANCE\n", "Radiance"),
        (b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf" + bytes(60), "pillow-heif"),
        (b"\xff\x0a" + bytes(60), "pillow-jxl-plugin"),
    ],
    ids=["float", "int32", "int16", "uint32", "double", "bands", "dng", "preview", "cfa", "pfm", "hdr", "heic", "jxl"],
)
def test_samples_without_an_agreed_meaning_are_unsupported(data: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what they are, or which package would read them."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setitem(sys.modules, "pillow_jxl", None)
    found = refused(data)
    assert found.reason == "unsupported"
    assert words in found.detail


@pytest.mark.parametrize("n", [1, 6, 2, 7])
def test_a_heic_is_read_upright_where_its_package_is_installed(n: int) -> None:
    """Its decoder turns and crops by itself, so nothing may turn it again, and the probed size is the cropped one."""
    pytest.importorskip("pillow_heif").register_heif_opener()
    data = kit.saved(kit.picture(40, 64), "HEIF", exif=kit.exif(n), quality=95)
    found = good(data)
    assert found.orientation == n
    assert np.array_equal(found.rgb, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))
    assert found.rgb.shape[:2] == ((64, 40) if n >= 5 else (40, 64)) == probe_size(data)
    assert refused(data, max_pixels=40 * 64 - 1).reason == "too-large"
    assert refused(data[: len(data) // 2]).reason == "truncated"


def test_a_format_that_only_pillow_knows_is_read_within_the_limit() -> None:
    """SGI: its size is known after Pillow has opened it, and before anything is decoded."""
    data = kit.saved(RGB, "SGI")
    assert np.array_equal(good(data).rgb, RGB)
    assert probe_size(data) is None
    assert refused(data, max_pixels=24 * 30 - 1).reason == "too-large"
    assert refused(data[:-9]).reason in ("truncated", "unreadable")


def test_a_jpeg_xl_is_read_where_its_package_is_installed() -> None:
    """EXIF does not turn it: the codestream says which way up, and its decoder heeds that (ISO/IEC 18181-2)."""
    pytest.importorskip("pillow_jxl")
    stored = kit.picture(40, 64)
    for options in ({}, {"exif": kit.exif(6)}):
        data = kit.saved(stored, "JXL", lossless=True, **options)
        assert np.array_equal(good(data).rgb, stored)
        assert probe_size(data) is None
        assert refused(data, max_pixels=40 * 64 - 1).reason == "too-large"
        assert refused(data[: len(data) // 2]).reason in ("truncated", "unreadable")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_of_several_pictures_the_first_is_taken_and_noted(kind: str) -> None:
    """Animated, or several pages."""
    first, second = kit.picture(20, 30), kit.picture(20, 30, seed=3)[::-1].copy()
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100, "subsampling": "4:4:4"} if kind == "AVIF" else {}
    frames = [Image.fromarray(x).quantize(250) if kind == "GIF" else Image.fromarray(x) for x in (first, second)]
    found = good(kit.saved(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert [note for note, _ in found.notes] == ["animated"]
    assert np.abs(found.rgb.astype(int) - np.asarray(frames[0].convert("RGB"))).max() <= (4 if kind == "AVIF" else 0)


def test_nothing_is_guessed_from_what_is_no_picture() -> None:
    """Empty, text, zeros, a bare magic number."""
    assert refused(b"").reason == "empty-file"
    for data in (b"<!DOCTYPE html>", bytes(100), b"%PDF-1.7\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"RIFF\0\0\0\0WAVEfmt "):
        assert refused(data).reason == "unreadable"
    for data in (b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"RIFF\0\0\0\0WEBP"):
        assert refused(data).reason == "truncated", data
