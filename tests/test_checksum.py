"""CRC32C: known values, chaining, every kind of buffer, and no copy."""

from __future__ import annotations

import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata import checksum
from fastdata.checksum import CALL_NBYTES, crc32c, crc32c_zeros


def slow_crc32c(data: bytes) -> int:
    """The definition, bit by bit: RFC 3720 appendix B.4, reflected polynomial 0x82F63B78."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_examples_of_rfc_3720_come_out(data: bytes, value: int) -> None:
    """RFC 3720 B.4 lists these sums (least significant byte first)."""
    assert crc32c(data) == value
    assert slow_crc32c(data) == value


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_sum_can_be_carried_over_a_cut(data: bytes, cut: int) -> None:
    """crc(a + b) == crc(b, crc(a)), and both are the definition's."""
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data) == slow_crc32c(data)


@pytest.mark.parametrize("nbytes", [0, 1, 63, CALL_NBYTES - 1, CALL_NBYTES, CALL_NBYTES + 1, 3 * CALL_NBYTES])
def test_every_kind_of_buffer_gives_the_same_sum(nbytes: int) -> None:
    """bytes, bytearray, memoryviews, arrays of any shape: short ones and those that take the foreign call."""
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    want = crc32c(data.tobytes())
    frozen = data.copy()
    frozen.flags.writeable = False
    for other in (data, frozen, bytearray(data.tobytes()), memoryview(data), memoryview(data.tobytes()), data.reshape(1, -1, 1)):
        assert crc32c(other) == want
    assert crc32c(data.tobytes()) == crc32c(data[nbytes // 3 :], crc32c(data[: nbytes // 3]))


@pytest.mark.parametrize("nbytes", [100, 2 * CALL_NBYTES])
def test_without_the_foreign_call_the_sum_is_the_same(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C function cannot be reached by a foreign call, the wrapper answers."""
    data = np.arange(nbytes, dtype=np.uint32)
    want = crc32c(data)
    monkeypatch.setattr(checksum, "_call", None)
    assert crc32c(data) == want == crc32c(data.tobytes())


def test_an_array_with_gaps_is_refused() -> None:
    """A strided view would need a copy; the caller decides about that."""
    for data in (np.zeros((4, 4), np.uint8)[:, :2], np.zeros(2 * CALL_NBYTES, np.uint16)[::2]):
        with pytest.raises(ValueError, match="C-contiguous"):
            crc32c(data)


@pytest.mark.parametrize("count", [0, 1, 16384, 16385, 50000])
def test_zeros_are_summed_without_being_there(count: int) -> None:
    """crc32c_zeros(n) is the sum over n zero bytes, chained too."""
    assert crc32c_zeros(count) == crc32c(bytes(count))
    assert crc32c_zeros(count, 77) == crc32c(bytes(count), 77)


def test_a_large_buffer_is_not_copied() -> None:
    """Summing 64 MB allocates next to nothing."""
    data = np.zeros(64 << 20, np.uint8)
    tracemalloc.start()
    try:
        crc32c(data)
        crc32c(memoryview(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_other_threads_run_during_a_large_sum() -> None:
    """The interpreter lock is free: a second thread makes progress while one sum runs."""
    assert checksum._call is not None, "the wheel of google-crc32c is expected to hold a shared library"
    data = np.zeros(3 << 27, np.uint8)
    data[::4096] = 1  # present in memory, so that the sum itself takes the time
    started, done = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        crc32c(data)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 1
