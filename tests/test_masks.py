"""Masks: run lengths, pictures and rings describe the same pixels."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco_mask

from fastdata.boxes import polygon_area
from fastdata.masks import mask_to_rings, mask_to_rle, polygons_to_mask, rings_to_mask, rle_to_mask

MASKS = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=14), elements=st.integers(0, 1))


def checkerboard(h: int, w: int) -> np.ndarray:
    return (np.indices((h, w)).sum(axis=0) & 1).astype(np.uint8)


def noisy_blobs(h: int, w: int, sigma: float) -> np.ndarray:
    noise = cv2.GaussianBlur(np.random.default_rng(7).random((h, w)).astype(np.float32), (0, 0), sigma)
    return (noise > np.median(noise)).astype(np.uint8)


def signed_area(ring: np.ndarray) -> float:
    x, y = ring[:, 0], ring[:, 1]
    return float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2


@given(MASKS)
@example(checkerboard(5, 6))
@example(1 - checkerboard(6, 5))
@example(np.ones((3, 4), np.uint8))
@example(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], np.uint8))
def test_rings_filled_even_odd_give_the_mask_back(mask: np.ndarray) -> None:
    """rings_to_mask(mask_to_rings(mask)) == mask, diagonals, holes and borders included."""
    assert np.array_equal(rings_to_mask(mask_to_rings(mask), mask.shape), mask)


@given(MASKS)
@example(checkerboard(5, 6))
def test_rings_have_corners_only_and_signed_areas_that_add_up(mask: np.ndarray) -> None:
    """Every side is axis-parallel and not empty, the next one turns; outer rings count positive, holes negative."""
    rings = mask_to_rings(mask)
    for ring in rings:
        sides = np.roll(ring, -1, axis=0) - ring
        assert len(ring) >= 4
        assert ((sides != 0).sum(axis=1) == 1).all()
        assert ((sides[:, 0] != 0) != (np.roll(sides[:, 0], -1) != 0)).all()
    assert sum(signed_area(ring) for ring in rings) == mask.sum()


@given(MASKS)
@example(checkerboard(4, 4))
def test_there_is_one_outer_ring_for_each_region(mask: np.ndarray) -> None:
    """Pixels that touch at a corner only are two regions (4-connected), each with its own outer ring."""
    outer = [ring for ring in mask_to_rings(mask) if signed_area(ring) > 0]
    count, _ = cv2.connectedComponents(mask, connectivity=4)
    assert len(outer) == count - 1


def test_rings_begin_at_their_topmost_leftmost_corner_in_reading_order() -> None:
    """The order depends on the mask alone, and an outer ring comes before its hole."""
    mask = np.zeros((6, 12), np.uint8)
    mask[1:6, 1:6] = 1
    mask[2:4, 3:5] = 0
    mask[0:2, 8:11] = 1
    assert [ring.tolist() for ring in mask_to_rings(mask)] == [
        [[8, 0], [11, 0], [11, 2], [8, 2]],
        [[1, 1], [6, 1], [6, 6], [1, 6]],
        [[3, 2], [3, 4], [5, 4], [5, 2]],
    ]


def test_the_rings_of_a_noisy_crowd_give_the_mask_back() -> None:
    """The same property on a mask of the size and raggedness of a real crowd region."""
    mask = noisy_blobs(480, 640, 2.0)
    rings = mask_to_rings(mask)
    assert sum(len(ring) for ring in rings) > 20_000
    assert np.array_equal(rings_to_mask(rings, mask.shape), mask)


@given(MASKS)
def test_run_lengths_give_the_mask_back_packed_or_listed(mask: np.ndarray) -> None:
    """Text packed by pycocotools is read as the mask it was made from, and a plain list of counts means the same."""
    rle = mask_to_rle(mask)
    assert isinstance(rle["counts"], str)
    assert rle == {"size": list(mask.shape), "counts": coco_mask.encode(np.asfortranarray(mask))["counts"].decode()}
    assert np.array_equal(rle_to_mask(rle), mask)
    assert np.array_equal(rle_to_mask({"size": rle["size"], "counts": rle["counts"].encode()}), mask)
    flat = mask.T.reshape(-1)
    edges = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    assert np.array_equal(rle_to_mask({"size": rle["size"], "counts": [0, *runs] if flat[0] else runs}), mask)


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=30))
def test_packed_runs_of_any_length_are_read(runs: list[int]) -> None:
    """Long runs, zero runs and large differences: the mask equals the one that plain counts describe."""
    total = sum(runs)
    if total == 0:
        return
    packed = coco_mask.frPyObjects({"size": [total, 1], "counts": runs}, total, 1)
    assert np.array_equal(rle_to_mask(packed), rle_to_mask({"size": [total, 1], "counts": runs}))


@given(st.text(st.characters(min_codepoint=48, max_codepoint=111), max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_any_packed_text_is_a_mask_of_its_size_or_a_value_error(packed: str, h: int, w: int) -> None:
    """No text can write past the picture or leave pixels unset."""
    try:
        mask = rle_to_mask({"size": [h, w], "counts": packed})
    except ValueError:
        return
    assert mask.shape == (h, w)
    assert set(np.unique(mask).tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("rle", "words"),
    [
        ({"size": [2, 3], "counts": [2, 3]}, "add up to h * w = 6, got 5"),
        ({"size": [2, 3], "counts": [2, 5]}, "add up to h * w = 6, got 7"),
        ({"size": [2, 3], "counts": [7, -1]}, "0..6 pixels long, got 7"),
        ({"size": [2, 3], "counts": [4, -1, 3]}, "0..6 pixels long, got -1"),
        ({"size": [2, 3], "counts": [10**30]}, "64 bits"),
        ({"size": [2, 3], "counts": ["6"]}, "whole numbers"),
        ({"size": [2, 3], "counts": [True, 5]}, "whole numbers"),
        ({"size": [2, 3], "counts": [float("nan")]}, "whole numbers"),
        ({"size": [2, 3], "counts": []}, "add up"),
        ({"size": [2, 3], "counts": ""}, "add up"),
        ({"size": [2, 3], "counts": "2~"}, "characters '0' to 'o'"),
        ({"size": [2, 3], "counts": "2ä"}, "ASCII"),
        ({"size": [2, 3], "counts": "Q"}, "end within a number"),
        ({"size": [2, 3], "counts": "o" * 20 + "0"}, "at most 12 characters"),
        ({"size": [2, 3], "counts": None}, "a list or a string"),
        ({"size": [2, 3]}, "a list or a string"),
        ({"size": [2], "counts": [2]}, "size must be"),
        ({"size": [0, 3], "counts": []}, "size must be"),
        ({"size": [2.5, 2], "counts": [5]}, "size must be"),
        ({"size": "23", "counts": [6]}, "size must be"),
        ({"counts": [6]}, "size must be"),
        ({"size": [1 << 20, 1 << 20], "counts": [1 << 40]}, "at most 178956970"),
    ],
)
def test_run_lengths_that_do_not_fill_their_picture_are_refused(rle: dict[str, object], words: str) -> None:
    """Sizes and counts are checked before anything is allocated, and the message names the rule."""
    with pytest.raises(ValueError, match="must") as caught:
        rle_to_mask(rle)
    assert words in str(caught.value)


def test_the_pixel_limit_can_be_set() -> None:
    """max_pixels counts pixels, and the limit itself is allowed."""
    rle = {"size": [10, 10], "counts": [40, 60]}
    assert rle_to_mask(rle, max_pixels=100).sum() == 60
    with pytest.raises(ValueError, match="at most 99"):
        rle_to_mask(rle, max_pixels=99)


QUARTERS = st.integers(-20, 100).map(lambda q: q / 4)  # hits pixel edges and pixel centres
THOUSANDTHS = st.integers(-5_000, 25_000).map(lambda q: q / 1000)
POINT = st.one_of(st.tuples(QUARTERS, QUARTERS), st.tuples(THOUSANDTHS, THOUSANDTHS))
RING = st.lists(POINT, min_size=3, max_size=7).map(lambda p: np.array(p, np.float64))


@given(st.lists(RING, min_size=1, max_size=3))
def test_filling_agrees_with_counting_crossings_for_each_pixel(rings: list[np.ndarray]) -> None:
    """A pixel is set if a ray from its centre to the left crosses an odd number of sides (the definition, pixel by pixel)."""
    h, w = 17, 19
    yc, xc = np.mgrid[0:h, 0:w] + 0.5
    odd = np.zeros((h, w), np.bool_)
    for ring in rings:
        for (ax, ay), (bx, by) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
            if ay == by:
                continue
            spans = (yc >= min(ay, by)) & (yc < max(ay, by))
            odd ^= spans & (ax + (yc - ay) / (by - ay) * (bx - ax) <= xc)
    assert np.array_equal(rings_to_mask(rings, (h, w)), odd.astype(np.uint8))


def test_parts_are_joined_and_rings_are_cancelled() -> None:
    """Two overlapping squares: the union of parts has 28 pixels; even-odd takes the overlap out."""
    squares = [np.array([[x, x], [x + 4, x], [x + 4, x + 4], [x, x + 4]], np.float32) for x in (1, 3)]
    assert polygons_to_mask(squares, (10, 10)).sum() == 28
    assert rings_to_mask(squares, (10, 10)).sum() == 24


def test_nothing_to_fill_gives_an_empty_mask() -> None:
    """No ring, rings of two points, rings outside, and pictures without pixels."""
    far = np.array([[50.0, 50], [60, 50], [60, 60]])
    for rings in ([], [np.zeros((0, 2))], [np.array([[1.0, 1], [5, 5]])], [far], [-far]):
        assert rings_to_mask(rings, (8, 9)).sum() == 0
    assert rings_to_mask([far], (0, 9)).shape == (0, 9)
    assert mask_to_rings(np.zeros((4, 5), np.uint8)) == []
    assert mask_to_rings(np.zeros((0, 5), np.uint8)) == []


def test_polygon_area_of_a_filled_outline_is_close_to_its_pixels() -> None:
    """A smooth outline covers as many pixel centres as it has area, to within its circumference."""
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    ring = np.stack([50 + 30 * np.cos(angle), 40 + 20 * np.sin(angle)], axis=1)
    assert abs(int(polygons_to_mask([ring], (80, 100)).sum()) - polygon_area(ring)) < 20
