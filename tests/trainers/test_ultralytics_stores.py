"""Which store a trainer reads, which split of it, and every way in which the two may not fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata.catalog import Keypoints
from fastdata.creation import create
from fastdata.errors import UsageError
from fastdata.store.read import open_store
from fastdata.synth import write_dataset
from fastdata.trainers.ultralytics_stores import Choice, Place, find_places, given_store, yaml_of_store

POINTS = np.array([[[2.0, 2.0, 2.0], [6.0, 6.0, 1.0]]])


def made(
    out: Path, splits: tuple[str, ...] = ("train", "val"), names: tuple[str, ...] = ("cat", "dog"), pose: bool = False
) -> str:
    """A store with a picture in each split, and two keypoints an object."""
    with create(out, list(names), keypoints=Keypoints(2, ("nose", "tail"), (1, 0)) if pose else None) as writer:
        for k, split in enumerate(splits):
            more = {"keypoints": POINTS} if pose else {}
            writer.add(np.full((12, 16, 3), k, np.uint8), [[1, 1, 9, 9]], [0], key=f"{split}.png", split=split, **more)
    return str(out)


def data(folder: Path, **entries: Any) -> dict[str, Any]:
    """A data dictionary as the trainer has it after reading a data.yaml."""
    base = {"yaml_file": str(folder / "my.yaml"), "path": folder, "names": {0: "cat", 1: "dog"}, "nc": 2, "channels": 3}
    return base | entries


NOTHING = Choice()


def find(
    of: dict[str, Any], choice: Choice = NOTHING, splits: tuple[str, ...] = ("train", "val"), **more: Any
) -> dict[str, Place]:
    """Find with what a detection trainer says."""
    return find_places(of, splits, choice, **({"task": "detect", "imgsz": 64, "single_cls": False, "quiet": True} | more))


def test_a_given_store_is_read_by_the_trainers_own_split_names(tmp_path: Path) -> None:
    """Whatever the data.yaml says about pictures."""
    store = made(tmp_path / "x.lmdb", ("train", "val", "test"))
    of = data(tmp_path, train="/pictures/a", val="/pictures/b")
    assert find(of, Choice(given_store(store))) == {"train": Place(store, "train"), "val": Place(store, "val")}
    assert find(of, Choice(given_store(store)), ("train", "test"))["test"] == Place(store, "test")


def test_a_store_for_each_split(tmp_path: Path) -> None:
    """A folder of shards, a file; each has one split, and is that one whatever it is called."""
    a, b = made(tmp_path / "a", ("train",)), made(tmp_path / "b.lmdb", ("train",))
    choice = Choice(given_store({"train": a, "val": Path(b)}))
    assert find(data(tmp_path), choice) == {"train": Place(a, "train"), "val": Place(b, "train")}
    with pytest.raises(UsageError, match="store must name one for test, got stores for train, val"):
        find(data(tmp_path), choice, ("train", "test"))


def test_the_entries_of_a_data_yaml_may_be_stores(tmp_path: Path) -> None:
    """One for both, one each, or the key that only this package knows, relative to the dataset or to the file."""
    store = made(tmp_path / "x.lmdb")
    want = {"train": Place(store, "train"), "val": Place(store, "val")}
    assert find(data(tmp_path, train=store, val=store)) == want
    assert find(data(tmp_path, train=[store], val=[store])) == want
    assert find(data(tmp_path, train="/pictures", val="/pictures", store="x.lmdb")) == want
    assert find(data(tmp_path, path=tmp_path / "elsewhere", train="/a", val="/b", store="x.lmdb")) == want
    alone = made(tmp_path / "only", ("train",))
    assert find(data(tmp_path, train=store, val=alone))["val"] == Place(alone, "train")


def test_one_store_without_the_split_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    """Never the training pictures for validation because nothing else is there."""
    store = made(tmp_path / "x.lmdb", ("train",))
    for choice, of in ((Choice(store), data(tmp_path)), (Choice(), data(tmp_path, train=store, val=store))):
        with pytest.raises(UsageError, match=r"the split for val must be one of 'train', got 'val'; say which with splits="):
            find(of, choice)


def test_splits_of_other_names_can_be_named(tmp_path: Path) -> None:
    """For stores of Pascal VOC, say; a name that is not there is an error."""
    store = made(tmp_path / "x.lmdb", ("trainval", "test"))
    places = find(data(tmp_path), Choice(store, {"train": "trainval", "val": "test"}))
    assert places == {"train": Place(store, "trainval"), "val": Place(store, "test")}
    with pytest.raises(UsageError, match="must be one of 'trainval', 'test', got 'trainvel'"):
        find(data(tmp_path), Choice(store, {"train": "trainvel"}))


def test_a_store_beside_pictures_is_refused(tmp_path: Path) -> None:
    """Half of the data in one form and half in the other is most likely a slip."""
    store = made(tmp_path / "x.lmdb")
    with pytest.raises(UsageError, match=r"must come from stores or none, got .*x\.lmdb for train and pictures for val"):
        find(data(tmp_path, train=store, val="/pictures"))
    with pytest.raises(UsageError, match="train must be one store, got 2 entries"):
        find(data(tmp_path, train=[store, "/pictures"], val=store))
    with pytest.raises(UsageError, match=r"my\.yaml: store must be a fastdata store, got 'no\.lmdb', which is not at"):
        find(data(tmp_path, train="/a", val="/b", store="no.lmdb"))


@pytest.mark.parametrize("names", [["cat"], ["dog", "cat"], ["cat", "cow"]])
def test_other_classes_than_the_trainers_are_refused(names: list[str], tmp_path: Path) -> None:
    """More of them, another order, another name: with the list to write into the data.yaml."""
    store = made(tmp_path / "x.lmdb")
    with pytest.raises(UsageError, match=r"my\.yaml: names must .*; name these: cat, dog"):
        find(data(tmp_path, names=dict(enumerate(names))), Choice(store))
    find(data(tmp_path, names={0: "item"}), Choice(store), single_cls=True)


def test_names_that_were_made_up_fit_any(tmp_path: Path) -> None:
    """By the trainer where there is a number alone, by a conversion where nobody named anything."""
    find(data(tmp_path, names={0: "class_0", 1: "class_1", 2: "class_2"}), Choice(made(tmp_path / "x.lmdb")))
    find(data(tmp_path), Choice(made(tmp_path / "y.lmdb", names=("class 0", "class 1"))))
    find(data(tmp_path, names=["cat", "dog", "cow"]), Choice(made(tmp_path / "z.lmdb")))


def test_other_keypoints_than_the_trainers_are_refused(tmp_path: Path) -> None:
    """Their number, their dimensions, and which becomes which in a mirror."""
    store = made(tmp_path / "x.lmdb", pose=True)
    right = data(tmp_path, kpt_shape=[2, 3], flip_idx=[1, 0])
    assert find(right, Choice(store), task="pose")["train"] == Place(store, "train")
    for wrong in ([17, 3], [2, 2], None):
        with pytest.raises(UsageError, match=r"kpt_shape must be \[2, 3\], as in .*x\.lmdb, got"):
            find(right | {"kpt_shape": wrong}, Choice(store), task="pose")
    with pytest.raises(UsageError, match=r"flip_idx must be \[1, 0\]"):
        find(right | {"flip_idx": [0, 1]}, Choice(store), task="pose")
    with pytest.raises(UsageError, match="a store for pose must have keypoints, got none"):
        find(right, Choice(made(tmp_path / "y.lmdb")), task="pose")


def test_pictures_of_other_channels_are_refused(tmp_path: Path) -> None:
    """A store has three."""
    with pytest.raises(UsageError, match=r"channels must be 3 in my\.yaml, got 1"):
        find(data(tmp_path, channels=1), Choice(made(tmp_path / "x.lmdb")))


def test_what_is_given_must_be_a_store(tmp_path: Path) -> None:
    """An opened one will do, for its path."""
    (tmp_path / "not").write_text("no store")
    for wrong in (tmp_path / "missing.lmdb", tmp_path / "not", tmp_path):
        with pytest.raises(UsageError, match=r"store must be a fastdata store, got .*; make one with: fastdata convert"):
            given_store(wrong)
    with pytest.raises(UsageError, match="store must be the path of a store, or a mapping"):
        given_store(3)
    with pytest.raises(UsageError, match="store must name a store for each split, got none"):
        given_store({})
    store = made(tmp_path / "x.lmdb")
    with open_store(store) as opened:
        assert given_store(opened) == store
    assert given_store(os.path.relpath(store)) == store
    assert given_store(None) is None


def test_without_any_store_each_split_is_converted(tmp_path: Path) -> None:
    """At the trainer's size, rounded up to the grid as it does; all classes, also where the trainer calls them one."""
    root = tmp_path / "set"
    two = {"splits": {"train": 0.5, "val": 0.5}, "classes": ("ring", "star")}
    write_dataset(root, 6, task="detect", size_hw=(48, 64), workers=1, **two)
    of = data(tmp_path, path=root, train=str(root / "images/train"), val=[str(root / "images/val")], names={0: "item"})
    of["yaml_file"] = str(root / "data.yaml")
    places = find(of, Choice(cache=str(tmp_path / "cache")), single_cls=True, imgsz=50)
    assert {split: place.split for split, place in places.items()} == {"train": "train", "val": "val"}
    for place in places.values():
        with open_store(place.path, place.split) as store:
            assert (store.manifest.imgsz, store.names, len(store)) == (64, ("ring", "star"), 3)


def test_a_store_has_a_data_yaml_of_its_own(tmp_path: Path) -> None:
    """For the trainer to read where the store is all that was given."""
    import yaml

    store = made(tmp_path / "x.lmdb", pose=True)
    file = yaml_of_store(store, Choice(cache=str(tmp_path / "cache")))
    assert yaml_of_store(store, Choice(cache=str(tmp_path / "cache"))) == file
    said = yaml.safe_load(file.read_text())
    assert said == {
        "path": str(tmp_path), "names": ["cat", "dog"], "train": store, "val": store, "test": store, "kpt_shape": [2, 3],
        "flip_idx": [1, 0],
    }  # fmt: skip
