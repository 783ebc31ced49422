"""Which way up: every wrapping is read, damage counts as absent, and the turn is the one that Pillow makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_kit import exif, picture, raw_profile_text, tiff_block, xmp
from PIL import Image, ImageOps

from fastdata.orientation import (
    container_orientation,
    exif_orientation,
    found_orientation,
    raw_profile,
    turn,
    upright_size,
    xmp_orientation,
)

ALL = range(1, 9)


@pytest.mark.parametrize("n", ALL)
def test_turning_does_what_pillow_does(n: int) -> None:
    """``turn`` equals ``exif_transpose`` on a picture without symmetry."""
    stored = picture(5, 7)
    image = Image.fromarray(stored)
    image.getexif()[0x0112] = n
    assert np.array_equal(turn(stored, n), np.asarray(ImageOps.exif_transpose(image)))


@pytest.mark.parametrize("n", ALL)
@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 4, 3), (4, 1, 3), (3, 5, 1), (3, 5), (1, 6, 1)])
def test_turning_keeps_channels_and_gives_contiguous_rows(n: int, shape: tuple[int, ...]) -> None:
    """Also for a side of one and one channel, which OpenCV tends to drop."""
    stored = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    turned = turn(stored, n)
    assert turned.shape[:2] == upright_size((shape[0], shape[1]), n)
    assert turned.shape[2:] == shape[2:]
    assert turned.flags.c_contiguous
    assert sorted(turned.ravel().tolist()) == sorted(stored.ravel().tolist())


def test_turning_an_upright_picture_copies_nothing() -> None:
    """Most pictures are upright: they cost nothing."""
    stored = picture(4, 4)
    assert turn(stored, 1) is stored


@pytest.mark.parametrize("n", ALL)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_every_integer_type_in_both_byte_orders_is_read(n: int, order: str, kind: int) -> None:
    """Writers use SHORT as they should, and BYTE and LONG as well."""
    assert exif_orientation(tiff_block(n, order=order, kind=kind, before=3)) == n


@pytest.mark.parametrize("n", ALL)
def test_what_pillow_writes_is_read_with_and_without_the_jpeg_prefix(n: int) -> None:
    """A JPEG has ``Exif`` and two zeros before the block; PNG and WebP have it or not."""
    block = exif(n)
    assert block.startswith(b"Exif\0\0")
    assert exif_orientation(block) == n
    assert exif_orientation(block[6:]) == n


@pytest.mark.parametrize("value", [0, 9, 255, 65535])
def test_an_impossible_number_means_upright(value: int) -> None:
    """It is there and readable, so it also wins over XMP."""
    assert exif_orientation(tiff_block(value)) == 1
    assert found_orientation(tiff_block(value), xmp(6)) == 1


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"Exif\0\0",
        b"II*\0",
        b"XX*\0" + tiff_block(6)[4:],
        b"II+\0" + tiff_block(6)[4:],
        tiff_block(6)[:17],
        tiff_block(6, count=2),
        tiff_block(6, kind=2),
        b"II*\0\xff\xff\xff\xff" + bytes(40),
        b"II*\0\x08\0\0\0" + b"\xff\xff",
    ],
)
def test_a_damaged_block_counts_as_absent(block: bytes) -> None:
    """None, so that another place may still say which way up."""
    assert exif_orientation(block) is None
    assert found_orientation(block, None) == 1
    assert found_orientation(block, xmp(8)) == 8


def test_a_count_that_leaves_the_block_does_not_hide_whole_entries() -> None:
    """65535 entries are promised, two are there: the second is the one."""
    assert exif_orientation(tiff_block(3, before=1, entries=65535)) == 3


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(block: bytes) -> None:
    """Whatever the bytes, the answer is None or 1 to 8."""
    for start in (b"", b"Exif\0\0", b"II*\0", b"MM\0*\0\0\0\x08"):
        assert exif_orientation(start + block) in (None, *ALL)
    assert xmp_orientation(block) in (None, *ALL)
    assert found_orientation(block, block) in ALL
    raw_profile(block)


@given(st.integers(0, 40), st.integers(0, 255), st.sampled_from("<>"))
def test_one_changed_byte_never_raises(at: int, value: int, order: str) -> None:
    """Damage in a block that was right."""
    block = bytearray(tiff_block(6, order=order, before=1))
    block[at % len(block)] = value
    assert exif_orientation(bytes(block)) in (None, *ALL)


@pytest.mark.parametrize("n", ALL)
@pytest.mark.parametrize("element", [False, True])
def test_xmp_is_read_as_attribute_and_as_element(n: int, element: bool) -> None:
    """Both spellings are in use."""
    assert xmp_orientation(xmp(n, element=element)) == n


def test_xmp_spellings_and_limits() -> None:
    """Single quotes and spaces; a number out of range; another name that ends alike; nothing after the first MiB."""
    assert xmp_orientation(b"<a tiff:Orientation = '6'/>") == 6
    assert xmp_orientation(b'<a tiff:Orientation="9"/>') == 1
    assert xmp_orientation(b'<a tiff:Orientation="61"/>') == 1
    assert xmp_orientation(b'<a exif:Orientation="6"/>') is None
    assert xmp_orientation(b" " * (1 << 20) + b'<a tiff:Orientation="6"/>') is None


@given(st.binary(max_size=300), st.sampled_from(["exif", "APP1", "xmp"]))
def test_a_raw_profile_comes_back(profile: bytes, name: str) -> None:
    """What ImageMagick's text form holds is what was put in."""
    assert raw_profile(raw_profile_text(profile, name)) == profile


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\nexif\n",
        b"\nexif\n  4\nzz00\n",
        b"\nexif\n  4\n0\n",
        b"\nexif\nfour\n00\n",
        b"exif 4 0011",
        b"\nexif\n 2\n\xff\xff\n",
    ],
)
def test_a_damaged_raw_profile_is_empty(text: bytes) -> None:
    """Odd digits, no digits, no length."""
    assert raw_profile(text) == b""


def test_exif_wins_over_xmp_and_nothing_means_upright() -> None:
    """The order of Pillow's ``exif_transpose``."""
    assert found_orientation(tiff_block(6), xmp(3)) == 6
    assert found_orientation(None, xmp(3)) == 3
    assert found_orientation(None, None) == 1


@pytest.mark.parametrize("angle", range(4))
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("mirror_first", [False, True])
def test_turn_and_mirror_of_a_container_become_one_number(angle: int, axis: int | None, mirror_first: bool) -> None:
    """Counter-clockwise turns and a mirror, applied one after the other in the order given."""
    stored = picture(5, 7)
    steps: list[tuple[str, int]] = [("irot", angle)] + ([("imir", axis)] if axis is not None else [])
    if mirror_first:
        steps.reverse()
    wanted = stored
    for kind, value in steps:
        if kind == "irot":
            for _ in range(value):
                wanted = wanted.transpose(1, 0, 2)[::-1]  # counter-clockwise: the last column becomes the first row
        else:
            wanted = wanted[::-1] if value == 0 else wanted[:, ::-1]
    assert np.array_equal(turn(stored, container_orientation(steps)), wanted)  # type: ignore[arg-type]
