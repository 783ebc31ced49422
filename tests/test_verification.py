"""Verify: every flipped byte is found, nothing raises, and a source that changed is told file by file."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from label_kit import Shot, Thing, blank, square, write

import fastdata.verification
from fastdata.catalog import Keypoints
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.errors import DataError, UsageError
from fastdata.labels import CROWD
from fastdata.sources.scan import SourceOptions
from fastdata.verification import MAX_FAULTS, Verdict, render, verify


def small(out: Path) -> Path:
    """A store with every kind of record and label."""
    rng = np.random.default_rng(3)
    picture = rng.integers(0, 256, (20, 24, 3), np.uint8)
    keypoints = Keypoints(2, ("left", "right"), (1, 0), ((0, 1),))
    things = [
        Thing(0, (1, 1, 9, 9), flags=CROWD, keypoints=[[2, 2, 2], [0, 0, 0]]),
        Thing(1, parts=[square(2, 2, 10, 10), square(11, 11, 15, 15)]),
    ]
    shots = [
        Shot(picture, things, "a.png"),
        Shot(picture[:, :, 0].copy(), things[:1], "b.png"),
        Shot(picture, [], "c.jpg", encoding="jpeg"),
        Shot(picture, things, "d.webp", "val", encoding="webp"),
    ]
    return write(out, shots, keypoints=keypoints)


def files_of(out: Path) -> list[Path]:
    """Every file of a store."""
    return sorted(out.iterdir()) if out.is_dir() else [out]


@pytest.mark.parametrize("name", ["s.lmdb", "s"])
def test_a_whole_store_is_ok(name: str, tmp_path: Path) -> None:
    """No fault, and the counts of what was looked at."""
    told: list[Any] = []
    verdict = verify(small(tmp_path / name), listener=told.append)
    assert verdict.ok
    assert verdict.faults == []
    assert (verdict.images, verdict.annotations, verdict.records) == (4, 5, 4)
    assert verdict.nbytes > 20 * 24 * 4
    assert told[-1].stage == "verify"
    assert json.loads(json.dumps(verdict.to_json()))["ok"] is True
    assert "OK" in text_of(verdict)


@pytest.mark.parametrize("name", ["s.lmdb", "s"])
def test_a_flipped_byte_anywhere_is_found(name: str, tmp_path: Path) -> None:
    """Every so many bytes of every file, and the first and last hundred: the verdict is bad, says why, and does not raise."""
    out = small(tmp_path / name)
    missed, kinds = [], set()
    for file in files_of(out):
        data = bytearray(file.read_bytes())
        ends = [*range(0, min(100, len(data)), 7), *range(max(len(data) - 100, 0), len(data), 7)]
        for at in [*ends, *range(3, len(data), max(len(data) // 250, 1) | 1)]:
            data[at] ^= 0x10
            file.write_bytes(data)
            verdict = verify(out, workers=1)
            data[at] ^= 0x10
            if verdict.ok:
                missed.append((file.name, at))
            assert not verdict.to_json()["ok"] or verdict.ok
            for fault in verdict.faults:
                kinds.add(fault.kind)
                assert fault.detail
                if fault.kind in ("store", "section", "record"):
                    assert str(out) in fault.where, fault
        file.write_bytes(data)
    assert missed == []
    assert {"store", "section", "record", "structure"} <= kinds
    assert verify(out).ok


def test_several_faults_are_all_found(tmp_path: Path) -> None:
    """A damaged record does not hide another one, nor a damaged column."""
    out = small(tmp_path / "s.lmdb")
    data = bytearray(out.read_bytes())
    from fastdata.store.read import open_store

    with open_store(out) as store:
        for r in (0, 2):
            data[int(store.catalog.rec_offset[r]) + 5] ^= 1
        # the boxes of the first entry, wherever the column lies
        at = bytes(data).find(store.catalog.xyxy_px.tobytes())
    data[at] ^= 1
    out.write_bytes(data)
    found = [(fault.kind, fault.detail.split(" must")[0]) for fault in verify(out).faults]
    assert found == [("section", "section xyxy_px"), ("record", "record 0"), ("record", "record 2")]


def test_a_cut_file_gives_one_fault_and_a_missing_one_an_error(tmp_path: Path) -> None:
    """A store that does not open cannot be looked into; one that is not there is a wrong name."""
    out = small(tmp_path / "s.lmdb")
    out.write_bytes(out.read_bytes()[:-100])
    verdict = verify(out)
    assert [fault.kind for fault in verdict.faults] == ["store"]
    assert verdict.faults[0].where.startswith(f"{out}:")
    assert "DAMAGED: 1 fault in" in text_of(verdict)
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "nothing.lmdb")
    (tmp_path / "text.lmdb").write_text("hello")
    assert not verify(tmp_path / "text.lmdb").ok


def test_a_record_that_does_not_decode_is_a_fault_even_if_its_checksum_is_right(tmp_path: Path) -> None:
    """The payload is what was written, and it is no picture of the stated size."""
    good = cv2.imencode(".jpg", blank(10, 10))[1].tobytes()
    shots = [
        Shot(blank(10, 10), key="fine.jpg", encoding="jpeg", payload=good),
        Shot(blank(10, 12), key="size.jpg", encoding="jpeg", payload=good),
        Shot(blank(10, 10), key="cut.jpg", encoding="jpeg", payload=good[:-40]),
        Shot(blank(10, 10), key="none.webp", encoding="webp", payload=b"RIFF"),
    ]
    verdict = verify(write(tmp_path / "s.lmdb", shots))
    assert [(fault.where, fault.kind) for fault in verdict.faults] == [(f"record {r}", "decode") for r in (1, 2, 3)]
    assert "10 x 12" in verdict.faults[0].detail


def test_labels_that_break_their_rules_are_named_by_picture_and_object(tmp_path: Path) -> None:
    """What the writer was given is judged too, and the manifest's own numbers with it."""
    things = [Thing(0, (1, 1, 5, 5)), Thing(7, (1, 1, 5, 5)), Thing(1, (1, 1, 50, 5))]
    out = write(tmp_path / "s", [Shot(blank(10, 10), things, "k.png")], category_ids=(1, 2, 3), summary={"images": {"stored": 2}})
    verdict = verify(out)
    assert {(fault.where, fault.kind) for fault in verdict.faults} == {
        ("k.png: object 1", "label"), ("k.png: object 2", "label"), ("manifest", "catalog"),
    }  # fmt: skip
    assert sum(fault.where == "manifest" for fault in verdict.faults) == 2


def test_the_list_of_faults_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not listed is counted."""
    monkeypatch.setattr(fastdata.verification, "MAX_FAULTS", 2)
    shots = [Shot(blank(9, 9), encoding="jpeg", payload=b"no", key=f"{k}") for k in range(5)]
    verdict = verify(write(tmp_path / "s", shots))
    assert (len(verdict.faults), verdict.faults_not_listed) == (2, 3)
    assert "DAMAGED: 5 faults" in text_of(verdict)
    assert MAX_FAULTS > 100


def text_of(verdict: Verdict) -> str:
    """What a terminal shows."""
    from rich.console import Console

    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(render(verdict))
    return console.export_text()


# Against the source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A YOLO dataset of three pictures, one of which is empty and will be skipped."""
    root = tmp_path / "data"
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    rng = np.random.default_rng(1)
    for name in "abc":
        cv2.imwrite(str(root / f"images/{name}.png"), rng.integers(0, 256, (30, 40, 3), np.uint8))
        (root / f"labels/{name}.txt").write_text("0 0.5 0.5 0.25 0.25\n")
    (root / "images/empty.png").write_bytes(b"")
    (root / "data.yaml").write_text("train: images\nval: images\nnames: [cat]\n")
    return root


CODECS: list[tuple[str, int | None]] = [("raw", None), ("raw", 64), ("jpeg", 64), ("webp", None), ("original", None)]


def converted(source: Path, codec: str = "raw", imgsz: int | None = None, **options: Any) -> Path:
    """Convert the training split of a dataset."""
    out = source.parent / "s.lmdb"
    source_options = SourceOptions(splits=("train",), **options)
    convert(source / "data.yaml", out, ConvertOptions(source=source_options, codec=codec, imgsz=imgsz, workers=1))  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(("codec", "imgsz"), CODECS)
def test_an_unchanged_source_is_current_also_after_a_copy(codec: str, imgsz: int | None, source: Path) -> None:
    """Equal times say it; after a copy with new times, converting once more gives the same bytes."""
    out = converted(source, codec, imgsz)
    assert verify(out, source=source / "data.yaml").ok
    for picture in (source / "images").iterdir():
        os.utime(picture, ns=(1, 10**18))
    verdict = verify(out, source=source / "data.yaml")
    assert verdict.ok, verdict.to_json()
    assert "what its source says" in text_of(verdict)


@pytest.mark.parametrize(("codec", "imgsz"), CODECS)
def test_a_picture_drawn_over_in_place_is_changed(codec: str, imgsz: int | None, source: Path) -> None:
    """Same name, same number of bytes, other pixels, another time: only looking at the pixels tells."""
    for name in "abc":
        cv2.imwrite(str(source / f"images/{name}.bmp"), cv2.imread(str(source / f"images/{name}.png")))
        (source / f"images/{name}.png").unlink()
    out = converted(source, codec, imgsz)
    file = source / "images/b.bmp"
    data = bytearray(file.read_bytes())
    data[200:1200] = bytes(1000)
    file.write_bytes(data)
    os.utime(file, ns=(1, 10**18))
    verdict = verify(out, source=source)
    assert (verdict.changed, verdict.added, verdict.removed) == (["images/b.bmp"], [], [])
    assert not verdict.ok
    assert verdict.faults == []
    assert "OUT OF DATE" in text_of(verdict)


def test_every_change_of_the_source_is_listed(source: Path) -> None:
    """Labels edited, added and removed; pictures replaced, added and removed. A picture that was skipped is not new."""
    out = converted(source)
    (source / "labels/a.txt").write_text("0 0.5 0.5 0.25 0.26\n")
    (source / "labels/b.txt").unlink()
    (source / "labels/empty.txt").write_text("")
    (source / "images/c.png").unlink()
    cv2.imwrite(str(source / "images/a.png"), blank(31, 40))
    cv2.imwrite(str(source / "images/d.png"), blank(8, 8))
    verdict = verify(out, source=source)
    assert verdict.changed == ["images/a.png", "labels/a.txt"]
    assert verdict.added == ["images/d.png", "labels/empty.txt"]
    assert verdict.removed == ["images/c.png", "labels/b.txt", "labels/c.txt"]
    text = text_of(verdict)
    assert all(f"changed: {name}" in text for name in verdict.changed)
    assert {name: verdict.to_json()[name] for name in ("changed", "added", "removed")} == {
        "changed": verdict.changed, "added": verdict.added, "removed": verdict.removed,
    }  # fmt: skip


def test_a_label_edited_to_the_same_length_is_changed(shared: Path, tmp_path: Path) -> None:
    """The case that trainers' caches, which look at sizes, miss."""
    case = shared / "cases/lab-edited-same-size"
    folder = tmp_path / "case"
    shutil.copytree(case, folder)
    said = json.loads((case / "case.json").read_text())
    source = SourceOptions(splits=("train",))
    convert(folder / "input/data.yaml", tmp_path / "s.lmdb", ConvertOptions(source=source, imgsz=None, workers=1))
    assert verify(tmp_path / "s.lmdb", source=folder / "input/data.yaml").ok
    for target, by in said["do"]["steps"][1]["replace"].items():
        (folder / target).chmod(0o644)
        shutil.copyfile(folder / by, folder / target)
    verdict = verify(tmp_path / "s.lmdb", source=folder / "input/data.yaml")
    assert {"changed": verdict.changed} == said["expect"]["steps"][2]
    assert verdict.added == verdict.removed == []


def test_a_published_dataset_is_verified_against_itself(shared: Path, tmp_path: Path) -> None:
    """Every picture, label file and count of a whole dataset with crowds and keypoints in two splits."""
    src = shared / "data/pose_minicoco/tests/data/pose_minicoco"
    convert(src, tmp_path / "s", ConvertOptions(codec="original", imgsz=None, workers=1))
    verdict = verify(tmp_path / "s", source=src)
    assert verdict.ok
    assert (verdict.images, verdict.annotations, verdict.records) == (60, 152, 60)


def test_a_damaged_store_is_compared_as_far_as_it_goes(source: Path) -> None:
    """A flipped bit in the keys leaves the label files to compare, and nothing raises."""
    out = converted(source)
    data = bytearray(out.read_bytes())
    at = bytes(data).find(b"images/a.pngimages/b.png")
    data[at] ^= 1
    out.write_bytes(data)
    (source / "labels/a.txt").write_text("0 0.5 0.5 0.25 0.26\n")
    verdict = verify(out, source=source)
    assert [fault.kind for fault in verdict.faults] == ["section"]
    assert (verdict.changed, verdict.added, verdict.removed) == (["labels/a.txt"], [], [])


def test_a_damaged_list_of_sources_is_a_fault_and_not_compared(source: Path) -> None:
    """Both the digests of the label files and the list of problems are damaged: two faults, and the pictures are compared."""
    out = converted(source)
    data = bytearray(out.read_bytes())
    for text in (b"labels/a.txt", b'{"skip":'):
        assert text in data
        data[bytes(data).find(text)] ^= 1
    out.write_bytes(data)
    (source / "labels/a.txt").write_text("0 0.5 0.5 0.25 0.26\n")
    (source / "images/c.png").unlink()
    verdict = verify(out, source=source)
    assert [fault.detail.split(" must")[0] for fault in verdict.faults] == ["section label_file_names", "section problems"]
    assert (verdict.changed, verdict.removed) == ([], ["images/c.png"])


def test_a_source_of_another_kind_is_an_error_before_anything_is_looked_at(source: Path, tmp_path: Path) -> None:
    """The store knows what it was made from."""
    out = converted(source)
    (tmp_path / "other").mkdir()
    with pytest.raises((DataError, UsageError)):
        verify(out, source=tmp_path / "other")
    made = write(tmp_path / "made", [Shot(blank(4, 4))], source="create")
    with pytest.raises(UsageError, match="was made by create"):
        verify(made, source=source)


def test_the_options_of_the_source_can_be_given(source: Path, tmp_path: Path) -> None:
    """Folders that were named at the conversion are named again."""
    (source / "labels").rename(tmp_path / "elsewhere")
    out = converted(source, labels=tmp_path / "elsewhere")
    options = SourceOptions(splits=("train",), labels=tmp_path / "elsewhere")
    assert verify(out, source=source, source_options=options).ok
    (tmp_path / "elsewhere/a.txt").write_text("")
    assert len(verify(out, source=source, source_options=options).changed) == 1
