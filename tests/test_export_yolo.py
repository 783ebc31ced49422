"""YOLO text: what a row can say, how trainers take it, and the count of what it cannot say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_kit import Shot, Thing, blank, covered, exported, instances, square, write

from fastdata.boxes import bounds
from fastdata.catalog import Keypoints
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.export import export
from fastdata.export_yolo import bridge
from fastdata.labels import CROWD, DIFFICULT, MASK, OBB
from fastdata.masks import mask_to_rings, rings_to_mask
from fastdata.store.read import open_store


def rows(out: Path) -> list[list[float]]:
    """The rows of the one label file."""
    (file,) = (out / "labels").rglob("*.txt")
    return [[float(x) for x in line.split()] for line in file.read_text().splitlines()]


def test_yolo_has_no_crowds(tmp_path: Path) -> None:
    """They are left out and counted; the picture stays."""
    counts, out = exported(tmp_path, "yolo", Thing(0, (1, 1, 9, 9), flags=CROWD), Thing(1, (2, 2, 8, 8), flags=DIFFICULT))
    assert counts == {"crowd": 1, "flags": 1}
    assert rows(out) == [[1, 0.125, 0.125, 0.15, 0.15]]


def test_no_file_mixes_boxes_and_outlines(tmp_path: Path) -> None:
    """Trainers drop such files: a box becomes four corners as soon as the store holds an outline."""
    counts, out = exported(tmp_path, "yolo", Thing(0, (4, 8, 12, 20)), Thing(1, parts=[[[0, 0], [10, 0], [0, 10]]]))
    assert counts == {"boxes_as_outlines": 1}
    assert [len(row) for row in rows(out)] == [9, 7]
    assert rows(out)[0][1:] == [0.1, 0.2, 0.3, 0.2, 0.3, 0.5, 0.1, 0.5]


def test_parts_and_holes_are_joined_by_bridges_of_no_width(tmp_path: Path) -> None:
    """One ring covers, even-odd, what the parts covered; overlapping parts are traced, since even-odd would cut them out."""
    ring_mask = [square(20, 20, 36, 36), square(24, 24, 30, 30)]
    needle = [[1, 12], [2, 12], [1.02, 17.3]]
    own = [
        Thing(0, parts=[square(0, 0, 8, 8), square(12, 2, 18, 9)]),
        Thing(1, parts=ring_mask, kind=MASK),
        Thing(0, parts=[square(0, 20, 10, 30), square(5, 25, 15, 35)]),
        Thing(0, parts=[square(0.3, 11, 9.4, 14), needle]),
    ]
    counts, out = exported(tmp_path, "yolo", *own)
    assert counts == {"bridged": 4, "traced": 2}
    labels = instances(own)
    for i, row in enumerate(rows(out)):
        ring = np.array(row[1:]).reshape(-1, 2) * 40
        assert np.array_equal(rings_to_mask([ring], (40, 40)), covered(labels, i, (40, 40))), i
        assert np.abs(bounds(ring) - labels.xyxy_px[i]).max() < 1e-6


@given(st.integers(1, 2**49 - 1))
def test_a_bridged_ring_covers_what_the_rings_covered(bits: int) -> None:
    """For any mask of 7 x 7 pixels: islands, holes, islands in holes, corners that touch."""
    mask = np.array([bits >> k & 1 for k in range(49)], np.uint8).reshape(7, 7)
    rings = mask_to_rings(mask)
    ring = bridge(rings)
    assert np.array_equal(rings_to_mask([ring], (7, 7)), mask)
    assert len(ring) == sum(map(len, rings)) + 2 * (len(rings) - 1)


def test_rows_of_oriented_boxes_are_corners(tmp_path: Path) -> None:
    """An oriented box keeps its corners, also beyond the border; a box becomes corners, an outline the rectangle around it."""
    quad = [[20, -4], [30, 6], [20, 16], [10, 6]]
    own = [
        Thing(0, (10, 0, 30, 16), [quad], OBB),
        Thing(1, (4, 4, 8, 8)),
        Thing(1, parts=[[[0, 0], [8, 0], [8, 4], [4, 4], [0, 4]]]),
    ]
    counts, out = exported(tmp_path, "yolo", *own, task="obb")
    assert counts == {"outlines_as_rectangles": 1}
    got = [np.array(row[1:]).reshape(-1, 2) * 40 for row in rows(out)]
    assert np.allclose(got[0], quad)
    assert np.allclose(got[1], square(4, 4, 8, 8))
    assert sorted(map(tuple, got[2].round(6).tolist())) == [(0, 0), (0, 4), (8, 0), (8, 4)]


def test_two_keypoint_columns_are_written_only_where_they_say_all(tmp_path: Path) -> None:
    """Two columns are read as visibility 1, so a point that is visible or not labelled needs the third."""
    for name, seen, columns in (("all", 1, 5 + 2 * 2), ("some", 0, 5 + 2 * 3), ("more", 2, 5 + 2 * 3)):
        points = [[5, 6, 1], [7, 8, seen] if seen else [0, 0, 0]]
        folder = tmp_path / name
        folder.mkdir()
        keypoints = Keypoints(2, dims=2)
        _, out = exported(folder, "yolo", Thing(0, (1, 1, 20, 20), keypoints=points), keypoints=keypoints)
        assert [len(row) for row in rows(out)] == [columns]
        assert f"kpt_shape: [2, {(columns - 5) // 2}]" in (out / "data.yaml").read_text()


def test_the_splits_are_named_as_trainers_look_for_them(tmp_path: Path) -> None:
    """train2017 is train; a split that is not there is said to be missing; odd names of splits and classes survive."""
    shots = [Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5))], split=split) for split in ("train2017", "val", "val2", "a/b")]
    with open_store(write(tmp_path / "s.lmdb", shots, names=("no", "a: b\n# \udcff"))) as store:
        done = export(store, tmp_path / "out", format="yolo")
    import yaml

    said = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert {key: said[key] for key in ("train", "val", "val2", "a/b")} == {
        "train": "images/train2017", "val": "images/val", "val2": "images/val2", "a/b": "images/a_b",
    }  # fmt: skip
    assert said["names"][0] == "no"
    assert said["nc"] == 2
    assert done.remarks == (
        "split train2017 is called train in data.yaml, as trainers look for it",
        "split val2 is read back by name alone: fastdata convert --split 'val2'",
        "split a/b is read back by name alone: fastdata convert --split 'a/b'",
    )
    assert done.to_json()["notes"] == done.notes
    assert json.dumps(done.to_json())
    with open_store(tmp_path / "s.lmdb", split="a/b") as store:
        remarks = export(store, tmp_path / "one", format="yolo").remarks
    assert "data.yaml has no split val, which most trainers ask for" in remarks


@pytest.mark.slow
def test_the_trainer_takes_what_is_written(shared: Path, tmp_path: Path) -> None:
    """Ultralytics finds the splits and keeps every picture and every row of it, outlines included."""
    pytest.importorskip("ultralytics")
    convert(shared / "data/tinycoco_json/tests/data/tinycoco", tmp_path / "a", ConvertOptions(codec="jpeg", workers=1))
    with open_store(tmp_path / "a") as store:
        done = export(store, tmp_path / "out", format="yolo")
    code = (
        "import sys, json\n"
        "from ultralytics.data.utils import check_det_dataset\n"
        "from ultralytics.data.dataset import YOLODataset\n"
        "data = check_det_dataset(sys.argv[1], autodownload=False)\n"
        "sets = [YOLODataset(img_path=data[s], data=data, task='segment', augment=False) for s in ('train', 'val')]\n"
        "labels = [l for s in sets for l in s.labels]\n"
        "print(json.dumps([len(labels), sum(len(l['cls']) for l in labels), sum(len(l['segments']) for l in labels)]))\n"
    )
    env = os.environ | {"YOLO_CONFIG_DIR": str(tmp_path / "config"), "YOLO_OFFLINE": "true"}
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out/data.yaml")],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [38, done.instances, done.instances]
