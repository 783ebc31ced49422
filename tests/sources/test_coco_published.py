"""The published COCO sets come out as they are counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from fastdata.boxes import xyxy_px_to_xywh_norm
from fastdata.labels import CROWD, MASK, POLYGON
from fastdata.masks import mask_to_rings, rings_to_mask, rle_to_mask
from fastdata.sources.coco import read_coco
from fastdata.sources.files import digest
from fastdata.sources.scan import Scan, SourceOptions

OPEN = SourceOptions()


def all_rows(scan: Scan) -> list[tuple[str, Any]]:
    return [(scan.keys[i], scan.rows(i)) for i in range(len(scan))]


# Published datasets


def test_coco128_is_read_whole(shared: Path) -> None:
    """128 images, 939 annotations, 10 crowds, 82 objects of several parts, 80 classes whose ids have gaps."""
    root = shared / "data/coco128"
    scan = read_coco(root / "developer0hye", SourceOptions(images=root / "lightly/images/train2017", splits=("train",)))
    assert (len(scan), scan.rows_in, scan.rows_dropped, scan.problems) == (128, 939, 0, [])
    assert len(scan.names) == 80
    assert (scan.category_ids[0], scan.category_ids[-1]) == (1, 90)
    assert (scan.names[0], scan.names[-1]) == ("person", "toothbrush")
    assert scan.table is not None
    kind, flags = scan.table.column("kind"), scan.table.column("flags")
    assert ((kind == MASK).sum(), (kind == POLYGON).sum(), (flags & CROWD).sum()) == (10, 929, 10)
    assert sum(int((np.diff(rows.part_offsets) > 1).sum()) for _, rows in all_rows(scan)) == 82
    assert scan.task == "segment"
    assert (scan.nbytes > 0).all()


def test_coco128_boxes_equal_the_yolo_labels_of_the_same_photos(shared: Path) -> None:
    """All 929 boxes that are no crowd: same class, same place to 5e-7 of the picture, in any order within an image."""
    root = shared / "data/coco128"
    scan = read_coco(root / "developer0hye", SourceOptions(images=root / "lightly/images/train2017", splits=("train",)))
    compared = 0
    for key, rows in all_rows(scan):
        label = root / "lightly/object_detection/labels/train2017" / f"{Path(key).stem}.txt"
        plain = rows.flags == 0
        assert rows.declared_hw is not None
        ours = np.column_stack([rows.cls[plain], xyxy_px_to_xywh_norm(rows.xyxy[plain], rows.declared_hw)])
        theirs = np.loadtxt(label, ndmin=2) if label.is_file() else np.zeros((0, 5))
        assert len(ours) == len(theirs)
        for row in ours:
            distance = np.abs(theirs - row).max(axis=1)
            assert distance.min() <= 5e-7 + 1e-12  # six printed digits
            theirs = np.delete(theirs, int(distance.argmin()), axis=0)
        compared += len(ours)
    assert compared == 929


def test_coco128_equals_a_plain_parse_of_its_json(shared: Path) -> None:
    """Ids, classes, boxes, parts, points, areas, crowds and run lengths of every annotation, in the order of the file."""
    root = shared / "data/coco128"
    path = root / "developer0hye/annotations/instances_train2017.json"
    scan = read_coco(path, SourceOptions(images=root / "lightly/images"))
    whole = json.loads(path.read_text())
    ids = sorted(c["id"] for c in whole["categories"])
    assert [os.path.basename(key) for key in scan.keys] == [i["file_name"] for i in whole["images"]]
    assert scan.image_id.tolist() == [i["id"] for i in whole["images"]]
    for published, (_, rows) in zip(whole["images"], all_rows(scan), strict=True):
        mine = [a for a in whole["annotations"] if a["image_id"] == published["id"]]
        assert rows.where.tolist() == [a["id"] for a in mine]
        assert rows.cls.tolist() == [ids.index(a["category_id"]) for a in mine]
        assert rows.xyxy.tolist() == [[x, y, x + w, y + h] for x, y, w, h in (a["bbox"] for a in mine)]
        assert rows.area.tolist() == [a["area"] for a in mine]
        assert rows.flags.tolist() == [a["iscrowd"] for a in mine]
        parts = [p for a in mine if isinstance(a["segmentation"], list) for p in a["segmentation"]]
        assert np.diff(rows.point_offsets).tolist() == [len(p) // 2 for p in parts]
        assert rows.points.reshape(-1).tolist() == [v for p in parts for v in p]
        assert [json.loads(r) for r in rows.rle if r] == [a["segmentation"] for a in mine if a["iscrowd"]]
        assert rows.has_box.all()
        assert rows.declared_hw == (published["height"], published["width"])


def test_every_crowd_of_coco128_decodes_to_the_pixels_of_pycocotools(shared: Path) -> None:
    """Area and bounds of the decoded mask are those that pycocotools computes from the run lengths."""
    root = shared / "data/coco128"
    scan = read_coco(root / "developer0hye", SourceOptions(images=root / "lightly/images/train2017", splits=("train",)))
    seen = 0
    for _, rows in all_rows(scan):
        for rle in map(json.loads, filter(None, rows.rle)):
            packed = coco_mask.frPyObjects(rle, *rle["size"])
            mask = rle_to_mask(rle)
            assert mask.shape == rows.declared_hw
            assert mask.sum() == coco_mask.area(packed)
            y, x = np.nonzero(mask)
            assert coco_mask.toBbox(packed).tolist() == [x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1]
            assert np.array_equal(rings_to_mask(mask_to_rings(mask), mask.shape), mask)
            seen += 1
    assert seen == 10


def test_tinycoco_has_both_splits_in_one_scan(shared: Path) -> None:
    """32 + 6 images below one root, 288 + 136 annotations, 5 crowds, 22 objects of several parts, 2 images without any."""
    scan = read_coco(shared / "data/tinycoco_json/tests/data/tinycoco", OPEN)
    assert scan.splits == ("train", "val")
    assert scan.count_by_split() == {"train": 32, "val": 6}
    assert scan.table is not None
    counts = scan.table.counts()
    assert [int(counts[scan.split == s].sum()) for s in (0, 1)] == [288, 136]
    assert int((counts[scan.split == 0] == 0).sum()) == 2
    assert int((scan.table.column("kind") == MASK).sum()) == 5
    assert sum(int((np.diff(rows.part_offsets) > 1).sum()) for _, rows in all_rows(scan)) == 22
    assert scan.keys[0] == "images/train2017/000000397133.jpg"
    assert os.path.isfile(scan.paths[0])
    assert [f.path for f in scan.label_files] == ["annotations/instances_train2017.json", "annotations/instances_val2017.json"]
    assert scan.label_files[0].digest == digest(scan.root / scan.label_files[0].path)
    assert scan.rows(37).file == "annotations/instances_val2017.json"
    assert scan.problems == []


def test_pose_minicoco_has_keypoints_names_and_a_skeleton(shared: Path) -> None:
    """30 + 30 images, 87 + 65 people of 17 keypoints, of whom 34 + 25 have none labelled; one crowd."""
    scan = read_coco(shared / "data/pose_minicoco/tests/data/pose_minicoco", OPEN)
    assert (scan.task, scan.keypoints, len(scan.skeleton), scan.rows_in) == ("pose", 17, 19, 152)
    assert scan.keypoint_names[:3] == ("nose", "left_eye", "right_eye")
    assert scan.flip_idx == (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
    assert scan.skeleton[0] == (15, 13)
    assert scan.table is not None
    counts = scan.table.counts()
    assert [int(counts[scan.split == s].sum()) for s in (0, 1)] == [87, 65]
    unlabelled = [0, 0]
    for i in range(len(scan)):
        unlabelled[scan.split[i]] += int((scan.rows(i).keypoints[..., 2].max(axis=1) == 0).sum())
    assert unlabelled == [34, 25]
    assert int((scan.table.column("kind") == MASK).sum()) == 1
