"""Look at the machine that a training is to run on, and say what slows it down, with one fix each.

Reads files of the kernel, package metadata and the environment; imports no torch (3 s) and changes nothing. What cannot be told
is ``None`` with the reason, never a guess.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastdata.diagnosis import environment as flags
from fastdata.diagnosis import gpu, machine, software
from fastdata.diagnosis.finding import STATUSES, Finding
from fastdata.host import KERNEL, Roots, affinity_cores, usable_cores

if TYPE_CHECKING:
    from rich.table import Table


def diagnose(
    path: Path | None = None,
    *,
    roots: Roots = KERNEL,
    environment: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Look at everything.

    Args:
        path: A dataset, a store, or where one is to be written; its size and the disk below it are looked at. Without it, the
            disk below the current folder.
        roots: Where the kernel's files are.
        environment: The variables to judge; those of this process by default.

    Returns:
        Findings in the order in which a person would want to read them.
    """
    findings = [
        *software.packages(),
        *machine.cores(roots),
        *machine.main_memory(roots),
        machine.shared_memory(Path("/dev/shm")),
        machine.open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        *machine.disk(path or Path(), roots),
    ]
    if path is not None and path.exists():
        findings.append(machine.size(path, roots))
    findings += [*gpu.torch_build(roots), *gpu.gpus(roots)]
    findings += flags.variables(os.environ if environment is None else environment, usable_cores(roots), affinity_cores())
    return findings


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as one JSON document, with the number of each status."""
    counts = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    return {"summary": counts, "findings": [asdict(finding) for finding in findings]}


def render(findings: Sequence[Finding]) -> Table:
    """Return findings as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "bad": "bold red", "unknown": "dim"}
    table = Table(box=None, pad_edge=False, show_header=False)
    for overflow in ("ignore", "ignore", "fold"):
        table.add_column(no_wrap=overflow == "ignore")
    table.add_column(ratio=1)
    for finding in findings:
        why = Text(finding.why)
        if finding.fix:
            why.append(f"\n→ {finding.fix}", style="bold")
        table.add_row(Text(finding.status, style=styles[finding.status]), Text(finding.name), Text(str(finding)), why)
    return table
