"""Fixtures that every test may use, and a table of the cases at the end of a run."""

from __future__ import annotations

import glob
import os
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

# Before anything imports Triton: where there is no GPU, its interpreter runs the kernels, so that their logic is tested anyway.
if not glob.glob("/dev/nvidia[0-9]*") and os.environ.get("FASTDATA_REQUIRE_CUDA") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes depends on who else uses the machine: a test says what holds, not how fast.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared datasets and cases: ``FASTDATA_SHARED``, else ``../shared`` beside the project.

    Many of them have no licence to ship, so a clone may be without them; continuous integration may not.
    """
    root = Path(os.environ.get("FASTDATA_SHARED", Path(__file__).resolve().parents[2] / "shared")).resolve()
    if not root.is_dir():
        why = f"shared datasets must lie at FASTDATA_SHARED or beside the project, got none at {root}"
        if os.environ.get("CI") or "FASTDATA_SHARED" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    return root


OUTCOMES = {"passed": "pass", "failed": "FAIL", "error": "FAIL", "xfailed": "not yet", "xpassed": "FAIL", "skipped": "skipped"}
"""How the table names what pytest counts; a case that passes against its mark is a failure of the mark."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each case with its area and outcome, and how many came out how, by area."""
    rows = {}
    for outcome, word in OUTCOMES.items():
        for report in terminalreporter.stats.get(outcome, []):
            said = dict(getattr(report, "user_properties", ()))
            if "case" in said:
                rows[said["case"]] = (said["area"], word)
    if not rows:
        return
    terminalreporter.section("cases")
    width = max(map(len, rows))
    for case, (area, word) in sorted(rows.items()):
        terminalreporter.write_line(f"{case:{width}}  {area:8}  {word}", red=word == "FAIL")
    for area in sorted({area for area, _ in rows.values()}):
        counts = Counter(word for other, word in rows.values() if other == area)
        terminalreporter.write_line(f"{area:{width}}  " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    total = Counter(word for _, word in rows.values())
    terminalreporter.write_line(f"{len(rows)} cases: " + ", ".join(f"{count} {word}" for word, count in sorted(total.items())))
