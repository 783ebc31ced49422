"""Which residency is in use: what is asked for, the next best, and the reasons that are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from residency_kit import stored, threads_end, trained
from training_kit import converted

from fastdata.residency.budget import DoesNotFit, GpuMemory
from fastdata.residency.open import Opened, Opener
from fastdata.residency.upload import SLACK_NBYTES

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of raw pictures."""
    return stored(tmp_path_factory.mktemp("store"))


@pytest.fixture
def opener(path: Path) -> Opener:
    """Opens its pictures in ordinary memory."""
    return Opener(trained(path), CPU, quiet=True)


def memory(monkeypatch: pytest.MonkeyPatch, *, gpu: int | None = 64 * GIB, host: int | None = 64 * GIB) -> None:
    """Let a GPU and the machine have so much memory; the GPU's is the machine's where nothing is said."""
    monkeypatch.setattr("fastdata.residency.open.host_available", lambda: host)
    if gpu is not None:
        card = GpuMemory(gpu, gpu, 0, 0)
        monkeypatch.setattr("fastdata.residency.open.GpuMemory", lambda *numbers: card)


def name(opened: Opened) -> str:
    """What is in use; it is closed."""
    assert opened.source is not None
    opened.source.close()
    assert threads_end()
    return opened.source.name


@pytest.mark.parametrize("residency", ["device", "pinned", "stream"])
def test_what_is_asked_for_is_opened_where_it_fits(residency: str, opener: Opener) -> None:
    """And nobody has to be told."""
    opened = opener.first(residency)
    assert name(opened) == residency
    assert opened.why.endswith(": as asked for")
    assert not opened.fell_back


def test_pictures_that_do_not_fit_in_gpu_memory_go_to_main_memory(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers."""
    memory(monkeypatch, gpu=GIB)  # which is the reserve
    opened = opener.first("device")
    assert name(opened) == "pinned"
    assert opened.fell_back
    assert opened.why.startswith("pictures are in page-locked main memory: the 0.0 GB of pictures do not fit in GPU memory: ")


@pytest.mark.parametrize("residency", ["device", "pinned"])
def test_pictures_that_fit_nowhere_are_streamed(residency: str, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers, each reason once."""
    memory(monkeypatch, gpu=GIB, host=1000)
    opened = opener.first(residency)
    assert name(opened) == "stream"
    assert opened.fell_back
    assert opened.why.startswith("pictures are streamed from the store: the 0.0 GB of pictures do not fit in ")
    assert opened.why.count("main memory") == 1


def test_the_reserve_is_the_users(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to nothing."""
    memory(monkeypatch, gpu=GIB)
    assert name(Opener(trained(path), CPU, reserve_nbytes=0, quiet=True).first("device")) == "device"
    memory(monkeypatch)
    assert name(Opener(trained(path), CPU, reserve_nbytes=64 * GIB, quiet=True).first("device")) == "pinned"


def test_memory_that_is_not_there_after_all_is_a_reason_too(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in pieces, or taken by another program meanwhile."""

    def full(*args: Any, **options: Any) -> Any:
        raise DoesNotFit("taken meanwhile")

    monkeypatch.setattr("fastdata.residency.open.Device", full)
    opened = opener.first("device")
    assert name(opened) == "pinned"
    assert opened.why == "pictures are in page-locked main memory: taken meanwhile"


def test_main_memory_is_shared_among_the_ranks_of_a_machine(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a copy of its own unless they share one."""
    nbytes = 9 * 3 * 64 * 64
    memory(monkeypatch, host=4 * nbytes)
    for ranks, expected in (("1", "pinned"), ("8", "stream")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        opened = opener.first("pinned")
        assert name(opened) == expected
    assert "a copy for each of 8 ranks" in opened.why


def test_main_memory_must_hold_rows_that_are_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked is what is taken, to the byte: rows of 48 columns take 64 bytes there."""
    opener = Opener(trained(converted(tmp_path, "detect", 5, size_hw=[(64, 48)])), CPU, quiet=True)
    nbytes = 5 * 3 * 64 * 64 + SLACK_NBYTES
    for host, expected in ((2 * nbytes, "pinned"), (2 * nbytes - 2, "stream")):
        memory(monkeypatch, gpu=GIB, host=host)
        assert name(opener.first("pinned")) == expected
        stream = opener.first("stream").source
        assert stream is not None
        assert name(opener.more(stream)) == expected


def test_memory_of_which_nothing_is_known_is_tried(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user asked for it; by itself nothing moves there."""
    memory(monkeypatch, gpu=GIB, host=None)
    assert name(opener.first("pinned")) == "pinned"
    stream = opener.first("stream").source
    assert stream is not None
    assert opener.more(stream).source is stream


def test_only_jpegs_are_decoded_by_the_gpu(opener: Opener, tmp_path: Path) -> None:
    """Other pictures are streamed: with a reason where decoding was asked for."""
    opened = opener.first("decode")
    assert name(opened) == "stream"
    assert opened.fell_back
    assert "the store must hold JPEGs for it, got raw" in opened.why
    jpegs = Opener(trained(stored(tmp_path, "jpeg")), CPU, quiet=True)
    for residency in ("decode", "auto"):
        opened = jpegs.first(residency)
        assert name(opened) == "decode"
        assert not opened.fell_back


def test_auto_begins_with_what_takes_no_memory(opener: Opener) -> None:
    """However much there is."""
    opened = opener.first("auto")
    assert name(opened) == "stream"
    assert not opened.fell_back


@pytest.mark.parametrize(("gpu", "host", "expected"), [(64, 64, "device"), (1, 64, "pinned"), (1, 0, "stream")])
def test_pictures_move_up_as_far_as_there_is_room(
    gpu: int, host: int, expected: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is in use stays, the very same."""
    memory(monkeypatch, gpu=gpu * GIB, host=host * GIB)
    stream = opener.first("stream").source
    assert stream is not None
    opened = opener.more(stream)
    assert (opened.source is stream) == (expected == "stream")
    assert name(opened) == expected
    assert (" from now on: " in opened.why) == (expected != "stream")


def test_the_way_back_takes_no_gpu_memory(opener: Opener) -> None:
    """Nor time."""
    assert name(opener.less()) == "stream"
