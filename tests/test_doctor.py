"""The whole look at a machine: this one, through the same functions that the command calls."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastdata.diagnosis.finding import STATUSES, Finding
from fastdata.doctor import diagnose, render, to_json


def test_this_machine_is_looked_at_without_importing_torch() -> None:
    """In a fresh process: every part answers, and neither torch nor OpenCV was loaded for it."""
    code = (
        "import sys, json; from pathlib import Path; from fastdata.doctor import diagnose, to_json\n"
        "print(json.dumps([to_json(diagnose(Path('.'))), sorted({'torch', 'cv2', 'ultralytics'} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    content, loaded = json.loads(done.stdout)
    assert loaded == []
    names = [finding["name"] for finding in content["findings"]]
    assert len(set(names)) == len(names)
    assert set(names) >= {
        "python", "fastdata", "numpy", "opencv", "pillow", "simplejpeg", "PyTurboJPEG", "cores", "CPU quota", "memory",
        "memory limit", "shared memory", "open files", "disk free", "storage", "size", "torch",
    }  # fmt: skip
    assert sum(content["summary"].values()) == len(names)
    assert list(content["summary"]) == list(STATUSES)


def test_unknown_is_none_with_a_reason_and_a_fault_has_a_fix() -> None:
    """The invariant of a finding, on all that this machine gives."""
    for finding in diagnose(Path("/no/such/folder"), environment={"CUDA_LAUNCH_BLOCKING": "1"}):
        assert (finding.value is None) == (finding.status == "unknown")
        assert finding.why
        assert (finding.fix is not None) or finding.status in ("ok", "unknown")


def test_a_size_is_given_only_for_what_is_there(tmp_path: Path) -> None:
    """Without a path, or with one that is yet to be written, there is nothing to weigh."""
    assert "size" not in {f.name for f in diagnose()}
    assert "size" not in {f.name for f in diagnose(tmp_path / "new.lmdb")}
    assert "size" in {f.name for f in diagnose(tmp_path)}


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (3 << 30, "bytes", "3.0 GiB"),
        (64 << 20, "bytes", "64 MiB"),
        (2.5, "cores", "2.5 cores"),
        (8, "cores", "8 cores"),
        ("none", "", "none"),
    ],
)
def test_values_are_shown_as_a_person_reads_them(value: str | int | float, unit: str, shown: str) -> None:
    """With their unit; bytes as MiB or GiB."""
    assert str(Finding("x", value, "ok", "why", unit=unit)) == shown


def test_the_table_shows_every_finding_and_its_fix() -> None:
    """Nothing is cut off, at any width that a terminal has."""
    from rich.console import Console

    findings = [
        Finding("quota", 2.5, "warn", "too little", "ask for more", "cores"),
        Finding("disk", None, "unknown", "nobody [says]"),
        Finding("shm", 64 << 20, "bad", "a bus error", "--shm-size=8g", "bytes"),
    ]
    for width in (60, 80, 200):
        screen = io.StringIO()
        Console(width=width, file=screen).print(render(findings))
        for part in ("warn", "quota", "2.5 cores", "too little", "→ ask for more", "?", "nobody [says]", "bad", "64 MiB"):
            assert part in screen.getvalue()


def test_json_is_json() -> None:
    """No infinity, no NaN: any reader takes it."""
    text = json.dumps(to_json(diagnose()), allow_nan=False)
    assert json.loads(text)["findings"]
