"""The pictures of one use of a store, by id: planned, drawn, and in the trainers' form.

:class:`Samples` knows what is trained on (or validated) and how, and nothing of order, workers or threads. *Ids* are 0..n - 1
within the chosen entries. A sample is a function of (store, settings, epoch, id, draw) alone, whatever batch it comes in.

    recipe, images = samples.draw(ids, epoch)
    batch = samples.batch(recipe, images)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from fastdata.augment.letterbox import letterbox, rect_shapes
from fastdata.augment.plan import PLAN_VERSION, plan
from fastdata.augment.policy import Policy, preset
from fastdata.augment.recipe import Recipe
from fastdata.batch import Masks, make_batch
from fastdata.checksum import crc32c
from fastdata.errors import StoreError, UsageError
from fastdata.render.cpu import render
from fastdata.render.tiles import BadRecord
from fastdata.selection import LabelRows, check_task, choose_entries, opened, task_of, warn_if_shrunk
from fastdata.store.read import Store

if TYPE_CHECKING:
    from fastdata.transforms import Transforms

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
T = TypeVar("T")


class Samples:
    """The samples of one use of a store.

    Pickles by the store's path, so it may be sent to any process; safe in any number of threads.

    Args:
        store: An opened store or the path of one. A store of several splits must be opened with the one that is meant.
        policy: What may happen to a picture, or the name of a preset (``yolov8``, ``yolov5``, ``light``, ``none``); looked at
            when ``augment`` is true.
        imgsz: Side of the square that a sample is drawn in, or the longer side when ``rect``, px; a multiple of ``stride``.
        task: ``detect``, ``segment``, ``pose`` or ``obb``; ``None``: the one that the store was converted for.
        seed: Any integer.
        epochs: How many the training has, for ``policy.close_mosaic``; ``None``: never closed.
        augment: Training samples when true; else each picture letterboxed, as in validation.
        rect: Pictures sorted by aspect, and each batch as small as its pictures allow. Training with it mixes nothing (mosaic,
            MixUp and CutMix need squares), as in the trainers.
        batch_size: Pictures a batch; matters for ``rect``, and is read by trainers.
        stride: Of the model, px.
        pad: Share of a stride that is added to the sides when ``rect``; ``None``: 0 for training, 0.5 for validation, as the
            trainers have it.
        fraction: Which of the entries, sorted by key, are used: a float is a share, an int above 1 a count from the first.
        classes: Class ids whose labels are used, all when ``None``; the pictures stay, and ids are not renumbered.
        single_cls: Every class becomes 0.
        overlap_mask: Masks of a picture are one plane of ranks instead of a plane each.
        mask_ratio: Masks are so many times smaller than the picture.
        transforms: An ``albumentations.Compose``, applied to the drawn picture and its labels.
        on_bad: What a damaged record does: ``raise``, or ``replan`` the samples that touch it without it (training only; a score
            over other pictures would not be one, so validation raises).

    Raises:
        UsageError: An argument breaks its rule, or the store does not have what the task needs.
        MissingExtra: ``transforms`` is given and albumentations is not installed.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        policy: Policy | str | None = None,
        imgsz: int = 640,
        task: str | None = None,
        seed: int = 0,
        epochs: int | None = None,
        augment: bool = True,
        rect: bool = False,
        batch_size: int = 16,
        stride: int = 32,
        pad: float | None = None,
        fraction: float | int = 1.0,
        classes: Sequence[int] | None = None,
        single_cls: bool = False,
        overlap_mask: bool = True,
        mask_ratio: int = 4,
        transforms: Any = None,
        on_bad: Literal["raise", "replan"] = "raise",
    ) -> None:
        self.store = store if isinstance(store, Store) else opened(store)
        _check_numbers(imgsz, stride, batch_size, mask_ratio, epochs, on_bad)
        self.policy = preset(policy) if isinstance(policy, str) else Policy() if policy is None else policy
        if not isinstance(self.policy, Policy):
            raise UsageError(f"policy must be a fastdata.Policy or the name of a preset, got {type(policy).__name__}")
        if augment and self.store.split is None and len(self.store.manifest.splits) > 1:
            names = ", ".join(map(repr, self.store.manifest.splits))
            warnings.warn(
                f"{self.store.path}: training is on all splits, {names}; open the one that is meant: "
                f"fastdata.open_store(path, split=...)",
                stacklevel=3,
            )
        # Python's own numbers: what a resumed run is told is JSON, which knows none of NumPy's.
        self.imgsz, self.stride, self.batch_size, self.seed = int(imgsz), int(stride), int(batch_size), int(seed)
        self.epochs = None if epochs is None else int(epochs)
        self.augment, self.rect, self.single_cls = bool(augment), bool(rect), bool(single_cls)
        self.overlap_mask, self.mask_ratio, self.on_bad = overlap_mask, int(mask_ratio), on_bad
        self.pad = (0.0 if augment else 0.5) if pad is None else float(pad)
        self.task = task_of(self.store, task)
        """One of :data:`fastdata.augment.recipe.TASKS`."""
        self.pool = choose_entries(self.store, fraction)
        """Ascending entry numbers of the pictures in use; partners of a mosaic come from here."""
        self.classes = None if classes is None else tuple(sorted({int(c) for c in classes}))
        check_task(self.store, self.pool, self.task, self.classes, training=augment)
        warn_if_shrunk(self.store, imgsz)

        self.entries: I64 = np.asarray(self.pool, np.int64)
        """(n,) entry number of each id."""
        self.batch_shapes: npt.NDArray[np.int64] | None = None
        """(batches, 2) height and width of each batch of ``batch_size`` consecutive ids when ``rect``."""
        if rect:
            original_hw = self.store.catalog.entry_original_hw[self.entries]
            order, shapes_hw = rect_shapes(original_hw, batch_size, imgsz, stride=stride, pad=self.pad)
            self.entries, self.batch_shapes = self.entries[order], np.asarray(shapes_hw, np.int64)
        self._labels: LabelRows | None = None
        self.bad: set[int] = set()
        """Entries whose record is damaged, as far as this process has met them."""
        self.transforms: Transforms | None = None
        if transforms is not None:
            from fastdata.transforms import Transforms

            self.transforms = Transforms(transforms, self.task)

    def __len__(self) -> int:
        return len(self.entries)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_labels": None, "bad": set(self.bad)}

    def __repr__(self) -> str:
        use = "training" if self.augment else "validation"
        return f"Samples({str(self.store.path)!r}: {len(self)} pictures for {use}, {self.task}, imgsz {self.imgsz})"

    @property
    def shapes_differ(self) -> bool:
        """Whether batches have more than one shape, so that ids must come in order."""
        return self.batch_shapes is not None and bool((self.batch_shapes != self.batch_shapes[0]).any())

    @property
    def labels(self) -> LabelRows:
        """What the trainers read of the labels without a picture: a sequence of ``{"cls": (n, 1), "bboxes": (n, 4)}``."""
        if self._labels is None:
            self._labels = LabelRows(self.store.catalog, self.entries, self.classes, self.single_cls)
        return self._labels

    @property
    def im_files(self) -> list[str]:
        """The key of each id: the picture's path in its dataset."""
        return self.store.catalog.keys(self.entries)

    def keep_classes(self, classes: Sequence[int]) -> None:
        """Use the labels of these classes only, of those in use; ids that the store does not know are left out."""
        known = range(len(self.store.names)) if self.classes is None else self.classes
        self.classes = tuple(sorted({int(c) for c in classes} & set(known)))
        self._labels = None

    def recipe(self, ids: npt.ArrayLike, epoch: int = 0, draws: npt.ArrayLike = 0) -> Recipe:
        """Plan the samples of some ids.

        Args:
            ids: (B,) ids; when ``rect`` all of one batch shape.
            epoch: From 0.
            draws: (B,) or one: tells repeated uses of an id in an epoch apart.

        Raises:
            IndexError: An id is not in 0..n - 1.
            UsageError: The ids are no whole numbers, or have different shapes.
        """
        where = self._checked(ids)
        entries, out_hw = self.entries[where], self._out_hw(where)
        labels: dict[str, Any] = {"task": self.task, "classes": self.classes, "single_cls": self.single_cls}
        if not self.augment:
            return letterbox(entries, self.store.catalog, imgsz=self.imgsz, out_hw=out_hw, **labels)
        return plan(
            entries, self.store.catalog, self.policy, seed=self.seed, epoch=epoch, imgsz=self.imgsz, epochs=self.epochs,
            pool=self.pool, draws=draws, bad=tuple(self.bad), out_hw=out_hw, **labels,
        )  # fmt: skip

    def render(self, recipe: Recipe, out: U8 | None = None) -> U8:
        """Draw a recipe: (B, 3, H, W), ``out`` where it is given.

        Raises:
            BadRecord: A record is damaged; the message begins with the key of its entry.
        """
        return render(self.store, recipe, out)

    def draw(self, ids: npt.ArrayLike, epoch: int = 0, draws: npt.ArrayLike = 0, out: U8 | None = None) -> tuple[Recipe, U8]:
        """Plan and draw samples, ``on_bad`` and ``transforms`` included: what every consumer calls.

        Args:
            ids: (B,) as for :meth:`recipe`.
            epoch: From 0.
            draws: As for :meth:`recipe`.
            out: (B, 3, H, W) uint8 to draw into, see :meth:`shape_of`; new memory when ``None``.

        Returns:
            The recipe, whose labels are those of the picture as it came out, and the (B, 3, H, W) pixels.

        Raises:
            BadRecord: A record is damaged, and ``on_bad`` is ``raise`` or nothing is trained.
        """
        recipe, images = self.planned(ids, epoch, draws, lambda recipe: self.render(recipe, out))
        if self.transforms is not None:
            recipe = self.transforms(recipe, images, seed=self.seed, epoch=epoch, draws=draws)
        return recipe, images

    def planned(
        self, ids: npt.ArrayLike, epoch: int, draws: npt.ArrayLike, use: Callable[[Recipe], T], recipe: Recipe | None = None
    ) -> tuple[Recipe, T]:
        """Plan samples and use the plan; plan anew without the records that turn out to be damaged, where ``on_bad`` says so.

        Args:
            ids: (B,) as for :meth:`recipe`.
            epoch: From 0.
            draws: As for :meth:`recipe`.
            use: What reads the records. It may be called more than once, and raises BadRecord for a damaged one.
            recipe: Of these ids, where it is planned already.

        Returns:
            The recipe that could be used, and what ``use`` made of it.

        Raises:
            BadRecord: A record is damaged, and ``on_bad`` is ``raise`` or nothing is trained.
        """
        while True:
            known = frozenset[int]()  # as far as a recipe from elsewhere shows
            if recipe is None:
                known = frozenset(self.bad)  # another thread may meet the same record and add it while this one draws
                recipe = self.recipe(ids, epoch, draws)
            try:
                if self.on_bad == "replan" and self.augment:
                    self._check_picks(recipe)
                return recipe, use(recipe)
            except BadRecord as err:
                if self.on_bad == "raise" or not self.augment or err.entry in known:
                    raise
                self.bad.add(err.entry)
                recipe = None

    def _check_picks(self, recipe: Recipe) -> None:
        """Compare the record of every pick with its checksum, also of those that no pixel comes from.

        Whether a pick is bad must not depend on the renderer, nor on what this process has met before.
        """
        for entry, record in zip(recipe.tile_entry.tolist(), recipe.record.tolist(), strict=True):
            try:
                self.store.read_record(record)
            except StoreError as err:
                raise BadRecord(f"{self.store.catalog.key(entry)}: entry {entry}, record {record}: {err}", entry, record) from err

    def shape_of(self, ids: npt.ArrayLike) -> tuple[int, int, int, int]:
        """Return (B, 3, H, W): the shape of the pixels that :meth:`draw` makes of some ids, before anything is planned."""
        where = self._checked(ids)
        return len(where), 3, *(self._out_hw(where) or (self.imgsz, self.imgsz))

    def batch(self, recipe: Recipe, images: Any, device: Any = None, masks: Masks | None = None) -> dict[str, Any]:
        """Bring samples to the trainers' form, see :func:`fastdata.batch.make_batch`.

        Args:
            recipe: From :meth:`draw`.
            images: (B, 3, H, W) uint8, an array or a torch tensor; not copied.
            device: Where the labels go, a torch device; ordinary memory when ``None``.
            masks: Where they are drawn already.
        """
        return make_batch(
            recipe, images, self.store.catalog, augmented=self.augment, overlap_mask=self.overlap_mask,
            mask_ratio=self.mask_ratio, device=device, masks=masks,
        )  # fmt: skip

    def fingerprint(self) -> dict[str, Any]:
        """Return what a run must share with the run that it continues, as JSON values: same fingerprint, same samples."""
        chosen = "all" if isinstance(self.pool, range) else f"{crc32c(np.ascontiguousarray(self.pool)):08x}"
        return {
            "store": self.store.manifest.uid,
            "split": self.store.split,
            "entries": [len(self.pool), chosen],
            "plan_version": PLAN_VERSION,
            "policy": self.policy.as_dict() if self.augment else None,
            "classes": None if self.classes is None else list(self.classes),
            "batch_shapes": [self.batch_size, self.stride, self.pad] if self.rect else None,
            "transforms": None if self.transforms is None else self.transforms.describe(),
        } | {name: getattr(self, name) for name in ("task", "imgsz", "seed", "epochs", "augment", "single_cls")}

    def _checked(self, ids: npt.ArrayLike) -> I64:
        where = np.atleast_1d(np.asarray(ids))
        if where.ndim != 1 or (len(where) and where.dtype.kind not in "iu"):  # a mask of bools would be ids 0 and 1
            raise UsageError(f"ids must be whole numbers in one row, got {where.dtype} of shape {where.shape}")
        where = where.astype(np.int64)
        if len(where) and not 0 <= int(where.min()) <= int(where.max()) < len(self):
            raise IndexError(f"id must be in 0..{len(self) - 1}, got {int(where.min())}..{int(where.max())}")
        return where

    def _out_hw(self, ids: I64) -> tuple[int, int] | None:
        """Return the frame of some ids; ``None``: the square."""
        if self.batch_shapes is None or not len(ids):
            return None
        shapes = self.batch_shapes[ids // self.batch_size]
        if (shapes != shapes[0]).any():
            raise UsageError(
                f"the ids of a batch must have one shape when rect, got {np.unique(shapes, axis=0).tolist()}: "
                f"take them in order, {self.batch_size} at a time"
            )
        return int(shapes[0, 0]), int(shapes[0, 1])


def _check_numbers(imgsz: int, stride: int, batch_size: int, mask_ratio: int, epochs: int | None, on_bad: str) -> None:
    for name, value in (("stride", stride), ("batch_size", batch_size), ("mask_ratio", mask_ratio)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
    if isinstance(imgsz, bool) or not isinstance(imgsz, (int, np.integer)) or imgsz < 1 or imgsz % stride:
        near = max(round(imgsz / stride), 1) * stride if isinstance(imgsz, (int, float)) else 640
        raise UsageError(f"imgsz must be a multiple of the stride {stride}, got {imgsz!r}; the nearest is {near}")
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, (int, np.integer)) or epochs < 1):
        raise UsageError(f"epochs must be a whole number of at least 1, or None, got {epochs!r}")
    if on_bad not in ("raise", "replan"):
        raise UsageError(f"on_bad must be 'raise' or 'replan', got {on_bad!r}")
