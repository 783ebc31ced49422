"""The recipe: a batch is the row of its slots, and no difference between two of them is overlooked."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.augment.recipe import Labels, Recipe, differences, labels_of_slots

K = 2

OFFSETS = {
    "offsets": ("cls", "xyxy_px", "instance", "kind", "keypoints_px", "xywhr_px", "ring_offsets"),
    "ring_offsets": ("point_offsets",),
    "point_offsets": ("points_px",),
    "group_offsets": ("matrix", "weight", "clip_xyxy", "is_masked", "tile_offsets", "shape_offsets"),
    "tile_offsets": ("tile_entry", "record", "source_xyxy", "size_hw", "origin_xy", "visible_xyxy"),
    "shape_offsets": ("shape_ring_offsets",),
    "shape_ring_offsets": ("ring_point_offsets",),
    "ring_point_offsets": ("mask_points_px",),
}
"""What each array of offsets cuts, as the docstrings say."""


class Numbers:
    """Values that are all different, so that a wrong cut shows."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def array(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Fill an array with the next ones."""
        return np.array([next(self._next) for _ in range(int(np.prod(shape)))]).astype(dtype).reshape(shape)


def offsets(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def build(draw: Any, slots: int, top: int = 3) -> Recipe:
    """A recipe of any shape with values that are all different. ``draw`` gives the counts."""

    def some(n: int, least: int = 0) -> list[int]:
        return [draw(least, top) for _ in range(n)]

    fill = Numbers()
    objects = some(slots)
    rings = some(sum(objects))
    points = some(sum(rings))
    n = sum(objects)
    is_oriented = draw(0, 1)
    labels = Labels(
        offsets=offsets(objects), cls=fill.array(n, dtype=np.int32), xyxy_px=fill.array(n, 4),
        instance=fill.array(n, dtype=np.int64), kind=fill.array(n, dtype=np.uint8), ring_offsets=offsets(rings),
        point_offsets=offsets(points), points_px=fill.array(sum(points), 2), keypoints_px=fill.array(n, K, 3),
        xywhr_px=fill.array(n * is_oriented, 5),
    )  # fmt: skip
    groups = some(slots, 1)
    tiles, shapes = some(sum(groups), 1), some(sum(groups))
    shape_rings = some(sum(shapes))
    ring_points = some(sum(shape_rings))
    g, t = sum(groups), sum(tiles)
    return Recipe(
        out_hw=(64, 96), task="obb" if is_oriented else "segment",
        entry=fill.array(slots, dtype=np.int64), gains=fill.array(slots, 4), bgr=np.arange(slots) % 3 == 0,
        gain_hw=fill.array(slots, 2, dtype=np.float64), pad_xy=fill.array(slots, 2, dtype=np.float64),
        group_offsets=offsets(groups),
        matrix=fill.array(g, 3, 3, dtype=np.float64), weight=fill.array(g), clip_xyxy=fill.array(g, 4, dtype=np.int32),
        is_masked=np.arange(g) % 3 == 1, tile_offsets=offsets(tiles), shape_offsets=offsets(shapes),
        shape_ring_offsets=offsets(shape_rings), ring_point_offsets=offsets(ring_points),
        mask_points_px=fill.array(sum(ring_points), 2),
        tile_entry=fill.array(t, dtype=np.int64), record=fill.array(t, dtype=np.int64),
        source_xyxy=fill.array(t, 4, dtype=np.int32), size_hw=fill.array(t, 2, dtype=np.int32),
        origin_xy=fill.array(t, 2, dtype=np.int32), visible_xyxy=fill.array(t, 4, dtype=np.int32), labels=labels,
    )  # fmt: skip


def recipe(slots: int = 4, seed: int = 0) -> Recipe:
    """One of fixed shape."""
    chance = np.random.default_rng(seed)
    return build(lambda low, high: int(chance.integers(low, high + 1)), slots)


RECIPES = st.integers(0, 5).flatmap(
    lambda slots: st.integers(0, 1 << 30).map(lambda seed: recipe(slots, seed))
)  # the counts come from the seed: drawing them one by one takes long and finds no more


def joined(parts: list[Recipe] | list[Labels]) -> dict[str, Any]:
    """All arrays of the parts one after the other, offsets carried on."""
    out: dict[str, Any] = {}
    for f in fields(parts[0]):
        values = [getattr(part, f.name) for part in parts]
        if isinstance(values[0], Labels):
            out |= {f"labels.{name}": value for name, value in joined(values).items()}
        elif f.name in OFFSETS:
            before = np.cumsum([0] + [int(v[-1]) for v in values[:-1]])
            assert all(v[0] == 0 for v in values)
            out[f.name] = np.concatenate([[0], *(v[1:] + b for v, b in zip(values, before, strict=True))]).astype(np.int64)
        elif isinstance(values[0], np.ndarray):
            out[f.name] = np.concatenate(values)
        else:
            assert all(v == values[0] for v in values)
            out[f.name] = values[0]
    return out


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[k], b[k]) and getattr(a[k], "dtype", None) == getattr(b[k], "dtype", None) for k in a
    )


@given(RECIPES, st.data())
def test_the_slots_in_pieces_are_the_whole(whole: Recipe, data: st.DataObject) -> None:
    """Cut anywhere, pieces without a slot included: joined again, not a number is lost, moved or doubled."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    edges = [0, *cuts, len(whole)]
    parts = [whole.slots(a, b) for a, b in itertools.pairwise(edges)]
    assert [len(part) for part in parts] == [b - a for a, b in itertools.pairwise(edges)]
    assert same(joined(parts), joined([whole]))
    labels = [labels_of_slots(whole.labels, a, b) for a, b in itertools.pairwise(edges)]
    assert same(joined(labels), joined([whole.labels]))


@given(RECIPES, st.data())
def test_a_piece_of_a_piece_is_a_piece(whole: Recipe, data: st.DataObject) -> None:
    """Slots count from the beginning of the piece."""
    a, b, c, d = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=4, max_size=4)))
    assert differences(whole.slots(a, d).slots(b - a, c - a), whole.slots(b, c)) == []
    assert differences(whole.slots(0, len(whole)), whole) == []


def test_the_second_slot_of_a_recipe_written_by_hand() -> None:
    """Two slots: one of a plain group, one of two groups of which the second has a mask of a ring with three points."""
    by_hand = recipe(2)
    groups, tiles = [1, 2], [4, 1, 1]
    by_hand = replace(
        by_hand,
        group_offsets=offsets(groups), tile_offsets=offsets(tiles), shape_offsets=offsets([0, 0, 1]),
        shape_ring_offsets=offsets([1]), ring_point_offsets=offsets([3]), mask_points_px=np.eye(3, 2, dtype=np.float32),
        weight=np.array([1, 1, 0.5], np.float32), is_masked=np.array([False, False, True]),
        tile_entry=np.array([7, 8, 9, 10, 20, 30]), entry=np.array([7, 20]),
    )  # fmt: skip
    second = by_hand.slots(1, 2)
    assert len(second) == 1
    assert second.entry.tolist() == [20]
    assert second.group_offsets.tolist() == [0, 2]
    assert second.weight.tolist() == [1, 0.5]
    assert second.tile_offsets.tolist() == [0, 1, 2]
    assert second.tile_entry.tolist() == [20, 30]
    assert second.shape_offsets.tolist() == [0, 0, 1]
    assert second.ring_point_offsets.tolist() == [0, 3]
    assert second.mask_points_px.tolist() == [[1, 0], [0, 1], [0, 0]]
    first = by_hand.slots(0, 1)
    assert first.tile_entry.tolist() == [7, 8, 9, 10]
    assert first.shape_offsets.tolist() == [0, 0]
    assert (len(first.mask_points_px), first.shape_ring_offsets.tolist(), first.ring_point_offsets.tolist()) == (0, [0], [0])


def test_an_object_has_its_own_rings() -> None:
    """By number, in order; none where it has no outline."""
    labels = replace(
        recipe(1).labels, offsets=offsets([3]), cls=np.zeros(3, np.int32), ring_offsets=offsets([2, 0, 1]),
        point_offsets=offsets([3, 4, 3]), points_px=np.arange(20, dtype=np.float32).reshape(10, 2),
    )  # fmt: skip
    assert len(labels) == 3
    found = [[ring[:, 0].tolist() for ring in labels.rings(i)] for i in range(3)]
    assert found == [[[0, 2, 4], [6, 8, 10, 12]], [], [[14, 16, 18]]]


def changed(value: Any) -> list[Any]:
    """The same but for one thing: the last bit of a number, the type of the same bytes, the shape."""
    if isinstance(value, str):
        return ["pose"]
    if isinstance(value, tuple):
        return [(value[0] + 1, value[1]), (value[1], value[0])]
    out = []
    if value.size:
        last = value.copy()
        if value.dtype == np.bool_:
            last.flat[-1] ^= True
        elif value.dtype.kind == "f":
            last.flat[-1] = np.nextafter(last.flat[-1], np.inf, dtype=value.dtype)
        else:
            last.flat[-1] += 1
        out.append(last)
    same_bytes = {1: np.int8, 4: np.uint32, 8: np.uint64}[value.itemsize]
    return [*out, value.view(same_bytes), value[:-1], value.reshape(1, *value.shape)]


FIELDS = [f.name for f in fields(Recipe) if f.name != "labels"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_in_any_field_is_seen(name: str) -> None:
    """One number by its last bit, another type, another shape: that field is named and no other."""
    whole = recipe(5)
    assert differences(whole, recipe(5)) == []
    for other in changed(getattr(whole, name)):
        assert differences(whole, replace(whole, **{name: other})) == [name]
        assert differences(replace(whole, **{name: other}), whole) == [name]


@pytest.mark.parametrize("name", [f.name for f in fields(Labels)])
def test_a_difference_in_any_label_is_seen(name: str) -> None:
    """Between two sets of labels, and between the recipes that have them."""
    whole = recipe(5)
    for other in changed(getattr(whole.labels, name)):
        labels = replace(whole.labels, **{name: other})
        assert differences(whole.labels, labels) == [name]
        assert differences(whole, replace(whole, labels=labels)) == [f"labels.{name}"]


def test_two_differences_are_both_named_and_minus_zero_is_not_zero() -> None:
    """Bit for bit: what compares as equal may be drawn differently, and NaN is the same as itself."""
    whole = recipe(3)
    zero = replace(whole, gains=np.zeros_like(whole.gains))
    minus = replace(whole, gains=np.negative(zero.gains), bgr=~whole.bgr)
    assert differences(zero, minus) == ["gains", "bgr"]
    nan = replace(whole, gains=np.full_like(whole.gains, np.nan))
    assert differences(nan, replace(nan, gains=nan.gains.copy())) == []
