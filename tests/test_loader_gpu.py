"""The loader with a GPU: the same batches as without, from wherever the pictures are, and the same manners."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import gpu_kit
import numpy as np
import pytest
import torch
from loader_gpu_kit import ON_GPU, assert_same, drawn, gpu_loader, maker_of
from loader_kit import WAIT_S, all_threads_end, threads
from residency_kit import stored
from training_kit import TASKS, converted, damage, flat, opened

from fastdata.augment.policy import Policy
from fastdata.errors import FastdataError, StoreError, UsageError
from fastdata.loader import Loader
from fastdata.samples import Samples

pytestmark = pytest.mark.timeout(120)

SETTINGS: dict[str, Any] = {"imgsz": 64, "seed": 5, "epochs": 4, "policy": Policy(mixup=0.5, degrees=5.0, close_mosaic=2)}

__all__ = ["drawn"]


@pytest.fixture(autouse=True)
def _no_thread_is_left(drawn: None) -> Iterator[None]:  # whose end would let threads that are left draw otherwise
    yield
    assert all_threads_end()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eleven pictures."""
    return converted(tmp_path_factory.mktemp("store"), "detect", 11)


@pytest.mark.parametrize("residency", ["device", "pinned", "stream"])
def test_batches_are_those_of_the_processor_wherever_the_pictures_are(residency: str, path: Path) -> None:
    """Over the epoch at which the mosaic closes."""
    ours = gpu_loader(opened(path), 3, residency=residency, threads=3, **SETTINGS)
    theirs = Loader(opened(path), 3, threads=1, **SETTINGS)
    for _ in range(4):
        assert assert_same(ours, theirs) == 4
        assert ours.residency == residency
    assert ours.why.endswith("as asked for")


@pytest.mark.parametrize("kind", ["mixed", "parts"])
def test_pictures_that_are_gray_coded_or_parts_of_others(kind: str, tmp_path: Path) -> None:
    """In the size of the store, and in another."""
    path = stored(tmp_path, kind)
    for imgsz in (64, 96):
        for residency in ("device", "pinned", "stream"):
            options: dict[str, Any] = {"imgsz": imgsz, "policy": Policy(mosaic=0.5)}
            assert_same(gpu_loader(opened(path), 4, residency=residency, **options), Loader(opened(path), 4, **options))


def test_jpegs_are_decoded_on_the_way(tmp_path: Path) -> None:
    """Within what a decoder of a GPU may be off; ``auto`` begins so for a store of them."""
    path = stored(tmp_path, "jpeg")
    for residency in ("decode", "auto"):
        ours = gpu_loader(opened(path), 3, residency=residency, imgsz=64)
        assert_same(ours, Loader(opened(path), 3, imgsz=64), levels=255 if ON_GPU else 1)
        assert ours.residency == "decode"


@pytest.mark.parametrize("task", TASKS)
def test_labels_of_every_task_come_along(task: Any, tmp_path: Path) -> None:
    """Bit for bit, masks included, which kernels fill."""
    path = converted(tmp_path, task, 5, size_hw=[(32, 32)], imgsz=32)
    options: dict[str, Any] = {"imgsz": 32, "policy": Policy(mosaic=0.5)}
    assert assert_same(gpu_loader(opened(path), 3, **options), Loader(opened(path), 3, **options)) == 2
    if task == "segment":
        options |= {"overlap_mask": False, "augment": False}
        assert assert_same(gpu_loader(opened(path), 3, **options), Loader(opened(path), 3, **options)) == 2


@pytest.mark.parametrize("rect", [False, True])
def test_validation_is_exact_over_two_ranks(rect: bool, path: Path) -> None:
    """In order, each batch of its shape when rect."""
    for rank in range(2):
        options = SETTINGS | {"augment": False, "rect": rect, "rank": rank, "world_size": 2}
        assert assert_same(gpu_loader(opened(path), 2, **options), Loader(opened(path), 2, **options)) == 3


def test_a_batch_of_more_samples_than_are_planned_in_one_call_and_of_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many are planned together changes nothing."""
    for planned in (1, 5, 100):
        monkeypatch.setattr("fastdata.gpu_maker.PLANNED", planned)
        for batch_size in (1, 2, 11):
            ours, theirs = (make(opened(path), batch_size, **SETTINGS) for make in (gpu_loader, Loader))
            assert_same(ours, theirs)


@pytest.mark.parametrize("on_gpu", [False, True], ids=["interpreter or host", "kernels"])
def test_numbers_and_memory_format_are_those_asked_for(on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn by kernels, and by the processor and then copied: 0..1 is the level over 255, rounded to the type."""
    monkeypatch.undo()
    if not on_gpu:
        monkeypatch.setattr("fastdata.render.cuda.unsupported", lambda device: "of a test")
    path = flat(tmp_path, 2, (32, 32))
    options: dict[str, Any] = {"imgsz": 32, "policy": "none", "shuffle": False, "threads": 1}
    (want,) = Loader(opened(path), 2, **options)
    level = want["img"].float() / 255
    forms = [("uint8", True), ("float16", True), ("bfloat16", False), ("float32", False)]
    for dtype, channels_last in forms if not on_gpu or ON_GPU else forms[1:3]:
        (batch,) = gpu_loader(opened(path), 2, dtype=dtype, channels_last=channels_last, **options)
        img = batch["img"]
        assert img.dtype == getattr(torch, dtype)
        assert img.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        assert (img.float().cpu() / (255 if dtype == "uint8" else 1) - level).abs().max() < 1.5 / 255 + 1 / 256


def test_a_run_goes_on_where_it_was_left_in_the_middle_of_an_epoch(path: Path) -> None:
    """Also from a loader that draws by the processor."""
    want = list(Loader(opened(path), 3, threads=1, **SETTINGS))
    first = gpu_loader(opened(path), 3, **SETTINGS)
    head = list(islice(first, 2))
    for make in (gpu_loader, Loader):
        second = make(opened(path), 3, **SETTINGS)
        second.load_state_dict(first.state_dict())
        rest = [
            {key: value.to(head[0]["img"].device) if hasattr(value, "to") else value for key, value in b.items()} for b in second
        ]
        assert_same(head + rest, want)


def test_an_iteration_that_is_left_early_leaves_nothing_behind(path: Path) -> None:
    """The next one is the next epoch, whole; one that somebody holds on to goes on rightly when it is asked again."""
    ours, theirs = gpu_loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **SETTINGS)
    want = [list(theirs) for _ in range(3)]
    for _ in zip(range(2), ours, strict=False):
        pass
    assert all_threads_end()
    held = iter(ours)
    head = [next(held), next(held)]
    assert_same(ours, want[2])
    assert_same(head + list(held), want[1])


def test_reset_and_close_make_what_is_ahead_anew(path: Path) -> None:
    """With the samples as they are then, whatever was planned already."""
    settings = SETTINGS | {"policy": Policy(), "epochs": None}
    for end in ("reset", "close"):
        ours, theirs = gpu_loader(opened(path), 2, **settings), Loader(opened(path), 2, **settings)
        batches = iter(ours), iter(theirs)
        assert_same([next(batches[0])], [next(batches[1])])
        for loader in (ours, theirs):
            loader.samples.policy = Policy(mosaic=0.0)
            getattr(loader, end)()
        assert threads() == []
        assert_same(*batches)


def test_a_loader_that_nobody_holds_ends_its_threads_and_frees_its_memory(path: Path) -> None:
    """Also while an iteration was under way."""
    loader = gpu_loader(opened(path), 2, residency="device", **SETTINGS)
    iterator = iter(loader)
    next(iterator)
    maker = maker_of(loader)
    assert maker._opened is not None
    del loader, iterator, maker
    gc.collect()
    assert all_threads_end()


def test_a_loader_can_be_copied_and_sent_to_a_process(path: Path) -> None:
    """It opens its pictures anew."""
    loader = gpu_loader(opened(path), 3, residency="device", **SETTINGS)
    want = list(loader)
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        other.set_epoch(0)
        assert other.residency == "device"
        for a, b in zip(other, want, strict=True):
            assert torch.equal(a["img"], b["img"])
            assert torch.equal(a["bboxes"], b["bboxes"])


def test_two_loaders_at_once_do_not_disturb_each_other(path: Path) -> None:
    """Training and validation, batch by batch."""
    val = SETTINGS | {"augment": False}
    ours = gpu_loader(opened(path), 2, residency="device", **SETTINGS), gpu_loader(opened(path), 2, **val)
    theirs = Loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **val)
    pairs = list(zip(*ours, strict=True))
    assert_same([a for a, _ in pairs], theirs[0])
    assert_same([b for _, b in pairs], theirs[1])


@pytest.mark.parametrize("residency", ["stream", "host"])
def test_damage_is_told_at_its_batch_with_cause_and_pictures(
    residency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the batches before it, in the words of the store."""
    path = flat(tmp_path, 9)
    damage(path, 4)
    if residency == "host":
        monkeypatch.setattr("fastdata.render.cuda.unsupported", lambda device: "of a test")
    loader, got = gpu_loader(opened(path), 2, augment=False, imgsz=64), list[Any]()
    with pytest.raises(StoreError, match=r"^004\.png: .*in batch 2 of epoch 0, of ids \[4, 5\]: 004\.png, 005\.png$"):
        got.extend(loader)
    assert loader.residency == residency
    assert len(got) == 2
    assert threads() == []


@pytest.mark.parametrize("residency", ["device", "pinned"])
def test_damage_is_told_when_all_pictures_are_to_be_kept(residency: str, tmp_path: Path) -> None:
    """With the key of the picture, before the first batch."""
    path = flat(tmp_path, 9)
    damage(path, 4)
    with pytest.raises(StoreError, match=r"^004\.png: "):
        next(iter(gpu_loader(opened(path), 2, residency=residency, imgsz=64)))


@pytest.mark.parametrize("residency", ["device", "pinned", "stream"])
def test_samples_are_planned_anew_without_what_is_damaged(residency: str, tmp_path: Path) -> None:
    """As the processor's loader does, whichever thread meets it first."""
    path = flat(tmp_path, 12)
    for entry in (2, 7):
        damage(path, entry)
    options = SETTINGS | {"on_bad": "replan"}
    ours, theirs = gpu_loader(opened(path), 2, residency=residency, **options), Loader(opened(path), 2, threads=1, **options)
    for _ in range(2):
        assert_same(ours, theirs)
    assert ours.state_dict()["bad"] == [2, 7]


def test_a_batch_that_cannot_be_planned_is_the_only_one_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is planned in one call with those before it."""
    loader = gpu_loader(opened(path), 2, shuffle=False, **SETTINGS)
    plan = Samples.recipe

    def recipe(self: Samples, ids: Any, *rest: Any) -> Any:
        if 6 in ids:
            raise ValueError("six")
        return plan(self, ids, *rest)

    monkeypatch.setattr(Samples, "recipe", recipe)
    got = list[Any]()
    with pytest.raises(FastdataError, match=r"^ValueError: six; in batch 3 of epoch 0, of ids \[6, 7\]"):
        got.extend(loader)
    assert len(got) == 3


def test_an_error_of_memory_keeps_its_type(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer knows it by that, and tries again with a smaller batch."""
    loader = gpu_loader(opened(path), 2, **SETTINGS)
    iterator = iter(loader)
    next(iterator)

    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")

    monkeypatch.setattr("fastdata.gpu_maker.GpuMaker._drawn", full)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        list(iterator)
    assert threads() == []


def test_no_more_is_made_ahead_than_was_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads with room for two batches each, of which the consumer has taken one: a fifth is not begun."""
    made, fourth, fifth = list[int](), threading.Event(), threading.Event()
    batch = Samples.batch

    def counted(self: Samples, *args: Any) -> Any:
        made.append(1)
        if len(made) >= 4:
            (fourth if len(made) == 4 else fifth).set()
        return batch(self, *args)

    monkeypatch.setattr(Samples, "batch", counted)
    iterator = iter(gpu_loader(opened(path), 1, prefetch=2, **SETTINGS))
    next(iterator)
    assert fourth.wait(WAIT_S)
    assert not fifth.wait(0.2)


def test_labels_can_be_changed_one_by_one(path: Path) -> None:
    """They lie in one piece of memory, and autograd must not take a change of one for a change of another."""
    (batch, *_) = list(gpu_loader(opened(path), 6, **SETTINGS))
    weight = torch.ones_like(batch["bboxes"], requires_grad=True)
    loss = (weight * batch["bboxes"]).sum()
    was = batch["bboxes"].clone()
    batch["cls"].add_(1)
    batch["batch_idx"].zero_()
    loss.backward()
    assert torch.equal(weight.grad, was)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"residency": "disk"}, "residency must be one of auto, device, pinned, stream, decode, got 'disk'"),
        ({"dtype": "float64"}, "dtype must be one of uint8, float16, bfloat16, float32, got 'float64'"),
        ({"reserve_gb": -1}, "reserve_gb must be a number of at least 0, or None, got -1"),
        ({"reserve_gb": float("nan")}, "reserve_gb must be a number"),
        ({"reserve_gb": float("inf")}, "reserve_gb must be a number"),
        ({"reserve_gb": True}, "reserve_gb must be a number"),
        ({"reserve_gb": "1"}, "reserve_gb must be a number"),
        (
            {"device": None, "residency": "device"},
            "residency, reserve_gb, dtype, channels_last and read_ahead must come with a GPU",
        ),
    ],
)
def test_arguments_that_break_their_rule(options: dict[str, Any], says: str, path: Path) -> None:
    """Refused when the loader is made."""
    with pytest.raises(UsageError, match=says):
        gpu_loader(opened(path), 2, imgsz=64, **options)


@pytest.mark.parametrize(("gb", "nbytes"), [(0, 0), (np.float32(0.5), 500_000_000), (1e300, 10**15), (10**400, 10**15)])
def test_any_number_can_be_a_reserve(gb: Any, nbytes: int, path: Path) -> None:
    """NumPy's own, and one that no float holds: then no picture is kept."""
    assert maker_of(gpu_loader(opened(path), 2, imgsz=64, reserve_gb=gb))._opener.reserve_nbytes == nbytes


def test_ordinary_memory_stands_for_no_gpu_by_itself(path: Path) -> None:
    """A loader that was not told of a GPU is the processor's, and says so."""
    for device in (None, "cpu", torch.device("cpu")):
        loader = Loader(opened(path), 2, device=device, imgsz=64)
        assert (loader.device, loader.residency, loader.release()) == (None, "host", 0)
    assert gpu_loader(opened(path), 2, imgsz=64).device == gpu_kit.any_device()
