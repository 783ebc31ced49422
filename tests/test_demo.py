"""The tour runs to its end, on a machine without torch, without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2

RUN = """
import sys
sys.modules["torch"] = None
from fastdata.cli import main
sys.argv = ["fastdata", "demo", "tour", "--images", "24"]
main()
"""


def test_the_tour_shows_everything_and_warns_of_nothing(tmp_path: Path) -> None:
    """Both stores, both sheets, and figures of this very run."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "warning" in line.lower()]
    assert said == []
    for sheet in ("sheet.png", "samples.png"):
        assert cv2.imread(str(tmp_path / "tour" / sheet)) is not None
    assert "augmented training samples for detection" in done.stdout
    assert "24 pictures, one core" in done.stdout
