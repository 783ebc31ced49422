"""Which JSON file is which split, and where its images are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coco_kit import document, image, note, write

from fastdata.errors import DataError, UsageError
from fastdata.sources.coco import read_coco
from fastdata.sources.coco_layout import lay_out, split_of
from fastdata.sources.scan import Scan, SourceOptions

DOC = document([note()])


def read(src: Path, **options: Any) -> Scan:
    return read_coco(src, SourceOptions(**options))


def found(scan: Scan) -> dict[str, list[str]]:
    return {split: [scan.keys[i] for i in range(len(scan)) if scan.split[i] == s] for s, split in enumerate(scan.splits)}


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        ("instances_train2017", "train"),
        ("instances_val2017", "val"),
        ("person_keypoints_val2014", "val"),
        ("instances_minival2014", "minival"),
        ("lvis_v1_train", "train"),
        ("train", "train"),
        ("valid", "val"),
        ("test_coco", "test"),
        ("coco_train_annotations", "train"),
        ("instances_test-dev2017", "test-dev"),
        ("cats_night", "night"),
        ("bolts", "bolts"),
        ("instances_trainval2014", "trainval"),
        ("annotations", ""),
        ("_annotations.coco", ""),
        ("instances_default", ""),
        ("instances_2017", ""),
        ("result", ""),
        ("", ""),
    ],
)
def test_a_file_name_states_its_split(stem: str, split: str) -> None:
    """The last word that names a split, else the last word without its year, else nothing."""
    assert split_of(stem)[0] == split


@pytest.mark.parametrize(
    "folder",
    "images/train2017 images/train train2017 train images data JPEGImages . annotations images/instances_train2017".split(),
)
def test_images_are_found_where_they_usually_are(tmp_path: Path, folder: str) -> None:
    """Keys are paths below the dataset's folder, whichever place it is."""
    write(tmp_path, {"annotations/instances_train2017.json": DOC, f"{folder}/1.jpg": None})
    expected = "1.jpg" if folder == "." else f"{folder}/1.jpg"
    assert found(read(tmp_path)) == {"train": [expected]}
    assert found(read(tmp_path / "annotations/instances_train2017.json")) == {"train": [expected]}


def test_a_file_without_a_year_finds_folders_with_one_and_valid_is_val(tmp_path: Path) -> None:
    """train.json beside train2017/, valid.json beside images/val/."""
    write(tmp_path, {"train.json": DOC, "valid.json": DOC, "train2017/1.jpg": None, "images/val/1.jpg": None})
    assert found(read(tmp_path)) == {"train": ["train2017/1.jpg"], "val": ["images/val/1.jpg"]}


def test_the_folder_with_most_of_the_images_wins(tmp_path: Path) -> None:
    """A stray copy of one image in a likelier place does not mislead."""
    doc = document([note()], [image(n) for n in range(1, 6)])
    write(tmp_path, {"annotations/instances_train.json": doc, "images/train/1.jpg": None})
    write(tmp_path, {f"data/{n}.jpg": None for n in range(1, 6)})
    assert found(read(tmp_path))["train"][0] == "data/1.jpg"


def test_the_first_images_may_be_missing(tmp_path: Path) -> None:
    """Images from all over the list are looked for, not only the first ones."""
    doc = document([note()], [image(n) for n in range(1, 101)])
    write(tmp_path, {"annotations/instances_train.json": doc, **{f"images/{n}.jpg": None for n in range(50, 101)}})
    scan = read(tmp_path)
    assert scan.keys[99] == "images/100.jpg"
    assert int((scan.nbytes < 0).sum()) == 49


def test_no_image_anywhere_is_an_error_that_lists_the_places(tmp_path: Path) -> None:
    """It names an image, the folders that were tried, and the option."""
    write(tmp_path, {"annotations/instances_train.json": DOC, "images/other.jpg": None})
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert message.startswith("annotations/instances_train.json: ")
    assert "1.jpg" in message
    assert str(tmp_path / "images") in message
    assert "--images" in message
    assert "train2017" not in message  # places that do not exist are not listed


def test_of_instances_and_keypoints_the_task_chooses(tmp_path: Path) -> None:
    """Boxes and outlines by default, keypoints for task pose; captions and the like are never read."""
    person = [{"id": 1, "name": "person", "keypoints": ["nose"]}]
    pose = document([note(keypoints=[1, 2, 2])], categories=person)
    files = {f"annotations/{kind}_train2017.json": DOC for kind in ("instances", "captions", "panoptic", "stuff")}
    write(tmp_path, {**files, "annotations/person_keypoints_train2017.json": pose, "images/1.jpg": None})
    write(tmp_path, {"annotations/._instances_train2017.json": "resource fork", "annotations/note.txt": "x"})
    assert [f.path for f in read(tmp_path).label_files] == ["annotations/instances_train2017.json"]
    assert [f.path for f in read(tmp_path, task="pose").label_files] == ["annotations/person_keypoints_train2017.json"]


def test_captions_alone_do_not_make_a_split(tmp_path: Path) -> None:
    """Published folders hold files of other tasks for every split, with COCO's lists but no boxes."""
    write(tmp_path, {"annotations/instances_train2017.json": DOC, "images/1.jpg": None})
    write(tmp_path, {f"annotations/{kind}_val2017.json": DOC for kind in ("captions", "image_info", "panoptic")})
    assert read(tmp_path).splits == ("train",)


def test_a_split_with_keypoints_alone_is_read_beside_one_with_instances(tmp_path: Path) -> None:
    """The choice is made for each split."""
    write(tmp_path, {"annotations/instances_train.json": DOC, "annotations/person_keypoints_val.json": DOC, "images/1.jpg": None})
    assert read(tmp_path).splits == ("train", "val")


def test_two_years_of_a_split_keep_their_years(tmp_path: Path) -> None:
    """train2014 and train2017 are two splits; alone, each is train; either name may be asked for."""
    write(tmp_path, {f"annotations/instances_{s}.json": DOC for s in ("train2014", "train2017", "val2017")})
    write(tmp_path, {f"{s}/1.jpg": None for s in ("train2014", "train2017", "val2017")})
    scan = read(tmp_path)
    assert found(scan) == {"val": ["val2017/1.jpg"], "train2014": ["train2014/1.jpg"], "train2017": ["train2017/1.jpg"]}
    assert read(tmp_path, splits=("val2017", "train2014")).splits == ("val", "train2014")


def test_two_files_of_equal_split_keep_their_names(tmp_path: Path) -> None:
    """Where even the last words are equal the whole name is the split."""
    write(tmp_path, {"annotations/a_train.json": DOC, "annotations/b_train.json": DOC, "images/1.jpg": None})
    assert read(tmp_path).splits == ("a_train", "b_train")


def test_files_in_the_folders_of_the_splits(tmp_path: Path) -> None:
    """train|valid|test/_annotations.coco.json beside the images: valid is val, keys begin with the folder."""
    for split in ("train", "valid", "test"):
        write(tmp_path, {f"{split}/_annotations.coco.json": DOC, f"{split}/1.jpg": None})
    assert found(read(tmp_path)) == {"train": ["train/1.jpg"], "val": ["valid/1.jpg"], "test": ["test/1.jpg"]}
    alone = read(tmp_path / "valid/_annotations.coco.json")
    assert (found(alone), alone.root) == ({"val": ["1.jpg"]}, tmp_path / "valid")


def test_folders_of_splits_may_lie_in_annotations(tmp_path: Path) -> None:
    """annotations/train/any.json with images/train/."""
    write(tmp_path, {"annotations/train/any.json": DOC, "images/train/1.jpg": None})
    assert found(read(tmp_path)) == {"train": ["images/train/1.jpg"]}


def test_several_files_in_the_folder_of_a_split_are_refused_unless_one_is_named_coco(tmp_path: Path) -> None:
    """The message lists them."""
    write(tmp_path, {"train/a.json": DOC, "train/b.json": DOC, "train/1.jpg": None})
    with pytest.raises(DataError, match=r"must hold one COCO file, got a\.json, b\.json"):
        read(tmp_path)
    write(tmp_path, {"train/_annotations.coco.json": DOC})
    assert [f.path for f in read(tmp_path).label_files] == ["train/_annotations.coco.json"]


def test_settings_beside_the_labels_are_not_labels(tmp_path: Path) -> None:
    """A JSON file without COCO's lists is passed over; if there is no other, it is the one that the error is about."""
    write(tmp_path, {"labels.json": DOC, "package.json": {"name": "x"}, "images/1.jpg": None})
    assert [f.path for f in read(tmp_path).label_files] == ["labels.json"]
    (tmp_path / "labels.json").unlink()
    with pytest.raises(DataError, match=r"package\.json: images must be a list at the top level"):
        read(tmp_path)


def test_a_folder_without_json_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    """annotations/, split folders, and the folder itself."""
    write(tmp_path, {"images/1.jpg": None})
    with pytest.raises(DataError, match=r"must have JSON files in annotations/, in split folders"):
        read(tmp_path)


# One file, and images that the user names


def test_a_lone_file_that_says_no_split_is_train_or_what_the_user_says(tmp_path: Path) -> None:
    """annotations.json is train; --split val makes it val; a file that says val stays val."""
    write(tmp_path, {"annotations.json": DOC, "x_val.json": DOC, "images/1.jpg": None})
    assert read(tmp_path / "annotations.json").splits == ("train",)
    assert read(tmp_path / "annotations.json", splits=("val",)).splits == ("val",)
    assert read(tmp_path / "x_val.json").splits == ("val",)
    with pytest.raises(UsageError, match="split must be one of val"):
        read(tmp_path / "x_val.json", splits=("train",))


@pytest.mark.parametrize("folder", ["images", "images/set", "set", "images/train"])
def test_images_beside_the_folder_of_a_lone_file_are_found(tmp_path: Path, folder: str) -> None:
    """../images, ../images/<stem>, ../<stem>: keys are then relative to the folder above."""
    write(tmp_path, {"labels/set.json": DOC, f"{folder}/1.jpg": None})
    scan = read(tmp_path / "labels/set.json", splits=("train",))
    assert found(scan) == {"train": [f"{folder}/1.jpg"]}
    assert scan.root == tmp_path
    assert [f.path for f in scan.label_files] == ["labels/set.json"]
    assert scan.rows(0).file == "labels/set.json"


def test_a_folder_is_not_left_in_search_of_images(tmp_path: Path) -> None:
    """Images beside the dataset's folder belong to something else."""
    write(tmp_path, {"set/annotations/instances_train.json": DOC, "images/1.jpg": None, "train/1.jpg": None})
    with pytest.raises(DataError, match="its images must lie in a folder of the dataset"):
        read(tmp_path / "set")


@pytest.mark.parametrize("images", ["photos", "photos/deep"])
def test_images_named_by_the_user_below_the_root_keep_their_path(tmp_path: Path, images: str) -> None:
    """The key includes the image folder."""
    write(tmp_path, {"annotations.json": DOC, f"{images}/1.jpg": None})
    scan = read(tmp_path / "annotations.json", images=tmp_path / images)
    assert (found(scan), scan.root) == ({"train": [f"{images}/1.jpg"]}, tmp_path)


def test_images_named_by_the_user_elsewhere_are_the_root_of_the_keys(tmp_path: Path) -> None:
    """Each split has its folder below; label files are then known by the way to them."""
    files = {f"set/annotations/instances_{s}.json": DOC for s in ("train2017", "val2017")}
    write(tmp_path, {**files, "photos/train2017/1.jpg": None, "photos/images/val2017/1.jpg": None})
    scan = read(tmp_path / "set", images=tmp_path / "photos")
    assert found(scan) == {"train": ["train2017/1.jpg"], "val": ["images/val2017/1.jpg"]}
    assert scan.root == tmp_path / "photos"
    assert scan.label_files[0].path == "../set/annotations/instances_train2017.json"


def test_a_relative_source_has_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root and image paths do not depend on the current directory afterwards; links are kept as they are."""
    write(tmp_path, {"real/annotations.json": DOC, "real/images/1.jpg": None})
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    scan = read(Path("link/annotations.json"), images=Path("link/images"))
    assert scan.root == tmp_path / "link"
    assert list(scan.paths) == [str(tmp_path / "link/images/1.jpg")]


def test_splits_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    """Unknown, doubled and no splits are usage errors that list what there is; images of others need not be there."""
    write(tmp_path, {f"annotations/instances_{s}.json": DOC for s in ("train", "val", "odd")})
    write(tmp_path, {"images/val/1.jpg": None, "images/train/1.jpg": None})
    assert read(tmp_path, splits=("val", "train")).splits == ("val", "train")
    for wanted, words in ((("tst",), "train, val, odd"), (("val", "val"), "'val' twice"), ((), "one of train, val, odd")):
        with pytest.raises(UsageError, match=words):
            read(tmp_path, splits=wanted)
    with pytest.raises(UsageError, match="images must be an existing folder"):
        read(tmp_path, images=tmp_path / "nowhere")


def test_laying_out_reads_no_list(tmp_path: Path) -> None:
    """Splits are known before any file is parsed: a malformed file of another split does no harm."""
    write(tmp_path, {"annotations/instances_train.json": DOC, "annotations/instances_val.json": '{"images": ['})
    write(tmp_path, {"images/1.jpg": None})
    assert [f.split for f in lay_out(tmp_path, SourceOptions()).files] == ["train", "val"]
    assert read(tmp_path, splits=("train",)).splits == ("train",)
