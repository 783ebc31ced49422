"""Rows and instances: shapes are checked, outlines are found by their offsets, labels travel between processes whole."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.labels import POLYGON, Instances, Rows


def instances_of(ring_sizes: list[list[int]], keypoints: int) -> Instances:
    """Make instances with this many points in each part of each; every number differs from its neighbours."""
    n, sizes = len(ring_sizes), [size for parts in ring_sizes for size in parts]
    return Instances(
        cls=np.arange(n, dtype=np.int32) + 7,
        xyxy_px=np.arange(4 * n, dtype=np.float32).reshape(n, 4) + 0.5,
        kind=np.full(n, POLYGON, np.uint8),
        flags=np.arange(n, dtype=np.uint8) % 8,
        original_id=np.arange(n, dtype=np.int64) - 2**62,
        area_px=np.where(np.arange(n) % 2, np.nan, np.arange(n)).astype(np.float32),
        part_offsets=np.cumsum([0, *map(len, ring_sizes)]).astype(np.int64),
        point_offsets=np.cumsum([0, *sizes]).astype(np.int64),
        points_px=np.arange(2.0 * sum(sizes), dtype=np.float32).reshape(-1, 2),
        keypoints_px=np.arange(3.0 * n * keypoints, dtype=np.float32).reshape(n, keypoints, 3),
    )


@given(st.lists(st.lists(st.integers(3, 9), max_size=3), max_size=5), st.integers(0, 4))
def test_instances_come_out_of_a_pickle_as_they_went_in(ring_sizes: list[list[int]], keypoints: int) -> None:
    """Values, types and shapes, NaN included; every array lies aligned."""
    before = instances_of(ring_sizes, keypoints)
    after = pickle.loads(pickle.dumps(before))
    for field in fields(Instances):
        a, b = getattr(before, field.name), getattr(after, field.name)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), field.name
        assert b.flags.aligned
    again = pickle.loads(pickle.dumps(after))
    assert all(getattr(again, f.name).tobytes() == getattr(before, f.name).tobytes() for f in fields(Instances))


def test_another_process_can_read_the_pickle() -> None:
    """The functions that it names can be found by a fresh interpreter."""
    said = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; i = pickle.load(sys.stdin.buffer); print(len(i), i.parts(1)[0].tolist())"],
        input=pickle.dumps(instances_of([[3], [3, 4]], 2)), capture_output=True, check=True,
    )  # fmt: skip
    assert said.stdout == b"2 [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]\n"


def test_parts_are_the_rings_of_one_instance() -> None:
    """Instance i owns parts part_offsets[i] to part_offsets[i + 1], and none is a valid number of them."""
    instances = instances_of([[3], [], [4, 3]], 0)
    assert [[len(ring) for ring in instances.parts(i)] for i in range(3)] == [[3], [], [4, 3]]
    assert instances.parts(2)[1].tolist() == instances.points_px[7:10].tolist()


@pytest.mark.parametrize("keypoints", [0, 3])
def test_a_background_picture_has_arrays_of_the_right_shapes(keypoints: int) -> None:
    """So nobody needs a special case for it."""
    empty = Instances.empty(keypoints)
    assert len(empty) == 0
    assert empty.xyxy_px.shape == (0, 4)
    assert empty.keypoints_px.shape == (0, keypoints, 3)
    assert (len(empty.part_offsets), len(empty.point_offsets)) == (1, 1)


GOOD: dict[str, Any] = {
    "unit": "px", "file": "a.txt", "place": "line", "cls": np.zeros(2, np.int32), "xyxy": np.zeros((2, 4)),
    "has_box": np.ones(2, np.bool_), "kind": np.zeros(2, np.uint8), "flags": np.zeros(2, np.uint8), "where": np.arange(2),
    "area": np.zeros(2), "part_offsets": np.array([0, 0, 1]), "point_offsets": np.array([0, 3]), "points": np.zeros((3, 2)),
    "keypoints": np.zeros((2, 0, 3)), "rle": [None, None],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xyxy", np.zeros((2, 3))),
        ("xyxy", np.zeros(8)),
        ("has_box", np.ones(1, np.bool_)),
        ("kind", np.zeros(3, np.uint8)),
        ("flags", np.zeros(0, np.uint8)),
        ("where", np.arange(3)),
        ("area", np.zeros((2, 1))),
        ("part_offsets", np.array([0, 1])),
        ("point_offsets", np.array([0, 3, 6])),
        ("points", np.zeros((2, 2))),
        ("keypoints", np.zeros((1, 0, 3))),
        ("keypoints", np.zeros((2, 4, 2))),
        ("rle", [None]),
    ],
)
def test_rows_whose_parts_do_not_fit_are_refused_by_name(name: str, value: Any) -> None:
    """Else they would shift everything that comes after them."""
    assert len(Rows(**GOOD)) == 2
    with pytest.raises(ValueError, match=f"{name} must"):
        Rows(**{**GOOD, name: value})
