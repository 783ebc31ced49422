"""What may happen to a picture: probabilities and ranges, under the trainers' own names and with their defaults.

Sources of the defaults: Ultralytics 8.4.190 ``default.yaml`` for ``yolov8``, YOLOv5 ``hyp.scratch-low.yaml`` for ``yolov5``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np

from fastdata.errors import UsageError

PROBABILITIES = ("mosaic", "mosaic9", "mixup", "cutmix", "copy_paste", "flipud", "fliplr", "bgr")

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    dict.fromkeys(PROBABILITIES, (0.0, 1.0))
    | {
        "hsv_h": (0.0, 1.0),
        "hsv_s": (0.0, 1.0),
        "hsv_v": (0.0, 1.0),
        "degrees": (0.0, 180.0),
        "translate": (0.0, 1.0),
        "shear": (0.0, 89.0),  # the tangent of 90 degrees is no number
        "perspective": (0.0, 0.01),  # ten times the trainers' limit; a picture folds over itself near 2 / imgsz
        "close_mosaic": (0, 1_000_000),
        "min_side_px": (0.0, 1e6),
        "max_aspect": (1.0, 1e9),  # a limit that none meets; infinity has no place in JSON
    }
)
"""Lowest and highest value of each number, both allowed."""

MIN_ZOOM, MAX_ZOOM = 0.001, 10.0
"""Of an explicit pair: at the lowest a mosaic is one pixel; far below it a matrix has no inverse any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Frozen numbers. "With probability p" is a draw of its own for every sample.

    Raises:
        UsageError: A value is outside its range.
    """

    hsv_h: float = 0.015
    """Hue gain is within ± this share of a full turn."""
    hsv_s: float = 0.7
    """Saturation is multiplied by 1 ± up to this."""
    hsv_v: float = 0.4
    """Value is multiplied by 1 ± up to this."""
    hue: Literal["add", "multiply"] = "add"
    """Ultralytics since 8.3.79 shifts every hue by the gain; YOLOv5, v7 and v9 multiply hue by 1 + gain."""
    degrees: float = 0.0
    """Rotation is within ± this."""
    translate: float = 0.1
    """The centre moves by ± this share of the output's width and height."""
    scale: float | tuple[float, float] = 0.5
    """Zoom is within 1 ± this, or within (lowest, highest)."""
    shear: float = 0.0
    """Degrees, ±, in x and in y."""
    perspective: float = 0.0
    """±, per pixel, in x and in y."""
    flipud: float = 0.0
    fliplr: float = 0.5
    bgr: float = 0.0
    """Probability that channels come out in the order B G R."""
    mosaic: float = 1.0
    mosaic9: float = 0.0
    """Share of the mosaics that have nine tiles instead of four."""
    mixup: float = 0.0
    cutmix: float = 0.0
    copy_paste: float = 0.0
    copy_paste_mode: Literal["flip", "mixup"] = "flip"
    """``flip``: this share of the sample's own objects is pasted once more, mirrored. ``mixup``: with this probability objects of
    another sample are pasted."""
    close_mosaic: int = 10
    """In the last so many epochs mosaic, MixUp, CutMix and Copy-Paste rest."""
    partners: str = "uniform"
    """Where the other pictures of a sample come from: ``uniform`` (all) or ``window:W`` (the W before it in the order)."""
    min_side_px: float = 2.0
    """An object is kept if more than this is left of its width and of its height."""
    min_area_share: float | None = None
    """... and if more than this share of its area is left: 0.10, or 0.01 for samples with outlines, when ``None``."""
    max_aspect: float = 100.0
    """... and if its longer side is less than so many times the shorter one."""

    def __post_init__(self) -> None:
        for field in fields(self):  # Python's own numbers: a policy is written as JSON, which knows none of NumPy's
            if isinstance(value := getattr(self, field.name), np.number):
                object.__setattr__(self, field.name, value.item())
        for name, (low, high) in RANGES.items():
            _check(name, getattr(self, name), low, high)
        if self.min_area_share is not None:
            _check("min_area_share", self.min_area_share, 0.0, 1.0)
        if isinstance(self.scale, (tuple, list)):  # a list is what YAML and JSON give
            is_pair = len(self.scale) == 2 and all(map(_is_number, self.scale))
            if not is_pair or not MIN_ZOOM <= self.scale[0] <= self.scale[1] <= MAX_ZOOM:
                rule = f"(lowest, highest) with {MIN_ZOOM:g} <= lowest <= highest <= {MAX_ZOOM:g}"
                raise UsageError(f"scale must be {rule}, got {self.scale!r}")
            object.__setattr__(self, "scale", (float(self.scale[0]), float(self.scale[1])))
        elif not _is_number(self.scale) or not 0 <= self.scale < 1:
            raise UsageError(f"scale must be in 0 <= scale < 1, or (lowest, highest), got {self.scale!r}")
        if self.hue not in ("add", "multiply"):
            raise UsageError(f"hue must be 'add' or 'multiply', got {self.hue!r}")
        if self.copy_paste_mode not in ("flip", "mixup"):
            raise UsageError(f"copy_paste_mode must be 'flip' or 'mixup', got {self.copy_paste_mode!r}")
        if self.close_mosaic != int(self.close_mosaic):
            raise UsageError(f"close_mosaic must be a whole number of epochs, got {self.close_mosaic!r}")
        if self.partners != "uniform" and self.window is None:
            raise UsageError(f"partners must be 'uniform' or 'window:W' with W at least 1, got {self.partners!r}")

    @property
    def window(self) -> int | None:
        """W of ``window:W``."""
        found = re.fullmatch(r"window:([1-9][0-9]{0,8})", self.partners) if isinstance(self.partners, str) else None
        return int(found[1]) if found else None

    def at(self, epoch: int, epochs: int | None) -> Self:
        """Return the policy of an epoch: in the last ``close_mosaic`` ones nothing is mixed.

        Args:
            epoch: From 0.
            epochs: How many the training has; ``None`` when it is not known, and then nothing is ever closed.
        """
        if epochs is None or epoch < epochs - self.close_mosaic:
            return self
        return replace(self, mosaic=0.0, mixup=0.0, cutmix=0.0, copy_paste=0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as numbers, strings and lists, for JSON."""
        return {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the policy that :meth:`as_dict` describes.

        Raises:
            UsageError: A name is unknown, or a value is outside its range.
        """
        unknown = sorted(content.keys() - {f.name for f in fields(cls)})
        if unknown:
            raise UsageError(f"a policy must have known names only, got {', '.join(unknown)}")
        return cls(**content)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(name: str, value: Any, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        raise UsageError(f"{name} must be in {low:g}..{high:g}, got {value!r}")


PRESETS: Mapping[str, Policy] = MappingProxyType(
    {
        "yolov8": Policy(),
        "yolov5": Policy(hue="multiply", close_mosaic=0),
        "light": Policy(mosaic=0.0, mixup=0.15, copy_paste=0.3, close_mosaic=0),
        "none": Policy(hsv_h=0.0, hsv_s=0.0, hsv_v=0.0, translate=0.0, scale=0.0, fliplr=0.0, mosaic=0.0, close_mosaic=0),
    }
)
"""``yolov8``: what Ultralytics does by default, YOLO11 and later included. ``yolov5``: YOLOv5's low-augmentation recipe.
``light``: MixUp and Copy-Paste without mosaic, for sets whose objects must keep their surroundings. ``none``: the picture as it
is, on the trainers' gray."""


def preset(name: str) -> Policy:
    """Return a policy of :data:`PRESETS`.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in PRESETS:
        raise UsageError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]
