"""One line of ``results/*.jsonl``: a figure with the machine, the versions and the commit that it was measured on.

Results are appended, never edited. A figure is a median with its lowest and highest value, and where it can be, a ratio against
something measured in the same run, because absolute times of a shared machine mean little.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = RESULTS.parents[1]


def machine() -> dict[str, Any]:
    """Say what this machine is."""
    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    except OSError:
        pass
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "gpu": None}


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the version of Python and of each package that is installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Return the commit that is checked out, with a mark when the tree differs from it.

    ``FASTDATA_COMMIT`` says it where the tree is a copy without its repository.
    """
    if told := os.environ.get("FASTDATA_COMMIT"):
        return told
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if head.returncode:
        return "unknown"
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "fastdata"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def row(
    bench: str,
    what: str,
    values: Sequence[float],
    unit: str,
    *,
    packages: Sequence[str],
    ratio: float | None = None,
    against: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return one result.

    Args:
        bench: Name of the script.
        what: What was measured.
        values: One per repetition.
        unit: Of the values.
        packages: Whose versions matter.
        ratio: The median against something measured in the same run.
        against: What that is.
        more: Anything else worth keeping.
    """
    return {
        "bench": bench,
        "what": what,
        "value": statistics.median(values),
        "unit": unit,
        "ratio": ratio,
        "against": against,
        "n": len(values),
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        **more,
        "machine": machine(),
        "versions": versions(packages),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def append(name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Append rows to ``results/<name>.jsonl``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    with open(path, "a", encoding="utf-8") as out:
        out.writelines(json.dumps(r) + "\n" for r in rows)
    return path
