"""Carry out a case: copy its folder, do what ``do`` says with the public functions, hand every outcome to the checks.

A case is ``<shared>/cases/<id>/case.json`` with its ``input`` folder; the format is described in the README beside them. Every
conversion is done twice, into an LMDB file and into a folder of shards, each from a copy of its own.

Whatever a case asks for, a conversion must leave its source as it was (bytes, times, names), write nothing into the folder in
which it was started, and start no process: the sets are too small for workers.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastdata
from cases.checks import Outcome, UnknownWord, complaints
from cases.stores import run_store_case
from fastdata.conversion.options import ConvertOptions
from fastdata.errors import FastdataError
from fastdata.sources.scan import SourceOptions

TESTS = Path(__file__).resolve().parents[1]
CASES_FOLDER = Path(os.environ.get("FASTDATA_SHARED", TESTS.parents[1] / "shared")).resolve() / "cases"

BACKENDS = {"lmdb": "store.lmdb", "shards": "store"}
"""Name of the store that makes ``convert`` write each of them."""

NOT_YET = {"mon-field-errors": "fastdata.monitor", "mon-visible-index": "fastdata.monitor"}
"""Cases that need a part of the package which is not there. As soon as it can be imported, they count."""

DISPUTED: dict[str, str] = {}
"""Cases that ask for the wrong thing, and why."""

OPTIONS = {"imgsz", "codec", "max_pixels"}
SOURCE_OPTIONS = {"on_error", "single_cls", "names", "task", "voc_origin"}


@dataclass(frozen=True, slots=True)
class Case:
    """One folder."""

    folder: Path
    content: dict[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """Name of the folder, and the id."""
        return self.folder.name

    @property
    def converts(self) -> bool:
        """Whether it begins with a conversion."""
        do = self.content["do"]
        return "convert" in do.get("steps", [do])[0]

    @property
    def plans(self) -> bool:
        """Whether it is about a geometric step."""
        do = self.content["do"]
        return "plan" in do.get("steps", [do])[0]

    @property
    def missing(self) -> str | None:
        """The module that this case needs and that is not there."""
        module = NOT_YET.get(self.id)
        return module if module is not None and importlib.util.find_spec(module) is None else None


def load_cases(folder: Path = CASES_FOLDER) -> list[Case]:
    """Read every case, in the order of their ids."""
    found = sorted(folder.glob("*/case.json"))
    return [Case(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in found]


Check = Callable[[dict[str, Any], Outcome, dict[str, Any] | None], list[str]]
"""What judges an outcome: :func:`complaints`, but where the judge itself is tested."""


def run_case(case: Case, folder: Path, *, backends: Collection[str] = tuple(BACKENDS), check: Check = complaints) -> None:
    """Carry out a case and check what comes out.

    Args:
        case: The case.
        folder: An empty folder to work in.
        backends: Where conversions go.
        check: Judges each conversion.

    Raises:
        AssertionError: It does not come out as it must, with everything that is wrong.
        ModuleNotFoundError: It needs a part of the package that is not there; what can be done without it has been done.
    """
    from cases.loading import RUNS  # heavy, and not for a process whose memory is measured
    from cases.plans import run_plan_case

    do, expect = case.content["do"], case.content["expect"]
    if "store" in do:
        run_store_case(do["store"], expect, folder)
        return
    if case.plans:
        run_plan_case(do, expect, case.folder, folder)
        return
    for name, run in RUNS.items():
        if name in do:
            run(do[name], expect, folder)
            return
    if case.converts:
        steps = do.get("steps", [do])
        answers = expect["steps"] if "steps" in do else [expect]
        for backend in backends:
            _run_steps(case, steps, answers, folder / backend, backend, check)
    if case.id in NOT_YET:
        importlib.import_module(NOT_YET[case.id])
        raise UnknownWord(f"{case.id}: {NOT_YET[case.id]} is there, so the runner must learn to do {sorted(do)}")
    if not case.converts:
        raise UnknownWord(f"{case.id}: the runner must know how to do {sorted(do)}")


def _run_steps(case: Case, steps: list[dict[str, Any]], answers: list[Any], folder: Path, backend: str, check: Check) -> None:
    from cases.loading import READ_TWICE, read_twice_complaints

    root = copy_case(case, folder / case.id)
    out = folder / "out" / BACKENDS[backend]
    elsewhere = folder / "started here"
    out.parent.mkdir()
    elsewhere.mkdir()
    for number, (step, expect) in enumerate(zip(steps, answers, strict=True), 1):
        wrong: list[str] = []
        if "convert" in step:
            outcome = convert_step(step, expect, root, out, elsewhere)
            wrong = check({key: value for key, value in expect.items() if key not in READ_TWICE}, outcome, step.get("then"))
            if "read_index_twice" in step:
                wrong += read_twice_complaints(step, expect, outcome)
        elif "replace" in step and expect is None:
            for target, source in step["replace"].items():
                shutil.copyfile(root / source, root / target)
        elif "verify" in step:
            wrong = _verify_complaints(expect, out, root, step["verify"])
        else:
            raise UnknownWord(f"{case.id}: the runner must know how to do {sorted(step)}")
        assert not wrong, f"{case.id}, {backend}, step {number}:\n  " + "\n  ".join(wrong)


def _verify_complaints(expect: dict[str, Any], out: Path, root: Path, source: str) -> list[str]:
    before = snapshot(root)
    verdict = fastdata.verify(out, source=root / source)
    wrong = []
    if sorted(verdict.changed) != sorted(expect["changed"]) or verdict.added or verdict.removed:
        wrong.append(f"changed must be {expect['changed']} and nothing else, got {verdict}")
    if verdict.faults:
        wrong.append(f"the store itself must be whole, got {verdict.faults}")
    if snapshot(root) != before:
        wrong.append("no source file may change")
    return wrong


def copy_case(case: Case, to: Path) -> Path:
    """Copy a case byte for byte, with every file writable, then do what ``setup`` says."""
    shutil.copytree(case.folder, to)
    for path in (to, *to.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    setup = case.content["do"].get("setup", [])
    for item in [setup] if isinstance(setup, dict) else setup:
        (to / item["link"]).parent.mkdir(parents=True, exist_ok=True)
        (to / item["link"]).symlink_to(to / item["to"])
    return to


def options_of(step: dict[str, Any], root: Path) -> ConvertOptions:
    """Translate a case's words into the package's."""
    said = step.get("options", {})
    unknown = said.keys() - OPTIONS - SOURCE_OPTIONS
    assert not unknown, f"the runner must know the options {sorted(unknown)}"
    source = SourceOptions(
        splits=(step["split"],) if "split" in step else None,
        images=root / step["images"] if "images" in step else None,
        labels=root / step["labels"] if "labels" in step else None,
        **{k: tuple(v) if k == "names" else v for k, v in said.items() if k in SOURCE_OPTIONS},
    )
    kept = {"imgsz": None, "codec": "raw"} | {k: v for k, v in said.items() if k in OPTIONS}
    return ConvertOptions(source=source, kind=step["format"], **kept)


def convert_step(step: dict[str, Any], expect: dict[str, Any], root: Path, out: Path, elsewhere: Path) -> Outcome:
    """Convert, and see what came of it.

    Args:
        step: What to convert and how.
        expect: What must come out; a limit of time or memory makes the conversion run in a process of its own.
        root: The copy of the case.
        out: The store; replaced if a step before has made it.
        elsewhere: Where the program is started, unless the step says so.
    """
    cwd = root / step["cwd"] if "cwd" in step else elsewhere
    before, here_before, store_before = snapshot(root), snapshot(elsewhere), snapshot(out)
    report = out.parent / "report.json"
    report.unlink(missing_ok=True)
    is_limited = "max_seconds" in expect or "max_memory_mb" in expect
    outcome = Outcome(out=out, root=root / "input", split=step.get("split"))
    if is_limited:
        _convert_limited(step, root, out, cwd, report, outcome)
    else:
        with _inside(cwd), watch() as outcome.started:
            try:
                fastdata.convert(root / step["convert"], out, options_of(step, root), overwrite=True, report=report)
            except FastdataError as err:
                outcome.error = str(err)
    if report.exists():
        outcome.report = json.loads(report.read_text(encoding="ascii"))
    outcome.touched = sorted(
        str(path) for a, b in ((before, snapshot(root)), (here_before, snapshot(elsewhere))) for path, _ in a.items() ^ b.items()
    )
    outcome.is_replaced = snapshot(out) != store_before
    return outcome


LIMITED = """
import json, resource, sys, time
from pathlib import Path
import fastdata
from cases.runner import options_of
step, root, out, report, memory_mb = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
error, began = None, time.monotonic()
try:
    fastdata.convert(Path(root, step["convert"]), out, options_of(step, Path(root)), overwrite=True, report=report)
except fastdata.FastdataError as err:
    error = str(err)
seconds = time.monotonic() - began
peak_kb = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([error, seconds, int(peak_kb) / 1024]))
"""
"""VmHWM and not ``ru_maxrss``: that one starts from the parent's size when a process is made by vfork."""

GUARD_MB = 8192
"""Address space of a process of its own, so that a bomb does not take the machine; libraries map far more than they use."""


def _convert_limited(step: dict[str, Any], root: Path, out: Path, cwd: Path, report: Path, outcome: Outcome) -> None:
    arguments = json.dumps([step, str(root), str(out), str(report), GUARD_MB])
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome.error, outcome.seconds, outcome.memory_mb = json.loads(done.stdout)


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Describe everything below a folder: kind, mode, time of change and content. A file made and removed again shows too."""
    out: dict[str, tuple[Any, ...]] = {}
    for path in (folder, *folder.rglob("*")) if folder.exists() else ():
        info = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(info.st_mode) else os.readlink(path).encode() if path.is_symlink() else b""
        out[str(path)] = (info.st_mode, info.st_mtime_ns, info.st_size, hashlib.sha256(content).hexdigest())
    return out


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


STARTS = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "socket.connect",
    "socket.getaddrinfo",
}  # fmt: skip
"""Audit events of the interpreter (PEP 578) for a new process, another program or the network."""

_listeners: list[Callable[[str], None]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _listeners and (event in STARTS or (event == "import" and str(arguments[0]).split(".")[0] in ("pip", "ensurepip"))):
        for listener in _listeners:
            listener(f"{event} {arguments!r:.200}")


sys.addaudithook(_hear)  # cannot be removed, so it asks who listens


@contextmanager
def watch() -> Iterator[list[str]]:
    """Collect what is started, installed or reached for while the block runs."""
    heard: list[str] = []
    _listeners.append(heard.append)
    try:
        yield heard
    finally:
        _listeners.remove(heard.append)
