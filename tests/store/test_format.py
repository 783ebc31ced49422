"""The fixed structures and the manifest: what is packed is unpacked, and nothing else is taken for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_kit import manifest

from fastdata.catalog import Counts, Keypoints
from fastdata.errors import StoreError
from fastdata.store import format as fmt
from fastdata.store.format import EndMark, Header, Section
from fastdata.store.manifest import Manifest, PayloadFile

HERE = Path("s.lmdb")
u32, u63 = st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 62)
text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)), max_size=9
)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = leaves | st.lists(leaves, max_size=2)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any manifest."""
    counts = Counts(*(draw(u63) for _ in range(5)))
    k = draw(st.integers(0, 3))
    small = st.integers(0, 20)
    objects = st.dictionaries(text, values, max_size=3)
    known = {f for f in Manifest.__dataclass_fields__ if f != "extra"}
    return Manifest(
        names=tuple(draw(st.lists(text, max_size=4))),
        codec=draw(st.sampled_from(["raw", "jpeg", "webp", "original"])),
        task=draw(st.sampled_from(["detect", "segment", "pose", "obb"])),
        channels=draw(small),
        imgsz=draw(st.none() | small),
        resample=draw(st.none() | text),
        quality=draw(st.none() | small),
        category_ids=tuple(draw(st.lists(st.integers(), max_size=3))),
        keypoints=Keypoints(k, tuple(draw(st.lists(text, max_size=3))), tuple(range(k)), ((0, k),), 2) if k else None,
        source=draw(text),
        decisions=draw(objects),
        options=draw(objects),
        summary=draw(objects),
        writer=draw(text),
        backend=draw(st.sampled_from(["lmdb", "shards"])),
        splits={name: (k, k + draw(small)) for k, name in enumerate(draw(st.lists(text, unique=True, max_size=3)))},
        counts=counts,
        files=tuple(PayloadFile(draw(text), draw(u63), draw(u32), draw(st.none() | u63)) for _ in range(draw(st.integers(0, 3)))),
        uid=draw(st.binary(min_size=8, max_size=8)).hex(),
        extra={key: value for key, value in draw(objects).items() if key not in known},
    )


@given(manifests(), st.sampled_from([1, 64]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_a_manifest_comes_back_from_its_text(m: Manifest, pad: int) -> None:
    """Unknown keys, the order of splits, and names that are not UTF-8 included; the text is ASCII of a padded length."""
    raw = m.encode(pad)
    assert raw.isascii()
    assert len(raw) % pad == 0
    again = Manifest.from_json(json.loads(raw))
    assert again == m
    assert list(again.splits) == list(m.splits)
    assert again.encode(pad) == raw


@given(u32, u32)
def test_the_length_of_a_manifest_does_not_depend_on_checksums(a: int, b: int) -> None:
    """So an index can be laid out before they are known."""
    one, two = (manifest(files=(PayloadFile("", 4096, crc),), uid=f"{crc:016x}").encode() for crc in (a, b))
    assert len(one) == len(two)


def test_numbers_that_json_does_not_know_are_refused() -> None:
    """Not a number is no JSON; a date or a path object is none either."""
    with pytest.raises(ValueError, match="JSON"):
        manifest(summary={"a": float("nan")}).encode()
    with pytest.raises(TypeError, match="serializable"):
        manifest(summary={"a": HERE}).encode()


@given(
    st.tuples(st.integers(0, 1), st.integers(0, 9)),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.binary(min_size=8, max_size=8),
    u32,
)
def test_an_end_mark_comes_back(version: tuple[int, int], pages: int, nbytes: int, uid: bytes, crc: int) -> None:
    """64 bytes, at the end of a file of the right size only."""
    offset, nbytes = pages * 4096, nbytes + 128
    mark = EndMark(version, offset, nbytes, offset + nbytes, uid, crc)
    raw = fmt.pack_end_mark(mark)
    assert len(raw) == 64
    assert fmt.unpack_end_mark(raw, HERE, offset + nbytes) == mark
    with pytest.raises(StoreError, match=rf"s.lmdb:{offset + nbytes + 1 - 64}: the file must be {offset + nbytes} bytes long"):
        fmt.unpack_end_mark(raw, HERE, offset + nbytes + 1)
    assert fmt.unpack_end_mark(b"x" + raw[1:], HERE, offset + nbytes) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(fmt.ITEM_NBYTES)), st.lists(st.integers(0, 9), min_size=1, max_size=3), u32), max_size=8
    )
)
def test_a_section_table_comes_back(drawn: list[tuple[str, list[int], int]]) -> None:
    """Any element type, 1 to 3 axes, axes of length 0 included; the sections fill the index."""
    manifest_nbytes = 128
    sections, table = fmt.place(
        manifest_nbytes, [Section(f"s{k}", dtype, tuple(shape), crc) for k, (dtype, shape, crc) in enumerate(drawn)]
    )
    total = table + 64 * len(sections) + 64
    mark = EndMark((1, 0), 0, total, total, bytes(8), 0)
    header = Header((1, 0), total, manifest_nbytes, table, len(sections), 1, 2)
    raw = fmt.pack_header(header)
    mark = EndMark((1, 0), 0, total, total, bytes(8), int.from_bytes(raw[-4:], "little"))
    back = fmt.unpack_header(raw, HERE, mark)
    assert (back.table_offset, back.sections, back.manifest_crc, back.table_crc) == (table, len(sections), 1, 2)
    found = fmt.unpack_table(fmt.pack_table(sections), HERE, table, back)
    assert list(found.values()) == list(sections)
    assert all(s.offset % 64 == 0 for s in sections)


WRONG_HEADERS: list[dict[str, Any]] = [
    {"index_nbytes": 64},
    {"manifest_nbytes": 1 << 40},
    {"table_offset": 1 << 40},
    {"table_offset": 129},
    {"sections": 7},
    {"version": (1, 1)},
]


@pytest.mark.parametrize("change", WRONG_HEADERS)
def test_a_header_that_does_not_fit_its_index_is_refused(change: dict[str, Any]) -> None:
    """With a right checksum of its own."""
    good = {
        "version": (1, 0),
        "index_nbytes": 320,
        "manifest_nbytes": 64,
        "table_offset": 128,
        "sections": 2,
        "manifest_crc": 0,
        "table_crc": 0,
    }
    for values_, ok in ((good, True), (good | change, False)):
        raw = fmt.pack_header(Header(**values_))
        mark = EndMark((1, 0), 4096, 320, 4416, bytes(8), int.from_bytes(raw[-4:], "little"))
        if ok:
            fmt.unpack_header(raw, HERE, mark)
        else:
            with pytest.raises(StoreError, match=r"s.lmdb:4096: "):
                fmt.unpack_header(raw, HERE, mark)


def test_a_table_row_that_lies_is_refused() -> None:
    """Another offset, another length, a name twice, an unknown type, no axis, axes whose product overflows 64 bits."""
    header = Header((1, 0), 64 + 64 + 128 + 128 + 64, 64, 256, 2, 0, 0)
    good = [Section("a", "<i4", (16,), 0, 128), Section("b", "<i4", (3, 5), 0, 192)]
    fmt.unpack_table(fmt.pack_table(good), HERE, 256, header)
    raw = fmt.pack_table(good)
    rows = [raw[:64], raw[64:]]
    wrong = {
        "offset": rows[1][:32] + (128).to_bytes(8, "little") + rows[1][40:],
        "length": rows[1][:40] + (61).to_bytes(8, "little") + rows[1][48:],
        "name": rows[0][:24] + rows[1][24:],
        "type": rows[1][:24] + b"|O8" + rows[1][27:],
        "axes": rows[1][:27] + b"\0" + rows[1][28:],
        "four axes": rows[1][:27] + b"\4" + rows[1][28:],
        "overflow": rows[1][:40] + (0).to_bytes(8, "little") + (1 << 62).to_bytes(8, "little") + b"\0\0\0\x80\0\0\0\0",
    }
    for row in wrong.values():
        with pytest.raises(StoreError, match=r"s.lmdb:320: section"):
            fmt.unpack_table(rows[0] + row, HERE, 256, header)
    with pytest.raises(StoreError, match="must fill the index"):
        fmt.unpack_table(fmt.pack_table([good[0]]), HERE, 256, Header((1, 0), 384, 64, 256, 1, 0, 0))


def test_the_document_lists_every_section_and_every_key() -> None:
    """docs/format.md names each with its type, in the order of the code."""
    document = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    at = 0
    for spec in fmt.SECTIONS:
        types = " or ".join(dtype[1:] for dtype in spec.dtypes)
        row = f"| `{spec.name}` | {types} |"
        assert document.find(row, at) >= at, row
        at = document.find(row, at)
    for name in Manifest.__dataclass_fields__:
        assert name == "extra" or f"`{name}`" in document, name
    for dtype in fmt.ITEM_NBYTES:
        assert dtype.replace("|", "\\|") in document
