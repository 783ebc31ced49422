"""Real trainings and validations on a GPU whose batches are made there: every task and residency, mixed precision, plots."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_kit import needs_cuda
from ultra_kit import NETWORKS, TINY, TRAINERS, VALIDATORS, DetectionTrainer, dataset, settings, store, train
from ultralytics import YOLO

from fastdata.render.tolerance import TOLERANCES
from fastdata.trainers.ultralytics import accelerate, accelerate_validator
from fastdata.trainers.ultralytics_loader import TrainerLoader

# Warnings are the trainer's and torch's own, about what a GPU does in an order of its own.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

PICTURES, SPLITS = 24, {"train": 2 / 3, "val": 1 / 3}
ON_GPU: dict[str, Any] = {"device": 0, "amp": True, "workers": 2, "imgsz": 96, "batch": 8}


@pytest.fixture(scope="module")
def gpu() -> Any:
    """The first one."""
    return needs_cuda()


@pytest.fixture(scope="module")
def sets(gpu: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Of each task a data.yaml and its store: 16 pictures to train on, 8 to validate on."""
    folder, made = tmp_path_factory.mktemp("sets"), {}
    for task in TRAINERS:
        data = dataset(
            folder / task, task, PICTURES, size_hw=((96, 96), (64, 96), (96, 72)), splits={"train": 2 / 3, "val": 1 / 3}
        )
        made[task] = data, store(data, folder / f"{task}.lmdb", task, 96)
    return made


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


def watched(base: Any, found: list[list[str]]) -> Any:
    """A trainer that notes of each batch what is wrong with it, or with what its ``preprocess_batch`` does to it."""

    class Watched(base):
        """Looks at batches."""

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
            wrong = [f"{key} is on {value.device}" for key, value in tensors.items() if value.device != self.device]
            before, img = {key: value.data_ptr() for key, value in tensors.items()}, batch["img"]
            after = super().preprocess_batch(batch)
            wrong += [f"{key} was copied" for key, at in before.items() if key != "img" and after[key].data_ptr() != at]
            if img.dtype != torch.uint8 or not torch.equal(after["img"], img.float() / 255):
                wrong.append("img is another")
            found.append(wrong)
            return after

    return Watched


@pytest.mark.parametrize(
    ("task", "residency"),
    [
        ("detect", "auto"), ("detect", "device"), ("detect", "pinned"), ("detect", "stream"),
        ("segment", "stream"), ("segment", "device"), ("pose", "device"), ("obb", "pinned"),
    ],
)  # fmt: skip
def test_a_network_is_trained_and_validated_on_a_gpu(
    task: str, residency: str, sets: dict[str, tuple[Path, Path]], tmp_path: Path, seen: list[tuple[bool, int, str]]
) -> None:
    """Everything that touches a batch takes tensors of the GPU: losses, plots by threads, metrics. Nothing is copied twice."""
    data, out = sets[task]
    found: list[list[str]] = []
    trainer = accelerate(watched(TRAINERS[task], found), out, residency=residency)
    train(trainer, NETWORKS[task], tmp_path, data, plots=True, **ON_GPU)
    assert found == [[]] * 4
    with open(tmp_path / "run/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert all(math.isfinite(float(value)) for row in rows for key, value in row.items() if "loss" in key)
    assert float(rows[-1]["metrics/mAP50(B)"]) >= 0
    first = "stream" if residency == "auto" else residency
    later = "device" if residency == "auto" else residency
    assert [where for training, _, where in seen if training] == [first] * 2 + [later] * 2
    assert {where for training, _, where in seen if not training} == {first}
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"labels.jpg", "train_batch0.jpg", "val_batch0_labels.jpg", "val_batch0_pred.jpg", "results.png"} <= files


@pytest.mark.parametrize("mode", ["train", "val"])
@pytest.mark.parametrize("task", TRAINERS)
def test_batches_are_those_that_the_processor_makes(
    task: str, mode: str, sets: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """Labels and masks bit for bit, pixels as near as both are to the reference."""
    data, out = sets[task]
    batches = []
    for device in ("auto", "cpu"):
        overrides = settings(tmp_path, data, model=NETWORKS[task], hsv_h=0.0, hsv_s=0.0, hsv_v=0.0, **ON_GPU)
        trainer = accelerate(TRAINERS[task], out, device=device)(overrides=overrides)
        trainer.setup_model()
        trainer.stride = 32
        loader = trainer.get_dataloader(trainer.data[mode], batch_size=8, rank=-1, mode=mode)
        batches.append(list(loader))
        loader.close()
    assert len(batches[0]) == len(batches[1]) > 0
    levels = TOLERANCES["cpu"].levels + TOLERANCES["cuda"].levels
    for ours, theirs in zip(*batches, strict=True):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            if not isinstance(value, torch.Tensor):
                assert ours[key] == value
                continue
            assert (ours[key].device.type, value.device.type) == ("cuda", "cpu")
            if key == "img":
                assert int((ours[key].cpu().int() - value.int()).abs().max()) <= levels
            else:
                assert torch.equal(ours[key].cpu(), value), key


@pytest.mark.parametrize("task", TRAINERS)
def test_a_validation_by_itself_takes_batches_of_the_gpu(
    task: str, sets: dict[str, tuple[Path, Path]], tmp_path: Path, seen: list[tuple[bool, int, str]]
) -> None:
    """In inference mode, with text and JSON of what was found, and plots."""
    data, out = sets[task]
    run = tmp_path / "train"
    train(accelerate(TRAINERS[task], out), NETWORKS[task], run, data, **ON_GPU | {"epochs": 1})
    seen.clear()
    validator = accelerate_validator(VALIDATORS[task], out, residency="device")
    names = ("data", "project", "name", "exist_ok", "verbose")
    kept = {name: value for name, value in settings(tmp_path, data).items() if name in names}
    more = {"imgsz": 96, "batch": 4, "device": 0, "plots": True, "save_txt": True, "conf": 0.0001, "workers": 2}
    YOLO(run / "run/weights/last.pt").val(validator=validator, save_json=task == "detect", **kept | more)
    assert [(training, size, where) for training, size, where in seen] == [(False, 4, "device")] * 2
    assert (tmp_path / "run/val_batch0_labels.jpg").exists()
    assert len(list((tmp_path / "run/labels").iterdir())) > 0


@pytest.fixture
def capped(gpu: Any) -> Iterator[None]:
    """Take a cap on memory away again."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, gpu)
    torch.cuda.empty_cache()


def test_a_model_that_finds_no_memory_gets_that_of_the_pictures(
    gpu: Any, tmp_path: Path, capped: None, seen: list[tuple[bool, int, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """The allocator itself refuses: the batch stays as large as it was, and the trainer's halving is not used up."""
    side_px, count, room = 640, 96, 1 << 30
    data = dataset(tmp_path / "set", "detect", count, size_hw=((side_px, side_px),), splits={"train": 0.9, "val": 0.1})
    out = store(data, tmp_path / "x.lmdb", "detect", side_px)

    class Hungry(DetectionTrainer):
        """Wants a GiB and half of the pictures' memory with every batch, and has a GiB and what batches ahead leave of it."""

        need = 0

        def preprocess_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            if not self.need:
                pictures = 3 * side_px**2 * len(self.train_loader.dataset)
                torch.cuda.empty_cache()
                total = torch.cuda.get_device_properties(gpu).total_memory
                torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(gpu) + room) / total, gpu)
                self.need = room + pictures // 2
            torch.empty(self.need, dtype=torch.uint8, device=gpu)
            return super().preprocess_batch(batch)

    trainer = accelerate(Hungry, out, residency="device", reserve_gb=0)
    more = {"imgsz": side_px, "batch": 4, "epochs": 1, "val": False, "device": 0, "workers": 2}
    model = train(trainer, TINY, tmp_path, data, **more)
    training = [(size, where) for is_training, size, where in seen if is_training]
    assert training[:2] == [(4, "device"), (4, "pinned")]
    assert {where for _, where in training[1:]} == {"pinned"}
    assert model.trainer.batch_size == 4
    assert capfd.readouterr().err.count("the batch stays at 4: it is tried again without pictures in GPU memory") == 1
