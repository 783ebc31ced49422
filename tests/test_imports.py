"""What importing costs, what may import what, and proof that each of these checks can fail."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fastdata

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(fastdata.__file__).parent

TRAINERS = ("ultralytics", "yolov5", "yolox", "mmyolo", "mmdet", "mmengine")
"""Never imported by the package: some are AGPL-3.0, all are the user's to bring."""

EXTRAS = (
    "torch", "torchvision", "triton", "albumentations", "turbojpeg", "pynvml", "prometheus_client", "starlette", "uvicorn",
    "lmdb",
)  # fmt: skip
"""What the extras bring, and LMDB, which no part of the package needs to read a store."""

ONLY_WITH_EXTRA: dict[str, str] = {
    "fastdata.render.cuda_masks": "train",
    "fastdata.render.triton_draw": "train",
    "fastdata.render.triton_masks": "train",
    "fastdata.residency.triton_pull": "train",
}
"""Modules that may fail to import on a plain installation, and the extra that each needs."""


def modules() -> Iterator[str]:
    """Every module of the package, by name."""
    yield "fastdata"
    for found in pkgutil.walk_packages([str(PACKAGE)], "fastdata."):
        yield found.name


def third_party_after(code: str) -> set[str]:
    """Run ``code`` in a fresh process; return the packages in memory that neither Python nor NumPy brought."""
    probe = (
        "import json, sys, numpy\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        f"{code}\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(json.dumps(sorted(after - before - sys.stdlib_module_names)))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_numpy_and_nothing_heavier() -> None:
    """A program that only wants a store pays for NumPy alone."""
    assert third_party_after("import fastdata") == {"fastdata"}


@pytest.mark.parametrize("heavy", ["cv2", "PIL", "yaml"])
def test_the_import_check_sees_a_heavy_package(heavy: str) -> None:
    """Meta-test: the check above would fail if ``import fastdata`` loaded one of these."""
    assert heavy in third_party_after(f"import fastdata, {heavy}")


def test_opening_a_store_loads_no_decoder() -> None:
    """A training process that is handed pixels needs neither OpenCV nor Pillow nor a JPEG library to get at them."""
    assert third_party_after("import fastdata.store.read").isdisjoint({"cv2", "PIL", "simplejpeg", "turbojpeg", "torch"})


def test_no_module_loads_a_trainer() -> None:
    """Importing every module of the package brings in no trainer."""
    loaded = third_party_after("\n".join(f"import {name}" for name in modules() if name not in ONLY_WITH_EXTRA))
    assert loaded.isdisjoint(TRAINERS)


def test_the_trainer_check_sees_a_trainer(tmp_path: Path) -> None:
    """Meta-test: a module that brings in a trainer by a detour is seen. The trainer is a stand-in: the check goes by the name."""
    (tmp_path / "ultralytics.py").write_text("")
    (tmp_path / "detour.py").write_text("import ultralytics\n")
    loaded = third_party_after(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import fastdata, detour")
    assert not loaded.isdisjoint(TRAINERS)


def _import_without_extras(names: list[str]) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {EXTRAS!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n" + "\n".join(f"import {name}" for name in names)
    )
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_every_module_imports_without_the_extras() -> None:
    """A plain installation can import all of the package but the modules that say which extra they need."""
    done = _import_without_extras([name for name in modules() if name not in ONLY_WITH_EXTRA])
    assert done.returncode == 0, done.stderr


def test_the_check_on_extras_sees_one() -> None:
    """Meta-test: an import of an extra fails in the process of the check above."""
    assert "ModuleNotFoundError: lmdb" in _import_without_extras(["lmdb"]).stderr


IMPORT_NAMES = {
    "google-crc32c": "google_crc32c",
    "nvidia-ml-py": "pynvml",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "prometheus-client": "prometheus_client",
    "pyturbojpeg": "turbojpeg",
    "pyyaml": "yaml",
}
"""What a distribution is imported as, where the names differ."""


def imported(folder: Path) -> set[str]:
    """Every package that a file below ``folder`` imports anywhere, also within functions, but for Python's own and this one."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found |= {name.partition(".")[0] for name in names}
    return found - sys.stdlib_module_names - {"fastdata"}


def required() -> tuple[set[str], set[str]]:
    """What the distribution requires always, and with extras, by import name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        bare = {re.split(r"[\[<>=!~; ]", r)[0].lower() for r in requirements} - {project["name"]}
        return {IMPORT_NAMES.get(name, name) for name in bare}

    return names(project["dependencies"]), names([r for extra in project["optional-dependencies"].values() for r in extra])


def test_everything_imported_is_required_and_everything_required_is_imported() -> None:
    """A package that is there by luck, because another one brings it, is missing on the next machine."""
    core, extra = required()
    assert imported(PACKAGE) - core - extra == set()
    assert core - imported(PACKAGE) == set()


def test_the_check_on_requirements_sees_a_missing_one(tmp_path: Path) -> None:
    """Meta-test: an import within a function counts."""
    (tmp_path / "x.py").write_text("import os, json.decoder\ndef f():\n    import click.core\n    from attr import define\n")
    assert imported(tmp_path) == {"click", "attr"}


def test_all_is_sorted_and_every_public_name_resolves() -> None:
    """``from fastdata import *`` works, and ``dir`` shows what there is."""
    assert fastdata.__all__ == sorted(set(fastdata.__all__))
    assert dir(fastdata) == fastdata.__all__
    missing = []
    for name in fastdata.__all__:
        try:
            getattr(fastdata, name)
        except (ImportError, AttributeError) as e:
            missing.append(f"{name}: {e}")
    assert not missing


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy loader answers a wrong name as any module does."""
    with pytest.raises(AttributeError, match="no attribute 'Lodaer'"):
        _ = fastdata.Lodaer


# Borders between rooms. The contracts of every day stand in pyproject.toml; the walls below become contracts as soon as the room
# that they protect exists (import-linter refuses the name of a module that does not).


@dataclass(frozen=True)
class Wall:
    """No module of ``inside`` may import, directly or by detours, a module of ``never``."""

    name: str
    inside: str
    never: tuple[str, ...]


WALLS = (
    Wall(
        "The plan never sees pixels",
        "fastdata.augment",
        ("fastdata.store", "fastdata.images", "fastdata.render", "cv2", "PIL", "simplejpeg", "turbojpeg", "torch", "numba"),
    ),
    Wall(
        "A renderer never sees chance",
        "fastdata.render",
        ("fastdata.rng", "fastdata.augment.policy", "fastdata.augment.order", "fastdata.augment.plan", "random", "secrets"),
    ),
)


def lint(folder: Path, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package ``fastdata`` in ``folder``."""
    run = "import sys; sys.path.insert(0, sys.argv.pop(1)); from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", run, str(folder), "--no-logo", "--no-cache", "--config", str(config), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def lint_wall(folder: Path, config: Path, wall: Wall) -> subprocess.CompletedProcess[str]:
    """Run import-linter with ``wall`` as its one contract; ``config`` is written."""
    config.write_text(
        "[tool.importlinter]\nroot_package = 'fastdata'\ninclude_external_packages = true\nexclude_type_checking_imports = true\n"
        f"[[tool.importlinter.contracts]]\nid = 'wall'\ntype = 'forbidden'\nname = {json.dumps(wall.name)}\n"
        f"source_modules = [{json.dumps(wall.inside)}]\nforbidden_modules = {json.dumps(wall.never)}\n"
    )
    return lint(folder, config)


def test_the_walls_stand(tmp_path: Path) -> None:
    """Nothing behind a wall reaches what it must not see, by any chain of imports; a wall counts from the day its room exists."""
    for wall in WALLS:
        if wall.inside in set(modules()):
            done = lint_wall(ROOT, tmp_path / "wall.toml", wall)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("wall", WALLS, ids=lambda wall: wall.inside)
@pytest.mark.parametrize("breached", [False, True])
def test_a_breach_of_the_wall_by_a_detour_is_seen(wall: Wall, breached: bool, tmp_path: Path) -> None:
    """Meta-test: in a package made for it, the wall's contract fails on a chain of two imports and passes without it."""
    package = tmp_path / "fastdata"
    for name in {wall.inside, f"{wall.inside}.room", "fastdata.detour", *(n for n in wall.never if n.startswith("fastdata."))}:
        folder = package.joinpath(*name.split(".")[1:])
        for level in [folder, *folder.relative_to(tmp_path).parents]:
            if (at := tmp_path / level) != tmp_path:
                at.mkdir(parents=True, exist_ok=True)
                (at / "__init__.py").touch()
    (package.joinpath(*wall.inside.split(".")[1:]) / "room/__init__.py").write_text("import fastdata.detour\n")
    (package / "detour/__init__.py").write_text(f"def f():\n    import {wall.never[-1]}\n" if breached else "")
    done = lint_wall(tmp_path, tmp_path / "wall.toml", wall)
    assert (done.returncode != 0) == breached, done.stdout + done.stderr
    assert f"{wall.name} {'BROKEN' if breached else 'KEPT'}" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("errors.py", "import fastdata.store", "rooms"),
        ("stray.py", "", "rooms"),
        ("labels.py", "def f():\n    import cv2", "store-is-light"),
        ("boxes.py", "def f():\n    import ultralytics", "no-trainer"),
    ],
)
def test_the_contracts_see_a_breach(file: str, line: str, contract: str, tmp_path: Path) -> None:
    """Meta-test: each contract of pyproject.toml fails on a copy of the package with one bad line; a new module needs a row."""
    shutil.copytree(PACKAGE, tmp_path / "fastdata", ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / "fastdata" / file
    target.write_text((target.read_text() if target.exists() else "") + f"\n{line}\n")
    done = lint(tmp_path, ROOT / "pyproject.toml", "--contract", contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout or file.removesuffix(".py") in done.stdout


def _ruff(line: str, file: str) -> int:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--quiet", "--select", "TID,NPY", "--stdin-filename"]
    done = subprocess.run([*command, file, "-"], input=f"{line}\n", text=True, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    return done.returncode


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from numpy.random import default_rng",
        "import numpy as np\nnp.random.default_rng(0)",
        "import pickle",
        "from . import errors",
    ],
)
def test_the_style_check_refuses_chance_and_pickle(line: str) -> None:
    """Meta-test: import-linter does not see ``np.random`` nor what Python itself ships; ruff does."""
    assert _ruff(line, "fastdata/augment/plan.py") == 1


def test_chance_is_allowed_where_pictures_are_invented() -> None:
    """The exception of the rule above is as narrow as it says."""
    assert _ruff("import numpy.random", "fastdata/figures.py") == 0
