"""Every key of Ultralytics' configuration, and what becomes of it: none is passed over in silence.

Read from ``ultralytics/cfg/default.yaml`` of 8.4.190 and from the code that uses the keys. A key that this table does not know is
refused as soon as it is set to anything but the trainer's default (:func:`check_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from fastdata.augment.policy import Policy
from fastdata.errors import MissingExtra, UsageError

Use = Literal["policy", "samples", "loader", "store", "trainer", "idle"]
"""Who takes a key. ``policy``: the field of that name of ``Policy``. ``samples``: which pictures and labels, and their form.
``loader``: batches, epochs, threads. ``store``: which store and split. ``trainer``: the trainer itself, the batches are the same.
``idle``: it has nothing to do here, for the reason given."""

KNOWN_VERSION = "8.4.190"

POLICY_KEYS = (
    "hsv_h", "hsv_s", "hsv_v", "degrees", "translate", "scale", "shear", "perspective", "flipud", "fliplr", "bgr", "mosaic",
    "mixup", "cutmix", "copy_paste", "copy_paste_mode", "close_mosaic",
)  # fmt: skip
"""Keys that are fields of ``Policy`` under the same name and with the same meaning."""

TRAINER_KEYS = (
    # training
    "mode", "model", "patience", "save", "save_period", "device", "project", "name", "exist_ok", "pretrained", "cls_remap",
    "optimizer", "verbose", "cos_lr", "amp", "profile", "freeze", "channels_last", "dropout", "lr0", "lrf", "momentum",
    "weight_decay", "warmup_epochs", "warmup_momentum", "warmup_bias_lr", "distill_model", "dis", "box", "cls", "cls_pw", "dfl",
    "pose", "kobj", "rle", "angle", "dlog", "dgrad", "dlam", "nbs", "cfg", "save_dir",
    # validation
    "val", "save_json", "conf", "iou", "max_det", "dnn", "plots", "nms", "agnostic_nms", "visualize", "augment",
    # prediction, drawing, tracking and export, which read no data set
    "source", "vid_stride", "stream_buffer", "retina_masks", "embed", "show", "save_frames", "save_txt", "save_conf",
    "save_crop", "show_labels", "show_conf", "show_boxes", "line_width", "format", "optimize", "dynamic", "simplify", "opset",
    "workspace", "tracker",
)  # fmt: skip
"""Keys that the trainer or validator uses by itself: a batch is the same whatever they are."""

NOTES: Mapping[str, tuple[Use, str]] = MappingProxyType(
    {
        "task": ("store", "the store must have the labels for it"),
        "data": ("store", "its train and val are stores, or it is converted once"),
        "split": ("store", "the split that is validated on"),
        "imgsz": ("samples", "side of the training pictures, long side of the validation ones"),
        "fraction": ("samples", "share or number of the pictures in the order of the store"),
        "classes": ("samples", "other labels are left out, their pictures become background"),
        "single_cls": ("samples", "every class becomes 0"),
        "rect": ("samples", "batches of one shape, without mosaic, MixUp and CutMix"),
        "overlap_mask": ("samples", "form of the instance masks"),
        "mask_ratio": ("samples", "size of the instance masks"),
        "seed": ("samples", "of all that is drawn; the same on all ranks"),
        "augmentations": ("samples", "run on the finished picture; without any, none (the trainer has a few at 1 %)"),
        "batch": ("loader", "at most the number of pictures, as the trainer has it"),
        "epochs": ("loader", "close_mosaic counts from it"),
        "time": ("loader", "changes epochs as training goes; read anew at the begin of each epoch"),
        "workers": ("loader", "threads at most; no process is started"),
        "compile": ("loader", "drops the last batch of a training epoch if it is smaller"),
        "resume": ("loader", "the epoch is read from the trainer, so a resumed one has the batches it would have had"),
        "multi_scale": ("trainer", "resizes a finished batch on the device, in preprocess_batch"),
        "quantize": ("trainer", "8 calibrates on a training loader like any other"),
        "cache": ("idle", "a store is read in place: there is nothing to cache"),
        "deterministic": ("idle", "always: a sample is a function of seed, epoch and picture"),
        "auto_augment": ("idle", "of classification, which has no store"),
        "erasing": ("idle", "of classification, which has no store"),
    }
)  # fmt: skip
"""Keys with a word on each."""

KEYS: Mapping[str, tuple[Use, str]] = MappingProxyType(
    dict.fromkeys(POLICY_KEYS, ("policy", "same name, same meaning"))
    | dict.fromkeys(TRAINER_KEYS, ("trainer", "not about data"))
    | dict(NOTES)
)
"""Every key: who takes it, and a word on it."""

EXTRA_POLICY = ("hue", "mosaic9", "partners", "min_side_px", "min_area_share", "max_aspect")
"""Fields of ``Policy`` that the trainer has no key for."""


def check_keys(args: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse a key that this version does not know and that has been set.

    Args:
        args: The trainer's arguments.
        defaults: The trainer's own defaults.

    Raises:
        UsageError: There is one.
    """
    for key, value in args.items():
        if key not in KEYS and value != defaults.get(key):
            raise UsageError(
                f"{key} must be left at its default, {defaults.get(key)!r}, since this version of fastdata (made for Ultralytics "
                f"{KNOWN_VERSION}) does not know what it does to the data, got {value!r}"
            )


def check_extra(extra: Mapping[str, Any]) -> None:
    """Refuse what is given beside the trainer's arguments and is none of :data:`EXTRA_POLICY`, or out of range.

    Raises:
        UsageError: There is such a value.
    """
    wrong = sorted(extra.keys() - set(EXTRA_POLICY))
    if wrong:
        fix = "give it to the trainer" if wrong[0] in POLICY_KEYS else f"known are {', '.join(EXTRA_POLICY)}"
        raise UsageError(f"policy must hold fields that the trainer has no argument for, got {wrong[0]!r}; {fix}")
    Policy(**extra)


def policy_of(args: Mapping[str, Any], extra: Mapping[str, Any], *, rect: bool = False) -> Policy:
    """Return what the trainer's arguments say about augmentation.

    Args:
        args: The trainer's arguments.
        extra: Fields of ``Policy`` that those have no name for, see :func:`check_extra`.
        rect: Rectangular batches, which the trainer does not mix.

    Raises:
        UsageError: A value is outside the range of ``Policy``.
    """
    values = {key: args[key] for key in POLICY_KEYS}
    if isinstance(values["scale"], list):
        values["scale"] = tuple(values["scale"])
    if rect:
        values |= {"mosaic": 0.0, "mixup": 0.0, "cutmix": 0.0}
    return Policy(**values, **extra)


def fraction_of(fraction: Any, split: str) -> float | int:
    """Return the part of a split that is used: a share (float), or a number of pictures (int).

    The trainer's rule: a list is for train, val and test in this order, what it leaves out is whole; a single value is for train
    alone; 0 and 1 are shares, larger whole numbers are counts.

    Raises:
        UsageError: Nothing is left of a split that is needed.
    """
    order = ("train", "val", "test")
    if isinstance(fraction, (list, tuple)):
        place = order.index(split) if split in order else len(fraction)
        fraction = fraction[place] if place < len(fraction) else 1.0
    elif split != "train":
        fraction = 1.0
    if fraction == 0:
        raise UsageError(f"fraction of {split} must leave at least one picture, got {fraction!r}")
    return 1.0 if fraction == 1 else fraction


def classes_of(classes: Any) -> list[int] | None:
    """Return the classes that are kept; all when ``None``. The trainer takes a number as well as a list."""
    if classes is None:
        return None
    return [int(c) for c in (classes if isinstance(classes, (list, tuple)) else [classes])]


def transforms_of(augmentations: Any) -> Any:
    """Return the transforms that the trainer was given, as one ``Compose``; ``None`` without any.

    The trainer keeps them as dictionaries, so that a checkpoint can hold them.

    Raises:
        MissingExtra: albumentations is not installed.
    """
    if not augmentations:
        return None
    try:
        import albumentations
    except ModuleNotFoundError as err:
        if err.name != "albumentations":
            raise
        raise MissingExtra("albumentations", "albumentations", "run the transforms in augmentations=") from None
    return albumentations.Compose([albumentations.from_dict(t) if isinstance(t, Mapping) else t for t in augmentations])
