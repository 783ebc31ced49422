"""Where images and labels are looked for: data.yaml, folders of every common shape, list files, and the label of an image."""

from __future__ import annotations

from pathlib import Path

import pytest
from yolo_kit import ROW, classes, keys, read, told, tree

from fastdata.errors import DataError, UsageError
from fastdata.sources.yolo_paths import split_of

YAML = "train: images/train\nval: images/val\nnames: [a, b, c]\n"


def row(cls: int) -> str:
    return f"{cls} 0.5 0.5 0.2 0.4\n"


def both(*names: str, cls: int = 0) -> dict[str, str | bytes]:
    """Files of images and their labels in images/ and labels/."""
    images: dict[str, str | bytes] = {f"images/{name}.jpg": "" for name in names}
    return images | {f"labels/{name}.txt": row(cls) for name in names}


# data.yaml


def test_splits_of_a_data_yaml_come_in_a_fixed_order(tmp_path: Path) -> None:
    """train, val, test, minival, whatever the order in the file; or as the user asks."""
    text = "minival: images/d\ntest: images/c\nvalidation: images/b\ntrain: images/a\nextra: images/e\nnc: 1\n"
    tree(tmp_path, {"data.yaml": text, **both("a/1", "b/2", "c/3", "d/4", "e/5")})
    scan = read(tmp_path / "data.yaml")
    assert scan.splits == ("train", "val", "test", "minival")
    assert keys(scan) == ["images/a/1.jpg", "images/b/2.jpg", "images/c/3.jpg", "images/d/4.jpg"]
    asked = read(tmp_path / "data.yaml", splits=("extra", "valid"))
    assert (asked.splits, keys(asked)) == (("extra", "val"), ["images/e/5.jpg", "images/b/2.jpg"])


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("tset",), "split must be one of train, val in data.yaml, got 'tset'"),
        (("val", "valid"), "splits must differ, got 'val' twice"),
        ((), "splits must name at least one of train, val"),
    ],
)
def test_a_split_that_is_asked_for_must_be_named_in_the_file(tmp_path: Path, splits: tuple[str, ...], message: str) -> None:
    """The message lists those there are."""
    tree(tmp_path, {"data.yaml": YAML, **both("train/1", "val/2")})
    with pytest.raises(UsageError, match=message):
        read(tmp_path, splits=splits)


def test_a_missing_val_is_noted_and_a_missing_train_is_an_error(tmp_path: Path) -> None:
    """Sets are often published without their val; nobody can train without train."""
    tree(tmp_path, {"data.yaml": YAML, **both("train/1")})
    scan = read(tmp_path)
    assert scan.splits == ("train",)
    assert told(scan.problems) == [("data.yaml:2", "missing-split")]
    assert scan.decisions["split val"] == "named but not there"
    message = r"^data.yaml:2: val must be an existing folder or list file, got 'images/val', which is not at "
    with pytest.raises(DataError, match=message):
        read(tmp_path, splits=("val",))
    (tmp_path / "images/train").rename(tmp_path / "images/val")
    with pytest.raises(DataError, match=r"^data.yaml:1: train must be an existing folder"):
        read(tmp_path)
    assert keys(read(tmp_path, splits=("val",))) == ["images/val/1.jpg"]


def test_a_data_yaml_without_train_needs_to_be_told_what_to_read(tmp_path: Path) -> None:
    """train is required; a test set alone is read on request."""
    tree(tmp_path, {"data.yaml": "test: images\nnc: 1\n", **both("1")})
    with pytest.raises(DataError, match=r"^data.yaml:1: train must be"):
        read(tmp_path)
    assert read(tmp_path, splits=("test",)).splits == ("test",)


def test_a_download_is_not_run_and_the_message_says_so(tmp_path: Path) -> None:
    """Whatever it is: Python code here."""
    marker = tmp_path / "ran"
    tree(tmp_path, {"data.yaml": f"train: images\nnc: 1\ndownload: |\n  open({str(marker)!r}, 'w')\n"})
    with pytest.raises(DataError, match="download is never run: fetch the data first"):
        read(tmp_path)
    assert not marker.exists()


def test_a_relative_path_is_looked_for_in_four_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's folder, its ``path``, the current directory; the first that has it wins, and the decision names it."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yaml = tree(tmp_path, {"conf/data.yaml": f"path: ../set\n{YAML}"}) / "conf/data.yaml"
    tree(tmp_path / "cwd", both("train/cwd"))
    assert keys(read(yaml)) == ["images/train/cwd.jpg"]
    assert read(yaml).decisions["split train"] == "found below the current directory"
    tree(tmp_path / "set", both("train/path", "val/path"))
    assert keys(read(yaml)) == ["images/train/path.jpg", "images/val/path.jpg"]
    assert read(yaml).decisions["split train"] == "found below path of data.yaml"
    tree(tmp_path / "conf", both("train/own"))
    assert keys(read(yaml)) == ["conf/images/train/own.jpg", "set/images/val/path.jpg"]
    assert "split train" not in read(yaml).decisions


def test_a_leading_step_upwards_is_tried_without_it(tmp_path: Path) -> None:
    """Roboflow writes '../train/images' beside train/images."""
    files = {"train/images/1.jpg": "", "train/labels/1.txt": ROW, "valid/images/1.jpg": "", "valid/labels/1.txt": ROW}
    tree(tmp_path / "set", {"data.yaml": "train: ../train/images\nval: ../valid/images\nnc: 1\n", **files})
    scan = read(tmp_path / "set")
    assert keys(scan) == ["train/images/1.jpg", "valid/images/1.jpg"]
    assert list(classes(scan).values()) == [[0], [0]]
    tree(tmp_path, {"train/images/0.jpg": "", "train/labels/0.txt": ROW})
    assert keys(read(tmp_path / "set"), "train") == ["train/images/0.jpg"]


def test_entries_may_be_folders_lists_or_both(tmp_path: Path) -> None:
    """Folders sorted, lists as they are; backslashes part folders where nothing else is there."""
    files = {"data.yaml": "train: [images\\b, more.txt, images/a/]\nnc: 1\n", "more.txt": "images/c/2.jpg\nimages/c/1.jpg\n"}
    tree(tmp_path, {**files, **both("a/1", "b/2", "b/1", "c/1", "c/2")})
    assert keys(read(tmp_path)) == [f"images/{name}.jpg" for name in ("b/1", "b/2", "c/2", "c/1", "a/1")]


def test_an_image_is_no_split(tmp_path: Path) -> None:
    """Read as a list, its bytes would name thousands of images."""
    tree(tmp_path, {"data.yaml": "train: a.jpg\nnc: 1\n", "a.jpg": b"\xff\xd8\xff"})
    with pytest.raises(DataError, match=r"got 'a.jpg', which is an image"):
        read(tmp_path)


@pytest.mark.parametrize(("entry", "content"), [("images", {}), ("list.txt", {"list.txt": "\n \n"})])
def test_a_split_without_any_image_is_an_error(tmp_path: Path, entry: str, content: dict[str, str | bytes]) -> None:
    """It is a wrong folder more often than an empty one."""
    (tmp_path / "images").mkdir()
    tree(tmp_path, {"data.yaml": f"train: {entry}\nnc: 1\n", **content})
    with pytest.raises(DataError, match=f"^{entry}: .* must .* at least one image, got none for train"):
        read(tmp_path)


def test_the_root_holds_every_split_whichever_is_read(tmp_path: Path) -> None:
    """The folder of the file; else its path; else the folder above all of them. So keys are short and can move with the set."""
    files = both("train/1", "val/2")
    yaml = tree(tmp_path, {"conf/data.yaml": f"path: {tmp_path}/set\n{YAML}"}) / "conf/data.yaml"
    tree(tmp_path / "set", files)
    for splits in (None, ("val",)):
        scan = read(yaml, splits=splits)
        assert scan.root == tmp_path / "set"
        assert keys(scan, "val") == ["images/val/2.jpg"]
    assert scan.decisions["root"] == "path"
    assert scan.label_files[0].path == "../conf/data.yaml"

    yaml.write_text("train: ../set/images/train\nval: ../other/images/val\nnc: 1\n")
    tree(tmp_path / "other", files)
    for splits in (None, ("val",)):
        scan = read(yaml, splits=splits)
        assert scan.root == tmp_path
        assert keys(scan, "val") == ["other/images/val/2.jpg"]
    assert scan.decisions["root"] == "folder that holds every split"


# Folders


SHAPES: dict[str, tuple[dict[str, str | bytes], dict[str, list[str]]]] = {
    "images with split folders": (
        both("train2017/1", "val2017/2"),
        {"train": ["images/train2017/1.jpg"], "val": ["images/val2017/2.jpg"]},
    ),
    "other folders follow": (
        both("train/1", "valid/2", "zoo/3", "test/4"),
        {s: [f"images/{n}.jpg"] for s, n in (("train", "train/1"), ("val", "valid/2"), ("test", "test/4"), ("zoo", "zoo/3"))},
    ),
    "two folders for one split keep their names": (
        both("train2014/1", "train2017/2"),
        {"train2014": ["images/train2014/1.jpg"], "train2017": ["images/train2017/2.jpg"]},
    ),
    "images without split folders": (both("a/1", "2"), {"train": ["images/2.jpg", "images/a/1.jpg"]}),
    "split folders with images": (
        {"train/images/1.jpg": "", "train/labels/1.txt": ROW, "valid/images/2.jpg": "", "valid/labels/2.txt": ROW},
        {"train": ["train/images/1.jpg"], "val": ["valid/images/2.jpg"]},
    ),
    "labels beside images": ({"b/1.jpg": "", "b/1.txt": ROW, "2.jpg": "", "2.txt": ROW}, {"train": ["2.jpg", "b/1.jpg"]}),
    "split folders, labels beside": (
        {"obj_train_data/1.jpg": "", "obj_train_data/1.txt": ROW, "obj_valid_data/2.jpg": "", "obj_valid_data/2.txt": ROW},
        {"train": ["obj_train_data/1.jpg"], "val": ["obj_valid_data/2.jpg"]},
    ),
    "lists for splits": (
        {**both("1", "2", "3"), "train.txt": "./images/3.jpg\n./images/1.jpg\n", "val.txt": "./images/2.jpg\n"},
        {"train": ["images/3.jpg", "images/1.jpg"], "val": ["images/2.jpg"]},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_folder_without_data_yaml_is_understood_by_its_shape(tmp_path: Path, shape: str) -> None:
    """Each common layout; every image has its label."""
    files, want = SHAPES[shape]
    scan = read(tree(tmp_path / "set", {**files, "readme.txt": "hello\n"}))
    assert {split: keys(scan, split) for split in scan.splits} == want
    assert list(scan.splits) == list(want)
    assert all(found == [0] for found in classes(scan).values())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"images/train/1.jpg": "", "images/2.jpg": ""}, "images/2.jpg: images must lie in the folders of the splits"),
        ({"images/1.jpg": "", "train/images/2.jpg": ""}, "set: images must lie in images/ or in train, got both"),
    ],
)
def test_a_folder_that_can_be_read_in_two_ways_is_refused(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    """Half of the images would be lost in silence."""
    with pytest.raises(DataError, match=f"^{message}"):
        read(tree(tmp_path / "set", files))


def test_a_folder_with_one_yaml_that_names_splits_is_read_by_it(tmp_path: Path) -> None:
    """Whatever it is called; other YAML files may lie beside it, but not a second one of that kind."""
    tree(tmp_path, {"config.yml": YAML, "hyp.yaml": "lr0: 0.01\n", "broken.yaml": "[", **both("train/1", "val/2")})
    assert read(tmp_path).splits == ("train", "val")
    (tmp_path / "other.yaml").write_text(YAML)
    with pytest.raises(UsageError, match=r"src must be one of the files config.yml, other.yaml"):
        read(tmp_path)
    (tmp_path / "data.yaml").write_text(YAML)
    assert read(tmp_path).label_files[0].path == "data.yaml"


@pytest.mark.parametrize("where", ["classes.txt", "labels/classes.txt", "obj.names", "images/train/classes.txt"])
def test_names_come_from_a_file_with_one_name_a_line(tmp_path: Path, where: str) -> None:
    """Where the labelling tools put it; it is no label file."""
    tree(tmp_path, {where: "\ufeffa cat\r\n\r\nb\n", **both("train/1")})
    scan = read(tmp_path)
    assert scan.names == ("a cat", "b")
    assert scan.decisions["names"] == where
    assert scan.label_files[0].path == where
    assert "unused-label-files" not in scan.decisions
    assert read(tmp_path, names=("x", "y")).names == ("x", "y")


def test_without_names_classes_are_numbered_as_far_as_the_labels_go(tmp_path: Path) -> None:
    """And the decision says that they are made up; a number beyond any sense is refused."""
    tree(tmp_path, both("1", cls=4))
    scan = read(tmp_path)
    assert scan.names == ("class 0", "class 1", "class 2", "class 3", "class 4")
    assert scan.category_ids == (0, 1, 2, 3, 4)
    assert scan.decisions["names"].startswith("made up: class 0 to class 4")
    tree(tmp_path, both("1", cls=70_000))
    with pytest.raises(DataError, match=r"class 70000 must be < 65536 \(the limit for a dataset without names\)"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["set.zip", "set.json"])
def test_what_is_no_dataset_is_a_usage_error(tmp_path: Path, name: str) -> None:
    """With the three forms that are read; a path that is not there stays an error of the operating system."""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=r"src must be a data.yaml, a folder, or a .txt file"):
        read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"), ("Training", "train"), ("train2017", "train"), ("train_2014", "train"), ("valid", "val"),
        ("validation", "val"), ("VAL", "val"), ("obj_train_data", "train"), ("testing", "test"), ("minival", "minival"),
        ("trains", None), ("training_images", None), ("retrain", None), ("train3", None), ("images", None), ("", None),
    ],
)  # fmt: skip
def test_a_name_says_which_split_it_is(name: str, split: str | None) -> None:
    """Only as a whole: 'trains' is a class of things."""
    assert split_of(name) == split


# Lists


def test_a_list_alone_is_a_dataset(tmp_path: Path) -> None:
    """Its split is what its name says, else train; classes.txt lies beside it."""
    tree(tmp_path, {"val2017.txt": "images/1.jpg\n", "my.txt": "images/1.jpg", "classes.txt": "a\n", **both("1")})
    scan = read(tmp_path / "val2017.txt")
    assert (scan.splits, keys(scan), scan.names) == (("val",), ["images/1.jpg"], ("a",))
    assert [file.path for file in scan.label_files] == ["classes.txt", "val2017.txt", "labels/1.txt"]
    assert read(tmp_path / "my.txt").splits == ("train",)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfimages/1.jpg\r\n\r\n  images/2.jpg \t\r\n",
        "images/1.jpg\nimages/2.jpg".encode("utf-16"),
        b".\\images\\1.jpg\r\nimages\\2.jpg\r\n",
        b"./images/1.jpg\rimages/2.jpg\r",
    ],
)
def test_a_list_may_be_written_by_any_editor(tmp_path: Path, data: bytes) -> None:
    """Byte-order marks, line ends, blanks at the ends, folders parted as on Windows."""
    tree(tmp_path, {"train.txt": data, **both("1", "2")})
    assert keys(read(tmp_path / "train.txt")) == ["images/1.jpg", "images/2.jpg"]


def test_a_list_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    """With the line where that shows."""
    tree(tmp_path, {"train.txt": b"a.jpg\nb\0"})
    with pytest.raises(DataError, match=r"^train.txt:2: a list must be text"):
        read(tmp_path / "train.txt")


def test_lines_that_are_not_relative_to_the_list_are_noted_once_for_each_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """List, data.yaml, current directory, in this order; './' means the list's folder alone; nothing is left out."""
    far = tmp_path / "set-far"  # begins like the root and lies outside of it
    tree(far, both("5"))
    monkeypatch.chdir(far)
    lines = ["images/1.jpg", "images/2.jpg", "images/3.jpg", "images/5.jpg", "./images/5.jpg", f"{far}/images/5.jpg", "gone.jpg"]
    files = {"lists/t.txt": "\n".join(lines), "data.yaml": "train: lists/t.txt\nnc: 1\n"}
    tree(tmp_path / "set", {**files, **both("1", "2", "3")})
    tree(tmp_path / "set/lists", both("1"))
    scan = read(tmp_path / "set")
    there = ["lists/images/1.jpg", "images/2.jpg", "images/3.jpg", "../set-far/images/5.jpg"]
    assert keys(scan) == [*there, "lists/images/5.jpg", "lists/gone.jpg"]
    assert scan.nbytes.tolist() == [0, 0, 0, 0, -1, -1]
    assert [(p.where, p.kind, p.image) for p in scan.problems] == [
        ("lists/t.txt:6", "duplicate", "../set-far/images/5.jpg"),
        ("lists/t.txt:2", "list-base", None),
        ("lists/t.txt:4", "list-base", None),
    ]
    assert scan.problems[1].detail.startswith("2 lines, of which this is the first, are relative to the folder of data.yaml")
    assert "the current directory" in scan.problems[2].detail


def test_an_image_comes_once_in_a_split_and_may_come_in_two(tmp_path: Path) -> None:
    """However its path is written; what came again is named by line, or by folder."""
    lists = {"train.txt": "images/1.jpg\nimages/a/../1.jpg\n.//images/1.jpg\nimages/a/2.jpg", "val.txt": "images/1.jpg"}
    text = "train: [train.txt, images/a]\nval: val.txt\nnc: 1\n"
    tree(tmp_path, {"data.yaml": text, **lists, **both("1", "a/2", "a/3")})
    scan = read(tmp_path)
    assert keys(scan, "train") == ["images/1.jpg", "images/a/2.jpg", "images/a/3.jpg"]
    assert keys(scan, "val") == ["images/1.jpg"]
    found = [(p.where, p.kind, p.action, p.image) for p in scan.problems]
    assert found == [
        ("train.txt:2", "duplicate", "dropped", "images/1.jpg"),
        ("train.txt:3", "duplicate", "dropped", "images/1.jpg"),
        ("images/a", "duplicate", "dropped", "images/a/2.jpg"),
    ]
    with pytest.raises(DataError, match=r"^train.txt:2: an image must come once in train"):
        read(tmp_path, on_error="raise")
