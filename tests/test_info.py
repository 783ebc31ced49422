"""What a store holds: every count against the published datasets, and against counting one by one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_kit import Shot, Thing, blank, entries, square, write

import fastdata.info
from fastdata.catalog import Keypoints
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.errors import UsageError
from fastdata.info import describe, render
from fastdata.labels import CROWD, DIFFICULT, KIND_NAMES, MASK, POLYGON, TRUNCATED
from fastdata.sources.scan import SourceOptions
from fastdata.store.read import open_store


def described(src: Path, out: Path, **source: Any) -> dict[str, Any]:
    """Convert as published, keeping the sizes, and describe the store."""
    convert(src, out, ConvertOptions(source=SourceOptions(**source), imgsz=None, codec="original", workers=1))
    with open_store(out) as store:
        return describe(store)


def test_the_counts_of_coco128_can_be_read_from_the_json(shared: Path, tmp_path: Path) -> None:
    """128 images, 939 annotations, 10 of them crowds, 82 of several polygons, 80 classes of which 71 occur."""
    data = shared / "data/coco128"
    said = data / "developer0hye/annotations/instances_train2017.json"
    got = described(said, tmp_path / "s", images=data / "lightly/images")
    assert (got["images"], got["annotations"], got["crowd"]) == (128, 939, 10)
    assert (got["classes_named"], got["classes_used"], got["backgrounds"]) == (80, 71, 2)
    assert got["size_px"]["original"]["min"] == [640, 218]
    assert got["size_px"]["original"]["max"][1] == 640
    assert got["task"] == "segment"
    assert got["source"] == "coco"
    assert got["multi_part"] == 82
    assert got["kinds"] == {"box": 0, "polygon": 929, "obb": 0, "mask": 10}
    annotations = json.loads(said.read_text())["annotations"]
    for row in got["classes"]:
        of_class = [a for a in annotations if a["category_id"] == row["category_id"]]
        assert row["annotations"] == len(of_class)
        assert row["images"] == len({a["image_id"] for a in of_class})
    assert json.loads(json.dumps(got)) == got


def test_the_counts_of_bccd_can_be_read_from_the_json(shared: Path, tmp_path: Path) -> None:
    """364 images, 4,888 boxes, 1,131 truncated; splits of 205, 87 and 72; one size."""
    got = described(shared / "data/bccd_voc/BCCD", tmp_path / "s.lmdb")
    assert (got["images"], got["annotations"], got["truncated"], got["classes_used"]) == (364, 4888, 1131, 3)
    assert {name: split["images"] for name, split in got["splits"].items()} == {"train": 205, "val": 87, "test": 72}
    assert got["size_px"]["stored"]["different"] == 1
    assert got["size_px"]["stored"]["median"] == [640, 480]
    assert got["decisions"]["voc-origin"] == "1-based"
    assert (got["backend"], got["codec"], got["imgsz"]) == ("lmdb", "original", "full")
    assert got["nbytes"] == (tmp_path / "s.lmdb").stat().st_size
    assert 0 < got["payload_nbytes"] < got["nbytes"]
    assert got["encodings"] == {"jpeg": 364}


def test_the_counts_of_pose_minicoco_can_be_read_from_the_json(shared: Path, tmp_path: Path) -> None:
    """30 + 30 images, 87 + 65 annotations, 11 + 10 images without any, 34 + 25 annotations without a labelled keypoint."""
    got = described(shared / "data/pose_minicoco/tests/data/pose_minicoco", tmp_path / "s")
    train, val = got["splits"]["train"], got["splits"]["val"]
    assert (train["images"], val["images"]) == (30, 30)
    assert (train["annotations"], val["annotations"]) == (87, 65)
    assert (train["backgrounds"], val["backgrounds"]) == (11, 10)
    assert (87 - train["with_keypoints"], 65 - val["with_keypoints"]) == (34, 25)
    assert (train["crowd"], val["crowd"]) == (1, 0)
    assert got["keypoints"]["count"] == 17
    assert got["nbytes"] == sum(file.stat().st_size for file in (tmp_path / "s").iterdir())


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_counts_do_not_depend_on_the_size_of_a_block(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are only a way to save memory: counting one object at a time, with plain Python, gives the same."""
    monkeypatch.setattr(fastdata.info, "BLOCK", block)
    rng = np.random.default_rng(5)
    shots = []
    for number in range(20):
        own = []
        for _ in range(int(rng.integers(0, 6))):
            parts = [square(1, 1, 5, 5), square(6, 6, 9, 9)][: int(rng.integers(0, 3))]
            flags = int(rng.choice([0, CROWD, DIFFICULT, TRUNCATED, CROWD | TRUNCATED]))
            points = [[2, 2, 2], [0, 0, 0]] if rng.random() < 0.5 else None
            kind = MASK if parts and rng.random() < 0.3 else None
            own.append(Thing(int(rng.integers(0, 3)), (1, 1, 9, 9), parts, kind, flags, points))
        shots.append(Shot(blank(int(rng.integers(10, 20)), 12), own, split="train" if number < 13 else "val"))
    with open_store(write(tmp_path / "s.lmdb", shots, names=("a", "b", "c", "never"), keypoints=Keypoints(2))) as store:
        got = describe(store)
        counted = {
            s: dict.fromkeys(("images", "annotations", "crowd", "difficult", "truncated", "multi_part", "with_keypoints"), 0)
            for s in ("train", "val")
        }
        images: dict[int, set[int]] = {c: set() for c in range(4)}
        rows = dict.fromkeys(range(4), 0)
        for split, e in entries(store):
            labels = store.instances(e)
            here = counted[split]
            here["images"] += 1
            for i in range(len(labels)):
                here["annotations"] += 1
                here["crowd"] += bool(labels.flags[i] & CROWD)
                here["difficult"] += bool(labels.flags[i] & DIFFICULT)
                here["truncated"] += bool(labels.flags[i] & TRUNCATED)
                here["multi_part"] += len(labels.parts(i)) > 1 and labels.kind[i] == POLYGON
                here["with_keypoints"] += bool((labels.keypoints_px[i, :, 2] > 0).any())
                images[int(labels.cls[i])].add(e)
                rows[int(labels.cls[i])] += 1
    for split, want in counted.items():
        assert {name: got["splits"][split][name] for name in want} == want
    for name in counted["train"]:
        assert got[name] == counted["train"][name] + counted["val"][name]
    assert [c["images"] for c in got["classes"]] == [len(images[c]) for c in range(4)]
    assert [c["annotations"] for c in got["classes"]] == [rows[c] for c in range(4)]
    assert [c["splits"]["train"] + c["splits"]["val"] for c in got["classes"]] == [rows[c] for c in range(4)]
    assert got["classes_used"] == 3
    assert set(got["kinds"]) == set(KIND_NAMES)
    assert sum(got["kinds"].values()) == got["annotations"]


def test_sizes_are_those_of_the_entries(tmp_path: Path) -> None:
    """Smallest, middle and largest picture by area, as width and height; a part of a record has its own size."""
    shots = [
        Shot(blank(10, 30)),
        Shot(blank(20, 20), original_hw=(40, 40)),
        Shot(blank(50, 50), rect=(0, 0, 5, 7)),
        Shot(blank(10, 31)),
    ]
    with open_store(write(tmp_path / "s.lmdb", shots)) as store:
        got = describe(store)["size_px"]
    assert (got["stored"]["min"], got["stored"]["median"], got["stored"]["max"]) == ([5, 7], [31, 10], [20, 20])
    assert got["stored"]["width"] == [5, 25.0, 31]
    assert got["original"]["max"] == [50, 50]
    assert got["stored"]["different"] == 4


def test_what_a_conversion_left_out_is_told(shared: Path, tmp_path: Path) -> None:
    """The counts by kind stand in the description."""
    convert(shared / "data/obb_mmrotate/tests/data", tmp_path / "s", ConvertOptions(workers=1))
    with open_store(tmp_path / "s") as store:
        got = describe(store)
    assert got["problems"] == {"outside": 3, "self-crossing": 1, "unused-label-file": 1}
    assert got["conversion"]["rows"]["dropped"] == 3
    assert "outside 3, self-crossing 1" in text_of(render(got), 100)


def text_of(shown: Any, width: int) -> str:
    """What a terminal of this width shows; no line may be longer."""
    from rich.console import Console

    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(shown)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_terminal_of_any_width_shows_the_numbers(width: int, tmp_path: Path) -> None:
    """Long and odd names neither break lines nor are taken for markup; the classes left out are counted."""
    names = ["[red]not markup[/red]", "x" * 200, "猫", *(f"class {k}" for k in range(40))]
    things = [Thing(0, (1, 1, 5, 5))] * 126 + [Thing(k, (1, 1, 5, 5)) for k in range(1, 43)]
    shots = [Shot(blank(8, 8), things, split=s) for s in ("train", "val")]
    with open_store(write(tmp_path / "s.lmdb", shots, names=names)) as store:
        text = text_of(render(describe(store)), width)
    if width == 200:
        assert "[red]not markup[/red]" in text
        assert "75.0 %" in text
        assert "and 23 more classes" in text
    assert "s.lmdb" in text.replace("\n", "")


def test_a_store_without_labels_or_pictures_is_described(tmp_path: Path) -> None:
    """No division by nothing."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(4, 4))])) as store:
        got = describe(store)
    assert (got["images"], got["annotations"], got["classes_used"], got["backgrounds"]) == (1, 0, 0, 1)
    text_of(render(got), 80)


@pytest.mark.parametrize("name", ["data.yaml", "instances.json"])
def test_a_description_of_a_dataset_is_not_taken_for_a_damaged_store(tmp_path: Path, name: str) -> None:
    """The error says what to do with it."""
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=r"must be a store, got a description of a dataset; make one with: fastdata convert"):
        open_store(tmp_path / name)
