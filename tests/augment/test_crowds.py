"""Pictures with hundreds of objects: planning needs time and memory for them, but not for every pair at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from label_kit import Thing, square
from plan_kit import PLAIN, catalog_of, fixed

from fastdata.augment import mix
from fastdata.augment.plan import plan
from fastdata.augment.recipe import differences
from fastdata.catalog import Catalog
from fastdata.labels import POLYGON

PASTE = fixed(PLAIN, copy_paste=0.5, mosaic=1.0)


def crowd(count: int, pictures: int = 4) -> Catalog:
    """Pictures with so many squares anywhere."""
    corners = np.random.default_rng(0).uniform(0, 620, (pictures, count, 2)).tolist()
    return catalog_of(
        [(640, 640)] * pictures, [[Thing(parts=[square(x, y, x + 9, y + 9)], kind=POLYGON) for x, y in own] for own in corners]
    )


def test_pasting_into_a_crowd_takes_little_memory() -> None:
    """About 1,600 objects on the canvas are 2.5 million pairs: 100 bytes for each would be 250 MB a sample."""
    catalog = crowd(400)
    tracemalloc.start()
    try:
        found = plan([0, 1], catalog, PASTE, seed=0, epoch=0, imgsz=640, task="segment")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.is_masked.any()
    assert peak < 40e6


@pytest.mark.parametrize("mode", ["flip", "mixup"])
def test_how_many_pairs_are_compared_at_once_changes_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, policy = crowd(30), fixed(PASTE, copy_paste_mode=mode)
    found = plan([0, 1, 2], catalog, policy, seed=0, epoch=0, imgsz=640, task="segment")
    assert (np.diff(found.shape_offsets) > 2).any()
    for pairs in (1, 1_000):
        monkeypatch.setattr(mix, "PAIRS_AT_ONCE", pairs)
        again = plan([0, 1, 2], catalog, policy, seed=0, epoch=0, imgsz=640, task="segment")
        assert not differences(found, again)
