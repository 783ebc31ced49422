"""What the GPU benchmarks compute without a GPU: ratios with an interval, bytes, and which batches a trainer is handed when."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import gpu_kernel
import gpu_loader
import gpu_rows
import gpu_train
from gpu_rows import Ratio, beside, paired
from training_kit import converted, opened

from fastdata.augment.policy import Policy
from fastdata.samples import Samples

# Ratios


def test_a_drift_that_meets_both_sides_leaves_a_ratio_alone() -> None:
    drift = [1.0, 1.1, 1.25, 0.9]
    ratio = paired([98 * d for d in drift], [100 * d for d in drift])
    assert ratio.value == pytest.approx(0.98)
    assert ratio.low == pytest.approx(0.98) == ratio.high


def test_the_interval_is_students_over_the_logarithms() -> None:
    ratio = paired([math.exp(0.01), math.exp(-0.02), math.exp(0.04)], [1, 1, 1])
    half = 4.303 * 0.03 / math.sqrt(3)  # t of two degrees of freedom; the standard deviation of 0.01, -0.02, 0.04 is 0.03
    assert math.log(ratio.value) == pytest.approx(0.01)
    assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((0.01 - half, 0.01 + half))


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(math.log(0.97), 0.02, (2000, 6))
    ratios = [paired(np.exp(row).tolist(), [1.0] * 6) for row in logs]
    held = np.mean([r.low <= 0.97 <= r.high for r in ratios])
    assert 0.93 < held < 0.97


@pytest.mark.parametrize(("values", "base"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_a_ratio_needs_two_pairs(values: list[float], base: list[float]) -> None:
    with pytest.raises(ValueError, match="as many values as bases"):
        paired(values, base)


def test_many_windows_use_the_last_t() -> None:
    assert paired([1.0, 1.1] * 20, [1.0] * 40).high > 1.05


def test_a_quotient_has_the_intervals_of_both() -> None:
    half, other = math.log(0.99 / 0.96), math.log(0.52 / 0.5)
    quotient = Ratio(0.96, 0.96**2 / 0.99, 0.99).over(Ratio(0.5, 0.5**2 / 0.52, 0.52))
    assert quotient.value == pytest.approx(1.92)
    assert math.log(quotient.high / quotient.value) == pytest.approx(math.hypot(half, other))
    assert quotient.low * quotient.high == pytest.approx(quotient.value**2)


def test_windows_stand_between_those_of_the_ceiling() -> None:
    assert beside([100, 121, 100]) == pytest.approx([110, 110])


def test_a_row_is_kept_and_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = gpu_rows.Rows("bench", tmp_path)
    rows.add("earlier", [1.0], "s")
    rows = gpu_rows.Rows("bench", tmp_path)
    rows.add("a thing", [3.0, 1.0, 2.0], "images/s", ratio=0.5, ratio_low=0.4, ratio_high=0.6, note="why")
    assert "a thing: 2 images/s (1..3, n=3)  ratio 0.5000 (0.4000..0.6000)  [why]" in capsys.readouterr().out
    (row,) = rows.own()
    assert (row["what"], row["median"], row["note"]) == ("a thing", 2.0, "why")


# Bytes


@given(st.floats(-4, 4), st.floats(-4, 4), st.floats(0.1, 5), st.floats(0.1, 5))
def test_a_rectangle_within_another_has_the_area_of_their_overlap(x: float, y: float, w: float, h: float) -> None:
    corners = np.array([[x, y], [x + w, y], [x + w, y + h], [x, y + h]])
    overlap = max(0.0, min(x + w, 3) - max(x, -1)) * max(0.0, min(y + h, 2) - max(y, -2))
    area = gpu_kernel.polygon_area_within(corners, np.array([-1.0, -2.0, 3.0, 2.0]))
    assert area == pytest.approx(overlap, abs=1e-9)


def test_a_turned_square_is_cut_at_its_corners() -> None:
    diamond = np.array([[2.0, 0.0], [4.0, 2.0], [2.0, 4.0], [0.0, 2.0]])
    assert gpu_kernel.polygon_area_within(diamond, np.array([0.0, 0.0, 4.0, 4.0])) == pytest.approx(8)
    assert gpu_kernel.polygon_area_within(diamond, np.array([1.0, 1.0, 3.0, 3.0])) == pytest.approx(4)
    assert gpu_kernel.polygon_area_within(diamond, np.array([0.0, 0.0, 2.0, 2.0])) == pytest.approx(2)
    assert gpu_kernel.polygon_area_within(diamond, np.array([5.0, 5.0, 6.0, 6.0])) == 0


def test_bytes_of_a_letterbox_are_those_of_its_picture(tmp_path: Path) -> None:
    store = converted(tmp_path, size_hw=((48, 64),))
    recipe = Samples(opened(store), imgsz=64, augment=False).recipe([0, 1])
    assert gpu_kernel.source_nbytes(recipe) == pytest.approx(2 * 3 * 48 * 64)


def test_bytes_of_what_a_zoom_leaves_out_do_not_count(tmp_path: Path) -> None:
    store = converted(tmp_path, size_hw=((64, 64),))
    still = {"translate": 0.0, "fliplr": 0.0, "mosaic": 0.0}
    recipe = Samples(opened(store), imgsz=64, policy=Policy(scale=(2.0, 2.0), **still)).recipe([0])
    assert gpu_kernel.source_nbytes(recipe) == pytest.approx(3 * 32 * 32)


# Batches of loaders


def test_loaders_whose_batches_differ_are_told() -> None:
    seen = {"boxes": 7.0, "mean": 110.0}
    assert gpu_loader.alike(seen, {"boxes": 7.5, "mean": 105.0}) is None
    assert "boxes differ" in str(gpu_loader.alike(seen, {"boxes": 14.0, "mean": 105.0}))


class Counting:
    """A loader whose batches are numbered."""

    dataset, sampler, batch_size, num_workers = None, None, 2, 0

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(4):  # epochs are shorter than windows
            yield {"img": torch.full((2,), next(self.numbers)), "cls": torch.zeros(3, 1), "im_file": ("a", "b")}


def handed_out(pairs: int, seconds: float = 60.0) -> tuple[list[int], gpu_train.Alternating]:
    """The numbers of the batches that a trainer gets which spoils each of them, as the real one does."""
    options = argparse.Namespace(steps=3, settle=1, warm_steps=2, pairs=pairs)
    loader = gpu_train.Alternating(Counting(), 5, options, time.monotonic() + seconds)
    numbers = []
    for batch in until_enough(loader):
        numbers.append(int(batch["img"][0]))
        batch["img"] = batch["img"].float() / 255
    return numbers, loader


def until_enough(loader: gpu_train.Alternating) -> Iterator[dict[str, Any]]:
    """The batches of a training that must be ended by its loader."""
    try:
        yield from loader
    except gpu_train.Enough:
        return
    raise AssertionError("the loader must end the training")


def test_candidate_and_ceiling_take_turns_and_what_was_made_ahead_is_thrown_away() -> None:
    numbers, loader = handed_out(2)
    first, rest = [0, 1, 2], [2] * 4
    second = [8, 9, 10, 11] + [11] * 4  # 3 to 7 were made ahead
    third = [17, 18, 19, 20] + [20] * 4
    assert numbers == first + rest + second + third
    assert (len(loader.candidate), len(loader.ceiling)) == (2, 3)
    assert all(window["objects"] == 1.5 for window in loader.candidate + loader.ceiling)


def test_no_window_begins_when_the_time_is_up() -> None:
    numbers, loader = handed_out(5, seconds=-1.0)
    assert numbers == [0, 1, 2, 2, 2, 2, 2]
    assert (len(loader.candidate), len(loader.ceiling)) == (0, 1)


class Clock:
    """A time that passes when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def test_waiting_for_a_batch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(gpu_train, "time", clock)

    class Slow(Counting):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for batch in super().__iter__():
                clock.now += 3.0
                yield batch

    options = argparse.Namespace(steps=4, settle=1, warm_steps=0, pairs=2)
    loader = gpu_train.Alternating(Slow(), 0, options, 1e9)
    for _ in until_enough(loader):
        clock.now += 1.0  # a step of the training
    rates = [[w["rate"] for w in windows] for windows in (loader.candidate, loader.ceiling)]
    assert rates == [[0.5, 0.5], [2.0, 2.0, 2.0]]  # two pictures a batch
    assert [w["waited"] for w in loader.candidate] == [0.75, 0.75]
    assert [w["waited"] for w in loader.ceiling] == [0, 0, 0]
    assert loader.first_s == 3.0
