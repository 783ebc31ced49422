"""Annotations become rows or are reported, each rule on its own, and no JSON value breaks the reader."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from coco_kit import note
from hypothesis import given
from hypothesis import strategies as st

from fastdata.labels import BOX, CROWD, MASK, POLYGON
from fastdata.sources.coco_rows import Block, IdTable, RowRule, parse, whole


def rule(keypoint_counts: tuple[int, ...] = (0, 0), single_cls: bool = False) -> RowRule:
    """Images 1 and 2 are indices 10 and 20; categories 1 and 2 are classes 0 and 1."""
    images, categories = IdTable.of([2, 1], [20, 10]), IdTable.of([1, 2], [0, 1])
    return RowRule("set.json", images, categories, keypoint_counts, max(keypoint_counts), single_cls)


def told(block: Block) -> list[tuple[int | None, str, str]]:
    return [(p.annotation_id, p.kind, p.action) for p in block.problems]


def parts_of(block: Block, i: int) -> list[list[float]]:
    rows = block.rows
    return [
        rows.points[rows.point_offsets[p] : rows.point_offsets[p + 1]].reshape(-1).tolist()
        for p in range(rows.part_offsets[i], rows.part_offsets[i + 1])
    ]


SQUARE = [0, 0, 4, 0, 4, 4, 0, 4]


def test_a_plain_annotation_becomes_a_row() -> None:
    """Corners from [x, y, w, h], class and image by index, id and area as published."""
    block = parse([note(7, 2, 2, bbox=[1, 2.5, 3, 4], area=9.5, iscrowd=0, segmentation=[SQUARE])], rule())
    rows = block.rows
    assert block.image.tolist() == [20]
    assert (rows.unit, rows.place, rows.file) == ("px", "annotation_id", "set.json")
    assert rows.xyxy.tolist() == [[1, 2.5, 4, 6.5]]
    assert (rows.cls[0], rows.where[0], rows.area[0], rows.flags[0], rows.kind[0]) == (1, 7, 9.5, 0, POLYGON)
    assert rows.has_box.tolist() == [True]
    assert parts_of(block, 0) == [SQUARE]
    assert block.problems == []


@pytest.mark.parametrize(
    ("bbox", "kind"),
    [
        ([5, 25, 10], "columns"),
        ([5, 25, 10, 3, 4], "columns"),
        ([], "columns"),
        (None, "columns"),
        (["a", 1, 2, 3], "bad-number"),
        ([None, 1, 2, 3], "bad-number"),
        ([[1], 1, 2, 3], "bad-number"),
        ([True, 1, 2, 3], "bad-number"),
        ([10**400, 1, 2, 3], "bad-number"),
        ([1, 1, 10**400, 3], "bad-number"),
        (["1_0", 1, 2, 3], "bad-number"),
        (["٣", 1, 2, 3], "bad-number"),
        ("1234", "bad-number"),
        ({"x": 1, "y": 2, "w": 3, "h": 4}, "bad-number"),
        (7, "bad-number"),
    ],
)
def test_a_box_that_is_not_four_numbers_is_dropped_and_reported(bbox: Any, kind: str) -> None:
    """columns where numbers are missing or too many, bad-number where they are none."""
    block = parse([note(3, bbox=bbox), note(4)], rule())
    assert told(block) == [(3, kind, "dropped")]
    assert block.rows.where.tolist() == [4]


def test_numbers_written_as_text_are_numbers() -> None:
    """In boxes, outlines, areas and keypoints; each annotation with some is listed once."""
    text = [str(v) for v in SQUARE]
    items = [
        note(1, bbox=["8", " 4", "1.6e1", "10"], area="12.5"),
        note(2, segmentation=[text], keypoints=["1", "2", "2"]),
        note(3, segmentation=[SQUARE]),
    ]
    block = parse(items, rule((1, 1)))
    assert block.rows.xyxy[0].tolist() == [8, 4, 24, 14]
    assert block.rows.area[0] == 12.5
    assert parts_of(block, 1) == parts_of(block, 2) == [SQUARE]
    assert block.rows.keypoints[1].tolist() == [[1, 2, 2]]
    assert (block.texts, block.problems) == ([1, 2], [])


def test_a_missing_box_follows_from_the_outline() -> None:
    """bbox absent, null or empty beside an outline or a mask: has_box is False, nothing to report."""
    items = [note(n, segmentation=[SQUARE]) | {"bbox": bbox} for n, bbox in enumerate((None, []))]
    items.append({k: v for k, v in note(2, segmentation={"size": [2, 2], "counts": [4]}).items() if k != "bbox"})
    block = parse(items, rule())
    assert block.rows.has_box.tolist() == [False, False, False]
    assert block.rows.kind.tolist() == [POLYGON, POLYGON, MASK]
    assert block.problems == []


@pytest.mark.parametrize("segmentation", [None, [], {}, ""])
def test_without_an_outline_it_is_a_box(segmentation: Any) -> None:
    """A box is complete: nothing to report."""
    block = parse([note(segmentation=segmentation)], rule())
    assert (block.rows.kind.tolist(), block.problems) == ([BOX], [])


@pytest.mark.parametrize(
    ("segmentation", "kept"),
    [
        ([[1, 2, 3, 4]], []),
        ([[]], []),
        ([[1, 2, 3, 4, 5, 6, 7]], []),
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9]], []),
        (SQUARE, []),
        ([[[0, 0], [4, 0], [4, 4]]], []),
        ([[[0, 0], [4, 0], [4, 4], [0, 4], [0, 3], [0, 2]]], []),
        ([[0, 0, 4, 0, "x", 4]], []),
        ([[0, 0, 4, 0, None, 4]], []),
        ("outline", []),
        (5, []),
        ({"size": [4, 4]}, []),
        ({"counts": [16]}, []),
        ({"size": 4, "counts": 5}, []),
        ([SQUARE, [1, 2]], [SQUARE]),
        ([[1, 2, 3], SQUARE, None, SQUARE], [SQUARE, SQUARE]),
        ([SQUARE, [0, 0, 4, 0, None, 4]], [SQUARE]),
        ([SQUARE, [0, 0, 4, 0, 10**400, 4]], [SQUARE]),
    ],
)
def test_parts_that_are_no_outline_are_left_out_and_reported(segmentation: Any, kept: list[list[float]]) -> None:
    """Good parts stay; without any the object stays as a box."""
    block = parse([note(9, segmentation=segmentation), note(10, segmentation=[SQUARE])], rule())
    assert told(block) == [(9, "odd-polygon", "changed")]
    assert block.rows.kind.tolist() == [POLYGON if kept else BOX, POLYGON]
    assert parts_of(block, 0) == kept
    assert parts_of(block, 1) == [SQUARE]
    assert ("kept as a box" in block.problems[0].detail) == (not kept)


def test_integers_beyond_64_bits_in_an_outline_are_numbers() -> None:
    """What float64 can hold is passed on, exactly as a plain parse would have it."""
    ring = [0, 0, 2**70, 0, 4, 4]
    block = parse([note(segmentation=[ring])], rule())
    assert parts_of(block, 0) == [[float(v) for v in ring]]


@pytest.mark.parametrize("counts", [[4, 5, 7], "1234", ""])
def test_run_lengths_are_kept_as_they_are(counts: Any) -> None:
    """Size and counts come back from the row, other keys do not; decoding is for later."""
    block = parse([note(segmentation={"size": [4, 4], "counts": counts, "x": 1})], rule())
    assert block.rows.kind.tolist() == [MASK]
    assert json.loads(block.rows.rle[0] or b"") == {"size": [4, 4], "counts": counts}
    assert len(block.rows.points) == 0


@pytest.mark.parametrize(
    ("value", "flag", "reported"),
    [
        (1, CROWD, False),
        (0, 0, False),
        (True, CROWD, False),
        (False, 0, False),
        (1.0, CROWD, False),
        ("1", CROWD, False),
        ("0", 0, False),
        ("true", CROWD, False),
        ("False", 0, False),
        (None, 0, False),
        ("", 0, False),
        ("maybe", 0, True),
        ([1], 0, True),
    ],
)
def test_iscrowd_in_any_form_is_a_flag(value: Any, flag: int, reported: bool) -> None:
    """Numbers, booleans and their usual texts; anything else is reported and taken as 0."""
    block = parse([note(5, iscrowd=value)], rule())
    assert block.rows.flags.tolist() == [flag]
    assert told(block) == [(5, "bad-number", "changed")] * reported


@pytest.mark.parametrize("area", [None, "x", [], True, 10**400])
def test_an_area_that_is_no_number_is_none(area: Any) -> None:
    """NaN stands for none; the row stays."""
    assert math.isnan(parse([note(area=area)], rule()).rows.area[0])
    assert math.isnan(parse([note()], rule()).rows.area[0])


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"image_id": 3}, "unknown-image"),
        ({"image_id": None}, "unknown-image"),
        ({"image_id": "x"}, "unknown-image"),
        ({"image_id": [1]}, "unknown-image"),
        ({"image_id": 2**70}, "unknown-image"),
        ({"image_id": 1.5}, "unknown-image"),
        ({"category_id": 0}, "unknown-category"),
        ({"category_id": 3}, "unknown-category"),
        ({"category_id": None}, "unknown-category"),
    ],
)
def test_an_annotation_of_something_unknown_is_dropped_with_its_id(more: dict[str, Any], kind: str) -> None:
    """Image before category; the others stay."""
    block = parse([note(8) | more, note(9)], rule())
    assert told(block) == [(8, kind, "dropped")]
    assert block.rows.where.tolist() == [9]
    keyless = {k: v for k, v in note(8).items() if k not in more}
    assert told(parse([keyless], rule())) == [(8, kind, "dropped")]


def test_ids_may_be_floats_or_texts_of_whole_numbers() -> None:
    """1.0 and '1' mean 1: exports of spreadsheets and scripts write them so."""
    block = parse([note("7", "1", 2.0)], rule())
    assert (block.image.tolist(), block.rows.cls.tolist(), block.rows.where.tolist()) == ([10], [1], [7])


def test_an_annotation_without_id_is_a_row_all_the_same() -> None:
    """Its place is -1, and a report about it has no annotation id."""
    block = parse([note(None), note(-4), note("x", 99)], rule())
    assert block.rows.where.tolist() == [-1, -1]
    assert told(block) == [(None, "unknown-image", "dropped")]


def test_under_single_cls_every_category_is_class_0() -> None:
    """Known or not."""
    block = parse([note(1, category_id=2), note(2, category_id=77), note(3, category_id=None)], rule(single_cls=True))
    assert (block.rows.cls.tolist(), block.problems) == ([0, 0, 0], [])


def test_keypoints_are_filled_up_to_the_largest_class() -> None:
    """A class with fewer has the rest not labelled; rows without have none labelled."""
    items = [note(1, keypoints=[1, 2, 2, 3, 4, 1]), note(2, category_id=2, keypoints=[5, 6, 2]), note(3), note(4, keypoints=[])]
    block = parse(items, rule((2, 1)))
    nothing = [0, 0, 0]
    assert block.rows.keypoints.tolist() == [[[1, 2, 2], [3, 4, 1]], [[5, 6, 2], nothing], [nothing] * 2, [nothing] * 2]
    assert (block.posed, block.problems) == (2, [])


@pytest.mark.parametrize(
    ("keypoints", "kind"),
    [
        ([1, 2, 2, 3], "columns"),
        ([1, 2, 2], "columns"),
        (5, "columns"),
        ([1, 2, "x"] * 2, "bad-number"),
        ([None] * 6, "bad-number"),
    ],
)
def test_keypoints_of_another_number_are_left_out_and_reported(keypoints: Any, kind: str) -> None:
    """The object stays, none of its keypoints labelled."""
    block = parse([note(6, keypoints=keypoints)], rule((2, 2)))
    assert told(block) == [(6, kind, "changed")]
    assert block.rows.keypoints.tolist() == [[[0, 0, 0]] * 2]
    assert block.posed == 0


def test_keypoints_of_a_class_that_has_none_are_reported() -> None:
    """Nothing is lost silently."""
    assert told(parse([note(6, keypoints=[1, 2, 2])], rule())) == [(6, "columns", "changed")]


@pytest.mark.parametrize("item", [None, 5, "x", [1, 2]])
def test_what_is_no_object_is_dropped_and_reported(item: Any) -> None:
    """An annotation must be an object."""
    block = parse([item, note(2)], rule())
    assert told(block) == [(None, "columns", "dropped")]
    assert block.rows.where.tolist() == [2]


SCALAR = st.none() | st.booleans() | st.integers() | st.integers(2**63, 2**70) | st.floats() | st.text(max_size=3)
VALUE = st.recursive(
    SCALAR | st.sampled_from([1, 2, "1"]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from(["size", "counts", "x"]), inner, max_size=2),
    max_leaves=10,
)
KEYS = ("id", "image_id", "category_id", "bbox", "segmentation", "iscrowd", "area", "keypoints")
ODD = st.dictionaries(st.sampled_from(KEYS), VALUE).map(lambda changed: note() | changed)


@given(st.lists(ODD | VALUE, max_size=6), st.booleans())
def test_whatever_json_holds_becomes_a_row_or_is_reported_as_dropped(items: list[Any], single_cls: bool) -> None:
    """rows + dropped == annotations, and the rows pass the checks of their own type."""
    block = parse(items, rule((1, 0), single_cls))
    dropped = sum(1 for p in block.problems if p.action == "dropped")
    assert len(block.rows) + dropped == len(items)
    assert np.isin(block.image, [10, 20]).all()
    assert np.isin(block.rows.cls, [0, 1]).all()
    assert all((r is not None) == (k == MASK) for r, k in zip(block.rows.rle, block.rows.kind, strict=True))
    assert (np.diff(block.rows.part_offsets)[block.rows.kind != POLYGON] == 0).all()
    assert (np.diff(block.rows.point_offsets) >= 3).all()


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 99)), max_size=8), st.lists(st.integers(-7, 7), max_size=8))
def test_ids_are_found_as_in_a_dictionary_where_the_first_counts(pairs: list[tuple[int, int]], wanted: list[int]) -> None:
    """IdTable.find equals a dictionary filled from the back."""
    table = IdTable.of([a for a, _ in pairs], [b for _, b in pairs])
    assert table.find(wanted) == [dict(reversed(pairs)).get(value, -1) for value in wanted]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((value, 7) for value in (7, 7.0, "7", "7.0")),
        ("-7", -7),
        (10**30, 10**30),
        *((value, None) for value in ("7e1", 7.5, "x", True, None, float("inf"), float("nan"), "nan", "9" * 30, [7])),
    ],
)
def test_a_whole_number_is_recognised_in_its_plain_forms(value: Any, number: int | None) -> None:
    """Integers, integral floats, and short decimal texts."""
    assert whole(value) == number
