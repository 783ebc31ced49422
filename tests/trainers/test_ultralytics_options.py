"""Every key of the trainer's configuration has a row in the table, and what the rows say is true."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import ultra_kit  # noqa: F401 - before ultralytics
import ultralytics
import yaml

from fastdata.augment.policy import Policy
from fastdata.errors import UsageError
from fastdata.trainers.ultralytics_options import (
    EXTRA_POLICY,
    KEYS,
    NOTES,
    POLICY_KEYS,
    TRAINER_KEYS,
    check_extra,
    check_keys,
    classes_of,
    fraction_of,
    policy_of,
    transforms_of,
)  # fmt: skip

DEFAULTS: dict[str, Any] = yaml.safe_load((Path(ultralytics.__file__).parent / "cfg/default.yaml").read_text())

BESIDE = {"augmentations", "save_dir"}
"""Keys that the trainer takes and its defaults do not list."""


def test_every_key_of_the_default_configuration_has_a_row() -> None:
    """A key that appears with a new version of the trainer fails here until somebody has looked at what it does."""
    assert DEFAULTS.keys() - KEYS.keys() == set()
    assert KEYS.keys() - DEFAULTS.keys() == BESIDE


def test_no_key_has_two_rows() -> None:
    """A key is taken by one."""
    assert len(POLICY_KEYS) + len(TRAINER_KEYS) + len(NOTES) == len(KEYS)


def test_the_trainers_other_keys_are_those_that_its_own_code_lets_pass() -> None:
    """The two keys beside the defaults are really taken, and no third one is."""
    from ultralytics.cfg import check_dict_alignment

    check_dict_alignment(DEFAULTS, dict.fromkeys(BESIDE, 1))
    with pytest.raises(SyntaxError):
        check_dict_alignment(DEFAULTS, {"another": 1})


def test_the_policy_of_the_defaults_is_the_default_policy() -> None:
    """Whoever sets nothing gets what both sides call the default."""
    assert policy_of(DEFAULTS, {}) == Policy()


@pytest.mark.parametrize("key", POLICY_KEYS)
def test_every_policy_key_reaches_its_field(key: str) -> None:
    """A key that is set changes the field of its name and no other."""
    others = {"copy_paste_mode": "mixup", "close_mosaic": 3, "perspective": 0.0005, "scale": [0.6, 1.2]}
    value = others.get(key, 0.25)
    changed = policy_of(DEFAULTS | {key: value}, {})
    want = tuple(value) if isinstance(value, list) else value
    assert {f.name for f in fields(Policy) if getattr(changed, f.name) != getattr(Policy(), f.name)} == {key}
    assert getattr(changed, key) == want


def test_every_field_of_the_policy_comes_from_a_key_or_can_be_given_beside_it() -> None:
    """Nothing of the policy is out of reach in a training."""
    assert {f.name for f in fields(Policy)} == {*POLICY_KEYS, *EXTRA_POLICY}
    assert policy_of(DEFAULTS, {"mosaic9": 0.5, "partners": "window:8"}).mosaic9 == 0.5


def test_a_policy_key_given_beside_the_trainer_is_refused() -> None:
    """Two places for one number would let one of them lie."""
    with pytest.raises(UsageError, match=r"got 'mosaic'; give it to the trainer"):
        check_extra({"mosaic": 0.5})
    with pytest.raises(UsageError, match=r"got 'mozaic'; known are hue"):
        check_extra({"mozaic": 0.5})


def test_rectangular_batches_are_not_mixed() -> None:
    """As in the trainer: squares alone can be."""
    args = DEFAULTS | {"mixup": 0.5, "cutmix": 0.5, "copy_paste": 0.5}
    policy = policy_of(args, {}, rect=True)
    assert (policy.mosaic, policy.mixup, policy.cutmix, policy.copy_paste) == (0, 0, 0, 0.5)


def test_a_value_out_of_range_is_refused_by_its_name() -> None:
    """The trainer takes any share of perspective; one at which pictures fold over is said to be that."""
    with pytest.raises(UsageError, match=r"perspective must be in 0\.\.0\.01, got 0\.5"):
        policy_of(DEFAULTS | {"perspective": 0.5}, {})


def test_an_unknown_key_is_refused_as_soon_as_it_is_set() -> None:
    """A later trainer's key at its default is none of our business; set, it may mean anything."""
    check_keys(DEFAULTS | {"swirl": 0.0}, DEFAULTS | {"swirl": 0.0})
    with pytest.raises(UsageError, match=r"swirl must be left at its default, 0\.0"):
        check_keys(DEFAULTS | {"swirl": 0.1}, DEFAULTS | {"swirl": 0.0})


@pytest.mark.parametrize("fraction", [1.0, 1, 0.25, 7, [0.5, 0.25], [3, 1.0, 5], [1.0, 0.5, 0.0]])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_fractions_are_the_trainers_own(fraction: Any, split: str) -> None:
    """The same share or count as its own rule gives, in value and in kind: 1 and 1.0 mean other things for a picture count."""
    from ultralytics.data.utils import get_split_fraction

    theirs = get_split_fraction(fraction, split)
    if theirs == 0:
        with pytest.raises(UsageError, match="test must leave at least one picture"):
            fraction_of(fraction, split)
        return
    ours = fraction_of(fraction, split)
    assert (ours, type(ours)) == (theirs, type(theirs))


def test_classes_may_be_one_number() -> None:
    """The trainer documents both."""
    assert (classes_of(None), classes_of(3), classes_of([3, 1]), classes_of([])) == (None, [3], [3, 1], [])


def test_transforms_come_back_from_the_trainers_dictionaries() -> None:
    """The trainer turns them into dictionaries, for its checkpoints."""
    albumentations = pytest.importorskip("albumentations")
    flip = albumentations.HorizontalFlip(p=0.25)
    (back,) = transforms_of([albumentations.to_dict(flip)]).transforms
    assert isinstance(back, albumentations.HorizontalFlip)
    assert back.p == 0.25
    assert transforms_of([flip]).transforms == [flip]
    assert transforms_of(None) is transforms_of([]) is None
