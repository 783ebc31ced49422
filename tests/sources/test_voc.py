"""Published sets, classes and origin: what a Pascal VOC dataset says is what the reader hands over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from voc_kit import box, kinds, labels_of, read, splits_of, tree, voc, xml

from fastdata.errors import DataError, UsageError
from fastdata.labels import DIFFICULT, TRUNCATED


def test_the_blood_cell_set_is_read_whole_from_one_folder_above(shared: Path) -> None:
    """The counts that its publisher and an independent count give; a degenerate box is a row like any other here."""
    scan = read(shared / "data/bccd_voc")
    assert {name: len(keys) for name, keys in splits_of(scan).items()} == {"train": 205, "val": 87, "test": 72}
    assert scan.names == ("Platelets", "RBC", "WBC")
    assert (scan.rows_in, scan.rows_dropped) == (4888, 0)
    assert scan.table is not None
    assert int(scan.table.counts().sum()) == 4888
    assert int(((scan.table.column("flags") & TRUNCATED) > 0).sum()) == 1131
    assert scan.problems == []
    assert scan.decisions["voc-origin"] == "1-based"
    assert "trainval left out" in scan.decisions["voc-splits"]
    assert "all but" not in scan.decisions["voc-splits"]
    points = {key: scan.rows(i).xyxy.tolist() for i, key in enumerate(scan.keys) if key.endswith(("00338.jpg", "00343.jpg"))}
    assert [503.0, 336.0, 504.0, 337.0] in points["BCCD/JPEGImages/BloodImage_00338.jpg"]
    assert [180.0, 328.0, 181.0, 329.0] in points["BCCD/JPEGImages/BloodImage_00343.jpg"]
    assert len(read(shared / "data/bccd_voc/BCCD", splits=("trainval",))) == 292


def test_the_raccoon_set_is_read_from_lower_case_folders_without_lists(shared: Path) -> None:
    """200 images and 217 boxes of one class, in one split."""
    scan = read(shared / "data/raccoon_voc")
    assert (len(scan), scan.rows_in, scan.names, scan.splits) == (200, 217, ("raccoon",), ("train",))
    first = list(scan.keys).index("images/raccoon-1.jpg")
    assert scan.rows(first).xyxy.tolist() == [[80.0, 87.0, 522.0, 408.0]]
    assert scan.rows(first).declared_hw == (417, 650)


CASES = ("voc-flags-floats", "voc-name-mismatch", "voc-one-based", "voc-size-tags", "voc-zero-based")


@pytest.mark.parametrize("name", CASES)
def test_published_faults_of_other_readers_do_not_come_back(shared: Path, name: str) -> None:
    """Boxes, classes, flags and reports are those that the case asks for (size-mismatch is found later, with the picture)."""
    case = json.loads((shared / "cases" / name / "case.json").read_text())
    scan = read(shared / "cases" / name / "input", names=tuple(case["do"]["options"]["names"]))
    expected = case["expect"]
    assert len(scan) == expected["images"]
    assert set(scan.keys) == expected["labels"].keys()
    for i, key in enumerate(scan.keys):
        rows = scan.rows(i)
        want = expected["labels"][key]
        assert rows.xyxy.tolist() == [[float(x) for x in row["xyxy_px"]] for row in want]
        assert rows.cls.tolist() == [row["class"] for row in want]
        assert [bool(f & DIFFICULT) for f in rows.flags] == [row.get("difficult", False) for row in want]
    found = {(p.file, p.kind) for p in scan.problems}
    wanted = {(p["file"], p["kind"]) for p in expected["problems"] if p["kind"] != "size-mismatch"}
    assert wanted <= found
    assert {kind for _, kind in found - wanted} <= set(expected.get("may_report", []))


def test_class_names_are_sorted_over_all_splits_whatever_is_read(tmp_path: Path) -> None:
    """Index 0 means the same class whether or not a split is read with another."""
    root = voc(tmp_path, {"a": xml(box("dog")), "b": xml(box("ant"), box("cat"))}, {"train": "a\n", "val": "b\n"})
    assert read(root).names == ("ant", "cat", "dog")
    alone = read(root, splits=("train",))
    assert alone.names == ("ant", "cat", "dog")
    assert labels_of(alone) == {"JPEGImages/a.jpg": [("dog", [10, 5, 30, 25])]}
    assert alone.category_ids == (0, 1, 2)


def test_given_names_keep_their_order_and_any_other_class_stops_the_run(tmp_path: Path) -> None:
    """The message says where, what, and what would have been right; ``skip`` drops the row instead."""
    voc(tmp_path, {"a": xml(box("dog"), box("foo"))})
    with pytest.raises(DataError, match=r"^Annotations/a\.xml: object 2: class 'foo' must be one of dog, cat; add it to --names"):
        read(tmp_path, names=("dog", "cat"))
    scan = read(tmp_path, names=("dog", "cat"), on_error="skip")
    assert (scan.names, scan.rows(0).cls.tolist(), scan.rows_in, scan.rows_dropped) == (("dog", "cat"), [0], 2, 1)
    assert kinds(scan) == [("Annotations/a.xml", "class-range", 2)]
    with pytest.raises(UsageError, match="names must differ, got 'cat' twice"):
        read(tmp_path, names=("cat", "cat"))
    with pytest.raises(UsageError, match="names must hold at least one name, got none"):
        read(tmp_path, names=())


def test_single_class_makes_every_name_the_same_before_any_check(tmp_path: Path) -> None:
    """Also names that are not among the given ones."""
    voc(tmp_path, {"a": xml(box("dog"), box("foo"))})
    assert read(tmp_path, single_cls=True).names == ("object",)
    scan = read(tmp_path, single_cls=True, names=("thing",))
    assert (scan.names, scan.rows(0).cls.tolist()) == (("thing",), [0, 0])
    assert read(tmp_path, single_cls=True, names=("dog", "cat")).rows(0).cls.tolist() == [0, 0]


def test_one_zero_anywhere_makes_the_whole_set_zero_based(tmp_path: Path) -> None:
    """Also in a split that is not read; said once, with its place."""
    root = voc(tmp_path, {"a": xml(box()), "b": xml(box(), box(ymin=0), box(xmin=0))}, {"train": "a\n", "val": "b\n"})
    for splits in (("train",), ("val", "train"), None):
        scan = read(root, splits=splits)
        assert labels_of(scan)["JPEGImages/a.jpg"] == [("cat", [11, 6, 30, 25])]
        assert kinds(scan) == [("Annotations/b.xml", "zero-based", 2)]
        assert scan.decisions["voc-origin"] == "0-based"


def test_a_maximum_of_zero_or_a_fraction_says_nothing_about_the_origin(tmp_path: Path) -> None:
    """Only a minimum of exactly 0 does."""
    voc(tmp_path, {"a": xml(box(xmin=-5, xmax=0), box(xmin=0.5))})
    assert read(tmp_path).rows(0).xyxy.tolist() == [[-6, 5, 0, 25], [-0.5, 5, 30, 25]]


@pytest.mark.parametrize(("origin", "xyxy"), [("one", [-1, 5, 30, 25]), ("zero", [0, 6, 30, 25])])
def test_the_origin_can_be_forced(tmp_path: Path, origin: str, xyxy: list[float]) -> None:
    """Then nothing is concluded from the numbers, and nothing noted."""
    voc(tmp_path, {"a": xml(box(xmin=0))})
    scan = read(tmp_path, voc_origin=origin)
    assert scan.rows(0).xyxy.tolist() == [xyxy]
    assert scan.problems == []
    assert scan.decisions["voc-origin"] == {"one": "1-based (as asked)", "zero": "0-based (as asked)"}[origin]


def test_what_holds_no_xml_or_no_image_is_refused_with_the_fix(tmp_path: Path) -> None:
    """Each message names the folder and the option that helps."""
    with pytest.raises(DataError, match=r"must have a folder Annotations.*--labels"):
        read(tmp_path)
    tree(tmp_path, {"Annotations/a.xml": xml(box())})
    with pytest.raises(DataError, match=r"must hold images, got none in \..*--images"):
        read(tmp_path)
    voc(tmp_path, {"a": xml(box())}, {"train": "\n"})
    with pytest.raises(DataError, match=r"splits train must name at least one image"):
        read(tmp_path)
    with pytest.raises(UsageError, match="task must be detect"):
        read(tmp_path, task="segment")


def test_the_size_of_a_block_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows reach the table in blocks; class and place stay with their row across the seams."""
    voc(tmp_path, {f"i{at}": xml(*(box(f"c{k % 3}", xmin=k + 1) for k in range(at))) for at in range(6)})
    whole = labels_of(read(tmp_path))
    monkeypatch.setattr("fastdata.sources.named.BLOCK_ROWS", 4)
    assert labels_of(read(tmp_path)) == whole
    assert [len(rows) for rows in whole.values()] == [0, 1, 2, 3, 4, 5]


def test_a_training_split_without_any_label_is_refused(tmp_path: Path) -> None:
    """It says how many images lack a file and how many have an empty one; other splits may be bare, and ``skip`` lets it pass."""
    root = voc(tmp_path, {"a": xml(), "c": xml(box())}, {"train": "a\nb\n", "val": "c\n"}, ("a.jpg", "b.jpg", "c.jpg"))
    with pytest.raises(DataError, match=r"train must have .* got none: 1 of 2 images have no label file, 1 an empty one"):
        read(root)
    scan = read(root, on_error="skip")
    assert (scan.decisions["background-missing"], scan.decisions["background-empty"]) == ("1", "1")
    assert len(read(root, splits=("val",))) == 1


def test_reading_changes_nothing_in_the_source(tmp_path: Path) -> None:
    """No cache, no list, no new time stamp."""

    def state() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*"))

    voc(tmp_path, {"a": xml(box())}, {"train": "a\n"})
    before = state()
    read(tmp_path)
    assert state() == before


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["cat", "dog", "bird", ""]),
                st.tuples(*[st.integers(0, 60)] * 4),
                st.sampled_from([0, DIFFICULT, TRUNCATED, DIFFICULT | TRUNCATED]),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, images: list[list[Any]]) -> None:
    """For any objects: order, classes by sorted name, flags, origin by the set, and rows in = kept + dropped."""

    def tags(flags: int) -> str:
        return f"<truncated>{flags // TRUNCATED}</truncated><difficult>{flags % TRUNCATED // DIFFICULT}</difficult>"

    files = {f"i{at}": xml(*(box(n, *edges, more=tags(flags)) for n, edges, flags in rows)) for at, rows in enumerate(images)}
    scan = read(voc(tmp_path_factory.mktemp("voc"), files), on_error="skip")
    rows = [row for objects in images for row in objects]
    shift = 0 if any(0 in edges[:2] for _, edges, _ in rows) else 1
    assert scan.names == tuple(sorted({name for name, _, _ in rows if name}))
    assert scan.rows_in == len(rows)
    assert scan.rows_dropped == sum(not name for name, _, _ in rows) == sum(p.kind == "columns" for p in scan.problems)
    for i, objects in enumerate(images):
        got = scan.rows(i)
        kept = [(n, row) for n, row in enumerate(objects, 1) if row[0]]
        assert got.where.tolist() == [n for n, _ in kept]
        assert [scan.names[c] for c in got.cls] == [row[0] for _, row in kept]
        assert got.flags.tolist() == [row[2] for _, row in kept]
        assert got.xyxy.tolist() == [[e[0] - shift, e[1] - shift, e[2], e[3]] for _, (_, e, _) in kept]
