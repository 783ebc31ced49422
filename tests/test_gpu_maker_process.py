"""Where batches on a GPU are made in a process that is not as usual: no kernels, a fork, modes of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_gpu_kit import assert_same, drawn, gpu_loader, maker_of
from loader_kit import all_threads_end
from training_kit import converted, opened

from fastdata.augment.policy import Policy
from fastdata.errors import UsageError
from fastdata.gpu_maker import GpuMaker, Placement
from fastdata.loader import Loader
from fastdata.render.cuda import to_device
from fastdata.residency.pinned_ring import Ring
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


def test_what_the_processor_draws_into_is_used_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locking pages, and filling them where a training shall be deterministic, takes longer than drawing."""
    monkeypatch.setattr("fastdata.render.cuda.unsupported", lambda device: "nothing can")
    sizes, made = list[int](), Ring._made
    monkeypatch.setattr(Ring, "_made", lambda ring, nbytes: sizes.append(nbytes) or made(ring, nbytes))
    ours, theirs = gpu_loader(opened(path), 2, **SETTINGS), Loader(opened(path), 2, **SETTINGS)
    for _ in range(3):
        assert assert_same(list(ours), theirs, levels=0) == 6
    assert 1 <= len(sizes) <= 2 * ours.threads
    assert maker_of(ours)._ring.nbytes > 0
    ours.close()
    assert maker_of(ours)._ring.nbytes == 0
    assert assert_same(list(ours), theirs, levels=0) == 6


def test_what_the_processor_draws_into_is_given_back_when_a_batch_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is drawn, and after that."""
    monkeypatch.setattr("fastdata.render.cuda.unsupported", lambda device: "nothing can")
    loader = gpu_loader(opened(path), 2, threads=1, **SETTINGS)
    next(iter(loader))
    assert all_threads_end()
    maker = maker_of(loader)

    def fails(*args: Any, **options: Any) -> Any:
        raise KeyError("x")

    for name in ("draw", "batch"):
        with monkeypatch.context() as patch:
            patch.setattr(loader.samples, name, fails)
            with pytest.raises(KeyError):
                maker.make(np.arange(2), 0)
        assert not maker._ring._taken
        assert len(maker._ring._waiting) >= 1


@pytest.mark.timeout(30)
def test_a_batch_that_cannot_be_begun_leaves_nothing_to_wait_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that gives no stream, or a loader that was closed: closing it then would wait for ever."""
    loader = gpu_loader(opened(path), 2, **SETTINGS)
    maker = maker_of(loader)
    maker.ready()

    def fails(device: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("fastdata.gpu_maker.Lane", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            maker.make(np.arange(2), 0)
    loader.close()
    with pytest.raises(UsageError, match="must be open while a batch is made"):
        maker.make(np.arange(2), 0)
    loader.close()
    assert len(list(loader)) == 6


def test_a_fork_of_a_process_that_uses_gpus_is_told_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no GPU; to let go of a loader must not wait for threads of the parent, nor ask the GPU."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    maker = GpuMaker(Samples(opened(path), **SETTINGS), torch.device("cuda", 0), Placement(), ahead=2)
    with pytest.raises(UsageError, match="cuda:0 must be used by a process that was spawned, got one that was forked"):
        maker.ready()
    maker._making = 1
    assert maker.release() == 0
    maker.close()


def test_the_mode_of_the_consumer_is_its_own(path: Path) -> None:
    """Its default device and inference mode; nothing falls back."""
    theirs = Loader(opened(path), 2, **SETTINGS)
    for residency in ("device", "pinned", "stream"):
        ours = gpu_loader(opened(path), 2, residency=residency, **SETTINGS)
        with torch.inference_mode(), torch.device("meta"):
            batches = list(ours)
        assert ours.residency == residency
        assert not any(value.is_inference() for batch in batches for value in batch.values() if isinstance(value, torch.Tensor))
        theirs.set_epoch(0)
        assert_same(batches, theirs)


def test_tables_are_packed_in_ordinary_memory_whatever_the_default_device() -> None:
    """Kernels are tried in the consumer's thread, whose default device it is."""
    arrays = {"a": np.arange(5), "b": np.ones((2, 3), np.float32)}
    with torch.device("meta"):
        moved = to_device(arrays, CPU)
        assert Ring(CPU).take(100).tensor.device == CPU
    for name, array in arrays.items():
        assert np.array_equal(moved[name].numpy(), array)
