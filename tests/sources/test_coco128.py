"""The same photos, published three times, as YOLO boxes, YOLO outlines with COCO ids, and COCO instances: they must agree."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fastdata.images import probe_size
from fastdata.labels import CROWD
from fastdata.settle import settle
from fastdata.sources.detect import read
from fastdata.sources.scan import Scan, SourceOptions

Found = dict[str, list[tuple[str, np.ndarray, bool]]]


def objects(scan: Scan) -> Found:
    """Class name, box in pixels and crowd flag of every object, by the name of its picture."""
    out: Found = {}
    for i in range(len(scan)):
        size_hw = probe_size(Path(scan.paths[i]).read_bytes())
        assert size_hw is not None
        found, _ = settle(scan.rows(i), size_hw, key=scan.keys[i])
        rows = zip(found.cls, found.xyxy_px, found.flags, strict=True)
        out[os.path.basename(scan.paths[i])] = [(scan.names[c], box, bool(flags & CROWD)) for c, box, flags in rows]
    return out


@pytest.fixture(scope="module")
def sets(shared: Path) -> tuple[Found, Found, Found]:
    root = shared / "data/coco128"
    images = root / "lightly/images"
    return (
        objects(read(root / "developer0hye/annotations/instances_train2017.json", SourceOptions(images=images / "train2017"))),
        objects(read(root / "lightly/object_detection/config.yaml", SourceOptions(images=images, splits=("train",)))),
        objects(read(root / "lightly/instance_segmentation/config.yaml", SourceOptions(images=images, splits=("train",)))),
    )


def test_every_yolo_box_is_an_instance_that_is_no_crowd(sets: tuple[Found, Found, Found]) -> None:
    """929 and 929, the same class by name and the same box to a thousandth of a pixel, in the same order."""
    instances, boxes, _ = sets
    count = 0
    for picture, rows in boxes.items():
        wanted = [(name, box) for name, box, crowd in instances[picture] if not crowd]
        assert [name for name, _, _ in rows] == [name for name, _ in wanted]
        for (_, box, _), (_, want) in zip(rows, wanted, strict=True):
            assert np.abs(box - want).max() < 1e-3
        count += len(rows)
    assert count == 929


def test_every_yolo_outline_lies_on_an_instance_of_its_class(sets: tuple[Found, Found, Found]) -> None:
    """746 outlines under COCO's own ids: each finds its object, 95 of 100 to within 3 px (they were drawn anew, on pixels)."""
    instances, _, outlines = sets
    distances = []
    for picture, rows in outlines.items():
        for name, box, _ in rows:
            near = [float(np.abs(box - other).max()) for other_name, other, _ in instances[picture] if other_name == name]
            assert near, (picture, name)
            distances.append(min(near))
    assert len(distances) == 746
    assert np.percentile(distances, 50) < 1.5
    assert np.percentile(distances, 95) < 3.01
