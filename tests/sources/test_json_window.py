"""A windowed parse gives what a whole parse gives, and a malformed file fails with its offset."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fastdata.errors import DataError
from fastdata.sources.files import digest
from fastdata.sources.json_window import Section, outline_json, read_blocks

TEXT = st.text(st.sampled_from('a"\\/{}[]:, \n\tä€😀\x00'), max_size=8)
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), TEXT)
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12)
DOCUMENT = st.dictionaries(TEXT, VALUE | st.lists(VALUE, max_size=12), max_size=5)


def joined(path: Path, key: str, window_nbytes: int) -> list[Any]:
    outline = outline_json(path, name="file.json", window_nbytes=window_nbytes)
    return [item for block in read_blocks(outline, key) for item in block]


def same(a: object, b: object) -> bool:
    return repr(a) == repr(b)  # NaN equals NaN, 1 differs from 1.0 and True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    document=DOCUMENT, window=st.integers(1, 40), indent=st.sampled_from([None, 1]), ascii_only=st.booleans(), bom=st.booleans()
)
@example(document={"a": [{"k": 'q\\"}'}, {"k": "\\"}], "b": [["]"], []]}, window=1, indent=None, ascii_only=True, bom=True)
@example(document={"a": ["\\\\\\", '\\"[', {"x": "\\" * 9}, 7]}, window=5, indent=None, ascii_only=False, bom=False)
def test_blocks_joined_equal_a_whole_parse(
    tmp_path: Path, document: dict[str, Any], window: int, indent: int | None, ascii_only: bool, bom: bool
) -> None:
    """For any document and any window: every top-level list, every other value, the order of keys, the size and the digest."""
    path = tmp_path / "any.json"
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    path.write_bytes(b"\xef\xbb\xbf" * bom + text.encode())
    outline = outline_json(path, name="file.json", window_nbytes=window)
    assert list(outline.values) == list(document)
    for key, value in document.items():
        if isinstance(value, list):
            assert same(joined(path, key, window), value)
        elif isinstance(value, dict):
            assert isinstance(outline.values[key], Section)
        else:
            assert same(outline.values[key], value)
    assert outline.nbytes == path.stat().st_size
    assert outline.digest == digest(path)


def test_a_list_of_many_windows_comes_in_blocks_of_about_a_window(tmp_path: Path) -> None:
    """No block is larger than a window and an element, so a parse never holds the whole list."""
    path = tmp_path / "long.json"
    items = [{"id": i, "points": list(range(20))} for i in range(2000)]
    path.write_text(json.dumps({"before": {"x": [1]}, "items": items, "after": []}))
    outline = outline_json(path, name="long.json", window_nbytes=4096)
    blocks = list(read_blocks(outline, "items"))
    assert [item for block in blocks for item in block] == items
    assert max(len(json.dumps(block)) for block in blocks) < 4096 + 2 * len(json.dumps(items[-1]))
    assert len(blocks) > 20


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Reading 12 MB in windows of 64 KiB takes less than 4 MB of new memory; a whole parse takes several times the file."""
    path = tmp_path / "large.json"
    with open(path, "w") as file:
        file.write('{"items": [')
        for i in range(40_000):
            file.write(("," if i else "") + json.dumps({"id": i, "name": f"{i:06d}.jpg", "polygon": [i + 0.25] * 30}))
        file.write("]}")
    assert path.stat().st_size > 12e6
    tracemalloc.start()
    outline = outline_json(path, name="large.json", window_nbytes=1 << 16)
    count = sum(len(block) for block in read_blocks(outline, "items"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000
    assert peak < 4e6


GOOD = '{"info": {"v": 1}, "items": [{"a": "x"}, {"a": "y"}, {"a": "z"}], "last": 3}'

MALFORMED = [
    (GOOD[:18], "breaks off within a list or an object"),
    (GOOD[:20], "breaks off within a text"),
    (GOOD[:36], "breaks off within a text"),
    (GOOD[:30], "breaks off within a list or an object"),
    (GOOD.replace('"x"', '"x'), "Expecting"),
    (GOOD.replace('"y"', "'y'"), "Expecting value"),
    (GOOD.replace('}, {"a": "z', '} {"a": "z'), "Expecting ',' delimiter"),
    (GOOD.replace('}, {"a": "y', '},, {"a": "y'), "Expecting value"),
    (GOOD.replace('"z"}]', '"z"},]'), ""),
    (GOOD.replace('"z"}]', '"z"}]]'), "Expecting"),
    (GOOD.replace('"z"}]', '"z"]'), "Expecting"),
    (GOOD.replace('"last"', "last"), "property name"),
    (GOOD.replace('"last": ', '"last" '), "Expecting ':' delimiter"),
    (GOOD.replace("], ", "] "), "Expecting ',' delimiter"),
    (GOOD + "}", "closing bracket"),
    (GOOD + " x", "Extra data"),
    (GOOD + GOOD, "Extra data"),
    (GOOD[:-1], "breaks off"),
    ("", "empty file"),
    ("   ", "empty file"),
    ("[1, 2]", "got a list, as results of a detector are"),
    ("<html>", "got '<'"),
]


@pytest.mark.parametrize(("text", "words"), MALFORMED)
@pytest.mark.parametrize("window", [1, 7, 1 << 20])
def test_a_malformed_file_fails_where_the_standard_parser_fails(tmp_path: Path, text: str, words: str, window: int) -> None:
    """The message starts with file:offset, the offset is that of json.loads unless the file merely ends too early."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        joined(path, "items", window)
    message = str(caught.value)
    found = re.match(r"file\.json:(\d+): ", message)
    assert found, message
    assert words in message
    if words in ("", "Expecting value", "property name") or words.startswith(("Expecting", "Extra")):
        with pytest.raises(json.JSONDecodeError) as whole:
            json.loads(text)
        assert abs(int(found[1]) - whole.value.pos) <= 2  # a block ends where the parser would look for more


def test_a_fault_is_found_in_a_file_of_many_windows(tmp_path: Path) -> None:
    """A lost quotation mark in the middle is reported where it is, not at the end of the file."""
    items = [{"id": i, "name": f"{i:05d}.jpg", "note": "[{"} for i in range(3000)]
    text = json.dumps({"items": items, "other": [{"id": i, "name": "n"} for i in range(3000)]})
    at = text.index('01500.jpg"') + len("01500.jpg")
    path = tmp_path / "bad.json"
    path.write_text(text[:at] + text[at + 1 :])
    with pytest.raises(DataError) as caught:
        joined(path, "items", 2048)
    offset = int(str(caught.value).split(":")[1])
    assert 0 <= offset - at < 20


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"items": ["\xff"]}', "file.json:12: the file must be UTF-8"),
        (b'{"\xff": 1, "items": []}', "file.json:2: the file must be UTF-8"),
        (b'{"items": [' + b"1" * 5000 + b"]}", "file.json:11: "),
        (b'{"n": ' + b"1" * 5000 + b', "items": []}', "file.json:0: "),
        (b'{"items": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "file.json:11: values must not be nested so deeply"),
        ('{"items": []}'.encode("utf-16"), "file.json:0: the file must be UTF-8, got UTF-16"),
        ('{"items": []}'.encode("utf-16-le"), "file.json:0: the file must be UTF-8, got UTF-16"),
        (b'{"items": [1], "items": [2]}', "items must stand once"),
        (b'{"items": {"a": 1}}', "items must be a list"),
        (b'{"other": [], "more": 1}', "at top level there are: other, more"),
        (b"{}", "at top level there are: nothing"),
        (b'{"k": "' + b"x" * (2 << 20) + b'", "items": []}', "must be at most 1048576 bytes"),
    ],
)
def test_what_is_no_list_in_utf8_is_refused_with_the_reason(tmp_path: Path, raw: bytes, words: str) -> None:
    """Encodings, numbers of thousands of digits, deep nesting, doubled and missing keys each have their own message."""
    path = tmp_path / "odd.json"
    path.write_bytes(raw)
    with pytest.raises(DataError) as caught:
        joined(path, "items", 1 << 20)
    assert words in str(caught.value)


def test_an_element_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on one block holds whatever the window is, and is not met by a long list of small elements."""
    monkeypatch.setattr("fastdata.sources.json_window.MAX_BLOCK_NBYTES", 1000)
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"items": [{"a": "x" * 100}] * 50}))
    assert len(joined(path, "items", 256)) == 50
    path.write_text(json.dumps({"items": [{"a": "x" * 100}, {"a": "y" * 2000}]}))
    with pytest.raises(DataError, match="must be at most 1000 bytes"):
        joined(path, "items", 256)


def test_a_file_that_shrinks_between_the_two_steps_is_noticed(tmp_path: Path) -> None:
    """The second step says that the file changed, at the offset where it now ends."""
    path = tmp_path / "shrinking.json"
    path.write_text(GOOD)
    outline = outline_json(path, name="shrinking.json", window_nbytes=1 << 20)
    path.write_text(GOOD[:40])
    with pytest.raises(DataError, match=r"shrinking\.json:40: the file must not change"):
        list(read_blocks(outline, "items"))
