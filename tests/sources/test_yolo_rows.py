"""Text rows: what each column means, which rows are refused and why, and that the short way and the long way agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yolo_kit import told

from fastdata.boxes import xywh_norm_to_xyxy_norm
from fastdata.labels import BOX, OBB, POLYGON
from fastdata.sources import yolo_rows
from fastdata.sources.yolo_rows import Block, RowRule, parse

TWO = RowRule(2)
POSE = RowRule(2, keypoints=2, keypoint_dims=3)


def one(text: str | bytes, rule: RowRule = TWO) -> Block:
    """Parse one file called a.txt."""
    return parse([("a.txt", text.encode() if isinstance(text, str) else text)], rule)


def faults(text: str | bytes, rule: RowRule = TWO) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.kind) for _, problem in one(text, rule).problems]


def ring(block: Block, row: int) -> list[list[float]]:
    part = block.rows.part_offsets[row]
    return block.rows.points[block.rows.point_offsets[part] : block.rows.point_offsets[part + 1]].tolist()


# What columns mean


def test_five_columns_are_a_box_of_centre_and_size() -> None:
    """Corners come out unclipped, in fractions; negative and infinite numbers are passed on."""
    block = one("1 0.5 0.25 0.5 0.5\n0 1.5 -1 -0.5 0\n0 nan 0.5 0.2 inf\n")
    np.testing.assert_array_equal(block.rows.xyxy[:2], [[0.25, 0, 0.75, 0.5], [1.75, -1, 1.25, -1]])
    np.testing.assert_array_equal(block.rows.xyxy[2], [np.nan, -np.inf, np.nan, np.inf])
    assert block.rows.cls.tolist() == [1, 0, 0]
    assert block.rows.where.tolist() == [1, 2, 3]
    assert block.rows.has_box.all()
    assert (block.rows.kind == BOX).all()
    assert not block.problems


def test_an_odd_number_of_seven_or_more_columns_is_an_outline() -> None:
    """Its points belong to the row, and there is no box beside them; rows of boxes own none."""
    block = one("0 0 0 1 0 1 1\n1 .5 .5 .2 .2\n1 0 0 .5 0 .5 .5 0 .5 .1 .2\n")
    assert block.rows.kind.tolist() == [POLYGON, BOX, POLYGON]
    assert block.rows.has_box.tolist() == [False, True, False]
    assert block.rows.part_offsets.tolist() == [0, 1, 1, 2]
    assert ring(block, 0) == [[0, 0], [1, 0], [1, 1]]
    assert ring(block, 2) == [[0, 0], [0.5, 0], [0.5, 0.5], [0, 0.5], [0.1, 0.2]]


@pytest.mark.parametrize(
    ("rule", "kind"), [(TWO, POLYGON), (RowRule(2, obb=True), OBB), (RowRule(2, keypoints=2, keypoint_dims=2), BOX)]
)
def test_the_dataset_decides_what_nine_columns_are(rule: RowRule, kind: int) -> None:
    """An outline, an oriented box, or a box with two keypoints; never guessed from the row."""
    block = one("0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8\n", rule)
    assert block.rows.kind.tolist() == [kind]
    if kind == BOX:
        assert block.rows.keypoints[0].tolist() == [[0.5, 0.6, 1], [0.7, 0.8, 1]]
        assert len(block.rows.points) == 0
    else:
        assert ring(block, 0) == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]]


def test_other_outlines_stay_outlines_among_oriented_boxes() -> None:
    """Only four corners are an oriented box."""
    block = one("0 0 0 1 0 1 1\n0 0 0 1 0 1 1 0 1\n0 .5 .5 .2 .2\n", RowRule(1, obb=True))
    assert block.rows.kind.tolist() == [POLYGON, OBB, BOX]


def test_keypoints_come_with_their_visibility_as_written() -> None:
    """A row of five columns is a box whose keypoints are not labelled."""
    block = one("0 .5 .5 .2 .2 .4 .3 2 0 0 0\n1 .1 .1 .2 .2\n0 .5 .5 .2 .2 .1 .2 1 1.2 -3 2\n", POSE)
    assert block.rows.keypoints.tolist() == [
        [[0.4, 0.3, 2], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0]],
        [[0.1, 0.2, 1], [1.2, -3, 2]],
    ]
    assert (block.rows.kind == BOX).all()
    assert not block.problems


def test_keypoints_without_visibility_are_seen_unless_negative() -> None:
    """The trainers' rule for two columns a keypoint: x or y below 0 means not labelled."""
    block = one("0 .5 .5 .2 .2 .4 .3 -1 .2 .1 -0.01 0 0\n", RowRule(1, keypoints=4, keypoint_dims=2))
    assert block.rows.keypoints[0].tolist() == [[0.4, 0.3, 1], [0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_ids_are_counted_off_in_ascending_order() -> None:
    """Published ids 3, 7 and 90 are the classes 0, 1 and 2."""
    rule = RowRule(3, ids=(3, 7, 90))
    assert one("90 .5 .5 .1 .1\n3 .5 .5 .1 .1\n7 .5 .5 .1 .1\n", rule).rows.cls.tolist() == [2, 0, 1]
    block = one("90 .5 .5 .1 .1\n4 .5 .5 .1 .1\n", rule)
    assert block.rows.cls.tolist() == [2]
    assert told([p for _, p in block.problems]) == [("a.txt:2", "class-range")]
    assert "one of the 3 ids in names (3..90)" in block.problems[0][1].detail


# What is refused


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("0", "columns"),
        ("0 .1 .2 .3", "columns"),
        ("0 .1 .2 .3 .4 .9", "columns"),
        ("0 .1 .2 .3 .4 .5 .6 .7", "odd-polygon"),
        ("0 .1 .2 .3 .4 .5 .6 .7 .8 .9", "odd-polygon"),
        ("car .1 .2 .3 .4", "bad-number"),
        ("0,.1,.2,.3,.4", "bad-number"),
        ("0 .1 0,2 .3 .4", "bad-number"),
        ("0 .1 .2 .3 .4 # car", "bad-number"),
        ("0 .1 .2 .3 1_0", "bad-number"),
        ("0 .1 .2 .3 ١", "bad-number"),
        ("0 .1 .2 .3 0x1", "bad-number"),
        ("0 .1 .2 .3 1-2", "bad-number"),
        ("0 .1 .2 .3 .", "bad-number"),
        ("0 .1 .2 .3 1e", "bad-number"),
        ("1.5 .1 .2 .3 .4", "class-integer"),
        ("-1 .1 .2 .3 .4", "class-integer"),
        ("nan .1 .2 .3 .4", "class-integer"),
        ("inf .1 .2 .3 .4", "class-integer"),
        ("2 .1 .2 .3 .4", "class-range"),
        ("1e300 .1 .2 .3 .4", "class-range"),
        ("2 .1 .2 .3", "columns"),
    ],
)
def test_a_row_that_cannot_be_read_is_dropped_and_named(row: str, kind: str) -> None:
    """Its neighbours stay, and the count of rows adds up."""
    block = one(f"1 .5 .5 .1 .1\n\n{row}\n0 .5 .5 .1 .1\n")
    assert faults(f"1 .5 .5 .1 .1\n\n{row}\n0 .5 .5 .1 .1\n") == [(3, kind)]
    assert block.rows.where.tolist() == [1, 4]
    assert block.rows.cls.tolist() == [1, 0]
    assert (block.found.tolist(), block.dropped.tolist()) == ([3], [1])
    assert block.problems[0][1].action == "dropped"


@pytest.mark.parametrize("columns", [6, 7, 9, 10, 12, 13])
def test_with_keypoints_only_two_widths_are_rows(columns: int) -> None:
    """An outline cannot be told from a row with the wrong number of keypoints."""
    assert faults("0 " + "0.5 " * (columns - 1), POSE) == [(1, "columns")]


def test_what_a_number_may_look_like() -> None:
    """Whatever a program prints: exponents, signs, no leading or trailing digit."""
    block = one("1.000e+00 +0.5 5.E-1 .5 1e-1\n-0 00.5 0.50 0.5e0 5e-01\n")
    assert not block.problems
    assert block.rows.cls.tolist() == [1, 0]
    np.testing.assert_array_equal(block.rows.xyxy, [[0.25, 0.45, 0.75, 0.55], [0.25, 0.25, 0.75, 0.75]])


def test_the_message_of_a_class_beyond_the_names_says_what_to_do() -> None:
    """The one fault that stops a run by itself."""
    detail = one("7 .5 .5 .1 .1", RowRule(3)).problems[0][1].detail
    assert detail.startswith("class 7 must be < 3 (the number of names), ")
    assert "--on-error skip" in detail


def test_a_sixth_column_is_called_a_confidence() -> None:
    """Predictions saved with their confidence are not labels; the message says how they came to be."""
    assert "confidence" in one("0 .1 .2 .3 .4 .93").problems[0][1].detail


def test_a_copy_is_a_row_equal_in_every_number() -> None:
    """However it is written; the first stays in its place. NaN equals nothing, another class is another row."""
    block = one("1 .5 .5 .1 .1\n0 .5 .5 .1 .1\n1.0 0.50 5e-1 .1 0.1\n0 0 0 1 0 1 1\n0 0 0 1 0 1 1\n0 0 0 1 1 1 0\n")
    assert [(p.line, p.kind) for _, p in block.problems] == [(3, "duplicate"), (5, "duplicate"), (None, "mixed-kinds")]
    assert block.rows.where.tolist() == [1, 2, 4, 6]
    assert "line 1" in block.problems[0][1].detail
    assert faults("0 nan .5 .1 .1\n0 nan .5 .1 .1\n") == []
    assert faults("0 .5 -0 .1 .1\n0 .5 0.0 .1 .1\n") == [(2, "duplicate")]


def test_one_class_for_all_comes_before_every_look_at_the_class() -> None:
    """Also for what is no class at all; two boxes that differ in nothing else become copies."""
    rule = RowRule(1, single_cls=True)
    block = one("4 .5 .5 .1 .1\n1.5 .4 .5 .1 .1\n-1 .3 .5 .1 .1\nnan .2 .5 .1 .1\n9 .5 .5 .1 .1\n", rule)
    assert block.rows.cls.tolist() == [0, 0, 0, 0]
    assert [(p.line, p.kind) for _, p in block.problems] == [(5, "duplicate")]


# What a file may look like


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
        lambda text: text.replace(" ", "\t \t").encode(),
        lambda text: text.replace(" ", "\u00a0\u3000").encode(),
        lambda text: text.encode("utf-16"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: text.encode("utf-32"),
        lambda text: text.rstrip("\n").encode(),
    ],
)
def test_encoding_line_ends_and_blanks_change_nothing(encode: Callable[[str], bytes]) -> None:
    """Lines count from 1, empty ones included."""
    block = one(encode("\n0 .5 .5 .1 .1\n   \n1 .25 .5 .1 .1\n"))
    assert not block.problems
    assert block.rows.where.tolist() == [2, 4]
    assert block.rows.cls.tolist() == [0, 1]


@pytest.mark.parametrize(
    "data", [b"0 .5 .5 .1 .1\n\xff", b"0\0 \0.\0", b"\xff\xfe0\0 ", b"\xff\xd8\xff\xe0\0\x10JFIF", b"caf\xe9 0 0 0 0"]
)
def test_bytes_that_are_no_text_spoil_the_file_alone(data: bytes) -> None:
    """There are no rows to speak of, so none is counted."""
    block = parse([("a.txt", data), ("b.txt", b"0 .5 .5 .1 .1")], TWO)
    assert told([p for _, p in block.problems]) == [("a.txt", "unreadable-labels")]
    assert block.found.tolist() == [0, 1]
    assert block.file.tolist() == [1]


def test_comment_lines_are_no_rows_and_said_once_a_file() -> None:
    """A hundred of them would hide what matters."""
    block = one("# head\n0 .5 .5 .1 .1\n  #tail\n")
    assert told([p for _, p in block.problems]) == [("a.txt", "comment")]
    assert block.found.tolist() == [1]
    assert "1 and 1 more" in block.problems[0][1].detail


def test_kinds_side_by_side_are_noted_once_for_each_file() -> None:
    """Each row keeps its kind; pose rows and boxes are one kind."""
    text = b"0 .5 .5 .1 .1\n0 0 0 1 0 1 1\n0 0 0 1 0 0 1\n"
    block = parse([("a.txt", text), ("b.txt", b"0 .5 .5 .1 .1\n"), ("c.txt", text)], TWO)
    assert [(i, p.where, p.kind) for i, p in block.problems] == [(0, "a.txt", "mixed-kinds"), (2, "c.txt", "mixed-kinds")]
    assert "1 boxes beside 2 outlines" in block.problems[0][1].detail
    assert faults("0 .5 .5 .1 .1\n0 .5 .5 .2 .2 .4 .3 2 0 0 0\n", POSE) == []


@pytest.mark.parametrize(
    ("text", "rule", "is_pixels"),
    [
        ("0 320 240 64 48\n", TWO, True),
        ("0 320 240 1 2\n", TWO, False),  # half of them
        ("0 320 240 3 2\n", TWO, True),
        ("1 0 0 100 0 100 100\n", TWO, False),
        ("1 9 9 100 0 100 100\n", TWO, True),
        ("0 .5 .5 .1 .1 3 3 2 3 3 2\n", POSE, False),  # four of eight: visibilities do not count
        ("0 .5 .5 .1 .1 30 30 30 30 30 30\n", RowRule(1, keypoints=3, keypoint_dims=2), True),
        ("0 3 .5 .1 .1 3 3 2 3 3 2\n", POSE, True),  # five of eight
        ("8 3 3 .1 .1\n", RowRule(9), False),  # two of four: the class does not count
        ("", TWO, False),
    ],
)
def test_most_numbers_above_two_look_like_pixels(text: str, rule: RowRule, is_pixels: bool) -> None:
    """Coordinates alone are counted, not classes and visibilities."""
    assert ("pixel-coordinates" in [kind for _, kind in faults(text, rule)]) is is_pixels


def test_problems_stand_in_the_order_of_files_and_lines() -> None:
    """Notes on a whole file follow its rows."""
    mixed = b"#\n5 .5 .5 .1 .1\n0 0 0 1 0 1 1\n0 .5 .5 .1 .1\n"
    block = parse([("a.txt", b"x\n\n0 0 0\n0 9 9 9 9\n"), ("b.txt", b""), ("c.txt", mixed)], TWO)
    assert [(i, *pair) for (i, _), pair in zip(block.problems, told([p for _, p in block.problems]), strict=True)] == [
        (0, "a.txt:1", "bad-number"),
        (0, "a.txt:3", "columns"),
        (0, "a.txt", "pixel-coordinates"),
        (2, "c.txt:2", "class-range"),
        (2, "c.txt", "comment"),
        (2, "c.txt", "mixed-kinds"),
    ]
    assert block.file.tolist() == [0, 2, 2]
    assert (block.found.tolist(), block.dropped.tolist()) == ([3, 0, 3], [2, 0, 1])


# Both ways

TOKEN = st.sampled_from(
    "0 1 2 3 7 -1 -0 1.0 1.5 0.5 .5 5. +0.25 1e-1 2E-1 1e999 nan inf 0,5 abc 1_0 # 0.5# １ -- 1-2 . 2.5 30 30.5 00.5 1..2".split()
)
GOOD = st.sampled_from("0 1 2 7 1.0 0.5 .5 5. +0.25 1e-1 2E-1 -0.1 2.5 30 0.47949200000000003 -0 0.50000".split())
WIDTH = st.sampled_from([1, 4, 5, 5, 5, 6, 7, 8, 9, 11])
ROW = st.one_of(
    WIDTH.flatmap(lambda n: st.lists(GOOD, min_size=n, max_size=n)),
    WIDTH.flatmap(lambda n: st.lists(GOOD | TOKEN, min_size=n, max_size=n)),
    st.just([]),
)
CLEAN_ROW = st.sampled_from([5, 5, 7, 9, 11]).flatmap(
    lambda n: st.tuples(st.sampled_from("0 1 1.0 0e0".split()), *[st.sampled_from("0.5 .25 0 1 1e-3 0.7".split())] * (n - 1))
)
BLANK = st.sampled_from([" ", "\t", "  ", " \t"])
END = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def file_bytes(draw: st.DrawFn) -> bytes:
    """A label file: mostly clean rows, sometimes anything."""
    rows = draw(st.lists(CLEAN_ROW if draw(st.booleans()) else ROW, max_size=6))
    text = "".join(draw(BLANK).join(row) + draw(END) for row in rows)
    data = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"])))
    return data + draw(st.sampled_from([b"", b"", b"", b"#x", b"\xff", b"\0", b"0 .5 .5 .1 .1"]))


RULES = st.sampled_from(
    [
        TWO,
        POSE,
        RowRule(2, obb=True),
        RowRule(1, single_cls=True),
        RowRule(2, ids=(1, 7)),
        RowRule(3, keypoints=2, keypoint_dims=2),
        RowRule(1, keypoints=1, keypoint_dims=2, single_cls=True),
    ]
)


def same(a: Block, b: Block) -> None:
    ragged = ("part_offsets", "point_offsets", "points")
    for name in ("cls", "xyxy", "has_box", "kind", "flags", "where", "area", "keypoints", *ragged):
        got, want = getattr(a.rows, name), getattr(b.rows, name)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=name)
    for name in ("file", "found", "dropped"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.problems == b.problems


@settings(max_examples=400)
@given(files=st.lists(file_bytes(), max_size=5), rule=RULES)
@example(files=[b"1 .5 .5 .1 .1\r\r\n1 .5 .5 .1 .2"], rule=TWO)
@example(files=[b"1e5 .5 .5 .1 .1\n", b"- .5 .5 .1 .1", b"0 1e999 .5 .1 .1"], rule=TWO)
def test_the_short_way_gives_what_the_long_way_gives(files: list[bytes], rule: RowRule) -> None:
    """Every array, every count and every problem, for any bytes under any rule."""
    named = [(f"{i}.txt", data) for i, data in enumerate(files)]
    same(parse(named, rule), parse(named, rule, odd=True))


def test_clean_files_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the proof above would compare the long way with itself."""
    monkeypatch.setattr(yolo_rows, "_read_odd", lambda *_: pytest.fail("long way taken"))
    assert parse([("a", b"0 .5 .5 .1 .1\r\n\n1.0 0 0 1e0 0 1 1"), ("b", b""), ("c", b" \n")], TWO).found.tolist() == [2, 0, 0]
    assert parse([("a", b"0 .5 .5 .1 .1 .1 .1 2 0 0 0\n0 .5 .5 .1 .1")], POSE).found.tolist() == [2]
    assert parse([("a", b"7 .5 .5 .1 .1\n")], RowRule(1, single_cls=True)).found.tolist() == [1]


@given(files=st.lists(file_bytes(), max_size=4), rule=RULES)
def test_every_row_that_is_found_is_kept_or_named(files: list[bytes], rule: RowRule) -> None:
    """found = kept + dropped; each dropped row has one problem with its line, and no kept row has one."""
    block = parse([(f"{i}.txt", data) for i, data in enumerate(files)], rule)
    assert block.found.tolist() == (np.bincount(block.file, minlength=len(files)) + block.dropped).tolist()
    lost = {(i, p.line) for i, p in block.problems if p.action == "dropped" and p.line is not None}
    assert len(lost) == block.dropped.sum()
    assert lost.isdisjoint(zip(block.file.tolist(), block.rows.where.tolist(), strict=True))
    assert ((block.rows.cls >= 0) & (block.rows.cls < rule.classes)).all()
    assert (np.diff(block.file) >= 0).all()


FRACTION = st.floats(-1, 2, allow_nan=False).map(lambda x: round(x, 9))


@given(boxes=st.lists(st.tuples(st.integers(0, 4), FRACTION, FRACTION, FRACTION, FRACTION), unique=True, max_size=8))
def test_numbers_come_back_to_the_last_bit(boxes: list[tuple[int, float, float, float, float]]) -> None:
    """What Python prints and reads is what the parser reads."""
    block = one("\n".join(" ".join(map(repr, box)) for box in boxes), RowRule(5))
    want = np.array([box[1:] for box in boxes], np.float64).reshape(-1, 4)
    np.testing.assert_array_equal(block.rows.xyxy, xywh_norm_to_xyxy_norm(want))
    assert block.rows.cls.tolist() == [box[0] for box in boxes]
