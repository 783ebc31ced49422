"""Export: convert → export → convert gives the same labels; what a format cannot say is counted; nothing else is touched."""

from __future__ import annotations

import io
import json
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
from fastdata.export import SUFFIXES, export, render
from fastdata.export_files import file_names
from fastdata.labels import BOX, CROWD, MASK, OBB, POLYGON
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
