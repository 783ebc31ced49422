"""Folders, lists and pairs: every form in which Pascal VOC datasets are passed around."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from voc_kit import box, labels_of, read, splits_of, tree, voc, xml

from fastdata.errors import DataError, UsageError
from fastdata.sources.files import digest


def test_every_list_is_a_split_and_trainval_is_left_out_beside_its_halves(tmp_path: Path) -> None:
    """Per-class lists are passed over; what only trainval names is counted; lists are among the label files."""
    labels = {s: xml(box()) for s in "abcde"}
    lists = {
        "train": "a -1\r\nb  1\r\n",
        "val": "\ufeffc\n\n",
        "trainval": "a\nb\nc\ne\n",
        "test": "d.jpg\n",
        "cat_train": "a -1\nb  1\n",
        "cat_val": "c 1\n",
        "small_train": "a\n",
    }
    root = voc(tmp_path, labels, {k: v for k, v in lists.items() if k != "small_train"})
    scan = read(root)
    assert splits_of(scan) == {
        "train": ["JPEGImages/a.jpg", "JPEGImages/b.jpg"],
        "val": ["JPEGImages/c.jpg"],
        "test": ["JPEGImages/d.jpg"],
    }
    said = scan.decisions["voc-splits"]
    assert "trainval left out" in said
    assert "all but 1, for example e" in said
    assert "2 lists of single classes" in said
    assert [f.path for f in scan.label_files][:2] == ["ImageSets/Main/train.txt", "Annotations/a.xml"]
    for file in scan.label_files:
        assert file.digest == digest(root / file.path)
    assert splits_of(read(root, splits=("test", "trainval"))).keys() == {"test", "trainval"}
    with pytest.raises(UsageError, match=r"split must be one of train, val, trainval, test in .*, got 'dev'"):
        read(root, splits=("dev",))
    tree(root, {"ImageSets/Main/small_train.txt": "a\n"})
    assert "small_train" in read(root, on_error="safe").splits


def test_an_image_listed_twice_comes_once_in_a_split(tmp_path: Path) -> None:
    """In two splits it is in both: lists may overlap on purpose. A fault of its xml is then reported once, and its rows twice."""
    root = voc(tmp_path, {"a": xml(box(), box(xmax="")), "b": xml(box())}, {"train": "a\na\n", "test": "b\na\n"})
    scan = read(root)
    assert splits_of(scan) == {"train": ["JPEGImages/a.jpg"], "test": ["JPEGImages/b.jpg", "JPEGImages/a.jpg"]}
    assert [(p.file, p.kind, p.line or p.object) for p in scan.problems] == [
        ("Annotations/a.xml", "bad-number", 2),
        ("ImageSets/Main/train.txt", "duplicate", 2),
    ]
    assert (scan.rows_in, scan.rows_dropped) == (5, 2)
    assert len(scan.label_files) == 4
    root = voc(tmp_path / "clean", {"a": xml(box())}, {"train": "a\na\n"})
    with pytest.raises(DataError, match=r"^ImageSets/Main/train\.txt:2: "):
        read(root, on_error="raise")


def test_a_listed_image_that_is_not_there_is_handed_over_as_missing(tmp_path: Path) -> None:
    """With its labels, under the name that the xml gives; without xml, under its stem."""
    root = voc(tmp_path, {"a": xml(box()), "b": xml(box(), filename="b.png")}, {"train": "a\nb\nghost\n"}, ("a.jpg",))
    scan = read(root)
    assert list(zip(scan.keys, scan.nbytes.tolist(), strict=True)) == [
        ("JPEGImages/a.jpg", 7),
        ("JPEGImages/b.png", -1),
        ("JPEGImages/ghost.jpg", -1),
    ]
    assert scan.rows_in == 2
    assert scan.mtime_ns[0] == (root / "JPEGImages/a.jpg").stat().st_mtime_ns


def test_an_image_without_xml_is_background_and_noted(tmp_path: Path) -> None:
    """Listed or found in the folder."""
    root = voc(tmp_path, {"a": xml(box())}, None, ("a.jpg", "b.jpg"))
    for lists in ({}, {"ImageSets/Main/train.txt": "a\nb\n"}):
        scan = read(tree(root, lists))
        assert labels_of(scan) == {"JPEGImages/a.jpg": [("cat", [10, 5, 30, 25])], "JPEGImages/b.jpg": []}
        assert [(p.image, p.kind) for p in scan.problems] == [("JPEGImages/b.jpg", "no-label")]
        assert scan.rows(1).file == ""


def test_what_no_list_names_is_counted_in_one_note(tmp_path: Path) -> None:
    """It is not part of the set, and does not vanish either."""
    root = voc(tmp_path, {s: xml(box()) for s in "abc"}, {"train": "a\n"})
    scan = read(root)
    assert len(scan) == 1
    assert [(p.file, p.kind) for p in scan.problems] == [("Annotations", "unused-label-file")]
    assert "2 xml files or images are in no list" in scan.problems[0].detail


def test_a_list_may_name_files_with_blanks_dots_and_endings(tmp_path: Path) -> None:
    """What exists decides what a line means, so that 'photo 1' is a name and 'photo 1 1' is a name with a flag."""
    stems = ["photo 1", "photo", "v1.2", "d"]
    root = voc(tmp_path, {s: xml(box()) for s in stems})
    for text in ("photo 1 1\nphoto -1\nv1.2\nd.xml\n", "photo 1\nphoto\nv1.2 0\nd.jpg  1\n"):
        tree(root, {"ImageSets/Main/train.txt": text})
        assert list(read(root).keys) == [f"JPEGImages/{s}.jpg" for s in stems]


def test_several_years_below_one_kit_are_read_as_one_set(tmp_path: Path) -> None:
    """Keys carry the year; splits of one name are joined; classes and origin are those of all years."""
    voc(tmp_path / "VOC2007", {"a": xml(box("dog"))}, {"train": "a\n", "val": "", "trainval": "a\n"})
    voc(tmp_path / "VOC2012", {"a": xml(box("cat", xmin=0))}, {"trainval": "a\n"})
    scan = read(tmp_path)
    assert splits_of(scan) == {"train": ["VOC2007/JPEGImages/a.jpg"], "val": [], "trainval": ["VOC2012/JPEGImages/a.jpg"]}
    assert scan.names == ("cat", "dog")
    assert scan.decisions["voc-origin"] == "0-based"
    assert len(read(tmp_path.parent / tmp_path.name / "VOC2007")) == 1
    with pytest.raises(UsageError, match=r"several folders of xml, got VOC2007, VOC2012"):
        read(tmp_path, images=tmp_path / "VOC2007/JPEGImages")


def test_xml_beside_images_in_split_folders_is_read_with_its_splits(tmp_path: Path) -> None:
    """The export form of labelling sites; 'valid' is the split val."""
    folders = {"train": "train", "val": "valid", "test": "test"}
    for folder in folders.values():
        tree(tmp_path, {f"{folder}/a_jpg.rf.1.jpg": b"x", f"{folder}/a_jpg.rf.1.xml": xml(box())})
    assert splits_of(read(tmp_path)) == {split: [f"{folder}/a_jpg.rf.1.jpg"] for split, folder in folders.items()}
    assert list(read(tmp_path, splits=("val",)).keys) == ["valid/a_jpg.rf.1.jpg"]


def test_sub_folders_below_annotations_pair_with_the_same_below_images(tmp_path: Path) -> None:
    """Equal names in different folders stay apart; a folder named as a split makes the split."""
    tree(
        tmp_path,
        {
            "annotations/train/a.xml": xml(box("cat")),
            "annotations/test/a.xml": xml(box("dog")),
            "images/train/a.PNG": b"x",
            "images/test/a.PNG": b"x",
        },
    )
    scan = read(tmp_path)
    assert splits_of(scan) == {"train": ["images/train/a.PNG"], "test": ["images/test/a.PNG"]}
    assert labels_of(scan)["images/test/a.PNG"][0][0] == "dog"


def test_roots_of_images_and_labels_may_lie_elsewhere(tmp_path: Path) -> None:
    """Keys are relative to the images' root then, and label files are known by the way to them."""
    tree(tmp_path, {"set/readme": "", "pictures/x/a.jpg": b"x", "text/x/a.xml": xml(box())})
    scan = read(tmp_path / "set", images=tmp_path / "pictures", labels=tmp_path / "text")
    assert labels_of(scan) == {"x/a.jpg": [("cat", [10, 5, 30, 25])]}
    assert scan.label_files[0].path == "../text/x/a.xml"
    assert scan.paths[0] == str(tmp_path / "pictures/x/a.jpg")
    inside = read(tmp_path, images=tmp_path / "pictures", labels=tmp_path / "text")
    assert (inside.keys[0], inside.rows(0).file) == ("pictures/x/a.jpg", "text/x/a.xml")


def test_a_relative_source_gives_absolute_paths_and_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is no part of a key."""
    voc(tmp_path / "d", {"a": xml(box())})
    monkeypatch.chdir(tmp_path)
    scan = read(Path("d"))
    assert (scan.keys[0], scan.paths[0]) == ("JPEGImages/a.jpg", str(tmp_path / "d/JPEGImages/a.jpg"))


def test_an_xml_labels_every_image_of_its_stem(tmp_path: Path) -> None:
    """a.jpg and a.png are two images; rows are counted for both, faults reported once."""
    voc(tmp_path, {"a": xml(box(), box(xmax=""))}, None, ("a.jpg", "a.png"))
    scan = read(tmp_path)
    assert set(labels_of(scan)) == {"JPEGImages/a.jpg", "JPEGImages/a.png"}
    assert (scan.rows_in, scan.rows_dropped, len(scan.problems), len(scan.label_files)) == (4, 2, 1, 1)


def test_a_file_name_leads_to_the_image_only_where_the_stem_does_not(tmp_path: Path) -> None:
    """0001.xml may claim photo.jpg, which has no xml of its own, but not b.jpg, which has."""
    labels = {"0001": xml(box("ant"), filename="C:\\shots\\photo.jpg"), "0002": xml(box("bee"), filename="b.jpg")}
    labels["b"] = xml(box("cat"))
    voc(tmp_path, labels, None, ("photo.jpg", "b.jpg"))
    scan = read(tmp_path)
    assert labels_of(scan) == {
        "JPEGImages/photo.jpg": [("ant", [10, 5, 30, 25])],
        "JPEGImages/0002.jpg": [("bee", [10, 5, 30, 25])],
        "JPEGImages/b.jpg": [("cat", [10, 5, 30, 25])],
    }
    assert scan.nbytes.tolist() == [7, -1, 7]
    assert scan.problems == []
    tree(tmp_path, {"ImageSets/Main/train.txt": "photo\nb\n"})
    assert labels_of(read(tmp_path)) == {
        "JPEGImages/photo.jpg": [("ant", [10, 5, 30, 25])],
        "JPEGImages/b.jpg": [("cat", [10, 5, 30, 25])],
    }


def test_an_image_is_claimed_once(tmp_path: Path) -> None:
    """Of two xml files that name the same image the first has it; the image of the other is missing."""
    voc(tmp_path, {s: xml(box(s), filename="photo.jpg") for s in ("0001", "0002")}, None, ("photo.jpg",))
    scan = read(tmp_path)
    assert labels_of(scan)["JPEGImages/photo.jpg"] == [("0001", [10, 5, 30, 25])]
    assert list(zip(scan.keys, scan.nbytes.tolist(), strict=True)) == [("JPEGImages/photo.jpg", 7), ("JPEGImages/0002.jpg", -1)]


def test_two_spellings_of_one_accent_are_the_same_name(tmp_path: Path) -> None:
    """Disks and xml files compose letters differently; a mismatch is of names, not of spellings."""
    voc(tmp_path, {"caf\u00e9": xml(box(), filename="cafe\u0301.jpg")})
    assert read(tmp_path).problems == []


def test_a_name_in_no_encoding_comes_through(tmp_path: Path) -> None:
    """File names are bytes; a list and a folder agree on them."""
    name = os.fsdecode(b"caf\xe9")
    root = voc(tmp_path, {}, {"train": ""}, ())
    for path in (root / f"Annotations/{name}.xml", root / f"JPEGImages/{name}.jpg"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(xml(box()))
    (root / "ImageSets/Main/train.txt").write_bytes(b"caf\xe9\n")
    scan = read(root)
    assert list(scan.keys) == [f"JPEGImages/{name}.jpg"]
    assert scan.nbytes[0] > 0
