"""The form of an entry is what every recipe of its samples uses; pictures lie in memory aligned, apart, and each once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import residency_kit as kit
from hypothesis import given
from hypothesis import strategies as st

from fastdata.residency import upload as module
from fastdata.residency.forms import ENTRY, HEIGHT, RECORD, WIDTH, X0, Forms, forms
from fastdata.residency.upload import ALIGN_NBYTES, SLACK_NBYTES, lay_out


@pytest.mark.parametrize("imgsz", kit.IMGSZ)
@pytest.mark.parametrize("kind", kit.KINDS)
def test_recipes_of_training_and_validation_use_the_form_of_the_entry(kind: str, imgsz: int, tmp_path: Path) -> None:
    """Also in mosaics and mixed; and what is not of these samples is refused."""
    path = kit.stored(tmp_path, kind)
    for samples in kit.trained(path, imgsz), kit.validated(path, imgsz):
        made = forms(samples)
        recipe = samples.recipe(np.arange(4), epoch=1)
        rows = made.rows[made.of(recipe)]
        for column, values in ((ENTRY, recipe.tile_entry), (RECORD, recipe.record)):
            assert np.array_equal(rows[:, column], values)
        assert np.array_equal(rows[:, X0:HEIGHT], recipe.source_xyxy)
        assert np.array_equal(rows[:, HEIGHT:], recipe.size_hw)


def test_entries_of_one_form_share_a_picture_and_pictures_come_in_the_order_of_the_store(tmp_path: Path) -> None:
    """Of each record: a part twice, the whole twice, another part."""
    samples = kit.trained(kit.stored(tmp_path, "parts"))
    made = forms(samples)
    assert len(made.rows) == 45
    assert len(made.nbytes) == len(made.first) == 27
    same = (made.rows[:, None, RECORD:] == made.rows[None, :, RECORD:]).all(axis=2)
    assert np.array_equal(made.picture[:, None] == made.picture[None], same)
    assert (np.diff(made.rows[made.first, RECORD]) >= 0).all()
    assert np.array_equal(made.picture[made.first], np.arange(27))
    tiles = made.rows[made.first]
    assert made.nbytes.sum() == 3 * int((tiles[:, HEIGHT] * tiles[:, WIDTH]).sum())


def test_a_gray_picture_takes_one_plane(tmp_path: Path) -> None:
    """Every third one of these."""
    made = forms(kit.trained(kit.stored(tmp_path, "mixed")))
    assert made.planes.tolist() == [1, 3, 3] * 3
    assert np.array_equal(made.nbytes, made.planes * made.rows[:, HEIGHT] * made.rows[:, WIDTH])


def test_a_recipe_of_other_samples_is_refused(tmp_path: Path) -> None:
    """Of another imgsz; of a picture before, between and behind those in use."""
    path = kit.stored(tmp_path, "raw")
    made = forms(kit.trained(path))
    order = kit.validated(path).entries.tolist()
    with pytest.raises(
        RuntimeError, match=r"^tile 0 .* must be \[0, 0, 0, 0, 64, 48, 48, 64\], got \[0, 0, 0, 0, 64, 48, 72, 96\]"
    ):
        made.of(kit.validated(path, 96).recipe([order.index(0)]))
    recipe = kit.validated(path).recipe([0])
    for wrong in ("record", "source_xyxy", "size_hw"):
        with pytest.raises(RuntimeError, match="of other samples"):
            made.of(replace(recipe, **{wrong: getattr(recipe, wrong) + 1}))

    few = kit.trained(path)
    few.pool = np.array([2, 3, 5, 6])
    some = forms(few)
    assert some.rows[:, ENTRY].tolist() == [2, 3, 5, 6]
    for entry in range(9):
        recipe = kit.validated(path).recipe([order.index(entry)])
        if entry in (2, 3, 5, 6):
            assert some.rows[some.of(recipe), ENTRY].tolist() == [entry]
        else:
            with pytest.raises(RuntimeError, match="must be of an entry in use"):
                some.of(recipe)


def _of_widths(widths: list[int]) -> Forms:
    """Gray pictures of two rows."""
    n = len(widths)
    rows = np.zeros((n, 8), np.int64)
    rows[:, ENTRY] = rows[:, RECORD] = np.arange(n)
    rows[:, HEIGHT], rows[:, WIDTH] = 2, widths
    return Forms(rows, np.ones(n, np.int64), np.arange(n), np.arange(n), 2 * rows[:, WIDTH], np.arange(n, dtype=np.int32))


@given(
    st.lists(st.integers(1, 2500), min_size=1, max_size=60), st.one_of(st.none(), st.integers(1, 9000)), st.sampled_from([1, 32])
)
def test_pictures_lie_aligned_and_apart_with_slack_behind_them(widths: list[int], limit: int | None, align: int) -> None:
    """In chunks of the stated size unless a picture is larger, and in blocks that take each picture once, in order."""
    before = module.BLOCK_NBYTES
    module.BLOCK_NBYTES = 4000
    try:
        layout = lay_out(_of_widths(widths), limit, align)
    finally:
        module.BLOCK_NBYTES = before
    assert (layout.line % align == 0).all()
    assert ((np.array(widths) <= layout.line) & (layout.line < np.array(widths) + align)).all()
    assert np.array_equal(layout.nbytes, 2 * layout.line)
    assert (layout.start % ALIGN_NBYTES == 0).all()
    end = layout.start + layout.nbytes
    for chunk, nbytes in enumerate(layout.chunk_nbytes):
        own = np.flatnonzero(layout.chunk == chunk)
        assert (layout.start[own][1:] >= end[own][:-1]).all()
        assert layout.start[own[0]] == 0
        assert end[own[-1]] + SLACK_NBYTES <= nbytes < end[own[-1]] + SLACK_NBYTES + ALIGN_NBYTES
        assert limit is None or len(own) == 1 or nbytes <= limit + SLACK_NBYTES
    assert layout.total_nbytes == sum(layout.chunk_nbytes)
    assert [p for _, first, last in layout.blocks for p in range(first, last)] == list(range(len(widths)))
    for chunk, first, last in layout.blocks:
        assert (layout.chunk[first:last] == chunk).all()
        assert last == first + 1 or end[last - 1] - layout.start[first] <= 4000
    if limit is None:
        assert len(layout.chunk_nbytes) == 1
