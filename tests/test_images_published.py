"""Odd files as published: every one has a stated outcome, and Pillow agrees wherever it can."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from fastdata.images import Decoded, Refused, decode_image, probe_size


@dataclass(frozen=True)
class Good:
    """A picture: size, orientation found, "g" for one channel, kinds of notes, and two pixels."""

    h: int
    w: int
    orientation: int
    gray: str
    notes: str
    pixels: tuple[tuple[int, int, int], tuple[int, int, int]]


# Two pixels each, at (h // 3, w // 4) and (3 h // 4, 2 w // 3) of the upright picture.
FILES: dict[str, Good | str] = {
    "image-rs/tbbn3p08.png": Good(32, 32, 1, "", "", ((147, 147, 147), (0, 0, 98))),
    "jpeg-decoder/empty.jpg": "empty-file",
    "jpeg-decoder/jpeg_lossless_sel1.jpg": "unsupported",
    "jpeg-decoder/jpg-size-6x6.jpg": Good(6, 6, 1, "", "", ((192, 148, 0), (62, 62, 136))),
    "jpeg-decoder/max_size.jpg": "too-large",
    "jpeg-decoder/missing-sos.jpg": "unreadable",
    "jpeg-decoder/mjpeg.jpg": Good(720, 960, 1, "", "decoder", ((108, 81, 64), (160, 47, 39))),
    "jpeg-decoder/null_height.jpg": "unreadable",
    "jpeg-decoder/partial_progressive.jpg": "truncated",
    "jpeg-decoder/progressive3.jpg": Good(470, 650, 1, "", "", ((77, 76, 74), (18, 18, 20))),
    "jpeg-decoder/ycck.jpg": Good(333, 500, 1, "", "", ((99, 113, 107), (11, 33, 26))),
    "libjpeg-turbo/monkey12.jpg": "unsupported",
    "libjpeg-turbo/testimgari.jpg": Good(149, 227, 1, "", "", ((204, 70, 81), (120, 53, 44))),
    "libjpeg-turbo/testimgint.jpg": Good(149, 227, 1, "", "", ((204, 70, 81), (120, 53, 44))),
    "pillow/16bit.cropped.tif": Good(64, 64, 1, "g", "", ((1, 1, 1), (1, 1, 1))),
    "pillow/broken.png": "unreadable",
    "pillow/broken_data_stream.png": "unreadable",
    "pillow/decompression_bomb.gif": "too-large",
    "pillow/dispose_bgnd.gif": Good(100, 100, 1, "", "animated", ((30, 144, 255), (30, 144, 255))),
    "pillow/exif_imagemagick_orientation.png": Good(512, 512, 3, "", "", ((255, 255, 255), (255, 255, 255))),
    "pillow/frozenpond.mpo": Good(480, 640, 1, "", "tail-bytes", ((136, 136, 134), (126, 123, 116))),
    "pillow/hopper.avif": Good(128, 128, 1, "", "", ((162, 117, 94), (18, 15, 22))),
    "pillow/hopper_bad_exif.jpg": Good(500, 500, 1, "g", "decoder", ((212, 212, 212), (71, 71, 71))),
    "pillow/hopper_gray.jpg": Good(128, 128, 1, "g", "", ((127, 127, 127), (19, 19, 19))),
    "pillow/hopper_orientation_6.webp": Good(128, 128, 6, "", "", ((155, 111, 83), (20, 18, 28))),
    "pillow/icc-after-SOF.jpg": Good(10, 10, 1, "g", "decoder", ((0, 0, 0), (0, 0, 0))),
    "pillow/icc_profile_big.jpg": Good(250, 425, 1, "", "", ((2, 58, 153), (69, 132, 175))),
    "pillow/iss634.webp": Good(245, 245, 1, "", "animated", ((107, 83, 48), (52, 86, 88))),
    "pillow/jpeg_ff00_header.jpg": Good(225, 300, 1, "", "decoder", ((156, 96, 98), (32, 15, 0))),
    "pillow/junk_jpeg_header.jpg": Good(768, 1024, 1, "", "decoder", ((251, 255, 255), (43, 36, 26))),
    "pillow/mode_16bit.png": Good(64, 128, 1, "", "animated", ((255, 0, 0), (255, 0, 0))),
    "pillow/multipage.tiff": Good(10, 10, 1, "", "animated", ((0, 128, 0), (0, 128, 0))),
    "pillow/orientation_rectangle.jpg": Good(2, 1, 8, "", "", ((254, 0, 0), (254, 0, 0))),
    "pillow/p_trns_single.png": Good(64, 64, 1, "", "", ((0, 255, 52), (34, 0, 255))),
    "pillow/pal8topdown.bmp": Good(64, 127, 1, "", "", ((255, 255, 255), (204, 170, 102))),
    "pillow/pil123p.png": Good(150, 162, 1, "", "", ((1, 0, 0), (0, 0, 0))),
    "pillow/pil_sample_cmyk.jpg": Good(100, 100, 1, "", "", ((82, 18, 21), (2, 5, 5))),
    "pillow/png_decompression_dos.png": Good(1, 1, 1, "g", "", ((0, 0, 0), (0, 0, 0))),
    "pillow/shortfile.bmp": "truncated",
    "pillow/sugarshack_bad_mpo_header.jpg": Good(480, 640, 1, "", "tail-bytes", ((71, 83, 123), (167, 156, 162))),
    "pillow/tiff_strip_cmyk_jpeg.tif": Good(100, 100, 1, "", "", ((81, 16, 20), (1, 4, 5))),
    "pillow/transparent.png": Good(150, 200, 1, "", "", ((67, 67, 183), (0, 0, 0))),
    "pillow/transparent.webp": Good(150, 200, 1, "", "", ((70, 70, 179), (0, 0, 0))),
    "pillow/truncated_app14.jpg": Good(100, 100, 1, "", "decoder", ((106, 33, 24), (0, 0, 0))),
    "pillow/truncated_image.png": "truncated",
    "pillow/truncated_jpeg.jpg": "truncated",
    "pillow/ultrahdr.jpg": "truncated",
    "pillow/uncompressed_la.png": Good(128, 128, 1, "g", "", ((0, 0, 0), (0, 0, 0))),
    "pillow/xmp_tags_orientation.png": Good(268, 326, 3, "", "", ((227, 196, 151), (229, 202, 159))),
    "pillow/zero_width.gif": "unreadable",
    "recurser-exif/Landscape_3.jpg": Good(1200, 1800, 3, "", "", ((231, 238, 244), (175, 189, 215))),
    "recurser-exif/Landscape_6.jpg": Good(1200, 1800, 6, "", "", ((232, 237, 243), (174, 188, 214))),
    "recurser-exif/Portrait_5.jpg": Good(1800, 1200, 5, "", "", ((132, 149, 157), (208, 217, 222))),
    "recurser-exif/Portrait_8.jpg": Good(1800, 1200, 8, "", "", ((132, 149, 157), (209, 216, 222))),
    "twelvemonkeys/8_ls.jpg": Good(535, 800, 1, "g", "tail-bytes", ((173, 173, 173), (50, 50, 50))),
    "twelvemonkeys/broken-bogus-segment-length.jpg": "unreadable",
    "twelvemonkeys/cmm-exception-adobe-rgb.jpg": Good(76, 626, 1, "", "", ((155, 65, 64), (241, 237, 225))),
    "twelvemonkeys/cmyk-sample-no-icc.jpg": Good(199, 114, 1, "", "", ((255, 255, 255), (1, 1, 1))),
    "twelvemonkeys/dnl-marker.jpg": Good(132, 194, 1, "", "tail-bytes", ((255, 255, 253), (255, 255, 255))),
    "twelvemonkeys/exif-jfif-app13-app14ycck-3channel.jpg": Good(384, 310, 1, "", "decoder", ((252, 252, 252), (4, 5, 7))),
    "twelvemonkeys/exif-jpeg-thumbnail-sony-dsc-p150-inverted-colors.jpg": Good(
        1662, 2437, 1, "", "", ((245, 238, 222), (141, 144, 137))
    ),
}

PILLOW_DIFFERS = {
    "jpeg-decoder/ycck.jpg": 2,  # both convert CMYK with integers, and round in different places
    "pillow/pil_sample_cmyk.jpg": 2,
}
"""Levels by which Pillow's conversion may be off; 0 for everything else."""

PILLOW_CANNOT = {"pillow/png_decompression_dos.png"}
"""Pillow gives up at the text, not at the pixel."""


def test_the_table_names_every_file(shared: Path) -> None:
    """A file that is added needs an outcome."""
    root = shared / "data" / "nasty"
    there = {str(p.relative_to(root)) for p in root.glob("*/*") if not p.name.startswith("LICENSE")}
    assert there == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_odd_file_has_its_stated_outcome(shared: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The picture as a viewer shows it, or the reason; and not a word on the terminal."""
    data = (shared / "data" / "nasty" / name).read_bytes()
    wanted, found = FILES[name], decode_image(data)
    assert capfd.readouterr() == ("", "")
    if isinstance(wanted, str):
        assert isinstance(found, Refused), found
        assert found.reason == wanted
        return
    assert isinstance(found, Decoded), found
    assert found.rgb.shape == (wanted.h, wanted.w, 3)
    assert (found.orientation, found.gray) == (wanted.orientation, wanted.gray == "g")
    assert " ".join(kind for kind, _ in found.notes) == wanted.notes
    at = ((wanted.h // 3, wanted.w // 4), (3 * wanted.h // 4, 2 * wanted.w // 3))
    for (y, x), pixel in zip(at, wanted.pixels, strict=True):
        assert np.abs(found.rgb[y, x].astype(int) - pixel).max() <= 3, (y, x, found.rgb[y, x])
    assert probe_size(data) == (wanted.h, wanted.w)
    if wanted.gray:
        assert (found.rgb == found.rgb[:, :, :1]).all()


@pytest.mark.parametrize("name", [name for name, wanted in FILES.items() if isinstance(wanted, Good)])
def test_pillow_sees_the_same_picture(shared: Path, name: str) -> None:
    """Every pixel of the upright picture, by another path; 16 bits by hand, because Pillow saturates them."""
    data = (shared / "data" / "nasty" / name).read_bytes()
    found = decode_image(data)
    assert isinstance(found, Decoded)
    if name in PILLOW_CANNOT:
        with pytest.raises(ValueError, match="too large"):
            Image.open(io.BytesIO(data)).load()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode == "I;16":
        other = np.repeat((np.asarray(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    else:
        image.info.pop("transparency", None)
        other = np.asarray(image.convert("RGB"))
    assert other.shape == found.rgb.shape
    assert np.abs(other.astype(int) - found.rgb).max() <= PILLOW_DIFFERS.get(name, 0)


def test_libjpeg_turbo_and_opencv_give_the_same_photographs(shared: Path) -> None:
    """128 published photographs, every pixel: the store holds what a trainer would have decoded itself."""
    paths = sorted((shared / "data" / "coco128" / "lightly" / "images" / "train2017").glob("*.jpg"))
    assert len(paths) == 128
    for path in paths:
        data = path.read_bytes()
        mine = decode_image(data)
        assert isinstance(mine, Decoded)
        assert mine.notes == ()
        theirs = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert np.array_equal(mine.rgb, theirs[:, :, ::-1]), path.name


@pytest.mark.parametrize(
    ("case", "file", "at"),
    [
        ("img-alpha", "glass.png", [((8, 10), (220, 40, 30), 0), ((2, 2), (60, 90, 120), 0), ((16, 20), (220, 40, 30), 0)]),
        ("img-exif-turned", "phone.jpg", [((36, 16), (220, 40, 30), 25), ((3, 3), (230, 210, 40), 25)]),
        ("img-gray-sixteen-bit", "ramp.png", [((12, 5), (0, 0, 0), 0), ((12, 15), (1, 1, 1), 0), ((12, 25), (128, 128, 128), 0)]),
        ("img-jpeg-tail-bytes", "tail.jpg", [((16, 24), (30, 180, 60), 25), ((4, 4), (50, 50, 50), 25)]),
        ("img-other-modes", "gray.png", [((10, 15), (77, 77, 77), 0)]),
        ("img-other-modes", "palette.png", [((10, 15), (250, 120, 5), 0), ((2, 2), (10, 20, 30), 0)]),
        ("img-other-modes", "bit.png", [((10, 15), (255, 255, 255), 0), ((2, 2), (0, 0, 0), 0)]),
        ("img-other-modes", "print.jpg", [((12, 16), (53, 226, 187), 8)]),
        ("img-same-stem", "tile.jpg", [((12, 16), (20, 20, 20), 4)]),
        ("img-same-stem", "tile.png", [((12, 16), (210, 210, 210), 0)]),
    ],
)  # fmt: skip
def test_pictures_of_reported_faults_come_out_as_expected(
    shared: Path, case: str, file: str, at: list[tuple[tuple[int, int], tuple[int, int, int], int]]
) -> None:
    """What users reported as wrong elsewhere: channels, orientation, depth, colours. Only trailing bytes are worth a note."""
    found = decode_image((shared / "cases" / case / "input" / "images" / file).read_bytes())
    assert isinstance(found, Decoded), found
    for (y, x), pixel, tolerance in at:
        assert np.abs(found.rgb[y, x].astype(int) - pixel).max() <= tolerance, found.rgb[y, x]
    assert [kind for kind, _ in found.notes] == (["tail-bytes"] if file == "tail.jpg" else [])


@pytest.mark.parametrize(
    ("case", "file", "reason"),
    [
        ("img-empty-file", "none.jpg", "empty-file"),
        ("img-empty-file", "page.png", "unreadable"),
        ("img-jpeg-cut", "cut.jpg", "truncated"),
    ],
)
def test_files_of_reported_faults_are_refused_with_their_reason(shared: Path, case: str, file: str, reason: str) -> None:
    """No bytes, a web page with the name of a picture, and a download that broke off."""
    found = decode_image((shared / "cases" / case / "input" / "images" / file).read_bytes())
    assert isinstance(found, Refused)
    assert found.reason == reason
