"""What the readers of named classes share: numbers, paths, splits and the final order of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.errors import UsageError
from fastdata.sources.named import Classes, below, choose_splits, decimal, in_split_order, split_of_folder
from fastdata.sources.scan import SourceOptions


@given(st.floats(allow_nan=False))
def test_a_printed_number_comes_back(value: float) -> None:
    """To the last bit, also the infinite ones, which are judged with the picture."""
    assert decimal(repr(value)) == value


@pytest.mark.parametrize("text", ["", " ", "1_0", "١", "1,5", "0x10", "five", "1 2", "--1"])
def test_what_is_no_plain_number_is_none(text: str) -> None:
    """Python itself would take some of these."""
    assert decimal(text) is None


@pytest.mark.parametrize(
    ("root", "path", "name"),
    [("/d", "/d/a/b.jpg", "a/b.jpg"), ("/d", "/d2/a.jpg", "../d2/a.jpg"), ("/d", "/d", ""), ("/", "/a.jpg", "a.jpg")],
)
def test_a_path_is_relative_only_below_its_root(root: str, path: str, name: str) -> None:
    """A folder whose name goes on is another folder."""
    assert below(root, path) == name


@given(st.lists(st.sampled_from(["cat", "dog", "ant", "Ant", "bee", "ünder"]), max_size=30))
def test_classes_end_up_sorted_and_every_row_keeps_its_name(seen: list[str]) -> None:
    """For any order of appearance: final names sorted, final index of each row names what the row said."""
    classes = Classes(SourceOptions())
    provisional = np.array([classes.index(name) for name in seen], np.int64)
    names, remap = classes.finish()
    assert names == tuple(sorted(set(seen)))
    assert [names[i] for i in remap[provisional]] == seen


def test_splits_have_one_order_and_must_exist(tmp_path: Path) -> None:
    """train, val, trainval, test, then the others by name; those asked for in the order asked."""
    found = in_split_order({"test", "b", "val", "a", "trainval", "train"})
    assert found == ("train", "val", "trainval", "test", "a", "b")
    assert choose_splits(found, None, tmp_path) == found
    assert choose_splits(found, ("b", "train", "valid"), tmp_path) == ("b", "train", "val")
    for wanted, words in (((), "at least one"), (("x",), "got 'x'"), (("val", "valid"), "'val' twice")):
        with pytest.raises(UsageError, match=words):
            choose_splits(found, wanted, tmp_path)


@pytest.mark.parametrize(
    ("name", "split"), [("Train", "train"), ("valid", "val"), ("val2017", "val"), ("trainval", "trainval"), ("trains", None)]
)
def test_a_folder_name_says_its_split(name: str, split: str | None) -> None:
    """A year may follow; other words say nothing."""
    assert split_of_folder(name) == split
