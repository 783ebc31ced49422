"""Export: convert → export → convert gives the same labels; what a format cannot say is counted; nothing else is touched."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from label_kit import Shot, Thing, blank, covered, entries, instances, square, write

from fastdata.boxes import bounds, polygon_area
from fastdata.catalog import Keypoints
from fastdata.conversion.options import ConvertOptions
from fastdata.conversion.run import convert
from fastdata.errors import UsageError
from fastdata.export import COUNTS, SUFFIXES, export, render
from fastdata.export_files import file_names
from fastdata.export_yolo import bridge
from fastdata.labels import BOX, CROWD, DIFFICULT, MASK, OBB, POLYGON
from fastdata.masks import mask_to_rings, rings_to_mask
from fastdata.settle import scaled
from fastdata.sources.scan import SourceOptions
from fastdata.store.read import Store, open_store

TOLERANCE_PX = 0.01


def again(store: Store, folder: Path, format: str, **options: Any) -> Store:
    """Export a store and convert the result as it is."""
    export(store, folder / format, format=format, **options)  # type: ignore[arg-type]
    task = "obb" if format == "yolo" and store.manifest.task == "obb" else None
    source = SourceOptions(task=task, splits=tuple(store.manifest.splits), on_error="skip")  # type: ignore[arg-type]
    how = ConvertOptions(source=source, kind=format, imgsz=None, codec="original", workers=1)
    convert(folder / format, folder / f"{format}-again", how)
    return open_store(folder / f"{format}-again")


def twins(a: Store, b: Store) -> list[tuple[int, int]]:
    """Pairs of entries that show one picture, by the names that an export gives."""
    place = {b.key(i): i for i in range(len(b))}
    pairs = []
    for split, (start, stop) in a.manifest.splits.items():
        encodings = a.catalog.rec_encoding[a.catalog.entry_record[start:stop]]
        suits = [SUFFIXES[("png", "jpg", "webp")[code]] for code in encodings]
        names = file_names([a.key(i) for i in range(start, stop)], suits)
        pairs += [(i, place[f"images/{split}/{name}"]) for i, name in enumerate(names, start)]
    assert len(pairs) == len(a) == len(b)
    return pairs


def assert_same_labels(a: Store, b: Store, format: str) -> None:
    """Every object of ``b`` is the one of ``a``, but for what the format cannot say."""
    form = "mixed"
    if format == "yolo":
        form = {"pose": "pose", "obb": "obb"}.get(a.manifest.task, "outline" if (a.catalog.kind != BOX).any() else "box")
    for i, j in twins(a, b):
        was, now = a.instances(i), b.instances(j)
        size_hw = a.catalog.size_hw(i)
        kept = np.arange(len(was)) if format == "coco" else np.flatnonzero((was.flags & CROWD) == 0)
        assert len(now) == len(kept), a.key(i)
        for k, n in zip(kept.tolist(), range(len(now)), strict=True):
            where = f"{a.key(i)}: object {k}"
            assert now.cls[n] == was.cls[k], where
            assert (now.flags[n] & CROWD) == (was.flags[k] & CROWD), where
            parts = was.parts(k)
            from_outline = form == "outline" and was.kind[k] != BOX
            box = bounds(np.concatenate(parts)) if from_outline else was.xyxy_px[k]
            assert np.abs(now.xyxy_px[n] - box).max() <= TOLERANCE_PX, where
            if form in ("mixed", "pose"):
                assert np.abs(now.keypoints_px[n] - was.keypoints_px[k]).max(initial=0) <= TOLERANCE_PX, where
            if form in ("box", "pose"):
                assert now.kind[n] == BOX, where
                continue
            if was.kind[k] == BOX:
                assert now.kind[n] in (BOX if form == "mixed" else POLYGON, OBB), where
                continue
            same_rings = len(parts) == 1 or (form == "mixed" and was.kind[k] == POLYGON)
            if was.kind[k] != MASK and not was.flags[k] & CROWD and same_rings:
                assert now.kind[n] == (was.kind[k] if form != "mixed" else POLYGON), where
                for ring, same in zip(parts, now.parts(n), strict=True):
                    assert np.abs(ring - same).max() <= TOLERANCE_PX, where
                continue
            assert np.array_equal(covered(was, k, size_hw), rings_to_mask(now.parts(n), size_hw)), where


def third_of_coco128(data: Path, folder: Path) -> None:
    """Every third picture of the set, and its labels in both formats: JSON with crowds and parts, YOLO text with outlines."""
    (folder / "images/train2017").mkdir(parents=True)
    pictures = sorted((data / "coco128/lightly/images/train2017").iterdir())[::3]
    for picture in pictures:
        (folder / "images/train2017" / picture.name).symlink_to(picture)
    names = {picture.name for picture in pictures}
    said = json.loads((data / "coco128/developer0hye/annotations/instances_train2017.json").read_text())
    said["images"] = [image for image in said["images"] if Path(image["file_name"]).name in names]
    kept = {image["id"] for image in said["images"]}
    said["annotations"] = [annotation for annotation in said["annotations"] if annotation["image_id"] in kept]
    assert sum(annotation["iscrowd"] for annotation in said["annotations"]) > 2
    (folder / "annotations").mkdir()
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(said))
    (folder / "data.yaml").write_text((data / "coco128/lightly/instance_segmentation/config.yaml").read_text())
    (folder / "labels").symlink_to(data / "coco128/lightly/instance_segmentation/labels")


SETS = {
    "coco128": (None, "coco", ("train",)),
    "coco128-seg": (None, "yolo", ("train",)),
    "tinycoco": ("tinycoco_json/tests/data/tinycoco", "coco", None),
    "pose_minicoco": ("pose_minicoco/tests/data/pose_minicoco", "coco", None),
    "bccd": ("bccd_voc/BCCD", "voc", ("test",)),
    "obb": ("obb_mmrotate/tests/data", "dota", None),
}


@pytest.mark.parametrize(("imgsz", "codec"), [(None, "original"), (640, "jpeg")])
@pytest.mark.parametrize("name", SETS)
def test_published_datasets_come_back_as_they_were(
    name: str, imgsz: int | None, codec: str, shared: Path, tmp_path: Path
) -> None:
    """Classes, boxes to 0.01 px, outlines, keypoints, crowds and pixels survive the round trip through both formats."""
    place, kind, splits = SETS[name]
    src = shared / "data" / place if place else tmp_path / "src"
    if not place:
        third_of_coco128(shared / "data", src)
    source = SourceOptions(splits=splits, on_error="skip")
    convert(src, tmp_path / "a", ConvertOptions(source=source, kind=kind, imgsz=imgsz, codec=codec, workers=1))  # type: ignore[arg-type]
    with open_store(tmp_path / "a") as a:
        for format in ("coco", "yolo"):
            with again(a, tmp_path, format) as b:
                assert b.names == a.names
                assert b.manifest.splits == a.manifest.splits
                assert_same_labels(a, b, format)
                if format == "coco":
                    assert b.manifest.category_ids == a.manifest.category_ids
                    assert b.manifest.keypoints == a.manifest.keypoints
                    assert sorted(b.catalog.entry_image_id.tolist()) == sorted(
                        a.catalog.entry_image_id.tolist() if a.manifest.source == "coco" else range(1, len(a) + 1)
                    )
                for i, j in twins(a, b):
                    assert np.array_equal(a.image(i), b.image(j)), a.key(i)


def test_raw_pictures_come_back_pixel_by_pixel(shared: Path, tmp_path: Path) -> None:
    """PNG loses nothing; JPEG is smaller and near."""
    convert(shared / "data/tinycoco_json/tests/data/tinycoco", tmp_path / "a", ConvertOptions(codec="raw", imgsz=320, workers=1))
    with open_store(tmp_path / "a", split="val") as a:
        png = export(a, tmp_path / "png", format="yolo")
        jpg = export(a, tmp_path / "jpg", format="yolo", image_format="jpg")
        assert png.splits == jpg.splits == {"val": 6}
        assert jpg.nbytes < png.nbytes
        files = sorted((tmp_path / "png/images/val").iterdir())
        for file in files:
            i = next(i for i in range(6) if Path(a.key(i)).stem == file.stem)
            want = a.image(i).transpose(1, 2, 0)
            assert np.array_equal(cv2.imread(str(file))[..., ::-1], want)
            near = cv2.imread(str(tmp_path / "jpg/images/val" / f"{file.stem}.jpg"))[..., ::-1]
            assert 0 < np.abs(near.astype(int) - want).mean() < 4
    assert len(files) == 6


# Invented labels

SIZES = st.tuples(st.integers(8, 40), st.integers(8, 40))


@st.composite
def things(draw: st.DrawFn, size_hw: tuple[int, int], obb: bool, keypoints: int) -> Thing:
    """An object of any kind inside a picture, on a grid of 1/8 px."""
    h, w = size_hw
    cls, flags = draw(st.integers(0, 2)), draw(st.sampled_from((0, 0, 0, CROWD)))
    points = None
    if keypoints:
        seen = draw(
            st.lists(
                st.tuples(st.integers(0, 8 * w), st.integers(0, 8 * h), st.integers(0, 2)), min_size=keypoints, max_size=keypoints
            )
        )
        points = np.array([(x / 8, y / 8, v) if v else (0, 0, 0) for x, y, v in seen], np.float32)
    kind = OBB if obb else draw(st.sampled_from((BOX, POLYGON, POLYGON, MASK)))

    def ring() -> np.ndarray[Any, np.dtype[np.float32]]:
        x, y = draw(st.integers(0, 8 * w - 8)), draw(st.integers(0, 8 * h - 8))
        spread = draw(st.integers(8, 160))
        inside = st.tuples(st.integers(x, min(x + spread, 8 * w)), st.integers(y, min(y + spread, 8 * h)))
        corner = draw(inside.filter(lambda p: p != (x, y)))
        more = draw(st.lists(inside, min_size=0, max_size=4))
        right, low = min(x + 8, 8 * w), min(y + 8, 8 * h)
        points = np.array([(x, y), (right, y), corner, *more, (x, low)], np.float32) / 8
        return points if polygon_area(points) > 0.1 else square(x / 8, y / 8, right / 8, low / 8)

    if kind == OBB:
        x, y = draw(st.integers(8, 8 * w - 16)) / 8, draw(st.integers(8, 8 * h - 16)) / 8
        angle, a, b = draw(st.integers(0, 89)) * np.pi / 180, draw(st.integers(4, 60)) / 8, draw(st.integers(4, 60)) / 8
        u, v = np.array([np.cos(angle), np.sin(angle)]) * a, np.array([-np.sin(angle), np.cos(angle)]) * b
        quad = np.array([-u - v, u - v, u + v, v - u]) + np.array([x, y])
        low_xy, high_xy = quad.min(axis=0).clip(0), quad.max(axis=0).clip(None, [w, h])
        return Thing(cls, (*low_xy.tolist(), *high_xy.tolist()), [quad], OBB, flags)
    if kind == MASK:
        bits = draw(st.integers(1, 2**36 - 1))
        mask = np.zeros(size_hw, np.uint8)
        mask[1:7, 1:7] = np.array([bits >> k & 1 for k in range(36)]).reshape(6, 6)
        return Thing(cls, None, mask_to_rings(mask), MASK, flags, points)
    rings = [ring() for _ in range(1 if kind == BOX else draw(st.integers(1, 3)))]
    if kind == BOX:
        x0, y0 = rings[0].min(axis=0)
        x1, y1 = rings[0].max(axis=0)
        return Thing(cls, (x0, y0, max(x1, x0 + 0.5), max(y1, y0 + 0.5)), (), BOX, flags, points)
    return Thing(cls, None, rings, POLYGON, flags, points)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[str, list[Shot], Keypoints | None]:
    """Up to four small pictures in one or two splits, with names that try to get in each other's way."""
    task = draw(st.sampled_from(("segment", "pose", "obb")))
    keypoints = (
        Keypoints(2, ("left_eye", "right_eye"), (1, 0), ((0, 1),), draw(st.sampled_from((2, 3)))) if task == "pose" else None
    )
    names = ["a.jpg", "a.png", "b/a.jpg", "images/b/a.jpg", "../x/a.jpg", "A.PNG", "c.v2", "d e\u00fc.bmp"]
    keys = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    first = draw(st.integers(1, len(keys)))
    shots = []
    for number, key in enumerate(keys):
        size_hw = draw(SIZES)
        own = draw(st.lists(things(size_hw, task == "obb", 2 if keypoints else 0), max_size=4))
        unique = {(t.cls, t.xyxy, str([np.asarray(p).tolist() for p in t.parts])): t for t in own}
        shots.append(Shot(blank(*size_hw, 40 * number), list(unique.values()), key, "train" if number < first else "val"))
    return task, shots, keypoints


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(datasets(), st.sampled_from(("coco", "yolo")))
def test_whatever_is_stored_comes_back(tmp_path_factory: pytest.TempPathFactory, dataset: Any, format: str) -> None:
    """Any mix of boxes, polygons of several parts, masks with holes, oriented boxes, crowds and keypoints, under any names."""
    task, shots, keypoints = dataset
    folder = tmp_path_factory.mktemp("round")
    with open_store(write(folder / "a.lmdb", shots, names=("cat", "dog: #1", "no"), keypoints=keypoints, task=task)) as a:
        with again(a, folder, format) as b:
            assert b.names == a.names
            if format == "coco" and task == "obb":  # COCO cuts at the border what an oriented box keeps
                assert [len(b.instances(j)) for _, j in twins(a, b)] == [len(a.instances(i)) for i, _ in twins(a, b)]
            else:
                assert_same_labels(a, b, format)


# What a format cannot say


def counted(tmp_path: Path, format: str, *own: Thing, **more: Any) -> tuple[dict[str, int], Path]:
    """Export one picture with these objects: the counts, and where the export is."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(40, 40), own, "k.png")], **more)) as store:
        done = export(store, tmp_path / "out", format=format)  # type: ignore[arg-type]
        assert all(text in " ".join(done.notes) for key, text in COUNTS.items() if key in done.counts)
        return done.counts, tmp_path / "out"


def rows(out: Path) -> list[list[float]]:
    """The rows of the one label file."""
    (file,) = (out / "labels").rglob("*.txt")
    return [[float(x) for x in line.split()] for line in file.read_text().splitlines()]


def test_yolo_has_no_crowds(tmp_path: Path) -> None:
    """They are left out and counted; the picture stays."""
    counts, out = counted(tmp_path, "yolo", Thing(0, (1, 1, 9, 9), flags=CROWD), Thing(1, (2, 2, 8, 8), flags=DIFFICULT))
    assert counts == {"crowd": 1, "flags": 1}
    assert rows(out) == [[1, 0.125, 0.125, 0.15, 0.15]]


def test_no_file_mixes_boxes_and_outlines(tmp_path: Path) -> None:
    """Trainers drop such files: a box becomes four corners as soon as the store holds an outline."""
    counts, out = counted(tmp_path, "yolo", Thing(0, (4, 8, 12, 20)), Thing(1, parts=[[[0, 0], [10, 0], [0, 10]]]))
    assert counts == {"boxes_as_outlines": 1}
    assert [len(row) for row in rows(out)] == [9, 7]
    assert rows(out)[0][1:] == [0.1, 0.2, 0.3, 0.2, 0.3, 0.5, 0.1, 0.5]


def test_parts_and_holes_are_joined_by_bridges_of_no_width(tmp_path: Path) -> None:
    """One ring covers, even-odd, what the parts covered; overlapping parts are traced, since even-odd would cut them out."""
    ring_mask = [square(20, 20, 36, 36), square(24, 24, 30, 30)]
    needle = [[1, 12], [2, 12], [1.02, 17.3]]
    own = [
        Thing(0, parts=[square(0, 0, 8, 8), square(12, 2, 18, 9)]),
        Thing(1, parts=ring_mask, kind=MASK),
        Thing(0, parts=[square(0, 20, 10, 30), square(5, 25, 15, 35)]),
        Thing(0, parts=[square(0.3, 11, 9.4, 14), needle]),
    ]
    counts, out = counted(tmp_path, "yolo", *own)
    assert counts == {"bridged": 4, "traced": 2}
    labels = instances(own)
    for i, row in enumerate(rows(out)):
        ring = np.array(row[1:]).reshape(-1, 2) * 40
        assert np.array_equal(rings_to_mask([ring], (40, 40)), covered(labels, i, (40, 40))), i
        assert np.abs(bounds(ring) - labels.xyxy_px[i]).max() < 1e-6


@given(st.integers(1, 2**49 - 1))
def test_a_bridged_ring_covers_what_the_rings_covered(bits: int) -> None:
    """For any mask of 7 x 7 pixels: islands, holes, islands in holes, corners that touch."""
    mask = np.array([bits >> k & 1 for k in range(49)], np.uint8).reshape(7, 7)
    rings = mask_to_rings(mask)
    ring = bridge(rings)
    assert np.array_equal(rings_to_mask([ring], (7, 7)), mask)
    assert len(ring) == sum(map(len, rings)) + 2 * (len(rings) - 1)


def test_rows_of_oriented_boxes_are_corners(tmp_path: Path) -> None:
    """An oriented box keeps its corners, also beyond the border; a box becomes corners, an outline the rectangle around it."""
    quad = [[20, -4], [30, 6], [20, 16], [10, 6]]
    own = [
        Thing(0, (10, 0, 30, 16), [quad], OBB),
        Thing(1, (4, 4, 8, 8)),
        Thing(1, parts=[[[0, 0], [8, 0], [8, 4], [4, 4], [0, 4]]]),
    ]
    counts, out = counted(tmp_path, "yolo", *own, task="obb")
    assert counts == {"outlines_as_rectangles": 1}
    got = [np.array(row[1:]).reshape(-1, 2) * 40 for row in rows(out)]
    assert np.allclose(got[0], quad)
    assert np.allclose(got[1], square(4, 4, 8, 8))
    assert sorted(map(tuple, got[2].round(6).tolist())) == [(0, 0), (0, 4), (8, 0), (8, 4)]


def test_two_keypoint_columns_are_written_only_where_they_say_all(tmp_path: Path) -> None:
    """Two columns are read as visibility 1, so a point that is visible or not labelled needs the third."""
    for name, seen, columns in (("all", 1, 5 + 2 * 2), ("some", 0, 5 + 2 * 3), ("more", 2, 5 + 2 * 3)):
        points = [[5, 6, 1], [7, 8, seen] if seen else [0, 0, 0]]
        folder = tmp_path / name
        folder.mkdir()
        keypoints = Keypoints(2, dims=2)
        _, out = counted(folder, "yolo", Thing(0, (1, 1, 20, 20), keypoints=points), keypoints=keypoints)
        assert [len(row) for row in rows(out)] == [columns]
        assert f"kpt_shape: [2, {(columns - 5) // 2}]" in (out / "data.yaml").read_text()


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
    counts, out = counted(tmp_path, "coco", *own, source="coco")
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


@pytest.mark.slow
def test_the_trainer_takes_what_is_written(shared: Path, tmp_path: Path) -> None:
    """Ultralytics finds the splits and keeps every picture and every row of it, outlines included."""
    pytest.importorskip("ultralytics")
    convert(shared / "data/tinycoco_json/tests/data/tinycoco", tmp_path / "a", ConvertOptions(codec="jpeg", workers=1))
    with open_store(tmp_path / "a") as store:
        done = export(store, tmp_path / "out", format="yolo")
    code = (
        "import sys, json\n"
        "from ultralytics.data.utils import check_det_dataset\n"
        "from ultralytics.data.dataset import YOLODataset\n"
        "data = check_det_dataset(sys.argv[1], autodownload=False)\n"
        "sets = [YOLODataset(img_path=data[s], data=data, task='segment', augment=False) for s in ('train', 'val')]\n"
        "labels = [l for s in sets for l in s.labels]\n"
        "print(json.dumps([len(labels), sum(len(l['cls']) for l in labels), sum(len(l['segments']) for l in labels)]))\n"
    )
    env = os.environ | {"YOLO_CONFIG_DIR": str(tmp_path / "config"), "YOLO_OFFLINE": "true"}
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out/data.yaml")],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [38, done.instances, done.instances]


# Names and places


def test_names_are_safe_and_unique_without_their_endings() -> None:
    """Nothing leads out of the folder, no folder is called images, and no two pictures share a label file."""
    png = (".png",)
    keys = [
        "data/images/a.jpg",
        "data/a.png",
        "data/images/../../a.jpeg",
        "/data/sub/a.v1.tif",
        "data/sub/.hid",
        "data/A.jpg",
        "data/c.v2",
    ]
    names = file_names(keys, [png] * len(keys))
    assert names == ["a.png", "a.png.png", "a.jpeg.png", "sub/a.v1.png", "sub/_hid.png", "A.jpg.png", "c.v2.png"]
    assert file_names(["x/images/y/a.JPG", "x/y/b.jpg"], [(".jpg", ".jpeg")] * 2) == ["a.JPG", "b.jpg"]
    assert file_names(["a\\..\\b\n.png"], [()]) == ["a_.._b_.png"]
    assert file_names([], []) == []


@given(
    st.lists(st.text(st.sampled_from("aA./\\ \x00é\udcff-"), max_size=12), max_size=8),
    st.sampled_from([(".png",), (".jpg", ".jpeg"), ()]),
)
def test_any_keys_give_distinct_names_below_the_folder(keys: list[str], suits: tuple[str, ...]) -> None:
    """Whatever a store calls its pictures."""
    names = file_names(keys, [suits] * len(keys))
    stems = [name[: -len(os.path.splitext(name)[1])] if suits else name for name in names]
    assert len({stem.casefold() for stem in stems}) == len(keys)
    for name in names:
        assert not name.startswith("/")
        assert not {"", ".", "..", "images"} & set(name.split("/")[:-1])
        assert "\0" not in name
        assert not any(part.startswith(".") for part in name.split("/"))


def test_labels_alone_belong_to_the_published_pictures(tmp_path: Path) -> None:
    """Without pictures COCO speaks of the original size and key, also where the store holds them smaller."""
    shot = Shot(blank(20, 40), [Thing(0, (10, 5, 20, 15), area=100)], "images/train/a.tiff", original_hw=(60, 120), image_id=5)
    with open_store(write(tmp_path / "s.lmdb", [shot], source="coco")) as store:
        export(store, tmp_path / "coco", format="coco", images=False)
        export(store, tmp_path / "yolo", format="yolo", images=False)
        export(store, tmp_path / "both", format="coco")
    said = json.loads((tmp_path / "coco/annotations/instances_train.json").read_text())
    assert said["images"] == [{"id": 5, "file_name": "images/train/a.tiff", "width": 120, "height": 60}]
    assert said["annotations"][0]["bbox"] == [30, 15, 30, 30]
    assert said["annotations"][0]["area"] == 900
    assert json.loads((tmp_path / "both/annotations/instances_train.json").read_text())["annotations"][0]["bbox"] == [
        10,
        5,
        10,
        10,
    ]
    assert (tmp_path / "yolo/labels/train/a.txt").read_text() == "0 0.375 0.5 0.25 0.5\n"
    assert not (tmp_path / "yolo/images").exists()


def test_a_part_of_a_record_is_exported_as_that_part(tmp_path: Path) -> None:
    """An entry that shows a rectangle gives the pixels of the rectangle, encoded anew; labels alone would have no frame."""
    rgb = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)
    rects = {"part": (4, 2, 14, 12), "low": (0, 0, 30, 12), "narrow": (0, 0, 14, 20)}
    for encoding, shape in (("raw", "part"), ("jpeg", "part"), ("jpeg", "low"), ("jpeg", "narrow")):
        shot = Shot(rgb, [Thing(0, (1, 1, 5, 5))], "a.jpg", encoding=encoding, rect=rects[shape])
        with open_store(write(tmp_path / f"{encoding}-{shape}.lmdb", [shot])) as store:
            out = tmp_path / f"{encoding}-{shape}"
            export(store, out, format="coco")
            got = cv2.imread(str(out / "images/train/a.png"))[..., ::-1]
            assert np.array_equal(got, store.image(0).transpose(1, 2, 0))
            with pytest.raises(UsageError, match="must be written too"):
                export(store, tmp_path / "labels", format="coco", images=False)


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written into a folder with files, unless it is an earlier export and shall be replaced."""
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5))])])) as store:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/thesis.doc").write_text("years")
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="must"):
                export(store, tmp_path / "mine", format="yolo", overwrite=overwrite)
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="must be a folder"):
            export(store, tmp_path / "file", format="yolo")
        with pytest.raises(UsageError, match="mkdir -p"):
            export(store, tmp_path / "no/where", format="yolo")
        (tmp_path / "empty").mkdir()
        export(store, tmp_path / "empty", format="yolo")
        with pytest.raises(UsageError, match="--overwrite"):
            export(store, tmp_path / "empty", format="coco")
        export(store, tmp_path / "empty", format="coco", overwrite=True)
        assert sorted(p.name for p in (tmp_path / "empty").iterdir()) == ["annotations", "images"]
        for wrong in ({"format": "voc"}, {"format": "coco", "image_format": "gif"}):
            with pytest.raises(UsageError, match="must be one of"):
                export(store, tmp_path / "other", **wrong)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "mine", "s.lmdb"]
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.doc"]


def test_the_store_is_never_replaced_by_its_export(tmp_path: Path) -> None:
    """A store that lies in the target, under a name that an export has, stops the export."""
    (tmp_path / "out/images").mkdir(parents=True)
    with open_store(write(tmp_path / "out/images/s.lmdb", [Shot(blank(8, 8))])) as store:
        with pytest.raises(UsageError, match="must not hold the store"):
            export(store, tmp_path / "out", format="coco", overwrite=True)
    assert (tmp_path / "out/images/s.lmdb").exists()


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_a_failed_export_leaves_what_was_there(tmp_path: Path, format: str) -> None:
    """A record that does not decode stops the export; the old one stays, and nothing half-made stays beside it."""
    shots = [Shot(blank(8, 8), key=f"{k}.png") for k in range(30)]
    shots.append(Shot(blank(8, 8), key="broken.png", encoding="jpeg", payload=b"\xff\xd8 no", rect=(0, 0, 4, 4)))
    (tmp_path / "out/labels").mkdir(parents=True)
    (tmp_path / "out/labels/old.txt").write_text("old")
    with open_store(write(tmp_path / "s.lmdb", shots)) as store:
        with pytest.raises(ValueError, match="payload"):
            export(store, tmp_path / "out", format=format, overwrite=True)  # type: ignore[arg-type]
    assert (tmp_path / "out/labels/old.txt").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "s.lmdb"]


def test_the_splits_are_named_as_trainers_look_for_them(tmp_path: Path) -> None:
    """train2017 is train; a split that is not there is said to be missing; odd names of splits and classes survive."""
    shots = [Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5))], split=split) for split in ("train2017", "val", "val2", "a/b")]
    with open_store(write(tmp_path / "s.lmdb", shots, names=("no", "a: b\n# \udcff"))) as store:
        done = export(store, tmp_path / "out", format="yolo")
    import yaml

    said = yaml.safe_load((tmp_path / "out/data.yaml").read_text())
    assert {key: said[key] for key in ("train", "val", "val2", "a/b")} == {
        "train": "images/train2017", "val": "images/val", "val2": "images/val2", "a/b": "images/a_b",
    }  # fmt: skip
    assert said["names"][0] == "no"
    assert said["nc"] == 2
    assert done.remarks == ("split train2017 is called train in data.yaml, as trainers look for it",)
    assert done.to_json()["notes"] == done.notes
    assert json.dumps(done.to_json())
    with open_store(tmp_path / "s.lmdb", split="a/b") as store:
        assert (
            export(store, tmp_path / "one", format="yolo").remarks[-1]
            == "data.yaml has no split val, which most trainers ask for"
        )


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


def test_progress_is_told_and_the_result_can_be_shown(tmp_path: Path) -> None:
    """The last message says that all is done; the table holds the numbers."""
    from rich.console import Console

    told = []
    with open_store(write(tmp_path / "s.lmdb", [Shot(blank(8, 8), [Thing(0, (1, 1, 5, 5))])] * 3)) as store:
        done = export(store, tmp_path / "out", format="coco", listener=told.append)
        assert dict(entries(store)) == {"train": 2}
    assert (told[-1].done, told[-1].total, told[-1].stage) == (3, 3, "export")
    console = Console(width=40, file=io.StringIO(), record=True)
    console.print(render(done))
    assert "3 (train 3)" in console.export_text()


def test_labels_scale_with_the_picture() -> None:
    """What export relies on: scaling there and back is exact to 1e-4 px."""
    labels = instances([Thing(0, (1.25, 2.5, 33.1, 20.7)), Thing(1, parts=[[[0, 0], [30, 7], [3, 20]]])])
    back = scaled(scaled(labels, (30, 40), (480, 640)), (480, 640), (30, 40))
    assert np.abs(back.xyxy_px - labels.xyxy_px).max() < 1e-4
    assert np.abs(back.points_px - labels.points_px).max() < 1e-4
