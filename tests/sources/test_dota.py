"""Oriented boxes in DOTA text arrive with their corners, their line and their difficulty, from every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata import boxes
from fastdata.errors import DataError, UsageError
from fastdata.labels import DIFFICULT, OBB
from fastdata.settle import settle
from fastdata.sources.dota import read_dota
from fastdata.sources.files import digest
from fastdata.sources.scan import Scan, SourceOptions

ROW = "10 5 30 5 30 25 10 25 plane 0"
CORNERS = [[10.0, 5.0], [30.0, 5.0], [30.0, 25.0], [10.0, 25.0]]
BOW_TIE = "10 5 30 25 30 5 10 25 plane 0"


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def dota(root: Path, labels: dict[str, str | bytes], images: tuple[str, ...] | None = None, below: str = "") -> Path:
    """Write labelTxt and images; a picture for every label file, unless ``images`` says which."""
    files: dict[str, str | bytes] = {f"{below}labelTxt/{stem}.txt": text for stem, text in labels.items()}
    names = images if images is not None else tuple(f"{stem}.png" for stem in labels)
    (root / below / "images").mkdir(parents=True, exist_ok=True)
    return tree(root, files | {f"{below}images/{name}": b"picture" for name in names})


def read(root: Path, **options: Any) -> Scan:
    return read_dota(root, SourceOptions(**options))


def quads(scan: Scan, i: int = 0) -> list[list[list[float]]]:
    rows = scan.rows(i)
    assert np.diff(rows.part_offsets).tolist() == [1] * len(rows)
    assert np.diff(rows.point_offsets).tolist() == [4] * len(rows)
    return rows.points.reshape(-1, 4, 2).tolist()


def found(scan: Scan) -> list[tuple[str, str, str, int | None]]:
    return [(p.file, p.kind, p.action, p.line) for p in scan.problems]


def test_the_published_crop_is_read_with_its_bow_tie_made_straight(shared: Path) -> None:
    """One image and four planes; the second label file is empty and has no image."""
    scan = read(shared / "data/obb_mmrotate/tests/data")
    assert list(scan.keys) == ["images/P0004__1__0___0.png"]
    assert (scan.names, scan.splits, scan.task) == (("plane",), ("train",), "obb")
    assert (scan.rows_in, scan.rows_dropped) == (4, 0)
    rows = scan.rows(0)
    assert rows.kind.tolist() == [OBB] * 4
    assert not rows.has_box.any()
    assert rows.where.tolist() == [1, 2, 3, 4]
    assert rows.flags.tolist() == [0, 0, DIFFICULT, 0]
    assert quads(scan)[0] == [[398, 716], [398, 694], [464, 698], [465, 718]]
    published = np.array([[126.0, 191], [128, 171], [123, 178], [221, 199]])
    straight = np.array(quads(scan)[3])
    np.testing.assert_allclose(straight, boxes.min_area_rectangle(published))
    assert not boxes.is_self_crossing(straight)
    assert found(scan) == [
        ("labelTxt/P0004__1__0___0.txt", "self-crossing", "changed", 4),
        ("labelTxt/P0004__1__0___1024.txt", "unused-label-file", "noted", None),
    ]
    with pytest.raises(DataError, match=r"^labelTxt/P0004__1__0___0\.txt:4: the sides of a box must not cross"):
        read(shared / "data/obb_mmrotate/tests/data", on_error="raise")


def test_what_is_read_settles_into_oriented_boxes(tmp_path: Path) -> None:
    """Corners outside the picture survive, and the box is that of the corners, clipped."""
    scan = read(dota(tmp_path, {"a": "-4 10 6 0 16 10 6 20 plane 1\n"}))
    instances, _ = settle(scan.rows(0), (40, 50), key=scan.keys[0])
    assert instances.points_px.tolist() == [[-4, 10], [6, 0], [16, 10], [6, 20]]
    assert instances.xyxy_px.tolist() == [[0, 0, 16, 20]]


def test_headers_and_blank_lines_are_no_rows_but_count_as_lines(tmp_path: Path) -> None:
    """Whatever their case; tabs, CR LF and a byte-order mark are blank space."""
    text = f"\ufeffimagesource:GoogleEarth\r\nGSD:0.146\r\n\r\n{ROW}\r\n" + ROW.replace(" ", "\t") + "\r\n"
    for encoding in ("utf-8", "utf-16"):
        scan = read(dota(tmp_path, {"a": text.removeprefix("\ufeff" if encoding == "utf-16" else "").encode(encoding)}))
        assert quads(scan) == [CORNERS, CORNERS]
        assert scan.rows(0).where.tolist() == [4, 5]
        assert (scan.rows_in, scan.problems) == (2, [])


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("10 5 30 5 30 25 10 plane 0", "bad-number"),
        ("10 5 30 5 30 25 plane 0", "columns"),
        (f"{ROW} 7", "columns"),
        ("10,5,30,5,30,25,10,25,plane,0", "columns"),
        ("10 5 30 5 30 25 10 2_5 plane 0", "bad-number"),
        ("10 5 30 5 30 25 10 25 plane hard", "bad-number"),
        ("10 5 30 5 30 25 10 25 plane 3", "bad-number"),
        ("10 5 30 5 30 25 10 25 plane -1", "bad-number"),
    ],
)
def test_a_row_that_cannot_be_read_is_dropped_with_its_line(tmp_path: Path, row: str, kind: str) -> None:
    """The other rows and the image stay; rows add up."""
    scan = read(dota(tmp_path, {"a": f"{ROW}\n{row}\n{ROW}\n"}))
    assert scan.rows(0).where.tolist() == [1, 3]
    assert found(scan) == [("labelTxt/a.txt", kind, "dropped", 2)]
    assert (scan.rows_in, scan.rows_dropped) == (3, 1)


@pytest.mark.parametrize(("end", "flag"), [("", 0), (" 0", 0), (" 1", DIFFICULT), (" 2", DIFFICULT), (" 1.0", DIFFICULT)])
def test_difficulty_from_one_on_is_difficult_and_absent_is_easy(tmp_path: Path, end: str, flag: int) -> None:
    """0, 1 and 2 are published; results and some tools leave it out."""
    assert read(dota(tmp_path, {"a": ROW[:-2] + end})).rows(0).flags.tolist() == [flag]


def test_numbers_without_meaning_are_left_to_be_judged_with_the_picture(tmp_path: Path) -> None:
    """NaN is no reason to lose the row's report of what it is."""
    scan = read(dota(tmp_path, {"a": "nan 5 30 5 30 25 10 25 plane 0"}))
    assert np.isnan(scan.rows(0).points[0, 0])
    _, problems = settle(scan.rows(0), (40, 50), key=scan.keys[0])
    assert [(p.kind, p.line) for p in problems] == [("not-finite", 1)]


def test_classes_are_sorted_by_name_over_all_splits_or_as_given(tmp_path: Path) -> None:
    """A name that is not given stops the run with its line, and is dropped on request."""
    dota(tmp_path, {"a": ROW}, below="train/")
    dota(tmp_path, {"b": ROW.replace("plane", "harbor")}, below="val/")
    assert read(tmp_path).names == ("harbor", "plane")
    assert read(tmp_path, splits=("train",)).rows(0).cls.tolist() == [1]
    assert read(tmp_path, names=("plane", "harbor")).rows(0).cls.tolist() == [0]
    with pytest.raises(DataError, match=r"^val/labelTxt/b\.txt:1: class 'harbor' must be one of plane; add it to --names"):
        read(tmp_path, names=("plane",))
    scan = read(tmp_path, names=("plane",), on_error="skip")
    assert found(scan) == [("val/labelTxt/b.txt", "class-range", "dropped", 1)]
    one = read(tmp_path, single_cls=True)
    assert (one.names, one.rows(1).cls.tolist()) == (("object",), [0])


def test_splits_are_folders_and_one_without_labels_is_pictures_alone(tmp_path: Path) -> None:
    """The published test set has no labels; one note says so."""
    dota(tmp_path, {"a": ROW}, below="train/")
    dota(tmp_path, {"a": ROW}, below="val/")
    tree(tmp_path, {"test/images/c.png": b"x", "test/images/d.png": b"x"})
    scan = read(tmp_path)
    assert scan.splits == ("train", "val", "test")
    assert list(scan.keys) == ["train/images/a.png", "val/images/a.png", "test/images/c.png", "test/images/d.png"]
    assert scan.split.tolist() == [0, 1, 2, 2]
    assert found(scan) == [("test/images", "no-label", "noted", None)]
    assert list(read(tmp_path, splits=("val", "train")).keys) == ["val/images/a.png", "train/images/a.png"]
    with pytest.raises(UsageError, match=r"split must be one of train, val, test in .*, got 'dev'"):
        read(tmp_path, splits=("dev",))


def test_images_and_label_files_pair_by_stem_and_the_rest_is_told(tmp_path: Path) -> None:
    """Images of one stem share the file and its report; sub-folders of images need not be repeated; a stem may hold dots."""
    dota(tmp_path, {"a": f"{ROW}\n1 2 3\n", "b.v2": ROW, "lost": ROW}, ("a.png", "a.TIF", "part1/b.v2.jpg", "bare.png"))
    scan = read(tmp_path)
    assert {key: len(scan.rows(i)) for i, key in enumerate(scan.keys)} == {
        "images/a.TIF": 1,
        "images/a.png": 1,
        "images/bare.png": 0,
        "images/part1/b.v2.jpg": 1,
    }
    assert found(scan) == [
        ("labelTxt/a.txt", "columns", "dropped", 2),
        ("images/bare.png", "no-label", "noted", None),
        ("labelTxt/lost.txt", "unused-label-file", "noted", None),
    ]
    assert (scan.rows_in, scan.rows_dropped) == (5, 2)
    assert [(f.path, f.digest) for f in scan.label_files] == [
        (name, digest(tmp_path / name)) for name in ("labelTxt/a.txt", "labelTxt/b.v2.txt")
    ]


def test_a_label_file_that_is_no_text_stops_the_run_or_takes_its_image_along(tmp_path: Path) -> None:
    """Never background."""
    dota(tmp_path, {"a": b"\xff\x80\x00", "b": ROW})
    with pytest.raises(DataError, match=r"^labelTxt/a\.txt: must be readable UTF-8 text"):
        read(tmp_path)
    scan = read(tmp_path, on_error="skip")
    assert list(scan.keys) == ["images/b.png"]
    assert [(s.file, s.reason) for s in scan.skips] == [("images/a.png", "unreadable")]
    assert found(scan) == [("labelTxt/a.txt", "unreadable-labels", "dropped", None)]


def test_roots_may_lie_elsewhere(tmp_path: Path) -> None:
    """Keys are relative to the images' root then."""
    tree(tmp_path, {"set/readme": "", "shots/a.png": b"x", "text/a.txt": ROW})
    scan = read(tmp_path / "set", images=tmp_path / "shots", labels=tmp_path / "text")
    assert (list(scan.keys), quads(scan)) == (["a.png"], [CORNERS])
    with pytest.raises(UsageError, match="images must be an existing folder"):
        read(tmp_path / "set", images=tmp_path / "none", labels=tmp_path / "text")


@pytest.mark.parametrize("folder", ["labelTxt-v1.5", "LABELTXT", "annfiles"])
def test_other_names_of_the_label_folder_are_known(tmp_path: Path, folder: str) -> None:
    """Releases add a version, a well-known toolbox has its own word."""
    assert quads(read(tree(tmp_path, {"images/a.png": b"x", f"{folder}/a.txt": ROW}))) == [CORNERS]


def test_what_is_no_such_dataset_is_refused_with_the_fix(tmp_path: Path) -> None:
    """Two versions of labels, no labels, no images, no label at all, another task."""
    with pytest.raises(DataError, match=r"must have the folders images and labelTxt.*--labels"):
        read(tmp_path)
    tree(tmp_path, {"labelTxt-v1.0/a.txt": ROW, "images/readme": ""})
    with pytest.raises(DataError, match=r"must hold images, got none in images; .*--images"):
        read(tmp_path)
    tree(tmp_path, {"labelTxt-v1.5/a.txt": ROW, "images/a.png": b"x"})
    with pytest.raises(DataError, match=r"one folder of DOTA labels, got labelTxt-v1\.0, labelTxt-v1\.5; choose .* --labels"):
        read(tmp_path)
    assert quads(read(tmp_path, labels=tmp_path / "labelTxt-v1.5")) == [CORNERS]
    with pytest.raises(UsageError, match="task must be obb"):
        read(tmp_path, task="segment")
    with pytest.raises(DataError, match="train must have at least one label row, got none"):
        read(dota(tmp_path / "bare", {"a": "gsd:null\n"}))


corners_px = st.tuples(*[st.integers(-50, 400)] * 8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(corners_px, st.sampled_from(["ship", "plane"]), st.integers(0, 2)), min_size=1, max_size=5))
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[Any]) -> None:
    """For any corners: as published, or for crossing sides a rectangle that holds all four, and no row is lost."""
    text = "\n".join(f"{' '.join(map(str, xy))} {name} {difficulty}" for xy, name, difficulty in written)
    scan = read(dota(tmp_path_factory.mktemp("dota"), {"a": text}))
    rows = scan.rows(0)
    assert [scan.names[c] for c in rows.cls] == [name for _, name, _ in written]
    assert [bool(f) for f in rows.flags] == [difficulty > 0 for _, _, difficulty in written]
    crossing = []
    for line, (got, (xy, _, _)) in enumerate(zip(quads(scan), written, strict=True), 1):
        corners = np.array(xy, np.float64).reshape(4, 2)
        if boxes.is_self_crossing(corners):
            crossing.append(line)
            low, high = np.array(got).min(axis=0), np.array(got).max(axis=0)
            assert (corners >= low - 1e-6).all()
            assert (corners <= high + 1e-6).all()
            sides = np.array(got) - np.roll(np.array(got), 1, axis=0)
            assert np.abs((sides * np.roll(sides, 1, axis=0)).sum(axis=1)).max() < 1e-6 * (1 + np.abs(sides).max() ** 2)
        else:
            assert got == corners.tolist()
    assert [p.line for p in scan.problems] == crossing
