"""One shape in the place of several: what MixUp leaves of a picture that something is pasted onto."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.augment import layers
from fastdata.masks import rings_to_mask

SIZE_HW = (40, 48)


def box(x: float, y: float, w: float, h: float) -> layers.Shape:
    """A rectangle as a shape of one ring."""
    return [np.array([[x, y], [x + w, y], [x + w, y + h], [x, y + h]])]


def ring_with_hole(x: float, y: float, size: float) -> layers.Shape:
    """A square with a square hole."""
    return box(x, y, size, size) + box(x + size / 4, y + size / 4, size / 2, size / 2)


@given(
    st.lists(
        st.builds(box, *[st.floats(0, 30)] * 2, *[st.floats(0.5, 12)] * 2)
        | st.builds(ring_with_hole, st.floats(0, 30), st.floats(0, 25), st.floats(2, 14)),
        min_size=1,
        max_size=7,
    )
)
def test_the_union_covers_the_pixels_of_its_shapes_and_no_others(shapes: list[layers.Shape]) -> None:
    """Whether they overlap, touch or lie apart, holes included."""
    want = np.zeros(SIZE_HW, np.uint8)
    for shape in shapes:
        want |= rings_to_mask(shape, SIZE_HW)
    np.testing.assert_array_equal(rings_to_mask(layers._union(shapes, SIZE_HW), SIZE_HW), want)


def test_shapes_that_lie_apart_are_not_traced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling and tracing a whole picture takes a hundred times as long as putting rings side by side."""
    traced: list[int] = []

    def trace(mask: np.ndarray) -> layers.Shape:
        traced.append(int(mask.sum()))
        return []

    monkeypatch.setattr(layers, "mask_to_rings", trace)
    assert len(layers._union([box(0, 0, 5, 5), box(10, 10, 5, 5), ring_with_hole(20, 20, 8)], SIZE_HW)) == 4
    assert traced == []
    layers._union([box(0, 0, 5, 5), box(3, 3, 5, 5), box(20, 20, 4, 4)], SIZE_HW)
    assert traced == [25 + 25 - 4]
