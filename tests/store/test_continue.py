"""Begun again: what is continued, from where, and what is thrown away, with a reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from second_reader import SecondReader
from store_kit import (
    assert_holds,
    bytes_of,
    check_all,
    feed,
    labels,
    manifest,
    write_store,
)
from write_kit import SAMPLES, assert_nothing_left, begin, complete, feed_and_log, half_built, staging, undisturbed

from fastdata.store.read import open_store


def test_a_run_continues_at_its_last_checkpoint(out: Path) -> None:
    """State, counts, splits and report are those of the checkpoint; what came after it is forgotten."""
    half_built(out)
    with begin(out) as writer:
        assert writer.resumed == {"position": 6}
        assert writer.why_not_resumed is None
        assert (writer.records, writer.entries, writer.sealed) == (6, 6, False)
        assert writer.log_path().read_bytes() == b"".join(b"line %d\n" % k for k in range(6))
        assert [e[:3] for e in writer.entries_so_far()] == [(s.key, k, s.original_hw) for k, s in enumerate(SAMPLES[:6])]
        writer.begin_split("train")
    writer = complete(out)
    assert writer.resumed == {"position": 6}
    assert bytes_of(out) == undisturbed(out)
    assert_nothing_left(out)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"fingerprint": "g"}, "fingerprint differs"),
        ({"keypoints": 3}, "keypoints was 0, not 3"),
        ({"resume": False}, "not to be continued"),
    ],
)
def test_other_work_is_thrown_away_with_a_reason(out: Path, more: dict[str, Any], why: str) -> None:
    """What an earlier run left under another fingerprint is of no use."""
    half_built(out)
    with begin(out, **more) as writer:
        assert writer.resumed is None
        assert why in str(writer.why_not_resumed)
        assert (writer.records, writer.entries, writer.payload_nbytes < 10_000) == (0, 0, True)
        assert writer.log_path().read_bytes() == b""
        feed(writer, [replace(s, instances=labels(np.random.default_rng(0), 1, more.get("keypoints", 0))) for s in SAMPLES[:2]])
        writer.publish(manifest(more.get("keypoints", 0)))
    assert len(open_store(out)) == 2
    assert_nothing_left(out)


def test_other_shards_are_other_work(tmp_path: Path) -> None:
    """The size of a shard decides the bytes, so it must be the same."""
    half_built(tmp_path / "s")
    with begin(tmp_path / "s", shard_nbytes=700) as writer:
        assert writer.why_not_resumed == "its shard_nbytes was 600, not 700"


def damage(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A change to one file of a staging folder."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (damage("journal", lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]), "line 1 of its journal is damaged"),
        (damage("journal", lambda raw: raw.replace(b'"records":3', b'"records":4')), "line 2 of its journal is damaged"),
        (damage("journal", lambda raw: raw.split(b"\n", 1)[1]), "does not say what was begun"),
        (damage("col-cls", lambda raw: raw[:-1]), "col-cls has changed"),
        (damage("col-xyxy_px", lambda raw: bytes([raw[0] ^ 1]) + raw[1:]), "col-xyxy_px has changed"),
        (damage("payload-00000", lambda raw: raw[:100]), "payload-00000 is shorter"),
        (lambda folder: (folder / "payload-00000").unlink(), "payload-00000 is shorter"),
        (lambda folder: (folder / "col-rec_crc").unlink(), "col-rec_crc has changed"),
    ],
)
def test_damaged_work_is_thrown_away_with_a_reason(out: Path, change: Callable[[Path], None], why: str) -> None:
    """Never continued from a state that no checkpoint declared."""
    half_built(out)
    change(staging(out))
    writer = complete(out)
    assert writer.resumed is None
    assert why in str(writer.why_not_resumed)
    assert bytes_of(out) == undisturbed(out)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 0.97, 1.0])
def test_a_journal_that_was_cut_leads_to_an_earlier_checkpoint(out: Path, keep: float) -> None:
    """A last line that is not whole never happened."""
    half_built(out)
    journal = staging(out) / "journal"
    raw = journal.read_bytes()
    journal.write_bytes(raw[: int(len(raw) * keep)])
    whole = raw[: int(len(raw) * keep)].count(b"\n")
    writer = complete(out)
    assert (writer.resumed or {}).get("position") == {3: 6, 2: 3}.get(whole)
    assert bytes_of(out) == undisturbed(out)


def test_a_line_of_the_journal_with_a_rotten_end_never_happened(out: Path) -> None:
    """The last line may have reached the device with its end but without its middle."""
    half_built(out)
    journal = staging(out) / "journal"
    raw = bytearray(journal.read_bytes())
    raw[-30:-20] = bytes(10)
    journal.write_bytes(raw)
    writer = complete(out)
    assert writer.resumed == {"position": 3}
    assert bytes_of(out) == undisturbed(out)


def test_an_error_leaves_what_was_checkpointed_and_nothing_else(out: Path) -> None:
    """With a checkpoint the folder stays; without one there is nothing to continue and nothing is left."""
    for checkpoint in (False, True):
        with suppress(RuntimeError), begin(out) as writer:
            feed_and_log(writer, 0, 3)
            if checkpoint:
                writer.checkpoint({"position": 3})
            raise RuntimeError("stop")
        assert staging(out).exists() == checkpoint
        assert not out.exists()
    assert complete(out).resumed == {"position": 3}
    assert bytes_of(out) == undisturbed(out)


def test_a_store_that_was_sealed_is_only_moved(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error between completion and the move: the next run says so, takes everything for done, and finishes."""
    with monkeypatch.context() as m:
        m.setattr("fastdata.store.write.finish", lambda *a: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            complete(out)
    with begin(out) as writer:
        assert writer.sealed
        assert writer.resumed is None
        assert writer.payload_nbytes > 0
        assert list(writer.entries_so_far()) == []
        for sample in SAMPLES:
            feed(writer, [sample])
            writer.log(b"again")
            writer.checkpoint({})
        assert (writer.records, writer.entries) == (9, 9)
        writer.publish(manifest())
    assert bytes_of(out) == undisturbed(out)
    assert_nothing_left(out)


def test_less_than_before_may_follow_a_checkpoint(out: Path) -> None:
    """What was written behind it, to records or to an index, is cut off and leaves no trace."""
    half_built(out)
    with begin(out) as writer, pytest.MonkeyPatch.context() as m:
        m.setattr(writer, "_append_journal", lambda *a: (_ for _ in ()).throw(OSError("no")))
        feed(writer, SAMPLES[6:])
        with pytest.raises(OSError, match="no"):
            writer.publish(manifest(summary={"long": "x" * 5000}))
    with begin(out) as writer:
        writer.publish(manifest())
    assert_holds(open_store(out), SAMPLES[:6])
    check_all(open_store(out))
    SecondReader(out)


def test_half_a_move_is_undone_when_other_work_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that were moved in for a store that never came are removed, without --overwrite."""
    out = tmp_path / "s"
    with monkeypatch.context() as m:
        real, moved = os.rename, []

        def rename(a: Path, b: Path) -> None:
            if len(moved) == 2:
                raise OSError("no")
            moved.append(real(a, b))

        m.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="no"):
            complete(out)
    assert len(list(out.iterdir())) == 2
    write_store(out, SAMPLES[:2], fingerprint="other")
    assert_holds(open_store(out), SAMPLES[:2])
    assert len(list(out.iterdir())) == 2


def test_undoing_half_a_move_leaves_the_shards_that_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that is there has the same shards as the one whose move is given up."""
    out = tmp_path / "s"
    complete(out)
    before = bytes_of(out)
    with monkeypatch.context() as m:
        real = os.rename

        def rename(a: Path, b: Path) -> None:
            if Path(b).name == "index.fastdata":
                raise OSError("no")
            real(a, b)

        m.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="no"):
            complete(out, overwrite=True)
    assert bytes_of(out) == before
    with begin(out, fingerprint="other", overwrite=True) as writer:
        assert writer.why_not_resumed is not None
        assert_holds(open_store(out), SAMPLES)
    assert bytes_of(out) == before
