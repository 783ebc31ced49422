"""Numbers read a block at a time are, bit for bit, the numbers that ``float`` reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.sources import yolo_numbers
from fastdata.sources.yolo_numbers import read_numbers

ANY = st.text(st.sampled_from("0123456789..+-eE"), min_size=1, max_size=24)
"""Anything made of the characters of numbers."""

DECIMAL = st.tuples(st.text("0123456789", max_size=20), st.text("0123456789", max_size=20)).map(".".join)
"""Digits around a point, on both sides of what is exact."""

PRINTED = st.tuples(
    st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1), st.sampled_from(["r", ".6f", ".10g", ".17g", ".18e", "g"])
).map(lambda pair: repr(pair[0]) if pair[1] == "r" else format(*pair))
"""What programs print."""


def bits(values: np.ndarray) -> list[int]:
    return values.view(np.uint64).tolist()


def check(tokens: list[str], blanks: list[str]) -> None:
    text = "".join(token + blank for token, blank in zip(tokens, blanks, strict=True))
    starts, values, refused = read_numbers(text.encode())
    want, is_bad = [], []
    for token in tokens:
        try:
            want.append(float(token))
            is_bad.append(False)
        except ValueError:
            want.append(np.nan)
            is_bad.append(True)
    assert refused.tolist() == is_bad
    assert bits(values) == bits(np.array(want, np.float64))
    ends = np.cumsum([len(token) + len(blank) for token, blank in zip(tokens, blanks, strict=True)])
    assert starts.tolist() == [int(end) - len(token + blank) for end, token, blank in zip(ends, tokens, blanks, strict=True)]


@settings(max_examples=500)
@given(pairs=st.lists(st.tuples(ANY | DECIMAL | PRINTED, st.sampled_from([" ", "\t", "\n", "\r\n", "  \n\n"])), max_size=12))
def test_every_token_gives_what_float_gives(pairs: list[tuple[str, str]]) -> None:
    """The same bits, also for -0 and overflow, and refused where float refuses; each at its place in the text."""
    check([token for token, _ in pairs], [blank for _, blank in pairs])


@pytest.mark.parametrize(
    "tokens",
    [
        ["9007199254740991", "9007199254740992", "9007199254740993", "0.9007199254740993", "9007.199254740993"],
        ["000000000000000001", "0000000000000000001", ".0000000000000001", ".00000000000000001", "0.000000000000000001"],
        [".", "..", "1.2.3", "5.", ".5", "-.5", "1e", "+", "1..", "-0", "0", "1e999", "1-2"],
        ["0.1234567890123456", "0.12345678901234567", "0.123456789012345678", "12345678901234567.8"],
    ],
)
def test_the_border_of_what_is_exact(tokens: list[str]) -> None:
    """Up to 2**53 and 18 characters; one step beyond is float's again."""
    check(tokens, [" "] * len(tokens))


def test_a_text_may_begin_with_blanks_or_hold_nothing_else() -> None:
    """Then there is no token before the first one."""
    starts, values, _ = read_numbers(b" \n 1.5 2 \n")
    assert (starts.tolist(), values.tolist()) == ([3, 7], [1.5, 2.0])
    for text in (b"", b" ", b"\n\t \r\n"):
        assert [len(part) for part in read_numbers(text)] == [0, 0, 0]


def test_common_decimals_are_read_without_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the proof above would compare float with itself. What Python prints of a fraction is common."""
    monkeypatch.setattr(yolo_numbers, "float", lambda text: pytest.fail(f"{text} went to float"), raising=False)
    values = read_numbers(b"0 79 1.0 .5 5. 0.123456 0.4794921875 0.1234567890123456 123456.789012 00.5 ")[1]
    assert values.tolist() == [0, 79, 1, 0.5, 5, 0.123456, 0.4794921875, 0.1234567890123456, 123456.789012, 0.5]
