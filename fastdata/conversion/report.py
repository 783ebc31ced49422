"""The count of everything a conversion saw, and the report that lists what it changed.

Invariants: ``images_in = stored + skipped``; ``rows_in = kept + dropped + rows_of_skipped``. :meth:`Tally.check` holds them at
the end of every run.

A report is JSON: ``{"summary": {...}, "skipped": [...], "problems": [...]}``, same order and same bytes on every run. While a
conversion runs, its rows are JSON lines in the staging folder, so that memory does not grow with the number of problems.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

from fastdata.catalog import Catalog
from fastdata.errors import UsageError
from fastdata.problems import Problem, Skip


@dataclass(slots=True)
class Tally:
    """Counts of one conversion."""

    images_in: int = 0
    stored: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """By reason."""
    background: int = 0
    """Stored images without any label row left."""
    rows_in: int = 0
    kept: int = 0
    crowd: int = 0
    """Of the kept ones."""
    dropped: int = 0
    rows_of_skipped: int = 0
    """Rows that went with images that were not stored."""
    problems: dict[str, int] = field(default_factory=dict)
    """By kind, notes included."""
    truncated_kept: int = 0
    """Pictures of which only a part could be decoded, kept on request."""
    recoded: int = 0
    """Codec original: pictures that had to be encoded anew."""
    shared: int = 0
    """Entries that show the picture of an earlier split and store no bytes of their own."""
    payload_nbytes: int = 0

    def skip(self, skip: Skip) -> None:
        """Count one image that is not stored."""
        self.skipped[skip.reason] = self.skipped.get(skip.reason, 0) + 1

    def problem(self, problem: Problem) -> None:
        """Count one problem; rows dropped by a reader are counted by the reader."""
        self.problems[problem.kind] = self.problems.get(problem.kind, 0) + 1

    def check(self) -> None:
        """Hold the two invariants: a difference means that something was lost silently."""
        assert self.images_in == self.stored + sum(self.skipped.values()), self
        assert self.rows_in == self.kept + self.dropped + self.rows_of_skipped, self

    def to_json(self) -> dict[str, Any]:
        """Return the counts; reasons and kinds sorted by name."""
        out = asdict(self)
        for name in ("skipped", "problems"):
            out[name] = dict(sorted(out[name].items()))
        return out

    @classmethod
    def from_json(cls, counts: dict[str, Any]) -> Self:
        """Return the tally that :meth:`to_json` wrote."""
        return cls(**counts)


def line(item: Skip | Problem) -> bytes:
    """Return one line of the running report."""
    kind = "skip" if isinstance(item, Skip) else "problem"
    return json.dumps({kind: item.to_json()}, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def parse(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ("skip" | "problem", row) for each line of a running report."""
    for text in lines:
        yield from json.loads(text).items()


def check_report(path: Path) -> None:
    """Refuse, before anything is done, a place where a report cannot or must not be written.

    Raises:
        UsageError: The folder is missing, or a file that is no earlier report lies there.
    """
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder of {path} must exist, got none; make it with: mkdir -p '{path.absolute().parent}'")
    if path.is_dir():
        raise UsageError(f"report must be a file, got the folder {path}")
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            if file.read(len(BEGINS)) != BEGINS:
                raise UsageError(
                    f"report must be new or an earlier report, got {path}, which is something else; choose another name"
                )


BEGINS = b'{"summary":'
"""How every report begins."""


def write_report(path: Path, summary: dict[str, Any], log: Path | None) -> None:
    """Write the report beside its final name and rename it there.

    Args:
        path: The report.
        summary: What stands first in it.
        log: The running report, JSON lines; ``None`` for none.
    """
    if path.exists() and not path.is_file():  # a pipe, or /dev/stdout: written to, not replaced
        with open(path, "w", encoding="ascii") as out:
            _write(out, summary, log)
        return
    path = Path(os.path.realpath(path))
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "w", encoding="ascii") as out:
            _write(out, summary, log)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _write(out: TextIO, summary: dict[str, Any], log: Path | None) -> None:
    out.write('{"summary": ' + json.dumps(summary))
    for name, kind in (("skipped", "skip"), ("problems", "problem")):
        out.write(f',\n"{name}": [')
        separator = "\n"
        if log is not None:
            with open(log, "rb") as lines:
                for found, row in parse(lines):
                    if found == kind:
                        out.write(separator + json.dumps(row))
                        separator = ",\n"
        out.write("]")
    out.write("}\n")


def kept_in(catalog: Catalog) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of the report that a store keeps, as :func:`parse` does."""
    return parse(catalog.column("problems").tobytes().splitlines())
