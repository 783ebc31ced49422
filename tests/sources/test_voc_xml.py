"""One annotation file: what can be read is read, what cannot is refused or dropped by name."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from voc_kit import box, kinds, labels_of, read, tree, voc, xml

from fastdata.errors import DataError
from fastdata.labels import BOX, DIFFICULT, TRUNCATED
from fastdata.sources.voc_xml import MAX_NBYTES, parse


@pytest.mark.parametrize("on_error", ["safe", "skip", "raise"])
def test_entities_are_refused_by_name_before_they_grow(shared: Path, on_error: str) -> None:
    """A file of nine nested entities stops every mode, in a few megabytes."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"Annotations/bomb\.xml.*DTD"):
            read(shared / "cases/voc-entity-bomb/input", on_error=on_error)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE annotation SYSTEM "file:///etc/hostname">',
        "<!DOCTYPE annotation>",
        '<!DOCTYPE annotation [<!ENTITY % p SYSTEM "http://localhost:9/x.dtd"> %p;]>',
    ],
)
def test_any_document_type_is_refused_also_in_a_split_that_is_not_read(tmp_path: Path, doctype: str) -> None:
    """External, bare and parameter-entity forms; a hostile file is not passed over because its split is not converted."""
    root = voc(tmp_path, {"a": xml(box()), "b": doctype + xml(box())}, {"train": "a\n", "val": "b\n"})
    with pytest.raises(DataError, match=r"Annotations/b\.xml: .*DOCTYPE"):
        read(root, splits=("train",), on_error="skip")


@pytest.mark.parametrize("content", [b"", b"<annotation><object>", b"\x00\x01", b"<annotation>&nope;</annotation>", b"a,b\n"])
def test_a_label_file_that_is_no_xml_stops_the_run(tmp_path: Path, content: bytes) -> None:
    """By default: an image without its labels would be trained as background."""
    tree(voc(tmp_path, {"a": xml(box())}), {"Annotations/b.xml": content, "JPEGImages/b.jpg": b"x"})
    with pytest.raises(DataError, match=r"^Annotations/b\.xml: must be well-formed XML, got"):
        read(tmp_path)


def test_skip_leaves_out_the_image_of_a_label_file_that_is_no_xml(tmp_path: Path) -> None:
    """The image is in the report with its reason, never in the scan as background."""
    tree(voc(tmp_path, {"a": xml(box())}), {"Annotations/b.xml": "<annotation", "JPEGImages/b.jpg": b"x"})
    scan = read(tmp_path, on_error="skip")
    assert list(scan.keys) == ["JPEGImages/a.jpg"]
    assert [(s.file, s.reason) for s in scan.skips] == [("JPEGImages/b.jpg", "unreadable")]
    assert "Annotations/b.xml" in scan.skips[0].detail
    assert kinds(scan) == [("Annotations/b.xml", "unreadable-labels", None)]


def test_a_broken_file_of_a_split_that_is_not_read_stops_nobody(tmp_path: Path) -> None:
    """It has no say on names or origin either; read with its split it stops the run."""
    root = voc(tmp_path, {"a": xml(box()), "b": "<annotation"}, {"train": "a\n", "val": "b\n"})
    assert labels_of(read(root, splits=("train",))) == {"JPEGImages/a.jpg": [("cat", [10, 5, 30, 25])]}
    with pytest.raises(DataError, match="well-formed"):
        read(root)


def test_a_label_file_of_another_root_is_refused_unless_no_image_is_its_own(tmp_path: Path) -> None:
    """Side files of other programs lie about in flat folders; one that has an image's stem is taken for its labels."""
    tree(tmp_path, {"a.jpg": b"x", "a.xml": xml(box()), "a.jpg.aux.xml": "<PAMDataset/>"})
    scan = read(tmp_path)
    assert labels_of(scan) == {"a.jpg": [("cat", [10, 5, 30, 25])]}
    assert kinds(scan) == [("a.jpg.aux.xml", "unused-label-file", None)]
    tree(tmp_path, {"a.xml": "<PAMDataset/>"})
    with pytest.raises(DataError, match=r"a\.xml: the root of a Pascal VOC file must be <annotation>, got <PAMDataset>"):
        read(tmp_path)


def test_a_giant_label_file_is_not_parsed(tmp_path: Path) -> None:
    """Size alone refuses it, so that memory is bounded; deep nesting below the limit is harmless."""
    voc(tmp_path, {"a": xml(box()) + " " * MAX_NBYTES})
    with pytest.raises(DataError, match=r"at most 8,388,608 bytes"):
        read(tmp_path)
    assert parse(b"<annotation>" + b"<a>" * 50_000 + b"</a>" * 50_000 + b"</annotation>", "deep.xml").objects == ()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "iso-8859-1"])
def test_every_encoding_that_xml_declares_is_read(tmp_path: Path, encoding: str) -> None:
    """A byte-order mark or a declaration says which; the class name arrives as written."""
    head = f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?>'
    voc(tmp_path, {"a": ""})
    (tmp_path / "Annotations/a.xml").write_bytes((head + xml(box(name="Käfer"))).encode(encoding))
    assert read(tmp_path).names == ("Käfer",)


def test_an_object_that_cannot_be_read_is_dropped_and_the_others_stay(tmp_path: Path) -> None:
    """Each with its number in the file and the kind of its fault; rows add up."""
    voc(
        tmp_path,
        {
            "a": xml(
                box(),
                "<object><name>cat</name></object>",
                box(xmax="3o"),
                box(ymin=""),
                "<object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object>",
                box(name="  "),
                box(xmin="1_1"),
                box(xmin="١١"),
                box(name="dog", xmin=1, xmax=2),
            )
        },
    )
    scan = read(tmp_path)
    assert scan.rows(0).where.tolist() == [1, 9]
    assert (scan.rows_in, scan.rows_dropped) == (9, 7)
    file = "Annotations/a.xml"
    assert kinds(scan) == [
        (file, "columns", 2),
        (file, "bad-number", 3),
        (file, "bad-number", 4),
        (file, "columns", 5),
        (file, "columns", 6),
        (file, "bad-number", 7),
        (file, "bad-number", 8),
    ]
    with pytest.raises(DataError, match=r"^Annotations/a\.xml: object 2: an object must have a bndbox, got none"):
        read(tmp_path, on_error="raise")


def test_geometry_is_left_to_be_judged_with_the_picture(tmp_path: Path) -> None:
    """Overshoot, a negative size and NaN come through as published."""
    voc(tmp_path, {"a": xml(box(xmin=-4, xmax=900), box(xmin=30, xmax=10), box(xmin="nan"))})
    rows = read(tmp_path).rows(0)
    assert rows.xyxy[:2].tolist() == [[-5, 5, 900, 25], [29, 5, 10, 25]]
    assert str(rows.xyxy[2, 0]) == "nan"
    assert rows.kind.tolist() == [BOX] * 3
    assert rows.has_box.all()


@pytest.mark.parametrize(
    ("text", "on"),
    [("1", 1), ("0", 0), ("true", 1), ("False", 0), ("Unspecified", 0), ("", 0), (" 1 ", 1), ("0.0", 0), ("0.4", 1)],
)
def test_flags_are_read_in_every_spelling(tmp_path: Path, text: str, on: int) -> None:
    """What is no plain yes is no."""
    voc(tmp_path, {"a": xml(box(more=f"<truncated>{text}</truncated>"), box(more=f"<difficult>{text}</difficult>"))})
    assert read(tmp_path).rows(0).flags.tolist() == ([TRUNCATED, DIFFICULT] if on else [0, 0])


def test_parts_of_an_object_are_no_objects(tmp_path: Path) -> None:
    """The person layout form has boxes of heads and hands inside an object, before or after its own."""
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></part>"
    voc(tmp_path, {"a": xml(box(name="person", more=part), f"<layer>{box('dog')}</layer>")})
    assert labels_of(read(tmp_path)) == {"JPEGImages/a.jpg": [("person", [10, 5, 30, 25])]}


@pytest.mark.parametrize(("w", "h", "hw"), [("50.0", "40", (40, 50)), ("-3", "9", None), ("1e12", "9", None), ("", "9", None)])
def test_a_size_that_is_none_is_noted_and_not_passed_on(tmp_path: Path, w: str, h: str, hw: tuple[int, int] | None) -> None:
    """A note stops nobody, also under ``raise``."""
    voc(tmp_path, {"a": xml(box(), size=f"<size><width>{w}</width><height>{h}</height></size>")})
    scan = read(tmp_path, on_error="raise")
    assert scan.rows(0).declared_hw == hw
    assert kinds(scan) == ([] if hw else [("Annotations/a.xml", "no-size", None)])
