"""Invented datasets: what is on disk says the same as the pictures that were drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import yaml
from pycocotools.coco import COCO

from fastdata.boxes import polygon_area, xyxy_px_to_xywh_norm
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.errors import FastdataError, UsageError
from fastdata.figures import CLASSES, FLIP_IDX, KEYPOINTS
from fastdata.store.read import open_store
from fastdata.synth import Format, Spec, Task, picture, size_of, specify, write_dataset

SIZES_HW = ((64, 96), (80, 60))
IMAGES = 20


def spec_of(folder: Path, format: Format, task: Task) -> Spec:
    """What ``write_dataset(folder, IMAGES, format=, task=, size_hw=SIZES_HW, seed=3)`` writes."""
    return specify(folder, IMAGES, format, task, None, SIZES_HW, None, 3, 0.1)


def written(folder: Path, format: Format, task: Task, **options: Any) -> Path:
    """Write the dataset that :func:`spec_of` describes."""
    return write_dataset(folder, IMAGES, format=format, task=task, size_hw=SIZES_HW, seed=3, **options)


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("task", ["detect", "segment", "pose", "obb"])
def test_yolo_rows_say_what_was_drawn(task: Task, tmp_path: Path) -> None:
    """Read back with nothing but ``split``: classes, and coordinates to a thousandth of a pixel."""
    spec = spec_of(tmp_path / "set", "yolo", task)
    root = written(tmp_path / "set", "yolo", task)
    rows = 0
    for index in range(IMAGES):
        h, w = size_of(spec, index)
        label = root / "labels" / ("train" if index < 16 else "val") / f"{index:06d}.txt"
        table = [[float(cell) for cell in line.split()] for line in label.read_text().splitlines()]
        _, figures = picture(spec, index)
        assert [row[0] for row in table] == [f.cls for f in figures]
        for row, figure in zip(table, figures, strict=True):
            points = {"segment": figure.outline_px, "obb": figure.corners_px}.get(task)
            if points is not None:
                assert np.allclose(np.reshape(row[1:], (-1, 2)) * [w, h], points, atol=1e-3)
            else:
                assert np.allclose(row[1:5], xyxy_px_to_xywh_norm(figure.xyxy_px[None], (h, w))[0], atol=1e-6)
                keypoints = np.reshape(row[5:], (-1, 3)) * [w, h, 1]
                assert np.allclose(keypoints, figure.keypoints_px if task == "pose" else np.zeros((0, 3)), atol=1e-3)
        rows += len(table)
    assert rows > IMAGES


def test_pictures_on_disk_are_the_pictures_that_were_drawn(tmp_path: Path) -> None:
    """They have their size, and the pixels to within what JPEG loses."""
    spec = spec_of(tmp_path / "set", "yolo", "segment")
    root = written(tmp_path / "set", "yolo", "segment")
    assert {size_of(spec, index) for index in range(IMAGES)} == set(SIZES_HW)
    for index in range(IMAGES):
        rgb, _ = picture(spec, index)
        data = (root / "images" / ("train" if index < 16 else "val") / f"{index:06d}.jpg").read_bytes()
        decoded = simplejpeg.decode_jpeg(data)
        assert decoded.shape == rgb.shape
        assert np.abs(decoded.astype(int) - rgb).mean() < 12


@pytest.mark.parametrize("task", ["segment", "pose"])
def test_data_yaml_describes_the_set(task: Task, tmp_path: Path) -> None:
    """Splits are folders beside the file, names are numbered, keypoints have their shape and mirror table."""
    root = written(tmp_path / "set", "yolo", task)
    content = yaml.safe_load((root / "data.yaml").read_text())
    assert [len(list((root / content[split]).iterdir())) for split in ("train", "val")] == [16, 4]
    assert content["names"] == dict(enumerate(CLASSES if task == "segment" else ("star", "arrow")))
    assert content.get("kpt_shape") == ([len(KEYPOINTS), 3] if task == "pose" else None)
    assert content.get("flip_idx") == (list(FLIP_IDX) if task == "pose" else None)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detect", "segment", "pose", "obb"])
def test_the_trainer_finds_nothing_to_complain_about(task: Task, tmp_path: Path) -> None:
    """Ultralytics' own check of a picture and its label file accepts all of them and counts the same objects."""
    from ultralytics.data.utils import check_det_dataset, verify_image_label

    root = written(tmp_path / "set", "yolo", task)
    data = check_det_dataset(str(root / "data.yaml"), autodownload=False)
    assert data["nc"] == (2 if task == "pose" else len(CLASSES))
    spec = spec_of(root, "yolo", task)
    keypoints = (len(KEYPOINTS), 3) if task == "pose" else (0, 0)
    for index in range(IMAGES):
        split = "train" if index < 16 else "val"
        name = root / "images" / split / f"{index:06d}.jpg"
        label = root / "labels" / split / f"{index:06d}.txt"
        found = verify_image_label((str(name), str(label), "", task == "pose", data["nc"], *keypoints, False))
        path, rows, shape, _, _, missing, _, empty, corrupt, message = found
        figures = picture(spec, index)[1]
        assert (path, shape, missing, corrupt, message) == (str(name), size_of(spec, index), 0, 0, "")
        assert (len(rows), empty) == (len(figures), not figures)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")  # pycocotools
@pytest.mark.parametrize("task", ["detect", "segment", "pose"])
def test_coco_says_what_was_drawn(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read back with pycocotools: pictures, boxes, areas, filled outlines, keypoints; ids are unique over the splits."""
    spec = spec_of(tmp_path / "set", "coco", task)
    root = written(tmp_path / "set", "coco", task)
    seen: set[int] = set()
    for split, indices in (("train", range(16)), ("val", range(16, IMAGES))):
        coco = COCO(root / "annotations" / f"instances_{split}.json")
        assert [c["name"] for c in coco.loadCats(coco.getCatIds())] == list(spec.classes)
        assert coco.getImgIds() == [index + 1 for index in indices]
        for index in indices:
            image = coco.loadImgs(index + 1)[0]
            assert (image["height"], image["width"]) == size_of(spec, index)
            assert (root / "images" / split / image["file_name"]).exists()
            annotations = coco.loadAnns(coco.getAnnIds(index + 1))
            _, figures = picture(spec, index)
            assert [a["category_id"] - 1 for a in annotations] == [f.cls for f in figures]
            for annotation, figure in zip(annotations, figures, strict=True):
                x, y, w, h = annotation["bbox"]
                assert np.allclose([x, y, x + w, y + h], figure.xyxy_px, atol=2e-3)
                assert annotation["area"] == pytest.approx(figure.area_px, abs=1e-3)
                assert annotation["iscrowd"] == 0
                if task != "detect":
                    length = np.hypot(*(figure.outline_px - np.roll(figure.outline_px, 1, axis=0)).T).sum()
                    assert abs(int(coco.annToMask(annotation).sum()) - figure.area_px) < 0.5 * length
                else:
                    assert "segmentation" not in annotation
                if task == "pose":
                    assert np.allclose(np.reshape(annotation["keypoints"], (-1, 3)), figure.keypoints_px, atol=1e-3)
                    assert annotation["num_keypoints"] == (figure.keypoints_px[:, 2] > 0).sum()
            seen |= {a["id"] for a in annotations}
    assert len(seen) == sum(len(picture(spec, index)[1]) for index in range(IMAGES))
    assert sorted(p.name for p in root.iterdir()) == ["annotations", "images"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("format", "task"),
    [
        *[("yolo", "detect"), ("yolo", "segment"), ("yolo", "pose"), ("yolo", "obb")],
        *[("coco", "detect"), ("coco", "segment"), ("coco", "pose")],
    ],
)
def test_a_store_of_it_holds_what_was_drawn(format: Format, task: Task, tmp_path: Path) -> None:
    """Converted and read back: no problem is reported, and classes, boxes, outlines and keypoints are those of the figures."""
    spec = spec_of(tmp_path / "set", format, task)
    root = written(tmp_path / "set", format, task)
    done = convert(root, tmp_path / "store", ConvertOptions(imgsz=None, codec="raw", workers=1))
    assert (done.tally.stored, done.tally.problems, done.tally.skipped) == (IMAGES, {}, {})
    with open_store(tmp_path / "store") as store:
        assert list(store.names) == list(spec.classes)
        for i in range(len(store)):
            index = int(Path(store.key(i)).stem)
            _, figures = picture(spec, index)
            found = store.instances(i)
            assert found.cls.tolist() == [f.cls for f in figures]
            for k, figure in enumerate(figures):
                if task == "obb":
                    assert np.allclose(found.parts(k)[0], figure.corners_px, atol=0.01)
                    continue
                assert np.allclose(found.xyxy_px[k], figure.xyxy_px, atol=0.01)
                if task == "segment":
                    (ring,) = found.parts(k)
                    assert polygon_area(ring.astype(np.float64)) == pytest.approx(figure.area_px, abs=1)
                if task == "pose":
                    assert np.allclose(found.keypoints_px[k], figure.keypoints_px, atol=0.01)


@pytest.mark.parametrize("format", ["yolo", "coco"])
def test_the_files_do_not_depend_on_the_number_of_processes(format: Format, tmp_path: Path) -> None:
    """One process in this interpreter and three fresh ones write the same bytes."""
    one = written(tmp_path / "one", format, "segment", workers=1)
    three = written(tmp_path / "three", format, "segment", workers=3)
    assert files(one) == files(three)
    assert len(files(one)) == {"yolo": 2 * IMAGES + 1, "coco": IMAGES + 2}[format]


def test_pictures_do_not_depend_on_their_number_or_splits(tmp_path: Path) -> None:
    """A larger set begins with the smaller one."""
    small = write_dataset(tmp_path / "small", 5, size_hw=SIZES_HW, splits={"all": 1})
    large = write_dataset(tmp_path / "large", 9, size_hw=SIZES_HW, splits={"a": 1, "b": 2})
    for index in range(5):
        name = f"{index:06d}.jpg"
        (found,) = large.rglob(name)
        assert found.read_bytes() == (small / "images/all" / name).read_bytes()


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        ({"train": 0.8, "val": 0.2}, [8, 2]),
        ({"train": 8, "val": 1, "test": 1}, [8, 1, 1]),
        ({"train": 1, "val": 0}, [10, 0]),
        ({"val": 0, "train": 3}, [0, 10]),
        ({"a": 1, "b": 1, "c": 1}, [3, 4, 3]),
    ],
)
def test_pictures_are_dealt_by_share(shares: dict[str, float], counts: list[int], tmp_path: Path) -> None:
    """Shares count relative to their sum; every picture goes to exactly one split; an empty split has its folder."""
    root = write_dataset(tmp_path / "set", 10, size_hw=(32, 32), splits=shares)
    assert [len(list((root / "images" / split).iterdir())) for split in shares] == counts


def test_an_empty_set_is_a_set(tmp_path: Path) -> None:
    """No pictures: the files that describe them are there all the same."""
    root = write_dataset(tmp_path / "coco", 0, format="coco")
    assert json.loads((root / "annotations/instances_val.json").read_text())["images"] == []
    assert (write_dataset(tmp_path / "yolo", 0) / "data.yaml").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """Nothing is mixed with what is there; an empty folder is fine."""
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="folder must be empty or not exist, got "):
        write_dataset(tmp_path, 1, size_hw=(32, 32))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    write_dataset(tmp_path / "empty", 1, size_hw=(32, 32))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"format": "voc"}, "format must be yolo or coco, got voc"),
        ({"task": "classify"}, "task must be .*, got classify in yolo"),
        ({"task": "obb", "format": "coco"}, "task must be .*, got obb in coco"),
        ({"images": -1}, "images must be 0 or more, got -1"),
        ({"splits": {"train": 0}}, "splits must be shares"),
        ({"splits": {"train": 2, "val": -1}}, "splits must be shares"),
        ({"splits": {"../x": 1}}, "splits must have names"),
        ({"splits": {"..": 1}}, "splits must have names"),
        ({"classes": ["cat"]}, "classes must be different names"),
        ({"classes": ["ring"], "task": "pose"}, "classes must have keypoints in a pose set: star, arrow, got ring"),
        ({"size_hw": (16, 64)}, "size_hw must be at least 32 x 32, got 16 x 64"),
        ({"background_share": -0.1}, "background_share must be from 0 to 1"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    """The message names the rule and the value, and no folder is made."""
    with pytest.raises(UsageError, match=says):
        write_dataset(tmp_path / "set", **{"images": 1, **arguments})
    assert not (tmp_path / "set").exists()


def test_a_process_that_fails_is_an_error_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code and what it said come with it."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FastdataError, match="ended with code 1"):
        write_dataset(tmp_path / "set", 4, size_hw=(32, 32), workers=2)
