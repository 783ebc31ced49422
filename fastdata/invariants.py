"""What must hold in a catalog, tested over whole columns in blocks: no loop over pictures or objects.

Checksums say that bytes are those that were written; this says that what was written makes sense. The rules are those of
``fastdata.catalog`` (offsets, rectangles, splits, keys) and of ``fastdata.labels.Instances`` (geometry).

Each rule that is broken gives a :class:`Fault` for each place, at most :data:`MAX_PLACES` of them and then one for the rest. A
rule whose columns are damaged, or whose offsets cannot be followed, is not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.catalog import COLUMNS, Catalog, Keypoints
from fastdata.labels import BOX, KIND_NAMES, OBB
from fastdata.store.format import ENCODINGS

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

BLOCK = 1 << 17
"""Objects tested together: some ten MB of temporary arrays."""

MAX_PLACES = 20
"""Places that are named of each broken rule."""


PARTS = ("no parts", "one part or more", "one part", "one ring or more")
"""What an outline of each kind consists of."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a store."""

    where: str
    """``file:offset``, the key of a picture, or "manifest"."""
    kind: str
    """``store`` (does not open), ``section``, ``record``, ``structure``, ``decode``, ``catalog`` or ``label``."""
    detail: str
    """The rule and what was found."""

    def to_json(self) -> dict[str, str]:
        """Return the fault as JSON can say it."""
        return asdict(self)


def check_catalog(catalog: Catalog, damaged: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Yield what is wrong with a catalog.

    Args:
        catalog: All columns but the damaged ones can be fetched.
        damaged: Columns that must not be touched.
    """
    check = _Check(catalog, damaged)
    yield from check.offsets()
    yield from check.splits()
    yield from check.records()
    yield from check.entries()
    yield from check.keys()
    if check.can("inst_offsets"):
        for first in range(0, catalog.counts.instances, BLOCK):
            yield from check.objects(first, min(first + BLOCK, catalog.counts.instances))
    yield from check.rest()


def check_keypoints(keypoints: Keypoints) -> Iterator[Fault]:
    """Yield what is wrong with the description of keypoints."""
    k = keypoints.count
    if k < 1:
        yield Fault("manifest", "catalog", f"keypoints must be at least 1, got {k}")
    if keypoints.names and len(keypoints.names) != k:
        yield Fault("manifest", "catalog", f"keypoint names must be {k} or none, got {len(keypoints.names)}")
    if keypoints.flip_idx and sorted(keypoints.flip_idx) != list(range(k)):
        yield Fault("manifest", "catalog", f"flip_idx must hold each of 0..{k - 1} once, got {list(keypoints.flip_idx)}")
    wrong = [pair for pair in keypoints.skeleton if not all(0 <= point < k for point in pair)]
    if wrong:
        yield Fault("manifest", "catalog", f"skeleton must join keypoints 0..{k - 1}, got {wrong[0]}")


_OFFSETS = {
    "inst_offsets": ("instances", "objects"),
    "part_offsets": ("parts", "parts"),
    "point_offsets": ("points", "points"),
    "key_offsets": ("", "bytes of keys"),
}
"""Column of offsets → the count that it must end with."""


class _Check:
    """The catalog, and which of its columns can be relied on."""

    def __init__(self, catalog: Catalog, damaged: frozenset[str]) -> None:
        self.catalog = catalog
        self.usable = set(COLUMNS) - damaged
        self.left: dict[str, int] = {}

    def can(self, *columns: str) -> bool:
        return self.usable.issuperset(columns)

    def offsets(self) -> Iterator[Fault]:
        """Offsets begin at 0, never fall, and end at the number of what they count."""
        for name, (count, what) in _OFFSETS.items():
            if not self.can(name) or (name == "key_offsets" and not self.can("key_bytes")):
                self.usable.discard(name)
                continue
            column = self.catalog.column(name)
            end = getattr(self.catalog.counts, count) if count else len(self.catalog.key_bytes)
            if int(column[0]) != 0 or int(column[-1]) != end or bool((column[1:] < column[:-1]).any()):
                fall = np.flatnonzero(column[1:] < column[:-1])
                got = f"{column[0]}..{column[-1]}" + (f", falling at {int(fall[0]) + 1}" if len(fall) else "")
                yield Fault("catalog", "catalog", f"{name} must rise from 0 to the {end} {what}, got {got}")
                self.usable.discard(name)

    def splits(self) -> Iterator[Fault]:
        """Splits lie one after the other and cover every entry once."""
        at = 0
        for name, (start, stop) in self.catalog.splits.items():
            if start != at or stop < start:
                yield Fault("manifest", "catalog", f"split {name} must begin at entry {at} and not fall, got {start}..{stop}")
            at = stop
        if at != self.catalog.counts.entries:
            yield Fault("manifest", "catalog", f"splits must cover all {self.catalog.counts.entries} entries, got {at}")

    def records(self) -> Iterator[Fault]:
        """Records have a size, one or three channels, and an encoding of this format."""
        rules: tuple[tuple[str, Callable[[Any], Bools], str], ...] = (
            ("rec_hw", lambda hw: (hw < 1).any(axis=1), "must be at least 1 x 1 pixel"),
            ("rec_channels", lambda channels: (channels != 1) & (channels != 3), "must have 1 or 3 channels"),
            ("rec_encoding", lambda encoding: encoding >= len(ENCODINGS), f"must be encoded as {', '.join(ENCODINGS)}"),
        )
        for name, wrong, rule in rules:
            if self.can(name):
                yield from self._records(name, wrong(self.catalog.column(name)), rule)

    def _records(self, name: str, wrong: Bools, rule: str) -> Iterator[Fault]:
        column = self.catalog.column(name)
        bad = np.flatnonzero(wrong)
        yield from self._places(name, bad, "catalog", lambda r: f"record {r}", lambda r: f"{rule}, got {column[r]}")

    def entries(self) -> Iterator[Fault]:
        """An entry shows a part of a record that is there; what it was made from had a size."""
        c = self.catalog
        if self.can("entry_original_hw"):
            hw = c.entry_original_hw
            bad = np.flatnonzero((hw < 1).any(axis=1))
            yield from self._places(
                "original", bad, "catalog", self._key, lambda e: f"original size must be at least 1 x 1, got {hw[e]}"
            )
        if not self.can("entry_record", "rec_hw", "entry_rect"):
            return
        record = c.entry_record.astype(np.int64)
        stray = (record < 0) | (record >= c.counts.records)
        yield from self._places(
            "entry_record",
            np.flatnonzero(stray),
            "catalog",
            self._key,
            lambda e: f"record must be 0..{c.counts.records - 1}, got {record[e]}",
        )
        if not c.counts.records:
            return
        hw = c.rec_hw[np.where(stray, 0, record)]
        rect = c.entry_rect
        inside = (
            (rect[:, :2] >= 0).all(axis=1) & (rect[:, :2] < rect[:, 2:]).all(axis=1) & (rect[:, 2:] <= hw[:, ::-1]).all(axis=1)
        )
        bad = np.flatnonzero(~inside & ~stray)
        yield from self._places(
            "entry_rect",
            bad,
            "catalog",
            self._key,
            lambda e: f"rectangle must lie in its record of {hw[e, 1]} x {hw[e, 0]} pixels, got {rect[e].tolist()}",
        )

    def keys(self) -> Iterator[Fault]:
        """Keys are there, and unique in their split."""
        if not self.can("key_offsets", "key_bytes"):
            return
        empty = np.flatnonzero(np.diff(self.catalog.key_offsets) == 0)
        yield from self._places("key", empty, "catalog", lambda e: f"entry {e}", lambda e: "key must not be empty")
        for name, (start, stop) in self.catalog.splits.items():
            yield from self._unique(name, range(max(start, 0), min(stop, self.catalog.counts.entries)))

    def _unique(self, split: str, entries: range) -> Iterator[Fault]:
        first: dict[str, int] = {}
        again = [e for e in entries if first.setdefault(self.catalog.key(e), e) != e]
        rule = f"key must be unique in split {split}, got it twice"
        yield from self._places("twice", np.array(again, np.int64), "catalog", self._key, lambda e: rule)

    # Objects

    def objects(self, first: int, last: int) -> Iterator[Fault]:
        """Test objects ``first`` to ``last``."""
        c = self.catalog
        ids = np.arange(first, last)
        entry = np.searchsorted(c.inst_offsets, ids, side="right") - 1
        wh = None
        if self.can("entry_rect"):
            rect = c.entry_rect[entry].astype(np.float64)
            wh = rect[:, 2:] - rect[:, :2]
        if self.can("cls"):
            cls = c.cls[first:last]
            yield from self._objects(
                "cls",
                ids,
                entry,
                (cls < 0) | (cls >= len(c.names)),
                lambda j: f"class must be 0..{len(c.names) - 1}, got {cls[j]}",
            )
        if self.can("xyxy_px") and wh is not None:
            box = c.xyxy_px[first:last]
            good = (box[:, :2] >= 0).all(axis=1) & (box[:, :2] < box[:, 2:]).all(axis=1) & (box[:, 2:] <= wh).all(axis=1)
            wrong: Bools = np.asarray(~good)  # a NaN compares false
            yield from self._objects(
                "xyxy_px",
                ids,
                entry,
                wrong,
                lambda j: f"box must be 0 <= x0 < x1 <= {wh[j, 0]:.0f}, 0 <= y0 < y1 <= {wh[j, 1]:.0f}, got {box[j].tolist()}",
            )
        if self.can("area_px"):
            area = c.area_px[first:last]
            odd: Bools = (area < 0) | np.isinf(area)
            yield from self._objects("area_px", ids, entry, odd, lambda j: f"area must be >= 0 or unknown, got {area[j]}")
        if c.keypoints is not None and self.can("keypoints_px") and wh is not None:
            yield from self._keypoints(c.keypoints_px[first:last], ids, entry, wh)
        if self.can("kind"):
            kind = c.kind[first:last]
            yield from self._objects(
                "kind",
                ids,
                entry,
                kind >= len(KIND_NAMES),
                lambda j: f"kind must be one of 0..{len(KIND_NAMES) - 1}, got {kind[j]}",
            )
            if self.can("part_offsets"):
                yield from self._outlines(kind, ids, entry, wh)

    def _keypoints(self, points: npt.NDArray[np.float32], ids: I64, entry: I64, wh: npt.NDArray[np.float64]) -> Iterator[Fault]:
        xy, seen = points[..., :2], points[..., 2]
        known = (seen == 0) | (seen == 1) | (seen == 2)
        inside = ((xy >= 0) & (xy <= wh[:, None, :])).all(axis=2)
        good: Bools = known & np.where(seen == 0, (xy == 0).all(axis=2), inside)

        def got(j: int) -> str:
            k = int(np.argmin(good[j]))
            rule = "must be inside the picture with visibility 1 or 2, or 0 0 0"
            return f"keypoint {k} {rule}, got {points[j, k].tolist()}"

        wrong: Bools = np.asarray(~good.all(axis=1))
        yield from self._objects("keypoints_px", ids, entry, wrong, got)

    def _outlines(self, kind: npt.NDArray[np.uint8], ids: I64, entry: I64, wh: npt.NDArray[np.float64] | None) -> Iterator[Fault]:
        """Boxes have no outline, oriented boxes one of four corners, the others at least one; rings are finite and inside."""
        c = self.catalog
        ends = c.part_offsets[ids[0] : ids[-1] + 2]
        parts = np.diff(ends)
        wrong: Bools = np.where(kind == BOX, parts != 0, np.where(kind == OBB, parts != 1, parts < 1))
        yield from self._objects(
            "parts",
            ids,
            entry,
            wrong & (kind < len(KIND_NAMES)),
            lambda j: f"{KIND_NAMES[kind[j]]} must have {PARTS[kind[j]]}, got {parts[j]}",
        )
        if not self.can("point_offsets"):
            return
        first, last = int(ends[0]), int(ends[-1])
        corners = c.point_offsets[first : last + 1]
        sizes = np.diff(corners)
        owner = np.repeat(np.arange(len(ids)), parts)  # of each part
        few = np.where(kind[owner] == OBB, sizes != 4, sizes < 3)
        bad = np.zeros(len(ids), np.bool_)
        bad[owner[few]] = True
        yield from self._objects(
            "few", ids, entry, bad, lambda j: f"a part must have at least 3 points, an obb 4, got {sizes[owner == j].tolist()}"
        )
        if not self.can("points_px"):
            return
        points = c.points_px[int(corners[0]) : int(corners[-1])]
        owner = np.repeat(owner, sizes)  # of each point
        finite = np.isfinite(points).all(axis=1)
        bad = np.zeros(len(ids), np.bool_)
        bad[owner[~finite]] = True
        yield from self._objects("finite", ids, entry, bad, lambda j: "points of an outline must be finite, got NaN or infinity")
        if wh is None:
            return
        outside = finite & ((points < 0) | (points > wh[owner])).any(axis=1) & (kind[owner] != OBB)
        bad = np.zeros(len(ids), np.bool_)
        bad[owner[outside]] = True
        yield from self._objects(
            "outside",
            ids,
            entry,
            bad,
            lambda j: f"points must lie in the picture, got {points[outside & (owner == j)][0].tolist()} in {wh[j].tolist()}",
        )

    # Places

    def _objects(self, rule: str, ids: I64, entry: I64, wrong: Bools, got: Callable[[int], str]) -> Iterator[Fault]:
        """Yield a fault for each object that breaks a rule; ``got`` takes its number in the block."""

        def where(j: int) -> str:
            e = int(entry[j])
            return f"{self._key(e)}: object {int(ids[j]) - int(self.catalog.inst_offsets[e])}"

        yield from self._places(rule, np.flatnonzero(wrong), "label", where, got)

    def _places(
        self, rule: str, places: npt.NDArray[np.integer[Any]], kind: str, where: Callable[[int], str], got: Callable[[int], str]
    ) -> Iterator[Fault]:
        room = max(MAX_PLACES - self.left.get(rule, 0), 0)
        self.left[rule] = self.left.get(rule, 0) + len(places)
        for place in places[:room].tolist():
            yield Fault(where(place), kind, got(place))

    def rest(self) -> Iterator[Fault]:
        """Say how many places of each rule were not named."""
        for rule, count in self.left.items():
            if count > MAX_PLACES:
                yield Fault(
                    "catalog", "label" if rule in _LABEL_RULES else "catalog", f"{rule}: {count - MAX_PLACES:,} more places"
                )

    def _key(self, e: int) -> str:
        return self.catalog.key(e) if self.can("key_offsets", "key_bytes") else f"entry {e}"


_LABEL_RULES = frozenset(("cls", "xyxy_px", "area_px", "keypoints_px", "kind", "parts", "few", "finite", "outside"))


def check_counts(catalog: Catalog, summary: Mapping[str, Any]) -> Iterator[Fault]:
    """Compare the counts that the conversion wrote down with what is there; a store made otherwise has none."""
    said = (
        ("images", "stored", catalog.counts.entries, "entries"),
        ("rows", "kept", catalog.counts.instances, "objects"),
    )
    for group, name, there, what in said:
        stated = summary.get(group, {}).get(name) if isinstance(summary.get(group), Mapping) else None
        if stated is not None and stated != there:
            yield Fault("manifest", "catalog", f"summary must count the {there} {what} that are there, got {stated}")
    for name, stated in (said_splits if isinstance(said_splits := summary.get("splits"), Mapping) else {}).items():
        start, stop = catalog.splits.get(name, (0, 0))
        if stated != stop - start:
            yield Fault("manifest", "catalog", f"summary must count the {stop - start} entries of split {name}, got {stated}")
