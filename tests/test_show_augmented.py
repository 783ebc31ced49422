"""Sheets of samples: the very pixels and labels of a training's batches, and settings read from its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from label_kit import Shot, blank, write
from torch.utils.data import DataLoader
from training_kit import TASKS, converted, flat

from fastdata import show_augmented
from fastdata.augment.oriented import xywhr_to_corners
from fastdata.augment.policy import Policy
from fastdata.dataset import YoloDataset
from fastdata.draw import SIDES, printable
from fastdata.errors import UsageError
from fastdata.loader import Loader
from fastdata.paint import class_colour
from fastdata.samples import Samples
from fastdata.show import GAP_PX, RIM_PX, Picture, sheet
from fastdata.show_augmented import (
    instances_of,
    made_of,
    samples_of_run,
    samples_sheet,
    training_split,
    write_samples_sheet,
)
from fastdata.store.read import Store, open_store

U8 = npt.NDArray[np.uint8]
SETTINGS: dict[str, Any] = {"imgsz": 64, "seed": 5, "policy": Policy(mixup=0.4, degrees=20, copy_paste=0.5, close_mosaic=2)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of fourteen pictures with outlines."""
    return converted(tmp_path_factory.mktemp("shown"), "segment", 14)


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """The same, open."""
    with open_store(path) as opened:
        yield opened


def read(file: Path) -> U8:
    """(H, W, 3) RGB."""
    return cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB)


def drawn_from(batch: dict[str, Any], samples: Samples, ids: list[int], epoch: int, title: str) -> U8:
    """The sheet of a batch as a training got it: its pixels, and the boxes that its labels say."""
    pictures = []
    recipe = samples.recipe(ids, epoch)
    for slot, number in enumerate(ids):
        image = batch["img"][slot].numpy()
        objects = instances_of(recipe.labels, slot)
        mine = batch["batch_idx"].numpy() == slot
        x, y, w, h = (batch["bboxes"].numpy()[mine] * 64).T
        told = {tuple(np.round(row, 2)) for row in np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1).tolist()}
        assert told == {tuple(np.round(row, 2)) for row in objects.xyxy_px.astype(float).tolist()}
        count = f"{len(objects)} object{'s' if len(objects) != 1 else ''}"
        caption = (f"{number}  {printable(batch['im_file'][slot])}", f"{made_of(recipe, slot)}   {count}")
        pictures.append(Picture(np.ascontiguousarray(image.transpose(1, 2, 0)), objects, caption))
    return sheet(pictures, samples.store.names, None, title=title, tile_px=64)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_a_redrawn_batch_is_the_batch_that_was_trained_on(store: Store, tmp_path: Path, rank: int, world_size: int) -> None:
    """Every batch of two epochs of a loader with threads: not a pixel of the sheet differs from one made of its batch."""
    samples = Samples(store, epochs=4, **SETTINGS)
    loader = Loader(samples, 3, rank=rank, world_size=world_size, threads=2)
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        for k, batch in enumerate(loader):
            out = tmp_path / f"{epoch}-{k}.png"
            write_samples_sheet(samples, out, epoch=epoch, batch=k, batch_size=3, rank=rank, world_size=world_size, tile_px=64)
            title = f"segment.lmdb   segment   seed 5   epoch {epoch}   batch {k} of {len(loader)}"
            title += f"   rank {rank} of {world_size}" if world_size > 1 else ""
            ids = [samples.im_files.index(file) for file in batch["im_file"]]
            assert np.array_equal(read(out), drawn_from(batch, samples, ids, epoch, title))
        assert k == len(loader) - 1
    loader.close()


def test_it_is_also_the_batch_of_a_torch_loader(store: Store) -> None:
    """The dataset and its sampler deal the same batches: ids, pixels, boxes."""
    samples = Samples(store, **SETTINGS)
    loader = Loader(samples, 4, threads=1)
    dataset = YoloDataset(store, **SETTINGS)
    torch_loader = DataLoader(dataset, batch_size=4, sampler=dataset.sampler(), collate_fn=dataset.collate_fn)
    for epoch in range(2):
        for k, batch in enumerate(torch_loader):
            ids = loader.ids(epoch, k)
            assert [samples.im_files[i] for i in ids] == list(batch["im_file"])
            recipe, images = samples.draw(ids, epoch)
            assert np.array_equal(images, batch["img"].numpy())
            assert len(recipe.labels) == len(batch["bboxes"])


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("augment", [True, False])
def test_the_ids_of_batches_are_those_that_come(store: Store, world_size: int, augment: bool) -> None:
    """Of training and of validation, on every rank; what is asked for beforehand changes nothing."""
    samples = Samples(store, imgsz=64, augment=augment, seed=3)
    for rank in range(world_size):
        loader = Loader(samples, 2, rank=rank, world_size=world_size, threads=1)
        for epoch in range(2):
            told = [loader.ids(epoch, k) for k in range(len(loader))]
            assert [list(batch["im_file"]) for batch in loader] == [[samples.im_files[i] for i in ids] for ids in told]
        loader.close()


def test_batches_that_do_not_exist_are_refused(store: Store, tmp_path: Path) -> None:
    """With how many there are; and nothing is written."""
    samples = Samples(store, **SETTINGS)
    out = tmp_path / "o.png"
    with pytest.raises(UsageError, match=r"batch must be in 0\.\.4 \(5 batches of 3\), got 5"):
        write_samples_sheet(samples, out, batch=5, batch_size=3)
    with pytest.raises(UsageError, match="batch must be"):
        write_samples_sheet(samples, out, batch=-1, batch_size=3)
    with pytest.raises(UsageError, match="ids must not be given with a batch"):
        write_samples_sheet(samples, out, [1], batch=0)
    with pytest.raises(UsageError, match="epoch must be at least 0, got -1"):
        write_samples_sheet(samples, out, epoch=-1)
    with pytest.raises(UsageError, match=r"ids must be 0\.\.13 \(14 images\), got 14"):
        write_samples_sheet(samples, out, [0, 14])
    with pytest.raises(UsageError, match="at least one image, got none"):
        write_samples_sheet(samples, out, [])
    with pytest.raises(UsageError, match="images must be at least 1, got 0"):
        write_samples_sheet(samples, out, max_images=0)
    with pytest.raises(UsageError, match=r"must end in \.png"):
        write_samples_sheet(samples, tmp_path / "o.gif")
    assert list(tmp_path.iterdir()) == []


# Runs


def saved(tmp_path: Path, content: object) -> Path:
    """A file of JSON."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "more",
    [
        {}, {"task": "detect", "classes": [0, 2, 3]}, {"fraction": 0.5, "epochs": 9}, {"single_cls": True},
        {"rect": True, "batch_size": 4}, {"augment": False, "rect": True, "batch_size": 3},
    ],
)  # fmt: skip
def test_a_state_says_all_that_its_samples_need(path: Path, store: Store, tmp_path: Path, more: dict[str, Any]) -> None:
    """From what ``state_dict`` returned, by way of a file: the same fingerprint, and the same samples."""
    samples = Samples(store, **SETTINGS | more)
    loader = Loader(samples, samples.batch_size if samples.rect else 2, shuffle=False if samples.rect else None, threads=1)
    again, shuffle = samples_of_run(path, saved(tmp_path, loader.state_dict()))
    assert shuffle == loader.shuffle
    assert again.fingerprint() == samples.fingerprint()
    ids = loader.ids(2, 0)
    assert np.array_equal(again.draw(ids, 2)[1], samples.draw(ids, 2)[1])
    again.store.close()


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_run_folder_says_it_too(path: Path, store: Store, tmp_path: Path, as_folder: bool) -> None:
    """``fastdata.json``, which an accelerated Ultralytics trainer writes into its run."""
    samples = Samples(store, **SETTINGS)
    content = {"store": str(path), "split": None, "samples": samples.fingerprint()}
    (tmp_path / "fastdata.json").write_text(json.dumps(content), encoding="utf-8")
    again, shuffle = samples_of_run(path, tmp_path if as_folder else tmp_path / "fastdata.json")
    assert (again.fingerprint(), shuffle) == (samples.fingerprint(), True)
    again.store.close()


def test_pictures_that_a_run_has_found_damaged_are_left_out(path: Path, store: Store, tmp_path: Path) -> None:
    """Its samples were planned without them."""
    loader = Loader(Samples(store, **SETTINGS), 2, threads=1)
    again, _ = samples_of_run(path, saved(tmp_path, loader.state_dict() | {"bad": [3, 7]}))
    assert again.bad == {3, 7}
    again.store.close()


def test_a_run_that_cannot_be_drawn_is_told_why(path: Path, store: Store, tmp_path: Path) -> None:
    """No JSON, something else, another store, another plan, transforms of the user's own."""
    state = Loader(Samples(store, **SETTINGS), 2, threads=1).state_dict()
    told = state["fingerprint"]
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"broken\.json: a run must be JSON"):
        samples_of_run(path, broken)
    for other in ([], {}, {"samples": 3}, {"fingerprint": {"seed": 1}}):
        with pytest.raises(UsageError, match=r"run\.json: a run must be what"):
            samples_of_run(path, saved(tmp_path, other))
    with pytest.raises(FileNotFoundError):
        samples_of_run(path, tmp_path / "no.json")
    with pytest.raises(UsageError, match=r"plan_version must be 99, got \d+"):
        samples_of_run(path, saved(tmp_path, {"fingerprint": told | {"plan_version": 99}}))
    with pytest.raises(UsageError, match="store must be"):
        samples_of_run(flat(tmp_path), saved(tmp_path, {"fingerprint": told | {"task": "detect", "entries": [8, "all"]}}))
    with pytest.raises(UsageError, match="must be without transforms"):
        samples_of_run(path, saved(tmp_path, {"fingerprint": told | {"transforms": ["Blur"]}}))


# What is drawn


@pytest.mark.parametrize("task", TASKS)
def test_labels_of_every_task_are_drawn(tmp_path: Path, task: str) -> None:
    """Outlines, keypoints and turned rectangles in the form that a drawing takes, slot by slot."""
    with open_store(converted(tmp_path, task, 4, background_share=0.0)) as store:  # type: ignore[arg-type]
        samples = Samples(store, imgsz=64, policy=Policy(mosaic=0, fliplr=0, translate=0, scale=0.0))
        plain = samples_sheet(samples, tile_px=64)
        recipe = samples.recipe(range(4))
        for slot in range(4):
            objects = instances_of(recipe.labels, slot)
            one = samples.recipe([slot]).labels
            assert np.array_equal(objects.xyxy_px, one.xyxy_px)
            assert np.array_equal(objects.cls, one.cls)
            assert np.array_equal(objects.keypoints_px, one.keypoints_px)
            for i in range(len(one)):
                want = list(xywhr_to_corners(one.xywhr_px[i : i + 1].astype(float))) if task == "obb" else one.rings(i)
                assert len(objects.parts(i)) == len(want) == (task in ("segment", "obb"))
                assert all(np.allclose(a, b, atol=1e-3) for a, b in zip(objects.parts(i), want, strict=True))
    top, left = 26 + RIM_PX, GAP_PX + RIM_PX  # below the title
    cell = plain[top : top + 64, left : left + 64].reshape(-1, 3).tolist()
    shown = instances_of(recipe.labels, 0)
    assert all(list(class_colour(int(cls))) in cell for cls in shown.cls)
    assert any(list(side) in cell for side in SIDES[:2]) == (task == "pose")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(mosaic=0), "1 tile"),
        (Policy(), "4 tiles"),
        (Policy(mosaic9=1), "9 tiles"),
        (Policy(mosaic=0, mixup=1), "1 tile, MixUp"),
        (Policy(mosaic=0, mixup=1, bgr=1), "1 tile, MixUp, BGR"),
        (Policy(mosaic=0, mixup=1, copy_paste=1), "1 tile, MixUp, Copy-Paste"),
        (Policy(mosaic=0, cutmix=1), "1 tile, CutMix"),
        (Policy(mosaic=0, copy_paste=1), "1 tile, Copy-Paste"),
    ],
)
def test_a_caption_says_what_a_sample_is_made_of(store: Store, policy: Policy, said: str) -> None:
    """Some sample of an epoch has it all; the same policy without it never says so."""
    recipe = Samples(store, imgsz=64, policy=policy).recipe(range(14))
    assert said in {made_of(recipe, slot) for slot in range(14)}
    words = said.split(", ")[0]
    assert all(made_of(recipe, slot).startswith(words) for slot in range(14))
    plain = Samples(store, imgsz=64, policy=replace(policy, mixup=0, cutmix=0, copy_paste=0, bgr=0)).recipe(range(14))
    assert {made_of(plain, slot) for slot in range(14)} == {words}


def test_a_caption_is_about_its_own_sample(store: Store) -> None:
    """The tiles are those of its own picture, also where the other one is painted first; what others are made of is not said."""
    policy = Policy(mosaic=0.5, mixup=0.5, copy_paste=1)
    mixed, plain = (
        Samples(store, imgsz=64, policy=p).recipe(range(14)) for p in (policy, replace(policy, mixup=0, copy_paste=0))
    )
    said = [made_of(mixed, slot) for slot in range(14)]
    assert [text.split(",")[0] for text in said] == [made_of(plain, slot) for slot in range(14)]
    assert len({made_of(plain, slot) for slot in range(14)}) == 2
    assert said == [made_of(mixed.slots(slot, slot + 1), 0) for slot in range(14)]
    assert 0 < sum("MixUp" in text for text in said) < 14


def test_one_class_is_named_as_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``single_cls`` the names of the store do not say what the labels are."""
    named = []
    monkeypatch.setattr(show_augmented, "sheet", lambda pictures, names, *more, **other: named.append(list(names)))
    for on in (False, True):
        samples_sheet(Samples(store, single_cls=on, **SETTINGS), tile_px=64)
    assert named == [list(store.names), ["object"]]


def test_of_several_splits_the_one_for_training_is_shown(tmp_path: Path) -> None:
    """Unless another is named; a store without it must be told."""
    path = converted(tmp_path, "detect", 6, splits={"train": 0.5, "val": 0.5})
    with training_split(path, None) as train, training_split(path, "val") as val:
        assert (train.split, val.split) == ("train", "val")
    other = write(tmp_path / "other.lmdb", [Shot(blank(8, 8), split=name) for name in ("a", "b")])
    with pytest.raises(UsageError, match="split must be one of 'a', 'b', got none"):
        training_split(other, None)
