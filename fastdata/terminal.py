"""What the command line shows: progress, tables, errors. Machine output goes to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console

LOG_COLUMNS = 160

QUIET_EVERY_S = 10.0
"""Without a terminal, one line of progress every so often: enough for a log, too little to fill it."""


class Step(Protocol):
    """What a progress display needs to know of a listener's message."""

    @property
    def stage(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def resumed(self) -> int: ...


def stdout() -> Console:
    """Return a console for results."""
    from rich.console import Console

    return Console(highlight=False, width=_width(sys.stdout))


def stderr() -> Console:
    """Return a console for progress, warnings and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, width=_width(sys.stderr))


def _width(stream: TextIO) -> int | None:
    """Return a width for logs and pipes, wide enough that no file name is cut; a terminal knows its own."""
    return None if stream.isatty() or "COLUMNS" in os.environ else LOG_COLUMNS


def say(text: str) -> None:
    """Print one line about what is going on."""
    stderr().print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print one warning."""
    from rich.text import Text

    stderr().print(Text("warning: ", style="yellow").append(text, style="default"), soft_wrap=True)


def fail(text: str) -> None:
    """Print one error."""
    from rich.text import Text

    stderr().print(Text("error: ", style="bold red").append(text, style="default"), soft_wrap=True)


def put_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


class Ticker:
    """Shows a listener's messages: a live bar on a terminal, a line now and then elsewhere."""

    def __init__(self, verb: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._verb = verb
        self._console = stderr()
        self._live = self._console.is_terminal
        self._began: float | None = None
        self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(verb, total=None, rate="")

    def __call__(self, step: Step) -> None:
        """Show one message."""
        if step.stage == "read":
            self._bar.update(self._task, description="reading labels")
            return
        if self._began is None:
            self._began = time.monotonic()
        elapsed = max(time.monotonic() - self._began, 1e-6)
        per_s = (step.done - step.resumed) / elapsed
        rate = f"{per_s:,.0f} img/s {step.nbytes / 1e9:.2f} GB" + (f" {step.skipped} skipped" if step.skipped else "")
        name = "publishing" if step.stage == "publish" else self._verb
        if self._live:
            self._bar.update(self._task, description=name, total=step.total, completed=step.done, rate=rate)
        elif time.monotonic() - self._said > QUIET_EVERY_S:
            self._said = time.monotonic()
            left = (step.total - step.done) / per_s if per_s > 0 else float("inf")
            say(f"{name}: {step.done:,} of {step.total:,} images, {rate}, {left:,.0f} s left")

    def start(self) -> None:
        """Begin to show."""
        if self._live:
            self._bar.start()

    def stop(self) -> None:
        """Take the bar away."""
        if self._live:
            self._bar.stop()


@contextmanager
def ticking(verb: str) -> Iterator[Ticker]:
    """Show progress for as long as the block runs."""
    ticker = Ticker(verb)
    ticker.start()
    try:
        yield ticker
    finally:
        ticker.stop()
