"""Instance masks: known ones, the definition bit for bit, the trainers' to their boundary, and mutants that die."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
import recipe_kit as kit
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_kit import Thing

from fastdata.augment.recipe import Labels
from fastdata.boxes import polygon_area
from fastdata.errors import UsageError
from fastdata.labels import BOX, MASK, OBB, POLYGON
from fastdata.masks import mask_to_rings, rings_to_mask
from fastdata.render import masks, reference_masks
from fastdata.render.masks import class_masks, overlap_masks, separate_masks
from fastdata.render.reference_masks import area_steps, units_of
from fastdata.render.tolerance import MASK_SHARE


def square(x0: float, y0: float, x1: float, y1: float) -> kit.Ring:
    """A ring."""
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def blob(rng: np.random.Generator, frame: int, size: float, corners: int = 40) -> kit.Ring:
    """A jagged outline without crossings, clipped to a square frame."""
    turn = np.sort(rng.uniform(0, 2 * np.pi, corners))
    radius = size * rng.uniform(0.6, 1, corners)
    points = rng.uniform(0, frame, 2) + np.stack([np.cos(turn), np.sin(turn)], axis=1) * radius[:, None]
    return np.clip(points, 0, frame).astype(np.float32).tolist()


@st.composite
def batches(draw: st.DrawFn) -> tuple[Labels, tuple[int, int], int]:
    """Slots with outlines of every kind, crossing themselves and the frame, degenerate, or missing."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    out_hw = (draw(st.integers(4, 70)), draw(st.integers(4, 70)))
    things = []
    for _ in range(draw(st.integers(0, 3))):
        own = []
        for _ in range(draw(st.integers(0, 5))):
            kind = int(rng.integers(0, 4))
            count = 0 if kind == BOX else int(rng.integers(0, 4))
            rings: list[Any] = [rng.uniform(-8, 76, (rng.integers(0, 9), 2)) for _ in range(count)]
            rings = [np.rint(ring * 2) / 2 if rng.random() < 0.4 else ring for ring in rings]  # corners on centres and edges
            (x0, x1), (y0, y1) = np.sort(rng.uniform(0, 70, (2, 2)))
            own.append(Thing([r.tolist() for r in rings], kind, box=(x0, y0, x1 + 0.01, y1 + 0.01)))
        things.append(own)
    return kit.labels_of(things), out_hw, draw(st.integers(1, min(*out_hw, 5)))


@settings(max_examples=150)
@given(batches())
def test_masks_are_those_of_the_definition_bit_for_bit(batch: tuple[Labels, tuple[int, int], int]) -> None:
    """Both forms, the order too, at any ratio, also one that does not divide the frame."""
    got, order = overlap_masks(*batch)
    want, want_order = reference_masks.overlap_masks(*batch)
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    assert np.array_equal(order, want_order)
    assert np.array_equal(separate_masks(*batch), reference_masks.separate_masks(*batch))


# Known masks ----------------------------------------------------------------------------------------------------------------


def test_smaller_objects_lie_over_larger_ones_and_are_numbered_largest_first() -> None:
    """Whatever their order in the labels; each slot counts from 1."""
    corners = ((2, 2, 4, 4), (0, 0, 8, 8), (1, 1, 6, 6), (4, 4, 8, 8))
    small, large, middle, other = (Thing([square(*own)], cls=5 + i) for i, own in enumerate(corners))
    labels = kit.labels_of([[small, large, middle], [], [other]])
    got, order = overlap_masks(labels, (8, 10), 1)
    want = np.zeros((8, 10), np.uint8)
    want[0:8, 0:8], want[1:6, 1:6], want[2:4, 2:4] = 1, 2, 3
    assert got.dtype == np.uint8
    assert np.array_equal(got[0], want)
    assert not got[1].any()
    assert np.array_equal(np.argwhere(got[2] == 1).min(axis=0), [4, 4])
    assert order.tolist() == [1, 2, 0, 3]
    classes = class_masks(got, order, labels)
    assert classes.dtype == np.float32
    assert np.array_equal(classes[0], np.array([0, 6, 7, 5], np.float32)[want])
    assert np.array_equal(classes[2], np.where(got[2] == 1, 8, 0))
    alone = separate_masks(labels, (8, 10), 1)
    assert [int(m.sum()) for m in alone] == [4, 64, 25, 16]
    assert alone.max() == 1


def test_a_pixel_is_set_where_its_centre_lies_in_the_shrunk_outline() -> None:
    """At ratio 4 the centre of small pixel i is 4 i + 2."""
    for x1, columns in ((6, 1), (6.01, 2), (10, 2), (10.01, 3), (1.9, 0), (2.1, 1)):
        got, _ = overlap_masks(kit.labels_of([[Thing([square(0, 0, x1, 16)])]]), (16, 16), 4)
        assert np.array_equal(got[0] > 0, np.tile(np.arange(4) < columns, (4, 1))), x1


def test_a_mask_keeps_its_hole_and_a_polygon_is_the_union_of_its_parts() -> None:
    """The same two rings, nested, as one kind and as the other; without rings the box is the outline."""
    rings = [square(1, 1, 9, 9), square(3, 3, 7, 7)]
    labels = kit.labels_of([[Thing(rings, kind, box=(2, 2, 5, 6)) for kind in (MASK, POLYGON, OBB)] + [Thing(box=(2, 2, 5, 6))]])
    alone = separate_masks(labels, (10, 10), 1)
    assert [int(m.sum()) for m in alone] == [64 - 16, 64, 64, 12]
    assert not alone[0, 3:7, 3:7].any()
    assert alone[3, 2:6, 2:5].all()
    assert [area_steps(units_of(labels, i)) / 256 for i in range(4)] == [48, 64, 64, 12]
    assert overlap_masks(labels, (10, 10), 1)[1].tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize(("objects", "dtype"), [(255, np.uint8), (256, np.int32), (300, np.int32)])
def test_each_of_many_objects_keeps_its_own_number(objects: int, dtype: type) -> None:
    """Beyond 255 in a wider type, for the whole batch; equal objects keep their order."""
    things = [Thing([square(10 * (i % 20), 10 * (i // 20), 10 * (i % 20) + 8, 10 * (i // 20) + 8)]) for i in range(objects)]
    got, order = overlap_masks(kit.labels_of([things, things[:2]]), (200, 200), 1)
    assert got.dtype == dtype
    assert order.tolist() == list(range(objects + 2))
    numbers = [int(got[0, 10 * (i // 20) + 4, 10 * (i % 20) + 4]) for i in range(objects)]
    assert numbers == list(range(1, objects + 1))
    assert got[0, 9, 9] == got[0, 199, 199] == 0
    assert got[1].max() == 2


def test_equal_objects_keep_their_order_wherever_a_warp_puts_them() -> None:
    """Rounding makes two copies of an outline differ by less than a step; the order of the labels decides."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        matrix = kit.affine(rng, (64, 64), (64, 64))
        outline = np.array([[0, 0], [9, 2], [5, 12]], np.float64)
        copies = [(np.hstack([outline + at, np.ones((3, 1))]) @ matrix.T)[:, :2].tolist() for at in rng.uniform(0, 40, (6, 2))]
        assert overlap_masks(kit.labels_of([[Thing([ring]) for ring in copies]]), (64, 64), 4)[1].tolist() == list(range(6))


# Areas ----------------------------------------------------------------------------------------------------------------------


def test_the_area_of_a_simple_outline_is_exact() -> None:
    """The shoelace formula says so, to one step of 1/256."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        corners = int(rng.integers(4, 60))
        turn = (np.arange(corners) + rng.uniform(0, 0.9, corners)) * 2 * np.pi / corners
        ring = np.stack([np.cos(turn), np.sin(turn)], axis=1) * rng.uniform(5, 60, (corners, 1)) + 70
        assert abs(area_steps([[ring]]) / 256 - polygon_area(ring)) <= 1 / 256


def test_the_area_of_a_traced_mask_is_its_pixels() -> None:
    """Holes, islands in holes and touching corners included."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        mask = (cv2.GaussianBlur(rng.random((24, 31)), (0, 0), 1.2) > 0.5).astype(np.uint8)
        assert area_steps([mask_to_rings(mask)]) == 256 * int(mask.sum())


def test_parts_that_overlap_count_once_and_a_figure_of_eight_counts_both_halves() -> None:
    """Unlike with the shoelace formula, which would put the eight on top of everything."""
    two = [[np.array(square(0, 0, 6, 6), float)], [np.array(square(3, 3, 9, 9), float)]]
    assert area_steps(two) == 256 * (36 + 36 - 9)
    assert area_steps([[two[0][0], two[1][0]]]) == 256 * (36 + 36 - 18)
    eight = np.array([[0, 0], [10, 10], [10, 0], [0, 10]], float)
    assert polygon_area(eight) == 0
    assert abs(area_steps([[eight]]) / 256 - 50) < 0.5
    thing = Thing([(eight * 3 + 5).tolist()])
    got, order = overlap_masks(kit.labels_of([[Thing([square(7, 7, 13, 13)]), thing]]), (64, 64), 1)
    assert order.tolist() == [1, 0]
    assert (got[0, 7:13, 7:13] == 2).all()


# The trainers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_masks_are_the_trainers_but_for_their_boundary(ratio: int) -> None:
    """The same order, and a stated share of boundary pixels; a mask that is half a pixel of its own off has twice as many."""
    utils = pytest.importorskip("ultralytics.data.utils")
    rng = np.random.default_rng(0)
    differ, shifted, boundary = 0, 0, 0
    for _ in range(8):
        rings = [blob(rng, 640, rng.uniform(20, 160)) for _ in range(8)]
        labels = kit.labels_of([[Thing([ring]) for ring in rings]])
        segments = [np.array(ring, np.float32) for ring in rings]
        _, their_order = utils.polygons2masks_overlap((640, 640), segments, ratio)
        assert overlap_masks(labels, (640, 640), ratio)[1].tolist() == their_order.tolist()
        theirs = utils.polygons2masks((640, 640), [s.reshape(-1) for s in segments], 1, ratio)
        moved = kit.labels_of([[Thing([(np.array(ring) + ratio).tolist()]) for ring in rings]])
        for ours, other, their in zip(
            separate_masks(labels, (640, 640), ratio), separate_masks(moved, (640, 640), ratio), theirs, strict=True
        ):
            square3 = np.ones((3, 3), np.uint8)
            boundary += int((cv2.dilate(ours, square3) != cv2.erode(ours, square3)).sum())
            differ += int((ours != their).sum())
            shifted += int((other != their).sum())
    assert 0 < differ <= MASK_SHARE[ratio] * boundary
    assert shifted > 1.5 * MASK_SHARE[ratio] * boundary


# Arguments and mutants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0, -1, 9])
def test_a_ratio_that_leaves_no_pixel_is_refused(ratio: int) -> None:
    """Also below 1."""
    labels = kit.labels_of([[Thing([square(0, 0, 4, 4)])]])
    for draw in (overlap_masks, separate_masks):
        with pytest.raises(UsageError, match=rf"mask_ratio must be 1..8 for pictures of 12 x 8, got {ratio}"):
            draw(labels, (8, 12), ratio)


def test_nothing_gives_nothing() -> None:
    """No slot, and slots without objects."""
    for slots in (0, 3):
        labels = kit.labels_of([[]] * slots)
        got, order = overlap_masks(labels, (16, 24), 4)
        assert got.shape == (slots, 4, 6)
        assert not got.any()
        assert order.shape == (0,)
        assert separate_masks(labels, (16, 24), 4).shape == (0, 4, 6)
        assert class_masks(got, order, labels).shape == (slots, 4, 6)


def test_labels_are_not_written_to() -> None:
    """Read-only arrays do, also those of a slice of a recipe."""
    labels = kit.labels_of([[Thing([square(0, 0, 4, 4)]), Thing(box=(1, 1, 7, 7))]])
    for name in Labels.__dataclass_fields__:
        getattr(labels, name).flags.writeable = False
    assert overlap_masks(labels, (8, 8), 1)[1].tolist() == [1, 0]


MUTANTS = {
    "centres at corners": ("- 0.5", "- 0.0"),
    "the first row lost": ("range(first, stop)", "range(first + 1, stop)"),
    "an outline left open": ("else begin", "else p"),
    "a toggle left behind": ("toggles[row, column] = 0", "pass"),
    "the last column lost": ("column < width", "column < width - 1"),
    "smallest first": ("(-steps,", "(steps,"),
    "numbers from 0": ("np.arange(1, len(order) + 1)", "np.arange(len(order))"),
    "a byte for 256 objects": ("<= MAX_NUMBER", "<= MAX_NUMBER + 1"),
    "MASK as a union": ("labels.kind == MASK", "labels.kind == -1"),
    "the union cancels": ("within += 1 if inside[unit] else -1", "within ^= 1"),
    "crossings unseen": ("lines = crossing_lines", "lines = 1"),
    "areas by their boxes' heights": ("total += (x[a] - x[a - 1]) * (y1 - y0) / lines", "total += (y1 - y0) / lines"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_version_gives_a_known_mask_wrongly(name: str) -> None:
    """Each slip is run as plain Python, which takes no compiler, and meets the tests above."""
    source = Path(masks.__file__).read_text()
    right, wrong = MUTANTS[name]
    assert right in source
    plain = source.replace("import entry, part\n", "import part as _\nentry, part = lambda _, f: f, lambda f: f\n")
    plain = plain.replace(right, wrong)
    mutant = ModuleType("mutant")
    exec(compile(plain, "mutant", "exec"), mutant.__dict__)
    assert any(_differ(mutant, *case) for case in _cases())


def _differ(mutant: ModuleType, labels: Labels, out_hw: tuple[int, int], ratio: int) -> bool:
    want, want_order = reference_masks.overlap_masks(labels, out_hw, ratio)
    got, order = mutant.overlap_masks(labels, out_hw, ratio)
    return got.dtype != want.dtype or not np.array_equal(got, want) or not np.array_equal(order, want_order)


def _cases() -> list[tuple[Labels, tuple[int, int], int]]:
    """Small batches in which every rule decides something."""
    rings = [square(1, 1, 9, 9), square(3, 3, 7, 7)]
    eight = [[5, 5], [25, 25], [5, 25], [25, 5]]  # nothing is covered where it crosses itself
    tiny = [Thing([square(i % 16, i // 16, i % 16 + 1, i // 16 + 1)]) for i in range(256)]
    rng = np.random.default_rng(5)
    jagged = [Thing([blob(rng, 32, 14, 12)]) for _ in range(5)]
    overlapping = [square(0, 0, 12, 12), square(2, 2, 14, 14)]  # 188 px², 288 with the overlap twice, 88 without it
    return [
        (kit.labels_of([[Thing(rings, MASK), Thing([square(0, 0, 7.5, 7.5)])]]), (10, 10), 1),
        (kit.labels_of([[Thing([eight]), Thing([square(4, 4, 16, 16)])], jagged]), (32, 32), 2),
        (kit.labels_of([[Thing(overlapping), Thing([square(0, 0, 12, 12)])]]), (16, 16), 1),
        (kit.labels_of([tiny]), (16, 16), 1),
        (kit.labels_of([[Thing([square(0, 0, 16, 16)]), Thing([square(8, 8, 16, 16)])]]), (16, 16), 4),
    ]


def test_the_definition_fills_as_the_ground_does() -> None:
    """One rule for masks in the whole project."""
    ring = np.array(blob(np.random.default_rng(2), 40, 18))
    labels = kit.labels_of([[Thing([ring.tolist()], MASK)]])
    assert np.array_equal(reference_masks.separate_masks(labels, (40, 40), 1)[0], rings_to_mask([ring], (40, 40)))
