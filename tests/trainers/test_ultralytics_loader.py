"""What a trainer does to a loader and its dataset, done here without a trainer."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.samples import Samples
from fastdata.store.read import Store, open_store
from fastdata.synth import write_dataset
from fastdata.trainers.ultralytics_loader import TrainerDataset, TrainerLoader

IMAGES = 11


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Eleven small pictures of four shapes."""
    folder = tmp_path_factory.mktemp("loader")
    sizes = ((32, 48), (48, 32), (48, 48), (32, 40))
    write_dataset(folder / "set", IMAGES, task="detect", size_hw=sizes, splits={"train": 1}, workers=1)
    convert(folder / "set", folder / "x.lmdb", ConvertOptions(imgsz=64, codec="raw", workers=1))
    return open_store(folder / "x.lmdb", "train")


class Clock:
    """The trainer's epoch, and how many it will have."""

    def __init__(self, epochs: int | None = 4) -> None:
        self.epoch, self.epochs, self.asked = 0, epochs, 0

    def __call__(self) -> tuple[int, int | None]:
        self.asked += 1
        return self.epoch, self.epochs


def loader(store: Store, clock: Clock, batch_size: int = 4, rank: int = 0, world_size: int = 1, **more: Any) -> TrainerLoader:
    """A loader for training, unless more says otherwise."""
    own = {name: more.pop(name) for name in ("drop_last", "threads") if name in more}
    dataset = TrainerDataset(store, batch_size=batch_size, imgsz=64, **more)
    return TrainerLoader(dataset, clock, rank=rank, world_size=world_size, **{"threads": 2} | own)


def threads() -> int:
    """How many threads make batches."""
    return sum(t.name.startswith("fastdata") for t in threading.enumerate())


def content(batches: Any) -> list[tuple[tuple[str, ...], int]]:
    """Pictures of each batch, and a sum over its pixels."""
    return [(batch["im_file"], int(batch["img"].sum())) for batch in batches]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(epoch, tiles of its first group) of every sample that is drawn."""
    seen: list[tuple[int, int]] = []
    draw = Samples.draw

    def listen(self: Samples, ids: Any, epoch: int = 0, *more: Any, **named: Any) -> Any:
        recipe, images = draw(self, ids, epoch, *more, **named)
        counts = np.diff(recipe.tile_offsets)[recipe.group_offsets[:-1]]
        seen.extend((epoch, int(count)) for count in counts)
        return recipe, images

    monkeypatch.setattr(Samples, "draw", listen)
    return seen


def test_an_iterator_that_nobody_asks_does_nothing(store: Store) -> None:
    """The trainer makes one each epoch that it does not use: no epoch is read for it, no thread begins."""
    clock = Clock()
    made = loader(store, clock)
    idle = enumerate(made)
    assert (clock.asked, threads()) == (0, 0)
    assert len(list(made)) == len(made) == 3
    assert clock.asked == 1
    del idle
    assert threads() == 0


def test_the_epoch_is_the_trainers(store: Store) -> None:
    """Whatever was iterated before: the same number gives the same batches, another one gives others."""
    clock = Clock()
    made = loader(store, clock)
    first = content(made)
    clock.epoch = 1
    second = content(made)
    again = content(made)  # as after a loss that was no number
    clock.epoch = 0
    assert content(made) == first
    assert again == second
    assert first != second
    assert sorted(name for names, _ in first for name in names) == sorted(made.dataset.im_files)


def test_an_epoch_that_is_left_alone_is_taken_back(store: Store) -> None:
    """Half an epoch, then another iterator: nothing is left of the first."""
    clock = Clock()
    made = loader(store, clock)
    want = content(made)
    abandoned = iter(made)
    next(abandoned)
    assert content(made) == want
    made.close()
    assert threads() == 0
    assert content(made) == want  # and it can be used again


def test_mosaic_rests_in_the_last_epochs_in_every_thread(store: Store, tiles: list[tuple[int, int]]) -> None:
    """By the number of the epoch alone: nobody has to be told, and an epoch that begins anywhere knows."""
    from fastdata.augment.policy import Policy

    clock = Clock(epochs=4)
    made = loader(store, clock, policy=Policy(close_mosaic=2), threads=3)
    for clock.epoch in (2, 0, 3, 1):
        list(made)
    assert {epoch: {n for e, n in tiles if e == epoch} for epoch in range(4)} == {0: {4}, 1: {4}, 2: {1}, 3: {1}}


def test_mosaic_stays_closed_when_a_training_by_time_turns_out_longer(store: Store, tiles: list[tuple[int, int]]) -> None:
    """The trainer estimates its epochs anew after each one, and closes mosaic once."""
    from fastdata.augment.policy import Policy

    clock = Clock(epochs=3)
    made = loader(store, clock, policy=Policy(close_mosaic=1))
    seen = []
    for clock.epoch, clock.epochs, close in ((0, 3, False), (1, 2, True), (2, 30, False)):
        if close:
            made.dataset.mosaic = False
            made.dataset.close_mosaic(hyp=None)
            made.reset()
        list(made)
        seen.append({n for e, n in tiles if e == clock.epoch})
    assert seen == [{4}, {1}, {1}]


def test_more_epochs_than_thought_keep_mosaic_open(store: Store, tiles: list[tuple[int, int]]) -> None:
    """Until it is closed the number of epochs that is known now decides, not the one from the beginning."""
    from fastdata.augment.policy import Policy

    clock = Clock(epochs=3)
    made = loader(store, clock, policy=Policy(close_mosaic=1))
    clock.epoch, clock.epochs = 2, 30
    list(made)
    assert {n for _, n in tiles} == {4}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_an_epoch(world_size: int, store: Store) -> None:
    """In training each picture comes once, but for a tail that does not divide, and all ranks take as many steps."""
    made = [loader(store, Clock(), 2, rank, world_size) for rank in range(world_size)]
    assert len({len(m) for m in made}) == 1
    ids = [i for m in made for i in m.sampler]
    assert len(ids) == len(set(ids)) == IMAGES - IMAGES % world_size
    files = [name for m in made for batch in m for name in batch["im_file"]]
    assert sorted(files) == sorted(made[0].dataset.im_files[i] for i in ids)
    assert [len(m.sampler) for m in made] == [sum(len(b["im_file"]) for b in m) for m in made]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_a_validation(world_size: int, store: Store) -> None:
    """Each picture exactly once, in whole batches one after the other; the sampler lists them in the order of the batches."""
    made = [loader(store, Clock(None), 3, rank, world_size, augment=False, rect=True) for rank in range(world_size)]
    ids = [i for m in made for i in m.sampler]
    assert ids == list(range(IMAGES))
    for m in made:
        files = [name for batch in m for name in batch["im_file"]]
        assert files == [m.dataset.im_files[i] for i in m.sampler]
        assert len(m) == sum(1 for _ in m)


def test_the_trainer_finds_what_it_reads(store: Store) -> None:
    """Every attribute of the contract, with the types that the trainer computes with."""
    made = loader(store, Clock(), drop_last=True)
    assert (len(made), made.batch_size, made.drop_last, made.num_workers) == (2, 4, True, 2)
    assert len(made.sampler) % made.batch_size == 3
    made.sampler.set_epoch(5)
    dataset = made.dataset
    assert (len(dataset), dataset.rect, dataset.mosaic, dataset.batch_size) == (IMAGES, False, True, 4)
    assert len(dataset.labels) == len(dataset.im_files) == IMAGES
    boxes = np.concatenate([row["bboxes"] for row in dataset.labels], 0)
    classes = np.concatenate([row["cls"] for row in dataset.labels], 0)
    assert boxes.shape == (len(classes), 4)
    assert classes.shape == (len(boxes), 1)
    assert all(isinstance(row, dict) and row["cls"].ndim == 2 for row in dataset.labels)


def test_labels_that_are_drawn_over_are_not_those_of_another_batch(store: Store) -> None:
    """A thread of the trainer's turns the labels of a batch into pixels, in place, while training goes on."""
    clock = Clock()
    made = loader(store, clock)
    want = [batch["bboxes"].clone() for batch in made]
    for batch, boxes in zip(made, want, strict=True):
        assert (batch["bboxes"] == boxes).all()
        for key in ("bboxes", "cls", "batch_idx"):
            batch[key] *= -7
    assert all((batch["bboxes"] == boxes).all() for batch, boxes in zip(made, want, strict=True))
