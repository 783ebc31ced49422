"""What the GPU benchmarks share: a ratio with its interval, rows that are kept at once, processes of their own."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
from gpu_telemetry import gpu_facts

PACKAGES = (
    "numpy", "numba", "opencv-python-headless", "torch", "torchvision", "triton", "ultralytics-opencv-headless", "ultralytics",
    "nvidia-ml-py",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[1]

T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t with 1, 2, ... degrees of freedom, exceeded with a probability of 2.5 %. Beyond, the last one is a little wide."""


# Ratios


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of paired ratios, and the interval that holds the true one with 95 %, if the logarithms are normal."""

    value: float
    low: float
    high: float

    def over(self, other: Ratio) -> Ratio:
        """Return this ratio over an independent one; the halves of the intervals add up as squares."""
        half = math.hypot(math.log(self.high / self.value), math.log(other.high / other.value))
        value = self.value / other.value
        return Ratio(value, value * math.exp(-half), value * math.exp(half))


def paired(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return how values stand to what was measured beside each of them.

    Args:
        values: n >= 2 positive rates.
        base: As many, each measured next to the value.
    """
    if len(values) != len(base) or len(values) < 2:
        raise ValueError(f"there must be as many values as bases, at least 2, got {len(values)} and {len(base)}")
    logs = [math.log(v / b) for v, b in zip(values, base, strict=True)]
    mean, n = statistics.fmean(logs), len(logs)
    half = T975[min(n - 1, len(T975)) - 1] * statistics.stdev(logs) / math.sqrt(n)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def beside(ceiling: Sequence[float]) -> list[float]:
    """Return the geometric mean of each two neighbours: what n windows between n + 1 of the ceiling are measured against."""
    return [math.sqrt(a * b) for a, b in itertools.pairwise(ceiling)]


# Rows


class Rows:
    """Results of one script: each is appended to a file and printed as soon as it is known."""

    def __init__(self, bench: str, out: Path) -> None:
        self.bench, self.path = bench, out / f"{bench}.jsonl"
        out.mkdir(parents=True, exist_ok=True)
        self._from = len(self.path.read_text(encoding="utf-8").splitlines()) if self.path.exists() else 0

    def add(self, what: str, values: Sequence[float], unit: str, *, ratio: float | None = None, **more: Any) -> dict[str, Any]:
        """Keep a result, see :func:`record.row`."""
        row = record.row(self.bench, what, list(values), unit, packages=PACKAGES, ratio=ratio, **more)
        row["machine"] |= {"gpu": gpu_facts()}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        say(line_of(row))
        return row

    def own(self) -> list[dict[str, Any]]:
        """Return what was added since this object was made, by child processes too."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines[self._from :]]

    def table(self) -> None:
        """Print all of them once more, short."""
        say(f"--- {self.bench}")
        for row in self.own():
            say(line_of(row))


def line_of(row: Mapping[str, Any]) -> str:
    """Return a result in a line."""
    text = f"{row['what']}: {row['median']:,.4g} {row['unit']} ({row['low']:,.4g}..{row['high']:,.4g}, n={row['n']})"
    if row["ratio"] is not None:
        text += f"  ratio {row['ratio']:.4f}"
        text += f" ({row['ratio_low']:.4f}..{row['ratio_high']:.4f})" if row.get("ratio_low") is not None else ""
    return text + (f"  [{row['note']}]" if row.get("note") else "")


def say(text: str) -> None:
    """Print at once: a run that is stopped has said what it knew."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_child(arguments: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str] | None = None) -> bool:
    """Run a script in a process of its own, what it prints in a file; on failure say how that ends.

    Args:
        arguments: Of Python: the script and its arguments.
        log: For what it prints.
        limit_s: When it is ended, with the processes that it started.
        environment: More variables.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
            env=os.environ | {"YOLO_VERBOSE": "True", "PYTHONUNBUFFERED": "1"} | dict(environment or {}),
        )  # fmt: skip
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = f"ended after {limit_s:.0f} s"
        # Its workers too, also where it ended by itself: they would take the cores of what is measured next.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    if code != 0:
        end = log.read_text(encoding="utf-8", errors="replace")[-1800:]
        say(f"FAILED ({code}): {' '.join(arguments[1:])}\n{end}")
    return code == 0
