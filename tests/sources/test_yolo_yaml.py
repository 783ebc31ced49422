"""data.yaml: every form of every key, and a line for every fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdata.errors import DataError
from fastdata.sources.yolo_yaml import DataYaml, names_a_split, read_yaml


def yaml(tmp_path: Path, text: str | bytes) -> DataYaml:
    path = tmp_path / "data.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_yaml(path)


def paths(found: DataYaml) -> dict[str, list[str]]:
    return {split: [entry.text for entry in entries] for split, entries in found.splits.items()}


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("train: images/train\nval: images/val\n", {"train": ["images/train"], "val": ["images/val"]}),
        ("test: c\nvalidation: b\ntrain: a\n", {"train": ["a"], "val": ["b"], "test": ["c"]}),
        ("train: [a, b.txt]\nval:\n  - c\n  - d\n", {"train": ["a", "b.txt"], "val": ["c", "d"]}),
        ("train: a\nval: b\nvalidation: c\n", {"train": ["a"], "val": ["b"]}),
        ("train: a\nval:\ntest: ~\nminival: ''\n", {"train": ["a"]}),
        ("minival: d\ntest: c\nvalid: b\ntrain: a\n", {"train": ["a"], "val": ["b"], "test": ["c"], "minival": ["d"]}),
        ("train: 2017\n", {"train": ["2017"]}),
    ],
)
def test_splits_are_paths_or_lists_of_them(tmp_path: Path, text: str, splits: dict[str, list[str]]) -> None:
    """In the order train, val, test, minival; a key without a value is not there."""
    found = yaml(tmp_path, text + "nc: 1\n")
    assert paths(found) == splits
    assert list(found.splits) == list(splits)


def test_an_entry_remembers_its_line(tmp_path: Path) -> None:
    """So that a missing folder is named where it stands."""
    found = yaml(tmp_path, "# head\npath: x\ntrain:\n  - a\n  - b\nnc: 1\n")
    assert [entry.line for entry in found.splits["train"]] == [4, 5]
    assert found.path is not None
    assert (found.path.text, found.path.line) == ("x", 2)


@pytest.mark.parametrize(
    ("text", "names", "ids"),
    [
        ("names: [a, b]", ("a", "b"), None),
        ("names:\n- a\n- b\nnc: 2", ("a", "b"), None),
        ("names: {0: a, 1: b}", ("a", "b"), None),
        ("names: {1: b, 0: a}", ("a", "b"), None),
        ("names: {'0': a, '1': b}", ("a", "b"), None),
        ("names: {1: a, 2: b}", ("a", "b"), (1, 2)),
        ("names: {90: c, 1: a, 7: b}\nnc: 3", ("a", "b", "c"), (1, 7, 90)),
        ("names: {1: a, 3: b}\nnc: 4", ("a", "b"), (1, 3)),
        ("names: [no, yes, on, 007, 1.0, null, 'a b']", ("no", "yes", "on", "007", "1.0", "null", "a b"), None),
        ("names: [été, 猫]", ("été", "猫"), None),
        ("nc: 3", ("class 0", "class 1", "class 2"), None),
        ("train: a", None, None),
    ],
)
def test_names_are_taken_as_written(
    tmp_path: Path, text: str, names: tuple[str, ...] | None, ids: tuple[int, ...] | None
) -> None:
    """A class called 'no' is a word; ids with gaps are kept and give the order."""
    found = yaml(tmp_path, text)
    assert (found.names, found.ids) == (names, ids)


def test_keypoints_and_their_names(tmp_path: Path) -> None:
    """A list for all, or one for each class, of which the first counts."""
    head = "names: [a]\nkpt_shape: [3, 2]\nflip_idx: [1, 0, 2]\n"
    for names in ("kpt_names:\n  0: [left, right, nose]\n  1: [a, b, c]\n", "kpt_names: [left, right, nose]\n"):
        found = yaml(tmp_path, head + names)
        assert (found.keypoints, found.keypoint_dims, found.flip_idx) == (3, 2, (1, 0, 2))
        assert found.keypoint_names == ("left", "right", "nose")
    assert yaml(tmp_path, "names: [a]\nflip_idx: [5]\nkpt_names: [x, y]\nkpt_shape:\n").keypoints == 0


def test_a_download_is_seen_and_nothing_of_it_kept(tmp_path: Path) -> None:
    """It may be code; the reader can only say that there is one."""
    found = yaml(tmp_path, "train: a\nnc: 1\ndownload: |\n  import os\n  os.system('true')\n")
    assert found.has_download
    assert "os.system" not in repr(found)


def test_unknown_keys_with_texts_may_be_splits_if_asked_for(tmp_path: Path) -> None:
    """Numbers, switches and mappings are none."""
    others = "extra: b\nmore: [c, d]\nformat: yolo\nskip: true\nversion: 3\nroboflow: {x: y}\nmixed: [a, {}]\n"
    found = yaml(tmp_path, f"train: a\nnc: 1\n{others}")
    assert sorted(found.others) == ["extra", "more"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "data.yaml:1: must be a mapping"),
        ("", "data.yaml:1: must be a mapping"),
        ("train: [a\nval: b\n", "data.yaml:2: must be YAML"),
        ("train: a\n\tval: b\n", "data.yaml:2: must be YAML"),
        (b"train: \xff\n", "data.yaml:1: must be YAML in UTF-8"),
        ("a: " + "[" * 5000, "data.yaml:1: must be YAML of a few levels"),
        ("train: a\ntrain: b\n", "data.yaml:2: a key of data.yaml must come once, got 'train' again"),
        ("[a]: b\n", "data.yaml:1: a key of data.yaml must be a single value"),
        ("train: {a: b}\n", "data.yaml:1: train must be a single value"),
        ("train:\n- [a]\n", "data.yaml:2: a path of train must be a single value"),
        ("nc: 1\nnames: [a, b]\n", "data.yaml:1: nc must be the number of names (2), got 1"),
        ("names: {1: a, 3: b}\nnc: 3\n", "data.yaml:2: nc must be the number of names (2), got 3"),
        ("nc: two\n", "data.yaml:1: nc must be a whole number from 0, got 'two'"),
        ("nc: -1\n", "data.yaml:1: nc must be a whole number from 0, got '-1'"),
        ("names: {a: 0}\n", "data.yaml:1: the id of a name must be a whole number from 0, got 'a'"),
        ("names: {99999999999: a}\n", "data.yaml:1: the id of a name must be a whole number from 0"),
        ("names:\n  0: a\n  00: b\n", "data.yaml:3: ids in names must differ, got 0 twice"),
        ("names: person\n", "data.yaml:1: names must be a list or a mapping"),
        ("names: []\n", "data.yaml:1: names must hold at least one name"),
        ("names:\n- [a]\n", "data.yaml:2: a name must be a single value"),
        ("nc: 1\nkpt_shape: 17\n", "data.yaml:2: kpt_shape must be a list"),
        ("nc: 1\nkpt_shape: [17]\n", "data.yaml:2: kpt_shape must be [keypoints, 2 or 3], got [17]"),
        ("nc: 1\nkpt_shape: [17, 4]\n", "data.yaml:2: kpt_shape must be [keypoints, 2 or 3], got [17, 4]"),
        ("nc: 1\nkpt_shape: [0, 3]\n", "data.yaml:2: kpt_shape must be"),
        ("nc: 1\nkpt_shape: [2, 3]\nflip_idx: [0]\n", "data.yaml:3: flip_idx must hold each of 0..1 once"),
        ("nc: 1\nkpt_shape: [2, 3]\nflip_idx: [0, 0]\n", "data.yaml:3: flip_idx must hold each of 0..1 once"),
        ("nc: 1\nkpt_shape: [2, 3]\nkpt_names: [a]\n", "data.yaml:3: kpt_names must hold 2 names (kpt_shape), got 1"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    """``file:line``, the rule, and what was there."""
    with pytest.raises(DataError) as caught:
        yaml(tmp_path, text)
    assert str(caught.value).startswith(message)


def test_tags_and_aliases_build_nothing(tmp_path: Path) -> None:
    """No object is made of a tag; nine levels of nine aliases cost nothing, because nobody follows them."""
    marker = tmp_path / "made"
    bomb = "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 10))
    tag = f"other: !!python/object/apply:os.mkdir ['{marker}']\n"
    found = yaml(tmp_path, f"train: a\n{tag}b0: &b0 [x, x]\n{bomb}names: [!!python/none '', b]\n")
    assert not marker.exists()
    assert found.names == ("", "b")


@pytest.mark.parametrize(
    ("text", "answer"), [("val: a", True), ("train: a", True), ("names: [a]", False), ("x: [", False), ("- a", False)]
)
def test_a_dataset_file_is_told_by_its_splits(tmp_path: Path, text: str, answer: bool) -> None:
    """Any YAML may lie beside a dataset; one that cannot be read is none."""
    path = tmp_path / "any.yml"
    path.write_text(text)
    assert names_a_split(path) is answer
