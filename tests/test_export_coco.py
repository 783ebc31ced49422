"""COCO JSON: areas, crowds, holes and ids, as the reference reader takes them."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path

import pytest
from label_kit import Shot, Thing, blank, covered, exported, square, write

from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.export import export
from fastdata.labels import CROWD, MASK
from fastdata.store.read import open_store


def test_coco_says_area_crowd_and_holes(tmp_path: Path) -> None:
    """Published area where there is one, else the outline's, else the box's; run lengths for masks and crowds."""
    own = [
        Thing(0, (2, 2, 12, 8), id=7),
        Thing(1, parts=[square(0, 0, 4, 4)], area=11.5, id=8),
        Thing(1, parts=[square(0, 0, 4, 4), square(6, 6, 9, 9)], id=9),
        Thing(0, parts=[square(20, 20, 36, 36), square(24, 24, 30, 30)], kind=MASK, id=10),
        Thing(0, parts=[square(20, 0, 30, 10)], flags=CROWD, id=11),
        Thing(0, parts=[square(1.1, 1.1, 1.4, 9)], kind=MASK, id=12),
        Thing(0, parts=[square(0, 0, 8, 8), square(4, 0, 12, 8)], flags=CROWD, id=13),
    ]
    counts, out = exported(tmp_path, "coco", *own, source="coco")
    assert counts == {"masks_as_outlines": 1}
    found = json.loads((out / "annotations/instances_train.json").read_text())["annotations"]
    assert [a["id"] for a in found] == [7, 8, 9, 10, 11, 12, 13]
    assert [a["area"] for a in found] == [60, 11.5, 25, 16 * 16 - 36, 100, pytest.approx(0.3 * 7.9, abs=1e-3), 96]
    assert [a["iscrowd"] for a in found] == [0, 0, 0, 0, 1, 0, 1]
    assert "segmentation" not in found[0]
    assert [len(part) for part in found[2]["segmentation"]] == [8, 8]
    assert found[3]["segmentation"]["size"] == found[4]["segmentation"]["size"] == [40, 40]
    assert isinstance(found[5]["segmentation"], list)


def test_pycocotools_reads_what_is_written(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference reader finds every image, category and annotation, and its masks are the outlines' pixels."""
    from pycocotools.coco import COCO

    convert(shared / "data/pose_minicoco/tests/data/pose_minicoco", tmp_path / "a", ConvertOptions(codec="jpeg", workers=1))
    with open_store(tmp_path / "a") as store:
        done = export(store, tmp_path / "out", format="coco")
        assert done.images == 60
        for split, (start, stop) in store.manifest.splits.items():
            coco = COCO(str(tmp_path / f"out/annotations/person_keypoints_{split}.json"))
            assert len(coco.imgs) == stop - start
            assert coco.cats[1]["keypoints"][0] == "nose"
            assert min(map(min, coco.cats[1]["skeleton"])) == 1
            at = {int(store.catalog.entry_image_id[e]): e for e in range(start, stop)}
            for image, own in coco.imgToAnns.items():
                labels = store.instances(at[image])
                size_hw = store.catalog.size_hw(at[image])
                assert (coco.imgs[image]["height"], coco.imgs[image]["width"]) == size_hw
                assert len(own) == len(labels)
                for i, annotation in enumerate(own):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DeprecationWarning)  # of its own, under NumPy 2
                        mask = coco.annToMask(annotation)
                    ours = covered(labels, i, size_hw)
                    assert (mask != ours).sum() <= max(30, 0.1 * ours.sum())  # its polygon filling rounds to other pixels
                    assert annotation["num_keypoints"] == int((labels.keypoints_px[i, :, 2] > 0).sum())
    capsys.readouterr()


def test_ids_are_made_up_where_the_published_ones_do_not_tell_pictures_apart(tmp_path: Path) -> None:
    """Image ids that are missing or double, and rows numbered per file, are replaced by numbers from 1 over the whole store."""
    shots = [
        Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5), id=1)] * 2, image_id=k, split=s)
        for k, s in ((4, "train"), (4, "train"), (9, "val"))
    ]
    with open_store(write(tmp_path / "s.lmdb", shots, source="yolo")) as store:
        export(store, tmp_path / "out", format="coco")
    train, val = (json.loads((tmp_path / f"out/annotations/instances_{s}.json").read_text()) for s in ("train", "val"))
    assert [i["id"] for i in train["images"]] == [1, 2]
    assert [i["id"] for i in val["images"]] == [9]
    assert [a["id"] for a in train["annotations"] + val["annotations"]] == [1, 2, 3, 4, 5, 6]
    assert Counter(a["image_id"] for a in train["annotations"]) == {1: 2, 2: 2}


def test_an_annotation_is_never_called_0(tmp_path: Path) -> None:
    """Evaluation takes 0 for "no match"; an image may have it, an unknown id may not stay."""
    for name, ids, images, want in (("zero", (0, 1), (0, 5), [0, 5]), ("none", (1, 2), (-1, 5), [1, 2])):
        shots = [Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5), id=k)], image_id=image) for k, image in zip(ids, images, strict=True)]
        with open_store(write(tmp_path / f"{name}.lmdb", shots, source="coco")) as store:
            export(store, tmp_path / name, format="coco")
        said = json.loads((tmp_path / name / "annotations/instances_train.json").read_text())
        assert [a["id"] for a in said["annotations"]] == [1, 2]
        assert [i["id"] for i in said["images"]] == want
