"""The loader over real stores: threads, batch sizes and ranks change no sample, and damage does what was asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from loader_kit import all_threads_end
from training_kit import TASKS, converted, damage, digest, flat, opened

import fastdata
from fastdata.augment.order import epoch_order
from fastdata.augment.policy import Policy
from fastdata.errors import StoreError, UsageError
from fastdata.loader import Loader
from fastdata.samples import Samples

SETTINGS: dict[str, Any] = {"imgsz": 64, "seed": 5, "epochs": 4, "policy": Policy(mixup=0.5, degrees=5.0, close_mosaic=2)}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert all_threads_end()


@pytest.fixture(scope="module", params=TASKS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eleven pictures, for each task."""
    return converted(tmp_path_factory.mktemp("store"), request.param, 11)


def test_threads_and_prefetch_change_nothing(path: Path) -> None:
    """Against the samples drawn here, without a loader, over the epoch at which the mosaic closes."""
    samples = Samples(opened(path), **SETTINGS)
    want = []
    for epoch in range(1, 4):
        order = epoch_order(11, 5, epoch)
        want.append([digest(samples.batch(*samples.draw(order[k : k + 3], epoch))) for k in range(0, 11, 3)])
    assert len({d for epoch_of in want for d in epoch_of}) == 12
    for threads, prefetch in ((1, 1), (2, 2), (4, 3)):
        loader = Loader(opened(path), 3, threads=threads, prefetch=prefetch, **SETTINGS)
        loader.set_epoch(1)
        assert [[digest(batch) for batch in loader] for _ in range(3)] == want


def test_a_sample_is_the_same_whatever_batch_and_rank_it_comes_in(path: Path) -> None:
    """Picture and boxes of each id, over batch sizes and world sizes."""

    def seen(batch_size: int, world_size: int) -> dict[str, tuple[bytes, bytes]]:
        found = {}
        for rank in range(world_size):
            loader = Loader(opened(path), batch_size, rank=rank, world_size=world_size, threads=2, **SETTINGS)
            for batch in loader:
                for i, file in enumerate(batch["im_file"]):
                    mine = batch["batch_idx"] == i
                    found[file] = (batch["img"][i].numpy().tobytes(), batch["bboxes"][mine].numpy().tobytes())
        return found

    want = seen(11, 1)
    assert len(want) == 11
    for batch_size, world_size in ((1, 1), (4, 1), (2, 2), (3, 3)):
        found = seen(batch_size, world_size)
        assert len(found) == 11 // world_size * world_size
        assert found == {file: want[file] for file in found}


@pytest.mark.parametrize("options", [{}, {"augment": False}, {"augment": False, "rect": True}, {"rect": True}])
def test_a_torch_loader_over_the_dataset_gives_the_same_batches(options: dict[str, Any], path: Path) -> None:
    """Whoever goes over from one to the other goes on with the same run."""
    dataset = fastdata.YoloDataset(opened(path), batch_size=4, **SETTINGS, **options)
    other = torch.utils.data.DataLoader(dataset, 4, sampler=dataset.sampler(), collate_fn=dataset.collate_fn)  # type: ignore[arg-type]
    loader = Loader(opened(path), 4, threads=2, **SETTINGS, **options)
    for _ in range(2):
        assert list(map(digest, loader)) == list(map(digest, other))


def test_validation_batches_of_several_shapes(path: Path) -> None:
    """Sorted by aspect, exact over two ranks, the last one short."""
    rows = []
    for rank in range(2):
        loader = Loader(opened(path), 2, rank=rank, world_size=2, threads=2, augment=False, rect=True, **SETTINGS)
        rows.append([(tuple(batch["img"].shape), batch["im_file"]) for batch in loader])
    shapes = loader.samples.batch_shapes
    assert shapes is not None
    assert len(set(map(tuple, shapes.tolist()))) > 1
    assert [list(shape[2:]) for shape, _ in rows[0] + rows[1]] == shapes.tolist()
    assert [file for _, files in rows[0] + rows[1] for file in files] == loader.samples.im_files
    assert rows[1][-1][0][0] == 1


def test_a_run_goes_on_where_it_was_left_in_the_middle_of_an_epoch(path: Path) -> None:
    """Bit for bit; and not with another policy."""
    whole = Loader(opened(path), 3, threads=1, **SETTINGS)
    want = [digest(batch) for batch in whole]
    first = Loader(opened(path), 3, threads=2, **SETTINGS)
    head = [digest(batch) for batch in islice(first, 2)]
    second = Loader(opened(path), 3, threads=2, **SETTINGS)
    second.load_state_dict(first.state_dict())
    assert head + [digest(batch) for batch in second] == want
    other = Loader(opened(path), 3, threads=2, **{**SETTINGS, "policy": Policy(mixup=0.4, degrees=5.0, close_mosaic=2)})
    with pytest.raises(UsageError, match=r"policy\.mixup must be 0\.5, got 0\.4"):
        other.load_state_dict(first.state_dict())


def test_pictures_lie_in_memory_that_is_used_again(path: Path) -> None:
    """What the samples hand back is what they were given to draw into."""
    loader = Loader(opened(path), 1, threads=1, prefetch=1, **SETTINGS)
    places = {batch["img"].data_ptr() for _ in range(3) for batch in loader}
    assert len(places) <= 3
    kept = next(iter(loader))["img"]
    was = kept.clone()
    for _ in loader:
        pass
    assert torch.equal(kept, was)


def test_damage_raises_with_the_key_of_the_picture(tmp_path: Path) -> None:
    """After the batches before it, which validation has in order."""
    path = flat(tmp_path, 9)
    damage(path, 4)
    loader, got = Loader(opened(path), 2, threads=2, augment=False, imgsz=64), list[Any]()
    with pytest.raises(StoreError, match=r"^004\.png: .*in batch 2 of epoch 0, of ids \[4, 5\]: 004\.png, 005\.png$"):
        got.extend(loader)
    assert len(got) == 2


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_samples_are_planned_anew_without_what_is_damaged(threads: int, tmp_path: Path) -> None:
    """Whichever thread meets it first, on any rank, from a fresh start or from a state that knows it already."""
    path = flat(tmp_path, 12)
    for entry in (2, 7):
        damage(path, entry)
    options: dict[str, Any] = SETTINGS | {"on_bad": "replan", "threads": threads}

    def draws(samples: Samples) -> list[dict[str, str]]:
        found = []
        for epoch in range(2):
            order = epoch_order(12, 5, epoch).tolist()
            found.append({i: digest(samples.batch(*samples.draw([i], epoch))) for i in order})
        return found

    want = draws(Samples(opened(path), **SETTINGS, on_bad="replan"))
    loader = Loader(opened(path), 1, **options)
    got = [dict(zip(epoch_order(12, 5, epoch).tolist(), map(digest, loader), strict=True)) for epoch in range(2)]
    assert got == want
    assert loader.state_dict()["bad"] == [2, 7]
    knowing = Loader(opened(path), 1, **options)
    knowing.load_state_dict(loader.state_dict() | {"epoch": 0})
    assert list(map(digest, knowing)) == list(want[0].values())
    ranks = [Loader(opened(path), 2, rank=rank, world_size=2, **options) for rank in range(2)]
    alone = [Loader(opened(path), 1, rank=rank, world_size=2, **options) for rank in range(2)]
    for both, one in zip(ranks, alone, strict=True):
        pictures = [picture for batch in both for picture in batch["img"]]
        assert all(torch.equal(a, b["img"][0]) for a, b in zip(pictures, one, strict=True))


PROGRAM = """
import sys, threading
import fastdata, fastdata.loader
class Witness:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name)
sys.meta_path.insert(0, Witness())
loader = fastdata.Loader(fastdata.open_store({path!r}), 2, threads=2, imgsz=64)
print(len(list(loader)))
"""


def test_threads_import_nothing(path: Path) -> None:
    """A process that is forked meanwhile would inherit the import's lock, which nobody opens any more."""
    code = PROGRAM.format(path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6"]


def test_the_public_name_is_the_loader() -> None:
    """As the documentation writes it."""
    assert fastdata.Loader is Loader
