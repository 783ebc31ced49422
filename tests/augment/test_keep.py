"""What stays after a warp: every comparison at its limit, the published case, and the trainer's own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastdata.augment import keep

LIMITS: dict[str, Any] = {"min_side_px": 2.0, "min_area_share": 0.10, "max_aspect": 100.0}
BEFORE = (0.0, 0.0, 10.0, 10.0)


def stays(after: tuple[float, ...], before: tuple[float, ...] = BEFORE, zoom: float = 1.0, **limits: float) -> bool:
    """The rule on one object."""
    kept = keep.is_kept(np.array([before]), np.array([after]), zoom, **(LIMITS | limits))
    assert kept.shape == (1,)
    return bool(kept[0])


@pytest.mark.parametrize(
    ("at_limit", "beyond"),
    [
        (lambda e: stays((0, 0, 2 + e, 10)), "width"),
        (lambda e: stays((0, 0, 10, 2 + e)), "height"),
        (lambda e: stays((3, 3, 3 + 2.5 + e, 7), min_area_share=0.10), "area"),
        (lambda e: stays((0, 0, 400 - e, 4), min_area_share=0.0), "aspect, wide"),
        (lambda e: stays((0, 0, 4, 400 - e), min_area_share=0.0), "aspect, high"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_exactly_at_a_limit_is_not_enough(at_limit: Callable[[float], bool], beyond: str) -> None:
    """All comparisons are strict; a hair more and the object stays."""
    assert not at_limit(0.0)
    assert at_limit(1e-6)


def test_the_area_before_is_measured_in_pixels_of_the_output() -> None:
    """A quarter of an object at half zoom is all of it; at double zoom it is a sixteenth."""
    assert stays((0, 0, 5, 5), zoom=0.5, min_area_share=0.99)
    assert not stays((0, 0, 5, 5), zoom=2.0, min_area_share=0.0626)
    assert stays((0, 0, 5, 5), zoom=2.0, min_area_share=0.0624)


def test_zoom_and_share_may_differ_between_objects() -> None:
    """Samples with outlines and samples of boxes in one batch."""
    before, after = np.tile(BEFORE, (4, 1)), np.tile((0.0, 0.0, 2.5, 2.5), (4, 1))
    zoom, share = np.array([1.0, 1.0, 0.5, 3.0]), np.array([0.10, 0.01, 0.10, 0.01])
    kept = keep.is_kept(before, after, zoom, min_side_px=2.0, min_area_share=share, max_aspect=100.0)
    assert kept.tolist() == [False, True, True, False]


def test_an_object_of_which_nothing_is_seen_goes_whatever_the_limits() -> None:
    """No limit can be so low that a box without width stays, and nothing divides by zero."""
    assert not stays((0, 0, 0, 0), min_side_px=0.0, min_area_share=0.0, max_aspect=np.inf)
    assert not stays((40, 3, 40, 9), min_side_px=0.0, min_area_share=0.0, max_aspect=np.inf)
    assert not stays((0, 0, 0, 0), before=(0, 0, 0, 0), min_side_px=0.0, min_area_share=0.0)
    assert keep.is_kept(np.zeros((0, 4)), np.zeros((0, 4)), 1.0, **LIMITS).tolist() == []


def test_the_share_of_a_cut_object_is_the_users_to_set() -> None:
    """Case geo-crop-area: 12 and 8 percent left, 2 px wide, whole; shares 0.10 and 0.20."""
    before = np.array([[0, 8, 50, 28], [0, 34, 48, 54], [38, 56, 46, 64], [50, 40, 62, 52]], np.float64)
    after = np.clip(before - [44, 0, 44, 0], 0, 64)
    kept = [keep.is_kept(before, after, 1.0, **(LIMITS | {"min_area_share": share})).tolist() for share in (0.10, 0.20)]
    assert kept == [[True, False, False, True], [False, False, False, True]]


def test_the_trainer_keeps_the_same_objects() -> None:
    """100,000 random boxes, whole-pixel ones among them, against Ultralytics' own function."""
    augment = pytest.importorskip("ultralytics.data.augment")
    rng = np.random.default_rng(0)
    before, after = (rng.uniform(0, 200, (100_000, 4)) for _ in range(2))
    after[::2] = np.round(after[::2] / 8)
    for box in (before, after):
        box[:, 2:] = box[:, :2] + box[:, 2:] * rng.choice([0.0, 0.02, 0.5, 1.0], (len(box), 2))
    before[::2] = np.round(before[::2])
    for share in (0.01, 0.10):
        want = augment.RandomPerspective.box_candidates(before.T * 0.75, after.T, area_thr=share)
        got = keep.is_kept(before, after, 0.75, **(LIMITS | {"min_area_share": share}))
        assert 0.05 < got.mean() < 0.95
        assert got.tolist() == want.tolist()
