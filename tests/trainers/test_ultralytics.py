"""Which classes are accelerated, what is made of them, and how they get into other processes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import cloudpickle  # the copy that numba brings; the trainer asks for one of its own when it needs it
from ultra_kit import TINY, TRAINERS, VALIDATORS, DetectionTrainer, dataset, settings, store, train
from ultralytics.models.rtdetr.train import RTDETRTrainer
from ultralytics.models.yolo.classify import ClassificationTrainer
from ultralytics.models.yolo.depth import DepthTrainer
from ultralytics.models.yolo.semantic import SemanticSegmentationTrainer
from ultralytics.models.yolo.world import WorldTrainer
from ultralytics.models.yolo.yoloe import YOLOETrainer

import fastdata
from fastdata.errors import UsageError
from fastdata.trainers.ultralytics import accelerate, accelerate_validator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset's data.yaml and its store."""
    folder = tmp_path_factory.mktemp("small")
    data = dataset(folder / "set", "detect", 8)
    return data, store(data, folder / "x.lmdb", "detect")


@pytest.mark.parametrize("task", TRAINERS)
def test_a_subclass_of_the_class_is_returned(task: str) -> None:
    """With its constructor and its name in sight, and the class itself left as it was."""
    before = dict(vars(TRAINERS[task]))
    made = fastdata.ultralytics.accelerate(TRAINERS[task])
    assert issubclass(made, TRAINERS[task])
    assert made.__name__ == f"Accelerated{TRAINERS[task].__name__}"
    assert inspect.signature(made.__init__) == inspect.signature(TRAINERS[task].__init__)
    assert dict(vars(TRAINERS[task])) == before
    validator = fastdata.ultralytics.accelerate_validator(VALIDATORS[task])
    assert issubclass(validator, VALIDATORS[task])
    names = list(inspect.signature(VALIDATORS[task].__init__).parameters)
    assert list(inspect.signature(validator.__init__).parameters) == names


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (RTDETRTrainer, "stretches pictures to a square"),
        (WorldTrainer, "needs text for every picture"),
        (YOLOETrainer, "needs text or visual prompts"),
        (ClassificationTrainer, "folders of classes"),
        (SemanticSegmentationTrainer, "a mask for every picture"),
        (DepthTrainer, "a depth map for every picture"),
        (dict, "must be DetectionTrainer or a class made from it, got dict"),
        ("DetectionTrainer", "must be a class such as DetectionTrainer, got 'DetectionTrainer'"),
        (None, "must be a class such as DetectionTrainer, got None"),
    ],
)
def test_other_classes_are_refused_with_the_reason(given: Any, why: str) -> None:
    """Most of them share a base with those that work, and would train on something else than they should."""
    with pytest.raises(UsageError, match=why):
        accelerate(given)


def test_a_class_that_makes_its_own_batches_is_refused() -> None:
    """What the user wrote would be passed over in silence."""

    class Own(DetectionTrainer):
        """Has a dataset of its own."""

        def build_dataset(self, img_path: str, mode: str = "train", batch: int | None = None) -> Any:
            return super().build_dataset(img_path, mode, batch)

    with pytest.raises(UsageError, match=r"build_dataset must be that of DetectionTrainer.*got one of Own"):
        accelerate(Own)
    with pytest.raises(UsageError, match=r"get_dataloader must be that of .*got one of AcceleratedDetectionTrainer"):
        accelerate(accelerate(DetectionTrainer))
    with pytest.raises(UsageError, match="the validator must be DetectionValidator or a class made from it"):
        accelerate_validator(DetectionTrainer)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"on_bad": "skip"}, "on_bad must be 'raise' or 'replan', got 'skip'"),
        ({"splits": "train"}, "splits must be a mapping, got 'train'"),
        ({"policy": 3}, "policy must be a mapping, got 3"),
        ({"policy": {"mosaic": 1.0}}, "policy must hold fields that the trainer has no argument for, got 'mosaic'"),
        ({"policy": {"mosaic9": 2}}, r"mosaic9 must be in 0\.\.1, got 2"),
        ({"store": "/no/such.lmdb"}, "store must be a fastdata store"),
    ],
)
def test_wrong_arguments_are_refused_at_once(more: dict[str, Any], why: str) -> None:
    """Not after a model has been built and a dataset converted."""
    with pytest.raises(UsageError, match=why):
        accelerate(DetectionTrainer, **more)


CHILD = """
import pickle, sys
import ultra_kit
if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        made, overrides = pickle.load(file)
    for _ in range(2):  # as often as there are datasets
        trainer = made(overrides=dict(overrides))
        trainer.setup_model(); trainer.stride = 32
        train = trainer.get_dataloader(trainer.data["train"], batch_size=4, rank=-1, mode="train")
        val = trainer.get_dataloader(trainer.data["val"], batch_size=8, rank=-1, mode="val")
        print(made.__name__, len(train), len(val), sum(int(b["img"].sum()) for b in train), sum(len(b["cls"]) for b in val))
"""


def test_a_class_gets_into_a_fresh_process(small: tuple[Path, Path], tmp_path: Path) -> None:
    """Pickled by value as the trainer does for several GPUs, read by plain pickle, constructed twice: the same batches."""
    data, out = small
    made = accelerate(DetectionTrainer, out, policy={"mosaic9": 0.5}, threads=1)
    overrides = settings(tmp_path, data, model=str(TINY))
    packed = cloudpickle.dumps((made, overrides))
    assert len(packed) < 10_000
    (tmp_path / "state.pkl").write_bytes(packed)
    (tmp_path / "child.py").write_text(CHILD)
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    command = [sys.executable, str(tmp_path / "child.py"), str(tmp_path / "state.pkl")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("Accelerated")]
    trainer = made(overrides=overrides)
    trainer.setup_model()
    trainer.stride = 32
    here = trainer.get_dataloader(trainer.data["train"], batch_size=4, rank=-1, mode="train")
    there = trainer.get_dataloader(trainer.data["val"], batch_size=8, rank=-1, mode="val")
    pixels, labels = sum(int(b["img"].sum()) for b in here), sum(len(b["cls"]) for b in there)
    assert lines == [f"AcceleratedDetectionTrainer {len(here)} {len(there)} {pixels} {labels}"] * 2


def test_the_module_is_reached_from_the_package() -> None:
    """As the README writes it."""
    assert fastdata.ultralytics.accelerate is accelerate
    assert "ultralytics" in dir(fastdata)


def test_automatic_batch_size_finds_what_it_reads(small: tuple[Path, Path], tmp_path: Path) -> None:
    """The trainer builds one more dataset for it, and looks at its labels."""
    data, out = small
    trainer = accelerate(DetectionTrainer, out)(overrides=settings(tmp_path, data, model=str(TINY)))
    trainer.setup_model()
    trainer.stride = 32
    built = trainer.build_dataset(trainer.data["train"], mode="train", batch=16)
    assert len(built) == 5
    assert max(len(label["cls"]) for label in built.labels) > 0


@pytest.mark.parametrize("form", ["file", "folder", "key"])
def test_a_data_yaml_may_point_at_a_store(form: str, small: tuple[Path, Path], tmp_path: Path) -> None:
    """The trainer itself checks that what its ``val`` names exists, and a store does, as a file or as a folder."""
    data, out = small
    if form == "folder":
        out = store(data, tmp_path / "shards", "detect")
    names = "names: [rectangle, ellipse, triangle, star, ring, arrow, cross, moon]\n"
    entries = f"train: {out}\nval: {out}\n"
    if form == "key":
        entries = f"path: {data.parent}\ntrain: images/train\nval: images/val\nstore: {out}\n"
    (tmp_path / "my.yaml").write_text(entries + names)
    model = train(accelerate(DetectionTrainer), TINY, tmp_path, tmp_path / "my.yaml", epochs=1)
    assert [str(model.trainer.fastdata_places[s].path) for s in ("train", "val")] == [str(out)] * 2
    assert [len(x.dataset) for x in (model.trainer.train_loader, model.trainer.test_loader)] == [5, 3]


def test_a_store_may_be_the_data(small: tuple[Path, Path], tmp_path: Path) -> None:
    """Without any data.yaml: the store knows all that one would say."""
    model = train(accelerate(DetectionTrainer, cache=tmp_path), TINY, tmp_path, small[1], epochs=1)
    assert list(model.trainer.data["names"].values())[:2] == ["rectangle", "ellipse"]
    assert model.trainer.data["nc"] == 8


def test_bad_input_is_refused_before_anything_is_trained(small: tuple[Path, Path], tmp_path: Path) -> None:
    """Each with what to change: values, sizes, classes, tasks."""
    data, out = small
    made = accelerate(DetectionTrainer, out)
    for more, why in (
        ({"perspective": 0.5}, r"perspective must be in 0\.\.0\.01, got 0\.5"),
        ({"degrees": 270.0}, r"degrees must be in 0\.\.180, got 270"),
        ({"classes": [99]}, r"classes must be in 0\.\.7, got 99"),
    ):
        with pytest.raises(UsageError, match=why):
            train(made, TINY, tmp_path, data, **more)
    with pytest.raises(UsageError, match="must have outlines for task segment, got plain boxes"):
        train(accelerate(TRAINERS["segment"], out), "yolo11n-seg.yaml", tmp_path, data)
    (tmp_path / "few.yaml").write_text(f"train: {out}\nval: {out}\nnames: [rectangle, ellipse]\n")
    with pytest.raises(UsageError, match=r"few\.yaml: names must hold every class of the store, got 2 for the 8"):
        train(accelerate(DetectionTrainer), TINY, tmp_path, tmp_path / "few.yaml")
