"""What the README says is so: its figures are those of the results, its Python runs, its commands exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tables() -> object:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_are_those_of_the_results() -> None:
    """Made by benchmarks/tables.py --write, from the newest rows."""
    made = tables()
    between = README.split(made.BEGIN)[1].split(made.END)[0].strip()  # type: ignore[attr-defined]
    assert between == made.block(made.newest(ROOT / "benchmarks" / "results"))  # type: ignore[attr-defined]


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """Each block, in an empty folder."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for code in blocks:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_training_of_the_readme_trains(tmp_path: Path) -> None:
    """The snippet as it stands, but for the size of things: an epoch of small pictures in place of a hundred of COCO."""
    small = f'epochs=1, imgsz=64, batch=4, device="cpu", plots=False, workers=0, amp=False, project="{tmp_path}/runs",'
    found = re.search(r"```python trainer\n(.*?)```", README, re.DOTALL)
    assert found
    code, count = re.subn(r"epochs=100, imgsz=640,", small, found[1])
    assert count == 1
    _train(tmp_path, code)


def test_the_lines_for_the_yolo_command_train(tmp_path: Path) -> None:
    """As a program with the command's arguments; the store is made in the cache folder."""
    found = re.search(r"```python yolo\n(.*?)```", README, re.DOTALL)
    assert found
    arguments = "detect train model=yolo11n.yaml data=coco.yaml epochs=1 imgsz=64 batch=4 device=cpu plots=False workers=0"
    arguments += f" amp=False project={tmp_path}/runs"
    _train(tmp_path, found[1], *arguments.split())


def _train(folder: Path, code: str, *arguments: str) -> None:
    made = "from fastdata.synth import write_dataset as w; import fastdata\n"
    made += "w('set', 16, size_hw=(64, 64), splits={'train': 0.5, 'val': 0.5}); fastdata.convert('set/data.yaml', 'coco.lmdb')"
    subprocess.run([sys.executable, "-c", made], cwd=folder, check=True, capture_output=True)
    (folder / "coco.yaml").write_text(f"path: {folder / 'set'}\n" + (folder / "set/data.yaml").read_text())
    home = {"YOLO_CONFIG_DIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=os.environ | home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.rglob("last.pt")), done.stdout


def test_every_command_and_option_of_the_readme_exists() -> None:
    """As --help of the commands says."""
    commands = set(re.findall(r"^fastdata (\w+)", README, re.MULTILINE))
    assert {"convert", "info", "verify", "show", "export", "doctor"} <= commands
    run = "import sys; from fastdata.cli import main; sys.argv[0] = 'fastdata'; main()"
    helps = "".join(
        subprocess.run([sys.executable, "-c", run, command, "--help"], capture_output=True, text=True, check=True).stdout
        for command in sorted(commands)
    )
    for option in set(re.findall(r"(--[a-z][a-z-]+)", README.split("<!--")[0])) - {"--help", "--version"}:
        assert option in helps or option == "--no-resume", option


def test_the_two_commands_exist_and_can_be_run() -> None:
    """tools/demo and tools/test are programs."""
    for name in ("demo", "test"):
        assert (ROOT / "tools" / name).stat().st_mode & 0o111
