"""Real trainings through ``accelerate``, each of seconds on the processor: every task, plots, resume, what goes wrong midway."""

from __future__ import annotations

import csv
import json
import math
import threading
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ultra_kit import NETWORKS, TINY, TRAINERS, DetectionTrainer, dataset, settings, store, train
from ultralytics import YOLO

from fastdata.samples import Samples
from fastdata.trainers.ultralytics import accelerate
from fastdata.trainers.ultralytics_loader import TrainerLoader
from fastdata.trainers.ultralytics_use import _report_before


@dataclass
class Log:
    """What was drawn for training: in each epoch, once for each time it was begun, the pictures in the order of their batches."""

    tiles: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Tiles of the first group of each sample, by epoch."""
    names: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Threads that drew, by epoch."""
    pixels: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """A sum over the pixels of each sample, by epoch and id."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Listens to what is drawn."""
    log, draw = Log(), Samples.draw

    def listen(self: Samples, ids: Any, epoch: int = 0, *more: Any, **named: Any) -> Any:
        recipe, images = draw(self, ids, epoch, *more, **named)
        if self.augment:
            tiles = np.diff(recipe.tile_offsets)[recipe.group_offsets[:-1]]
            log.tiles[epoch] += tiles.tolist()
            log.names[epoch].add(threading.current_thread().name)
            log.pixels[epoch] |= {int(i): int(image.sum()) for i, image in zip(ids, images, strict=True)}
        return recipe, images

    monkeypatch.setattr(Samples, "draw", listen)
    return log


def train_until(epoch: int, trainer: Any, run: Path, data: Path, **more: Any) -> None:
    """Train, and break off when an epoch has ended."""

    def stop(running: Any) -> None:
        if running.epoch == epoch:
            raise Stop

    model = YOLO(TINY)
    model.add_callback("on_fit_epoch_end", stop)
    with pytest.raises(Stop):
        model.train(trainer=trainer, **settings(run, data, **more))


def rows(run: Path) -> list[dict[str, str]]:
    """What the trainer wrote about each epoch."""
    with open(run / "run/results.csv") as file:
        return [{key.strip(): value for key, value in row.items()} for row in csv.DictReader(file)]


def threads() -> set[str]:
    """Names of the threads that make batches."""
    return {t.name for t in threading.enumerate() if t.name.startswith("fastdata")}


@pytest.mark.parametrize("task", TRAINERS)
def test_a_network_is_trained_and_validated(task: str, tmp_path: Path, log: Log) -> None:
    """Every loss is finite, both epochs are validated, and mosaic rests in the last one, in every thread."""
    data = dataset(tmp_path / "set", task)
    trainer = accelerate(TRAINERS[task], store(data, tmp_path / "x.lmdb", task), threads=2)
    model = train(trainer, NETWORKS[task], tmp_path, data)
    losses = [float(v) for row in rows(tmp_path) for key, v in row.items() if "loss" in key]
    assert len(rows(tmp_path)) == 2
    assert len(losses) >= 12
    assert all(math.isfinite(v) for v in losses)
    assert set(log.tiles) == {0, 1}
    assert set(log.tiles[0]) == {4}
    assert set(log.tiles[1]) == {1}
    assert len(log.tiles[0]) == len(log.tiles[1]) == 6
    assert (tmp_path / "run/weights/best.pt").exists()
    assert model.trainer.train_loader.dataset.closed
    assert threads() == set()


def test_plots_are_made(tmp_path: Path) -> None:
    """Label plots over the whole set, pictures of batches with their labels, curves; drawn by a thread beside the training."""
    data = dataset(tmp_path / "set", "detect")
    trainer = accelerate(DetectionTrainer, store(data, tmp_path / "x.lmdb", "detect"))
    train(trainer, TINY, tmp_path, data, plots=True, epochs=1)
    made = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"labels.jpg", "train_batch0.jpg", "val_batch0_labels.jpg", "val_batch0_pred.jpg", "results.png"} <= made


class Stop(Exception):
    """Stands for whatever ends a run midway."""


def test_a_resumed_training_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    """The batches of the epochs that are left are those that they would have been."""
    data = dataset(tmp_path / "set", "detect")
    trainer = accelerate(DetectionTrainer, store(data, tmp_path / "x.lmdb", "detect"))
    train(trainer, TINY, tmp_path / "whole", data, epochs=3, val=False)
    want = {epoch: dict(pixels) for epoch, pixels in log.pixels.items()}
    log.pixels.clear()

    train_until(0, trainer, tmp_path / "cut", data, epochs=3, val=False)
    assert dict(log.pixels) == {0: want[0]}
    log.pixels.clear()
    log.tiles.clear()
    YOLO(tmp_path / "cut/run/weights/last.pt").train(resume=True, trainer=trainer, device="cpu")
    assert dict(log.pixels) == {1: want[1], 2: want[2]}
    assert "other samples" not in capfd.readouterr().err
    assert set(log.tiles[1]) == {4}
    assert set(log.tiles[2]) == {1}


def test_a_training_resumed_after_mosaic_was_closed_keeps_it_closed(
    tmp_path: Path, log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    """The epoch alone decides. What was written into the run's folder tells whether its samples are still the same."""
    data = dataset(tmp_path / "set", "detect")
    trainer = accelerate(DetectionTrainer, store(data, tmp_path / "x.lmdb", "detect"))

    train_until(1, trainer, tmp_path, data, epochs=3, close_mosaic=2, val=False)
    log.tiles.clear()
    report = tmp_path / "run/fastdata.json"
    said = json.loads(report.read_text())
    said["samples"]["plan_version"] = 0
    report.write_text(json.dumps(said))
    YOLO(tmp_path / "run/weights/last.pt").train(resume=True, trainer=trainer, device="cpu")
    assert {epoch: set(tiles) for epoch, tiles in log.tiles.items()} == {2: {1}}
    assert "the resumed run sees other samples than it would have: plan_version changed" in capfd.readouterr().err


def test_a_training_by_time_is_resumed_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """How many epochs it has is a guess that changes as it goes, and says nothing about its samples."""
    data = dataset(tmp_path / "set", "detect")
    trainer = accelerate(DetectionTrainer, store(data, tmp_path / "x.lmdb", "detect"))

    train_until(0, trainer, tmp_path, data, epochs=50, time=0.0005, val=False)
    report = tmp_path / "run/fastdata.json"
    said = json.loads(report.read_text())
    said["samples"]["epochs"] = 7
    report.write_text(json.dumps(said))
    YOLO(tmp_path / "run/weights/last.pt").train(resume=True, trainer=trainer, device="cpu")
    assert "other samples" not in capfd.readouterr().err


def test_memory_that_runs_out_halves_the_batch_and_frees_the_earlier_loaders(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer builds both loaders again, and closes one of the two that it had: the other must not be left as it is."""
    data = dataset(tmp_path / "set", "detect", 12)
    loaders: list[Any] = []
    made: list[TrainerLoader] = []
    closed: list[TrainerLoader] = []
    init, close = TrainerLoader.__init__, TrainerLoader.close
    monkeypatch.setattr(TrainerLoader, "__init__", lambda self, *a, **k: (made.append(self), init(self, *a, **k))[1])
    monkeypatch.setattr(TrainerLoader, "close", lambda self: (closed.append(self), close(self))[1])

    class Small(DetectionTrainer):
        """Has memory for two pictures."""

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            loaders.append(self.train_loader)
            if len(batch["img"]) > 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return super().preprocess_batch(batch)

    trainer = accelerate(Small, store(data, tmp_path / "x.lmdb", "detect"), threads=2)
    model = train(trainer, TINY, tmp_path, data, batch=8)
    distinct = list(dict.fromkeys(map(id, loaders)))
    assert [next(x for x in loaders if id(x) == i).batch_size for i in distinct] == [7, 4, 2]
    assert model.trainer.batch_size == 2
    assert [loader.batch_size for loader in made] == [7, 5, 4, 5, 2, 4]
    assert all(loader in closed for loader in made)
    assert len(rows(tmp_path)) == 2
    assert set(log.tiles[1]) == {1}
    assert len(log.tiles[1]) == 7
    assert threads() == set()


def test_an_epoch_that_is_done_again_has_the_same_batches(tmp_path: Path, log: Log) -> None:
    """After a loss that is no number the trainer goes back to the last checkpoint and repeats the epoch."""
    data = dataset(tmp_path / "set", "detect")
    began: list[tuple[int, dict[int, int]]] = []

    class Unlucky(DetectionTrainer):
        """Loses its numbers once, in the second epoch."""

        def _handle_nan_recovery(self, epoch: int) -> bool:
            began.append((epoch, dict(log.pixels[epoch])))
            log.pixels[epoch].clear()
            if len(began) == 2:
                self.loss = torch.tensor(float("nan"))
            return bool(super()._handle_nan_recovery(epoch))

    trainer = accelerate(Unlucky, store(data, tmp_path / "x.lmdb", "detect"))
    train(trainer, TINY, tmp_path, data, val=False)
    assert [epoch for epoch, _ in began] == [0, 1, 1]
    assert began[1][1] == began[2][1]
    assert began[0][1] != began[1][1]


def test_the_readme_way_without_a_store_trains_and_says_where_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """``data=`` is converted once; the second training reads it again."""
    data = dataset(tmp_path / "set", "detect")
    trainer = accelerate(DetectionTrainer, cache=tmp_path / "cache")
    for _ in range(2):
        train(trainer, TINY, tmp_path, data, epochs=1, val=False)
    said = capfd.readouterr().err
    assert said.count("converting train of data.yaml") == said.count("converting val of data.yaml") == 1
    assert said.count("is read from") == 2
    assert len(list((tmp_path / "cache").rglob("*.lmdb"))) == 2


def test_rectangular_training(tmp_path: Path, log: Log) -> None:
    """Batches of their own shapes, in order, nothing mixed."""
    data = dataset(tmp_path / "set", "detect", 12, size_hw=((64, 32), (32, 64)))
    shapes: list[tuple[int, ...]] = []

    class Watched(DetectionTrainer):
        """Notes the shape of each batch."""

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            shapes.append(tuple(batch["img"].shape[2:]))
            return super().preprocess_batch(batch)

    trainer = accelerate(Watched, store(data, tmp_path / "x.lmdb", "detect"))
    train(trainer, TINY, tmp_path, data, rect=True, batch=2, epochs=1, val=False)
    assert len(set(shapes)) > 1
    assert set(log.tiles[0]) == {1}


def test_pictures_that_were_stored_too_small_are_told_of_once(tmp_path: Path) -> None:
    """Training and validation read the same store, and so does whatever is built anew."""
    data = dataset(tmp_path / "set", "detect")
    trainer = accelerate(DetectionTrainer, store(data, tmp_path / "x.lmdb", "detect"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        train(trainer, TINY, tmp_path, data, epochs=1, imgsz=96, val=False)
    (one,) = warned
    assert "imgsz 96 is larger than the stored pictures (64 px)" in str(one.message)


def test_the_trainers_own_arguments_decide_what_is_trained_on(tmp_path: Path) -> None:
    """Fraction, classes, one class for all, size, seed and policy, each as the trainer was given it."""
    data = dataset(tmp_path / "set", "detect", 12)
    trainer = accelerate(DetectionTrainer, store(data, tmp_path / "x.lmdb", "detect"), policy={"mosaic9": 0.5})
    more = {"fraction": 0.5, "classes": [1, 2, 3], "single_cls": True, "mosaic": 0.75, "degrees": 10.0, "seed": 9}
    model = train(trainer, TINY, tmp_path, data, epochs=1, val=False, split="train", **more)
    samples = model.trainer.train_loader.dataset.samples
    assert len(samples) == 4
    assert (samples.classes, samples.single_cls, samples.seed, samples.imgsz, samples.task) == ((1, 2, 3), True, 9, 64, "detect")
    assert (samples.policy.mosaic, samples.policy.degrees, samples.policy.mosaic9) == (0.75, 10.0, 0.5)
    assert {int(c) for row in samples.labels for c in row["cls"].ravel()} == {0}
    validated = model.trainer.test_loader.dataset.samples
    assert (validated.store.split, len(validated), validated.augment, validated.rect) == ("train", 4, False, True)


def test_the_users_transforms_are_run(tmp_path: Path) -> None:
    """The trainer keeps them as dictionaries; here they paint every picture black."""
    albumentations = pytest.importorskip("albumentations")
    data = dataset(tmp_path / "set", "detect")
    pixels: list[int] = []

    class Watched(DetectionTrainer):
        """Notes how bright each batch is."""

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            pixels.append(int(batch["img"].max()))
            return super().preprocess_batch(batch)

    trainer = accelerate(Watched, store(data, tmp_path / "x.lmdb", "detect"))
    black = albumentations.RandomBrightnessContrast(brightness_limit=(-1, -1), contrast_limit=0, p=1)
    train(trainer, TINY, tmp_path, data, augmentations=[black], epochs=1, val=False)
    assert set(pixels) == {0}


@pytest.mark.parametrize("left", [None, "", '{"store": "x.lm', "[]", "{}"])
def test_a_report_that_was_cut_short_counts_as_none(left: str | None, tmp_path: Path) -> None:
    """A run that was killed while it wrote, by an earlier version or on a full disk, can be resumed."""
    report = tmp_path / "fastdata.json"
    if left is not None:
        report.write_text(left)
    assert _report_before(report) is None
    report.write_text(json.dumps({"samples": {"seed": 3}}))
    assert _report_before(report) == {"seed": 3}
