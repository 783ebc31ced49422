"""Where a training stands within its epochs, as JSON values, and whether a loader may go on from there.

A *position* counts the places of an epoch's global order, over all ranks, whose samples have been handed out. So it means the
same whatever the world size and the batch size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastdata.errors import UsageError

VERSION = 1
"""Of the state's form."""

KEYS = ("version", "epoch", "position", "fingerprint", "bad")

ABSENT = "nothing"
"""What an error says of a key that one side does not have."""


def state_of(epoch: int, position: int, fingerprint: Mapping[str, Any], bad: Iterable[int]) -> dict[str, Any]:
    """Return the state: ``version``, ``epoch``, ``position``, ``fingerprint`` and ``bad`` (entries left out, ascending).

    Args:
        epoch: From 0.
        position: How many positions of it are done.
        fingerprint: JSON values: what a run must share with the run that it continues.
        bad: Entries whose record is damaged, as far as it is known.
    """
    plain = json.loads(json.dumps(fingerprint))  # lists for tuples, so that a state equals itself read back from a file
    return {"version": VERSION, "epoch": epoch, "position": position, "fingerprint": plain, "bad": sorted(bad)}


def place_of(state: Mapping[str, Any], fingerprint: Mapping[str, Any], n: int) -> tuple[int, int, list[int]]:
    """Return epoch, position and bad entries of a state, if it is one that may be continued.

    Args:
        state: From :func:`state_of`, maybe by way of a file.
        fingerprint: Of the loader that is to go on.
        n: How many ids it has.

    Raises:
        UsageError: It is no state, of another version, or of a run whose samples would be different ones.
    """
    if not isinstance(state, Mapping) or not set(KEYS) <= state.keys():
        got = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise UsageError(f"the state must have the keys {', '.join(KEYS)}, got {got}; pass what state_dict() returned")
    if state["version"] != VERSION:
        raise UsageError(
            f"version of the state must be {VERSION}, got {state['version']!r}; go on with the version of fastdata that wrote it"
        )
    told, here = dict(_flat(state["fingerprint"])), dict(_flat(json.loads(json.dumps(fingerprint))))
    differing = [key for key in sorted(told.keys() | here.keys()) if told.get(key, ABSENT) != here.get(key, ABSENT)]
    if differing:
        each = "; ".join(f"{key} must be {_say(told, key)}, got {_say(here, key)}" for key in differing)
        raise UsageError(
            f"a run must be continued with what it was begun with, or its samples would change unseen: {each}; give the loader "
            f"the same settings, or do not load the state and begin an epoch anew with set_epoch({state['epoch']!r})"
        )
    for key, high in (("epoch", None), ("position", n)):
        value = state[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (high is not None and value > high):
            rule = "at least 0" if high is None else f"in 0..{high}"
            raise UsageError(f"{key} of the state must be a whole number {rule}, got {value!r}; pass what state_dict() returned")
    return state["epoch"], state["position"], [int(entry) for entry in state["bad"]]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings under dotted names."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(below, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _say(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else ABSENT
