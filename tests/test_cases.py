"""Every shared case, one test each; and proof that the runner notices when something is wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases.checks import Outcome, complaints
from cases.loading import RUNS
from cases.mutants import mutants, result_mutants
from cases.plans import carry_out, plan_complaints, steps_of
from cases.runner import DISPUTED, NOT_YET, Case, load_cases, run_case, snapshot, watch

CASES = load_cases()


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    """A case that cannot pass must fail, for the reason that is written down; else the mark is out of date."""
    if case.missing is not None:
        reason = f"needs {case.missing}, which is not built yet"
        return [pytest.mark.xfail(strict=True, raises=ModuleNotFoundError, reason=reason)]
    if case.id in DISPUTED:
        return [pytest.mark.xfail(strict=True, raises=AssertionError, reason=DISPUTED[case.id])]
    return []


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=marks_of(case)) for case in CASES])
def test_the_case_comes_out_as_it_must(case: Case, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """What ``case.json`` says, on both backends."""
    record_property("case", case.id)
    record_property("area", case.content["area"])
    run_case(case, tmp_path)


def test_there_are_cases_and_each_is_named_like_its_folder(shared: Path) -> None:
    """An empty folder would pass everything above."""
    folders = {path.name for path in (shared / "cases").iterdir() if path.is_dir()}
    assert {case.id for case in CASES} == {case.content["id"] for case in CASES} == folders
    assert len(folders) > 50
    assert NOT_YET.keys() | DISPUTED.keys() <= folders


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if case.converts and case.missing is None])
def test_every_wrong_expectation_is_noticed(case: Case, tmp_path: Path) -> None:
    """A check that cannot fail is none: each thing that a case says, said wrong, must be complained about."""
    tried = []

    def check(expect: dict[str, Any], outcome: Outcome, then: dict[str, Any] | None) -> list[str]:
        assert complaints(expect, outcome, then) == []
        wrong = list(mutants(expect))
        tried.extend(wrong)
        return [f"not noticed: {name}" for name, mutant in wrong if not complaints(mutant, outcome, then)]

    run_case(case, tmp_path, backends=["shards"], check=check)
    assert len(tried) > 0


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if case.plans])
def test_every_wrong_result_of_a_plan_is_noticed(case: Case, tmp_path: Path) -> None:
    """The same for geometric steps: labels, pixels, pads and gains."""
    for number, step, want in steps_of(case.content["do"], case.content["expect"]):
        result = carry_out(step, case.folder, tmp_path / str(number))
        assert plan_complaints(want, result) == []
        for name, mutant in result_mutants(want):
            assert plan_complaints(mutant, result), f"step {number}, not noticed: {name}"


@pytest.mark.parametrize(
    ("id", "do", "expect"),
    [
        ("aug-close-in-workers", {"close_mosaic": 3}, {}),
        ("aug-close-in-workers", {"mosaic": 0.0}, {}),
        ("aug-close-in-workers", {}, {"after_close": {"colours_per_sample_max": 1, "labels_per_sample": 2}}),
        ("aug-close-in-workers", {}, {"after_close": {"colours_per_sample_max": 0, "labels_per_sample": 1}}),
        ("smp-rank-order", {}, {"per_rank_per_epoch": 11}),
        ("smp-rank-order", {}, {"each_epoch": {"union": 23, "overlap": 1}}),
    ],
)
def test_a_wrong_word_about_loading_is_noticed(id: str, do: dict[str, Any], expect: dict[str, Any], tmp_path: Path) -> None:
    """Other numbers in the case, or other answers: not the same outcome."""
    case = next(case for case in CASES if case.id == id)
    (name, step), *_ = case.content["do"].items()
    step = step | ({"start_methods": ["fork"]} if "start_methods" in step else {})
    with pytest.raises(AssertionError):
        RUNS[name](step | do, case.content["expect"] | expect, tmp_path)


@pytest.mark.parametrize("name", ["labels", "store", "pixels"])
def test_a_sample_that_is_not_the_same_twice_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that wander, bytes of the store that change, pixels that differ."""
    from fastdata.samples import Samples

    draw, calls = Samples.draw, iter(range(99))

    def wandering(self: Samples, ids: Any, epoch: int = 0) -> Any:
        recipe, images = draw(self, ids, epoch)
        match name:
            case "labels":
                moved = recipe.labels.xyxy_px + np.float32(next(calls))
                return replace(recipe, labels=replace(recipe.labels, xyxy_px=moved)), images
            case "pixels":
                return recipe, images + np.uint8(next(calls))
        with next(path for path in (self.store.path, *self.store.path.glob("*")) if path.is_file()).open("ab") as file:
            file.write(b"more")
        return recipe, images

    monkeypatch.setattr(Samples, "draw", wandering)
    case = next(case for case in CASES if case.id == "aug-read-twice")
    with pytest.raises(AssertionError, match="must be the same"):
        run_case(case, tmp_path, backends=["shards"])


def test_a_process_a_program_or_a_connection_is_noticed() -> None:
    """Whatever a conversion might start, and nothing of what is started outside the watch."""
    subprocess.run([sys.executable, "-c", ""], check=True)
    with watch() as heard:
        pass
    assert heard == []
    for start in (
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: socket.getaddrinfo("localhost", 1),
    ):
        with watch() as heard:
            start()
        assert heard


def test_any_trace_in_a_folder_is_noticed(tmp_path: Path) -> None:
    """Content, time, mode, a new name, and a file that came and went."""
    file = tmp_path / "a" / "b.txt"
    file.parent.mkdir()
    file.write_text("one")
    os.utime(file, ns=(0, 0))

    def come_and_go() -> None:
        (tmp_path / "a" / "c").touch()
        (tmp_path / "a" / "c").unlink()

    changes = (
        lambda: file.write_text("two"),
        lambda: os.utime(file, ns=(0, 1)),
        lambda: file.chmod(0o600),
        lambda: (tmp_path / "a" / "d").symlink_to(file),
        come_and_go,
    )
    for change in changes:
        before = snapshot(tmp_path)
        assert snapshot(tmp_path) == before
        change()
        assert snapshot(tmp_path) != before
