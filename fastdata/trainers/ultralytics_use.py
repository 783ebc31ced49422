"""What the accelerated classes of ``ultralytics`` do: from a trainer's arguments and a store to its datasets and loaders.

A *use* of a store is training or validation. Everything here is reached by the trainer's instance alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastdata.augment.recipe import TASKS
from fastdata.errors import UsageError
from fastdata.host import usable_cores
from fastdata.store.read import open_store
from fastdata.terminal import say, warn
from fastdata.trainers.ultralytics_device import (
    OUT_OF_MEMORY,
    Making,
    has_yielded,
    loader_options,
    spare_batch,
    validate_again,
)
from fastdata.trainers.ultralytics_loader import TrainerDataset, TrainerLoader
from fastdata.trainers.ultralytics_options import check_keys, classes_of, fraction_of, policy_of, transforms_of
from fastdata.trainers.ultralytics_stores import Choice, Place, find_places, is_store, yaml_of_store

STRIDE = 32
"""The least that the trainer takes for the stride of a model."""

REPORT = "fastdata.json"
"""File in the run's folder that says what it is trained on: compared when the run is resumed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an accelerated class remembers: plain values alone, for it travels to other processes."""

    choice: Choice
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``Policy`` that the trainer has no argument for."""
    threads: int | None = None
    on_bad: Literal["raise", "replan"] = "raise"
    making: Making = field(default_factory=Making)


def read_data(trainer: Any, settings: Settings, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the trainer's data dictionary, with its stores found, made where need be, and checked.

    Args:
        trainer: Being made; it has its arguments and no model yet.
        settings: Of its class.
        read: The trainer's own way to read ``data=``.

    Raises:
        UsageError: An argument cannot be honoured, or a store does not fit.
    """
    args = trainer.args
    check_keys(vars(args), _defaults(type(trainer)))
    policy_of(vars(args), settings.policy)  # what is out of range shows before anything is converted
    name_data(args, settings.choice)
    data = read()
    trainer.fastdata_places = _places(args, data, ("train", args.split), settings)
    return data


def name_data(args: Any, choice: Choice) -> None:
    """Put the data.yaml of a store in the place of a store that was given as ``data=``, which the trainer could not read."""
    data = args.data
    if isinstance(data, (str, os.PathLike)) and Path(data).suffix not in (".yaml", ".yml") and is_store(data):
        args.data = str(yaml_of_store(data, choice))


def trainer_dataset(trainer: Any, settings: Settings, mode: str, batch_size: int, world_size: int = 1) -> TrainerDataset:
    """Return what a trainer trains (``mode`` is ``train``) or validates (``val``) on.

    No batch is larger than the set, as the trainer has it, nor so large that a rank would have none.
    """
    if mode not in ("train", "val"):
        raise UsageError(f"mode must be 'train' or 'val', got {mode!r}")
    args, training = trainer.args, mode == "train"
    split = "train" if training else args.split
    rect = bool(args.rect) or not training
    stride = max(int(getattr(trainer, "stride", STRIDE)), STRIDE)
    use = _Use(args, trainer.data, trainer.fastdata_places[split], split, settings, training, rect, stride)
    return use.dataset(batch_size, world_size, classes_of(args.classes))


def trainer_loader(trainer: Any, settings: Settings, batch_size: int, rank: int, mode: str) -> TrainerLoader:
    """Return a trainer's loader of one use; close the one that it had before, whose threads and memory nobody else would free."""
    loaders: dict[str, TrainerLoader] = trainer.__dict__.setdefault("fastdata_loaders", {})
    if (earlier := loaders.pop(mode, None)) is not None:
        earlier.close()
    rank, world_size = _rank(rank)
    dataset = trainer_dataset(trainer, settings, mode, batch_size, world_size)
    share = len(dataset) // world_size
    training = mode == "train"
    loader = loaders[mode] = TrainerLoader(
        dataset,
        lambda: (int(getattr(trainer, "epoch", trainer.start_epoch)), int(trainer.epochs)),
        rank=rank,
        world_size=world_size,
        drop_last=bool(trainer.args.compile) and training and share > dataset.batch_size,
        threads=_threads(trainer.args, settings),
        on_gpu=loader_options(settings.making, trainer.device, training=training, has_yielded=has_yielded(trainer)),
    )
    if rank == 0:
        _say(f"fastdata: {_what(mode)} {len(dataset):,} images of {dataset.samples.store.path}")
    if training and rank == 0:
        _say_what_is_left_out(trainer.args)
        _report(trainer, loader)
    return loader


def build_loaders(trainer: Any, build: Callable[[], None]) -> None:
    """Let a trainer build its loaders, also anew after it ran out of memory, see :func:`spare_batch`.

    Args:
        trainer: With its model.
        build: The trainer's own way to do so.
    """
    spare_batch(trainer, _say)
    build()


def close_loaders(trainer: Any) -> None:
    """Close the loaders that a trainer has, so that it measures GPU memory without any of theirs."""
    for loader in trainer.__dict__.get("fastdata_loaders", {}).values():
        loader.close()


def checked(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch.

    Raises:
        RuntimeError: There was no GPU memory for it: the error of torch, here where the trainer looks for it.
    """
    if OUT_OF_MEMORY in batch:
        raise batch[OUT_OF_MEMORY]
    return batch


def validated(trainer: Any, validate: Callable[[], Any]) -> Any:
    """Let a trainer validate, see :func:`validate_again`."""
    return validate_again(trainer, validate, _say)


def _what(mode: str) -> str:
    return "training on" if mode == "train" else "validating on"


def _say_what_is_left_out(args: Any) -> None:
    """Say that the trainer's own steps at 1 % are not run, where it would run them: if their library is installed."""
    if not vars(args).get("augmentations") and importlib.util.find_spec("albumentations") is not None:
        _say(
            "fastdata: the trainer's blur, median blur, gray and CLAHE, at 1 % each, are not run; to have them, or others, pass "
            "augmentations=[...]"
        )


def validator_dataset(validator: Any, settings: Settings, batch_size: int) -> TrainerDataset:
    """Return what a validator validates on by itself."""
    args, data = validator.args, validator.data
    split = args.split or "val"
    check_keys(vars(args), _defaults(type(validator)))
    place = _places(args, data, (split,), settings)[split]
    use = _Use(args, data, place, split, settings, False, bool(args.rect), max(int(validator.stride), 1))
    dataset = use.dataset(batch_size, 1, classes_of(args.classes))
    known = len(validator.names or ())
    if known and known < data["nc"]:
        _warn(f"labels of classes that the model cannot predict are left out: it knows {known} of {data['nc']}")
        dataset.update_labels(range(known))
    return dataset


def validator_loader(validator: Any, settings: Settings, batch_size: int) -> TrainerLoader:
    """Return a validator's own loader."""
    dataset = validator_dataset(validator, settings, batch_size)
    options = loader_options(settings.making, validator.device, training=False)
    return TrainerLoader(dataset, lambda: (0, None), threads=_threads(validator.args, settings), on_gpu=options)


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a store, but for what may yet change: the batch size."""

    args: Any
    data: Mapping[str, Any]
    place: Place
    split: str
    settings: Settings
    training: bool
    rect: bool
    stride: int

    def dataset(self, batch_size: int, world_size: int, classes: list[int] | None) -> TrainerDataset:
        """Return its dataset, with batches of this size, or of the largest that is possible."""
        dataset = self._dataset(batch_size, classes)
        most = max(1, len(dataset) // world_size)
        return dataset if batch_size <= most else self._dataset(most, classes)

    def _dataset(self, batch_size: int, classes: list[int] | None) -> TrainerDataset:
        args, settings, training = self.args, self.settings, self.training
        given = vars(args)
        return TrainerDataset(
            open_store(self.place.path, self.place.split),
            policy=policy_of(given, settings.policy, rect=self.rect),
            imgsz=int(args.imgsz),
            task=args.task,
            seed=int(args.seed),
            epochs=int(args.epochs),
            augment=training,
            rect=self.rect,
            batch_size=batch_size,
            stride=self.stride,
            fraction=1.0 if self.data.get("complete") else fraction_of(args.fraction, self.split),
            classes=classes,
            single_cls=bool(args.single_cls),
            overlap_mask=bool(args.overlap_mask),
            mask_ratio=int(args.mask_ratio),
            transforms=transforms_of(given.get("augmentations")) if training else None,
            on_bad=settings.on_bad if training else "raise",
        )


def _places(args: Any, data: Mapping[str, Any], splits: tuple[str, ...], settings: Settings) -> dict[str, Place]:
    if args.task not in TASKS:
        raise UsageError(f"task must be one of {', '.join(TASKS)}, got {args.task!r}")
    imgsz = max(args.imgsz) if isinstance(args.imgsz, (list, tuple)) else args.imgsz
    return find_places(
        data,
        tuple(dict.fromkeys(splits)),
        settings.choice,
        task=args.task,
        imgsz=int(imgsz),
        single_cls=bool(args.single_cls),
        quiet=not _is_first(),
    )


def _threads(args: Any, settings: Settings) -> int:
    """Return how many threads make batches: the trainer's ``workers``, at most one a core. On a CPU it sets that to 0, since the
    model needs the cores itself: then one. On a GPU as many: few have much to do, but those that decode JPEGs do."""
    if settings.threads is not None:
        return settings.threads
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, min(int(args.workers), usable_cores() // max(1, int(ranks) if ranks.isdecimal() else 1)))


def _rank(rank: int) -> tuple[int, int]:
    """Return rank and world size; the trainer says -1 where there is one process."""
    from torch import distributed

    if rank == -1 or not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _report(trainer: Any, loader: TrainerLoader) -> None:
    """Write what is trained on into the run's folder, and where its pictures are at first; on a resume, say which samples are no
    longer as they were."""
    samples, path = loader.dataset.samples, Path(trainer.save_dir) / REPORT
    now = {
        "store": str(samples.store.path),
        "split": samples.store.split,
        "residency": loader.residency,
        "samples": samples.fingerprint(),
    }
    now = json.loads(json.dumps(now))
    before = _report_before(path) if trainer.resume else None
    if before is not None:
        changed = {key for key in before.keys() | now["samples"].keys() if before.get(key) != now["samples"].get(key)}
        if trainer.args.time:
            changed.discard("epochs")  # a guess that the trainer betters as it goes
        if changed:
            listed = ", ".join(sorted(changed))
            _warn(f"the resumed run sees other samples than it would have: {listed} changed since {path} was written")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)  # whole or not at all: a run that is killed here can be resumed


def _report_before(path: Path) -> dict[str, Any] | None:
    """Return what an earlier run wrote about its samples; ``None`` without one, or where it cannot be read."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["samples"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def _defaults(cls: type) -> Mapping[str, Any]:
    """Return the configuration that the trainer starts from: ``DEFAULT_CFG`` in the module of one of its classes."""
    for base in cls.__mro__:
        found = getattr(sys.modules.get(base.__module__), "DEFAULT_CFG", None)
        if found is not None:
            return dict(vars(found))
    return {}


def _is_first() -> bool:
    """Tell whether this process is the one that speaks."""
    return os.environ.get("LOCAL_RANK", "-1") in ("-1", "0")


def _say(text: str) -> None:
    if _is_first():
        say(text)


def _warn(text: str) -> None:
    if _is_first():
        warn(text)
