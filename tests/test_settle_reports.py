"""What settling says about a picture as a whole, and the places and the order of its reports."""

from __future__ import annotations

import math

import pytest
from settle_kit import HW, one, rows_of

from fastdata.settle import settle


def test_no_rows_are_a_background_picture() -> None:
    """Of the right shapes."""
    instances, problems = settle(rows_of(k=3), HW, key="k")
    assert len(instances) == 0
    assert instances.keypoints_px.shape == (0, 3, 3)
    assert problems == []


def test_a_stated_size_that_is_not_the_pictures_is_told_once_and_changes_nothing() -> None:
    """Before the rows, with the image's key; the swapped one gets its hint."""
    rows = rows_of({"box": [10, 5, 30, 25]}, {"box": [1, 1, 1, 1]}, declared_hw=(60, 100))
    instances, problems = settle(rows, HW, key="images/x.png")
    assert instances.xyxy_px.tolist() == [[10, 5, 30, 25]]
    assert [(p.kind, p.action, p.image, p.line) for p in problems] == [
        ("size-mismatch", "noted", "images/x.png", None),
        ("zero-area", "dropped", None, 2),
    ]
    assert "100 x 50 px, the label file says 100 x 60" in problems[0].detail
    assert "EXIF" not in problems[0].detail
    _, (turned,) = settle(rows_of(declared_hw=(100, 50)), HW, key="k")
    assert "EXIF" in turned.detail
    assert settle(rows_of(declared_hw=HW), HW, key="k")[1] == []


@pytest.mark.parametrize("place", ["line", "annotation_id", "object"])
def test_a_report_says_the_place_in_the_formats_own_terms(place: str) -> None:
    """Line, annotation id or object number."""
    _, (problem,) = settle(rows_of({"box": [1, 1, 1, 1], "where": 41}, place=place), HW, key="k")
    assert getattr(problem, place) == 41
    assert [p for p in ("line", "annotation_id", "object") if getattr(problem, p) is not None] == [place]
    assert problem.file == "labels/x.txt"


def test_reports_follow_the_rows_and_not_the_rules() -> None:
    """Keypoints are judged after the boxes and reported with their row, on the short way and on the long one."""
    outside, broken = [[500, 1, 2]], [[1, math.nan, 2]]
    box = {"box": [0, 0, 9, 9]}
    _, problems = settle(rows_of({**box, "keypoints": broken}, {**box, "keypoints": outside}), HW, key="k")
    assert [(p.line, p.kind) for p in problems] == [(1, "not-finite"), (2, "keypoint-outside")]
    rows = rows_of({**box, "keypoints": outside}, {"box": [1, 1, 1, 1], "keypoints": broken}, {**box, "keypoints": broken})
    _, problems = settle(rows, HW, key="k")
    assert [(p.line, p.kind) for p in problems] == [(1, "keypoint-outside"), (2, "zero-area"), (3, "not-finite")]


def test_reports_follow_the_rows_also_when_an_id_occurs_twice() -> None:
    """Annotation ids are arbitrary numbers; two rows with the same one stay apart."""
    box = {"box": [0, 0, 9, 9], "keypoints": [[500, 1, 2]]}
    between = {"box": [1, 1, 1, 1], "where": 6, "keypoints": [[0, 0, 0]]}
    rows = rows_of({**box, "where": 5}, between, {**box, "where": 5}, place="annotation_id")
    _, problems = settle(rows, HW, key="k")
    assert [p.annotation_id for p in problems] == [5, 6, 5]


@pytest.mark.parametrize(
    ("given_px", "kept"), [(12.5, 12.5), (0, 0), (math.inf, None), (-3, None), (1e300, None), (math.nan, None)]
)
def test_a_published_area_that_is_none_counts_as_not_given(given_px: float, kept: float | None) -> None:
    """NaN stands for no area; nothing else that is not a number gets through."""
    for box in ([10, 5, 40, 35], [10, 5, 140, 35]):
        (area,) = one({"box": box, "area": given_px})[0].area_px.tolist()
        assert math.isnan(area) if kept is None else area == kept
