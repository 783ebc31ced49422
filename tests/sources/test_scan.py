"""What readers hand over: rows come back per image as they were added, whatever the order, also in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.labels import BOX, MASK, OBB, POLYGON, Rows
from fastdata.sources.scan import RowTable, Strings

ROW = st.fixed_dictionaries(
    {
        "image": st.integers(0, 5),
        "cls": st.integers(0, 2**31 - 1),
        "xyxy": st.lists(st.floats(width=64), min_size=4, max_size=4),
        "has_box": st.booleans(),
        "flags": st.integers(0, 7),
        "where": st.integers(-(2**63), 2**63 - 1),
        "area": st.floats(width=64),
        "shape": st.one_of(
            st.tuples(st.just(BOX), st.just(())),
            st.tuples(st.just(MASK), st.binary(min_size=1, max_size=20)),
            st.tuples(st.sampled_from([POLYGON, OBB]), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
        ),
    }
)


def block(rows: list[dict], keypoints: int) -> Rows:
    """Make Rows of plain values; outline points and keypoints are numbered so that none equals another."""
    n = len(rows)
    rings = [r["shape"][1] if r["shape"][0] in (POLYGON, OBB) else () for r in rows]
    sizes = [size for parts in rings for size in parts]
    base = float(sum(r["cls"] % 97 for r in rows))
    return Rows(
        unit="px",
        file="not kept",
        place="annotation_id",
        cls=np.array([r["cls"] for r in rows], np.int32),
        xyxy=np.array([r["xyxy"] for r in rows], np.float64).reshape(n, 4),
        has_box=np.array([r["has_box"] for r in rows], np.bool_),
        kind=np.array([r["shape"][0] for r in rows], np.uint8),
        flags=np.array([r["flags"] for r in rows], np.uint8),
        where=np.array([r["where"] for r in rows], np.int64),
        area=np.array([r["area"] for r in rows], np.float64),
        part_offsets=np.concatenate([[0], np.cumsum([len(parts) for parts in rings])]).astype(np.int64),
        point_offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        points=base + np.arange(2.0 * sum(sizes)).reshape(-1, 2),
        keypoints=base + np.arange(3.0 * n * keypoints).reshape(n, keypoints, 3),
        rle=[r["shape"][1] if r["shape"][0] == MASK else None for r in rows],
    )


def flatten(rows: Rows) -> list[dict]:
    """One comparable value per row (numbers as bytes: NaN equals NaN, -0 differs from 0)."""
    out = []
    for i in range(len(rows)):
        first, last = int(rows.part_offsets[i]), int(rows.part_offsets[i + 1])
        rings = [rows.points[rows.point_offsets[p] : rows.point_offsets[p + 1]].tolist() for p in range(first, last)]
        names = ("cls", "xyxy", "has_box", "kind", "flags", "where", "area", "keypoints")
        values = {name: (getattr(rows, name)[i].dtype.str, getattr(rows, name)[i].tobytes()) for name in names}
        out.append({**values, "rings": rings, "rle": rows.rle[i]})
    return out


@given(st.lists(st.lists(ROW, max_size=6), max_size=5), st.sampled_from([0, 1, 3]))
def test_rows_come_back_per_image_in_the_order_added(blocks: list[list[dict]], keypoints: int) -> None:
    """Whatever the order of images over all blocks: image i gets exactly its rows, bit by bit, in the order of adding."""
    table = RowTable("px", "annotation_id", keypoints)
    expected: dict[int, list[dict]] = {i: [] for i in range(7)}
    for rows in blocks:
        made = block(rows, keypoints)
        table.add(np.array([r["image"] for r in rows], np.int64), made)
        for r, flat in zip(rows, flatten(made), strict=True):
            expected[r["image"]].append(flat)
    table.finish(7, ["a.json"], np.array([0, 0, 0, -1, 0, 0, -1], np.int32))
    assert len(table) == sum(len(rows) for rows in blocks)
    assert table.counts().tolist() == [len(expected[i]) for i in range(7)]
    for i in range(7):
        rows = table.rows(i)
        assert flatten(rows) == expected[i]
        assert (rows.unit, rows.place, rows.declared_hw) == ("px", "annotation_id", None)
        assert rows.file == ("" if i in (3, 6) else "a.json")


def boxes_only(cls: list[int], keypoints: int = 0) -> Rows:
    rows = [
        {"image": 0, "cls": c, "xyxy": [c, 1, 2, 3], "has_box": True, "flags": 0, "where": c, "area": 1.0, "shape": (BOX, ())}
        for c in cls
    ]
    return block(rows, keypoints)


def test_declared_sizes_and_label_files_belong_to_images() -> None:
    """0 x 0 means that the file states none; a caller in another process names the file itself."""
    table = RowTable("norm", "line", 0)
    table.add(np.array([1], np.int64), boxes_only([4]))
    sizes = np.array([[0, 0], [30, 40], [30, 0]], np.int32)
    table.finish(3, ["x.txt", "y.txt"], np.array([1, 0, -1], np.int32), sizes)
    assert [table.file(i) for i in range(3)] == ["y.txt", "x.txt", ""]
    assert [table.rows(i).declared_hw for i in range(3)] == [None, (30, 40), None]
    assert table.rows(1, file="z.txt").file == "z.txt"
    assert np.array_equal(table.declared_hw(), sizes)


def test_whole_columns_keep_the_order_of_adding() -> None:
    """For statistics over a set nobody needs the order by image."""
    table = RowTable("norm", "line", 0)
    table.add(np.array([2, 0], np.int64), boxes_only([7, 3]))
    table.add(np.array([1], np.int64), boxes_only([5]))
    table.finish(3, [], np.full(3, -1, np.int32))
    assert table.column("cls").tolist() == [7, 3, 5]
    assert [table.rows(i).cls.tolist() for i in range(3)] == [[3], [5], [7]]


def test_a_table_without_rows_has_images_without_rows() -> None:
    """A set of background pictures is a set."""
    table = RowTable("norm", "line", 2)
    table.finish(2, [], np.full(2, -1, np.int32))
    assert table.counts().tolist() == [0, 0]
    assert len(table.rows(1)) == 0
    assert table.rows(1).keypoints.shape == (0, 2, 3)


def test_rows_with_another_number_of_keypoints_are_refused() -> None:
    """Silence would shift the keypoints of every later row by one."""
    table = RowTable("norm", "line", 3)
    with pytest.raises(ValueError, match=r"keypoints must be of shape \(n x 3 x 3\), got \(1, 0, 3\)"):
        table.add(np.array([0], np.int64), boxes_only([1]))
    bare = RowTable("norm", "line", 0)
    with pytest.raises(ValueError, match=r"keypoints must be of shape \(n x 0 x 3\), got \(1, 3, 3\)"):
        bare.add(np.array([0], np.int64), boxes_only([1], keypoints=3))
    assert len(table) == len(bare) == 0


@pytest.mark.parametrize("image", [[0], [0, 1, 1]])
def test_every_row_must_say_its_image(image: list[int]) -> None:
    """One index for each row."""
    table = RowTable("norm", "line", 0)
    with pytest.raises(ValueError, match=r"image must be of shape \(2\), got"):
        table.add(np.array(image, np.int64), boxes_only([1, 2]))
    assert len(table) == 0


def test_rows_of_an_image_that_is_not_there_are_refused() -> None:
    """Index N and above belong to nobody; the sum of ``counts`` would not be the number of rows."""
    table = RowTable("norm", "line", 0)
    table.add(np.array([0, 3], np.int64), boxes_only([1, 2]))
    with pytest.raises(ValueError, match=r"image must be 0\.\.2, got 3"):
        table.finish(3, [], np.full(3, -1, np.int32))


CHILD = """
import json, sys
from fastdata.sources.scan import RowTable
settings, fds, images = json.loads(sys.argv[1])
table = RowTable.reopen(tuple(settings), fds)
out = []
for i in range(images):
    r = table.rows(i, file="given.txt")
    out.append([r.unit, r.place, r.file, r.declared_hw, r.cls.tolist(), r.xyxy.tolist(), r.points.tolist(), r.keypoints.tolist(),
                [m.decode() if m else None for m in r.rle]])
print(json.dumps([table.counts().tolist(), len(table), out]))
"""


@pytest.mark.parametrize("keypoints", [0, 2])
def test_a_finished_table_is_mapped_by_a_process_that_knows_only_its_descriptors(keypoints: int) -> None:
    """``share`` and ``reopen`` over a fresh interpreter: every row as here, and this side still reads."""
    common = {"flags": 1, "area": 2.0}
    rows = [
        {"image": 1, "cls": 3, "xyxy": [1, 2, 3, 4], "has_box": False, "where": 9, "shape": (POLYGON, (3, 4)), **common},
        {"image": 0, "cls": 4, "xyxy": [0, 0, 8, 8], "has_box": True, "where": 8, "shape": (MASK, b"{}"), **common},
        {"image": 1, "cls": 5, "xyxy": [5, 6, 7, 8], "has_box": True, "where": 7, "shape": (BOX, ()), **common},
    ]
    table = RowTable("px", "object", keypoints)
    table.add(np.array([r["image"] for r in rows], np.int64), block(rows, keypoints))
    table.finish(2, ["own.xml"], np.zeros(2, np.int32), np.array([[0, 0], [30, 40]], np.int32))
    settings, fds = table.share()
    call = [sys.executable, "-c", CHILD, json.dumps([settings, fds, 2])]
    said = subprocess.run(call, pass_fds=fds.values(), capture_output=True, text=True, check=True)
    counts, length, images = json.loads(said.stdout)
    assert (counts, length) == ([1, 2], 3)
    for i, (unit, place, file, declared, cls, xyxy, points, keypoint_rows, rle) in enumerate(images):
        own = table.rows(i)
        assert (unit, place, file) == ("px", "object", "given.txt")
        assert declared == ([30, 40] if i == 1 else None)
        assert cls == own.cls.tolist()
        assert xyxy == own.xyxy.tolist()
        assert points == own.points.tolist()
        assert keypoint_rows == own.keypoints.tolist()
        assert rle == [m.decode() if m else None for m in own.rle]
    assert own.points.shape == (7, 2)


def test_rows_lie_in_files_that_have_no_name(tmp_path: Path) -> None:
    """The folder given holds the bytes and shows nothing."""
    table = RowTable("norm", "line", 0, tmp_path)
    table.add(np.array([0], np.int64), boxes_only([1]))
    assert list(tmp_path.iterdir()) == []
    assert os.readlink(f"/proc/self/fd/{table.share()[1]['cls']}").startswith(str(tmp_path))


@given(st.lists(st.binary(max_size=12)))
def test_every_name_that_a_disk_accepts_comes_back(names: list[bytes]) -> None:
    """Any bytes, UTF-8 or not, as ``os.fsdecode`` gives them: the bytes on the disk are found again."""
    strings = Strings()
    texts = [name.decode("utf-8", "surrogateescape") for name in names]
    for text in texts:
        strings.append(text)
    assert len(strings) == len(names)
    assert list(strings) == texts
    assert [text.encode("utf-8", "surrogateescape") for text in strings] == names


def test_strings_grow_beyond_their_first_block() -> None:
    """The table of ends doubles; indices outside are errors and do not wrap around."""
    strings = Strings()
    for i in range(5000):
        strings.append(f"images/{i}.png")
    assert (strings[0], strings[1023], strings[1024], strings[4999]) == (
        "images/0.png", "images/1023.png", "images/1024.png", "images/4999.png",
    )  # fmt: skip
    for wrong in (-1, 5000):
        with pytest.raises(IndexError):
            strings[wrong]


def test_text_that_is_no_file_name_is_refused_and_changes_nothing() -> None:
    """Half of a surrogate pair, as JSON can hold it, is on no disk."""
    strings = Strings()
    strings.append("a")
    with pytest.raises(UnicodeEncodeError):
        strings.append("b\ud83d")
    strings.append("c")
    assert list(strings) == ["a", "c"]
