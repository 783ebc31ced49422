"""Which pictures of a store are used, for which task, and what their labels are without a picture.

The checks here are what stops a training before it begins, where the labels cannot serve the task.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from fastdata.augment import ragged
from fastdata.augment.canvas import are_labels
from fastdata.augment.recipe import TASKS
from fastdata.catalog import Catalog
from fastdata.errors import UsageError
from fastdata.labels import BOX
from fastdata.store.read import Store, open_store

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

Row = dict[str, F32]


def opened(path: str | os.PathLike[str]) -> Store:
    """Open a store of one split.

    Raises:
        UsageError: It has several.
    """
    store = open_store(path)
    if len(store.manifest.splits) > 1:
        names = ", ".join(map(repr, store.manifest.splits))
        raise UsageError(
            f"a store of several splits must be opened with one of {names}, got a path alone: "
            f"fastdata.open_store({str(store.path)!r}, split=...)"
        )
    return store


def choose_entries(store: Store, fraction: float | int) -> range | I64:
    """Return the entries in use, ascending.

    Args:
        store: Its opened split is chosen from.
        fraction: A float is a share, 0 < share <= 1: the first ``max(1, round(n * share))`` of the entries sorted by key. An int
            above 1 is a count of them, 1 is all (Ultralytics 8.4.190).

    Raises:
        UsageError: The split is empty, or ``fraction`` breaks its rule.
    """
    n = len(store)
    if n == 0:
        split = "" if store.split is None else f" in split {store.split!r}"
        raise UsageError(f"{store.path}: a store must have at least one picture{split}, got none")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float, np.integer, np.floating)) or not fraction > 0:
        raise UsageError(f"fraction must be a share in 0 < share <= 1 or a count of pictures, got {fraction!r}")
    if isinstance(fraction, (int, np.integer)):
        count = n if fraction == 1 else min(int(fraction), n)
    elif fraction > 1:
        raise UsageError(f"fraction must be at most 1.0 as a share, got {fraction!r}; for a count of pictures give an int")
    else:
        count = max(1, round(n * float(fraction)))
    if count == n:
        return store.entry_range
    by_key = sorted(store.entry_range, key=store.catalog.key)
    return np.sort(np.array(by_key[:count], np.int64))


def task_of(store: Store, task: str | None) -> str:
    """Return the task, by default the one that the store was converted for.

    Raises:
        UsageError: There is no such task.
    """
    if task is None:
        return store.manifest.task
    if task not in TASKS:
        raise UsageError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    return task


def check_task(store: Store, entries: range | I64, task: str, classes: Sequence[int] | None, *, training: bool) -> None:
    """See to it that the labels of some entries can serve a task.

    Raises:
        UsageError: They lack what the task needs, or there are none to train on.
    """
    catalog, at = store.catalog, str(store.path)
    names = len(catalog.names)
    wrong = [c for c in classes or () if not 0 <= c < names]
    if wrong:
        raise UsageError(f"{at}: classes must be in 0..{names - 1}, got {wrong[0]}")
    if task == "pose" and not (catalog.keypoints and catalog.keypoints.count):
        raise UsageError(
            f"{at}: the labels must have keypoints for task pose, got a store that was converted for {store.manifest.task}; "
            "convert a dataset that has them, with kpt_shape in its data.yaml or keypoints in its categories"
        )
    of = instances_of(catalog, entries)
    used = are_labels(catalog, of, classes)
    if training and not used.any():
        split = "" if store.split is None else f" in split {store.split!r}"
        among = "" if classes is None else f" of classes {list(classes)}"
        raise UsageError(
            f"{at}: there must be labels to train on, got none{among} in {len(entries)} pictures{split}; "
            f"see `fastdata info {at}` for what was converted"
        )
    boxes, count = int((catalog.kind[of][used] == BOX).sum()), int(used.sum())
    if task in ("segment", "obb") and boxes:
        what = "outlines" if task == "segment" else "oriented boxes or outlines"
        if boxes == count:
            raise UsageError(
                f"{at}: labels must have {what} for task {task}, got plain boxes alone; train task detect on this store, or "
                f"convert a dataset that has {what}"
            )
        warnings.warn(f"{at}: {boxes} of {count} labels have no {what}: their upright box stands for them", stacklevel=3)


def warn_if_shrunk(store: Store, imgsz: int) -> None:
    """Say it when pictures are to be enlarged that were larger before the conversion."""
    stored = store.manifest.imgsz
    if stored is not None and imgsz > stored:
        warnings.warn(
            f"imgsz {imgsz} is larger than the stored pictures ({stored} px): they were shrunk at conversion and are enlarged "
            f"again; for full detail convert the dataset again with --imgsz {imgsz}",
            stacklevel=3,
        )


def instances_of(catalog: Catalog, entries: range | I64) -> I64:
    """Return the instances of some entries, in the order of the entries."""
    where = np.asarray(entries, np.int64)
    return ragged.ranges(catalog.inst_offsets[where], catalog.inst_offsets[where + 1])


class LabelRows(Sequence[Row]):
    """The labels of each id as the trainers read them for plots, class weights and memory estimates: cheap, made on request.

    Item i is ``{"cls": (n, 1) float32, "bboxes": (n, 4) float32 xywh_norm}``, views of two arrays that hold all.
    """

    def __init__(self, catalog: Catalog, entries: I64, classes: Sequence[int] | None, single_cls: bool) -> None:
        of = instances_of(catalog, entries)
        used = are_labels(catalog, of, classes)
        counts = catalog.inst_offsets[entries + 1] - catalog.inst_offsets[entries]
        owner = np.repeat(np.arange(len(entries)), counts)[used]
        of = of[used]
        rect = catalog.entry_rect[entries]
        wh = (rect[:, 2:] - rect[:, :2])[owner].astype(np.float64)
        xyxy = catalog.xyxy_px[of].astype(np.float64)
        low, high = xyxy[:, :2] / wh, xyxy[:, 2:] / wh
        self._xywh_norm = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
        self._cls = np.zeros((len(of), 1), np.float32) if single_cls else catalog.cls[of].astype(np.float32)[:, None]
        self._ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(entries)))])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, i: int) -> Row: ...
    @overload
    def __getitem__(self, i: slice) -> list[Row]: ...
    def __getitem__(self, i: int | slice) -> Row | list[Row]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"id must be in 0..{len(self) - 1}, got {i}")
        first, last = self._ends[i % len(self)], self._ends[i % len(self) + 1]
        return {"cls": self._cls[first:last], "bboxes": self._xywh_norm[first:last]}

    def __iter__(self) -> Iterator[Row]:
        return (self[i] for i in range(len(self)))
