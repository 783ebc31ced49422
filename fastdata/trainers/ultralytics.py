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

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from fastdata.errors import UsageError
from fastdata.trainers import ultralytics_use as use
from fastdata.trainers.ultralytics_device import Making
from fastdata.trainers.ultralytics_options import check_extra
from fastdata.trainers.ultralytics_stores import Choice, given_store
from fastdata.trainers.ultralytics_use import Settings

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


def accelerate(
    trainer: Class,
    store: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    splits: Mapping[str, str] | None = None,
    policy: Mapping[str, Any] | None = None,
    threads: int | None = None,
    on_bad: Literal["raise", "replan"] = "raise",
    cache: str | os.PathLike[str] | None = None,
    device: Literal["auto", "cpu"] = "auto",
    residency: Literal["auto", "device", "pinned", "stream", "decode"] = "auto",
    reserve_gb: float | None = None,
) -> Class:
    """Return a subclass of an Ultralytics trainer whose batches come from a store.

    On a GPU batches are made there, beside the training, in the trainer's form: its ``preprocess_batch`` finds all of it where it
    wants it. If memory runs out in the first epoch or in a validation while pictures lie in GPU memory, these go, and it is tried
    again with the batch as it was; after that, and with several GPUs, the trainer does what it always does.

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
        device: ``auto``: batches are made on the trainer's own GPU, if it has one; ``cpu``: by the processor.
        residency: Where the GPU finds the pictures, see ``fastdata.residency``. ``auto`` streams them in the first epoch (the GPU
            decodes JPEGs), and moves them into GPU memory, or into page-locked memory, once it is known what an epoch and a
            validation take. Another one is for both uses; with ``auto`` the pictures of the validation are streamed.
        reserve_gb: GPU memory that pictures leave free beside the peak of the training, GB: for a later batch with more objects.
            A training that needs more than that in a later epoch ends, as it would by itself. ``None``: a tenth of the GPU's, at
            least 1 GiB.

    Raises:
        UsageError: The class is none of these, or an argument breaks its rule.
    """
    _check_class(trainer, "Trainer", ("get_dataloader", "build_dataset"))
    settings = _settings(store, splits, policy, threads, on_bad, cache, Making(device, residency, reserve_gb))

    class Accelerated(trainer):  # type: ignore[misc, valid-type]
        """Takes its batches from a fastdata store."""

        def get_dataset(self) -> Any:
            """Read the data.yaml, then find or make the stores, before any process of a distributed training starts."""
            return use.read_data(self, settings, super().get_dataset)

        def build_dataset(self, img_path: Any, mode: str = "train", batch: int | None = None) -> Any:
            """Return what the trainer looks at of a dataset."""
            return use.trainer_dataset(self, settings, mode, batch or 16)

        def get_dataloader(self, dataset_path: Any, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Any:
            """Return the batches of one use; an earlier loader of the same use is closed."""
            return use.trainer_loader(self, settings, batch_size, rank, mode)

        def auto_batch(self) -> Any:
            """Find the batch that fits into GPU memory, with nothing of ours in it."""
            use.close_loaders(self)
            return super().auto_batch()

        def _build_train_pipeline(self) -> None:
            """Build the loaders; the batch that was halved, as it was if pictures can make room for it."""
            use.build_loaders(self, super()._build_train_pipeline)

        def preprocess_batch(self, batch: Any) -> Any:
            """Bring a batch into the model's form."""
            return super().preprocess_batch(use.checked(batch))

        def validate(self) -> Any:
            """Validate; again, if pictures can make room for it."""
            return use.validated(self, super().validate)

    return _named(Accelerated, trainer)


def accelerate_validator(
    validator: Class,
    store: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    splits: Mapping[str, str] | None = None,
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    device: Literal["auto", "cpu"] = "auto",
    residency: Literal["auto", "device", "pinned", "stream", "decode"] = "auto",
    reserve_gb: float | None = None,
) -> Class:
    """Return a subclass of an Ultralytics validator that reads a store: ``model.val(validator=accelerate_validator(...))``.

    Validation during training needs none: it reads the trainer's own store.

    Args:
        validator: ``DetectionValidator``, ``SegmentationValidator``, ``PoseValidator``, ``OBBValidator``, or a class of the
            user's made from one of them.
        store, splits, threads, cache, device, reserve_gb: As for :func:`accelerate`.
        residency: As there; ``auto`` streams.

    Raises:
        UsageError: The class is none of these, or an argument breaks its rule.
    """
    _check_class(validator, "Validator", ("get_dataloader", "build_dataset"))
    settings = _settings(store, splits, None, threads, "raise", cache, Making(device, residency, reserve_gb))

    class Accelerated(validator):  # type: ignore[misc, valid-type]
        """Takes its batches from a fastdata store."""

        def __init__(
            self, dataloader: Any = None, save_dir: Any = None, args: Any = None, _callbacks: dict[str, Any] | None = None
        ) -> None:
            super().__init__(dataloader, save_dir, args, _callbacks)
            use.name_data(self.args, settings.choice)

        def build_dataset(self, img_path: Any, mode: str = "val", batch: int | None = None) -> Any:
            """Return what the validator looks at of a dataset."""
            return use.validator_dataset(self, settings, batch or int(self.args.batch))

        def get_dataloader(self, dataset_path: Any, batch_size: int) -> Any:
            """Return the batches of a validation by itself."""
            return use.validator_loader(self, settings, batch_size)

    return _named(Accelerated, validator)


# How the classes are made


def _settings(store: Any, splits: Any, policy: Any, threads: Any, on_bad: Any, cache: Any, making: Making) -> Settings:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise UsageError(f"threads must be a whole number of at least 1, got {threads!r}")
    if on_bad not in ("raise", "replan"):
        raise UsageError(f"on_bad must be 'raise' or 'replan', got {on_bad!r}")
    for name, value in (("splits", splits), ("policy", policy)):
        if value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{name} must be a mapping, got {value!r}")
    check_extra(policy or {})
    folder = None if cache is None else os.path.abspath(cache)
    choice = Choice(given_store(store), None if splits is None else dict(splits), folder)
    return Settings(choice, dict(policy or {}), threads, on_bad, making)


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


def _named(made: Any, given: Class) -> Class:
    """Give a class the name of the one that it was made from. No module has it under that name, so it is pickled by value."""
    made.__name__ = made.__qualname__ = f"Accelerated{given.__name__}"
    made.__doc__ = f"``{given.__name__}`` that takes its batches from a fastdata store."
    return made  # type: ignore[no-any-return]
