"""Validation batches are the trainer's own, value for value, and so is the score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from ultra_kit import TINY, VALIDATORS, DetectionTrainer, DetectionValidator, dataset, settings, store, train
from ultralytics import YOLO
from ultralytics.data.utils import check_det_dataset

from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.export import export
from fastdata.sources.scan import SourceOptions
from fastdata.store.read import open_store
from fastdata.trainers.ultralytics import accelerate, accelerate_validator


def loader(validator: Any, data: Path, task: str, imgsz: int, batch: int, run: Path, **more: Any) -> Any:
    """The loader of a validation by itself, as the validator builds it when it is called."""
    arguments = settings(run, data, imgsz=imgsz, batch=batch, task=task, mode="val", **{"rect": True} | more)
    made = validator(args=arguments)
    made.data = check_det_dataset(str(data), split=made.args.split)
    made.stride, made.names, made.device, made.training = 32, made.data["names"], torch.device("cpu"), False
    return made.get_dataloader(made.data[made.args.split], batch)


def settle_ties(theirs: Any) -> None:
    """Bring their pictures of one aspect into the order of their names, which their sorting leaves to chance."""
    hw = [cv2.imread(file).shape[:2] for file in theirs.im_files]
    order = sorted(range(len(hw)), key=lambda i: (hw[i][0] / hw[i][1], theirs.im_files[i]))
    for name in ("im_files", "labels", "npy_files"):
        setattr(theirs, name, [getattr(theirs, name)[i] for i in order])


def compare(data: Path, out: Path, task: str, imgsz: int, batch: int, run: Path, batches: int, **more: Any) -> int:
    """Compare the first batches of a dataset and of its store; returns how many boxes they had."""
    theirs = loader(VALIDATORS[task], data, task, imgsz, batch, run, **more)
    ours = loader(accelerate_validator(VALIDATORS[task], out), data, task, imgsz, batch, run, **more)
    if ours.dataset.rect:
        settle_ties(theirs.dataset)
    assert (len(ours), len(ours.dataset), ours.batch_size) == (len(theirs), len(theirs.dataset), theirs.batch_size)
    assert list(ours.sampler) == list(theirs.sampler)
    boxes = 0
    for _, a, b in zip(range(batches), theirs, ours, strict=False):
        assert set(a) == set(b)
        assert [Path(f).name for f in a["im_file"]] == [Path(f).name for f in b["im_file"]]
        assert a["img"].dtype == b["img"].dtype == torch.uint8
        assert torch.equal(a["img"], b["img"])
        assert a["ori_shape"] == b["ori_shape"]
        assert [tuple(s) for s in a["resized_shape"]] == list(b["resized_shape"])
        # Their gains are quotients of whole numbers in double precision, and so are ours.
        assert [(tuple(g), tuple(p)) for g, p in a["ratio_pad"]] == [(tuple(g), tuple(p)) for g, p in b["ratio_pad"]]
        for key in ("cls", "batch_idx"):
            assert a[key].dtype == b[key].dtype
            assert torch.equal(a[key], b[key])
        boxes += len(a["cls"])
        # Theirs were read as float32 and moved four times; a thousandth of a pixel is what that leaves.
        wh = torch.tensor(a["img"].shape[:1:-1], dtype=torch.float32).repeat(2)
        assert ((a["bboxes"] - b["bboxes"]) * wh).abs().max() < 1e-3
        if task == "pose":
            seen = a["keypoints"][..., 2] > 0
            assert torch.equal(a["keypoints"][..., 2], b["keypoints"][..., 2])
            # Where nothing is labelled theirs says the corner of the picture in the letterbox, ours the corner of the frame.
            assert ((a["keypoints"] - b["keypoints"])[..., :2] * wh[:2])[seen].abs().max() < 1e-3
    return boxes


def as_yolo(source: Path, folder: Path, options: SourceOptions, kpt_shape: list[int] | None = None) -> Path:
    """The pictures and labels of a published dataset as YOLO files, all of them as validation; returns the data.yaml."""
    whole = folder / "whole.lmdb"
    convert(source, whole, ConvertOptions(source=options, imgsz=None, codec="original", workers=1))
    with open_store(whole) as opened:
        export(opened, folder / "yolo", format="yolo")
        names, split = list(opened.names), next(iter(opened.manifest.splits))
    images = next(path for path in (folder / "yolo/images", folder / f"yolo/images/{split}") if any(path.glob("*.jpg")))
    text = {"path": str(folder / "yolo"), "train": str(images), "val": str(images), "names": names}
    (folder / "data.yaml").write_text(json.dumps(text | ({"kpt_shape": kpt_shape} if kpt_shape else {})))
    return folder / "data.yaml"


@pytest.mark.parametrize("rect", [True, False])
def test_batches_of_invented_pictures_are_equal(rect: bool, tmp_path: Path) -> None:
    """Large pictures and small ones, wide and high, batches of pictures of several shapes, and a short one at the end."""
    sizes = ((480, 640), (640, 480), (333, 500), (70, 100), (100, 70))
    data = dataset(tmp_path / "set", "detect", 22, size_hw=sizes, splits={"train": 0.1, "val": 0.9})
    out = store(data, tmp_path / "x.lmdb", "detect", 320)
    assert compare(data, out, "detect", 320, 8, tmp_path, 3, rect=rect) > 40


def test_batches_of_keypoints_are_equal(tmp_path: Path) -> None:
    """Coordinates where something is labelled, visibility everywhere."""
    data = dataset(tmp_path / "set", "pose", 12, size_hw=((240, 320), (320, 240)), splits={"train": 0.2, "val": 0.8})
    assert compare(data, store(data, tmp_path / "x.lmdb", "pose", 160), "pose", 160, 4, tmp_path, 3) > 10


def test_a_store_that_keeps_the_published_bytes_gives_the_same_batches(tmp_path: Path) -> None:
    """Decoded and resized when they are read, not at conversion."""
    data = dataset(tmp_path / "set", "detect", 10, size_hw=((480, 640), (640, 480)), splits={"train": 0.2, "val": 0.8})
    out = tmp_path / "whole.lmdb"
    convert(data, out, ConvertOptions(imgsz=None, codec="original", workers=1))
    assert compare(data, out, "detect", 160, 4, tmp_path, 2) > 10


@pytest.mark.parametrize("name", ["coco128", "bccd", "pose"])
def test_batches_of_published_datasets_are_equal(name: str, shared: Path, tmp_path: Path) -> None:
    """Photos of a hundred shapes; microscope pictures full of cells; people with seventeen joints each."""
    root, task, kpt_shape = shared / "data", "detect", None
    options = SourceOptions()
    match name:
        case "coco128":
            source = root / "coco128/lightly/object_detection/config.yaml"
            options = SourceOptions(images=root / "coco128/lightly/images", splits=("train",))
        case "bccd":
            source, options = root / "bccd_voc/BCCD", SourceOptions(splits=("val",))
        case _:
            source, options = root / "pose_minicoco/tests/data/pose_minicoco", SourceOptions(splits=("val",))
            task, kpt_shape = "pose", [17, 3]
    data = as_yolo(source, tmp_path, options, kpt_shape)
    out = store(data, tmp_path / "x.lmdb", task, 320)
    assert compare(data, out, task, 320, 8, tmp_path, 3) > (15 if name == "pose" else 100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Weights of a small detector that finds something, the data.yaml and the store that it was trained on."""
    folder = tmp_path_factory.mktemp("trained")
    sizes = ((2400, 2000), (2100, 2800), (480, 640), (640, 470), (300, 500), (512, 512), (90, 64))
    data = dataset(folder / "set", "detect", 16, size_hw=sizes, splits={"train": 0.5, "val": 0.5}, classes=("ellipse",), seed=5)
    out = store(data, folder / "x.lmdb", "detect", 160)
    more = {"imgsz": 160, "nbs": 4, "epochs": 30, "close_mosaic": 30, "optimizer": "AdamW", "lr0": 0.01, "warmup_epochs": 1.0}
    train(accelerate(DetectionTrainer, out), TINY, folder, data, val=False, save=False, **more)
    return folder / "run/weights/best.pt", data, out


def score(weights: Path, validator: Any, data: Path, run: Path, **more: Any) -> dict[str, float]:
    """Every number of a validation by itself."""
    names = ("data", "imgsz", "batch", "device", "plots", "project", "name", "exist_ok", "workers", "verbose")
    kept = {name: value for name, value in settings(run, data, imgsz=160, batch=4).items() if name in names}
    return dict(YOLO(weights).val(validator=validator, **kept | more).results_dict)


@pytest.mark.parametrize("rect", [True, False])
def test_the_same_weights_have_the_same_score(rect: bool, trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """To the last digit that the trainer computes, with pictures of more than 2,000 px among them; and it is no score of zero."""
    weights, data, out = trained
    theirs = score(weights, DetectionValidator, data, tmp_path, rect=rect)
    ours = score(weights, accelerate_validator(DetectionValidator, out), data, tmp_path, rect=rect)
    assert ours == theirs
    assert ours["metrics/mAP50(B)"] > 0.05


def test_another_score_is_seen(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Meta-test: pictures that were stored smaller, and so look otherwise, score otherwise."""
    weights, data, _ = trained
    small = store(data, tmp_path / "small.lmdb", "detect", 96)
    with pytest.warns(UserWarning, match="imgsz 160 is larger"):
        ours = score(weights, accelerate_validator(DetectionValidator, small), data, tmp_path)
    assert ours != score(weights, DetectionValidator, data, tmp_path)


def test_a_store_can_be_validated_without_a_data_yaml(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """It knows its classes and its splits."""
    weights, data, out = trained
    theirs = score(weights, DetectionValidator, data, tmp_path)
    assert score(weights, accelerate_validator(DetectionValidator, cache=tmp_path), out, tmp_path) == theirs


def test_a_validation_without_a_store_makes_one(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """In the cache folder, as a training does."""
    weights, data, _ = trained
    theirs = score(weights, DetectionValidator, data, tmp_path)
    assert score(weights, accelerate_validator(DetectionValidator, cache=tmp_path), data, tmp_path) == theirs
    assert len(list(tmp_path.rglob("*.lmdb"))) == 1


def test_json_and_text_results_are_written_as_from_the_files(trained: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Boxes are taken back to the original pictures by our gains and pads."""
    weights, data, out = trained
    found = []
    for name, validator in (("a", DetectionValidator), ("b", accelerate_validator(DetectionValidator, out))):
        score(weights, validator, data, tmp_path / name, save_json=True, save_txt=True, conf=0.01)
        rows = json.loads((tmp_path / name / "run/predictions.json").read_text())
        texts = {path.name: path.read_text() for path in sorted((tmp_path / name / "run/labels").iterdir())}
        found.append((rows, texts))
    assert found[0] == found[1]
    assert found[0][0]
    assert found[0][1]
