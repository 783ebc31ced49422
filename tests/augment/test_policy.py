"""The policy: defaults are the trainer's own, every number has a range, and an epoch near the end rests."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fastdata.augment.policy import PRESETS, PROBABILITIES, RANGES, Policy, preset
from fastdata.errors import UsageError

OWN = {"hue", "mosaic9", "partners", "min_side_px", "min_area_share", "max_aspect"}
"""Fields that have no counterpart in the trainer's configuration."""

MIXING = {"mosaic", "mixup", "cutmix", "copy_paste"}


def policies() -> st.SearchStrategy[Policy]:
    """Any policy."""
    numbers = {name: st.floats(low, high) for name, (low, high) in RANGES.items() if name != "close_mosaic"}
    pair = st.tuples(st.floats(0.001, 10), st.floats(0.001, 10)).map(lambda p: (min(p), max(p)))
    return st.builds(
        Policy,
        **numbers,
        close_mosaic=st.integers(0, 1000),
        scale=st.floats(0, 1, exclude_max=True) | pair,
        hue=st.sampled_from(["add", "multiply"]),
        copy_paste_mode=st.sampled_from(["flip", "mixup"]),
        min_area_share=st.none() | st.floats(0, 1),
        partners=st.just("uniform") | st.integers(1, 999).map("window:{}".format),
    )


def test_the_defaults_are_those_of_ultralytics() -> None:
    """Each field of the same name, as its installed default.yaml says; the fields of our own are listed here."""
    ultralytics = pytest.importorskip("ultralytics")
    said = yaml.safe_load((Path(ultralytics.__file__).parent / "cfg" / "default.yaml").read_text(encoding="utf-8"))
    ours = Policy().as_dict()
    assert {name: said[name] for name in ours.keys() - OWN} == {name: ours[name] for name in ours.keys() - OWN}
    assert OWN == ours.keys() - said.keys()
    assert PRESETS["yolov8"] == Policy()


def test_the_keep_rule_is_that_of_ultralytics() -> None:
    """Sides over 2 px and ratios under 100, as the default arguments of its rule say; 0.10 and 0.01 are the plan's choice."""
    augment = pytest.importorskip("ultralytics.data.augment")
    side, aspect = augment.RandomPerspective.box_candidates.__defaults__[:2]
    assert (Policy().min_side_px, Policy().max_aspect) == (side, aspect)
    assert Policy().min_area_share is None


def test_the_presets_differ_from_the_default_in_what_they_say() -> None:
    """YOLOv5 multiplies hue and never closes; light has no mosaic; none leaves the picture as it is."""

    def changed(name: str) -> dict[str, Any]:
        ours, plain = preset(name).as_dict(), Policy().as_dict()
        return {key: ours[key] for key in ours if ours[key] != plain[key]}

    assert set(PRESETS) == {"yolov8", "yolov5", "light", "none"}
    assert changed("yolov5") == {"hue": "multiply", "close_mosaic": 0}
    assert changed("light") == {"mosaic": 0.0, "mixup": 0.15, "copy_paste": 0.3, "close_mosaic": 0}
    none = preset("none")
    for name in (*PROBABILITIES, "hsv_h", "hsv_s", "hsv_v", "degrees", "translate", "scale", "shear", "perspective"):
        assert getattr(none, name) == 0
    with pytest.raises(UsageError, match="preset must be one of yolov8, yolov5, light, none, got 'yolo11'"):
        preset("yolo11")


@pytest.mark.parametrize("name", RANGES)
def test_a_number_outside_its_range_is_refused(name: str) -> None:
    """Both ends are allowed; beyond them, and what is no number, is told with name, rule and value."""
    low, high = RANGES[name]
    for allowed in (low, high):
        assert getattr(Policy(**{name: allowed}), name) == allowed
    nearest = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
    for wrong in (*nearest, low - 1, high + 1, -math.inf, math.inf, math.nan, "1", True, None, [1]):
        with pytest.raises(UsageError) as caught:
            Policy(**{name: wrong})
        assert str(caught.value) == f"{name} must be in {low:g}..{high:g}, got {wrong!r}"


@pytest.mark.parametrize(("name", "wrong"), [("shear", 90.0), ("perspective", 0.02), ("degrees", 181.0), ("max_aspect", 0.5)])
def test_a_picture_cannot_be_made_to_vanish(name: str, wrong: float) -> None:
    """Sheared flat, folded over itself; and no object is squarer than a square."""
    with pytest.raises(UsageError, match=f"{name} must be in .*, got {wrong}"):
        Policy(**{name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong", "rule"),
    [
        *(("scale", x, "in 0 <= scale < 1, or (lowest, highest)") for x in (1.0, -0.1, math.nan, "0.5", None, True)),
        *(
            ("scale", x, "(lowest, highest) with 0.001 <= lowest <= highest <= 10")
            for x in ((0, 1), (1e-100, 1), (0.0009, 1), (2, 1), (1, 11), (1,), (1, 2, 3), (math.nan, 1), ("1", 2), [1, math.inf])
        ),
        *(("hue", x, "'add' or 'multiply'") for x in ("plus", None)),
        *(("copy_paste_mode", x, "'flip' or 'mixup'") for x in ("mix", None)),
        ("close_mosaic", 2.5, "a whole number of epochs"),
        *(("min_area_share", x, "in 0..1") for x in (-0.1, 1.1, math.nan, "0.1", False)),
        *(
            ("partners", x, "'uniform' or 'window:W' with W at least 1")
            for x in ("window:0", "window:", "window:-1", "window: 4", "window:4\n", "window:٣", "all", 4, None)
        ),
    ],
)
def test_a_choice_that_breaks_its_rule_is_refused(name: str, wrong: object, rule: str) -> None:
    """Name, rule and value."""
    with pytest.raises(UsageError) as caught:
        Policy(**{name: wrong})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} must be {rule}, got {wrong!r}"


def test_a_pair_of_zooms_is_kept_as_a_pair_of_numbers() -> None:
    """A list, as a YAML file gives it, is the same policy."""
    assert Policy(scale=[1, 2]).scale == (1.0, 2.0)  # type: ignore[arg-type]
    assert Policy(scale=[1, 2]) == Policy(scale=(1, 2))  # type: ignore[arg-type]
    assert hash(Policy(scale=[1, 2])) == hash(Policy(scale=(1, 2)))  # type: ignore[arg-type]


def test_the_window_is_the_number_of_its_name() -> None:
    """None where partners come from everywhere."""
    assert [Policy(partners=p).window for p in ("uniform", "window:1", "window:2048")] == [None, 1, 2048]


@given(policies(), st.integers(0, 60), st.integers(0, 50))
def test_the_last_epochs_rest(policy: Policy, epoch: int, epochs: int) -> None:
    """In the last ``close_mosaic`` epochs, and in all where there are fewer, nothing is mixed; all else stays as it was."""
    now = policy.at(epoch, epochs)
    rests = epoch >= max(epochs - policy.close_mosaic, 0)
    want = policy.as_dict() | (dict.fromkeys(MIXING, 0.0) if rests else {})
    assert now.as_dict() == want
    assert policy.at(epoch, None) is policy


@pytest.mark.parametrize(
    ("close", "epochs", "closed"),
    [(2, 5, [3, 4]), (10, 3, [0, 1, 2]), (0, 3, []), (3, 3, [0, 1, 2]), (1, 1, [0])],
)
def test_closing_begins_where_it_must(close: int, epochs: int, closed: list[int]) -> None:
    """Also for a training that is shorter than what is to be closed."""
    policy = Policy(close_mosaic=close)
    assert [e for e in range(epochs) if policy.at(e, epochs).mosaic == 0] == closed
    assert close == 0 or policy.at(epochs + 5, epochs).mosaic == 0


@given(policies())
def test_a_policy_goes_through_json_and_comes_back(policy: Policy) -> None:
    """Strict JSON, which has no infinity."""
    text = json.dumps(policy.as_dict(), allow_nan=False)
    assert Policy.from_dict(json.loads(text)) == policy
    assert list(json.loads(text)) == [f.name for f in fields(Policy)]


def test_what_is_not_of_a_policy_is_refused() -> None:
    """All unknown names at once; a part of the fields is enough."""
    with pytest.raises(UsageError, match="a policy must have known names only, got erasing, lr0"):
        Policy.from_dict({"lr0": 0.1, "mosaic": 1.0, "erasing": 0})
    assert Policy.from_dict({"mosaic": 0.5, "scale": [0.5, 2]}) == Policy(mosaic=0.5, scale=(0.5, 2.0))
    with pytest.raises(UsageError, match=r"mosaic must be in 0\.\.1, got 2"):
        Policy.from_dict({"mosaic": 2})


def test_a_policy_cannot_be_changed() -> None:
    """Neither can the presets."""
    with pytest.raises(FrozenInstanceError):
        Policy().mosaic = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        PRESETS["mine"] = Policy()  # type: ignore[index]


def test_numbers_may_be_those_of_numpy() -> None:
    """They become Python's, which JSON knows."""
    policy = Policy(degrees=np.float32(3.0), close_mosaic=np.int64(4), scale=np.float64(0.25))  # type: ignore[arg-type]
    assert policy == Policy(degrees=3.0, close_mosaic=4, scale=0.25)
    assert json.loads(json.dumps(policy.as_dict()))["degrees"] == 3.0
