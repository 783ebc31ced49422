"""Stateless numbers: the values of the published algorithm, and no pattern between any two of the things that they depend on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata import rng

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
N = 20_000
WORDS = st.integers(-(1 << 70), 1 << 70)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def mix13(x: int) -> int:
    """The finaliser in whole numbers of any size."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def slow_key(seed: int, epoch: int, stream: str, entry: int, draw: int) -> int:
    """A key, word by word."""
    key = 0
    for word in (seed, epoch, rng.STREAMS[stream], entry, draw):
        key = mix13(((key ^ (word & MASK)) + GAMMA) & MASK)
    return key


def kolmogorov(u: rng.F64) -> float:
    """Kolmogorov-Smirnov: the largest distance from the uniform distribution, times the root of the count."""
    u = np.sort(u)
    steps = np.arange(len(u) + 1) / len(u)
    return float(max((steps[1:] - u).max(), (u - steps[:-1]).max()) * np.sqrt(len(u)))


def deviations(counts: np.ndarray) -> float:
    """Chi-square against equal counts, in standard deviations from what chance gives."""
    want = counts.sum() / counts.size
    chi2 = float(((counts - want) ** 2 / want).sum())
    return (chi2 - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1))


def test_the_published_sequence_comes_out() -> None:
    """SplitMix64 from 1234567, as the reference implementation in C prints it (and Java's SplittableRandom, to the bit)."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    got = rng.uniforms(np.array([1234567], np.uint64), 5)
    assert got.tolist() == [[(x >> 11) / 2**53 for x in published]]
    assert int(rng.mix64(np.array([GAMMA], np.uint64))[0]) == 0xE220A8397B1DCDAF


@given(st.integers(0, MASK))
def test_the_mixing_is_the_one_in_whole_numbers(x: int) -> None:
    """No bit is lost to an overflow."""
    assert int(rng.mix64(np.array([x], np.uint64))[0]) == mix13(x)


@given(WORDS, WORDS, st.sampled_from(sorted(rng.STREAMS)), INT64, INT64)
def test_a_key_is_its_five_words_in_order(seed: int, epoch: int, stream: str, entry: int, draw: int) -> None:
    """Any integers, below zero and beyond 64 bits too."""
    assert rng.keys(seed, epoch, stream, [entry], draw).tolist() == [slow_key(seed, epoch, stream, entry, draw)]


@given(st.lists(INT64, max_size=9), st.data())
def test_many_keys_at_once_are_the_keys_one_by_one(entries: list[int], data: st.DataObject) -> None:
    """How a set is cut into calls says nothing; draws may be one number or one for each."""
    draws = data.draw(st.lists(st.integers(0, 99), min_size=len(entries), max_size=len(entries)))
    together = rng.keys(3, 1, "sample", np.array(entries, np.int64), np.array(draws, np.int64))
    assert together.dtype == np.uint64
    assert together.tolist() == [int(rng.keys(3, 1, "sample", e, d)[0]) for e, d in zip(entries, draws, strict=True)]
    same = rng.keys(3, 1, "sample", np.array(entries, np.int64), 7)
    assert same.tolist() == [int(rng.keys(3, 1, "sample", e, 7)[0]) for e in entries]


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_the_type_of_the_entries_says_nothing(kind: type) -> None:
    """A catalog's column may have any integer type."""
    assert rng.keys(0, 0, "sample", np.arange(9, dtype=kind)).tolist() == rng.keys(0, 0, "sample", range(9)).tolist()


@given(st.integers(0, MASK), st.integers(0, 20), st.integers(0, 20), st.integers(0, 1 << 40))
def test_a_sequence_can_be_had_in_pieces(key: int, count: int, cut: int, first: int) -> None:
    """``first`` is a place in one and the same sequence."""
    cut = min(cut, count)
    of = np.array([key, key ^ 1], np.uint64)
    whole = rng.uniforms(of, count, first)
    pieces = [rng.uniforms(of, cut, first), rng.uniforms(of, count - cut, first + cut)]
    assert whole.shape == (2, count)
    assert np.array_equal(whole, np.concatenate(pieces, 1))


def test_each_key_may_begin_at_a_place_of_its_own() -> None:
    """So numbers far apart are had without those between."""
    of, first = np.array([5, 6, 7], np.uint64), np.array([0, 40, 3])
    whole = rng.uniforms(of, 50)
    got = rng.uniforms(of, 4, first)
    assert got.tolist() == [whole[i, at : at + 4].tolist() for i, at in enumerate(first)]


def test_keys_of_several_streams_are_the_keys_of_each() -> None:
    """Also where each entry has its own draw number."""
    names, entries, draws = ("layout", "sample", "partner"), [3, 1, 4], [0, 2, 0]
    got = rng.keys_of_streams(9, 2, names, entries, draws)
    assert got.tolist() == [rng.keys(9, 2, name, entries, draws).tolist() for name in names]


def test_the_streams_have_the_numbers_that_samples_were_made_with() -> None:
    """Written down here once more, because changing one changes every sample; and no two are the same."""
    written = {"order": 1, "sample": 2, "partner": 3, "mixup": 4, "cutmix": 5, "copy_paste": 6, "substitute": 7, "layout": 8}
    assert {name: rng.STREAMS[name] for name in written} == written
    assert len(set(rng.STREAMS.values())) == len(rng.STREAMS)


def test_a_stream_that_is_not_named_has_no_keys() -> None:
    """A typing error must not open a stream of its own."""
    with pytest.raises(KeyError):
        rng.keys(0, 0, "smaple", [0])


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**63])
def test_the_numbers_of_neighbouring_entries_are_uniform(seed: int) -> None:
    """Kolmogorov-Smirnov over entries in order for each of the first numbers; 1.95 is passed once in a thousand times."""
    u = rng.uniforms(rng.keys(seed, 0, "sample", np.arange(N)), 6)
    assert 0 <= u.min() < 1e-4 < 1 - 1e-4 < u.max() < 1
    assert max(kolmogorov(u[:, j]) for j in range(6)) < 1.95


def test_every_bit_of_a_key_is_set_half_of_the_time() -> None:
    """Over entries in order, from an even and a dull seed; and no two bits go together."""
    bits = (rng.keys(0, 0, "sample", np.arange(N))[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(N)
    together = np.corrcoef(bits.astype(np.float64).T) - np.eye(64)
    assert np.abs(together).max() < 5 / np.sqrt(N)


DIRECTIONS = {
    "entry": lambda i: rng.keys(0, 3, "sample", np.arange(i, N + i)),
    "draw": lambda i: rng.keys(0, 3, "sample", np.arange(N), i),
    "epoch": lambda i: rng.keys(0, 3 + i, "sample", np.arange(N)),
    "seed": lambda i: rng.keys(i, 3, "sample", np.arange(N)),
    "stream": lambda i: rng.keys(0, 3, list(rng.STREAMS)[i], np.arange(N)),
}


@pytest.mark.parametrize("name", DIRECTIONS)
def test_a_step_in_any_direction_gives_unrelated_numbers(name: str) -> None:
    """Pairs fill the unit square evenly and do not correlate, whether the entry, draw, epoch, seed or stream is the next one."""
    steps = [rng.uniforms(DIRECTIONS[name](i), 2) for i in range(8)]
    for a, b in itertools.combinations(steps, 2):
        for p, q in itertools.product(range(2), repeat=2):
            x, y = a[:, p], b[:, q]
            assert abs(np.corrcoef(x, y)[0, 1]) < 4.5 / np.sqrt(N)
            assert deviations(np.histogram2d(x, y, bins=16, range=[[0, 1], [0, 1]])[0]) < 5
        assert not (a == b).all(1).any()


def test_words_that_are_exchanged_give_other_keys() -> None:
    """Seed 1 in epoch 2 is not seed 2 in epoch 1, and so on: 4,096 combinations of small numbers, 4,096 keys."""
    streams = ["order", "sample", "partner", "mixup"]
    found = {
        key
        for seed, epoch, stream, draw in itertools.product(range(8), range(8), streams, range(4))
        for key in rng.keys(seed, epoch, stream, range(4), draw).tolist()
    }
    assert len(found) == 8 * 8 * 4 * 4 * 4


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 1 << 40))
def test_an_integer_never_reaches_the_count(u: float, count: int) -> None:
    """Whatever the product is rounded to; and it is the whole part of it."""
    got = int(rng.integers(np.array([u]), count)[0])
    assert 0 <= got < count
    assert got <= u * count < got + 1


@given(st.integers(1, 1 << 62))
def test_the_last_number_below_one_does_not_reach_any_count(count: int) -> None:
    """1 - 2**-53 is the one that could round up."""
    assert 0 <= rng.integers(np.array([1 - 2.0**-53]), count)[0] < count


def test_the_ends_of_the_unit_interval_give_the_ends_of_the_range() -> None:
    """Also for counts that differ."""
    u = np.array([0.0, 1 - 2.0**-53])
    assert rng.integers(u, 2**40).tolist() == [0, 2**40 - 1]
    assert rng.integers(u[:, None] * [1.0, 1.0], np.array([1, 5])).tolist() == [[0, 0], [0, 4]]


def test_integers_are_uniform() -> None:
    """Chi-square over seven, a count that no power of two divides."""
    got = rng.integers(rng.uniforms(rng.keys(0, 0, "partner", np.arange(N)), 3), 7)
    assert got.dtype == np.int64
    assert all(deviations(np.bincount(got[:, j], minlength=7)) < 4 for j in range(3))
