"""Masks filled on the GPU are the processor's, pixel for pixel: in Triton's interpreter everywhere, and on a GPU where one is."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import gpu_kit
import numpy as np
import pytest
import recipe_kit as kit
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_kit import Group, Slot, Thing, Tile

from fastdata.augment.recipe import Labels, Recipe
from fastdata.errors import UsageError
from fastdata.labels import BOX, MASK, OBB, POLYGON
from fastdata.masks import mask_to_rings
from fastdata.render import cuda_masks, masks, triton_masks
from fastdata.render.reference import _mask
from fastdata.render.triton_masks import COLUMNS, EDGES, ROWS

Case = tuple[Labels, tuple[int, int], int]


def square(x0: float, y0: float, x1: float, y1: float) -> kit.Ring:
    """A ring."""
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def blob(rng: np.random.Generator, frame_hw: tuple[int, int], size: float, corners: int) -> kit.Ring:
    """A jagged outline, clipped to the frame as outlines of labels are."""
    turn = np.sort(rng.uniform(0, 2 * np.pi, corners))
    radius = size * rng.uniform(0.6, 1, corners)
    points = rng.uniform(0, frame_hw[::-1], 2) + np.stack([np.cos(turn), np.sin(turn)], axis=1) * radius[:, None]
    return np.clip(points, 0, frame_hw[::-1]).astype(np.float32).tolist()


def assert_equal(labels: Labels, out_hw: tuple[int, int], ratio: int, device: Any = None) -> None:
    """Every form of the masks, the order, and the types."""
    device = gpu_kit.any_device() if device is None else device
    want, want_order = masks.overlap_masks(labels, out_hw, ratio)
    got, order = cuda_masks.overlap_masks(labels, out_hw, ratio, device)
    assert got.device == device
    assert got.cpu().numpy().dtype == want.dtype
    assert np.array_equal(got.cpu().numpy(), want)
    assert np.array_equal(order, want_order)
    classes = cuda_masks.class_masks(got, order, labels).cpu().numpy()
    assert classes.dtype == np.float32
    assert np.array_equal(classes, masks.class_masks(want, want_order, labels))
    alone = cuda_masks.separate_masks(labels, out_hw, ratio, device).cpu().numpy()
    assert alone.dtype == np.uint8
    assert np.array_equal(alone, masks.separate_masks(labels, out_hw, ratio))


@st.composite
def batches(draw: st.DrawFn) -> Case:
    """Slots with outlines of every kind, crossing themselves and the frame, degenerate, or missing."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    out_hw = (draw(st.integers(4, 90)), draw(st.integers(4, 90)))
    things = []
    for _ in range(draw(st.integers(0, 3))):
        own = []
        for _ in range(draw(st.integers(0, 3))):
            kind = int(rng.integers(0, 4))
            count = 0 if kind == BOX else int(rng.integers(0, 4))
            rings: list[Any] = [rng.uniform(-8, 96, (rng.integers(0, 9), 2)) for _ in range(count)]
            rings = [np.rint(ring * 2) / 2 if rng.random() < 0.4 else ring for ring in rings]  # corners on centres and edges
            (x0, x1), (y0, y1) = np.sort(rng.uniform(0, 90, (2, 2)))
            own.append(Thing([r.tolist() for r in rings], kind, int(rng.integers(0, 80)), (x0, y0, x1 + 0.01, y1 + 0.01)))
        things.append(own)
    return kit.labels_of(things), out_hw, draw(st.sampled_from([r for r in (1, 2, 3, 4, 8) if r <= min(out_hw)]))


@settings(max_examples=30)
@given(batches())
def test_all_masks_are_those_of_the_processor_bit_for_bit(batch: Case) -> None:
    """At any ratio, also one that does not divide the frame."""
    assert_equal(*batch)


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_outlines_of_many_corners_in_wide_frames_are_filled_at_every_ratio(ratio: int) -> None:
    """More corners than are crossed at once, and frames of more than one tile each way, the last ones cut."""
    rng = np.random.default_rng(ratio)
    out_hw = (2 * ROWS * ratio + 3, (COLUMNS + 9) * ratio + 1)
    corners = (3, EDGES - 1, EDGES, EDGES + 1, 3 * EDGES + 5)
    slots = [[Thing([blob(rng, out_hw, rng.uniform(5, 40 * ratio), n)], cls=n) for n in corners], [], [Thing(box=(1, 2, 9, 8))]]
    assert_equal(kit.labels_of(slots), out_hw, ratio)


def test_holes_stay_open_and_parts_that_meet_leave_no_seam() -> None:
    """A traced MASK with holes and touching corners; polygons that share an edge, that overlap, and that lie in each other."""
    rng = np.random.default_rng(1)
    traced = [ring.tolist() for ring in mask_to_rings(rng.random((9, 13)) > 0.5)]
    nested = [square(1, 1, 29, 19), square(5, 5, 20, 15)]
    shared = [[[2, 3], [17.3, 4], [12, 16]], [[17.3, 4], [28, 14.5], [12, 16]]]
    things = [Thing(traced, MASK), Thing(nested, MASK), Thing(nested, POLYGON), Thing(shared, POLYGON), Thing(nested, OBB)]
    for ratio in (1, 2):
        assert_equal(kit.labels_of([things, [Thing(box=(3, 3, 7, 8))], things[2:]]), (20, 30), ratio)


def test_centres_on_edges_belong_to_the_area_right_of_or_below() -> None:
    """Corners and edges exactly on the lines through centres, after shrinking too."""
    things = [Thing([square(2, 2, 10, 6)]), Thing([[[2, 2], [10, 10], [2, 10]]]), Thing([[[14, 2], [14, 14], [6, 14]]])]
    for ratio in (1, 2, 4):
        assert_equal(kit.labels_of([things]), (16, 16), ratio)
        assert_equal(kit.labels_of([[Thing([(np.array(t.rings[0]) + 0.5).tolist()]) for t in things]]), (16, 16), ratio)


@pytest.mark.parametrize("objects", [255, 256])
def test_each_of_many_objects_keeps_its_own_number(objects: int) -> None:
    """Beyond 255 in a wider type, for the whole batch. All but two lie outside the frame, which is quick to see."""
    outside = [Thing([square(200, 3, 209, 9)]) for _ in range(objects - 2)]
    seen = [Thing([square(0, 0, 3, 4)], cls=7), Thing([square(1, 0, 3, 4)], cls=8)]
    labels = kit.labels_of([[seen[0], *outside, seen[1]], seen])
    got, order = cuda_masks.overlap_masks(labels, (4, 4), 1, gpu_kit.any_device())
    assert got.element_size() == (1 if objects == 255 else 4)
    assert got[0, 2].tolist() == [objects - 1, objects, objects, 0]
    assert got[1, 2].tolist() == [1, 2, 2, 0]
    assert cuda_masks.class_masks(got, order, labels)[:, 2].tolist() == [[7, 8, 8, 0]] * 2


def test_an_order_that_was_measured_before_is_taken_as_it_is() -> None:
    """The area order is that of the processor, and any other is painted as asked."""
    labels = kit.labels_of([[Thing([square(0, 0, 4, 4)]), Thing([square(0, 0, 8, 8)])]])
    assert cuda_masks.area_order(labels).tolist() == [1, 0]
    got, order = cuda_masks.overlap_masks(labels, (8, 8), 1, gpu_kit.any_device(), order=np.array([0, 1]))
    assert order.tolist() == [0, 1]
    assert (got == 2).all()


def test_nothing_gives_nothing() -> None:
    """No slot, and slots without objects: of zeros, in memory that held something else."""
    for slots in (0, 3):
        assert_equal(kit.labels_of([[]] * slots), (16, 24), 4)


@pytest.mark.parametrize("ratio", [0, -1, 9])
def test_a_ratio_that_leaves_no_pixel_is_refused(ratio: int) -> None:
    """In the words of the processor's."""
    labels = kit.labels_of([[Thing([square(0, 0, 4, 4)])]])
    for fill in (cuda_masks.overlap_masks, cuda_masks.separate_masks):
        with pytest.raises(UsageError, match=rf"mask_ratio must be 1..8 for pictures of 12 x 8, got {ratio}"):
            fill(labels, (8, 12), ratio, gpu_kit.any_device())


# Groups ---------------------------------------------------------------------------------------------------------------------


def pasted(rng: np.random.Generator, out_hw: tuple[int, int], slots: int) -> Recipe:
    """Slots with groups that are masked by some shapes, by none, or not at all, though they may have shapes."""
    store = kit.memory_store([np.zeros((4, 4), np.uint8)])
    batch = []
    for _ in range(slots):
        groups = [Group([Tile(0)])]
        for _ in range(int(rng.integers(0, 4))):
            shapes = [[blob(rng, out_hw, 20, 12) for _ in range(rng.integers(1, 3))] for _ in range(rng.integers(0, 4))]
            groups.append(Group([Tile(0)], shapes=shapes))
        batch.append(Slot(groups))
    recipe = kit.recipe(store, batch, out_hw)
    recipe.is_masked[rng.random(len(recipe.is_masked)) < 0.2] = False
    return recipe


def assert_groups_equal(recipe: Recipe, device: Any) -> None:
    """Each masked group's mask, and that no other group has one. Clip rectangles are the whole output here."""
    got, index = cuda_masks.group_masks(recipe, device)
    assert index.dtype == np.int32
    assert index[recipe.is_masked].tolist() == list(range(len(got)))
    assert (index[~recipe.is_masked] == -1).all()
    assert got.shape == (recipe.is_masked.sum(), *recipe.out_hw)
    for g in np.flatnonzero(recipe.is_masked).tolist():
        assert np.array_equal(got[index[g]].cpu().numpy(), _mask(recipe, g).astype(np.uint8)), g


def test_masks_of_groups_are_those_of_the_reference() -> None:
    """Rings of a shape even-odd, shapes united, no shape at all, and groups that are not masked in between."""
    rng = np.random.default_rng(4)
    for _ in range(4):
        assert_groups_equal(pasted(rng, (37, 70), 2), gpu_kit.any_device())


def test_a_batch_without_masked_groups_has_no_masks_of_groups() -> None:
    """The usual case."""
    store = kit.memory_store([np.zeros((4, 4), np.uint8)])
    recipe = kit.recipe(store, [Slot([Group([Tile(0)])])] * 2, (8, 9))
    got, index = cuda_masks.group_masks(recipe, gpu_kit.any_device())
    assert got.shape == (0, 8, 9)
    assert index.tolist() == [-1, -1]


# Mutants and the GPU --------------------------------------------------------------------------------------------------------

MUTANTS = {
    "centres at corners": ("(bx - ax)[None, :] - 0.5)", "(bx - ax)[None, :])"),
    "lines between rows": ("line + 0.5 - ay", "line - ay"),
    "the last row lost": ("line < bottom[None, :]", "line < bottom[None, :] - 1"),
    "the first row lost": ("top[None, :] <= line", "top[None, :] < line"),
    "edges right of the centre lost": ("tl.minimum(ax, bx) < x_first + COLUMNS", "tl.minimum(ax, bx) < x_first + COLUMNS // 2"),
    "edges at the bottom lost": ("top < y_first + ROWS", "top < y_first + ROWS - 2"),
    "edges at the top lost": ("bottom > y_first", "bottom > y_first + 1"),
    "an outline left open": ("tl.where(p + 1 < end, p + 1, begin)", "tl.where(p + 1 < end, p + 1, p)"),
    "a line of two points filled": ("end - begin >= 3", "end - begin >= 2"),
    "the second tile lost": ("- 0.5) - x_first", "- 0.5)"),
    "the union cancels": ("union |=", "union ^="),
    "float32": ("tl.float64)", "tl.float32)"),
    "extents that end too early": ("FAR) + 1)", "FAR) - 2)"),
    "extents that begin too late": ("-FAR) - 1)", "-FAR) + 2)"),
    "numbers from 0": ("i - first + 1, value", "i - first, value"),
    "the first class for all": ("first + number - 1", "first + 0 * number"),
}


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="a wrong kernel may read anything, which a GPU takes ill")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_fills_a_known_mask_wrongly(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each slip meets the batches below."""
    right, wrong = MUTANTS[name]
    source = Path(triton_masks.__file__).read_text()
    assert right in source
    file = tmp_path / "mutant.py"  # a file, since the interpreter reads the source of what it runs
    file.write_text(source.replace(right, wrong))
    mutant = ModuleType("mutant")
    mutant.__file__ = str(file)
    exec(compile(file.read_text(), str(file), "exec"), mutant.__dict__)
    for kernel in ("fill_each", "fill_slots", "measure_extents", "paint_classes"):
        monkeypatch.setattr(cuda_masks, kernel, getattr(mutant, kernel))
    with pytest.raises(AssertionError):
        _check_cases()


def _check_cases() -> None:
    """Small batches in which every rule decides something."""
    rng = np.random.default_rng(5)
    jagged = [Thing([blob(rng, (40, 80), 20, 12)], cls=3 + i) for i in range(3)]
    overlapping = Thing([square(0, 0, 12, 12), square(4.5, 4.5, 14.5, 14.5)])
    beyond_a_tile = [
        Thing([square(COLUMNS - 0.8, ROWS - 0.8, COLUMNS + 6, 14)]),
        Thing([square(2, 2, COLUMNS + 0.7, ROWS + 0.7)]),
    ]
    there_and_back = Thing([[[15.25, 4.75], [5.5, 14.5]], square(0, 0, 1, 1)])  # crosses row 12 at 7.5, and 7.5 less a rounding
    assert_equal(kit.labels_of([[overlapping], beyond_a_tile]), (16, 80), 1)
    assert_equal(kit.labels_of([jagged, jagged[:1]]), (40, 80), 2)
    assert_equal(kit.labels_of([[there_and_back]]), (16, 16), 1)


def test_the_known_masks_are_filled_rightly() -> None:
    """What no mutant may pass, the kernels do."""
    _check_cases()


@pytest.mark.gpu
@pytest.mark.parametrize("ratio", [1, 4])
def test_a_real_batch_on_the_gpu_is_that_of_the_processor(ratio: int) -> None:
    """64 slots of 15 objects at 640 px but for one of 300, some in parts, with holes, or boxes; and pastes."""
    device = gpu_kit.needs_cuda()
    rng = np.random.default_rng(9)
    slots = []
    for slot in range(64 if ratio > 1 else 8):
        own = []
        for i in range(15 if slot else 300):
            rings = [blob(rng, (640, 640), rng.uniform(4, 150), int(rng.integers(3, 120))) for _ in range(1 + (i % 5 == 0))]
            own.append(Thing(rings, MASK if i % 2 else POLYGON, i % 80) if i % 7 else Thing(box=(i + 0.3, 5.5, i + 90.2, 77.7)))
        slots.append(own)
    assert_equal(kit.labels_of(slots), (640, 640), ratio, device)
    assert_equal(kit.labels_of(slots[1:]), (640, 640), ratio, device)
    assert_groups_equal(pasted(rng, (640, 640), 16), device)
