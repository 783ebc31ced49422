"""Resize, planes and payloads: the trainers' pixels, nothing lost on the way through a store."""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import picture_kit as kit
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from fastdata.errors import StoreError, UsageError
from fastdata.images import Decoded, decode_image
from fastdata.pixels import (
    FULL_CHROMA_QUALITY,
    decode_payload,
    encode,
    fitted_size,
    is_original_jpeg,
    resize,
    to_interleaved,
    to_planar,
)

pictures = hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])))


# Sizes and resizing ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 2048))
def test_the_long_side_becomes_imgsz_and_the_short_one_rounds_up(h: int, w: int, imgsz: int) -> None:
    """The rule of the trainers, never below a pixel; the same for a picture and its transpose."""
    found = fitted_size((h, w), imgsz)
    assert max(found) == imgsz
    assert min(found) >= 1
    r = imgsz / max(h, w)
    assert found == ((h, w) if r == 1 else (min(math.ceil(h * r), imgsz), min(math.ceil(w * r), imgsz)))
    assert fitted_size((w, h), imgsz) == found[::-1]


@pytest.mark.parametrize(
    ("size_hw", "imgsz", "wanted"),
    [
        ((480, 640), 640, (480, 640)),
        ((427, 640), 320, (214, 320)),
        ((640, 427), 320, (320, 214)),
        ((100, 133), 640, (482, 640)),
        ((1, 10_000), 640, (1, 640)),
        ((3, 3), 640, (640, 640)),
        ((1080, 1920), 640, (360, 640)),
        ((333, 500), 640, (427, 640)),
    ],
)
def test_known_sizes(size_hw: tuple[int, int], imgsz: int, wanted: tuple[int, int]) -> None:
    """Shrunk, enlarged, unchanged, and so thin that a side would vanish."""
    assert fitted_size(size_hw, imgsz) == wanted


def test_a_size_below_one_pixel_is_refused() -> None:
    """It says what the rule is."""
    with pytest.raises(UsageError, match="at least 1, got 0"):
        fitted_size((3, 4), 0)


@pytest.fixture(scope="module")
def ultralytics_dataset() -> Any:
    """The dataset class of Ultralytics, whose ``load_image`` is what a training without this package reads."""
    pytest.importorskip("ultralytics")
    from ultralytics.data.base import BaseDataset

    class Dataset(BaseDataset):  # type: ignore[misc]
        def get_labels(self) -> list[dict[str, Any]]:
            empty = np.zeros((0, 4), np.float32)
            return [
                {"im_file": f, "cls": np.zeros((0, 1)), "bboxes": empty, "segments": [], "keypoints": None} for f in self.im_files
            ]

        def build_transforms(self, hyp: Any = None) -> Any:
            return None

    return Dataset


@pytest.mark.parametrize("imgsz", [640, 320, 416, 1280])
def test_resizing_gives_the_pixels_that_ultralytics_loads(
    ultralytics_dataset: Any, shared: Path, tmp_path: Path, imgsz: int
) -> None:
    """Published photographs and made pictures of several formats, small and more than 2000 pixels: bit for bit, up and down."""
    folder = shared / "data" / "coco128" / "lightly" / "images" / "train2017"
    paths = sorted(folder.glob("*.jpg"))[imgsz % 7 :: 12]
    made = {
        "wide.jpg": kit.saved(kit.picture(301, 2047), "JPEG", quality=92),
        "tall.png": kit.saved(kit.picture(2113, 40), "PNG"),
        "tiny.png": kit.saved(kit.picture(17, 29), "PNG"),
        "square.webp": kit.saved(kit.picture(333, 333), "WEBP"),
        "gray.jpg": kit.saved(kit.picture(250, 181)[:, :, 0].copy(), "JPEG"),
        "turned.jpg": kit.saved(kit.picture(120, 211), "JPEG", exif=kit.exif(6)),
        "same.png": kit.saved(kit.picture(imgsz // 2, imgsz), "PNG"),
        "thin.png": kit.saved(kit.picture(1, 2500), "PNG"),
        "page.bmp": kit.saved(kit.picture(90, 77), "BMP"),
    }
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
        paths.append(tmp_path / name)
    (tmp_path / "list.txt").write_text("\n".join(str(p) for p in paths))
    dataset = ultralytics_dataset(img_path=str(tmp_path / "list.txt"), imgsz=imgsz, augment=False, cache=False)
    assert len(dataset.im_files) == len(paths)
    for i, file in enumerate(dataset.im_files):
        theirs, original_hw, resized_hw = dataset.load_image(i)
        mine = decode_image(Path(file).read_bytes())
        assert isinstance(mine, Decoded)
        assert mine.rgb.shape[:2] == original_hw
        size_hw = fitted_size(original_hw, imgsz)
        assert size_hw == resized_hw
        assert np.array_equal(resize(mine.rgb, size_hw, "trainer"), theirs[:, :, ::-1]), file


def test_area_averages_when_it_shrinks_and_is_bilinear_when_it_enlarges() -> None:
    """A fine checkerboard becomes gray by area, and anything by 2 x 2 samples; enlarging is the same for both."""
    board = np.repeat((np.indices((512, 512)).sum(0) % 2 * 255).astype(np.uint8)[:, :, None], 3, axis=2)
    assert np.abs(resize(board, (60, 60), "area").astype(int) - 127).max() <= 3
    assert np.ptp(resize(board, (60, 60), "trainer").astype(int)) > 100
    small = kit.picture(13, 17)
    assert np.array_equal(resize(small, (40, 50), "area"), resize(small, (40, 50), "trainer"))
    assert np.array_equal(resize(small, (5, 50), "area"), resize(small, (5, 50), "trainer"))


def test_resizing_keeps_what_needs_no_change_and_every_shape() -> None:
    """The same size copies nothing; one channel stays one, with or without its axis."""
    rgb = kit.picture(8, 9)
    assert resize(rgb, (8, 9), "trainer") is rgb
    assert resize(rgb[:, :, :1].copy(), (4, 5), "area").shape == (4, 5, 1)
    assert resize(rgb[:, :, 0].copy(), (4, 5), "trainer").shape == (4, 5)
    assert resize(rgb, (1, 1), "area").shape == (1, 1, 3)


# Planes ---------------------------------------------------------------------------------------------------------------------


@given(pictures)
def test_planes_hold_each_channel_in_turn_and_come_back(rgb: kit.Pixels) -> None:
    """All of R, then all of G, then all of B, row by row."""
    planes = to_planar(rgb)
    assert planes.shape == (rgb.shape[2], *rgb.shape[:2])
    assert planes.flags.c_contiguous
    assert planes.tobytes() == b"".join(rgb[:, :, c].tobytes() for c in range(rgb.shape[2]))
    back = to_interleaved(planes)
    assert np.array_equal(back, rgb)
    assert back.flags.c_contiguous
    assert not np.shares_memory(back, rgb)


@given(pictures)
def test_planes_are_written_straight_into_a_slot_of_shared_memory(rgb: kit.Pixels) -> None:
    """At an offset that is not aligned, and not a byte beside it."""
    with mmap.mmap(-1, rgb.size + 64) as memory:
        whole = np.frombuffer(memory, np.uint8)
        whole[:] = 255 - rgb.ravel()[0]
        before = whole.copy()
        slot = whole[7 : 7 + rgb.size]
        planes = to_planar(rgb, out=slot)
        assert np.shares_memory(planes, whole)
        assert np.array_equal(slot.reshape(planes.shape), rgb.transpose(2, 0, 1))
        assert np.array_equal(whole[:7], before[:7])
        assert np.array_equal(whole[7 + rgb.size :], before[7 + rgb.size :])
        del planes, slot, whole  # they hold the mapping


def test_a_picture_that_is_a_view_is_split_as_well() -> None:
    """A crop and a mirrored picture are not contiguous; a picture without its channel axis is one plane."""
    rgb = kit.picture(10, 12)
    for view in (rgb[2:7, 3:9], rgb[::-1], rgb[:, ::-1], rgb.transpose(1, 0, 2)):
        assert np.array_equal(to_planar(view), view.transpose(2, 0, 1))
        assert np.array_equal(to_interleaved(view.transpose(2, 0, 1)), view)
    assert np.array_equal(to_planar(rgb[:, :, 1]), rgb[None, :, :, 1])


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(35, np.uint8),
        np.zeros(37, np.uint8),
        np.zeros((3, 12), np.uint8),
        np.zeros(72, np.uint8)[::2],
        np.zeros(36, np.int8),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(out: Any) -> None:
    """Too short, too long, not flat, with gaps, of another type, read-only."""
    rgb = np.zeros((3, 4, 3), np.uint8)
    with pytest.raises(UsageError, match="out must be 36 flat, contiguous, writable bytes"):
        to_planar(rgb, out=out)
    locked = np.zeros(36, np.uint8)
    locked.flags.writeable = False
    with pytest.raises(UsageError, match="writable"):
        to_planar(rgb, out=locked)


# Payloads -------------------------------------------------------------------------------------------------------------------


@given(pictures)
def test_a_raw_payload_is_the_planes_and_comes_back_as_a_view(rgb: kit.Pixels) -> None:
    """No byte is copied on the way back, and what was read-only stays so."""
    payload = encode(rgb, "raw", 95)
    assert payload.tobytes() == to_planar(rgb).tobytes()
    back = decode_payload(payload, "raw", rgb.shape[:2], rgb.shape[2])
    assert np.shares_memory(back, payload)
    assert np.array_equal(back, rgb.transpose(2, 0, 1))
    frozen = decode_payload(payload.tobytes(), "raw", rgb.shape[:2], rgb.shape[2])
    assert not frozen.flags.writeable


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
@pytest.mark.parametrize("size_hw", [(1, 1), (1, 7), (9, 1), (48, 64), (333, 501)])
def test_a_coded_payload_comes_back_close_and_planar(codec: Literal["jpeg", "webp"], size_hw: tuple[int, int]) -> None:
    """Any size, also one pixel; R stays R."""
    rgb = cv2.GaussianBlur(kit.picture(*size_hw), (5, 5), 0).reshape(*size_hw, 3)
    payload = encode(rgb, codec, 95)
    assert payload.dtype == np.uint8
    assert payload.ndim == 1
    back = decode_payload(payload, codec, size_hw, 3)
    assert back.flags.c_contiguous
    assert np.abs(back.astype(int) - rgb.transpose(2, 0, 1)).mean() < 4
    if min(size_hw) > 9:
        best = decode_payload(encode(rgb, codec, 100), codec, size_hw, 3)
        assert np.abs(best.astype(int) - rgb.transpose(2, 0, 1)).sum() < np.abs(back.astype(int) - rgb.transpose(2, 0, 1)).sum()


def test_colour_keeps_its_resolution_from_the_stated_quality_on() -> None:
    """4:2:0 below, 4:4:4 from there: read from the file itself."""
    rgb = kit.picture(64, 64)
    sampling = {q: simplejpeg.decode_jpeg_header(encode(rgb, "jpeg", q).tobytes())[3] for q in (1, 89, 90, 100)}
    assert FULL_CHROMA_QUALITY == 90
    assert sampling == {1: "420", 89: "420", 90: "444", 100: "444"}


def test_one_plane_is_kept_by_raw_and_jpeg_and_refused_by_webp() -> None:
    """A gray JPEG also serves as three equal planes; a colour one never as one plane."""
    gray = kit.picture(40, 50)[:, :, 0].copy()
    for shaped in (gray, gray[:, :, None]):
        payload = encode(shaped, "jpeg", 100)
        assert simplejpeg.decode_jpeg_header(payload.tobytes())[2] == "Gray"
        back = decode_payload(payload, "jpeg", (40, 50), 1)
        assert np.abs(back[0].astype(int) - gray).max() <= 2
        assert np.array_equal(decode_payload(payload, "jpeg", (40, 50), 3), back.repeat(3, 0))
        assert np.array_equal(decode_payload(encode(shaped, "raw", 1), "raw", (40, 50), 1)[0], gray)
        with pytest.raises(UsageError, match="webp picture must have 3 channels, got 1"):
            encode(shaped, "webp", 90)
    with pytest.raises(StoreError, match="must be gray, got YCbCr"):
        decode_payload(encode(kit.picture(4, 4), "jpeg", 90), "jpeg", (4, 4), 1)


@pytest.mark.parametrize("codec", ["raw", "jpeg", "webp"])
def test_a_payload_can_be_written_into_a_buffer(codec: Literal["raw", "jpeg", "webp"]) -> None:
    """The beginning of the buffer is the payload; one that is too short is refused and stays as it is."""
    rgb = kit.picture(20, 24)
    plain = encode(rgb, codec, 90)
    room = np.full(plain.size + 9, 77, np.uint8)
    written = encode(rgb, codec, 90, out=room)
    assert np.shares_memory(written, room)
    assert np.array_equal(written, plain)
    assert (room[plain.size :] == 77).all()
    short = np.full(plain.size - 1, 77, np.uint8)
    with pytest.raises(UsageError, match=f"out must hold {plain.size} bytes, got {plain.size - 1}"):
        encode(rgb, codec, 90, out=short)
    assert (short == 77).all()


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_a_quality_out_of_range_is_refused(quality: int) -> None:
    """Encoders would clamp it, or mean something else by it (WebP above 100 is lossless)."""
    for codec in ("jpeg", "webp"):
        with pytest.raises(UsageError, match="quality must be 1 to 100"):
            encode(kit.picture(4, 4), codec, quality)  # type: ignore[arg-type]


def test_a_picture_beyond_the_codec_is_refused_with_the_way_out() -> None:
    """A WebP has at most 16,383 pixels a side, a JPEG 65,535, raw has no limit."""
    strip = np.zeros((1, 16_384, 3), np.uint8)
    with pytest.raises(UsageError, match=r"at most 16383 pixels, got 16384 x 1; use the codec raw"):
        encode(strip, "webp", 90)
    assert decode_payload(encode(strip, "jpeg", 90), "jpeg", (1, 16_384), 3).shape == (3, 1, 16_384)
    with pytest.raises(UsageError, match="at most 65535"):
        encode(np.zeros((65_536, 1, 3), np.uint8), "jpeg", 90)
    assert encode(np.zeros((65_536, 1, 3), np.uint8), "raw", 90).size == 65_536 * 3


@pytest.mark.parametrize("codec", ["raw", "jpeg", "webp"])
@pytest.mark.parametrize("size_hw", [(24, 20), (20, 25), (21, 24), (0, 0)])
def test_a_payload_of_another_size_than_its_record_is_an_error(
    codec: Literal["raw", "jpeg", "webp"], size_hw: tuple[int, int]
) -> None:
    """Also when height and width are exchanged, except for raw bytes, which look the same then."""
    payload = encode(kit.picture(20, 24), codec, 90)
    if codec == "raw" and size_hw == (24, 20):
        assert decode_payload(payload, codec, size_hw, 3).shape == (3, 24, 20)
        return
    with pytest.raises(StoreError, match=f"{codec} payload"):
        decode_payload(payload, codec, size_hw, 3)


@pytest.mark.parametrize("codec", ["jpeg", "webp"])
@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_damaged_payload_is_an_error_or_of_the_right_shape(codec: Literal["jpeg", "webp"], data: st.DataObject) -> None:
    """Cut or changed: StoreError, never another exception; a cut one never comes back."""
    payload = encode(kit.picture(20, 24), codec, 90).tobytes()
    cut = payload[: data.draw(st.integers(0, len(payload) - 3))]
    with pytest.raises(StoreError, match=f"a {codec} payload must"):
        decode_payload(cut, codec, (20, 24), 3)
    changed = bytearray(payload)
    changed[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert decode_payload(bytes(changed), codec, (20, 24), 3).shape == (3, 20, 24)
    except StoreError:
        pass


@pytest.mark.parametrize("source", [bytes, bytearray, memoryview, lambda p: np.frombuffer(p, np.uint8)])
def test_any_buffer_is_read(source: Any) -> None:
    """A slice of a mapping, for example."""
    rgb = kit.picture(20, 24)
    for codec in ("raw", "jpeg", "webp"):
        payload = encode(rgb, codec, 95).tobytes()  # type: ignore[arg-type]
        assert decode_payload(source(payload), codec, (20, 24), 3).shape == (3, 20, 24)  # type: ignore[arg-type]


# Published bytes ------------------------------------------------------------------------------------------------------------

RGB = kit.picture(40, 56)
PLAIN = kit.saved(RGB, "JPEG", quality=90)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        kit.saved(RGB, "JPEG", progressive=True),
        kit.saved(RGB, "JPEG", subsampling="4:4:4"),
        kit.saved(RGB[:, :, 0].copy(), "JPEG"),
        kit.saved(RGB, "JPEG", exif=kit.exif(1)),
        PLAIN + b"tail",
        kit.saved(RGB, "JPEG", keep_rgb=True),
    ],
    ids=["baseline", "progressive", "444", "gray", "exif-1", "tail", "rgb"],
)
def test_an_upright_jpeg_is_kept_as_published(data: bytes) -> None:
    """And as a payload it decodes to the very pixels that decoding the file gives."""
    assert is_original_jpeg(data)
    assert is_original_jpeg(memoryview(data))
    found = decode_image(data)
    assert isinstance(found, Decoded)
    channels = 1 if found.gray else 3
    planes = decode_payload(data, "jpeg", found.rgb.shape[:2], channels)
    assert np.array_equal(planes, found.rgb.transpose(2, 0, 1)[:channels])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        kit.saved(RGB, "PNG"),
        kit.saved(RGB, "JPEG", exif=kit.exif(6)),
        kit.jpeg_with(PLAIN, (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + kit.xmp(3))),
        kit.saved(Image.fromarray(RGB).convert("CMYK"), "JPEG"),
        PLAIN[:-2],
        PLAIN[:-50],
        PLAIN[:-50] + b"\xff\xd9",
        PLAIN[:2] + b"\xff\xe5\0\4abjunk" + PLAIN[2:],
        kit.jpeg_with(PLAIN, (0xE2, b"ICC_PROFILE\0\1\1"), (0xE2, b"ICC_PROFILE\0\1\1")),
    ],
    ids=["empty", "start", "png", "turned", "turned-xmp", "cmyk", "no-end", "cut", "cut-closed", "junk", "odd-icc"],
)
def test_any_other_file_is_encoded_anew(data: bytes) -> None:
    """Not upright, not RGB or gray, not whole, or not without complaint."""
    assert not is_original_jpeg(data)


def test_arithmetic_lossless_and_twelve_bit_files_are_encoded_anew(shared: Path) -> None:
    """A GPU decoder does not read them, and nor do many libraries."""
    root = shared / "data" / "nasty"
    for name in ("libjpeg-turbo/testimgari.jpg", "libjpeg-turbo/monkey12.jpg", "twelvemonkeys/8_ls.jpg", "jpeg-decoder/ycck.jpg"):
        assert not is_original_jpeg((root / name).read_bytes()), name
    for name in (
        "libjpeg-turbo/testimgint.jpg",
        "jpeg-decoder/progressive3.jpg",
        "pillow/hopper_gray.jpg",
        "pillow/frozenpond.mpo",
    ):
        assert is_original_jpeg((root / name).read_bytes()), name
