"""Plans over published datasets: outlines with holes and crowds, keypoints, oriented boxes, as converted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plan_kit import complaints

import fastdata
from fastdata.augment.letterbox import letterbox
from fastdata.augment.plan import plan
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import differences
from fastdata.conversion.options import ConvertOptions
from fastdata.sources.scan import SourceOptions

SETS = {
    "tinycoco": ("tinycoco_json/tests/data/tinycoco", "coco", ("detect", "segment")),
    "pose_minicoco": ("pose_minicoco/tests/data/pose_minicoco", "coco", ("pose", "segment")),
    "bccd": ("bccd_voc/BCCD", "voc", ("detect",)),
    "obb": ("obb_mmrotate/tests/data", "dota", ("obb", "detect", "segment")),
}

BUSY = Policy(
    degrees=15, shear=4, perspective=0.0003, mosaic=0.8, mosaic9=0.3, mixup=0.4, cutmix=0.4, copy_paste=0.5, flipud=0.3
)


@pytest.mark.parametrize("name", SETS)
def test_published_sets_are_planned_by_every_rule(name: str, shared: Path, tmp_path: Path) -> None:
    """Whole batches and single samples alike, augmented and letterboxed; and the store's columns are as before."""
    place, kind, tasks = SETS[name]
    source = SourceOptions(splits=("test",) if name == "bccd" else None, on_error="skip")
    options = ConvertOptions(source=source, kind=kind, imgsz=96, codec="raw", workers=1)  # type: ignore[arg-type]
    fastdata.convert(shared / "data" / place, tmp_path / "s.lmdb", options)
    with fastdata.open_store(tmp_path / "s.lmdb") as store:
        catalog = store.catalog
        before = catalog.xyxy_px.copy(), catalog.points_px.copy(), catalog.keypoints_px.copy()
        entries = np.arange(len(catalog))[:24]
        for task in tasks:
            planned = {
                "busy": lambda e, task=task: plan(e, catalog, BUSY, seed=1, epoch=0, imgsz=128, task=task),
                "paste": lambda e, task=task: plan(
                    e, catalog, Policy(copy_paste=1.0, mixup=1.0), seed=1, epoch=0, imgsz=64, task=task, out_hw=(64, 96)
                ),
                "val": lambda e, task=task: letterbox(e, catalog, imgsz=160, out_hw=(192, 160), task=task),
            }
            for what, of in planned.items():
                whole = of(entries)
                assert list(complaints(whole)) == [], (task, what)
                assert len(whole.labels) > 0
                for k in (0, len(entries) - 1):
                    assert differences(whole.slots(k, k + 1), of(entries[k : k + 1])) == [], (task, what)
        after = catalog.xyxy_px, catalog.points_px, catalog.keypoints_px
        assert all((a == b).all() and not b.flags.writeable for a, b in zip(before, after, strict=True))
