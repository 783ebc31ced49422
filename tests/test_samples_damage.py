"""Records that are damaged while a training runs: named, or planned around alike everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import training_kit as kit

import fastdata
from fastdata.augment.policy import Policy
from fastdata.errors import UsageError
from fastdata.render.tiles import BadRecord
from fastdata.samples import Samples


def drawn(samples: Samples, ids: list[int]) -> str:
    """The digest of a batch."""
    return kit.digest(samples.batch(*samples.draw(ids)))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    """By the picture's key first: that is what a person can look for."""
    path = kit.flat(tmp_path)
    kit.damage(path, 5)
    with pytest.raises(BadRecord, match=r"^005\.png: entry 5, record 5 .*CRC32C"):
        Samples(path, imgsz=32, policy=Policy(mosaic=0)).draw([5])
    with pytest.raises(BadRecord, match=r"^005\.png"):
        Samples(path, imgsz=32, augment=False, on_bad="replan").draw([5])


def test_a_damaged_record_is_planned_around_alike_everywhere(tmp_path: Path) -> None:
    """Whoever meets it first and wherever: a sample is the same, and samples that do not touch it are as without damage."""
    path = kit.flat(tmp_path)
    policy = Policy(mixup=0.3)
    whole = [drawn(Samples(path, imgsz=32, policy=policy), [i]) for i in range(8)]
    touch = [5 in Samples(path, imgsz=32, policy=policy).recipe([i]).tile_entry.tolist() for i in range(8)]
    kit.damage(path, 5)
    fresh = [Samples(path, imgsz=32, policy=policy, on_bad="replan") for _ in range(8)]
    alone = [drawn(samples, [i]) for i, samples in enumerate(fresh)]
    together = Samples(path, imgsz=32, policy=policy, on_bad="replan")
    after = [drawn(together, [i]) for i in reversed(range(8))][::-1]
    assert alone == after
    assert [a for a, t in zip(alone, touch, strict=True) if not t] == [w for w, t in zip(whole, touch, strict=True) if not t]
    assert 0 < sum(touch) < 8
    assert together.bad == {5}
    assert [samples.bad for samples in fresh] == [{5} if t else set() for t in touch]
    recipe, _ = together.draw(range(8))
    assert 5 not in recipe.tile_entry.tolist()


def test_a_pick_that_is_not_shown_counts_as_well(tmp_path: Path) -> None:
    """Or a process that has met the damage elsewhere would plan around it, and another would not.

    Of the nine tiles of a mosaic of long and of tall pictures some are covered by others or lie outside the canvas.
    """
    path = tmp_path / "s.lmdb"
    with fastdata.create(path, names=["thing"]) as writer:
        for i in range(40):
            h, w = ((32, 8), (8, 32))[i % 2]
            writer.add(np.full((h, w, 3), i, np.uint8), boxes=[[1, 1, 7, 7]], key=f"{i}")
    policy = Policy(mosaic9=1)
    samples = Samples(path, imgsz=32, policy=policy)
    hidden = {}
    for i in range(40):
        recipe = samples.recipe([i])
        x0, y0, x1, y1 = recipe.visible_xyxy.T
        for entry in set(recipe.tile_entry.tolist()) - set(recipe.tile_entry[(x0 < x1) & (y0 < y1)].tolist()):
            hidden[i] = entry
    i, entry = hidden.popitem()
    kit.damage(path, entry)
    lazy = Samples(path, imgsz=32, policy=policy, on_bad="replan")
    warned = Samples(path, imgsz=32, policy=policy, on_bad="replan")
    warned.bad.add(entry)
    assert drawn(lazy, [i]) == drawn(warned, [i])
    assert lazy.bad == {entry}


def test_when_nothing_is_left_the_damage_is_said(tmp_path: Path) -> None:
    """And not searched for forever."""
    path = kit.flat(tmp_path, 2)
    kit.damage(path, 0)
    kit.damage(path, 1)
    with pytest.raises((UsageError, BadRecord)):
        Samples(path, imgsz=32, on_bad="replan").draw([0])
