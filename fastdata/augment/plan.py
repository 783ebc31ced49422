"""Plan a batch: from entry numbers to a recipe. A pure function of its arguments; no pixel is looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastdata.augment.assemble import assemble
from fastdata.augment.draws import draw
from fastdata.augment.partners import Pool
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import TASKS, Recipe
from fastdata.catalog import Catalog
from fastdata.errors import UsageError

PLAN_VERSION = 1
"""Raised whenever a sample changes: a training is not gone on with under another one."""


def plan(
    entries: npt.ArrayLike,
    catalog: Catalog,
    policy: Policy,
    *,
    seed: int,
    epoch: int,
    imgsz: int,
    task: str = "detect",
    epochs: int | None = None,
    pool: Pool | None = None,
    draws: npt.ArrayLike = 0,
    bad: Collection[int] | npt.NDArray[np.int64] = (),
    out_hw: tuple[int, int] | None = None,
    classes: Collection[int] | None = None,
    single_cls: bool = False,
) -> Recipe:
    """Decide all about a batch of samples.

    A sample depends on its own entry, its draw number and the other arguments, never on the rest of the batch:
    ``plan(ids).slots(k, k + 1)`` is ``plan(ids[k : k + 1])``, bit for bit.

    Args:
        entries: (B,) entry numbers.
        catalog: Sizes and labels.
        policy: Probabilities and ranges.
        seed: Any integer.
        epoch: From 0.
        imgsz: Long side of a picture before it is moved, and side of the output.
        task: ``detect``, ``segment``, ``pose`` or ``obb``: which labels are filled in. Pictures of ``pose`` are not mirrored
            left to right unless the catalog says which keypoints are a pair.
        epochs: How many the training has: then the last ``policy.close_mosaic`` of them mix nothing.
        pool: Ascending entries that the other pictures of a sample come from; all when ``None``.
        draws: (B,) or one integer: how often the entry has been used in this epoch before.
        bad: Entries that must not be used; others take their places.
        out_hw: Size of the output when it is not a square of ``imgsz`` (rectangular training). Then, as in the trainers, there
            is no mosaic, MixUp or CutMix.
        classes: Keep objects of these classes only; they are not renumbered.
        single_cls: Call every object class 0.

    Raises:
        UsageError: An argument breaks its rule.
    """
    entry = np.atleast_1d(np.asarray(entries, np.int64))
    if task not in TASKS:
        raise UsageError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    if imgsz < 1:
        raise UsageError(f"imgsz must be at least 1, got {imgsz}")
    if len(entry) and not 0 <= int(entry.min()) <= int(entry.max()) < len(catalog):
        raise UsageError(f"an entry must be in 0..{len(catalog) - 1}, got {int(entry.min())}..{int(entry.max())}")
    if np.shape(draws) not in ((), (1,), (len(entry),)):
        raise UsageError(f"draws must be one number, or one for each of {len(entry)} entries, got shape {np.shape(draws)}")
    policy = policy.at(epoch, epochs)
    if out_hw is not None:
        policy = replace(policy, mosaic=0.0, mixup=0.0, cutmix=0.0)
    if task == "pose" and (catalog.keypoints is None or not catalog.keypoints.flip_idx):
        policy = replace(policy, fliplr=0.0)
    drawn = draw(
        entry,
        policy,
        seed=seed,
        epoch=epoch,
        imgsz=imgsz,
        out_hw=out_hw or (imgsz, imgsz),
        pool=range(len(catalog)) if pool is None else pool,
        draws=draws,
        bad=bad,
    )
    return assemble(drawn, catalog, policy, imgsz=imgsz, out_hw=out_hw, task=task, classes=classes, single_cls=single_cls)
