"""Streams on which batches are made: what a thread tells the GPU, and what must stay in memory until that has been done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


class Lane:
    """A stream of the GPU on which one thread at a time makes batches. In ordinary memory there is none, and nothing to wait for.

    Args:
        device: A torch device.
    """

    def __init__(self, device: Any) -> None:
        self._stream = _cuda().Stream(device) if device.type == "cuda" else None
        self._held: deque[tuple[Any, list[Any]]] = deque()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let all that this thread tells the GPU go to this stream."""
        import torch

        while self._held and self._held[0][0].query():
            self._held.popleft()
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            yield

    def mark(self, hold: tuple[Any, ...]) -> Any:
        """Return an event that comes after all that was told so far; what is held stays until then, and is told if it asks."""
        event = None
        if self._stream is not None:
            event = _cuda().Event()
            event.record(self._stream)
        kept = []
        for one in hold:
            if (after := getattr(one, "after", None)) is not None:
                after(event)
            else:
                kept.append(one)
        if event is not None and kept:
            self._held.append((event, kept))
        return event

    def finish(self) -> None:
        """Wait for all that was told."""
        if self._stream is not None:
            self._stream.synchronize()
        self._held.clear()


def is_lost(device: Any) -> bool:
    """Return whether this process was forked from one that uses GPUs: it has neither these nor threads that it might wait for."""
    return bool(device.type == "cuda" and _cuda()._is_in_bad_fork())


def _cuda() -> Any:
    """Return ``torch.cuda``, whose streams and events have no types."""
    import torch

    return torch.cuda
