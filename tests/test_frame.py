"""The frame around the package: the wheel, its version, and the scripts that a bare machine runs."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import fastdata

ROOT = Path(__file__).resolve().parents[1]
BASH = shutil.which("bash") or "bash"
SCRIPTS = ("tools/demo", "tools/test", "tools/check", "tools/environment.sh", ".ci/run")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, as ``pip install`` of a clone would build it, without the network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("fastdata", "tests"):  # tests lie beside the package: they must stay out of the wheel
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "-w", str(out), "."], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module and the typing marker are in it; tests are not."""
    with zipfile.ZipFile(wheel) as z:
        inside = {name for name in z.namelist() if ".dist-info/" not in name}
    files = (p for p in (ROOT / "fastdata").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    source = {p.relative_to(ROOT).as_posix() for p in files}
    assert inside == source
    assert "fastdata/py.typed" in inside


def test_the_wheel_says_name_version_licence_and_command(wheel: Path) -> None:
    """The metadata agree with the package and with what the README promises."""
    with zipfile.ZipFile(wheel) as z:
        (metadata,) = (name for name in z.namelist() if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(z.read(metadata))
        commands = z.read(metadata.replace("METADATA", "entry_points.txt")).decode()
        licences = [name for name in z.namelist() if name.endswith("licenses/LICENSE")]
    assert message["Name"] == "fastdata-yolo"
    assert message["Version"] == fastdata.__version__
    assert message["License-Expression"] == "Apache-2.0"
    assert message["Requires-Python"] == ">=3.11"
    assert licences
    assert "fastdata = fastdata.cli:main" in commands
    assert set(message.get_all("Provides-Extra", [])) == {"train", "decode", "albumentations", "turbojpeg", "monitor", "all"}
    if (ROOT / "README.md").exists():
        assert message.get_payload() == (ROOT / "README.md").read_text()


def test_the_wheel_imports_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """What is installed does not lean on the source tree."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as z:
        z.extractall(site)
    code = "import fastdata, fastdata.errors, fastdata.sources.scan; print(fastdata.__file__, fastdata.__version__)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(site / "fastdata/__init__.py"), fastdata.__version__]


def test_the_version_stands_in_one_place_and_in_the_changelog() -> None:
    """``fastdata.__version__`` is the one source; the newest entry of the changelog is about it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
    entries = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert entries[0] == fastdata.__version__


def test_every_test_requirement_is_pinned() -> None:
    """A run of today and a run of next year use the same tools."""
    lines = (re.sub(r"\s*#.*", "", line) for line in (ROOT / "tests/requirements.txt").read_text().splitlines())
    requirements = [line for line in lines if line]
    assert len(requirements) > 10
    assert [line for line in requirements if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line)] == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_valid_bash_and_can_be_run(script: str) -> None:
    """Bash reads it without a word, and what is a command has its mode set."""
    path = ROOT / script
    done = subprocess.run([BASH, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(path, os.X_OK) != script.endswith(".sh")


def _make_environment(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = 'set -euo pipefail; source "$1"; root=$2; shift 2; make_environment "$root" ".venv test" "$@"'
    command = [BASH, "-c", script, "tools/this", str(ROOT / "tools/environment.sh"), str(root), *arguments]
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(root), **environment}
    return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False)


def _empty_wheel(folder: Path) -> str:
    name = "nothing_at_all-1.0"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as z:
        z.writestr("nothing_at_all.py", "")
        z.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing-at-all\nVersion: 1.0\n")
        z.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{name}.dist-info/RECORD", "")
    return f"{name}-py3-none-any.whl"


@pytest.mark.slow
def test_an_environment_is_made_once_and_again_when_its_requirements_change(tmp_path: Path) -> None:
    """From any folder, with a space in the path: made, kept, made anew after an edit; a half-made one counts as none."""
    root = tmp_path / "a clone"
    root.mkdir()
    (root / "pyproject.toml").write_text("# first\n")
    arguments = ("--no-index", _empty_wheel(root))
    done = _make_environment(root, *arguments)
    assert done.returncode == 0, done.stderr
    python = root / ".venv test/bin/python"
    subprocess.run([python, "-c", "import nothing_at_all"], check=True)

    marker = root / ".venv test/marker"
    marker.touch()
    done = _make_environment(root, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert marker.exists()

    (root / "pyproject.toml").write_text("# second\n")
    (root / arguments[-1]).unlink()
    done = _make_environment(root, *arguments)
    assert done.returncode != 0
    assert not marker.exists()
    assert not (root / ".venv test/stamp").exists()


def test_an_old_python_is_refused_by_name(tmp_path: Path) -> None:
    """``PYTHON`` that is not a Python 3.11 is an error that says so, not a fallback to another one."""
    done = _make_environment(tmp_path, "nothing", PYTHON="/bin/false")
    assert done.returncode == 1
    assert "PYTHON must name a Python 3.11 or later, got /bin/false" in done.stderr


def test_no_python_at_all_says_what_to_install(tmp_path: Path) -> None:
    """A machine without a new enough Python gets the command that brings one."""
    done = _make_environment(tmp_path, "nothing", PATH=str(tmp_path))
    assert done.returncode != 0
    assert "apt-get install python3 python3-venv" in done.stderr
