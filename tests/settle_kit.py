"""Label rows of plain values, and what they settle to."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fastdata.labels import BOX, OBB, POLYGON, Instances, Rows
from fastdata.masks import mask_to_rle
from fastdata.settle import settle

HW = (50, 100)
"""Most tests use a picture 100 wide and 50 high, so that an exchange of the two shows."""


def rows_of(
    *rows: dict[str, Any], unit: str = "px", place: str = "line", declared_hw: tuple[int, int] | None = None, k: int = 0
) -> Rows:
    """Make Rows of plain values: ``box`` (corners or None), ``rings``, ``kind``, ``keypoints``, ``rle``, ``where``, ...

    The kind is BOX without rings and POLYGON with rings, unless a row says otherwise.
    """
    n = len(rows)
    rings = [row.get("rings", []) for row in rows]
    flat = [np.array(ring, np.float64).reshape(-1, 2) for parts in rings for ring in parts]
    boxes = [row.get("box") for row in rows]
    keypoints = np.array([row.get("keypoints", np.zeros((k, 3))) for row in rows], np.float64)
    return Rows(
        unit=unit,  # type: ignore[arg-type]
        file="labels/x.txt",
        place=place,  # type: ignore[arg-type]
        cls=np.array([row.get("cls", 0) for row in rows], np.int32),
        xyxy=np.array([[math.nan] * 4 if box is None else box for box in boxes], np.float64).reshape(n, 4),
        has_box=np.array([box is not None for box in boxes], np.bool_),
        kind=np.array([row.get("kind", POLYGON if row.get("rings") else BOX) for row in rows], np.uint8),
        flags=np.array([row.get("flags", 0) for row in rows], np.uint8),
        where=np.array([row.get("where", i + 1) for i, row in enumerate(rows)], np.int64),
        area=np.array([row.get("area", math.nan) for row in rows], np.float64),
        part_offsets=np.concatenate([[0], np.cumsum([len(parts) for parts in rings])]).astype(np.int64),
        point_offsets=np.concatenate([[0], np.cumsum([len(ring) for ring in flat])]).astype(np.int64),
        points=np.concatenate([*flat, np.zeros((0, 2))]),
        keypoints=keypoints.reshape(n, keypoints.shape[1] if n else k, 3),
        rle=[row.get("rle") for row in rows],
        declared_hw=declared_hw,
    )


def one(row: dict[str, Any], size_hw: tuple[int, int] = HW, **more: Any) -> tuple[Instances, list[tuple[str, str]]]:
    """Settle one row: the instances, and (kind, action) of the problems."""
    instances, problems = settle(rows_of(row, **more), size_hw, key="images/x.png")
    return instances, [(p.kind, p.action) for p in problems]


def rings_of(instances: Instances, i: int = 0) -> list[list[list[float]]]:
    return [ring.tolist() for ring in instances.parts(i)]


def rle(mask: np.ndarray) -> bytes:
    return json.dumps(mask_to_rle(mask)).encode()


BROKEN = [
    (b"{}", "bad-number"),
    (b"[]", "bad-number"),
    (b"not json", "bad-number"),
    (b'{"size": [50, 100]}', "bad-number"),
    (b'{"size": [50, 100], "counts": [4, 5]}', "bad-number"),
    (b'{"size": [50, 100], "counts": "\xc3\xa4"}', "bad-number"),
    (b'{"size": [50.5, 100], "counts": [5000]}', "bad-number"),
    (b'{"size": [1e999, 100], "counts": [5000]}', "bad-number"),
    (b'{"size": ["50", 100], "counts": [5000]}', "bad-number"),
    (b'{"size": [50], "counts": [5000]}', "bad-number"),
    (b'{"size": [100, 50], "counts": [5000]}', "size-mismatch"),
    (b'{"size": [99999999, 99999999], "counts": [5000]}', "size-mismatch"),
]


def check_invariant(instances: Instances, size_hw: tuple[int, int]) -> None:
    """What :class:`fastdata.labels.Instances` promises."""
    h, w = size_hw
    n, box = len(instances), instances.xyxy_px
    assert [a.dtype for a in (instances.cls, box, instances.kind, instances.flags, instances.original_id)] == [
        np.int32, np.float32, np.uint8, np.uint8, np.int64,
    ]  # fmt: skip
    assert instances.points_px.dtype == instances.keypoints_px.dtype == instances.area_px.dtype == np.float32
    assert instances.part_offsets.dtype == instances.point_offsets.dtype == np.int64
    assert box.shape == (n, 4)
    assert all(len(a) == n for a in (instances.kind, instances.flags, instances.original_id, instances.area_px))
    assert np.isfinite(box).all()
    assert (box[:, :2] >= 0).all()
    assert (box[:, :2] < box[:, 2:]).all()
    assert (box[:, 2:] <= np.array([w, h], np.float32)).all()
    assert ((instances.area_px >= 0) & np.isfinite(instances.area_px) | np.isnan(instances.area_px)).all()
    assert len(instances.part_offsets) == n + 1
    assert len(instances.point_offsets) == instances.part_offsets[-1] + 1
    assert len(instances.points_px) == instances.point_offsets[-1]
    assert instances.part_offsets[0] == instances.point_offsets[0] == 0
    assert (np.diff(instances.part_offsets) >= 0).all()
    assert (np.diff(instances.point_offsets) >= 3).all()
    assert np.isfinite(instances.points_px).all()
    for i in range(n):
        parts = instances.parts(i)
        kind = instances.kind[i]
        assert (len(parts) > 0) == (kind != BOX)
        for part in parts:
            assert kind == OBB or ((part >= 0).all() and (part <= np.array([w, h], np.float32)).all())
    keypoints = instances.keypoints_px
    assert len(keypoints) == n
    assert np.isfinite(keypoints).all()
    assert np.isin(keypoints[..., 2], [0, 1, 2]).all()
    assert (keypoints[keypoints[..., 2] == 0] == 0).all()
    assert (keypoints[..., :2] >= 0).all()
    assert (keypoints[..., :2] <= np.array([w, h], np.float32)).all()
