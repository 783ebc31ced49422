"""What ours draws and what the trainer draws, compared as samples of two distributions: each trainer's number comes from its own
code (Ultralytics 8.4.190), seeded here; ours from ``draw``.

The measure is the two-sample Kolmogorov-Smirnov statistic. Both seeds are fixed, so a test gives the same answer every time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ultra_kit  # first: it sets the environment  # noqa: F401
from ultralytics.data import augment as theirs
from ultralytics.utils.instance import Instances as TheirInstances

from fastdata.augment.affine import matrices
from fastdata.augment.draws import MIXUP, Draws, draw
from fastdata.augment.policy import Policy

N = 4000
IMGSZ = 640
CRITICAL = 1.95
"""Of the statistic times sqrt(n m / (n + m)): passed by chance once in a thousand times (Smirnov, 1948)."""

POLICY = Policy(
    degrees=20.0, shear=5.0, perspective=0.001, scale=0.5, translate=0.2, flipud=0.3, fliplr=0.5, mixup=0.4, cutmix=0.4, bgr=0.2
)


def ks(a: np.ndarray, b: np.ndarray) -> float:
    """Return the two-sample statistic, scaled so that it is compared with :data:`CRITICAL`."""
    both = np.sort(np.concatenate([a, b]))
    gap = np.searchsorted(np.sort(a), both, "right") / len(a) - np.searchsorted(np.sort(b), both, "right") / len(b)
    return float(np.abs(gap).max() * np.sqrt(len(a) * len(b) / (len(a) + len(b))))


@pytest.fixture(scope="module")
def drawn() -> Draws:
    """Four thousand samples of one epoch."""
    return draw(np.arange(N), POLICY, seed=11, epoch=3, imgsz=IMGSZ, out_hw=(IMGSZ, IMGSZ), pool=range(N))


def first_scenes(drawn: Draws) -> np.ndarray:
    """The scene of each sample that its own picture is in."""
    return drawn.scene_offsets[:-1]


@pytest.fixture(scope="module")
def their_matrices() -> np.ndarray:
    """As many of the trainer's matrices for a mosaic's canvas."""
    random.seed(7)
    step = theirs.RandomPerspective(20.0, 0.2, 0.5, 5.0, 0.001, size=(IMGSZ, IMGSZ))
    canvas = np.broadcast_to(np.uint8(0), (2 * IMGSZ, 2 * IMGSZ, 3))
    return np.stack([step._compute_affine_matrix(canvas, (IMGSZ, IMGSZ))[0] for _ in range(N)])


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_every_number_of_the_matrix_is_distributed_as_the_trainers(
    row: int, column: int, drawn: Draws, their_matrices: np.ndarray
) -> None:
    """Rotation, zoom, shear, perspective and shift together, as they come out."""
    s = first_scenes(drawn)
    ours = matrices(
        np.full((N, 2), 2 * IMGSZ), (IMGSZ, IMGSZ), perspective=drawn.perspective[s], degrees=drawn.degrees[s],
        scale=drawn.scale[s], shear_deg=drawn.shear_deg[s], translate=drawn.translate[s],
    )  # fmt: skip
    assert ks(ours[:, row, column], their_matrices[:, row, column].astype(np.float64)) < CRITICAL


def mosaic_centres() -> np.ndarray:
    """(N, 2) centres y, x of the trainer's mosaics, read off where its first tile ends."""
    random.seed(8)
    step = theirs.Mosaic(type("Set", (), {"cache": "ram", "__len__": lambda self: 1})(), imgsz=IMGSZ, p=1.0)
    image = np.broadcast_to(np.uint8(0), (IMGSZ, IMGSZ, 3))
    step.dataset.get_image_and_label = lambda i: {"img": image}
    layouts = [step.get_params({"img": image})["layout"][0] for _ in range(N)]
    return np.array([[tile["y2a"], tile["x2a"]] for tile in layouts], np.float64)


def cutmix_regions() -> np.ndarray:
    """(N, 4) regions of the trainer's CutMix."""
    np.random.seed(9)  # noqa: NPY002 - the trainer draws from this one
    step = theirs.CutMix(None, p=1.0)
    return np.array([step._rand_bbox(IMGSZ, IMGSZ) for _ in range(N)], np.float64)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_centre_of_a_mosaic_is_distributed_as_the_trainers(axis: int, drawn: Draws) -> None:
    """Whole pixels from a quarter to three quarters of the canvas."""
    assert ks(drawn.centre_yx[first_scenes(drawn), axis].astype(np.float64), mosaic_centres()[:, axis]) < CRITICAL


@pytest.mark.parametrize("side", range(4))
def test_the_regions_of_cutmix_are_distributed_as_the_trainers(side: int, drawn: Draws) -> None:
    """The first of the three that it tries."""
    assert ks(drawn.cutmix_xyxy_px[:, 0, side].astype(np.float64), cutmix_regions()[:, side]) < CRITICAL


def test_the_weight_of_mixup_is_distributed_as_the_trainers(drawn: Draws) -> None:
    """Beta(32, 32)."""
    np.random.seed(10)  # noqa: NPY002
    step = theirs.MixUp(type("Set", (), {"__len__": lambda self: 1, "get_image_and_label": lambda self, i: {}})(), p=1.0)
    seen = [step.get_params({})["r"] for _ in range(N)]
    assert ks(drawn.mixup_weight, np.array(seen)) < CRITICAL


def flips(p: float, direction: str) -> np.ndarray:
    """(N,) whether the trainer flips."""
    random.seed(12)
    step = theirs.RandomFlip(p=p, direction=direction)
    labels = {"img": np.zeros((8, 8, 3), np.uint8), "instances": TheirInstances(np.zeros((0, 4), np.float32))}
    return np.array([step.get_params(labels)["flip"] for _ in range(N)])


def fires(p: float) -> np.ndarray:
    """(N,) whether a step of the trainer that mixes with probability p does."""
    random.seed(13)

    class Step(theirs.BaseMixTransform):
        def get_params(self, labels: dict[str, Any]) -> dict[str, Any]:
            return {}

        def apply_image(self, labels: dict[str, Any], params: Any = None) -> dict[str, Any]:
            return labels | {"fired": True}

    step = Step(None, p=p)
    return np.array(["fired" in step({}) for _ in range(N)])


SHARES: dict[str, tuple[Callable[[Draws], np.ndarray], Callable[[], np.ndarray]]] = {
    "flipud": (lambda d: d.flip_ud, lambda: flips(POLICY.flipud, "vertical")),
    "fliplr": (lambda d: d.flip_lr, lambda: flips(POLICY.fliplr, "horizontal")),
    "mixup": (lambda d: np.isin(np.arange(N), d.scene_slot[d.role == MIXUP]), lambda: fires(POLICY.mixup)),
}


@pytest.mark.parametrize("name", SHARES)
def test_what_happens_with_a_probability_happens_as_often_as_in_the_trainer(name: str, drawn: Draws) -> None:
    """Within four standard deviations of the difference of two shares."""
    ours, theirs_ = SHARES[name][0](drawn).mean(), SHARES[name][1]().mean()
    assert abs(ours - theirs_) < 4 * np.sqrt(2 * 0.25 / N)


def test_the_gains_are_distributed_as_the_trainers(drawn: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform over ± the policy's, each by itself; the trainer's are caught where it draws them."""
    rng = np.random.default_rng(14)
    caught: list[np.ndarray] = []

    def uniform(low: float, high: float, size: int) -> np.ndarray:
        caught.append(rng.uniform(low, high, size))
        return caught[-1]

    monkeypatch.setattr(np.random, "uniform", uniform)
    step = theirs.RandomHSV(POLICY.hsv_h, POLICY.hsv_s, POLICY.hsv_v)
    for _ in range(500):
        step.apply_image({"img": np.zeros((1, 1, 3), np.uint8)})
    gains = np.array(caught) * [POLICY.hsv_h, POLICY.hsv_s, POLICY.hsv_v]
    for channel in range(3):
        assert ks(drawn.hsv[:, channel], gains[:, channel]) < CRITICAL


def test_the_statistic_sees_a_zoom_that_is_a_tenth_too_wide(drawn: Draws) -> None:
    """Meta-test: a policy of scale 0.55 beside one of 0.5."""
    wider = 1 + (drawn.scale[first_scenes(drawn)] - 1) * 1.1
    assert ks(wider, drawn.scale[first_scenes(drawn)][::-1] * 1.0) > CRITICAL
