"""One function to upright RGB: orientation once, early ends never passed, modes as stated, no bombs, nothing left changed."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from typing import Any

import numpy as np
import picture_kit as kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import fastdata.images
from fastdata.errors import UsageError
from fastdata.images import Decoded, Refused, decode_image, probe_size

ORIENTED = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")


def good(data: bytes | memoryview, **options: Any) -> Decoded:
    found = decode_image(data, **options)
    assert isinstance(found, Decoded), found
    return found


def refused(data: bytes, **options: Any) -> Refused:
    found = decode_image(data, **options)
    assert isinstance(found, Refused), found.rgb.shape
    return found


def by_pillow(data: bytes) -> kit.Pixels:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def oriented(pixels: kit.Pixels, kind: str, n: int) -> bytes:
    """A file that says ``n``, in the way of its format."""
    if kind == "TIFF":
        return kit.saved(pixels, kind, tiffinfo={274: n}, compression="tiff_lzw")
    return kit.saved(pixels, kind, exif=kit.exif(n))


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("kind", ORIENTED)
def test_orientation_is_applied_exactly_once_in_every_format(kind: str, n: int) -> None:
    """All eight in each format that carries one, on a picture without symmetry and not square."""
    stored = kit.picture(64, 96)
    data = oriented(stored, kind, n)
    found = good(data)
    assert found.orientation == n
    assert found.rgb.shape[:2] == ((96, 64) if n >= 5 else (64, 96)) == probe_size(data)
    assert np.array_equal(found.rgb, by_pillow(data))
    bright = np.unravel_index(found.rgb[:, :, 0].argmax(), found.rgb.shape[:2])
    corner = {1: "tl", 2: "tr", 3: "br", 4: "bl", 5: "tl", 6: "tr", 7: "br", 8: "bl"}[n]  # of row 0, column 0, by the standard
    assert ("t" if bright[0] < found.rgb.shape[0] / 2 else "b") + ("l" if bright[1] < found.rgb.shape[1] / 2 else "r") == corner


@pytest.mark.parametrize("kind", ORIENTED)
def test_a_large_turned_picture_comes_out_whole(kind: str) -> None:
    """More than 2000 pixels long, portrait by tag."""
    stored = kit.picture(350, 2304)
    data = oriented(stored, kind, 6)
    found = good(data)
    assert found.rgb.shape == (2304, 350, 3)
    assert np.array_equal(found.rgb, by_pillow(data))


@pytest.mark.parametrize("kind", kit.FORMATS)
def test_a_large_picture_of_every_format_is_what_pillow_reads(kind: str) -> None:
    """2100 x 310 in each format; nothing is noted about a plain file."""
    data = kit.saved(kit.picture(310, 2100), kind)
    found = good(data)
    assert np.array_equal(found.rgb, by_pillow(data))
    assert (found.orientation, found.gray, found.notes) == (1, False, ())
    assert probe_size(data) == (310, 2100)


SMALL = kit.picture(20, 30)
TEXT = kit.raw_profile_text(kit.exif(6))
PACKET = b"XML:com.adobe.xmp\0\0\0\0\0"

WRAPPED = {
    "png-text": kit.png_with(SMALL, kit.chunk(b"tEXt", b"Raw profile type exif\0" + TEXT)),
    "png-app1": kit.png_with(SMALL, kit.chunk(b"tEXt", b"Raw profile type APP1\0" + kit.raw_profile_text(kit.exif(6), "APP1"))),
    "png-ztxt": kit.png_with(SMALL, kit.chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(TEXT))),
    "png-xmp": kit.png_with(SMALL, kit.chunk(b"iTXt", PACKET + kit.xmp(6))),
    "png-both": kit.png_with(SMALL, kit.chunk(b"iTXt", PACKET + kit.xmp(3)), kit.chunk(b"eXIf", kit.tiff_block(6))),
    "jpeg-xmp": kit.jpeg_with(kit.saved(SMALL, "JPEG"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + kit.xmp(6))),
    "jpeg-big-endian": kit.jpeg_with(kit.saved(SMALL, "JPEG"), (0xE1, b"Exif\0\0" + kit.tiff_block(6, order=">"))),
    "webp-xmp": kit.saved(SMALL, "WEBP", xmp=kit.xmp(6)),
    "webp-bare": kit.saved(SMALL, "WEBP", exif=kit.tiff_block(6)),
}


@pytest.mark.parametrize("data", WRAPPED.values(), ids=WRAPPED)
def test_every_wrapping_of_the_orientation_is_read(data: bytes) -> None:
    """EXIF in a chunk, in ImageMagick's text and in XMP: each alone turns the picture, and EXIF wins."""
    found = good(data)
    assert found.orientation == 6
    assert found.rgb.shape == (30, 20, 3) == (*probe_size(data), 3)  # type: ignore[misc]


def test_exif_in_an_avif_is_not_what_turns_it() -> None:
    """Only the properties of the item do; EXIF that stayed behind in the file says nothing (ISO/IEC 23008-12)."""
    data = kit.saved(kit.picture(20, 30), "AVIF", exif=kit.exif(6))
    assert good(data).rgb.shape == (30, 20, 3)
    straight = data.replace(b"irot\x03", b"irot\x00")
    assert straight != data
    assert good(straight).rgb.shape == (20, 30, 3)
    assert good(straight).orientation == 1


def test_a_thumbnail_or_a_second_jpeg_is_not_the_picture() -> None:
    """A small JPEG inside EXIF, and another after the end mark: the picture is the one between, and the tail is noted."""
    small, large = kit.saved(kit.picture(8, 8), "JPEG"), kit.saved(kit.picture(40, 60), "JPEG")
    data = kit.jpeg_with(large, (0xE1, b"Exif\0\0" + kit.tiff_block(1) + small)) + kit.saved(kit.picture(30, 30), "JPEG")
    found = good(data)
    assert np.array_equal(found.rgb, by_pillow(large))
    assert [kind for kind, _ in found.notes] == ["tail-bytes"]


# Early ends -----------------------------------------------------------------------------------------------------------------


def _cut_samples() -> dict[str, bytes]:
    pixels, other = kit.picture(48, 64), kit.picture(48, 64, seed=1)
    jpeg = kit.saved(pixels, "JPEG", quality=90)
    more = {
        "jpeg-progressive": kit.saved(pixels, "JPEG", progressive=True),
        "jpeg-restarts": kit.saved(pixels, "JPEG", restart_marker_rows=1),
        "jpeg-gray": kit.saved(pixels[:, :, 0].copy(), "JPEG"),
        "jpeg-cmyk": kit.saved(Image.fromarray(pixels).convert("CMYK"), "JPEG"),
        "jpeg-junk": jpeg[:2] + b"\xff\xe5\0\4abjunk" + jpeg[2:],
        "png-palette": kit.saved(Image.fromarray(pixels).quantize(100), "PNG"),
        "png-16": kit.saved(pixels[:, :, 0].astype(np.uint16) * 257, "PNG"),  # type: ignore[arg-type]
        "webp-lossless": kit.saved(pixels, "WEBP", lossless=True),
        "webp-exif": kit.saved(pixels, "WEBP", exif=kit.exif(6)),
        "webp-animated": kit.saved(pixels, "WEBP", save_all=True, append_images=[Image.fromarray(other)]),
        "gif-animated": kit.saved(
            Image.fromarray(pixels).quantize(9), "GIF", save_all=True, append_images=[Image.fromarray(other)]
        ),
        "tiff-lzw": kit.saved(pixels, "TIFF", compression="tiff_lzw"),
        "tiff-jpeg": kit.saved(pixels, "TIFF", compression="jpeg"),
        "jp2-bare": kit.saved(pixels, "JPEG2000", no_jp2=True),
    }  # fmt: skip
    return {"jpeg": jpeg, **{kind.lower(): kit.saved(pixels, kind) for kind in kit.FORMATS[1:]}, **more}


CUT = _cut_samples()
WHOLE = {name: good(data).rgb for name, data in CUT.items()}


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_picture_that_was_cut_is_never_passed_with_other_pixels(data: st.DataObject) -> None:
    """Any format, cut anywhere: refused, or every pixel of the whole picture. Never a crash."""
    name = data.draw(st.sampled_from(sorted(CUT)))
    whole = CUT[name]
    length = data.draw(st.one_of(st.integers(0, len(whole) - 1), st.integers(max(len(whole) - 24, 0), len(whole) - 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode_image(whole[:length])
    if isinstance(found, Decoded):
        assert np.array_equal(found.rgb, WHOLE[name]), (name, length)
    else:
        assert found.reason in ("truncated", "unreadable", "empty-file"), found


@pytest.mark.parametrize("name", sorted(CUT))
def test_half_a_file_is_called_truncated(name: str) -> None:
    """The reason is the right one, not merely some reason. The first picture of an animation is whole in its half."""
    if name == "gif-animated":
        assert good(CUT[name][: len(CUT[name]) * 3 // 4]).notes
        return
    assert refused(CUT[name][: len(CUT[name]) // 2]).reason == "truncated"


@pytest.mark.parametrize("name", ["jpeg", "jpeg-progressive", "jpeg-gray", "png", "png-palette", "bmp", "tiff", "ppm", "gif"])
def test_a_cut_picture_is_kept_on_request_with_a_note(name: str) -> None:
    """What was there is right (BMP begins at the bottom), the size is that of the header, and the note says so."""
    part = CUT[name][: len(CUT[name]) * 3 // 4]
    found = good(part, allow_truncated=True)
    assert found.rgb.shape == WHOLE[name].shape
    assert [kind for kind, _ in found.notes] == ["decoder"]
    assert "truncated" in found.notes[0][1]
    if name != "jpeg-progressive":
        there = slice(-8, None) if name == "bmp" else slice(8)
        assert np.array_equal(found.rgb[there], WHOLE[name][there])
    assert not np.array_equal(found.rgb, WHOLE[name])


# What samples mean ----------------------------------------------------------------------------------------------------------

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


# Manners --------------------------------------------------------------------------------------------------------------------


def test_views_of_memory_are_read_like_bytes() -> None:
    """A slice of a mapped file, for example."""
    data = kit.saved(RGB, "PNG")
    assert np.array_equal(good(memoryview(b"xx" + data)[2:]).rgb, RGB)
    assert probe_size(memoryview(data)) == (24, 30)


def test_an_unknown_library_is_a_mistake_of_the_caller() -> None:
    """It names the choices."""
    with pytest.raises(UsageError, match="simplejpeg, turbojpeg, opencv"):
        decode_image(b"", jpeg="libjpeg")  # type: ignore[arg-type]


def test_threads_get_their_own_pictures_and_leave_nothing_changed() -> None:
    """Pillow's limit, OpenCV's log level and Python's warning filters are what they were."""
    import cv2

    before = (Image.MAX_IMAGE_PIXELS, cv2.utils.logging.getLogLevel(), list(warnings.filters))
    wrong: list[str] = []

    def work() -> None:
        for name in sorted(CUT):
            if not np.array_equal(good(CUT[name], max_pixels=10_000).rgb, WHOLE[name]):
                wrong.append(name)
            decode_image(CUT[name][:100])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert before == (Image.MAX_IMAGE_PIXELS, cv2.utils.logging.getLogLevel(), list(warnings.filters))


@pytest.mark.parametrize(
    "name", [b"iCCP", b"sBIT", b"tIME", b"gAMA", b"pHYs", b"bKGD", b"tRNS", b"cHRM", b"hIST", b"tEXt", b"tE\xff\xff"]
)
def test_optional_chunks_of_a_png_change_nothing_and_print_nothing(name: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """A whole dataset may carry the same flaw: libpng would print a line for each file."""
    for body in (b"", b"\0", b"x\0\0" + zlib.compress(b"rubbish" * 30)):
        for data in (kit.png_with(RGB, kit.chunk(name, body)), kit.png_with(RGB, kit.chunk(name, body)[:-1] + b"!")):
            assert np.array_equal(good(data).rgb, RGB)
    assert capfd.readouterr() == ("", "")


def test_importing_loads_no_decoder() -> None:
    """OpenCV, Pillow and simplejpeg come with the first picture that needs them."""
    code = f"import sys, {fastdata.images.__name__}; print([m for m in ('cv2', 'PIL', 'simplejpeg') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
