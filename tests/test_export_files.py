"""Where an export goes and what its files are called: nothing that was there is harmed, nothing leads out of the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_kit import Shot, Thing, blank, write

from fastdata.errors import UsageError
from fastdata.export import export
from fastdata.export_files import MARKER, file_names
from fastdata.store.read import open_store


def test_names_are_safe_and_unique_without_their_endings() -> None:
    """Nothing leads out of the folder, no folder is called images, and no two pictures share a label file."""
    png = (".png",)
    keys = [
        "data/images/a.jpg",
        "data/a.png",
        "data/images/../../a.jpeg",
        "/data/sub/a.v1.tif",
        "data/sub/.hid",
        "data/A.jpg",
        "data/c.v2",
    ]
    names = file_names(keys, [png] * len(keys))
    assert names == ["a.png", "a.png.png", "a.jpeg.png", "sub/a.v1.png", "sub/_hid.png", "A.jpg.png", "c.v2.png"]
    assert file_names(["x/images/y/a.JPG", "x/y/b.jpg"], [(".jpg", ".jpeg")] * 2) == ["a.JPG", "b.jpg"]
    assert file_names(["a\\..\\b\n.png"], [()]) == ["a_.._b_.png"]
    assert file_names([], []) == []


@given(
    st.lists(st.text(st.sampled_from("aA./\\ \x00é\udcff-"), max_size=12), max_size=8),
    st.sampled_from([(".png",), (".jpg", ".jpeg"), ()]),
)
def test_any_keys_give_distinct_names_below_the_folder(keys: list[str], suits: tuple[str, ...]) -> None:
    """Whatever a store calls its pictures."""
    names = file_names(keys, [suits] * len(keys))
    stems = [name[: -len(os.path.splitext(name)[1])] if suits else name for name in names]
    assert len({stem.casefold() for stem in stems}) == len(keys)
    for name in names:
        assert not name.startswith("/")
        assert not {"", ".", "..", "images"} & set(name.split("/")[:-1])
        assert "\0" not in name
        assert not any(part.startswith(".") for part in name.split("/"))


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written into a folder with files, unless it is an earlier export and shall be replaced."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5))])])) as store:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/thesis.doc").write_text("years")
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="must"):
                export(store, tmp_path / "mine", format="yolo", overwrite=overwrite)
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="must be a folder"):
            export(store, tmp_path / "file", format="yolo")
        with pytest.raises(UsageError, match="mkdir -p"):
            export(store, tmp_path / "no/where", format="yolo")
        (tmp_path / "empty").mkdir()
        export(store, tmp_path / "empty", format="yolo")
        with pytest.raises(UsageError, match="--overwrite"):
            export(store, tmp_path / "empty", format="coco")
        export(store, tmp_path / "empty", format="coco", overwrite=True)
        assert sorted(p.name for p in (tmp_path / "empty").iterdir()) == [MARKER, "annotations", "images"]
        for wrong in ({"format": "voc"}, {"format": "coco", "image_format": "gif"}):
            with pytest.raises(UsageError, match="must be one of"):
                export(store, tmp_path / "other", **wrong)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "mine", "s.lmdb"]
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.doc"]


def test_a_dataset_that_looks_like_an_export_is_never_replaced(tmp_path: Path) -> None:
    """images, labels and data.yaml are what everybody's dataset holds; only the marker says that an export made them."""
    for name in ("images/a.png", "labels/a.txt", "data.yaml"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text("mine")
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(8, 8))])) as store:
        for format in ("coco", "yolo"):
            with pytest.raises(UsageError, match="earlier export"):
                export(store, tmp_path / "set", format=format, overwrite=True)  # type: ignore[arg-type]
    assert (tmp_path / "set/images/a.png").read_text() == "mine"


def test_the_store_is_never_replaced_by_its_export(tmp_path: Path) -> None:
    """A store that lies in the target, under a name that an export has, stops the export."""
    (tmp_path / "out/images").mkdir(parents=True)
    (tmp_path / "out" / MARKER).touch()
    with open_store(write(tmp_path / "out/images/s.lmdb", [Shot(blank(8, 8))])) as store:
        with pytest.raises(UsageError, match="must not hold the store"):
            export(store, tmp_path / "out", format="coco", overwrite=True)
    assert (tmp_path / "out/images/s.lmdb").exists()


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_a_failed_export_leaves_what_was_there(tmp_path: Path, format: str) -> None:
    """A record that does not decode stops the export; the old one stays, and nothing half-made stays beside it."""
    shots = [Shot(blank(8, 8), key=f"{k}.png") for k in range(30)]
    shots.append(Shot(blank(8, 8), key="broken.png", encoding="jpeg", payload=b"\xff\xd8 no", rect=(0, 0, 4, 4)))
    (tmp_path / "out/labels").mkdir(parents=True)
    (tmp_path / "out" / MARKER).touch()
    (tmp_path / "out/labels/old.txt").write_text("old")
    with open_store(write(tmp_path / "s.lmdb", shots)) as store:
        with pytest.raises(ValueError, match="payload"):
            export(store, tmp_path / "out", format=format, overwrite=True)  # type: ignore[arg-type]
    assert (tmp_path / "out/labels/old.txt").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "s.lmdb"]
