"""A user's ``albumentations.Compose`` on drawn samples: after all that the policy does, before the trainer's form.

Boxes move with a transform that moves pixels. Outlines, keypoints and oriented boxes do not, so for their tasks only transforms
that leave pixels where they are can be used. Each sample has its own chance, a function of (seed, epoch, entry, draw): nothing
depends on the worker or the order, and no generator is left behind.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata import rng
from fastdata.augment.recipe import Labels, Recipe
from fastdata.errors import MissingExtra, UsageError

U8 = npt.NDArray[np.uint8]

_KEEP_RULES = ("min_area", "min_visibility", "min_width", "min_height", "max_accept_ratio")
"""What a user's own ``BboxParams`` says beside the form of boxes, which is ours."""


class Transforms:
    """A ``Compose``, ready for any thread and process.

    Args:
        compose: The user's; not changed. Its ``bbox_params`` are not needed, and of them only the limits below which a box that
            was moved is dropped are used.
        task: Of the samples.

    Raises:
        MissingExtra: albumentations is not installed.
        UsageError: ``compose`` is no ``Compose``, or moves pixels although the labels cannot follow.
    """

    def __init__(self, compose: Any, task: str) -> None:
        try:
            import albumentations
        except ModuleNotFoundError as err:
            if err.name != "albumentations":
                raise
            raise MissingExtra("albumentations", "albumentations", "apply transforms") from None
        if not isinstance(compose, albumentations.Compose):
            raise UsageError(
                f"transforms must be an albumentations.Compose, got {type(compose).__name__}; "
                "write transforms=albumentations.Compose([...])"
            )
        if isinstance(compose, albumentations.ReplayCompose):
            raise UsageError(
                "transforms must be a plain albumentations.Compose, got a ReplayCompose; a sample is made again from its seed, "
                "epoch and picture, so nothing has to be replayed"
            )
        spatial = [type(t).__name__ for t in _leaves(compose) if not isinstance(t, albumentations.ImageOnlyTransform)]
        if spatial and task != "detect":
            what = {"segment": "outlines", "pose": "keypoints", "obb": "oriented boxes"}[task]
            raise UsageError(
                f"transforms must leave pixels where they are for task {task}, because {what} do not follow, got "
                f"{', '.join(dict.fromkeys(spatial))}; the policy has degrees, translate, scale, shear, perspective, flipud and "
                "fliplr, which they do follow"
            )
        self._compose, self._task, self._moves = compose, task, bool(spatial)
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[type[Transforms], tuple[Any, str]]:
        return type(self), (self._compose, self._task)

    def __call__(self, recipe: Recipe, images: U8, *, seed: int, epoch: int, draws: npt.ArrayLike = 0) -> Recipe:
        """Transform drawn samples.

        Args:
            recipe: What was drawn.
            images: (B, 3, H, W), changed in place.
            seed: With the three others, what chance is made from.
            epoch: From 0.
            draws: (B,) or one.

        Returns:
            The recipe with the labels that are left, where they are now.

        Raises:
            UsageError: A transform gives another size or type than uint8 of the same size.
        """
        compose = self._own_compose()
        labels, moved = recipe.labels, []
        for k, key in enumerate(rng.keys(seed, epoch, "transforms", recipe.entry, draws).tolist()):
            first, last = labels.offsets[k : k + 2].tolist()
            compose.set_random_seed(key)
            # One generator for all: with a seed each, transforms of the same probability would always fire together.
            compose.set_random_state(compose.random_generator, compose.py_random)
            given: dict[str, Any] = {"image": np.ascontiguousarray(images[k].transpose(1, 2, 0))}
            if self._moves:
                given |= {"bboxes": labels.xyxy_px[first:last], "fastdata_row": np.arange(first, last)}
            made = compose(**given)
            images[k] = _picture(made["image"], given["image"].shape).transpose(2, 0, 1)
            if self._moves:
                rows = np.asarray(made["fastdata_row"], np.int64).reshape(-1)
                moved.append((rows, _clipped(np.asarray(made["bboxes"], np.float32).reshape(-1, 4), recipe.out_hw)))
        return replace(recipe, labels=_boxes_only(labels, moved)) if self._moves else recipe

    def describe(self) -> str:
        """Return what tells one ``Compose`` from another, in any process."""
        return re.sub(r" at 0x[0-9a-f]+", "", repr(self._compose))

    def _own_compose(self) -> Any:
        """Return this thread's ``Compose``: one holds the generator that it draws from."""
        if not hasattr(self._of_thread, "compose"):
            self._of_thread.compose = self._prepared()
        return self._of_thread.compose

    def _prepared(self) -> Any:
        import albumentations

        steps = copy.deepcopy(self._compose.transforms)
        if not self._moves:  # without what the user's own says of boxes and keypoints, which are not handed over
            return albumentations.Compose(steps, p=self._compose.p)
        theirs = self._compose.processors.get("bboxes")
        rules = {} if theirs is None else {name: getattr(theirs.params, name) for name in _KEEP_RULES}
        # Without clip the library refuses a box that rounding put a hair outside the frame (albumentations#459).
        ours = albumentations.BboxParams("pascal_voc", label_fields=["fastdata_row"], clip=True, **rules)
        return albumentations.Compose(steps, bbox_params=ours, p=self._compose.p)


def _leaves(compose: Any) -> Iterator[Any]:
    for transform in compose.transforms:
        if hasattr(transform, "transforms"):
            yield from _leaves(transform)
        else:
            yield transform


def _clipped(xyxy_px: npt.NDArray[np.float32], out_hw: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Cut what rounding put outside the frame."""
    h, w = out_hw
    return np.clip(xyxy_px, 0, np.array([w, h, w, h], np.float32))


def _picture(made: Any, shape: tuple[int, ...]) -> U8:
    if not isinstance(made, np.ndarray) or made.dtype != np.uint8 or made.shape != shape:
        got = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
        raise UsageError(
            f"transforms must give uint8 pictures of the size that they get, {shape}, got {got}; leave out what resizes, "
            "normalises or makes tensors: imgsz and the trainer do that"
        )
    return made


def _boxes_only(labels: Labels, moved: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]) -> Labels:
    """Return the labels of the rows that are left, with new boxes; one that rounding left without width or height is none."""
    solid = [(boxes[:, 2:] > boxes[:, :2]).all(axis=1) for _, boxes in moved]
    rows = np.concatenate([rows[ok] for (rows, _), ok in zip(moved, solid, strict=True)])
    return replace(
        labels,
        offsets=np.concatenate([[0], np.cumsum([int(ok.sum()) for ok in solid])]).astype(np.int64),
        cls=labels.cls[rows],
        xyxy_px=np.concatenate([boxes[ok] for (_, boxes), ok in zip(moved, solid, strict=True)]),
        instance=labels.instance[rows],
        kind=labels.kind[rows],
        ring_offsets=np.zeros(len(rows) + 1, np.int64),
        point_offsets=np.zeros(1, np.int64),
        points_px=np.zeros((0, 2), np.float32),
        keypoints_px=labels.keypoints_px[rows],
    )
