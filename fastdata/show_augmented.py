"""Contact sheets of samples: what a training sees, with the labels that it is told.

Everything comes from :class:`fastdata.samples.Samples` and the order of :class:`fastdata.loader.Loader`, as in a training, so a
sheet of epoch 37, batch 112 is that batch, pixel by pixel.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastdata.augment.oriented import xywhr_to_corners
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Labels, Recipe
from fastdata.draw import printable
from fastdata.errors import UsageError
from fastdata.labels import Instances
from fastdata.loader import Loader
from fastdata.paint import U8
from fastdata.samples import Samples
from fastdata.show import Picture, save_sheet, sheet, sheet_path, spread
from fastdata.store.read import Store, open_store

I64 = npt.NDArray[np.int64]


def samples_sheet(
    samples: Samples,
    ids: Sequence[int] | I64 | None = None,
    epoch: int = 0,
    *,
    said: str = "",
    columns: int | None = None,
    tile_px: int = 320,
    max_images: int = 24,
) -> U8:
    """Draw samples with their planned labels.

    Args:
        samples: What is trained on, and how.
        ids: Of the samples, drawn in this order; an even spread of at most ``max_images`` by default.
        epoch: From 0.
        said: What the title says of the ids.
        columns: Pictures in a row; as many as make the sheet about 4:3 by default.
        tile_px: Longer side of every picture on the sheet.
        max_images: How many, when ``ids`` says nothing.

    Returns:
        (H, W, 3) RGB.

    Raises:
        UsageError: An id is not one of the samples, or a number breaks its rule.
        StoreError: A record is damaged.
    """
    if max_images < 1:
        raise UsageError(f"images must be at least 1, got {max_images}")
    chosen = np.asarray(spread(len(samples), max_images) if ids is None else ids, np.int64)
    wrong = chosen[(chosen < 0) | (chosen >= len(samples))].tolist()
    if wrong:
        raise UsageError(f"ids must be 0..{len(samples) - 1} ({len(samples)} images), got {', '.join(map(str, wrong[:10]))}")
    if not len(chosen):
        raise UsageError("ids must name at least one image, got none")
    recipe, images = samples.draw(chosen, epoch)
    catalog = samples.store.catalog
    pictures = []
    for slot, number in enumerate(chosen.tolist()):
        objects = instances_of(recipe.labels, slot)
        count = f"{len(objects)} object{'s' if len(objects) != 1 else ''}"
        caption = (f"{number}  {printable(catalog.key(int(recipe.entry[slot])))}", f"{made_of(recipe, slot)}   {count}")
        pictures.append(Picture(np.ascontiguousarray(images[slot].transpose(1, 2, 0)), objects, caption))
    title = f"{printable(Path(samples.store.path).name)}   {samples.task}   seed {samples.seed}   epoch {epoch}{said}"
    keypoints = catalog.keypoints if samples.task == "pose" else None
    names = ["object"] if samples.single_cls else samples.store.names
    return sheet(pictures, names, keypoints, title=title, columns=columns, tile_px=tile_px)


def instances_of(labels: Labels, slot: int) -> Instances:
    """Return the labels of a slot in the form that is drawn; an oriented box as the corners of the rectangle that is learned."""
    first, last = labels.offsets[slot : slot + 2].tolist()
    n = last - first
    if len(labels.xywhr_px):
        points = xywhr_to_corners(labels.xywhr_px[first:last].astype(np.float64)).reshape(-1, 2).astype(np.float32)
        part_offsets, point_offsets = np.arange(n + 1), 4 * np.arange(n + 1)
    else:
        part_offsets = labels.ring_offsets[first : last + 1]
        point_offsets = labels.point_offsets[part_offsets[0] : part_offsets[-1] + 1]
        points = labels.points_px[point_offsets[0] : point_offsets[-1]]
        part_offsets, point_offsets = part_offsets - part_offsets[0], point_offsets - point_offsets[0]
    return Instances(
        cls=labels.cls[first:last],
        xyxy_px=labels.xyxy_px[first:last],
        kind=labels.kind[first:last],
        flags=np.zeros(n, np.uint8),
        original_id=labels.instance[first:last],
        area_px=np.full(n, np.nan, np.float32),
        part_offsets=part_offsets,
        point_offsets=point_offsets,
        points_px=points,
        keypoints_px=labels.keypoints_px[first:last],
    )


def made_of(recipe: Recipe, slot: int) -> str:
    """Say what a slot is made of: how many tiles its picture is one of, and what else is in it."""
    groups = slice(*recipe.group_offsets[slot : slot + 2].tolist())
    first_tiles = recipe.tile_offsets[:-1][groups]
    own = int(np.argmax(recipe.tile_entry[first_tiles] == recipe.entry[slot]))  # MixUp may paint the other picture first
    tiles = int(np.diff(recipe.tile_offsets)[groups][own])
    is_masked = recipe.is_masked[groups]
    said = {
        f"{tiles} tile{'s' if tiles != 1 else ''}": True,
        "MixUp": (recipe.weight[groups] < 1).any(),
        "CutMix": (recipe.clip_xyxy[groups] != [0, 0, *recipe.out_hw[::-1]]).any(),
        "Copy-Paste": (np.diff(recipe.shape_offsets)[groups][is_masked] > 0).any(),
        "BGR": recipe.bgr[slot],
    }
    return ", ".join(word for word, is_so in said.items() if is_so)


def write_samples_sheet(
    samples: Samples,
    out: str | os.PathLike[str],
    ids: Sequence[int] | None = None,
    epoch: int = 0,
    *,
    batch: int | None = None,
    batch_size: int = 16,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool | None = None,
    tile_px: int = 320,
    max_images: int = 24,
) -> None:
    """Draw :func:`samples_sheet` into a file, PNG or JPEG by its ending; a file that is there is replaced at once.

    Args:
        samples: What is trained on, and how.
        out: The file.
        ids: As there.
        epoch: From 0.
        batch: Number, from 0, of a batch of the epoch: its samples, in its order, instead of ``ids``.
        batch_size: Pictures a batch, for each rank.
        rank: Whose batch.
        world_size: How many processes shared the epoch.
        shuffle: As for :class:`fastdata.loader.Loader`.
        tile_px: Longer side of every picture on the sheet.
        max_images: How many, when neither ``ids`` nor ``batch`` says.

    Raises:
        UsageError: A number breaks its rule, the epoch has no such batch, or the ending is another one.
        StoreError: A record is damaged.
        OSError: The file cannot be written.
    """
    target = sheet_path(out)
    if epoch < 0:
        raise UsageError(f"epoch must be at least 0, got {epoch}")
    chosen: Sequence[int] | I64 | None = ids
    said = ""
    if batch is not None:
        if ids is not None:
            raise UsageError("ids must not be given with a batch, which has its own")
        loader = Loader(samples, batch_size, rank=rank, world_size=world_size, shuffle=shuffle, threads=1)
        chosen = loader.ids(epoch, batch)
        said = f"   batch {batch} of {len(loader)}" + (f"   rank {rank} of {world_size}" if world_size > 1 else "")
    save_sheet(samples_sheet(samples, chosen, epoch, said=said, tile_px=tile_px, max_images=max_images), target)


def samples_of_run(store: str | os.PathLike[str], run: str | os.PathLike[str]) -> tuple[Samples, bool]:
    """Return the samples of a training, and whether it shuffled them.

    Args:
        store: Path of the store that was trained on.
        run: A file with the JSON of ``Loader.state_dict()``, or the folder of a run of an accelerated Ultralytics trainer, or its
            ``fastdata.json``.

    Raises:
        UsageError: It is neither, or its samples cannot be made from what it says: another store, another version of the plan,
            transforms of the user's own.
        OSError: It cannot be read.
    """
    path = Path(run)
    path = path / "fastdata.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as err:
        raise UsageError(f"{path}: a run must be JSON, got: {err}") from None
    told = content.get("samples", content.get("fingerprint")) if isinstance(content, Mapping) else None
    if not isinstance(told, Mapping) or not _KEYS <= told.keys():
        raise UsageError(f"{path}: a run must be what Loader.state_dict() returned, or the fastdata.json of an Ultralytics run")
    if told["transforms"] is not None:
        raise UsageError(
            f"{path}: a run must be without transforms to be drawn from its file, got {told['transforms']!r}; in Python give "
            "Samples the same transforms, and call fastdata.show_augmented.write_samples_sheet"
        )
    opened = open_store(store, told["split"])
    rect = told["batch_shapes"]
    batch_size, stride, pad = rect or (16, 1, None)
    count, chosen = told["entries"]
    samples = Samples(
        opened,
        policy=Policy.from_dict(told["policy"] or {}),
        rect=rect is not None,
        batch_size=batch_size,
        stride=stride,
        pad=pad,
        fraction=1.0 if chosen == "all" else count / len(opened),
        **{name: told[name] for name in ("imgsz", "task", "seed", "epochs", "augment", "classes", "single_cls")},
    )
    here = json.loads(json.dumps(samples.fingerprint()))
    differing = [f"{key} must be {told.get(key)!r}, got {here[key]!r}" for key in sorted(here) if here[key] != told.get(key)]
    if differing:
        raise UsageError(f"{path}: the samples must be those of the run: {'; '.join(differing)}")
    samples.bad.update(content.get("bad", ()))
    shuffle = told.get("loader", {}).get("shuffle", samples.augment and not samples.shapes_differ)
    return samples, bool(shuffle)


_KEYS = {
    "store", "split", "entries", "plan_version", "policy", "classes", "batch_shapes", "transforms", "task", "imgsz", "seed",
    "epochs", "augment", "single_cls",
}  # fmt: skip
"""What a run must say of its samples."""


def training_split(store: str | os.PathLike[str], split: str | None) -> Store:
    """Open the split that a training would take: the one that is named, else ``train`` of a store that has several.

    Raises:
        UsageError: There are several, none of them ``train``.
    """
    opened = open_store(store, split)
    splits = opened.manifest.splits
    if split is not None or len(splits) < 2:
        return opened
    if "train" not in splits:
        raise UsageError(f"split must be one of {', '.join(map(repr, splits))}, got none")
    return open_store(store, "train")
