"""Matrices: the product of five, written out number by number, and what each of them does to a point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.augment.affine import flipped, matrices, mirrored_canvas

F64 = npt.NDArray[np.float64]


def one(
    canvas_wh: tuple[int, int] = (80, 60),
    out_hw: tuple[int, int] = (40, 50),
    *,
    perspective: tuple[float, float] = (0, 0),
    degrees: float = 0,
    scale: float = 1,
    shear_deg: tuple[float, float] = (0, 0),
    translate: tuple[float, float] = (0.5, 0.5),
) -> F64:
    """The matrix of one scene."""
    return matrices(
        np.array([canvas_wh]),
        out_hw,
        perspective=np.array([perspective], np.float64),
        degrees=np.array([degrees], np.float64),
        scale=np.array([scale], np.float64),
        shear_deg=np.array([shear_deg], np.float64),
        translate=np.array([translate], np.float64),
    )[0]


def at(matrix: F64, x: float, y: float) -> F64:
    """Where a point comes to lie."""
    px, py, w = matrix @ (x, y, 1)
    return np.array([px / w, py / w])


ANY: dict[str, Any] = {
    "canvas_wh": st.tuples(st.integers(1, 2000), st.integers(1, 2000)),
    "out_hw": st.tuples(st.integers(1, 1000), st.integers(1, 1000)),
    "perspective": st.tuples(*[st.floats(-0.001, 0.001)] * 2),
    "degrees": st.floats(-180, 180),
    "scale": st.floats(0.1, 3),
    "shear_deg": st.tuples(*[st.floats(-60, 60)] * 2),
    "translate": st.tuples(*[st.floats(-0.5, 1.5)] * 2),
}


@given(st.fixed_dictionaries(ANY))
def test_a_matrix_is_the_product_of_the_five(numbers: dict[str, Any]) -> None:
    """T S R P C, multiplied here."""
    (w, h), (oh, ow) = numbers["canvas_wh"], numbers["out_hw"]
    c, p, r, s, t = (np.eye(3) for _ in range(5))
    c[:2, 2] = -w / 2, -h / 2
    p[2, :2] = numbers["perspective"]
    angle = math.radians(numbers["degrees"])
    a, b = numbers["scale"] * math.cos(angle), numbers["scale"] * math.sin(angle)
    r[:2, :2] = [[a, b], [-b, a]]
    s[0, 1], s[1, 0] = (math.tan(math.radians(x)) for x in numbers["shear_deg"])
    t[:2, 2] = numbers["translate"][0] * ow, numbers["translate"][1] * oh
    np.testing.assert_allclose(one(**numbers), t @ s @ r @ p @ c, rtol=1e-9, atol=1e-8)


def test_by_default_the_middle_of_the_canvas_is_what_is_seen() -> None:
    """The central part of it at scale 1, all of it at the scale of the sizes."""
    assert one((80, 60), (40, 50)).tolist() == [[1, 0, -15], [0, 1, -10], [0, 0, 1]]
    whole = one((1280, 1280), (640, 640), scale=0.5)
    assert whole.tolist() == [[0.5, 0, 0], [0, 0.5, 0], [0, 0, 1]]


def test_a_positive_angle_turns_counter_clockwise_on_the_screen() -> None:
    """What is right of the centre comes to lie above it."""
    np.testing.assert_allclose(at(one(degrees=90), 40 + 7, 30), (25, 20 - 7), atol=1e-12)


def test_shear_in_x_moves_what_is_below_to_the_right() -> None:
    """By the tangent of its angle; shear in y moves what is right down."""
    np.testing.assert_allclose(at(one(shear_deg=(45, 0)), 40, 30 + 7), (25 + 7, 20 + 7), atol=1e-12)
    np.testing.assert_allclose(at(one(shear_deg=(0, 45)), 40 + 7, 30), (25 + 7, 20 + 7), atol=1e-12)


def test_translation_places_the_centre_by_shares_of_the_output() -> None:
    """x by its width, y by its height."""
    np.testing.assert_allclose(at(one(translate=(0.25, 0.75), degrees=33, scale=0.7, shear_deg=(3, 4)), 40, 30), (12.5, 30))


def test_perspective_shrinks_what_is_right_and_below_where_it_is_positive() -> None:
    """The third coordinate is 1 at the centre and grows to the right."""
    matrix = one(perspective=(0.01, 0))
    np.testing.assert_allclose(at(matrix, 40, 30), (25, 20))
    np.testing.assert_allclose(at(matrix, 50, 30), (25 + 10 / 1.1, 20))


@given(st.fixed_dictionaries(ANY), st.booleans(), st.booleans())
def test_flips_come_after_all_else(numbers: dict[str, Any], lr: bool, ud: bool) -> None:
    """x becomes W - x and y becomes H - y, edges of the output included."""
    matrix, (h, w) = one(**numbers), numbers["out_hw"]
    mirror = np.array([[-1 if lr else 1, 0, w if lr else 0], [0, -1 if ud else 1, h if ud else 0], [0, 0, 1]])
    found = flipped(matrix[None], (h, w), np.array([lr]), np.array([ud]))[0]
    np.testing.assert_allclose(found, mirror @ matrix, rtol=1e-9, atol=1e-8)
    if not (lr or ud):
        assert found.tobytes() == matrix.tobytes()


@given(st.fixed_dictionaries(ANY))
def test_a_mirrored_canvas_is_mirrored_before_all_else(numbers: dict[str, Any]) -> None:
    """Canvas x is seen where W - x was."""
    matrix, w = one(**numbers), numbers["canvas_wh"][0]
    found = mirrored_canvas(matrix[None], np.array([numbers["canvas_wh"]]))[0]
    np.testing.assert_allclose(found, matrix @ [[-1, 0, w], [0, 1, 0], [0, 0, 1]], rtol=1e-9, atol=1e-6)


def test_a_plain_matrix_has_no_minus_zero() -> None:
    """So that equal matrices are equal bytes."""
    assert not np.signbit(one((50, 40))).any()


@pytest.mark.parametrize("wrong", [(45.0, 0.0), (0.0, 45.0)])
def test_the_check_of_shear_sees_the_axes_exchanged(wrong: tuple[float, float]) -> None:
    """Meta-test."""
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(one(shear_deg=wrong), one(shear_deg=wrong[::-1]))
