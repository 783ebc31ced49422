"""A full disk and little memory: what was checkpointed stays, and nothing is held as a whole."""

from __future__ import annotations

import errno
import json
import os
import resource
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_kit import (
    assert_holds,
    bytes_of,
    feed,
    labels,
    manifest,
    pictures,
    write_store,
)
from write_kit import SAMPLES, assert_nothing_left, begin, complete, feed_and_log, half_built, in_child, staging, undisturbed

import fastdata
from fastdata.errors import UsageError
from fastdata.labels import Instances
from fastdata.store.read import open_store
from fastdata.store.write import Entry, Record, StoreWriter

# A full disk


def test_a_file_that_may_not_grow_is_an_error_with_the_bytes_and_can_be_continued(out: Path) -> None:
    """RLIMIT_FSIZE in a child, for the payload; then the rest without the limit."""
    samples = pictures(40, seed=8, side=60)

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        with StoreWriter.begin(out, fingerprint="f", keypoints=0) as writer:
            for k, sample in enumerate(samples):
                feed(writer, [sample])
                writer.checkpoint({"position": k + 1})
        return "no error"

    text = in_child(work)
    assert text.startswith("OSError: [Errno 27] File too large: "), text
    assert "more bytes must fit" in text
    assert str(staging(out)) in text
    with StoreWriter.begin(out, fingerprint="f", keypoints=0) as writer:
        assert writer.resumed is not None
        assert 0 < writer.resumed["position"] < 40
        feed(writer, samples[writer.resumed["position"] :])
        writer.publish(manifest())
    assert_holds(open_store(out), samples)
    assert bytes_of(out) == bytes_of(write_store(out.with_name("other" + out.suffix), samples))


@pytest.mark.parametrize("after", [0, 3, 17, 40, 41, 44, 48, 60, 75, 90])
def test_a_disk_that_fills_up_at_any_write_leaves_what_was_checkpointed(
    out: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC amid the n-th write, in records, columns, journal, tree or index: the error comes through, and it goes on later."""
    with monkeypatch.context() as m:
        left = after

        def full(real: Callable[..., int], cut: Callable[[Any], Any]) -> Callable[..., int]:
            def call(fd: int, data: Any, at: int) -> int:
                nonlocal left
                left -= 1
                if left >= 0:
                    return real(fd, data, at)
                if left == -1:
                    return real(fd, cut(data), at)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return call

        m.setattr(os, "pwritev", full(os.pwritev, lambda data: [bytes(b"".join(data))[: sum(map(len, data)) // 2]]))
        m.setattr(os, "pwrite", full(os.pwrite, lambda data: bytes(data)[: len(data) // 2]))
        with pytest.raises(OSError, match="No space left on device") as caught:
            (half_built(out), complete(out))
        assert caught.value.errno == errno.ENOSPC
        if after:
            assert "more bytes must fit" in str(caught.value)
    assert not out.exists()
    complete(out)
    assert bytes_of(out) == undisturbed(out)
    assert_nothing_left(out)


def test_after_an_error_the_writer_is_of_no_use(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns might be of different lengths; what was checkpointed can be continued by another."""
    with begin(out) as writer:
        feed_and_log(writer, 0, 3)
        writer.checkpoint({"position": 3})
        with monkeypatch.context() as m:
            m.setattr(os, "pwritev", lambda *a: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
            with pytest.raises(OSError, match="broken"):
                feed(writer, SAMPLES[3:4])
        for use in (lambda: feed(writer, SAMPLES[3:4]), lambda: writer.checkpoint({}), lambda: writer.publish(manifest())):
            with pytest.raises(UsageError, match="begin again"):
                use()
    assert complete(out).resumed == {"position": 3}
    assert bytes_of(out) == undisturbed(out)


def test_a_column_that_rotted_on_the_disk_does_not_become_a_store(out: Path) -> None:
    """What goes into the index is compared with what was appended."""
    with begin(out) as writer:
        feed(writer, SAMPLES)
        writer.checkpoint({})
        column = writer.staging / "col-xyxy_px"
        raw = bytearray(column.read_bytes())
        raw[5] ^= 1
        column.write_bytes(raw)
        with pytest.raises(fastdata.StoreError, match=r"col-xyxy_px:0: column must have CRC32C"):
            writer.publish(manifest())
    assert not out.exists()


# Memory


def test_a_record_is_written_from_where_it_lies(out: Path) -> None:
    """32 MB of pixels cost no memory on the way."""
    pixels = np.zeros((3, 2048, 5461), np.uint8)
    with begin(out, shard_nbytes=1 << 30) as writer:
        tracemalloc.start()
        try:
            writer.add_record(Record(pixels, "raw", (2048, 5461), 3, 0))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 200_000


def test_labels_of_any_number_are_published_in_pieces(out: Path) -> None:
    """40 MB of points and 8 MB of report: neither adding nor publishing needs a fraction of it."""
    n = 50_000
    rng = np.random.default_rng(0)
    many = replace(
        Instances.empty(),
        **{name: getattr(labels(rng, n), name) for name in ("cls", "xyxy_px", "kind", "flags", "original_id", "area_px")},
        part_offsets=np.arange(n + 1),
        point_offsets=np.arange(n + 1) * 5,
        points_px=np.zeros((5 * n, 2), np.float32),
        keypoints_px=np.zeros((n, 0, 3), np.float32),
    )
    with begin(out) as writer:
        writer.begin_split("train")
        writer.add_record(Record(b"", "jpeg", (3, 4), 3, 0))
        tracemalloc.start()
        try:
            for k in range(20):
                writer.add_entry(Entry(str(k), 0, (3, 4), many))
                writer.log(bytes(400_000))
            tracemalloc.reset_peak()
            writer.publish(manifest())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    with open_store(out) as store:
        assert store.catalog.points_px.nbytes == 40_000_000
        assert json.dumps(store.manifest.to_json())
    assert peak < 6_000_000, peak
