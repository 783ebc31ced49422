"""One function to upright RGB: orientation once, early ends never passed, nothing printed, nothing left changed."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import warnings
import zlib

import numpy as np
import picture_kit as kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_kit import good, refused
from PIL import Image, ImageOps

import fastdata.images
from fastdata.errors import UsageError
from fastdata.images import Decoded, decode_image, probe_size

ORIENTED = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")


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


RGB = kit.picture(24, 30)
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
    assert [kind for kind, _ in found.notes] == ["truncated-kept"]
    if name != "jpeg-progressive":
        there = slice(-8, None) if name == "bmp" else slice(8)
        assert np.array_equal(found.rgb[there], WHOLE[name][there])
    assert not np.array_equal(found.rgb, WHOLE[name])


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

    logging = getattr(cv2.utils, "logging", cv2)
    before = (Image.MAX_IMAGE_PIXELS, logging.getLogLevel(), list(warnings.filters))
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
    assert before == (Image.MAX_IMAGE_PIXELS, logging.getLogLevel(), list(warnings.filters))


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
