"""From draws that a person made to a recipe: labels on canvases, cut, turned and flipped, and which of them stay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_kit import Thing
from plan_kit import FLIP_IDX, PLAIN, catalog_of, draws_of, fixed, policies, random_catalog

from fastdata.augment import canvas
from fastdata.augment.assemble import assemble
from fastdata.augment.draws import BASE
from fastdata.augment.letterbox import letterbox
from fastdata.augment.plan import plan
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import differences
from fastdata.catalog import Keypoints
from fastdata.errors import UsageError
from fastdata.labels import BOX, OBB, POLYGON


def test_labels_of_a_mosaic_lie_where_its_tiles_do() -> None:
    """The numbers of case geo-mosaic-corners: four tiles of 40 around (50, 30), one object cut away whole."""
    things = [
        [Thing(0, (20, 15, 40, 35)), Thing(1, (0, 0, 12, 8))],
        [Thing(0, (5, 10, 25, 20)), Thing(1, (32, 20, 40, 30))],
        [Thing(1, (4, 10, 20, 36))],
        [Thing(0, (20, 20, 40, 40))],
    ]
    draws = draws_of({BASE: [0, 1, 2, 3]}, centre_yx=np.array([[30, 50]]))
    found = assemble(draws, catalog_of([(40, 40)] * 4, things), PLAIN, imgsz=40, out_hw=(80, 80))
    assert found.labels.cls.tolist() == [0, 0, 1, 0]
    assert found.labels.xyxy_px.tolist() == [[30, 5, 50, 25], [55, 0, 75, 10], [14, 40, 30, 66], [70, 50, 80, 70]]
    assert found.labels.instance.tolist() == [0, 2, 4, 5]


def test_labels_and_pixels_of_a_view_are_those_of_its_rectangle() -> None:
    """A tile of a large picture: its labels count from its own corner."""
    catalog = catalog_of([(100, 200)], [[Thing(0, (10, 5, 30, 25))]], rects=[(40, 20, 120, 60)])
    found = assemble(draws_of({BASE: [0]}), catalog, PLAIN, imgsz=160, out_hw=(80, 160))
    assert found.source_xyxy.tolist() == [[40, 20, 120, 60]]
    assert found.size_hw.tolist() == [[80, 160]]
    assert found.labels.xyxy_px.tolist() == [[20, 10, 60, 50]]


def test_hue_is_added_or_multiplied_as_the_policy_says() -> None:
    """A gain g is g turns, or a factor 1 + g; saturation and value are always factors."""
    draws = draws_of({BASE: [0]}, hsv=np.array([[0.01, -0.5, 0.25]]))
    add, multiply = (assemble(draws, catalog_of([(8, 8)]), fixed(PLAIN, hue=hue), imgsz=8).gains for hue in ("add", "multiply"))
    np.testing.assert_array_equal(add, np.float32([[0.01, 1, 0.5, 1.25]]))
    np.testing.assert_array_equal(multiply, np.float32([[0, 1.01, 0.5, 1.25]]))


ALL_SHAPES = fixed(Policy(), min_side_px=0, max_aspect=1e9)


def share_kept(things: list[Thing], policy: Policy = ALL_SHAPES) -> list[int]:
    """Classes of the objects that stay when the view moves 44 of 64 pixels to the right."""
    draws = draws_of({BASE: [0]}, translate=np.array([[0.5 - 44 / 64, 0.5]]))
    return assemble(draws, catalog_of([(64, 64)], [things]), policy, imgsz=64).labels.cls.tolist()


def test_a_tenth_must_be_left_of_a_box_and_a_hundredth_in_a_picture_with_outlines() -> None:
    """Unless the policy says another share. Strictly more, as in the trainers."""
    things = [Thing(0, (0, 8, 48.5, 28)), Thing(1, (0, 34, 49, 54)), Thing(2, (4, 34, 44.5, 54))]
    assert share_kept(things) == [1]  # 0.093, 0.102 and 0.012 are left
    outline = Thing(3, parts=[[[50, 2], [60, 2], [60, 9]]], kind=POLYGON)
    assert share_kept([*things, outline]) == [0, 1, 2, 3]
    assert share_kept([*things, outline], fixed(ALL_SHAPES, min_area_share=0.099)) == [1, 3]
    assert share_kept([*things, outline], Policy(min_side_px=4.9)) == [1, 3]


def outline_of_a_u(left: float, top: float, size: float) -> npt.NDArray[np.float64]:
    """A U: two arms up, joined below."""
    shape = [[0, 0], [0.2, 0], [0.2, 0.7], [0.8, 0.7], [0.8, 0], [1, 0], [1, 1], [0, 1]]
    return np.array(shape) * size + (left, top)


def test_an_outline_is_cut_where_the_canvas_cuts_its_picture() -> None:
    """A U whose upper part lies above the canvas: its outline and its box end there."""
    catalog = catalog_of([(40, 40)] * 4, [[Thing(0, parts=[outline_of_a_u(10, 0, 40)], kind=POLYGON)], [], [], []])
    draws = draws_of({BASE: [0, 1, 2, 3]}, centre_yx=np.array([[30, 40]]))
    found = assemble(draws, catalog, PLAIN, imgsz=40, out_hw=(80, 80), task="segment").labels
    assert found.xyxy_px.tolist() == [[10, 0, 40, 30]]
    assert found.rings(0)[0].min(axis=0).tolist() == [10, 0]


def test_the_box_of_a_turned_outline_is_that_of_the_outline() -> None:
    """A right triangle turned by 45 degrees; its four box corners would reach twice as far (ultralytics#23190)."""
    catalog = catalog_of([(80, 80)], [[Thing(0, parts=[[[20, 20], [60, 20], [20, 60]]], kind=POLYGON)]])
    draws = draws_of({BASE: [0]}, degrees=np.array([45.0]))
    box = assemble(draws, catalog, PLAIN, imgsz=80).labels.xyxy_px[0]
    a = 20 * math.sqrt(2)
    np.testing.assert_allclose(box, [40 - a, 40 - a, 40, 40 + a], atol=1e-4)


POSE = [[18, 6, 2], [10, 20, 2], [26, 20, 1]]


def pose(**fields: Any) -> npt.NDArray[np.float32]:
    """Keypoints of one object of a 40 x 60 picture."""
    catalog = catalog_of([(40, 60)], [[Thing(0, (6, 4, 30, 24), keypoints=POSE)]], keypoints=Keypoints(3, flip_idx=FLIP_IDX))
    return assemble(draws_of({BASE: [0]}, **fields), catalog, PLAIN, imgsz=60, out_hw=(40, 60), task="pose").labels.keypoints_px


def test_a_mirror_exchanges_left_and_right_and_a_turn_upside_down_does_not() -> None:
    """The numbers of case geo-flip-pose (ultralytics#21254)."""
    yes = np.array([True])
    assert pose(flip_lr=yes)[0].tolist() == [[42, 6, 2], [34, 20, 1], [50, 20, 2]]
    assert pose(flip_ud=yes)[0].tolist() == [[18, 34, 2], [10, 20, 2], [26, 20, 1]]
    assert pose(flip_lr=yes, flip_ud=yes)[0].tolist() == [[42, 34, 2], [34, 20, 1], [50, 20, 2]]


def test_a_keypoint_outside_the_frame_is_not_visible_and_one_on_the_border_is() -> None:
    """Visibility first (ultralytics#19920: such points became visible ones of the border)."""
    assert pose(translate=np.array([[0.25, 0.5]]))[0].tolist() == [[3, 6, 2], [0, 0, 0], [11, 20, 1]]
    assert pose(translate=np.array([[0.5, 0.0]]))[0].tolist() == [[0, 0, 0], [10, 0, 2], [26, 0, 1]]


def test_pose_is_mirrored_only_when_the_pairs_are_known() -> None:
    """Without them ``plan`` never mirrors, but still turns upside down; a mirror by hand is an error."""
    catalog = catalog_of([(40, 60)], [[Thing(0, (6, 4, 30, 24), keypoints=POSE)]], keypoints=Keypoints(3))
    policy = Policy(fliplr=1.0, flipud=1.0, mosaic=0.0, scale=0.0, translate=0.0)
    found, detect = (plan([0], catalog, policy, seed=0, epoch=0, imgsz=64, task=task) for task in ("pose", "detect"))
    assert (found.matrix[0, 0, 0], found.matrix[0, 1, 1]) == (1, -1)
    assert detect.matrix[0, 0, 0] == -1
    with pytest.raises(UsageError, match="keypoints must have a flip_idx to be mirrored, got none; set fliplr=0"):
        assemble(draws_of({BASE: [0]}, flip_lr=np.array([True])), catalog, PLAIN, imgsz=64, task="pose")


def quad(cx: float, cy: float, w: float, h: float, degrees: float) -> npt.NDArray[np.float64]:
    """Corners of an oriented box."""
    angle = math.radians(degrees)
    u, v = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
    return np.array([(cx, cy) + x * w / 2 * u + y * h / 2 * v for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])


@pytest.mark.parametrize("flip", [False, True])
def test_an_oriented_box_is_turned_with_its_picture_and_not_by_a_border(flip: bool) -> None:
    """20 degrees and 30 counter-clockwise are -10; a mirror makes that 10; cut at the frame it stays so (ultralytics#10181)."""
    catalog = catalog_of([(100, 100)], [[Thing(0, parts=[quad(50, 50, 60, 16, 20)], kind=OBB)]])
    for shift, cut in ((0.5, False), (0.9, True)):
        draws = draws_of(
            {BASE: [0]}, degrees=np.array([30.0]), flip_lr=np.array([flip]), translate=np.array([[shift, 0.5]])
        )
        found = assemble(draws, catalog, PLAIN, imgsz=100, task="obb").labels.xywhr_px[0]
        assert math.degrees(found[4]) == pytest.approx(10 if flip else -10, abs=1e-3)
        assert (found[2] < 59) == cut
        assert found[3] == pytest.approx(16, abs=1e-3)


def test_an_oriented_box_may_leave_its_picture_but_not_the_canvas_of_a_mosaic() -> None:
    """Its corners lie outside the picture in the store too; training and validation see the same box."""
    over = Thing(0, (30, 15, 40, 25), parts=[quad(40, 20, 20, 10, 0)], kind=OBB)
    above = Thing(1, (10, 0, 20, 10), parts=[quad(15, 4, 10, 12, 0)], kind=OBB)
    catalog = catalog_of([(40, 40)] * 4, [[over, above], [], [], []])
    draws = draws_of({BASE: [0, 1, 2, 3]}, centre_yx=np.array([[40, 40]]))
    found = assemble(draws, catalog, PLAIN, imgsz=40, out_hw=(80, 80), task="obb").labels
    np.testing.assert_allclose(found.xywhr_px[:, :4], [[40, 20, 20, 10], [15, 5, 10, 10]], atol=1e-4)
    boxes = assemble(draws, catalog, PLAIN, imgsz=40, out_hw=(80, 80)).labels.xyxy_px
    assert boxes.tolist() == [[30, 15, 40, 25], [10, 0, 20, 10]]  # in detect the box ends with its picture


def test_objects_seen_whole_keep_the_box_of_the_store_and_cut_ones_get_that_of_their_outline() -> None:
    """A dataset may give a box that is not the outline's; validation goes by it, so training does where nothing is cut."""
    thing = Thing(0, (10, 10, 50, 50), parts=[[[20, 20], [40, 20], [20, 40]]], kind=POLYGON)
    catalog = catalog_of([(64, 64)], [[thing]])

    def box(shift: float, task: str = "detect", **fields: Any) -> list[float]:
        draws = draws_of({BASE: [0]}, translate=np.array([[0.5 + shift / 64, 0.5]]), **fields)
        return assemble(draws, catalog, PLAIN, imgsz=64, task=task).labels.xyxy_px[0].tolist()

    for task in ("detect", "segment"):
        assert box(0, task) == [10, 10, 50, 50]
        assert box(-8, task) == [2, 10, 42, 50]
        assert box(-32, task) == [0, 20, 8, 28]
    assert box(0, degrees=np.array([90.0])) == pytest.approx([20, 24, 40, 44], abs=1e-4)


@settings(max_examples=60)
@given(
    st.integers(0, 100),
    policies(),
    st.booleans(),
    st.sampled_from(["detect", "pose"]),
    st.integers(0, 2**60),
    st.sampled_from([None, (64, 96), (32, 32)]),
)
def test_leaving_out_what_is_out_of_sight_changes_no_label(
    catalog_seed: int, policy: Policy, turns: bool, task: str, seed: int, out_hw: tuple[int, int] | None
) -> None:
    """Every label that is there when all objects are followed to the end, however little of them is left."""
    catalog = random_catalog(catalog_seed, most=20, kinds=(BOX,))
    policy = fixed(policy, min_side_px=0.0, min_area_share=0.0, max_aspect=1e9)
    if not turns:
        policy = fixed(policy, degrees=0.0, shear=0.0, perspective=0.0)
    entries = np.arange(len(catalog))
    frame: dict[str, Any] = {"imgsz": 64, "out_hw": out_hw, "task": task}
    early = plan(entries, catalog, policy, seed=seed, epoch=0, **frame), letterbox(entries, catalog, **frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "_shown", lambda tiles, visible, view: visible)
        patch.setattr(canvas, "_overlap", lambda a, b: np.ones(len(a), np.bool_))
        late = plan(entries, catalog, policy, seed=seed, epoch=0, **frame), letterbox(entries, catalog, **frame)
    assert [differences(a, b) for a, b in zip(early, late, strict=True)] == [[], []]


def test_objects_out_of_sight_are_left_out_before_they_are_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two objects side by side, the view shows the half with one."""
    catalog = catalog_of([(64, 64)], [[Thing(1, (4, 4, 28, 60)), Thing(2, (36, 4, 60, 60))]])
    followed: list[int] = []

    def counted(*args: Any) -> canvas.Objects:
        found = canvas.on_canvas(*args)
        followed.append(len(found))
        return found

    monkeypatch.setattr("fastdata.augment.assemble.on_canvas", counted)
    draws = draws_of({BASE: [0]}, translate=np.array([[0.0, 0.5]]))
    assert assemble(draws, catalog, PLAIN, imgsz=64).labels.cls.tolist() == [2]
    assert followed == [1]
