"""Where an accelerated trainer's batches are made, and how its pictures make room for the model.

Real trainings on the processor, whose loader makes batches as on a GPU: ordinary memory stands for the GPU's, and the processor
draws from there.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loader_gpu_kit import drawn_by_processor
from numba import cloudpickle
from ultra_kit import TINY, DetectionTrainer, DetectionValidator, dataset, settings, store, train
from ultralytics import YOLO

import fastdata.render.cuda
from fastdata.errors import FastdataError, UsageError
from fastdata.gpu_maker import GpuMaker
from fastdata.loader import Loader
from fastdata.trainers import ultralytics_device
from fastdata.trainers.ultralytics import accelerate, accelerate_validator
from fastdata.trainers.ultralytics_device import Making, Unused, loader_options, prefetch_of
from fastdata.trainers.ultralytics_loader import TrainerLoader

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FULL = "CUDA out of memory. Tried to allocate 20.00 MiB"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset's data.yaml and its store: eight pictures to train on, four to validate on."""
    folder = tmp_path_factory.mktemp("small")
    data = dataset(folder / "set", "detect", 12, splits={"train": 0.66, "val": 0.34})
    return data, store(data, folder / "x.lmdb", "detect")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processor be a GPU."""
    monkeypatch.setattr(fastdata.render.cuda, "unsupported", lambda device: None)
    monkeypatch.setattr(GpuMaker, "_drawn", drawn_by_processor)
    monkeypatch.setattr(ultralytics_device, "is_gpu", lambda device: True)
    monkeypatch.setattr(Loader, "_device_of", staticmethod(lambda device: device))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int, str]]:
    """Of each batch that a loader hands out: whether it is for training, its size, and where its pictures were."""
    batches: list[tuple[bool, int, str]] = []
    iterate = TrainerLoader.__iter__

    def listen(self: TrainerLoader) -> Any:
        for batch in iterate(self):
            batches.append((self.dataset.samples.augment, len(batch.get("im_file", ())), self.residency))
            yield batch

    monkeypatch.setattr(TrainerLoader, "__iter__", listen)
    return batches


def short_of(memory: Callable[[Any, int], bool], base: Any = DetectionTrainer) -> Any:
    """A trainer that runs out of memory while it trains on a batch, where the function of it and the size says so."""

    class Short(base):
        """Runs out of memory."""

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            if memory(self, len(batch["img"])):
                raise RuntimeError(FULL)
            return super().preprocess_batch(batch)

    return Short


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"device": "cuda:1"},
            "device must be 'auto', the trainer's own, or 'cpu', got 'cuda:1'",
        ),
        ({"residency": "disk"}, "residency must be one of auto, device, pinned, stream, decode, got 'disk'"),
        ({"reserve_gb": -1}, "reserve_gb must be a number of at least 0, or None, got -1"),
    ],
)
def test_wrong_options_are_refused_at_once(more: dict[str, Any], why: str) -> None:
    """On any machine, not when the loader is made."""
    with pytest.raises(UsageError, match=why):
        accelerate(DetectionTrainer, **more)
    with pytest.raises(UsageError, match=why):
        accelerate_validator(DetectionValidator, **more)


@pytest.mark.parametrize(
    ("making", "device", "training", "has_yielded", "want"),
    [
        (Making(), CUDA, True, False, "auto"),
        (Making(), CUDA, False, False, "stream"),
        (Making(), CPU, True, False, None),
        (Making(), torch.device("mps"), True, False, None),
        (Making("cpu"), CUDA, True, False, None),
        (Making("cpu", "device"), CUDA, True, False, None),
        (Making(residency="device"), CUDA, True, False, "device"),
        (Making(residency="device"), CUDA, False, False, "device"),
        (Making(residency="decode"), CUDA, False, False, "decode"),
        (Making(residency="device"), CPU, True, False, None),
        (Making(residency="device"), CUDA, True, True, "pinned"),
        (Making(residency="device"), CUDA, False, True, "pinned"),
        (Making(residency="decode"), CUDA, True, True, "stream"),
        (Making(), CUDA, True, True, "stream"),
        (Making(residency="pinned"), CUDA, True, True, "pinned"),
    ],
)
def test_the_trainers_gpu_makes_the_batches(
    making: Making, device: torch.device, training: bool, has_yielded: bool, want: str | None
) -> None:
    """Unless the user does not want that; a validation keeps nothing in its memory of itself, nor does who ran out of it."""
    options = loader_options(making, device, training=training, has_yielded=has_yielded)
    assert options.get("residency") == want
    assert options.get("device") == (None if want is None else device)


def test_a_gpu_has_some_batches_ahead_and_not_more() -> None:
    """One thread alone would wait for each batch to be taken; many would fill the memory."""
    assert [threads * prefetch_of(threads, on_gpu=True) for threads in (1, 2, 3, 4, 8, 32)] == [4, 4, 6, 4, 8, 32]
    assert [threads * prefetch_of(threads, on_gpu=False) for threads in (1, 2, 8)] == [2, 4, 16]


def test_a_retry_that_does_not_count_is_due_all_the_same() -> None:
    """What the trainer does with its counter."""
    retries = Unused(0)
    assert retries
    assert not retries >= 3
    retries += 1
    assert (type(retries), retries) == (int, 1)


@pytest.fixture(scope="module")
def by_processor(small: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a training says of each epoch whose batches the processor makes."""
    return results(small, tmp_path_factory.mktemp("cpu"), device="cpu")


def results(small: tuple[Path, Path], run: Path, **options: Any) -> str:
    """Losses and scores of each epoch, without the seconds."""
    data, out = small
    train(accelerate(DetectionTrainer, out, threads=2, **options), TINY, run, data, epochs=3)
    with open(run / "run/results.csv") as file:
        return "\n".join(",".join(row.split(",")[:1] + row.split(",")[2:]) for row in file)


@pytest.mark.parametrize("residency", ["auto", "device", "pinned", "stream"])
def test_a_training_is_the_same_wherever_its_batches_are_made(
    residency: str, small: tuple[Path, Path], tmp_path: Path, gpu: None, by_processor: str, seen: list[tuple[bool, int, str]]
) -> None:
    """To the last digit that the trainer writes, validation included."""
    assert results(small, tmp_path, residency=residency, reserve_gb=0) == by_processor
    assert "host" not in {where for _, _, where in seen}


def test_pictures_leave_before_the_batch_is_halved(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """One time memory runs out: the batch stays as large as it was, and all goes on without pictures in GPU memory."""
    data, out = small
    trainer = accelerate(
        short_of(lambda t, n: t.train_loader.residency == "device"), out, residency="device", reserve_gb=0, threads=2
    )
    model = train(trainer, TINY, tmp_path, data, batch=4)
    assert [size for training, size, _ in seen if training] == [4] * 5
    assert [where for training, _, where in seen if training] == ["device"] + ["pinned"] * 4
    assert {where for training, _, where in seen if not training} == {"pinned"}
    assert (model.trainer.batch_size, model.trainer.args.batch, model.trainer.epoch) == (4, 4, 1)
    said = capfd.readouterr().err
    assert said.count("the batch stays at 4: it is tried again without pictures in GPU memory") == 1


def test_the_trainers_own_halving_follows_with_all_its_retries(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]]
) -> None:
    """Three of them, beside the one that the pictures were to blame for."""
    data, out = small
    trainer = accelerate(short_of(lambda t, n: n > 1), out, residency="device", reserve_gb=0, threads=1)
    model = train(trainer, TINY, tmp_path, data, batch=8, epochs=1)
    assert [(size, where) for training, size, where in seen if training][:4] == [
        (8, "device"), (8, "pinned"), (4, "pinned"), (2, "pinned")
    ]  # fmt: skip
    assert model.trainer.batch_size == 1
    assert [size for training, size, _ in seen if training][4:] == [1] * 8


@pytest.mark.parametrize("residency", ["auto", "stream", "pinned"])
def test_a_batch_is_halved_at_once_where_no_picture_is_in_gpu_memory(
    residency: str, small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]]
) -> None:
    """There is nothing to give back in the first epoch."""
    data, out = small
    model = train(
        accelerate(short_of(lambda t, n: n > 2), out, residency=residency, threads=1), TINY, tmp_path, data, batch=4, epochs=1
    )
    assert [size for training, size, _ in seen if training] == [4, 2, 2, 2, 2]
    assert model.trainer.batch_size == 2


def test_a_batch_of_one_that_had_no_room_is_tried_again(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]]
) -> None:
    """Half of one is one: it is the count of retries that tells."""
    data, out = small
    trainer = accelerate(short_of(lambda t, n: t.train_loader.residency == "device"), out, residency="device", reserve_gb=0)
    train(trainer, TINY, tmp_path, data, batch=1, epochs=1)
    assert [where for training, _, where in seen if training] == ["device"] + ["pinned"] * 8


def test_memory_that_runs_out_while_a_batch_is_made_reaches_the_trainer(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for that while it trains on a batch, not while it takes one: there the training would end."""

    def large(maker: GpuMaker, recipe: Any, where: Any) -> Any:
        if len(recipe) > 4:
            raise torch.OutOfMemoryError(FULL)
        return drawn_by_processor(maker, recipe, where)

    monkeypatch.setattr(GpuMaker, "_drawn", large)
    data, out = small
    model = train(accelerate(DetectionTrainer, out, threads=1), TINY, tmp_path, data, batch=8, epochs=1, val=False)
    assert model.trainer.batch_size == 4
    assert (tmp_path / "run/weights/last.pt").exists()


def test_other_errors_end_the_training(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come out where the batch is taken."""

    def broken(maker: GpuMaker, recipe: Any, where: Any) -> Any:
        if len(recipe) == 4:
            raise RuntimeError("an illegal memory access was encountered")
        return drawn_by_processor(maker, recipe, where)

    monkeypatch.setattr(GpuMaker, "_drawn", broken)
    data, out = small
    with pytest.raises(FastdataError, match="an illegal memory access was encountered; in batch 0 of epoch 0"):
        train(accelerate(DetectionTrainer, out, threads=1), TINY, tmp_path, data, epochs=1)


class ShortToValidate(DetectionTrainer):
    """Has no memory for a validation while its pictures lie there."""

    def validate(self) -> Any:
        if self.train_loader.residency == "device":
            raise torch.OutOfMemoryError(FULL)
        return super().validate()


def test_a_validation_without_memory_is_done_again_without_pictures(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """The trainer would end there. Both loaders go on from the store."""
    data, out = small
    made = accelerate(ShortToValidate, out, residency="device", reserve_gb=0, threads=1)
    model = train(made, TINY, tmp_path, data, epochs=2)
    assert [where for training, _, where in seen if training] == ["device"] * 2 + ["stream"] * 2
    assert {where for training, _, where in seen if not training} == {"stream"}
    assert model.trainer.metrics["metrics/mAP50(B)"] >= 0
    assert capfd.readouterr().err.count("the validation ran out of memory and is done again") == 1


def test_a_validation_without_memory_ends_the_training_where_no_picture_takes_any(
    small: tuple[Path, Path], tmp_path: Path, gpu: None
) -> None:
    """Nothing could help."""

    class Short(DetectionTrainer):
        def validate(self) -> Any:
            raise torch.OutOfMemoryError(FULL)

    data, out = small
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        train(accelerate(Short, out, threads=1), TINY, tmp_path, data, epochs=1)


def test_pictures_move_up_after_the_first_validation(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """At the begin of the second epoch and not before, with a line; those of the validation stay where they are."""
    data, out = small
    train(accelerate(DetectionTrainer, out, reserve_gb=0, threads=1), TINY, tmp_path, data, epochs=3)
    epochs = [("stream", "stream"), ("device", "device"), ("device", "device")]
    assert [where for training, _, where in seen if training] == [where for epoch in epochs for where in epoch]
    first = [training for training, _, where in seen].index(False)
    assert first == 2
    assert {where for training, _, where in seen if not training} == {"stream"}
    assert capfd.readouterr().err.count("pictures are in GPU memory from now on") == 1


def test_a_report_says_where_pictures_are_and_a_resume_does_not_compare_it(
    small: tuple[Path, Path], tmp_path: Path, gpu: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Samples are the same wherever they come from."""
    data, out = small

    def stop(trainer: Any) -> None:
        raise KeyboardInterrupt

    model = YOLO(TINY)
    model.add_callback("on_fit_epoch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        model.train(trainer=accelerate(DetectionTrainer, out, residency="pinned", threads=1), **settings(tmp_path, data))
    report = json.loads((tmp_path / "run/fastdata.json").read_text())
    assert report["residency"] == "pinned"
    assert "residency" not in report["samples"]
    last = tmp_path / "run/weights/last.pt"
    YOLO(last).train(resume=True, trainer=accelerate(DetectionTrainer, out, device="cpu"), device="cpu")
    assert "other samples" not in capfd.readouterr().err


def test_the_automatic_batch_size_is_measured_without_pictures(small: tuple[Path, Path], tmp_path: Path, gpu: None) -> None:
    """A loader may be there before, for a calibration: its pictures go first."""

    class Measured(DetectionTrainer):
        def auto_batch(self) -> int:
            told.append(self.fastdata_loaders["train"]._loader.why)
            return 4

    told: list[str] = []
    data, out = small
    trainer = accelerate(Measured, out, residency="device", reserve_gb=0)(overrides=settings(tmp_path, data, model=str(TINY)))
    trainer.setup_model()
    trainer.stride = 32
    loader = trainer.get_dataloader(trainer.data["train"], batch_size=4, rank=-1, mode="train")
    next(iter(loader))
    assert loader._loader.why.startswith("pictures are in GPU memory")
    assert trainer.auto_batch() == 4
    assert told == ["no batch was asked for yet"]


@pytest.mark.parametrize("residency", ["device", "pinned", "stream"])
def test_a_validator_makes_its_batches_as_the_user_asked(
    residency: str, small: tuple[Path, Path], tmp_path: Path, gpu: None, seen: list[tuple[bool, int, str]]
) -> None:
    """It asks for them in inference mode, in which no tensor may be made that is written to later."""
    data, out = small
    made = accelerate_validator(DetectionValidator, out, residency=residency, reserve_gb=0)
    names = ("data", "imgsz", "device", "plots", "project", "name", "exist_ok", "workers", "verbose")
    kept = {name: value for name, value in settings(tmp_path, data).items() if name in names}
    YOLO(TINY).val(validator=made, batch=2, **kept)
    assert [(size, where) for _, size, where in seen] == [(2, residency)] * 2


def test_what_the_user_said_travels_to_other_processes(small: tuple[Path, Path], tmp_path: Path, gpu: None) -> None:
    """By value, with the class: each rank of a training on several GPUs makes its loader of it."""
    data, out = small
    made = pickle.loads(cloudpickle.dumps(accelerate(DetectionTrainer, out, residency="pinned", reserve_gb=2)))
    trainer = made(overrides=settings(tmp_path, data, model=str(TINY)))
    trainer.setup_model()
    trainer.stride = 32
    loader = trainer.get_dataloader(trainer.data["train"], batch_size=4, rank=-1, mode="train")
    assert (loader.residency, loader._loader.device, loader._loader._on_gpu.reserve_gb) == ("pinned", CPU, 2.0)
