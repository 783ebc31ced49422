"""Categories become classes in the order of their ids, and their keypoints say how to mirror and draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coco_kit import document, note, only, read_one, write

from fastdata.errors import DataError
from fastdata.sources.coco import read_coco
from fastdata.sources.coco_categories import mirror_of
from fastdata.sources.scan import Scan, SourceOptions

NAMES = ["nose", "left_eye", "right_eye"]


def with_category(root: Path, **more: Any) -> Scan:
    return read_one(root, document([note()], categories=[{"id": 1, "name": "person", **more}]))


def test_every_category_counts_in_the_order_of_ids(tmp_path: Path) -> None:
    """Whatever supercategory says, unused ones too, names may repeat, ids may be text."""
    listed = [(90, "late"), ("4", "root"), (17, "late"), (0, 5)]
    doc = document([note(category_id=17)], categories=[{"id": i, "name": n, "supercategory": "none"} for i, n in listed])
    scan = read_one(tmp_path, doc)
    assert scan.names == ("5", "root", "late", "late")
    assert scan.category_ids == (0, 4, 17, 90)
    assert scan.rows(0).cls.tolist() == [2]


def test_a_doubled_category_id_is_an_error_or_the_first_counts(tmp_path: Path) -> None:
    """The message names both."""
    doc = document([note()], categories=[{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}])
    words = "category id must be unique, got 1 for 'cat' and for 'dog'"
    with pytest.raises(DataError, match=words):
        read_one(tmp_path, doc)
    scan = read_one(tmp_path, doc, on_error="skip")
    assert scan.names == ("cat",)
    assert (only(scan.problems).kind, words in only(scan.problems).detail) == ("duplicate", True)


@pytest.mark.parametrize(
    ("categories", "words"),
    [
        ([], "must list at least one category"),
        ([{"id": 1}], "category 1 must have a name, got None"),
        ([{"id": 1, "name": ""}], "category 1 must have a name"),
        ([{"name": "cat"}], "a category's id must be a whole number, got None"),
        ([{"id": 1.5, "name": "cat"}], "a category's id must be a whole number, got 1.5"),
        ([{"id": 2**64, "name": "cat"}], "a category's id must be a whole number"),
        (["cat"], "a category must be an object with id and name, got 'cat'"),
    ],
)
@pytest.mark.parametrize("on_error", ["safe", "skip"])
def test_unusable_categories_are_refused(tmp_path: Path, categories: list[Any], words: str, on_error: str) -> None:
    """Without them no class is known, so there is nothing to go on with."""
    with pytest.raises(DataError) as caught:
        read_one(tmp_path, document([note()], categories=categories), on_error=on_error)
    assert words in str(caught.value)


def test_files_of_one_dataset_share_their_classes(tmp_path: Path) -> None:
    """The union by id; an id with two names is an error that names both."""
    train = document([note(category_id=2)], categories=[{"id": 2, "name": "b"}, {"id": 1, "name": "a"}])
    val = document([note(category_id=3)], categories=[{"id": 3, "name": "c"}, {"id": 1, "name": "a"}])
    write(tmp_path, {"annotations/instances_train.json": train, "annotations/instances_val.json": val, "images/1.jpg": None})
    scan = read_coco(tmp_path, SourceOptions())
    assert (scan.names, scan.category_ids) == (("a", "b", "c"), (1, 2, 3))
    assert [scan.rows(i).cls.tolist() for i in (0, 1)] == [[1], [2]]
    val["categories"][1]["name"] = "A"
    write(tmp_path, {"annotations/instances_val.json": val})
    with pytest.raises(DataError, match="category 1 must have one name in all files, got 'A' here and 'a' in another"):
        read_coco(tmp_path, SourceOptions())


@pytest.mark.parametrize(
    ("names", "partners"),
    [
        (NAMES, (0, 2, 1)),
        (["Left Hand", "RIGHT-foot", "Right Hand", "LEFT-foot"], (2, 3, 0, 1)),
        (["eye_left_left", "eye_right_right"], (1, 0)),
        (["left_eye", "nose"], ()),
        (["nose", "tail"], ()),
        (["left_eye", "right_eye", "left_eye"], ()),
        ([], ()),
    ],
)
def test_the_mirror_follows_from_left_and_right_in_the_names(names: list[str], partners: tuple[int, ...]) -> None:
    """Every side needs its other side; without sides, or with a doubled name, the mirror is unknown."""
    assert mirror_of(tuple(names)) == partners


@pytest.mark.parametrize(
    ("skeleton", "edges"),
    [
        ([[1, 2], [2, 3]], ((0, 1), (1, 2))),
        ([[0, 1], [1, 2]], ((0, 1), (1, 2))),
        ([[1, 4]], ()),
        ([[0, 3]], ()),
        ([[-1, 1]], ()),
        ([[1, 2, 3]], ()),
        ([["a", "b"]], ()),
        ("1-2", ()),
        ([], ()),
        (None, ()),
    ],
)
def test_the_skeleton_counts_from_one_unless_it_holds_zero(tmp_path: Path, skeleton: Any, edges: tuple[Any, ...]) -> None:
    """An edge that joins nothing leaves the whole skeleton out, and the decisions say so."""
    scan = with_category(tmp_path, keypoints=NAMES, skeleton=skeleton)
    assert scan.skeleton == edges
    assert ("skeleton" in scan.decisions) == (skeleton not in ([], None) and (edges == () or skeleton[0][0] == 0))


def test_the_largest_class_names_the_keypoints(tmp_path: Path) -> None:
    """A class with the first few of them mirrors alike; one with others makes the mirror unknown."""
    large = {"id": 1, "name": "person", "keypoints": NAMES, "skeleton": [[1, 2]]}
    for names, partners in ((NAMES[:1], (0, 2, 1)), (["wheel"], ())):
        doc = document([note()], categories=[large, {"id": 2, "name": "bike", "keypoints": names}])
        scan = read_one(tmp_path, doc)
        assert (scan.keypoints, scan.keypoint_names, scan.skeleton) == (3, tuple(NAMES), ((0, 1),))
        assert scan.flip_idx == partners
        assert ("flip_idx" in scan.decisions) == (partners == ())
