"""A conversion to begin, to break off, to complete: what the tests of the writer share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store_kit import bytes_of, feed, manifest, pictures

from fastdata.store.write import StoreWriter

SAMPLES = pictures(9, seed=4)


def begin(out: Path, **more: Any) -> StoreWriter:
    """Begin with small shards."""
    return StoreWriter.begin(out, **({"fingerprint": "f", "keypoints": 0, "shard_nbytes": 600} | more))


def half_built(out: Path, **more: Any) -> None:
    """Leave a staging folder with a checkpoint after 6 of 9 pictures, and one more picture behind it."""
    with begin(out, **more) as writer:
        for k in range(7):
            feed_and_log(writer, k, k + 1)
            if k in (2, 5):
                writer.checkpoint({"position": k + 1})


def complete(out: Path, **more: Any) -> StoreWriter:
    """Begin again, feed the rest, publish; return the writer."""
    with begin(out, **more) as writer:
        start = writer.resumed["position"] if writer.resumed else 0
        feed_and_log(writer, start, len(SAMPLES))
        writer.publish(manifest())
    return writer


def feed_and_log(writer: StoreWriter, start: int, stop: int) -> None:
    """Give some of the samples and a line for each."""
    for k in range(start, stop):
        feed(writer, [SAMPLES[k]])
        writer.log(b"line %d" % k)


def staging(out: Path) -> Path:
    """The staging folder of ``out``."""
    return out.with_name(out.name + ".partial")


def assert_nothing_left(out: Path) -> None:
    """There is no staging folder."""
    assert not staging(out).exists()


def undisturbed(out: Path) -> dict[str, bytes]:
    """The bytes of a run without interruption."""
    other = out.with_name("undisturbed" + out.suffix)
    complete(other)
    return bytes_of(other)


def in_child(work: Callable[[], object]) -> str:
    """Run in a forked process; return what it returned or raised, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = str(work())
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text
