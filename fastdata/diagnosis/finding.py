"""One thing that was looked at on a machine, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "bad", "unknown"]
"""``ok``; ``warn`` costs speed; ``bad`` stops a training sooner or later; ``unknown`` could not be looked at."""

STATUSES: tuple[Status, ...] = ("ok", "warn", "bad", "unknown")

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. Invariant: ``value is None`` exactly when the status is ``unknown``; ``ok`` needs no fix."""

    name: str
    value: str | int | float | None
    """What was found."""
    status: Status
    why: str
    """What it means, or why it cannot be told."""
    fix: str | None = None
    """What to do about it."""
    unit: str = ""
    """Of a number: ``bytes``, ``cores``, ``files``."""

    def __post_init__(self) -> None:
        assert (self.value is None) == (self.status == "unknown"), self.name
        assert self.fix is None or self.status != "ok", self.name
        assert self.fix is not None or self.status not in ("warn", "bad"), self.name

    def __str__(self) -> str:
        """The value as a person reads it."""
        if self.value is None:
            return "?"
        if self.unit == "bytes" and not isinstance(self.value, str):
            return gib(self.value)
        number = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"{number} {self.unit}".strip()


def gib(nbytes: float) -> str:
    """Return bytes as GiB, small numbers as MiB."""
    return f"{nbytes / GIB:,.1f} GiB" if nbytes >= GIB else f"{nbytes / (1 << 20):,.0f} MiB"
