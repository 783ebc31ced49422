"""Spooled columns: what is appended comes back, from memory, from disk and in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata import spool
from fastdata.spool import BUFFER_NBYTES, Column


def numbers(n: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.int64)


@pytest.mark.parametrize(
    ("dtype", "row_shape"), [(np.int64, ()), (np.uint8, ()), (np.bool_, ()), (np.float32, (4,)), (np.float64, (3, 3))]
)
def test_rows_come_back_in_order_with_type_and_shape(dtype: type, row_shape: tuple[int, ...]) -> None:
    """(n, *row_shape) of the dtype; a block of one row may leave its first axis out."""
    column = Column(dtype, row_shape)
    block = (np.arange(5 * int(np.prod(row_shape))) % 2).astype(dtype).reshape(5, *row_shape)
    column.append(block)
    column.append(block[1])
    column.append(block[:0])
    assert len(column) == 6
    assert column.nbytes == 6 * block[0].nbytes
    array = column.array()
    assert array.dtype == dtype
    assert np.array_equal(array, np.concatenate([block, block[1:2]]))


def test_a_square_row_is_one_row_and_not_three() -> None:
    """A block whose shape is the row's shape is one row, also where it could be read as a block of rows."""
    column = Column(np.float64, (3, 3))
    column.append(np.eye(3))
    assert column.array().shape == (1, 3, 3)


def test_an_empty_column_is_an_empty_array_of_the_right_shape() -> None:
    """No map of nothing."""
    column = Column(np.float32, (4,))
    assert len(column) == 0
    assert column.array().shape == (0, 4)
    assert column.array().dtype == np.float32


def test_rows_of_another_shape_are_refused() -> None:
    """The message names both shapes; nothing is appended."""
    column = Column(np.float32, (4,))
    with pytest.raises(ValueError, match=r"rows must be of shape \(k, \*\(4,\)\), got \(2, 3\)"):
        column.append(np.zeros((2, 3)))
    assert len(column) == 0


def test_a_mapped_array_is_read_only_and_outlives_its_column() -> None:
    """Closing releases the descriptor; the pages stay as long as somebody looks at them."""
    column = Column(np.int64)
    column.append(numbers(10))
    array = column.array()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5
    column.close()
    column.close()  # twice is once
    assert array.tolist() == list(range(10))


def test_a_temporary_column_leaves_no_name_behind(tmp_path: Path) -> None:
    """The file is unlinked at once, so nothing is left also after a kill."""
    column = Column(np.int64, folder=tmp_path)
    column.append(numbers(10))
    column.flush()
    assert list(tmp_path.iterdir()) == []
    assert len(column.array()) == 10


def test_large_appends_reach_the_file_without_a_flush(tmp_path: Path) -> None:
    """Memory stays at one buffer a column."""
    column = Column(np.uint8, path=tmp_path / "c")
    column.append(np.zeros(BUFFER_NBYTES - 1, np.uint8))
    assert (tmp_path / "c").stat().st_size == 0
    column.append(np.zeros(1, np.uint8))
    assert (tmp_path / "c").stat().st_size == BUFFER_NBYTES
    column.append(np.zeros(3 * BUFFER_NBYTES, np.uint8))
    assert (tmp_path / "c").stat().st_size == 4 * BUFFER_NBYTES == len(column)


def test_a_column_reopened_by_path_goes_on_where_it_ended(tmp_path: Path) -> None:
    """What was synced is there; what follows is appended behind it."""
    path = tmp_path / "c"
    first = Column(np.int64, path=path)
    first.append(numbers(3))
    first.sync()
    again = Column(np.int64, path=path)
    assert len(again) == 3
    again.append(numbers(2, 3))
    assert again.array().tolist() == [0, 1, 2, 3, 4]


def test_closing_writes_out_what_a_named_file_still_lacks(tmp_path: Path) -> None:
    """Somebody who reads the path after ``close`` sees every row."""
    column = Column(np.int64, path=tmp_path / "c")
    column.append(numbers(3))
    column.close()
    assert np.fromfile(tmp_path / "c", "<i8").tolist() == [0, 1, 2]


@pytest.mark.parametrize("named", [True, False])
def test_rows_after_a_truncation_follow_the_last_row_kept(tmp_path: Path, named: bool) -> None:
    """No hole, whether the file has a name or not, and whether the rows were written out or not."""
    column = Column(np.int64, path=tmp_path / "c" if named else None)
    column.append(numbers(5))
    column.truncate(2)
    assert len(column) == 2
    column.append([70, 80])
    column.flush()
    column.append(90)
    assert column.array().tolist() == [0, 1, 70, 80, 90]
    column.truncate(0)
    assert len(column.array()) == 0
    column.append(numbers(1, 5))
    assert column.array().tolist() == [5]
    column.append(numbers(2, 6))
    column.truncate(1)
    assert os.fstat(column.fileno()).st_size == 8  # whoever opens the file next sees no more than that


@pytest.mark.parametrize("rows", [4, -1])
def test_truncating_to_what_is_not_there_is_refused(rows: int) -> None:
    """Rows from 0 to the length; nothing changes otherwise."""
    column = Column(np.int64)
    column.append(numbers(3))
    with pytest.raises(ValueError, match=f"rows must be 0..3, got {rows}"):
        column.truncate(rows)
    assert column.array().tolist() == [0, 1, 2]


def test_a_row_cut_by_a_kill_does_not_count_and_can_be_cut_off(tmp_path: Path) -> None:
    """A file that ends within a row has the whole rows before it."""
    path = tmp_path / "c"
    path.write_bytes(numbers(2).tobytes() + b"\1\2\3")
    column = Column(np.int64, path=path)
    assert len(column) == 2
    assert column.array().tolist() == [0, 1]
    column.truncate(2)
    column.append(numbers(1, 2))
    assert column.array().tolist() == [0, 1, 2]
    stub = tmp_path / "stub"
    stub.write_bytes(b"\1\2\3")
    assert Column(np.int64, path=stub).array().shape == (0,)


def test_a_write_that_fails_loses_nothing_and_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of a buffer: after room is made, the rows are whole and in place."""
    column = Column(np.int64, path=tmp_path / "c")
    column.append(numbers(100))
    real, calls = os.pwrite, []

    def half_full(fd: int, data: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2 + 1], offset)

    monkeypatch.setattr(spool.os, "pwrite", half_full)
    with pytest.raises(OSError, match="No space"):
        column.flush()
    assert column.nbytes == 800
    column.append(numbers(5, 100))
    assert column.array().tolist() == list(range(105))
    assert len(calls) > 3


READER = """
import sys
import numpy as np
from fastdata.spool import Column
column = Column(np.int64, fd=int(sys.argv[1]))
print(len(column), int(column.array().sum()))
"""


def test_another_process_maps_a_column_by_its_descriptor() -> None:
    """``fileno`` has flushed: the other side sees every row of a file that has no name."""
    column = Column(np.int64)
    column.append(numbers(1000))
    fd = column.fileno()
    said = subprocess.run([sys.executable, "-c", READER, str(fd)], pass_fds=[fd], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1000", "499500"]
    column.append(numbers(1, 1000))  # the hand-over moves nothing here
    assert column.array()[-1] == 1000


def test_a_column_takes_the_descriptor_over_and_closes_it() -> None:
    """Owner: the column. Appending through it starts at the end, wherever the descriptor's offset is."""
    first = Column(np.int64)
    first.append(numbers(3))
    fd = os.dup(first.fileno())
    os.lseek(fd, 0, os.SEEK_SET)
    second = Column(np.int64, fd=fd)
    second.append(numbers(1, 3))
    assert second.array().tolist() == [0, 1, 2, 3]
    second.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 40)),
            st.tuples(st.just("truncate"), st.integers(0, 60)),
            st.tuples(st.just("flush"), st.just(0)),
            st.tuples(st.just("array"), st.just(0)),
        ),
        max_size=20,
    )
)
def test_any_sequence_of_calls_equals_a_list(calls: list[tuple[str, int]]) -> None:
    """A column is a list on disk: append, truncate, flush and array in any order."""
    column, model, counter = Column(np.int32, (2,)), np.zeros((0, 2), np.int32), 0
    for name, n in calls:
        if name == "append":
            block = np.arange(counter, counter + 2 * n, dtype=np.int32).reshape(n, 2)
            counter += 2 * n
            column.append(block)
            model = np.concatenate([model, block])
        elif name == "truncate" and n <= len(model):
            column.truncate(n)
            model = model[:n]
        elif name == "flush":
            column.flush()
        elif name == "array":
            assert np.array_equal(column.array(), model)
        assert len(column) == len(model)
    assert np.array_equal(column.array(), model)
