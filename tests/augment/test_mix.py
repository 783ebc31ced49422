"""Objects and pixels of other pictures: MixUp, CutMix and Copy-Paste, each against the rule written out one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_kit import Thing
from plan_kit import PLAIN, catalog_of, complaints, draws_of, fixed, random_catalog

from fastdata.augment.assemble import assemble
from fastdata.augment.draws import BASE, BASE_PASTE, CUTMIX, CUTMIX_PASTE, MIXUP, MIXUP_PASTE
from fastdata.augment.plan import plan
from fastdata.augment.policy import Policy
from fastdata.augment.recipe import Recipe
from fastdata.labels import POLYGON
from fastdata.masks import rings_to_mask

F64 = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]
PASTE = fixed(PLAIN, copy_paste=1.0)
LEND = fixed(PASTE, copy_paste_mode="mixup")


def outlined(xyxy: Box, cls: int = 0) -> Thing:
    """A rectangle that is given as an outline."""
    x0, y0, x1, y1 = xyxy
    return Thing(cls, parts=[[[x0, y0], [x1, y0], [x1, y1], [x0, y1]]], kind=POLYGON)


def boxes(recipe: Recipe) -> list[list[float]]:
    """All boxes, rounded."""
    return recipe.labels.xyxy_px.round(3).tolist()


def painted(recipe: Recipe, slot: int = 0) -> F64:
    """The picture of a slot when entry e is all of colour 100 e, and 10 more where it is seen mirrored: groups in their order."""
    h, w = recipe.out_hw
    out = np.zeros((h, w))
    for g in range(*recipe.group_offsets[slot : slot + 2]):
        colour = 100.0 * recipe.tile_entry[recipe.tile_offsets[g]] + 10 * (recipe.matrix[g, 0, 0] < 0)
        x0, y0, x1, y1 = recipe.clip_xyxy[g]
        where = np.zeros((h, w), np.bool_)
        where[y0:y1, x0:x1] = True
        if recipe.is_masked[g]:
            where &= mask_of(recipe, g)
        out[where] += recipe.weight[g] * (colour - out[where])
    return out


def mask_of(recipe: Recipe, g: int) -> npt.NDArray[np.bool_]:
    """The union of a group's shapes."""
    mask = np.zeros(recipe.out_hw, np.bool_)
    for s in range(*recipe.shape_offsets[g : g + 2]):
        rings = range(*recipe.shape_ring_offsets[s : s + 2])
        points = [recipe.mask_points_px[slice(*recipe.ring_point_offsets[r : r + 2])] for r in rings]
        mask |= rings_to_mask(points, recipe.out_hw) > 0
    return mask


def rectangle(hw: tuple[int, int], *xyxy: tuple[int, int, int, int]) -> npt.NDArray[np.bool_]:
    """True within any of the boxes."""
    out = np.zeros(hw, np.bool_)
    for x0, y0, x1, y1 in xyxy:
        out[y0:y1, x0:x1] = True
    return out


def test_mixup_joins_labels_and_weighs_pixels_alone() -> None:
    """Classes and boxes of both pictures as they are (YOLO#105: they were weighed too)."""
    catalog = catalog_of([(32, 32)] * 3, [[], [Thing(2, (4, 6, 20, 26))], [Thing(1, (10, 2, 30, 12)), Thing(3, (0, 20, 32, 32))]])
    found = assemble(draws_of({BASE: [1], MIXUP: [2]}, mixup_weight=np.array([0.25])), catalog, PLAIN, imgsz=32)
    assert found.labels.cls.tolist() == [2, 1, 3]
    assert boxes(found) == [[4, 6, 20, 26], [10, 2, 30, 12], [0, 20, 32, 32]]
    assert (found.weight.tolist(), found.tile_entry.tolist()) == ([1, 0.75], [1, 2])
    assert (painted(found) == 0.25 * 100 + 0.75 * 200).all()
    assert list(complaints(found)) == []


# Copy-Paste


def test_objects_are_pasted_mirrored_with_a_label_each() -> None:
    """The numbers of case aug-paste-mirror; the class is that of the original."""
    catalog = catalog_of([(40, 64)], [[outlined((6, 8, 22, 28), 1)]])
    found = assemble(draws_of({BASE: [0]}), catalog, PASTE, imgsz=64, out_hw=(40, 64), task="segment")
    assert boxes(found) == [[6, 8, 22, 28], [42, 8, 58, 28]]
    assert (found.labels.cls.tolist(), found.labels.instance.tolist()) == ([1, 1], [0, 0])
    assert sorted(found.labels.rings(1)[0].tolist()) == [[42, 8], [42, 28], [58, 8], [58, 28]]
    assert found.is_masked.tolist() == [False, True]
    assert found.tile_entry.tolist() == [0, 0]
    assert found.matrix[1].tolist() == [[-1, 0, 64], [0, 1, 0], [0, 0, 1]]
    assert (mask_of(found, 1) == rectangle((40, 64), (42, 8, 58, 28))).all()


def test_pasted_objects_of_a_mosaic_are_mirrored_on_the_canvas_and_flipped_with_it() -> None:
    """Before the transform: on a canvas of 80, an object at 12..20 of the first tile goes to 60..68; then the view is flipped."""
    catalog = catalog_of([(40, 40)] * 4, [[outlined((12, 20, 20, 30), 5)], [], [], []])
    draws = draws_of({BASE: [0, 1, 2, 3]}, centre_yx=np.array([[40, 40]]), flip_ud=np.array([True]), flip_lr=np.array([True]))
    found = assemble(draws, catalog, PASTE, imgsz=40, out_hw=(80, 80))
    assert boxes(found) == [[60, 50, 68, 60], [12, 50, 20, 60]]
    assert found.matrix[1].tolist() == [[1, 0, 0], [0, -1, 80], [0, 0, 1]]
    assert (mask_of(found, 1) == rectangle((80, 80), (12, 50, 20, 60))).all()


def chosen_by_the_rule(candidates: list[Box], existing: list[Box], share: float) -> list[int]:
    """Which candidates come, in order; the rule with loops."""
    may_come = []
    for j, (ax0, ay0, ax1, ay1) in enumerate(candidates):
        hidden = []
        for bx0, by0, bx1, by1 in existing:
            w, h = min(ax1, bx1) - max(ax0, bx0), min(ay1, by1) - max(ay0, by0)
            hidden.append(max(w, 0) * max(h, 0) / ((bx1 - bx0) * (by1 - by0)))
        if max(hidden) < 0.30:
            may_come.append((max(hidden), j))
    may_come.sort()
    return [j for _, j in may_come[: round(share * len(may_come))]]


coordinate = st.integers(0, 15).map(lambda n: 4 * n)
box = st.tuples(coordinate, coordinate, coordinate, coordinate).map(
    lambda c: (float(c[0]), float(c[1]), float(c[0] + c[2] + 4), float(c[1] + c[3] + 4))
)


@given(st.lists(box, min_size=1, max_size=6), st.sampled_from([0.1, 0.3, 0.5, 0.75, 1.0]))
def test_the_objects_that_hide_least_are_pasted(found: list[Box], share: float) -> None:
    """Eligibility, order and number, against the rule with loops; two samples in one batch do not see each other."""
    catalog = catalog_of([(128, 128)] * 2, [[outlined(b) for b in found], [outlined((3, 3, 9, 9))]])
    recipe = assemble(draws_of({BASE: [0]}, {BASE: [1]}), catalog, fixed(PASTE, copy_paste=share), imgsz=128)
    mirrored = [(128 - x1, y0, 128 - x0, y1) for x0, y0, x1, y1 in found]
    want = chosen_by_the_rule(mirrored, found, share)
    first = recipe.labels.instance[: recipe.labels.offsets[1]].tolist()
    assert first == [*range(len(found)), *want]
    assert recipe.labels.offsets[2] - recipe.labels.offsets[1] == 1 + round(share)


def test_objects_without_an_outline_are_not_pasted() -> None:
    """There is nothing to cut them out by; but a box may be hidden by others, and counts."""
    catalog = catalog_of([(64, 64)], [[Thing(0, (2, 2, 10, 10)), Thing(1, (40, 20, 50, 30)), outlined((14, 20, 24, 30), 2)]])
    found = assemble(draws_of({BASE: [0]}), catalog, PASTE, imgsz=64)
    assert found.labels.cls.tolist() == [0, 1, 2]  # mirrored, the outline would hide all of the second box
    assert len(found.matrix) == 1


def test_pose_is_not_pasted() -> None:
    """As in the trainers, whose pose labels have no outlines."""
    catalog = random_catalog(3)
    found = plan(range(12), catalog, fixed(PASTE, copy_paste_mode="flip"), seed=0, epoch=0, imgsz=64, task="pose")
    assert not found.is_masked.any()


def test_objects_of_another_picture_are_pasted_where_its_own_transform_puts_them() -> None:
    """Mode mixup: after the transform, from a scene of its own; labels of the lender that do not come are not there."""
    catalog = catalog_of(
        [(40, 40)] * 3, [[], [outlined((2, 2, 12, 12), 1)], [outlined((2, 4, 12, 14), 2), outlined((20, 20, 30, 34), 3)]]
    )
    draws = draws_of({BASE: [1], BASE_PASTE: [2]}, translate=np.array([[0.5, 0.5], [0.6, 0.5]]))
    found = assemble(draws, catalog, LEND, imgsz=40)
    assert found.labels.cls.tolist() == [1, 3]  # the other one would hide 0.64 of what is there
    assert boxes(found)[1] == [24, 20, 34, 34]
    assert found.tile_entry.tolist() == [1, 2]
    assert (painted(found) == np.where(rectangle((40, 40), (24, 20, 34, 34)), 200, 100)).all()
    empty = assemble(draws_of({BASE: [0], BASE_PASTE: [2]}), catalog, LEND, imgsz=40)
    assert (len(empty.labels), len(empty.matrix)) == (0, 1)  # nothing is pasted where nothing is, as in the trainers


# MixUp of pictures with pastes


def test_pastes_into_either_picture_of_a_mixup_do_not_cover_the_other() -> None:
    """out = r A' + (1 - r) B' at every pixel, also where pasted objects overlap each other and those of the other picture."""
    a = [outlined((0, 0, 8, 8)), outlined((2, 20, 14, 30)), outlined((6, 26, 18, 36))]
    b = [outlined((0, 0, 6, 6)), outlined((4, 10, 18, 28))]
    catalog = catalog_of([(40, 40)] * 3, [[], a, b])
    draws = draws_of({BASE: [1], MIXUP: [2]}, mixup_weight=np.array([0.375]))
    found = assemble(draws, catalog, PASTE, imgsz=40, task="segment")
    assert len(found.labels) == 10
    first = np.where(rectangle((40, 40), (32, 0, 40, 8), (26, 20, 38, 30), (22, 26, 34, 36)), 110, 100)
    second = np.where(rectangle((40, 40), (34, 0, 40, 6), (22, 10, 36, 28)), 210, 200)
    np.testing.assert_allclose(painted(found), 0.375 * first + 0.625 * second, rtol=1e-6)
    assert list(complaints(found)) == []


@settings(max_examples=30)
@given(st.integers(0, 200), st.sampled_from(["flip", "mixup"]))
def test_a_mixup_is_the_weighed_sum_of_its_two_pictures_whatever_is_pasted(seed: int, mode: Any) -> None:
    """The two pictures planned alone, and together."""
    catalog = random_catalog(seed, kinds=(1, 3), keypoints=False)
    policy = fixed(PASTE, copy_paste_mode=mode)
    lender = mode == "mixup"
    first: dict[int, list[int]] = {BASE: [1], BASE_PASTE: [2]} if lender else {BASE: [1]}
    second: dict[int, list[int]] = {BASE: [3], BASE_PASTE: [4]} if lender else {BASE: [3]}
    both = first | ({MIXUP: [3], MIXUP_PASTE: [4]} if lender else {MIXUP: [3]})
    mixed = assemble(draws_of(both, mixup_weight=np.array([0.25])), catalog, policy, imgsz=50, task="segment")
    alone = [assemble(draws_of(part), catalog, policy, imgsz=50, task="segment") for part in (first, second)]
    np.testing.assert_allclose(painted(mixed), 0.25 * painted(alone[0]) + 0.75 * painted(alone[1]), rtol=1e-5)
    assert mixed.labels.instance.tolist() == [*alone[0].labels.instance.tolist(), *alone[1].labels.instance.tolist()]


# CutMix


def cutmix(region: list[list[int]], choice: float, a: list[Thing], b: list[Thing], **fields: Any) -> Recipe:
    """Picture 1 with objects ``a``, of which a region may be replaced by that of picture 2 with objects ``b``."""
    catalog = catalog_of([(64, 64)] * 3, [[], a, b])
    draws = draws_of(
        {BASE: [1], CUTMIX: [2]}, cutmix_xyxy_px=np.array([region]), cutmix_choice=np.array([choice]), **fields
    )
    found = assemble(draws, catalog, PLAIN, imgsz=64)
    assert list(complaints(found)) == []
    return found


REGIONS = [[0, 0, 20, 20], [30, 30, 60, 60], [0, 40, 20, 60]]


def test_a_region_is_replaced_with_the_objects_that_are_enough_within_it() -> None:
    """At least a tenth of an object; it is cut to the region. What was there before stays as it is."""
    b = [Thing(1, (20, 20, 40, 40)), Thing(2, (50, 50, 64, 64)), Thing(3, (0, 0, 33, 33)), Thing(4, (1, 1, 5, 5))]
    found = cutmix(REGIONS, 0.4, [Thing(0, (2, 2, 30, 30))], b)
    assert found.clip_xyxy.tolist() == [[0, 0, 64, 64], [30, 30, 60, 60]]  # the first of two that are free
    assert found.labels.cls.tolist() == [0, 1, 2]
    assert boxes(found) == [[2, 2, 30, 30], [30, 30, 40, 40], [50, 50, 60, 60]]
    assert (painted(found) == np.where(rectangle((64, 64), (30, 30, 60, 60)), 200, 100)).all()


@pytest.mark.parametrize(("choice", "region"), [(0.0, 1), (0.49, 1), (0.5, 2), (0.999, 2)])
def test_each_free_region_is_chosen_by_its_share_of_the_draw(choice: float, region: int) -> None:
    """The first region touches the object that is there."""
    found = cutmix(REGIONS, choice, [Thing(0, (2, 2, 30, 30))], [Thing(1, (0, 0, 60, 60))])
    assert found.clip_xyxy[1].tolist() == REGIONS[region]


def test_a_region_may_touch_the_border_of_an_object() -> None:
    """No area is shared."""
    found = cutmix([[30, 0, 60, 60]] * 3, 0.0, [Thing(0, (2, 2, 30, 30))], [Thing(1, (30, 0, 60, 60))])
    assert found.labels.cls.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("regions", "b"),
    [
        ([[0, 0, 9, 9]] * 3, [Thing(1, (0, 0, 9, 9))]),
        (REGIONS, [Thing(1, (20, 20, 30, 30))]),
        ([[40, 40, 40, 50]] * 3, [Thing(1, (0, 0, 64, 64))]),
        (REGIONS, []),
    ],
    ids=["no region is free", "no object comes", "the region is empty", "there is no object"],
)
def test_nothing_is_replaced_when(regions: list[list[int]], b: list[Thing]) -> None:
    """No layer, no label, no change."""
    found = cutmix(regions, 0.9, [Thing(0, (2, 2, 30, 30))], b)
    assert (len(found.matrix), found.labels.cls.tolist()) == (1, [0])


def test_a_sample_with_outlines_takes_objects_of_which_a_hundredth_is_left() -> None:
    """As the trainers' rule has it: it is the sample's own labels that count."""
    b = [Thing(1, (0, 0, 33, 33)), Thing(2, (0, 0, 32, 32))]
    assert cutmix([[30, 30, 60, 60]] * 3, 0.0, [Thing(0, (2, 2, 9, 9))], b).labels.cls.tolist() == [0]
    found = cutmix([[28, 28, 60, 60]] * 3, 0.0, [outlined((2, 2, 9, 9))], [*b, Thing(3, (0, 0, 30, 30))])
    assert found.labels.cls.tolist() == [0, 1, 2]


def test_regions_are_flipped_with_the_picture() -> None:
    """Chosen before flips, as everything is."""
    found = cutmix(REGIONS, 0.9, [], [Thing(1, (0, 40, 10, 60))], flip_lr=np.array([True]), flip_ud=np.array([True]))
    assert found.clip_xyxy[1].tolist() == [44, 4, 64, 24]
    assert boxes(found) == [[54, 4, 64, 24]]


def test_what_was_pasted_onto_the_second_picture_comes_within_the_region_alone() -> None:
    """Its stamp is clipped as it is; objects that came by MixUp and by pasting count as being there."""
    catalog = catalog_of(
        [(64, 64)] * 4,
        [[], [outlined((0, 0, 8, 8))], [outlined((40, 40, 48, 48), 1)], [outlined((50, 50, 62, 62), 2)]],
    )
    regions = np.array([[[38, 38, 56, 56], [39, 39, 57, 57], [0, 0, 4, 4]]])
    draws = draws_of({BASE: [1], CUTMIX: [2], CUTMIX_PASTE: [3]}, cutmix_xyxy_px=regions, cutmix_choice=np.array([0.9]))
    found = assemble(draws, catalog, LEND, imgsz=64)
    assert found.labels.cls.tolist() == [0, 1, 2]
    assert boxes(found)[2] == [50, 50, 57, 57]
    assert found.clip_xyxy.tolist() == [[0, 0, 64, 64], [39, 39, 57, 57], [39, 39, 57, 57]]
    want = np.full((64, 64), 100.0)
    want[39:57, 39:57] = 200
    want[50:57, 50:57] = 300
    assert (painted(found) == want).all()
    mixed = replace(
        draws_of({BASE: [1], MIXUP: [3], CUTMIX: [2]}), cutmix_xyxy_px=regions, cutmix_choice=np.array([0.0])
    )
    assert len(assemble(mixed, catalog, PLAIN, imgsz=64).matrix) == 2  # every region touches something


def test_everything_at_once_over_many_samples() -> None:
    """The heaviest policy: each kind of layer occurs, and every rule of a recipe holds."""
    policy = Policy(mosaic9=0.3, mixup=0.5, cutmix=0.8, copy_paste=0.5, copy_paste_mode="mixup", degrees=20)
    found = plan(np.tile(np.arange(12), 10), random_catalog(8), policy, seed=0, epoch=0, imgsz=96, draws=np.arange(120))
    assert list(complaints(found)) == []
    groups = np.diff(found.group_offsets)
    assert set(groups.tolist()) >= {1, 2, 3, 4}
    assert found.is_masked.sum() > 20
    assert (found.clip_xyxy != [0, 0, 96, 96]).any(axis=1).sum() > 5
    assert set(np.diff(found.tile_offsets).tolist()) == {4, 9}
