"""The YOLO reader as a whole: public sets, the cases, what stops it, what it counts, what it decides."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yolo_kit import ROW, classes, keys, read, told, tree

from fastdata.errors import DataError, UsageError
from fastdata.labels import BOX, KIND_NAMES, OBB, POLYGON
from fastdata.settle import settle
from fastdata.sources import yolo, yolo_rows
from fastdata.sources.files import digest
from fastdata.sources.scan import Scan
from fastdata.sources.yolo_rows import Block, RowRule


def table(scan: Scan) -> list[tuple[str, list[float]]]:
    """Every row of a scan as (key, numbers), in order."""
    out = []
    for i, key in enumerate(scan.keys):
        rows = scan.rows(i)
        for k in range(len(rows)):
            part = rows.part_offsets[k : k + 2]
            points = rows.points[rows.point_offsets[part[0]] : rows.point_offsets[part[1]]]
            numbers = [rows.cls[k], rows.where[k], rows.kind[k], *rows.xyxy[k], *points.ravel(), *rows.keypoints[k].ravel()]
            out.append((key, [float(x) for x in numbers]))
    return out


# Public sets


def test_coco128_is_read_whole_with_its_images_elsewhere(shared: Path, tmp_path: Path) -> None:
    """126 images with 929 rows and 2 backgrounds; 2 label files without an image; the val that it names is not brought.

    By links, as published, and with the folder of images given, the same rows come out.
    """
    source = shared / "data/coco128/lightly"
    given = read(source / "object_detection", images=source / "images")
    for name in ("labels", "config.yaml"):
        (tmp_path / name).symlink_to(source / "object_detection" / name)
    (tmp_path / "images").symlink_to(source / "images")
    linked = read(tmp_path)
    for scan in (given, linked):
        assert (len(scan), scan.splits, len(scan.names)) == (128, ("train",), 80)
        assert (scan.rows_in, scan.rows_dropped) == (929, 0)
        assert scan.table is not None
        assert int((scan.table.counts() > 0).sum()) == 126
        assert (scan.decisions["background-missing"], scan.decisions["background-empty"]) == ("2", "0")
        unused = "2: labels/train2017/000000000656.txt, labels/train2017/000000000659.txt"
        assert scan.decisions["unused-label-files"] == unused
        assert told(scan.problems) == [("config.yaml:4", "missing-split")]
        assert (scan.nbytes > 0).all()
        assert len(scan.label_files) == 127
    assert keys(given)[0] == "train2017/000000000009.jpg"
    assert keys(linked)[0] == "images/train2017/000000000009.jpg"
    assert [(f"images/{key}", numbers) for key, numbers in table(given)] == table(linked)
    assert given.decisions["label-rule"] == "labels of the root (126)"
    with pytest.raises(DataError, match=r"^config.yaml:4: val must be an existing folder or list file, got 'images/val2017'"):
        read(tmp_path, splits=("train", "val"))


def test_coco128_outlines_use_published_ids_that_are_mapped_in_order(shared: Path) -> None:
    """100 label files, 2 of them empty, 746 outlines; ids 1..90 become classes 0..79 and can be told back."""
    source = shared / "data/coco128/lightly"
    scan = read(source / "instance_segmentation/config.yaml", images=source / "images", task="segment")
    assert (len(scan), len(scan.names), scan.task) == (128, 80, "segment")
    assert (scan.rows_in, scan.rows_dropped) == (746, 0)
    assert (scan.decisions["background-missing"], scan.decisions["background-empty"]) == ("28", "2")
    assert (scan.category_ids[0], scan.category_ids[11], scan.category_ids[-1]) == (1, 13, 90)
    assert scan.decisions["class-ids"].startswith("80 ids from 1 to 90")
    assert scan.table is not None
    assert (scan.table.column("kind") == POLYGON).all()
    published = Counter()
    for path in (source / "instance_segmentation/labels/train2017").iterdir():
        published.update(int(line.split()[0]) for line in path.read_text().splitlines())
    assert Counter(scan.category_ids[c] for c in scan.table.column("cls").tolist()) == published


CASES = [
    "img-same-stem", "lab-300-shapes", "lab-bad-rows", "lab-class-too-large", "lab-duplicates", "lab-keypoint-overshoot",
    "lab-mixed-kinds", "lab-overshoot", "lab-same-box-two-shapes", "lab-single-class", "path-double-extension",
    "path-images-twice", "path-label-beside", "path-list-relative", "path-odd-names", "path-same-name-folders",
    "yolo-bom-crlf-tabs", "yolo-column-counts", "yolo-comma-comment", "yolo-empty-missing", "yolo-keypoint-columns",
    "yolo-number-forms", "yolo-upper-case",
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case(shared: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reader finds and the rules on geometry leave is what the case expects, with every problem and no other."""
    folder = shared / "cases" / name
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    if "cwd" in case["do"]:
        monkeypatch.chdir(folder / case["do"]["cwd"])
    steps = zip(case["do"].get("steps", [case["do"]]), case["expect"].get("steps", [case["expect"]]), strict=True)
    for do, expect in steps:
        options = {"splits": (do["split"],), **do["options"]}
        if "error" in expect:
            with pytest.raises(DataError) as caught:
                read(folder / do["convert"], **options)
            assert all(word in str(caught.value) for word in expect["error"]["contains"])
        else:
            check_case(read(folder / do["convert"], **options), expect)


def check_case(scan: Scan, expect: dict[str, Any]) -> None:
    import cv2

    assert len(scan) == expect["images"]
    problems = list(scan.problems)
    for i, key in enumerate(scan.keys):
        size_hw = cv2.imdecode(np.fromfile(scan.paths[i], np.uint8), cv2.IMREAD_COLOR).shape[:2]
        found, more = settle(scan.rows(i), size_hw, key=key)
        problems += more
        if key in expect.get("label_count", {}):
            assert len(found) == expect["label_count"][key]
        if "labels" not in expect:
            continue
        left = list(range(len(found)))
        for want in expect["labels"][key]:
            at = next(k for k in left if agrees(want, found, k))
            assert not expect.get("ordered") or at == left[0]
            left.remove(at)
        assert not left
    wanted = [({p["kind"]} if isinstance(p["kind"], str) else set(p["kind"]), p["file"], p["line"]) for p in expect["problems"]]
    for problem in problems:
        match = next((w for w in wanted if problem.kind in w[0] and (problem.file, problem.line) == w[1:]), None)
        if match is not None:
            wanted.remove(match)
        else:
            assert problem.kind in expect.get("may_report", []), problem
    assert not wanted


def agrees(want: dict[str, Any], found: Any, k: int) -> bool:
    """Whether instance ``k`` is the one that a case describes, within 0.01 px."""

    def close(a: Any, b: Any) -> bool:
        a, b = np.array(a, float), np.array(b, float)  # null becomes NaN: not checked
        return a.shape == b.shape and bool((np.isnan(b) | (np.abs(a - b) <= 0.01)).all())

    return (
        int(found.cls[k]) == want["class"]
        and close(found.xyxy_px[k], want["xyxy_px"])
        and ("kind" not in want or KIND_NAMES[found.kind[k]] == want["kind"])
        and ("polygon_px" not in want or close(found.parts(k)[0], want["polygon_px"]))
        and ("keypoints" not in want or close(found.keypoints_px[k], want["keypoints"]))
    )


# What stops a run

BAD = {
    "data.yaml": "train: images\nnames: [a, b]\n",
    "images/1.jpg": "",
    "labels/1.txt": "0 .5 .5 .1 .1\n0 .5\n",
    "images/2.jpg": "",
    "labels/2.txt": "0 .5 .5 .1 .1\n1 .5 .5 .1 .1\n7 .5 .5 .1 .1\n",
    "images/3.jpg": "",
    "labels/3.txt": b"\xff\xfe\xff",
}


def test_a_class_beyond_the_names_stops_a_run_unless_rows_may_be_skipped(tmp_path: Path) -> None:
    """The set is misread as a whole; one short row is not a reason to stop, unless every fault is."""
    tree(tmp_path, BAD)
    with pytest.raises(DataError, match=r"^labels/2.txt:3: class 7 must be < 2 \(the number of names\), .*--on-error skip"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"^labels/1.txt:2: a row must have 5 \(box\)"):
        read(tmp_path, on_error="raise")
    scan = read(tmp_path, on_error="skip")
    assert told(scan.problems) == [
        ("labels/1.txt:2", "columns"),
        ("labels/2.txt:3", "class-range"),
        ("labels/3.txt", "unreadable-labels"),
    ]
    assert (scan.rows_in, scan.rows_dropped) == (5, 2)
    assert classes(scan) == {"images/1.jpg": [0], "images/2.jpg": [0, 1], "images/3.jpg": []}
    assert (scan.decisions["background-missing"], scan.decisions["background-empty"]) == ("0", "0")
    (tmp_path / "labels/2.txt").unlink()
    with pytest.raises(DataError, match=r"^labels/3.txt: a label file must be text"):
        read(tmp_path)


def test_a_note_never_stops_a_run(tmp_path: Path) -> None:
    """Comments and kinds side by side lose nothing."""
    tree(tmp_path, {"images/1.jpg": "", "labels/1.txt": "# x\n0 .5 .5 .1 .1\n0 0 0 1 0 1 1\n"})
    assert told(read(tmp_path, on_error="raise").problems) == [("labels/1.txt", "comment"), ("labels/1.txt", "mixed-kinds")]


@pytest.mark.parametrize("label", ["", "\n \n", "# nothing\n"])
def test_a_training_split_with_label_files_and_no_label_is_an_error(tmp_path: Path, label: str) -> None:
    """Labels lost on the way look like that; the message names where they were looked for. A val may be empty."""
    tree(tmp_path, {"set/images/1.jpg": "", "set/labels/1.txt": label})
    with pytest.raises(DataError, match=r"^set: train must have at least one label row.*looked for labels/1.txt or images/1.txt"):
        read(tmp_path / "set")
    scan = read(tmp_path / "set", on_error="skip")
    assert (len(scan), scan.rows_in, scan.names) == (1, 0, ("class 0",))
    (tmp_path / "set/images").rename(tmp_path / "set/pics")
    tree(tmp_path / "set", {"data.yaml": "train: x\nval: pics\nnc: 1\n"})
    assert len(read(tmp_path / "set", splits=("val",))) == 1


def test_label_files_where_nobody_looks_are_an_error_that_names_one(tmp_path: Path) -> None:
    """A text file called like an image, anywhere below the root; a readme is none."""
    tree(tmp_path, {"set/images/a/1.jpg": "", "set/labels_v2/a/1.TXT": ROW, "set/README.txt": "hello"})
    with pytest.raises(DataError, match=r"there is labels_v2/a/1.TXT: name its folder with --labels"):
        read(tmp_path / "set")
    assert read(tmp_path / "set", labels=tmp_path / "set/labels_v2").rows_in == 1


def test_pictures_without_a_single_label_file_are_backgrounds_and_noted(tmp_path: Path) -> None:
    """There is nothing to misread; who wants to stop at any fault still stops."""
    tree(tmp_path, {"images/1.jpg": "", "images/2.jpg": "", "README.txt": "hello"})
    scan = read(tmp_path)
    assert (len(scan), scan.rows_in, told(scan.problems)) == (2, 0, [("train", "no-label")])
    assert "2 of 2 images have no label file" in scan.problems[0].detail
    with pytest.raises(DataError, match="train must have at least one label row"):
        read(tmp_path, on_error="raise")


def test_a_training_split_of_bad_rows_alone_is_read_and_reported(tmp_path: Path) -> None:
    """Every row is named, which says more than an error."""
    scan = read(tree(tmp_path, {"images/1.jpg": "", "labels/1.txt": "0 1 2\n"}))
    assert (scan.rows_in, scan.rows_dropped) == (1, 1)


# What is counted


def test_backgrounds_are_counted_apart_and_noted_when_they_are_most(tmp_path: Path) -> None:
    """Missing and empty files are two things; more than half of a split is worth a word, half is not."""
    tree(tmp_path, {f"images/{split}/{i}.jpg": "" for split in ("train", "val") for i in range(4)})
    tree(tmp_path, {"labels/train/0.txt": ROW, "labels/train/1.txt": "", "labels/train/2.txt": "#\n"})
    tree(tmp_path, {"labels/val/0.txt": ROW, "labels/val/1.txt": "0 1\n"})
    scan = read(tmp_path)
    assert (scan.decisions["background-missing"], scan.decisions["background-empty"]) == ("3", "2")
    assert told(scan.problems) == [("labels/train/2.txt", "comment"), ("train", "no-label"), ("labels/val/1.txt:1", "columns")]
    assert scan.problems[1].detail == "1 of 4 images have no label file, 2 an empty one"


def test_label_files_are_listed_once_with_their_digests(tmp_path: Path) -> None:
    """data.yaml, lists and labels, relative to the root: what may change and would change the result."""
    files = {"data.yaml": "train: images\nval: val.txt\nnc: 1\n", "val.txt": "images/1.jpg\n"}
    files |= {"images/1.jpg": "", "images/2.jpg": "", "images/3.jpg": "", "labels/1.txt": ROW, "labels/2.txt": ""}
    scan = read(tree(tmp_path, files))
    assert [file.path for file in scan.label_files] == ["data.yaml", "labels/1.txt", "labels/2.txt", "val.txt"]
    assert all(file.digest == digest(tmp_path / file.path) for file in scan.label_files)
    assert scan.table is not None
    assert [scan.table.file(i) for i in range(4)] == ["labels/1.txt", "labels/2.txt", "", "labels/1.txt"]


def test_an_image_table_holds_what_the_disk_says(tmp_path: Path) -> None:
    """Sizes, times, absolute paths, splits; no ids, because the format has none."""
    tree(tmp_path, {"images/train/1.jpg": b"12345", "images/val/2.jpg": b"1", "labels/train/1.txt": ROW, "labels/val/2.txt": ROW})
    scan = read(tmp_path)
    assert scan.nbytes.tolist() == [5, 1]
    assert scan.mtime_ns.tolist() == [Path(path).stat().st_mtime_ns for path in scan.paths]
    assert list(scan.paths) == [str(tmp_path / key) for key in scan.keys]
    assert (scan.split.tolist(), scan.image_id.tolist()) == ([0, 1], [-1, -1])
    assert (scan.split.dtype, scan.image_id.dtype, scan.nbytes.dtype) == (np.uint8, np.int64, np.int64)
    assert (scan.source, scan.root) == ("yolo", tmp_path)


# What columns are


@pytest.mark.parametrize(
    ("yaml", "task", "kind", "keypoints"),
    [
        ("nc: 1", None, POLYGON, 0),
        ("nc: 1", "segment", POLYGON, 0),
        ("nc: 1", "obb", OBB, 0),
        ("nc: 1\nkpt_shape: [2, 2]", None, BOX, 2),
        ("nc: 1\nkpt_shape: [2, 2]", "detect", BOX, 2),
        ("nc: 1\nkpt_shape: [2, 2]", "segment", POLYGON, 0),
        ("nc: 1\nkpt_shape: [2, 2]", "obb", OBB, 0),
    ],
)
def test_task_and_kpt_shape_decide_what_nine_columns_are(
    tmp_path: Path, yaml: str, task: str | None, kind: int, keypoints: int
) -> None:
    """A task of outlines overrules kpt_shape; a task of boxes keeps the keypoints in the store."""
    text = f"train: images\n{yaml}\nflip_idx: [1, 0]\nkpt_names: {{0: [l, r]}}\n"
    tree(tmp_path, {"data.yaml": text, "images/1.jpg": "", "labels/1.txt": "0 .1 .2 .3 .4 .5 .6 .7 .8\n"})
    scan = read(tmp_path, task=task)
    assert scan.task == (task or ("pose" if keypoints else "detect"))
    assert scan.rows(0).kind.tolist() == [kind]
    assert (scan.keypoints, scan.keypoint_dims) == (keypoints, 2 if keypoints else 3)
    assert (scan.flip_idx, scan.keypoint_names) == (((1, 0), ("l", "r")) if keypoints else ((), ()))
    assert scan.rows(0).keypoints.shape == (1, keypoints, 3)


def test_pose_needs_kpt_shape(tmp_path: Path) -> None:
    """Without it no number of columns can be told to be right."""
    tree(tmp_path, {"data.yaml": "train: images\nnc: 1\n", "images/1.jpg": "", "labels/1.txt": ROW})
    with pytest.raises(DataError, match="kpt_shape must be given for task pose"):
        read(tmp_path, task="pose")


@pytest.mark.parametrize(
    ("yaml", "options", "names", "ids"),
    [
        ("names: [a, b]", {}, ("a", "b"), (0, 1)),
        ("names: [a, b]", {"names": ("x", "y", "z")}, ("x", "y", "z"), (0, 1, 2)),
        ("names: {0: a, 7: b}", {}, ("a", "b"), (0, 7)),
        ("names: {0: a, 7: b}", {"names": ("x", "y")}, ("x", "y"), (0, 7)),
        ("names: {0: a, 7: b}", {"names": ("x", "y", "z")}, ("x", "y", "z"), (0, 1, 2)),
        ("names: [a, b]", {"single_cls": True}, ("object",), (0,)),
        ("names: {0: a, 7: b}", {"single_cls": True}, ("object",), (0,)),
        ("names: [a]", {"single_cls": True}, ("a",), (0,)),
        ("names: [a, b]", {"single_cls": True, "names": ("thing",)}, ("thing",), (0,)),
        ("names: [a]", {"single_cls": True, "names": ("x", "y")}, ("object",), (0,)),
        ("nc: 2", {}, ("class 0", "class 1"), (0, 1)),
        ("channels: 3", {"names": ("x",)}, ("x",), (0,)),
    ],
)
def test_names_come_from_the_user_then_from_the_dataset(
    tmp_path: Path, yaml: str, options: dict[str, Any], names: tuple[str, ...], ids: tuple[int, ...]
) -> None:
    """Ids with gaps stay what they are where the names only rename them."""
    tree(tmp_path, {"data.yaml": f"train: images\n{yaml}\n", "images/1.jpg": "", "labels/1.txt": ROW})
    scan = read(tmp_path, **options)
    assert (scan.names, scan.category_ids) == (names, ids)


def test_a_data_yaml_without_names_is_an_error(tmp_path: Path) -> None:
    """It is a spelling mistake more often than a set without classes."""
    tree(tmp_path, {"data.yaml": "train: images\nname: [a]\n", "images/1.jpg": "", "labels/1.txt": ROW})
    with pytest.raises(DataError, match=r"^data.yaml:1: names must be given"):
        read(tmp_path)
    with pytest.raises(UsageError, match="names must hold at least one name"):
        read(tmp_path, names=())


# What must not matter


LABEL = st.sampled_from([None, "", ROW, "0 .1 .1 .1 .1\n" + ROW, "x\n" + ROW, "0 0 0 1 0 1 1\n", "# c\n"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    labels=st.lists(LABEL, max_size=9),
    block_files=st.integers(1, 5),
    block_nbytes=st.integers(0, 40),
)
def test_the_size_of_a_block_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str | None], block_files: int, block_nbytes: int
) -> None:
    """Rows, problems and decisions come out the same, in the same order, however the files are cut into blocks."""
    root = tmp_path_factory.mktemp("set")
    names = [f"{i:02}" for i in range(len(labels) + 1)]
    tree(root, {"train.txt": "".join(f"images/{n}.jpg\nimages/{n}.jpg\n" for n in names)})
    tree(root, {f"images/{n}.jpg": "" for n in names})
    tree(root, {f"labels/{n}.txt": text for n, text in zip(names, [ROW, *labels], strict=True) if text is not None})
    whole = read(root / "train.txt")
    blocks: list[list[int]] = []

    def parse(files: list[tuple[str, bytes]], rule: RowRule) -> Block:
        blocks.append([len(data) for _, data in files])
        return yolo_rows.parse(files, rule)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yolo, "parse", parse)
        patch.setattr(yolo, "BLOCK_FILES", block_files)
        patch.setattr(yolo, "BLOCK_NBYTES", block_nbytes)
        cut = read(root / "train.txt")
    assert (keys(cut), table(cut), cut.problems, cut.decisions) == (keys(whole), table(whole), whole.problems, whole.decisions)
    assert (cut.rows_in, cut.rows_dropped) == (whole.rows_in, whole.rows_dropped)
    assert sorted(whole.problems, key=lambda p: p.kind == "no-label") == whole.problems
    assert all(len(block) <= block_files and sum(block[:-1]) <= block_nbytes for block in blocks)


def test_reading_writes_nothing_and_opens_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is the same afterwards, byte for byte and name for name; trainers' caches are left alone."""
    tree(tmp_path, {**BAD, "labels.cache": b"\x80\x04stale", "labels/old.cache": b"x"})
    (tmp_path / "images/1.jpg").chmod(0)

    def state() -> list[tuple[str, int, int, bytes]]:
        return [
            (str(p), p.stat().st_mtime_ns, p.stat().st_mode, p.read_bytes() if p.suffix != ".jpg" else b"")
            for p in sorted(tmp_path.rglob("*")) if p.is_file()
        ]  # fmt: skip

    before = state()
    read(tmp_path, on_error="skip")
    assert state() == before


def test_two_readings_give_the_same_scan(tmp_path: Path) -> None:
    """Also after the files were made in another order."""
    names = ["b/2", "a/1", "c", "a/0"]
    scans = []
    for at, order in enumerate((names, names[::-1])):
        root = tmp_path / f"{at}" / "set"
        for name in order:
            tree(root, {f"images/{name}.jpg": "", f"labels/{name}.txt": f"{len(name) % 2} .5 .5 .1 .{len(name)}\n"})
        scans.append(read(root))
    one, two = scans
    assert (keys(one), table(one), one.decisions, one.label_files) == (keys(two), table(two), two.decisions, two.label_files)
    assert keys(one) == ["images/a/0.jpg", "images/a/1.jpg", "images/b/2.jpg", "images/c.jpg"]
