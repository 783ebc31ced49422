"""The loader on a real GPU: nothing is read or written too early, memory has a bound, and the training comes first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_kit
import numpy as np
import pytest
import torch
from loader_gpu_kit import maker_of
from loader_kit import all_threads_end
from training_kit import flat, opened

import fastdata
from fastdata.augment.policy import Policy
from fastdata.gpu_maker import QUEUED
from fastdata.loader import Loader
from fastdata.residency.budget import reserve_of
from fastdata.residency.lane import Lane

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LONG = 20_000_000
"""Cycles that a stream is kept busy: 10 ms, in which threads make many batches."""
SETTINGS: dict[str, Any] = {"imgsz": 64, "seed": 5, "policy": Policy(mixup=0.5, degrees=5.0)}


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[Any]:
    device = gpu_kit.needs_cuda()
    yield device
    assert all_threads_end()
    torch.cuda.synchronize()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of pictures of noise, some with outlines."""
    out = tmp_path_factory.mktemp("store") / "noise.lmdb"
    chance = np.random.default_rng(0)
    with fastdata.create(out, names=["a", "b"]) as writer:
        for i in range(24):
            h, w = chance.integers(40, 65, 2).tolist()
            picture = chance.integers(0, 256, (h, w, 3), np.uint8)
            writer.add(picture, boxes=[[4, 4, w - 9, h - 5], [9, 2, w // 2, h // 2]], classes=[i % 2, 1], key=f"{i:02d}.png")
    return out


def on_host(batch: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a batch, in ordinary memory."""
    return {key: value.cpu() for key, value in batch.items() if isinstance(value, torch.Tensor)}


def one_by_one(loader: Loader, epochs: int) -> list[dict[str, Any]]:
    """All batches, each waited for before the next is asked for."""
    out = []
    for _ in range(epochs):
        for batch in loader:
            torch.cuda.synchronize()
            out.append(on_host(batch))
    return out


def poison(loader: Loader) -> None:
    """Fill what the streams of a loader have of the allocator with a pattern that no batch is made of."""
    torch.cuda.synchronize()
    for lane in list(maker_of(loader)._lanes):
        with lane.used():
            memory = [torch.full((nbytes,), 0xAB, dtype=torch.uint8, device="cuda") for nbytes in (1 << 14, 1 << 17, 1 << 20)] * 4
            del memory
    torch.cuda.synchronize()


@pytest.mark.parametrize("slow", ["maker", "consumer"])
@pytest.mark.parametrize("residency", ["device", "pinned", "stream", "host"])
def test_nothing_is_read_or_written_too_early(residency: str, slow: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches equal those that were waited for, bit for bit, while one side is far behind the other.

    Where makers are slow the consumer would read what is not drawn yet; where the consumer is slow they would draw into what it
    has not read yet. Memory is full of a pattern before.
    """
    options: dict[str, Any] = SETTINGS | {"device": "cuda", "residency": "stream" if residency == "host" else residency}
    if residency == "host":
        monkeypatch.setattr("fastdata.render.cuda.unsupported", lambda device: "of a test")
    want = one_by_one(Loader(opened(path), 4, threads=1, **options), 3)
    loader = Loader(opened(path), 4, threads=4, **options)
    list(loader)
    loader.set_epoch(0)
    poison(loader)
    if slow == "maker":
        used = Lane.used

        @contextmanager
        def busy(lane: Lane) -> Iterator[None]:
            with used(lane):
                torch.cuda._sleep(LONG)
                yield

        monkeypatch.setattr(Lane, "used", busy)
    got, stream = list[dict[str, Any]](), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            for batch in loader:
                if slow == "consumer":
                    torch.cuda._sleep(LONG)
                got.append({key: value.clone() for key, value in batch.items() if isinstance(value, torch.Tensor)})
                del batch  # its memory is free, as far as the program knows
        stream.synchronize()
        results = [on_host(batch) for batch in got]
    assert loader.residency == residency
    assert len(results) == len(want) == 18
    for k, (a, b) in enumerate(zip(results, want, strict=True)):
        for key, value in b.items():
            assert torch.equal(a[key], value), (k, key)


@pytest.mark.parametrize("residency", ["device", "stream"])
def test_memory_has_a_bound_however_far_the_program_is_ahead(residency: str, tmp_path: Path) -> None:
    """Of a program that never looks at a result, over 200 batches."""
    path = flat(tmp_path, 256)
    loader = Loader(opened(path), 32, imgsz=320, device="cuda", residency=residency, threads=2, prefetch=2, policy="none")
    assert len(loader) == 8
    nbytes = next(iter(loader))["img"].numel()
    assert all_threads_end()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(25):
        for batch in loader:
            torch.cuda._sleep(LONG // 4)
            del batch
    # Made ahead, in the consumer's queue, in its hands and in the making: the picture, and the pixels that travelled for it.
    most = (4 + QUEUED + 2) * nbytes + 2 * 2 * nbytes
    assert torch.cuda.max_memory_allocated() - before <= 1.25 * most


def test_a_trainer_copies_nothing(path: Path) -> None:
    """All tensors are where ``preprocess_batch`` wants them."""
    batch = next(iter(Loader(opened(path), 4, device="cuda", **SETTINGS)))
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 4
    for value in tensors:
        assert value.to(torch.device("cuda", 0), non_blocking=True) is value


def test_cuda_is_the_current_device_when_the_loader_is_made(path: Path) -> None:
    """With its number, so that a thread of another device makes no difference."""
    assert Loader(opened(path), 4, device="cuda", imgsz=64).device == torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def capped(request: pytest.FixtureRequest, _gpu: Any) -> Iterator[int]:
    """Bytes of a card of so many GB: PyTorch gives out no more."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(_gpu).total_memory
    nbytes = int(request.param * 1e9)
    if nbytes > total:
        pytest.skip(f"needs a GPU of {request.param} GB")
    torch.cuda.set_per_process_memory_fraction(nbytes / total)
    torch.cuda.reset_peak_memory_stats()
    yield nbytes
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def hold(nbytes: int) -> list[Any]:
    """Take GPU memory in pieces of at most a quarter GiB."""
    piece = 1 << 28
    return [torch.empty(min(piece, nbytes - at), dtype=torch.uint8, device="cuda") for at in range(0, nbytes, piece)]


@pytest.mark.parametrize("capped", [8, 16, 24], indirect=True)
@pytest.mark.parametrize("fits", [True, False])
def test_pictures_move_into_what_the_training_leaves_of_a_card(capped: int, fits: bool, tmp_path: Path) -> None:
    """Beside its peak and the reserve; where there is too little, into main memory."""
    if not hasattr(torch.cuda, "get_per_process_memory_fraction"):
        pytest.skip("this PyTorch does not tell the cap")
    path = flat(tmp_path, 40, (640, 640))
    loader = Loader(opened(path), 4, imgsz=640, device="cuda", threads=2)
    model = hold(1 << 28)
    list(loader)
    reserve = reserve_of(capped)
    step = hold(capped - torch.cuda.memory_reserved() - reserve + (-reserve // 2 if fits else reserve // 2))
    assert loader.residency == "stream"
    del step
    torch.cuda.empty_cache()
    list(loader)
    assert loader.residency == ("device" if fits else "pinned"), loader.why
    assert torch.cuda.max_memory_reserved() <= capped
    del model


@pytest.mark.parametrize("capped", [8, 16, 24], indirect=True)
def test_memory_is_given_back_to_a_training_that_runs_out_of_it(capped: int, tmp_path: Path) -> None:
    """What was not to be had is there afterwards, and batches go on."""
    path = flat(tmp_path, 40, (640, 640))
    loader = Loader(opened(path), 4, imgsz=640, device="cuda", residency="device", threads=2)
    list(loader)
    assert loader.residency == "device"
    torch.cuda.empty_cache()
    room = hold(capped - torch.cuda.memory_reserved() - (32 << 20))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    assert loader.release() >= 40 * 3 * 640 * 640
    more = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    del room, more
    assert len(list(loader)) == 10
    assert loader.residency == "stream"
