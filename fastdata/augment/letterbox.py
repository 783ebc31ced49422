"""The pictures of a validation: brought to size, centred on gray, nothing left to chance and no label left out.

Sizes, margins and gains are the trainers' own, rounding included, because a validator takes boxes back to the original picture
by them (Ultralytics 8.4.190 ``load_image``, ``LetterBox``, ``set_rectangle``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastdata.augment.assemble import written
from fastdata.augment.canvas import View, on_canvas
from fastdata.augment.draws import plain
from fastdata.augment.layers import plain_layers
from fastdata.augment.layout import place
from fastdata.augment.objects import Objects
from fastdata.augment.policy import PRESETS
from fastdata.augment.recipe import TASKS, Recipe
from fastdata.catalog import Catalog
from fastdata.errors import UsageError

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def letterbox(
    entries: npt.ArrayLike,
    catalog: Catalog,
    *,
    imgsz: int,
    out_hw: tuple[int, int] | None = None,
    task: str = "detect",
    classes: Collection[int] | None = None,
    single_cls: bool = False,
) -> Recipe:
    """Plan pictures as a validator wants them.

    The long side is brought to ``imgsz``, up or down. What then is still larger than the output is shrunk to fit, and nothing is
    enlarged any more. Boxes are the stored ones, scaled and moved: no box is cut, no keep rule is applied.

    Args:
        entries: (B,) entry numbers.
        catalog: Sizes and labels.
        imgsz: Long side of a picture.
        out_hw: Size of the output; a square of ``imgsz`` when ``None``.
        task: ``detect``, ``segment``, ``pose`` or ``obb``.
        classes: Keep objects of these classes only; they are not renumbered.
        single_cls: Call every object class 0.

    Returns:
        A recipe whose ``gain_hw`` and ``pad_xy`` lead from the original picture to the output.

    Raises:
        UsageError: An argument breaks its rule.
    """
    if task not in TASKS:
        raise UsageError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    if imgsz < 1:
        raise UsageError(f"imgsz must be at least 1, got {imgsz}")
    out_hw = out_hw or (imgsz, imgsz)
    draws = plain(entries)
    tiles = place(draws, catalog, imgsz)
    tile_hw = tiles.size_hw.astype(np.float64)
    ratio = np.minimum((np.array(out_hw) / tile_hw).min(axis=1), 1.0)[:, None]
    small_hw = np.maximum(np.rint(tile_hw * ratio), 1.0)  # rint and round() both go to the even neighbour at a half
    pad_xy = np.rint((np.array(out_hw) - small_hw) / 2 - 0.1)[:, ::-1]

    # The pixels are resized to whole numbers of pixels; the trainers move labels by the ratio before rounding. The two differ
    # by half a pixel at most, and only where the second resize is needed at all.
    matrix = np.zeros((len(draws), 3, 3))
    matrix[:, [1, 0], [1, 0]] = small_hw / tile_hw
    matrix[:, 2, 2] = 1.0
    matrix[:, :2, 2] = pad_xy
    view = View(matrix, out_hw, np.zeros(len(draws), np.bool_))
    objects = _moved(on_canvas(catalog, tiles, view, task, classes), ratio, pad_xy, out_hw, task)
    slot = np.arange(len(draws))
    layers = plain_layers(matrix, slot, out_hw)
    recipe = written(draws, catalog, PRESETS["none"], tiles, layers, objects, slot, out_hw, task, single_cls)
    return replace(recipe, gain_hw=recipe.gain_hw * ratio, pad_xy=pad_xy + 0.0)


def _moved(objects: Objects, ratio: F64, pad_xy: F64, out_hw: tuple[int, int], task: str) -> Objects:
    """Scale and move objects; what rounding puts over the frame is put back, but for oriented boxes, which may lie over it."""
    wh = np.array(out_hw[::-1], np.float64)
    gain, shift = ratio[objects.scene], pad_xy[objects.scene]
    of = objects.point_owner
    points = objects.points * gain[of] + shift[of]
    keypoints = objects.keypoints.copy()
    xy = np.clip(keypoints[:, :, :2] * gain[:, None] + shift[:, None], 0.0, wh)
    keypoints[:, :, :2] = np.where(keypoints[:, :, 2:] > 0, xy, 0.0)
    return replace(
        objects,
        xyxy=np.clip(objects.xyxy * gain + shift[:, [0, 1, 0, 1]], 0.0, np.tile(wh, 2)),
        points=points if task == "obb" else np.clip(points, 0.0, wh),
        keypoints=keypoints,
    )


def rect_shapes(original_hw: npt.ArrayLike, batch_size: int, imgsz: int, stride: int = 32, pad: float = 0.5) -> tuple[I64, I64]:
    """Put pictures of like shape into one batch, each batch as small as its pictures allow.

    Args:
        original_hw: (n, 2) published sizes.
        batch_size: Pictures in a batch; the last one may have fewer.
        imgsz: Long side of a picture.
        stride: Sides are multiples of it.
        pad: Margin, in strides, that is added before rounding up.

    Returns:
        The (n,) order, by height over width, and the (batches, 2) size of each batch. Pictures of one shape stay in their order;
        in the trainers it is up to the sorting.

    Raises:
        UsageError: A number breaks its rule.
    """
    if batch_size < 1 or imgsz < 1 or stride < 1:
        raise UsageError(f"batch_size, imgsz and stride must be at least 1, got {batch_size}, {imgsz} and {stride}")
    hw = np.asarray(original_hw, np.float64).reshape(-1, 2)
    aspect = hw[:, 0] / hw[:, 1]
    order = np.argsort(aspect, kind="stable")
    if not len(order):
        return order, np.zeros((0, 2), np.int64)
    first = np.arange(0, len(order), batch_size)
    low, high = aspect[order[first]], aspect[order[np.minimum(first + batch_size, len(order)) - 1]]
    shape = np.ones((len(first), 2))
    shape[high < 1, 0] = high[high < 1]
    shape[low > 1, 1] = 1 / low[low > 1]
    return order, np.ceil(shape * imgsz / stride + pad).astype(np.int64) * stride
