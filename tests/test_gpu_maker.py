"""What makes batches on a GPU: plans of several batches, where pictures move and when, what stands in, what is said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loader_gpu_kit import assert_same, drawn, gpu_loader, maker_of
from loader_kit import WAIT_S, all_threads_end, threads
from training_kit import converted, opened

from fastdata.augment.policy import Policy
from fastdata.augment.recipe import differences
from fastdata.errors import UsageError
from fastdata.gpu_maker import Plans, device_of, is_out_of_memory
from fastdata.loader import Loader
from fastdata.residency.budget import DoesNotFit
from fastdata.residency.lane import Lane
from fastdata.residency.open import Opener
from fastdata.samples import Samples

pytestmark = pytest.mark.timeout(120)

__all__ = ["drawn"]

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {"imgsz": 64, "seed": 5, "policy": Policy(mosaic=0.5)}


@pytest.fixture(autouse=True)
def _no_thread_is_left(drawn: None) -> Iterator[None]:  # whose end would let threads that are left draw otherwise
    yield
    assert all_threads_end()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eleven pictures."""
    return converted(tmp_path_factory.mktemp("store"), "detect", 11)


def counted(path: Path, **options: Any) -> tuple[Samples, list[list[int]]]:
    """Samples, and the ids of each call that planned."""
    samples, calls = Samples(opened(path), **SETTINGS, **options), list[list[int]]()
    plan = samples.recipe

    def recipe(ids: Any, *rest: Any) -> Any:
        calls.append(np.asarray(ids).tolist())
        return plan(ids, *rest)

    samples.recipe = recipe  # type: ignore[method-assign]
    return samples, calls


def pairs(k: int) -> Any:
    """Ids of batches of two of eleven."""
    return np.arange(11)[2 * k : 2 * k + 2]


def test_a_recipe_that_was_planned_with_others_is_the_one_planned_alone(path: Path) -> None:
    """Bit for bit; the last batch and the last group are shorter."""
    samples, calls = counted(path)
    plans = Plans(samples, pairs, 6, 1, together=4, ahead=4)
    recipes = [plans.of(k) for k in range(6)]
    assert calls == [list(range(8)), [8, 9, 10]]
    for k, recipe in enumerate(recipes):
        assert recipe is not None
        assert differences(recipe, samples.recipe(pairs(k), 1)) == []


def test_threads_that_want_batches_of_one_group_plan_it_once(path: Path) -> None:
    """The others wait for the one that came first."""
    samples, calls = counted(path)
    plan, began, go = samples.recipe, threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        began.set()
        assert go.wait(WAIT_S)
        return plan(*args)

    samples.recipe = slowly  # type: ignore[method-assign]
    plans, got = Plans(samples, pairs, 6, 0, together=3, ahead=9), dict[int, Any]()
    workers = [threading.Thread(target=lambda k=k: got.update({k: plans.of(k)})) for k in range(3)]
    workers[0].start()
    assert began.wait(WAIT_S)
    for worker in workers[1:]:
        worker.start()
    go.set()
    for worker in workers:
        worker.join(WAIT_S)
    assert calls == [list(range(6))]
    assert [len(got[k]) for k in range(3)] == [2, 2, 2]


def test_plans_are_kept_for_batches_in_the_making_and_no_longer(path: Path) -> None:
    """However many batches an epoch has; what is asked for again is planned again."""
    samples, calls = counted(path)
    plans = Plans(samples, lambda k: np.array([k % 11]), 1000, 0, together=2, ahead=4)
    for k in range(300):
        plans.of(k)
        assert len(plans._made) <= 4
    plans.of(0)
    assert len(calls) == 151
    plans.clear()
    plans.of(300)
    plans.of(301)
    assert len(calls) == 152


def test_a_group_that_cannot_be_planned_is_left_to_its_batches(path: Path) -> None:
    """Each of which then finds out by itself, and the one that is wrong says so."""
    samples, _ = counted(path)
    plans = Plans(samples, lambda k: np.array([k * 3]), 6, 0, together=6, ahead=6)
    assert [plans.of(k) for k in range(6)] == [None] * 6


def test_what_asks_for_it_is_told_when_a_batch_has_been_made() -> None:
    """The rest is held until then; in ordinary memory that is at once."""
    told, lane = [], Lane(CPU)
    with lane.used():
        assert lane.mark((SimpleNamespace(after=told.append), object())) is None
    assert told == [None]
    assert not lane._held
    lane.finish()


def test_buffers_are_told_also_when_a_batch_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a run that goes on after errors would lock more and more memory."""
    loader = gpu_loader(opened(path), 2, threads=1, residency="stream", **SETTINGS)
    next(iter(loader))
    assert all_threads_end()
    maker = maker_of(loader)
    held = list[Any]()
    mark = Lane.mark
    monkeypatch.setattr(Lane, "mark", lambda lane, hold: held.extend(hold) or mark(lane, hold))

    def fails(*args: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr("fastdata.gpu_maker.GpuMaker._drawn", fails)
    with pytest.raises(KeyError):
        maker.make(np.arange(2), 0)
    assert any(hasattr(one, "after") for one in held)
    assert len(maker._lanes) >= 1
    assert maker._making == 0


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", "device must be None, 'cpu', 'cuda', 'cuda:<number>' or a torch.device, got 'gpu'"),
        (1.5, "device must be None, 'cpu'"),
        ("mps", "device must be the processor or a CUDA device, got 'mps'"),
        ("cuda:99", "device must be one"),
    ],
)
def test_a_device_that_is_none(device: Any, says: str) -> None:
    """Told with what may be given."""
    with pytest.raises(UsageError, match=says):
        device_of(device)


def test_without_cuda_a_gpu_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for by name: silently training without it would take days to be noticed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UsageError, match=r"device must be one that is there, got 'cuda', and torch finds no GPU.*set device='cpu'"
    ):
        device_of("cuda")
    assert device_of("cpu") is device_of(None) is device_of(torch.device("cpu")) is None


def test_which_errors_are_of_gpu_memory() -> None:
    """By type and text, as the trainer tells them."""
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(MemoryError("out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Say where the pictures fit; ``stream``: nowhere."""

    def fits(name: str) -> None:
        monkeypatch.setattr(Opener, "_choice", lambda self: (name, f"numbers of {name}"))

    return fits


def test_auto_begins_by_streaming_and_moves_up_once_an_epoch_has_been_seen(
    path: Path, card: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so; the batches are the same."""
    card("device")
    ours, theirs = gpu_loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **SETTINGS)
    assert ours.residency == "auto"
    seen = []
    for _ in range(3):
        assert assert_same(ours, theirs) == 6
        seen.append(ours.residency)
    assert seen == ["stream", "device", "device"]
    assert ours.why == "pictures are in GPU memory from now on: numbers of device"
    assert capsys.readouterr().err.count("fastdata: pictures are in GPU memory from now on: numbers of device\n") == 1


def test_auto_does_not_move_up_before_a_whole_epoch_nor_within_one(path: Path, card: Callable[[str], None]) -> None:
    """Epochs that are left early have not shown what the training takes."""
    card("device")
    loader = gpu_loader(opened(path), 2, **SETTINGS)
    for _ in range(2):
        list(islice(loader, 3))
        assert loader.residency == "stream"
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
        assert loader.residency == "stream"
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.residency == "stream"
    next(iter(loader))
    assert loader.residency == "device"


@pytest.mark.parametrize(("fits", "then"), [("pinned", "pinned"), ("stream", "stream")])
def test_auto_moves_to_what_there_is_room_for(
    fits: str, then: str, path: Path, card: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Main memory, or nowhere; the reason is told once."""
    card(fits)
    ours, theirs = gpu_loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **SETTINGS)
    for _ in range(3):
        assert_same(ours, theirs)
    assert ours.residency == then
    assert capsys.readouterr().err.count(f"numbers of {fits}") == 1


def test_auto_stays_where_it_is_when_the_memory_is_not_there_after_all(
    path: Path, card: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the numbers said."""

    def full(*args: Any, **options: Any) -> Any:
        raise DoesNotFit("taken meanwhile")

    card("device")
    monkeypatch.setattr("fastdata.residency.open.Device", full)
    monkeypatch.setattr("fastdata.residency.open.Pinned", full)
    ours, theirs = gpu_loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **SETTINGS)
    for _ in range(2):
        assert_same(ours, theirs)
    assert ours.residency == "stream"
    assert ours.why == "pictures are streamed from the store: numbers of device; taken meanwhile; taken meanwhile"


def test_memory_is_given_back_in_the_middle_of_an_epoch(
    path: Path, card: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, in a line; the epoch goes on, and ``auto`` does not take it again."""
    card("device")
    ours, theirs = gpu_loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **SETTINGS)
    assert_same(ours, theirs)
    iterator, want = iter(ours), list(theirs)
    assert_same(islice(iterator, 2), want[:2])
    maker = maker_of(ours)
    assert maker._opened is not None
    source: Any = maker._opened.source
    kept = source.nbytes_device
    assert kept > 0
    assert ours.release() == kept
    assert threads() == []
    assert (source.nbytes_device, ours.residency) == (0, "stream")
    assert "GPU memory were given back: pictures are streamed" in capsys.readouterr().err
    assert ours.release() == 0
    assert_same(iterator, want[2:])
    for _ in range(2):
        assert_same(ours, theirs)
    assert ours.residency == "stream"
    assert capsys.readouterr().err == ""


def test_auto_takes_no_memory_any_more_once_it_was_asked_to_give_it_back(path: Path, card: Callable[[str], None]) -> None:
    """Also where it had taken none yet: the training has run out of it."""
    card("device")
    loader = gpu_loader(opened(path), 2, **SETTINGS)
    list(loader)
    assert loader.release() == 0
    for _ in range(2):
        list(loader)
        assert loader.residency == "stream"


def test_memory_stays_given_back_when_a_loader_is_closed_and_used_again(path: Path, card: Callable[[str], None]) -> None:
    """Also where it was asked for."""
    card("device")
    loader = gpu_loader(opened(path), 2, residency="device", **SETTINGS)
    assert loader.release() == 0
    next(iter(loader))
    assert loader.residency == "stream"
    loader.close()
    next(iter(loader))
    assert loader.residency == "stream"


def test_pictures_are_let_go_only_when_nobody_makes_a_batch_of_them(path: Path, card: Callable[[str], None]) -> None:
    """An iteration that went without being ended leaves threads at work for a moment."""
    card("device")
    loader = gpu_loader(opened(path), 2, residency="device", **SETTINGS)
    next(iter(loader))
    assert all_threads_end()
    maker, began, go = maker_of(loader), threading.Event(), threading.Event()
    assert maker._opened is not None
    source: Any = maker._opened.source
    fetch = source.fetch

    def slowly(recipe: Any) -> Any:
        began.set()
        assert go.wait(WAIT_S)
        return fetch(recipe)

    source.fetch = slowly
    worker = threading.Thread(target=maker.make, args=(np.arange(2), 0))
    worker.start()
    assert began.wait(WAIT_S)
    closer = threading.Thread(target=maker.close)
    closer.start()
    closer.join(0.1)
    assert source.nbytes_device > 0
    go.set()
    worker.join(WAIT_S)
    closer.join(WAIT_S)
    assert source.nbytes_device == 0


def _host(why: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Take away what drawing on a GPU needs; return options for the loader."""
    if why == "Triton is not installed":
        monkeypatch.setattr("fastdata.render.cuda.unsupported", lambda device: "Triton is not installed")
    elif why == "Triton cannot compile":

        def fails(*args: Any) -> Any:
            raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

        monkeypatch.setattr("fastdata.gpu_maker.GpuMaker._drawn", fails)
    else:
        albumentations = pytest.importorskip("albumentations")
        return {"transforms": albumentations.Compose([albumentations.InvertImg(p=1.0)])}
    return {}


@pytest.mark.parametrize("why", ["Triton is not installed", "Triton cannot compile", "transforms are applied"])
def test_the_processor_draws_where_the_gpu_cannot(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same batches, masks included, and one line that says why."""
    options: dict[str, Any] = SETTINGS | _host(why, monkeypatch) | {"imgsz": 32, "policy": Policy(mosaic=0.0)}
    path = converted(tmp_path, "segment", 4, size_hw=[(32, 32)], imgsz=32)
    ours, theirs = gpu_loader(opened(path), 2, residency="device", **options), Loader(opened(path), 2, **options)
    for _ in range(2):
        assert assert_same(ours, theirs, levels=0) == 2
    assert ours.residency == "host"
    assert why in ours.why
    assert capsys.readouterr().err.count(why) == 1


def test_auto_moves_up_again_in_a_loader_that_was_closed(path: Path, card: Callable[[str], None]) -> None:
    """Nothing has changed but that it was closed."""
    card("device")
    loader = gpu_loader(opened(path), 2, **SETTINGS)
    for _ in range(2):
        list(loader)
    assert loader.residency == "device"
    loader.close()
    list(loader)
    assert loader.residency == "device"


def test_only_the_first_rank_says_something(path: Path, card: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """All of them do the same."""
    card("device")
    for rank, lines in ((1, 0), (0, 1)):
        loader = gpu_loader(opened(path), 2, rank=rank, world_size=2, **SETTINGS)
        for _ in range(2):
            list(loader)
        assert loader.residency == "device"
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_records_are_read_ahead_where_pictures_come_from_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch's when it is planned; not where they are in memory, nor where the user wants none."""
    for residency, read_ahead, expected in (("stream", True, 6), ("stream", False, 0), ("device", True, 0)):
        seen: list[int] = []
        monkeypatch.setattr("fastdata.gpu_maker.will_need", lambda store, recipe: seen.append(len(recipe)))  # noqa: B023
        list(gpu_loader(opened(path), 2, residency=residency, read_ahead=read_ahead, **SETTINGS))
        assert len(seen) == expected
