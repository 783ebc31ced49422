"""Ultralytics YOLO training and validation on a store, by changing one argument.

    from ultralytics.models.yolo.detect import DetectionTrainer
    model.train(data="coco.yaml", trainer=fastdata.ultralytics.accelerate(DetectionTrainer, "coco.lmdb"))

The user hands over the class; this package never imports it, nor anything of its project (AGPL-3.0). What is returned is a
subclass that differs in where batches come from, and in nothing else: model, loss, optimiser, callbacks, plots, validation and
checkpoints are the trainer's. Every argument that says something about the data is taken from the trainer's own, see
``ultralytics_options``.

The subclass is made within a function and closes over paths and plain values, so cloudpickle sends it to the processes of a
training on several GPUs by value, and every one of them opens the store by itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastdata.augment.recipe import TASKS
from fastdata.errors import UsageError
from fastdata.trainers.ultralytics_options import check_keys, classes_of, fraction_of, policy_of, transforms_of
from fastdata.trainers.ultralytics_stores import Choice, Place, find_places, given_store, is_store, yaml_of_store

Class = TypeVar("Class", bound=type)

REFUSED = {
    "RTDETR": "it stretches pictures to a square, which a store's letterbox does not",
    "World": "it needs text for every picture",
    "YOLOE": "it needs text or visual prompts for every picture",
    "Classification": "it trains on folders of classes",
    "Semantic": "it needs a mask for every picture",
    "Depth": "it needs a depth map for every picture",
}
"""Beginnings of class names that share a base with the detection trainer and cannot be fed from a store, and why."""

REPORT = "fastdata.json"
"""File in the run's folder that says what it is trained on: compared when the run is resumed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a class that is made here remembers: plain values alone."""

    choice: Choice
    policy: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    on_bad: Literal["raise", "replan"] = "raise"


def accelerate(
    trainer: Class,
    store: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    splits: Mapping[str, str] | None = None,
    policy: Mapping[str, Any] | None = None,
    threads: int | None = None,
    on_bad: Literal["raise", "replan"] = "raise",
    cache: str | os.PathLike[str] | None = None,
) -> Class:
    """Return a subclass of an Ultralytics trainer whose batches come from a store.

    Args:
        trainer: ``DetectionTrainer``, ``SegmentationTrainer``, ``PoseTrainer``, ``OBBTrainer``, or a class of the user's made
            from one of them.
        store: Path of a store that has the splits for training and validation; or ``{"train": path, "val": path}``; or ``None``:
            what the ``train:`` and ``val:`` (or ``store:``) of the data.yaml name, and where that is no store, one that is made
            from it once, in a cache folder, and said on the terminal.
        splits: The store's own name of a split for the trainer's, such as ``{"train": "trainval"}``, where they differ.
        policy: Fields of ``fastdata.Policy`` that the trainer has no argument for: ``mosaic9``, ``partners``, ``hue``,
            ``min_side_px``, ``min_area_share``, ``max_aspect``.
        threads: How many make batches; by default as the trainer's ``workers`` says, at most one a core.
        on_bad: What a damaged record does in training: ``raise``, or ``replan`` its samples without it.
        cache: Folder of the stores that are made from ``data=``, instead of the user's cache folder.

    Raises:
        UsageError: The class is none of these, or an argument breaks its rule.
    """
    _check_class(trainer, "Trainer", ("get_dataloader", "build_dataset"))
    settings = _settings(store, splits, policy, threads, on_bad, cache)

    class Accelerated(trainer):  # type: ignore[misc, valid-type]
        """Takes its batches from a fastdata store."""

        def get_dataset(self) -> Any:
            """Read the data.yaml, then find or make the stores, before any process of a distributed training starts."""
            return read_data(self, settings, super().get_dataset)

        def build_dataset(self, img_path: Any, mode: str = "train", batch: int | None = None) -> Any:
            """Return what the trainer looks at of a dataset."""
            from fastdata.trainers.ultralytics_loader import TrainerDataset

            return TrainerDataset(trainer_samples(self, settings, mode, batch or 16))

        def get_dataloader(self, dataset_path: Any, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Any:
            """Return the batches of one use; an earlier loader of the same use is closed."""
            return trainer_loader(self, settings, batch_size, rank, mode)

    return _named(Accelerated, trainer)


def accelerate_validator(
    validator: Class,
    store: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    splits: Mapping[str, str] | None = None,
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Class:
    """Return a subclass of an Ultralytics validator that reads a store: ``model.val(validator=accelerate_validator(...))``.

    Validation during training needs none: it reads the trainer's own store.

    Args:
        validator: ``DetectionValidator``, ``SegmentationValidator``, ``PoseValidator``, ``OBBValidator``, or a class of the
            user's made from one of them.
        store, splits, threads, cache: As for :func:`accelerate`.

    Raises:
        UsageError: The class is none of these, or an argument breaks its rule.
    """
    _check_class(validator, "Validator", ("get_dataloader", "build_dataset"))
    settings = _settings(store, splits, None, threads, "raise", cache)

    class Accelerated(validator):  # type: ignore[misc, valid-type]
        """Takes its batches from a fastdata store."""

        def __init__(
            self, dataloader: Any = None, save_dir: Any = None, args: Any = None, _callbacks: dict[str, Any] | None = None
        ) -> None:
            super().__init__(dataloader, save_dir, args, _callbacks)
            name_data(self.args, settings.choice)

        def build_dataset(self, img_path: Any, mode: str = "val", batch: int | None = None) -> Any:
            """Return what the validator looks at of a dataset."""
            from fastdata.trainers.ultralytics_loader import TrainerDataset

            return TrainerDataset(validator_samples(self, settings, batch or int(self.args.batch)))

        def get_dataloader(self, dataset_path: Any, batch_size: int) -> Any:
            """Return the batches of a validation by itself."""
            from fastdata.trainers.ultralytics_loader import TrainerLoader

            samples = validator_samples(self, settings, batch_size)
            return TrainerLoader(samples, samples.batch_size, lambda: (0, None), threads=_threads(self.args, settings))

    return _named(Accelerated, validator)


# What the classes do


def read_data(trainer: Any, settings: Settings, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the trainer's data dictionary, with its stores found, made where need be, and checked.

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


def trainer_samples(trainer: Any, settings: Settings, mode: str, batch_size: int) -> Any:
    """Return the samples of a trainer's training or validation."""
    if mode not in ("train", "val"):
        raise UsageError(f"mode must be 'train' or 'val', got {mode!r}")
    split = "train" if mode == "train" else trainer.args.split
    rect = bool(trainer.args.rect) or mode == "val"
    stride = max(int(getattr(trainer, "stride", 32)), 32)
    place = trainer.fastdata_places[split]
    return _samples(trainer.args, trainer.data, place, split, settings, mode == "train", rect, batch_size, stride)


def trainer_loader(trainer: Any, settings: Settings, batch_size: int, rank: int, mode: str) -> Any:
    """Return a trainer's loader of one use; close the one that it had before, whose threads and memory nobody else would free."""
    from fastdata.trainers.ultralytics_loader import TrainerLoader

    loaders: dict[str, Any] = trainer.__dict__.setdefault("fastdata_loaders", {})
    if (earlier := loaders.pop(mode, None)) is not None:
        earlier.close()
    samples = trainer_samples(trainer, settings, mode, batch_size)
    rank, world_size = _rank(rank)
    # As the trainer has it, no batch is larger than the set; and every rank has at least one.
    batch_size = max(1, min(batch_size, len(samples) // world_size))
    if samples.batch_size != batch_size:
        samples = trainer_samples(trainer, settings, mode, batch_size)
    n = len(samples) // world_size
    loader = loaders[mode] = TrainerLoader(
        samples,
        batch_size,
        lambda: (int(getattr(trainer, "epoch", trainer.start_epoch)), int(trainer.epochs)),
        rank=rank,
        world_size=world_size,
        drop_last=bool(trainer.args.compile) and mode == "train" and n > batch_size and n % batch_size != 0,
        threads=_threads(trainer.args, settings),
    )
    if mode == "train" and rank == 0:
        _report(trainer, samples)
    return loader


def validator_samples(validator: Any, settings: Settings, batch_size: int) -> Any:
    """Return the samples of a validation by itself."""
    args, data = validator.args, validator.data
    split = args.split or "val"
    check_keys(vars(args), _defaults(type(validator)))
    place = _places(args, data, (split,), settings)[split]
    stride = max(int(validator.stride), 1)
    classes = classes_of(args.classes)
    names = len(validator.names or ())
    if names and names < data["nc"]:
        _warn(f"labels of classes that the model cannot predict are left out: it knows the first {names} of {data['nc']}")
        classes = [c for c in (range(names) if classes is None else classes) if c < names]
    samples = _samples(args, data, place, split, settings, False, bool(args.rect), batch_size, stride, classes)
    if samples.batch_size > len(samples):
        samples = _samples(args, data, place, split, settings, False, bool(args.rect), len(samples), stride, classes)
    return samples


def _samples(
    args: Any,
    data: Mapping[str, Any],
    place: Place,
    split: str,
    settings: Settings,
    augment: bool,
    rect: bool,
    batch_size: int,
    stride: int,
    classes: list[int] | None = None,
) -> Any:
    from fastdata.samples import Samples
    from fastdata.store.read import open_store

    given = vars(args)
    store = open_store(place.path, place.split)
    return Samples(
        store,
        policy=policy_of(given, settings.policy if augment else {}, rect=rect),
        imgsz=int(args.imgsz),
        task=args.task,
        seed=int(args.seed),
        epochs=int(args.epochs),
        augment=augment,
        rect=rect,
        batch_size=batch_size,
        stride=stride,
        fraction=1.0 if data.get("complete") else fraction_of(args.fraction, split),
        classes=classes_of(args.classes) if classes is None else classes,
        single_cls=bool(args.single_cls),
        overlap_mask=bool(args.overlap_mask),
        mask_ratio=int(args.mask_ratio),
        transforms=transforms_of(given.get("augmentations")) if augment else None,
        on_bad=settings.on_bad if augment else "raise",
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


def _threads(args: Any, settings: Settings) -> int | None:
    """Return how many threads make batches: the trainer's ``workers``, at most one a core. It says 0 where the model needs the
    cores itself."""
    from fastdata.host import usable_cores

    if settings.threads is not None:
        return settings.threads
    ranks = max(int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1), 1)
    return max(1, min(int(args.workers), usable_cores() // ranks))


def _rank(rank: int) -> tuple[int, int]:
    """Return rank and world size; the trainer says -1 where there is one process."""
    if rank == -1:
        return 0, 1
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _report(trainer: Any, samples: Any) -> None:
    """Write what is trained on into the run's folder; on a resume, say what is no longer as it was."""
    path = Path(trainer.save_dir) / REPORT
    now = {"store": str(samples.store.path), "split": samples.store.split, "samples": samples.fingerprint()}
    now = json.loads(json.dumps(now))
    if getattr(trainer, "resume", False) and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))["samples"]
        changed = [key for key in sorted(before.keys() | now["samples"].keys()) if before.get(key) != now["samples"].get(key)]
        if changed:
            _warn(f"the resumed run sees other samples than it would have: {', '.join(changed)} changed, see {path}")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


def _is_first() -> bool:
    """Tell whether this process is the one that speaks."""
    return os.environ.get("LOCAL_RANK", "-1") in ("-1", "0")


def _warn(text: str) -> None:
    from fastdata.terminal import warn

    if _is_first():
        warn(text)


# How the classes are made


def _settings(store: Any, splits: Any, policy: Any, threads: Any, on_bad: Any, cache: Any) -> Settings:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise UsageError(f"threads must be a whole number of at least 1, got {threads!r}")
    if on_bad not in ("raise", "replan"):
        raise UsageError(f"on_bad must be 'raise' or 'replan', got {on_bad!r}")
    for name, value in (("splits", splits), ("policy", policy)):
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{name} must be a mapping, got {value!r}")
    folder = None if cache is None else os.path.abspath(cache)
    choice = Choice(given_store(store), None if splits is None else dict(splits), folder)
    return Settings(choice, dict(policy or {}), threads, on_bad)


def _check_class(given: Any, kind: str, methods: tuple[str, ...]) -> None:
    """Refuse a class whose batches a store cannot make.

    Raises:
        UsageError: It is no class of the kind, or its own code makes its batches.
    """
    base = f"Detection{kind}"
    if not isinstance(given, type):
        raise UsageError(f"the {kind.lower()} must be a class such as {base}, got {given!r}")
    names = [c.__name__ for c in given.__mro__]
    for name in names:
        for begin, why in REFUSED.items():
            if name.startswith(begin):
                raise UsageError(f"{given.__name__} must be left as it is, got {name} among its bases: {why}")
    origin = next((c for c in given.__mro__ if c.__name__ == base), None)
    if origin is None:
        raise UsageError(f"the {kind.lower()} must be {base} or a class made from it, got {given.__name__}")
    for method in methods:
        if getattr(given, method, None) is not getattr(origin, method, None):
            owner = next(c.__name__ for c in given.__mro__ if method in vars(c))
            raise UsageError(
                f"{method} must be that of {base}, since batches will come from the store, got one of {owner}; "
                "make the class without it, or do not accelerate it"
            )


def _defaults(cls: type) -> Mapping[str, Any]:
    """Return the configuration that the trainer starts from: the ``DEFAULT_CFG`` of the module of one of its classes."""
    for base in cls.__mro__:
        found = getattr(sys.modules.get(base.__module__), "DEFAULT_CFG", None)
        if found is not None:
            return dict(vars(found))
    return {}


def _named(made: Any, given: Class) -> Class:
    """Give a class the name of the one that it was made from. No module has it under that name, so it is pickled by value."""
    made.__name__ = made.__qualname__ = f"Accelerated{given.__name__}"
    made.__doc__ = f"``{given.__name__}`` that takes its batches from a fastdata store."
    return made  # type: ignore[no-any-return]
