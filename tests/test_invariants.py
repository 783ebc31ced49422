"""Every rule of a catalog: a catalog that keeps it passes, one that breaks it is told so, with the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_kit import Thing, instances, square

from fastdata.catalog import COLUMNS, Catalog, CatalogHead, Counts, Keypoints
from fastdata.invariants import MAX_PLACES, Fault, check_catalog, check_counts, check_keypoints
from fastdata.labels import MASK, OBB

Columns = dict[str, npt.NDArray[Any]]

KEYPOINTS = Keypoints(2, ("left", "right"), (1, 0), ((0, 1),))
HEAD = CatalogHead(("cat", "dog"), {"train": (0, 2), "val": (2, 3)}, KEYPOINTS)


def sound() -> tuple[CatalogHead, Columns]:
    """A catalog of three pictures of 40 x 30 pixels that keeps every rule, up to its limits."""
    things = [
        Thing(0, (0, 0, 40, 30), keypoints=[[0, 0, 2], [40, 30, 1]]),
        Thing(1, parts=[square(0, 0, 40, 30), square(1, 1, 2, 2)], area=0.0),
        Thing(1, (0, 5, 12, 30), [[[-9, 5], [12, 5], [12, 99], [-9, 99]]], OBB),
        Thing(0, parts=[square(4, 4, 9, 9), square(5, 5, 6, 6)], kind=MASK, flags=7),
    ]
    labels = instances(things, 2)
    keys = [b"a.jpg", b"b/\xff.jpg", b"a.jpg"]
    columns: Columns = {
        "rec_file": np.zeros(2, np.uint16),
        "rec_offset": np.array([0, 3600]),
        "rec_nbytes": np.array([3600, 3600]),
        "rec_crc": np.zeros(2, np.uint32),
        "rec_hw": np.array([[30, 40], [30, 40]], np.int32),
        "rec_channels": np.array([3, 1], np.uint8),
        "rec_encoding": np.array([0, 2], np.uint8),
        "entry_record": np.array([0, 1, 1], np.uint32),
        "entry_rect": np.array([[0, 0, 40, 30]] * 3, np.int32),
        "entry_original_hw": np.array([[30, 40]] * 3, np.int32),
        "entry_image_id": np.full(3, -1),
        "entry_source_nbytes": np.full(3, -1),
        "entry_source_mtime_ns": np.zeros(3, np.int64),
        "key_offsets": np.cumsum([0, *map(len, keys)]),
        "key_bytes": np.frombuffer(b"".join(keys), np.uint8).copy(),
        "inst_offsets": np.array([0, 2, 2, 4]),
        **{name: getattr(labels, name).copy() for name in labels.__dataclass_fields__},
    }
    counts = Counts(records=2, entries=3, instances=4, parts=int(columns["part_offsets"][-1]), points=len(columns["points_px"]))
    return replace(HEAD, counts=counts), columns


def faults(head: CatalogHead, columns: Columns, damaged: frozenset[str] = frozenset()) -> list[Fault]:
    """What is wrong with a catalog."""
    return list(check_catalog(Catalog.from_columns(head, columns), damaged))


def test_a_sound_catalog_has_no_fault() -> None:
    """Limits are within: edges on the border, oriented corners beyond it, unknown areas, equal keys in two splits."""
    assert faults(*sound()) == []


def put(name: str, at: Any, value: Any) -> Callable[[Columns], None]:
    """Set one element of a column."""

    def change(columns: Columns) -> None:
        columns[name][at] = value

    return change


def key(at: int, text: bytes) -> Callable[[Columns], None]:
    """Set one key."""

    def change(columns: Columns) -> None:
        ends = columns["key_offsets"].tolist()
        keys = [columns["key_bytes"].tobytes()[a:b] for a, b in pairwise(ends)]
        keys[at] = text
        columns["key_offsets"] = np.cumsum([0, *map(len, keys)])
        columns["key_bytes"] = np.frombuffer(b"".join(keys), np.uint8).copy()

    return change


BROKEN: dict[str, tuple[Callable[[Columns], None], str, str]] = {
    "class too large": (put("cls", 2, 2), "a.jpg: object 0", "class must be 0..1, got 2"),
    "class negative": (put("cls", 1, -1), "a.jpg: object 1", "class must be"),
    "box not a number": (put("xyxy_px", (0, 2), np.nan), "a.jpg: object 0", "box must be"),
    "box beyond the right": (put("xyxy_px", (0, 2), 40.01), "a.jpg: object 0", "box must be 0 <= x0 < x1 <= 40"),
    "box beyond the bottom": (put("xyxy_px", (0, 3), 30.01), "a.jpg: object 0", "box must be"),
    "box beyond the left": (put("xyxy_px", (3, 0), -0.01), "a.jpg: object 1", "box must be"),
    "box without a width": (put("xyxy_px", (0, 0), 40), "a.jpg: object 0", "box must be"),
    "box without a height": (put("xyxy_px", (0, 3), 0), "a.jpg: object 0", "box must be"),
    "area negative": (put("area_px", 1, -1), "a.jpg: object 1", "area must be"),
    "area infinite": (put("area_px", 1, np.inf), "a.jpg: object 1", "area must be"),
    "kind unknown": (put("kind", 1, 4), "a.jpg: object 1", "kind must be one of 0..3, got 4"),
    "box with an outline": (put("kind", 1, 0), "a.jpg: object 1", "box must have no parts, got 2"),
    "oriented box of two parts": (put("kind", 1, 2), "a.jpg: object 1", "obb must have one part, got 2"),
    "polygon without a part": (put("kind", 0, 1), "a.jpg: object 0", "polygon must have one part or more, got 0"),
    "part of two points": (put("point_offsets", 1, 2), "a.jpg: object 1", "at least 3 points, an obb 4, got [2, 6]"),
    "oriented box of five corners": (put("point_offsets", 3, 13), "a.jpg: object 0", "an obb 4, got [5]"),
    "point not finite": (put("points_px", (0, 0), np.inf), "a.jpg: object 1", "points of an outline must be finite"),
    "corner not finite": (put("points_px", (8, 0), np.nan), "a.jpg: object 0", "points of an outline must be finite"),
    "point outside": (put("points_px", (5, 1), 30.5), "a.jpg: object 1", "points must lie in the picture, got [2.0, 30.5] in"),
    "point of a mask outside": (put("points_px", (12, 0), -0.5), "a.jpg: object 1", "points must lie in the picture"),
    "keypoint outside": (put("keypoints_px", (0, 1, 0), 40.5), "a.jpg: object 0", "keypoint 1 must be inside"),
    "keypoint not a number": (put("keypoints_px", (0, 0, 1), np.nan), "a.jpg: object 0", "keypoint 0 must be"),
    "keypoint half visible": (put("keypoints_px", (0, 0, 2), 1.5), "a.jpg: object 0", "keypoint 0 must be"),
    "keypoint unlabelled but placed": (put("keypoints_px", (1, 0, 0), 3), "a.jpg: object 1", "keypoint 0 must be"),
    "objects of pictures fall": (put("inst_offsets", 1, 3), "catalog", "inst_offsets must rise from 0 to the 4 objects"),
    "first object is not 0": (put("inst_offsets", 0, 1), "catalog", "inst_offsets must rise"),
    "objects do not end": (put("inst_offsets", 3, 3), "catalog", "inst_offsets must rise from 0 to the 4 objects, got 0..3"),
    "parts fall": (put("part_offsets", 2, 99), "catalog", "part_offsets must rise"),
    "points fall": (put("point_offsets", 2, 99), "catalog", "point_offsets must rise"),
    "keys fall": (put("key_offsets", 1, 99), "catalog", "key_offsets must rise"),
    "key empty": (key(1, b""), "entry 1", "key must not be empty"),
    "key twice in a split": (key(1, b"a.jpg"), "a.jpg", "key must be unique in split train"),
    "record missing": (put("entry_record", 1, 2), "b/\udcff.jpg", "record must be 0..1, got 2"),
    "rectangle outside": (put("entry_rect", (1, 2), 41), "b/\udcff.jpg", "rectangle must lie in its record of 40 x 30"),
    "rectangle empty": (put("entry_rect", (1, 1), 30), "b/\udcff.jpg", "rectangle must lie"),
    "rectangle negative": (put("entry_rect", (1, 0), -1), "b/\udcff.jpg", "rectangle must lie"),
    "original size 0": (put("entry_original_hw", (1, 0), 0), "b/\udcff.jpg", "original size must be at least 1 x 1"),
    "record of no height": (put("rec_hw", (0, 0), 0), "record 0", "must be at least 1 x 1 pixel"),
    "two channels": (put("rec_channels", 0, 2), "record 0", "must have 1 or 3 channels, got 2"),
    "encoding unknown": (put("rec_encoding", 1, 3), "record 1", "must be encoded as raw, jpeg, webp, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_rule_is_named_with_its_place(name: str) -> None:
    """One number is wrong, and a fault says where and what."""
    head, columns = sound()
    change, where, detail = BROKEN[name]
    change(columns)
    found = faults(head, columns)
    assert any(fault.where == where and detail in fault.detail for fault in found), found


@pytest.mark.parametrize(
    ("splits", "detail"),
    [
        ({"train": (0, 2)}, "splits must cover all 3 entries, got 2"),
        ({"train": (0, 2), "val": (1, 3)}, "split val must begin at entry 2"),
        ({"train": (1, 3)}, "split train must begin at entry 0"),
        ({"train": (0, 4), "val": (4, 3)}, "split val must begin at entry 4 and not fall"),
    ],
)
def test_splits_cover_every_entry_once(splits: dict[str, tuple[int, int]], detail: str) -> None:
    """No entry is left out, none is in two splits, and none is made up."""
    head, columns = sound()
    found = faults(replace(head, splits=splits), columns)
    assert any(detail in fault.detail and fault.where == "manifest" for fault in found), found


def test_many_faults_of_one_rule_are_named_up_to_a_limit_and_counted() -> None:
    """A rule broken everywhere does not drown the others."""
    n = 100
    labels = instances([Thing(5, (0, 0, 10, 10))] * (n - 1) + [Thing(0, (0, 0, 50, 10))])
    head, columns = sound()
    columns |= {name: getattr(labels, name) for name in labels.__dataclass_fields__}
    columns |= {"inst_offsets": np.array([0, n, n, n])}
    head = replace(head, keypoints=None, counts=replace(head.counts, instances=n, parts=0, points=0))
    found = faults(head, columns)
    assert sum("class must be" in fault.detail for fault in found) == MAX_PLACES
    assert sum("box must be" in fault.detail for fault in found) == 1
    assert found[-1] == Fault("catalog", "label", f"cls: {n - 1 - MAX_PLACES} more places")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_damaged_column_is_never_touched(name: str) -> None:
    """What needs it is passed over, and the rest is tested as before."""
    head, columns = sound()
    del columns[name]
    assert faults(head, columns, frozenset({name})) == []


NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 5, 255, 2**31 - 1])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(COLUMNS), st.integers(0, 200), NUMBERS), min_size=1, max_size=3))
def test_no_content_of_the_columns_raises(changes: list[tuple[str, int, int]]) -> None:
    """Whatever stands in the columns, the answer is a list of faults; indices that lead nowhere are not followed."""
    head, columns = sound()
    for name, at, value in changes:
        flat = columns[name].reshape(-1)
        flat[at % len(flat)] = np.array([value]).astype(flat.dtype)[0]
    for fault in faults(head, columns):
        assert fault.detail
        assert fault.kind in ("catalog", "label")


@pytest.mark.parametrize(
    ("keypoints", "detail"),
    [
        (Keypoints(0), "at least 1"),
        (Keypoints(2, ("a",)), "names must be 2 or none, got 1"),
        (Keypoints(2, (), (0, 0)), "flip_idx must hold each of 0..1 once, got [0, 0]"),
        (Keypoints(2, (), (), ((0, 1), (1, 2))), "skeleton must join keypoints 0..1, got (1, 2)"),
    ],
)
def test_keypoints_are_described_soundly(keypoints: Keypoints, detail: str) -> None:
    """Names, mirror pairs and joints speak of the K keypoints there are."""
    assert [detail in fault.detail for fault in check_keypoints(keypoints)] == [True]
    assert list(check_keypoints(KEYPOINTS)) == []


def test_the_counts_of_the_conversion_are_compared() -> None:
    """Images, rows and splits as written down at the conversion; a store made otherwise has none."""
    catalog = Catalog.from_columns(*sound())
    good = {"images": {"stored": 3}, "rows": {"kept": 4}, "splits": {"train": 2, "val": 1}}
    assert list(check_counts(catalog, good)) == []
    assert list(check_counts(catalog, {})) == []
    wrong = {"images": {"stored": 4}, "rows": {"kept": 5}, "splits": {"train": 2, "test": 1}}
    assert [fault.detail.rpartition(", got ")[2] for fault in check_counts(catalog, wrong)] == ["4", "5", "1"]
