"""The COCO reader on published datasets, on the cases of known faults, and on small sets made for one rule each."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_kit import document, image, kinds, note, only, read_one, write

from fastdata.errors import DataError, UsageError
from fastdata.labels import BOX, CROWD, KIND_NAMES
from fastdata.masks import rings_to_mask
from fastdata.settle import settle
from fastdata.sources.coco import read_coco
from fastdata.sources.files import digest
from fastdata.sources.json_window import outline_json
from fastdata.sources.scan import Scan, SourceOptions

OPEN = SourceOptions()


def all_rows(scan: Scan) -> list[tuple[str, Any]]:
    return [(scan.keys[i], scan.rows(i)) for i in range(len(scan))]


# Published datasets


def test_a_second_run_gives_the_same_scan(shared: Path) -> None:
    """Keys, rows and decisions do not depend on the run (hashes of names do)."""
    src = shared / "data/tinycoco_json/tests/data/tinycoco"
    first, second = read_coco(src, OPEN), read_coco(src, OPEN)
    assert list(first.keys) == list(second.keys)
    assert first.decisions == second.decisions
    for i in range(len(first)):
        a, b = first.rows(i), second.rows(i)
        assert np.array_equal(a.points, b.points)
        assert np.array_equal(a.where, b.where)


# Cases of known faults


@pytest.mark.parametrize(
    "name",
    [
        "coco-crowd-count-list",
        "coco-id-gaps",
        "coco-no-segmentation",
        "coco-odd-bbox",
        "coco-orphans",
        "coco-rle-string-donut",
        "coco-root-category",
        "coco-subfolder-names",
        "coco-two-parts",
    ],
)
def test_a_case_of_a_known_fault_comes_out_as_it_says(shared: Path, name: str, tmp_path: Path) -> None:
    """Labels after settling, reports, names and ids are those of the case, and the source is not touched."""
    shutil.copytree(shared / "cases" / name, tmp_path, dirs_exist_ok=True)
    case = json.loads((tmp_path / "case.json").read_text())
    expect = case["expect"]
    before = {p: digest(p) for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    scan = read_coco(tmp_path / case["do"]["convert"], SourceOptions(images=tmp_path / case["do"]["images"]))
    problems = list(scan.problems)
    gone = [scan.keys[i] for i in range(len(scan)) if scan.nbytes[i] < 0]
    assert gone == [skip["file"] for skip in expect["skipped"]]
    assert len(scan) - len(gone) == expect["images"]
    for key, rows in all_rows(scan):
        if key in gone:
            continue
        assert rows.declared_hw is not None
        found, said = settle(rows, rows.declared_hw, key=key)
        problems += said
        wanted = expect.get("labels", {}).get(key)
        if wanted is None:
            continue
        assert len(found) == len(wanted)
        for i, want in enumerate(wanted):
            assert found.cls[i] == want["class"]
            assert np.allclose(found.xyxy_px[i], want["xyxy_px"], atol=0.01)
            assert KIND_NAMES[found.kind[i]] == want.get("kind", KIND_NAMES[found.kind[i]])
            assert bool(found.flags[i] & CROWD) == want.get("crowd", False)
            parts = want.get("polygon_parts_px", [want["polygon_px"]] if "polygon_px" in want else None)
            if parts is not None:
                assert [p.tolist() for p in found.parts(i)] == parts
            if mask := want.get("mask_px"):
                filled = rings_to_mask(found.parts(i), rows.declared_hw)
                assert filled.sum() == mask["area"]
                assert all(filled[y, x] for y, x in mask["inside"])
                assert not any(filled[y, x] for y, x in mask["outside"])
    assert list(scan.names) == expect.get("names", list(scan.names))
    assert list(scan.category_ids) == expect.get("category_ids", list(scan.category_ids))
    reported = sorted((p.file, p.annotation_id, p.kind) for p in problems if p.kind not in expect.get("may_report", []))
    for want, got in zip(sorted(expect["problems"], key=lambda p: p["annotation_id"]), reported, strict=True):
        assert got[:2] == (want["file"], want["annotation_id"])
        assert got[2] in (want["kind"] if isinstance(want["kind"], list) else [want["kind"]])
    assert {p: digest(p) for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before


# Images


@pytest.mark.parametrize("name", ["../o.jpg", "a/../../o.jpg", "..\\o.jpg", "/o.jpg", "C:\\o.jpg", "http://h/o.jpg", "..", ""])
@pytest.mark.parametrize("on_error", ["safe", "skip", "raise"])
def test_a_file_name_that_leaves_the_image_folder_is_refused(tmp_path: Path, name: str, on_error: str) -> None:
    """Also where faults are skipped: no dataset may name files elsewhere."""
    write(tmp_path, {"set.json": document([note()], [image(), image(2) | {"file_name": name}]), "1.jpg": None})
    with pytest.raises(DataError, match="file_name must be a path below the image folder"):
        read_coco(tmp_path / "set.json", SourceOptions(on_error=on_error))


def test_names_that_no_disk_holds_are_refused(tmp_path: Path) -> None:
    """A zero byte and half a surrogate pair are data errors, not exceptions of the operating system."""
    for name in ("a\0b.jpg", "\ud83d.jpg"):
        write(tmp_path, {"set.json": document([note()], [image(name="a.jpg"), image(2, name)]), "a.jpg": None})
        with pytest.raises(DataError, match="file_name must be"):
            read_coco(tmp_path / "set.json", OPEN)


def test_a_file_name_counts_as_a_whole_in_its_simplest_form(tmp_path: Path) -> None:
    """./, // and folders that are left again fall away; folders stay; backslashes separate where no file has one in its name."""
    names = ["./a.jpg", "cam_1//0001.jpg", "cam_2/0001.jpg", "x/../b.jpg", "win\\c.jpg"]
    write(tmp_path, dict.fromkeys(["a.jpg", "cam_1/0001.jpg", "cam_2/0001.jpg", "b.jpg", "win/c.jpg", "back\\d.jpg"]))
    images = [image(i, name) for i, name in enumerate([*names, "back\\d.jpg"])]
    write(tmp_path, {"set.json": document([note(image_id=0)], images)})
    scan = read_coco(tmp_path / "set.json", OPEN)
    assert list(scan.keys) == ["a.jpg", "cam_1/0001.jpg", "cam_2/0001.jpg", "b.jpg", "win/c.jpg", "back\\d.jpg"]
    assert (scan.nbytes == 0).all()


def test_an_image_that_is_not_there_stays_in_the_list(tmp_path: Path) -> None:
    """Its size is -1, which the conversion reports; the others have size and time."""
    write(tmp_path, {"set.json": document([note()], [image(), image(2)]), "1.jpg": "12345"})
    scan = read_coco(tmp_path / "set.json", OPEN)
    assert scan.nbytes.tolist() == [5, -1]
    assert scan.mtime_ns.tolist() == [(tmp_path / "1.jpg").stat().st_mtime_ns, 0]


def test_lvis_names_images_by_their_url_and_nothing_is_fetched(tmp_path: Path) -> None:
    """Without file_name the last two parts of coco_url are the path, as LVIS has it."""
    entry = {"id": 1, "coco_url": "http://images.example/train2017/000000000009.jpg", "height": 4, "width": 6}
    write(tmp_path, {"lvis_v1_train.json": document([note()], [entry]), "train2017/000000000009.jpg": None})
    scan = read_coco(tmp_path / "lvis_v1_train.json", OPEN)
    assert list(scan.keys) == ["train2017/000000000009.jpg"]
    assert scan.splits == ("train",)


def test_odd_sizes_are_no_sizes(tmp_path: Path) -> None:
    """Whole numbers in any form count; anything else is as good as not stated."""
    sizes = [(40, 60), (40.0, "60"), (None, 60), (0, 60), (-4, 60), ("x", 60), (2**40, 60)]
    images = [image(i, height=h, width=w) for i, (h, w) in enumerate(sizes)]
    scan = read_one(tmp_path, document([note(image_id=0)], images))
    assert [rows.declared_hw for _, rows in all_rows(scan)] == [(40, 60), (40, 60), *[None] * 5]


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([image(7, "a.jpg"), image(8, "b.jpg"), image(7, "c.jpg")], "image id must be unique, got 7 for a.jpg and for c.jpg"),
        ([image(7, "a.jpg"), image(8, "./a.jpg")], "file_name must be unique, got a.jpg for image 7 and for image 8"),
        ([image(7, "a.jpg"), image("x", "b.jpg")], "id must be a whole number, got 'x'"),
        ([image(7, "a.jpg"), image(True, "b.jpg")], "id must be a whole number, got True"),
        ([image(7, "a.jpg"), image(2**63, "b.jpg")], "id must be a whole number"),
        ([image(7, "a.jpg"), image(8) | {"file_name": 8}], "image 8: file_name must be a text, got 8"),
        ([image(7, "a.jpg"), None], "an image must be an object"),
    ],
)
def test_image_entries_that_contradict_each_other_stop_the_run_or_the_first_counts(
    tmp_path: Path, images: list[Any], words: str
) -> None:
    """An error names both; on request the first counts and the rest, with its annotations, is reported."""
    doc = document([note(1, image_id=7)], images)
    with pytest.raises(DataError) as caught:
        read_one(tmp_path, doc)
    assert words in str(caught.value)
    assert str(caught.value).startswith("set.json: ")
    scan = read_one(tmp_path, doc, on_error="skip")
    assert scan.keys[0] == "a.jpg"
    assert len(scan) == sum(1 for i in images if isinstance(i, dict) and i.get("file_name") == "b.jpg" and i["id"] == 8) + 1
    assert words in only(scan.problems).detail
    assert scan.rows(0).where.tolist() == [1]


def test_annotations_of_a_repeated_image_go_to_the_first_or_are_reported(tmp_path: Path) -> None:
    """Rows of a doubled id belong to its first image; rows of a doubled file under another id are of an unknown image."""
    images = [image(1, "a.jpg"), image(1, "b.jpg"), image(2, "a.jpg"), image(3, "c.jpg")]
    scan = read_one(tmp_path, document([note(1, 1), note(2, 2), note(3, 3)], images), on_error="skip")
    assert list(scan.keys) == ["a.jpg", "c.jpg"]
    assert [rows.where.tolist() for _, rows in all_rows(scan)] == [[1], [3]]
    assert [(p.kind, p.annotation_id) for p in scan.problems] == [("duplicate", None), ("duplicate", None), ("unknown-image", 2)]
    assert (scan.rows_in, scan.rows_dropped) == (3, 1)


def test_the_same_image_may_be_in_two_splits(tmp_path: Path) -> None:
    """Both entries are kept under one key: the conversion stores such a picture once."""
    files = {f"annotations/instances_{s}.json": document([note(n)]) for n, s in enumerate(("train", "val"))}
    scan = read_coco(write(tmp_path, {**files, "images/1.jpg": None}), OPEN)
    assert list(scan.keys) == ["images/1.jpg", "images/1.jpg"]
    assert scan.split.tolist() == [0, 1]
    assert [rows.where.tolist() for _, rows in all_rows(scan)] == [[0], [1]]


# Order, streaming, stopping


@pytest.mark.parametrize("order", list(itertools.permutations(["images", "annotations", "categories"])))
def test_lists_may_stand_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Rows come out the same, whatever comes first in the file, with foreign keys between."""
    doc = document([note(1), note(2, 2, 2)], [image(1), image(2)])
    write(tmp_path, {"set.json": {"info": {"a": [1]}, **{key: doc[key] for key in order}, "licenses": []}})
    write(tmp_path, {"1.jpg": None, "2.jpg": None})
    scan = read_coco(tmp_path / "set.json", OPEN)
    assert [(rows.where.tolist(), rows.cls.tolist()) for _, rows in all_rows(scan)] == [([1], [0]), ([2], [1])]


def test_a_file_of_many_blocks_is_read_like_one_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 512 bytes: same keys, rows and problems; annotations of an image may lie far apart."""
    rng = np.random.default_rng(1)
    images = [image(int(i)) for i in rng.permutation(60)]
    notes = [note(n, int(i), bbox=[n, 1, 2, 3]) for n, i in enumerate(rng.integers(0, 62, 300))]
    whole = read_one(tmp_path, document(notes, images))
    assert outline_json.__kwdefaults__ is not None
    monkeypatch.setitem(outline_json.__kwdefaults__, "window_nbytes", 512)
    pieces = read_one(tmp_path, document(notes, images))
    assert list(pieces.keys) == list(whole.keys)
    assert pieces.problems == whole.problems
    assert len(whole.problems) == sum(1 for n in notes if n["image_id"] > 59) > 0
    for i in range(len(whole)):
        assert pieces.rows(i).xyxy.tolist() == whole.rows(i).xyxy.tolist()
        mine = [n["id"] for n in notes if n["image_id"] == whole.image_id[i]]
        assert whole.rows(i).where.tolist() == mine


@pytest.mark.parametrize("missing", ["images", "annotations", "categories"])
def test_a_file_without_one_of_the_lists_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    """The message says which list is missing and what is there."""
    doc = {key: value for key, value in document([note()]).items() if key != missing}
    write(tmp_path, {"set.json": doc, "1.jpg": None})
    with pytest.raises(DataError, match=f"set.json: {missing} must be a list at the top level of the file"):
        read_coco(tmp_path / "set.json", OPEN)


def test_a_malformed_file_is_named_with_its_offset(tmp_path: Path) -> None:
    """file:offset, relative to the dataset's folder."""
    text = json.dumps(document([note()])).replace('"bbox": [', '"bbox": [,')
    write(tmp_path, {"annotations/instances_train.json": text, "images/1.jpg": None})
    with pytest.raises(DataError, match=rf"^annotations/instances_train\.json:{text.index('[,') + 1}: "):
        read_coco(tmp_path, OPEN)


def test_on_error_raise_stops_at_the_first_fault_and_safe_goes_on(tmp_path: Path) -> None:
    """The first in the order of the file, with the annotation's id."""
    doc = document([note(3), note(5, image_id=99), note(6, category_id=99)])
    with pytest.raises(DataError, match=r"^set\.json: annotation 5: image_id must be that of a listed image, got 99$"):
        read_one(tmp_path, doc, on_error="raise")
    for on_error in ("safe", "skip"):
        scan = read_one(tmp_path, doc, on_error=on_error)
        assert kinds(scan) == [(5, "unknown-image", "dropped"), (6, "unknown-category", "dropped")]
        assert (scan.rows_in, scan.rows_dropped) == (3, 2)


def test_notes_do_not_stop_a_run_that_stops_at_every_fault(tmp_path: Path) -> None:
    """Numbers written as text are noted once per file, with the first annotation and how many there are."""
    scan = read_one(tmp_path, document([note(1), *(note(n, bbox=["1", "2", "3", "4"]) for n in (2, 3))]), on_error="raise")
    problem = only(scan.problems)
    assert (problem.kind, problem.annotation_id) == ("text-number", 2)
    assert "2 of 3" in problem.detail


@pytest.mark.parametrize(("crowds", "plain", "told"), [(11, 10, True), (10, 10, False), (9, 0, False), (10, 0, True)])
def test_a_file_of_mostly_crowds_is_reported_once(tmp_path: Path, crowds: int, plain: int, told: bool) -> None:
    """More than half of at least ten annotations: a tool that marks every mask as a crowd would lose everything."""
    notes = [note(n, iscrowd=int(n < crowds)) for n in range(crowds + plain)]
    scan = read_one(tmp_path, document(notes))
    assert [p.kind for p in scan.problems] == ["mostly-crowd"] * told
    assert scan.rows_dropped == 0


def test_a_training_split_without_annotations_is_an_error_unless_skipped(tmp_path: Path) -> None:
    """Another split may be background alone; that most images have no annotation is noted."""
    with pytest.raises(DataError, match="annotations must hold at least one object for split train"):
        read_one(tmp_path, document([]))
    assert [p.kind for p in read_one(tmp_path, document([]), on_error="skip").problems] == ["no-label"]
    scan = read_one(tmp_path, document([], [image(1), image(2)]), splits=("val",))
    assert only(scan.problems).detail == "2 of 2 images have no annotation"


# Classes, task, keypoints of the whole set


def test_single_cls_makes_one_class_before_any_check(tmp_path: Path) -> None:
    """Unknown categories count as that class too; a lone category keeps its name and id."""
    scan = read_one(tmp_path, document([note(1, category_id=2), note(2, category_id=99)]), single_cls=True)
    assert (scan.names, scan.category_ids, scan.problems) == (("object",), (0,), [])
    assert scan.rows(0).cls.tolist() == [0, 0]
    lone = read_one(tmp_path, document([note(category_id=7)], categories=[{"id": 7, "name": "bolt"}]), single_cls=True)
    assert (lone.names, lone.category_ids) == (("bolt",), (7,))


def test_names_given_by_the_user_rename_the_classes_in_order_of_id(tmp_path: Path) -> None:
    """As many as the categories, else a usage error."""
    assert read_one(tmp_path, document([note()]), names=("Katze", "Hund")).names == ("Katze", "Hund")
    with pytest.raises(UsageError, match="names must be as many as the categories, 2, got 1"):
        read_one(tmp_path, document([note()]), names=("Katze",))


@pytest.mark.parametrize(
    ("more", "task"),
    [
        ({}, "detect"),
        ({"segmentation": [[1, 2, 3, 4, 5, 6]]}, "segment"),
        ({"segmentation": {"size": [4, 4], "counts": [16]}}, "segment"),
        ({"segmentation": [[1, 2]]}, "detect"),
    ],
)
def test_the_task_follows_from_what_the_annotations_have(tmp_path: Path, more: dict[str, Any], task: str) -> None:
    """Any usable outline makes it segment; the user's word comes first."""
    doc = document([note(1), note(2, **more)])
    assert read_one(tmp_path, doc).task == task
    assert read_one(tmp_path, doc, task="detect").task == "detect"


def test_keypoints_make_it_pose_only_where_annotations_have_them(tmp_path: Path) -> None:
    """Declared but unused keypoints keep their number; a task that needs missing ones, or angles, is refused."""
    person = [{"id": 1, "name": "person", "keypoints": ["left_hand", "right_hand"]}]
    doc = document([note(keypoints=[1, 2, 2, 3, 4, 1])], categories=person)
    assert (read_one(tmp_path, doc).task, read_one(tmp_path, doc).keypoints) == ("pose", 2)
    assert read_one(tmp_path, document([note()], categories=person)).task == "detect"
    with pytest.raises(DataError, match="must list its keypoints for task pose"):
        read_one(tmp_path, document([note()]), task="pose")
    with pytest.raises(UsageError, match="task must be detect, segment or pose"):
        read_one(tmp_path, doc, task="obb")


def test_keypoints_that_no_category_lists_are_counted_in_the_annotations(tmp_path: Path) -> None:
    """The first annotation that has some decides; names and mirror stay unknown; too many are refused."""
    scan = read_one(tmp_path, document([note(1), note(2, keypoints=[1, 2, 2] * 4)]))
    assert (scan.keypoints, scan.keypoint_names, scan.flip_idx, scan.task) == (4, (), (), "pose")
    assert scan.decisions["keypoints"] == "4 as in the annotations; no category lists them"
    assert scan.rows(0).keypoints[1].tolist() == [[1, 2, 2]] * 4
    with pytest.raises(DataError, match="keypoints must be at most 1000 an object, got 1001"):
        read_one(tmp_path, document([note(keypoints=[1] * 3003)]))


def test_geometry_is_passed_on_for_settle_to_judge(tmp_path: Path) -> None:
    """NaN, infinity, negative sizes and boxes far outside are rows like any other here."""
    boxes = [[float("nan"), 1, 2, 3], [1, 2, float("inf"), 3], [10, 10, -4, 5], [500, 500, 5, 5]]
    scan = read_one(tmp_path, document([note(n, bbox=b) for n, b in enumerate(boxes)]))
    rows = scan.rows(0)
    assert (len(rows), scan.problems) == (4, [])
    assert rows.xyxy[2].tolist() == [10, 10, 6, 15]
    assert rows.kind.tolist() == [BOX] * 4
    _, said = settle(rows, (40, 60), key="1.jpg")
    assert [p.kind for p in said] == ["not-finite", "not-finite", "negative-size", "outside"]
