"""Which samples a store gives, and that each is a function of its id and epoch alone."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import training_kit as kit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastdata
from fastdata.augment.policy import Policy, preset
from fastdata.augment.recipe import differences
from fastdata.errors import UsageError
from fastdata.samples import Samples

BUSY = Policy(mosaic=0.7, mixup=0.5, cutmix=0.3, degrees=15, shear=3, flipud=0.3, copy_paste=0.3)


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Converted stores, one a task, made when first asked for."""
    made: dict[str, Path] = {}

    def get(task: str) -> Path:
        if task not in made:
            made[task] = kit.converted(tmp_path_factory.mktemp(task), task, 10)  # type: ignore[arg-type]
        return made[task]

    return get


def drawn(samples: Samples, ids: list[int], epoch: int = 0) -> str:
    """The digest of a batch."""
    return kit.digest(samples.batch(*samples.draw(ids, epoch)))


@pytest.mark.parametrize("task", kit.TASKS)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 9), min_size=1, max_size=4), epoch=st.integers(0, 3), seed=st.integers(-(2**40), 2**40))
def test_a_sample_does_not_depend_on_its_batch(store_of: Any, task: str, ids: list[int], epoch: int, seed: int) -> None:
    """One by one or together: the same plan, pixels and labels, bit by bit."""
    samples = Samples(store_of(task), imgsz=64, policy=BUSY, seed=seed, epochs=3)
    recipe, images = samples.draw(ids, epoch)
    for k, i in enumerate(ids):
        one, picture = samples.draw([i], epoch)
        assert differences(recipe.slots(k, k + 1), one) == []
        np.testing.assert_array_equal(images[k], picture[0])


def test_seed_epoch_and_draw_each_make_another_sample(store_of: Any) -> None:
    """And nothing else does: the same three give the same bytes, also from another object and after a pickle."""
    path = store_of("detect")
    samples = Samples(path, imgsz=64, policy=BUSY)
    one = drawn(samples, [3])
    assert drawn(samples, [3], epoch=1) != one
    assert drawn(Samples(path, imgsz=64, policy=BUSY, seed=1), [3]) != one
    assert kit.digest(samples.batch(*samples.draw([3], 0, 1))) != one
    assert drawn(Samples(path, imgsz=64, policy=BUSY), [3]) == one == drawn(pickle.loads(pickle.dumps(samples)), [3])


def test_a_validation_has_no_chance(store_of: Any) -> None:
    """Seed, epoch and policy change nothing."""
    path = store_of("detect")
    one = drawn(Samples(path, imgsz=64, augment=False), [2])
    assert drawn(Samples(path, imgsz=64, augment=False, seed=5, policy=BUSY), [2], epoch=3) == one


def test_a_picture_is_drawn_where_it_is_asked_for(store_of: Any) -> None:
    """A loader draws into buffers that it uses again."""
    samples = Samples(store_of("detect"), imgsz=64)
    shape = samples.shape_of([1, 2])
    out = np.full(shape, 7, np.uint8)
    _, images = samples.draw([1, 2], out=out)
    assert shape == (2, 3, 64, 64)
    assert np.shares_memory(images, out)
    np.testing.assert_array_equal(out, samples.draw([1, 2])[1])


def test_mosaic_is_closed_by_the_epoch(tmp_path: Path) -> None:
    """Case aug-close-in-workers in one process: colours and labels of each sample, epoch by epoch."""
    samples = Samples(kit.flat(tmp_path), imgsz=32, policy=Policy(close_mosaic=2, hsv_h=0, hsv_s=0, hsv_v=0), epochs=5)
    colours = [[kit.colours_in(images[0]) for images in (samples.draw([i], epoch)[1] for i in range(8))] for epoch in range(5)]
    assert [max(of) > 1 for of in colours] == [True, True, True, False, False]
    assert all(np.diff(samples.recipe(range(8), epoch).labels.offsets).tolist() == [1] * 8 for epoch in (3, 4))


def test_fraction_takes_the_first_of_the_sorted_keys(tmp_path: Path) -> None:
    """As the trainers do; partners of a mosaic come from the chosen ones alone, whatever order the store has."""
    with fastdata.create(tmp_path / "s.lmdb", names=["thing"]) as writer:
        for key in ("d", "b", "a", "c", "e"):
            writer.add(np.zeros((32, 32, 3), np.uint8), boxes=[[1, 1, 20, 20]], key=key)
    store = kit.opened(tmp_path / "s.lmdb")
    for fraction, keys in ((1.0, "dbace"), (1, "dbace"), (0.4, "ba"), (0.01, "a"), (2, "ba"), (3, "bac"), (99, "dbace")):
        samples = Samples(store, imgsz=32, fraction=fraction)
        assert "".join(samples.im_files) == keys
        partners = samples.recipe([0] * 40, 0, np.arange(40)).tile_entry
        assert {store.catalog.key(e) for e in partners.tolist()} == set(keys)
    for wrong in (0, -1, 1.5, 0.0, True, "all", float("nan")):
        with pytest.raises(UsageError, match=r"fraction must be"):
            Samples(store, imgsz=32, fraction=wrong)  # type: ignore[arg-type]


def test_labels_are_those_of_the_store(store_of: Any) -> None:
    """As the trainers read them: a dictionary for each id, whose rows follow ``classes`` and ``single_cls``."""
    store = kit.opened(store_of("segment"))
    catalog = store.catalog
    for options in ({}, {"classes": [1, 3]}, {"single_cls": True}, {"fraction": 0.5}, {"rect": True, "batch_size": 3}):
        samples = Samples(store, imgsz=64, **options)
        assert len(samples.labels) == len(samples) == len(list(samples.labels))
        for entry, row in zip(samples.entries.tolist(), samples.labels, strict=True):
            own = catalog.instances(entry)
            used = np.isin(own.cls, options.get("classes", range(99)))
            h, w = catalog.size_hw(entry)
            x0, y0, x1, y1 = own.xyxy_px[used].T.astype(np.float64)
            want = np.stack([(x0 + x1) / 2 / w, (y0 + y1) / 2 / h, (x1 - x0) / w, (y1 - y0) / h], axis=1)
            np.testing.assert_allclose(row["bboxes"], want, atol=1e-6)
            assert row["cls"].ravel().tolist() == (own.cls[used] * (not options.get("single_cls"))).tolist()
            assert (row["cls"].dtype, row["bboxes"].dtype) == (np.float32, np.float32)
    assert samples.labels[-1]["cls"].tolist() == samples.labels[9]["cls"].tolist() == samples.labels[8:][1]["cls"].tolist()
    with pytest.raises(IndexError, match=r"0\.\.9"):
        samples.labels[10]


def test_a_crowd_is_no_label(tmp_path: Path) -> None:
    """Neither in the labels that are read without a picture nor in a sample."""
    with fastdata.create(tmp_path / "s.lmdb", names=["thing"]) as writer:
        box = [4, 4, 28, 28]
        writer.add(np.zeros((32, 32, 3), np.uint8), boxes=[box, box], crowd=[True, False], polygons=[None, None])
    samples = Samples(tmp_path / "s.lmdb", imgsz=32, augment=False)
    assert len(samples.labels[0]["cls"]) == len(samples.recipe([0]).labels) == 1


def test_rect_validation_sorts_by_aspect(tmp_path: Path) -> None:
    """Each batch has its own shape, files and labels follow the order, and a batch that mixes shapes is refused."""
    samples = Samples(kit.converted(tmp_path, images=9), imgsz=64, augment=False, rect=True, batch_size=3)
    original_hw = samples.store.catalog.entry_original_hw[samples.entries].astype(float)
    aspect = original_hw[:, 0] / original_hw[:, 1]
    assert (np.diff(aspect) >= 0).all()
    assert samples.shapes_differ
    assert samples.batch_shapes is not None
    for b, shape in enumerate(samples.batch_shapes.tolist()):
        ids = np.arange(3 * b, 3 * b + 3)
        recipe, images = samples.draw(ids)
        assert images.shape == samples.shape_of(ids) == (3, 3, *shape)
        assert recipe.entry.tolist() == samples.entries[ids].tolist()
    assert samples.batch_shapes.tolist() == [[64, 96], [96, 96], [96, 96]] or len(set(map(tuple, samples.batch_shapes))) > 1
    with pytest.raises(UsageError, match="one shape when rect"):
        samples.recipe([0, 8])


def test_rect_training_mixes_nothing(tmp_path: Path) -> None:
    """Tiles of a mosaic are squares of the canvas: the trainers switch it, MixUp and CutMix off."""
    samples = Samples(kit.converted(tmp_path), imgsz=64, rect=True, batch_size=4, policy=Policy(mixup=1, cutmix=1))
    recipe = samples.recipe(range(4))
    assert len(recipe.record) == 4
    assert samples.pad == 0.0
    assert samples.batch_shapes is not None
    assert recipe.out_hw == tuple(samples.batch_shapes[0])


@pytest.mark.parametrize(("imgsz", "near"), [(100, 96), (1, 32), (639, 640), (0, 32)])
def test_an_imgsz_off_the_stride_names_the_nearest(store_of: Any, imgsz: int, near: int) -> None:
    """Nothing is rounded silently."""
    with pytest.raises(UsageError, match=rf"imgsz must be a multiple of the stride 32, got {imgsz}; the nearest is {near}$"):
        Samples(store_of("detect"), imgsz=imgsz)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"imgsz": 64.0}, "imgsz must be a multiple"),
        ({"stride": 0}, "stride must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"mask_ratio": True}, "mask_ratio must be a whole number"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"on_bad": "skip"}, "on_bad must be 'raise' or 'replan'"),
        ({"task": "classify"}, "task must be one of detect, segment, pose, obb, got 'classify'"),
        ({"policy": 8}, "policy must be a fastdata.Policy or the name of a preset, got int"),
        ({"policy": "yolov6"}, "preset must be one of yolov8, yolov5, light, none, got 'yolov6'"),
        ({"classes": [99]}, r"classes must be in 0\.\.\d, got 99"),
        ({"task": "segment"}, "labels must have outlines for task segment, got plain boxes alone"),
        ({"task": "obb"}, "labels must have oriented boxes or outlines for task obb"),
        ({"task": "pose"}, "must have keypoints for task pose"),
    ],
)
def test_what_cannot_be_trained_is_said_before_training(store_of: Any, options: dict[str, Any], message: str) -> None:
    """With what to change, at the beginning and not in a worker at the first batch."""
    with pytest.raises(UsageError, match=message):
        Samples(store_of("detect"), **({"imgsz": 64} | options))


def test_a_store_without_labels_cannot_be_trained_on(tmp_path: Path) -> None:
    """The trainers stop too. It can be validated on, and trained on where only the chosen classes are missing is an error too."""
    path = kit.empty(tmp_path)
    with pytest.raises(UsageError, match=r"labels to train on, got none in 2 pictures"):
        Samples(path, imgsz=32)
    assert len(Samples(path, imgsz=32, augment=False).draw([0, 1])[0].labels) == 0
    with pytest.raises(UsageError, match=r"got none of classes \[1\] in 1 pictures"):
        Samples(kit.flat(tmp_path, 1), imgsz=32, classes=[1])


def test_boxes_among_outlines_stand_for_themselves(tmp_path: Path) -> None:
    """A mixed set is trained on, with a warning; the box is the outline, and its mask."""
    with fastdata.create(tmp_path / "s.lmdb", names=["thing"]) as writer:
        triangle = [[[4, 4], [28, 4], [4, 28]]]
        boxes = [[4, 4, 28, 28], [0, 0, 16, 16]]
        writer.add(np.zeros((32, 32, 3), np.uint8), boxes=boxes, polygons=[triangle, None], key="a")
    for task, what in (("segment", "outlines"), ("obb", "oriented boxes or outlines")):
        with pytest.warns(UserWarning, match=f"1 of 2 labels have no {what}"):
            samples = Samples(tmp_path / "s.lmdb", imgsz=32, augment=False, task=task, mask_ratio=1)
        batch = samples.batch(*samples.draw([0]))
        assert len(batch["cls"]) == 2
        if task == "segment":
            assert [int((batch["masks"] == k).sum()) for k in (1, 2)] == pytest.approx([300 - 96, 256], abs=80)
            assert (batch["masks"][0, :16, :16] == 2).all()


def test_a_store_of_one_picture_can_be_trained_on(tmp_path: Path) -> None:
    """Its mosaic is the picture four times."""
    samples = Samples(kit.flat(tmp_path, 1), imgsz=32)
    assert len(samples) == 1
    assert samples.draw([0])[1].shape == (1, 3, 32, 32)


def test_a_path_must_not_mix_splits(tmp_path: Path) -> None:
    """Training on the validation split because nobody said otherwise is found out too late."""
    path = kit.converted(tmp_path, splits={"train": 0.5, "val": 0.5})
    with pytest.raises(UsageError, match=r"one of 'train', 'val', got a path alone: fastdata.open_store"):
        Samples(path, imgsz=64)
    assert len(Samples(kit.opened(path, "val"), imgsz=64)) == 4


def test_enlarging_what_was_shrunk_warns(tmp_path: Path) -> None:
    """The pixels were thrown away at conversion; a store that keeps the published size, or a smaller imgsz, says nothing."""
    path = kit.converted(tmp_path)
    with pytest.warns(UserWarning, match=r"imgsz 96 is larger than the stored pictures \(64 px\).*--imgsz 96"):
        Samples(path, imgsz=96)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Samples(path, imgsz=32)
        Samples(kit.flat(tmp_path), imgsz=640)


def test_the_store_stays_as_it_is(tmp_path: Path) -> None:
    """Case aug-read-twice: the same sample again after all others, labels of the store untouched and not writable."""
    path = kit.flat(tmp_path, 4)
    before = path.read_bytes()
    store = kit.opened(path)
    labels = [store.instances(i).xyxy_px.tolist() for i in range(4)]
    policy = Policy(mixup=1, copy_paste=0.5, flipud=0.5, degrees=10, hsv_h=0.1, hsv_s=0.5, hsv_v=0.5)
    samples = Samples(store, imgsz=32, policy=policy, seed=5)
    first = drawn(samples, [0])
    for epoch in range(3):
        samples.batch(*samples.draw(range(4), epoch))
    assert drawn(samples, [0]) == first
    assert [store.instances(i).xyxy_px.tolist() for i in range(4)] == labels
    assert not store.catalog.xyxy_px.flags.writeable
    assert path.read_bytes() == before


def test_the_fingerprint_is_json_and_tells_settings_apart(store_of: Any, tmp_path: Path) -> None:
    """Everything that changes a sample changes it; what does not, does not."""
    path = store_of("segment")
    options: dict[str, Any] = {"imgsz": 64}
    one = Samples(path, **options).fingerprint()
    assert json.loads(json.dumps(one)) == one == Samples(kit.opened(path), batch_size=3, on_bad="replan", **options).fingerprint()
    for change in (
        {"imgsz": 32}, {"seed": 1}, {"epochs": 9}, {"policy": Policy(mixup=0.1)}, {"fraction": 0.5}, {"classes": [0, 1]},
        {"single_cls": True}, {"augment": False}, {"rect": True}, {"task": "detect"},
    ):  # fmt: skip
        assert Samples(path, **(options | change)).fingerprint() != one, change
    assert Samples(kit.flat(tmp_path), task="detect", **options).fingerprint()["store"] != one["store"]


def test_an_id_that_is_not_there_is_an_index_error(store_of: Any) -> None:
    """Also a negative one, which NumPy would take for another picture."""
    samples = Samples(store_of("detect"), imgsz=64)
    for ids in ([10], [-1], [0, 10]):
        with pytest.raises(IndexError, match=r"id must be in 0\.\.9"):
            samples.draw(ids)


@pytest.mark.parametrize("ids", [[True, False], [0.7], [[0, 1]], ["0"]])
def test_ids_that_are_no_row_of_whole_numbers_are_refused(store_of: Any, ids: Any) -> None:
    """NumPy would make ids 1 and 0 of a mask, and 0 of 0.7."""
    samples = Samples(store_of("detect"), imgsz=64)
    with pytest.raises(UsageError, match="ids must be whole numbers in one row, got"):
        samples.draw(ids)
    assert len(samples.recipe([])) == 0


def test_numbers_may_be_those_of_numpy(store_of: Any) -> None:
    """As a search over settings has them; the state of a run is JSON all the same."""
    path = store_of("detect")
    options = {"imgsz": 64, "seed": 3, "epochs": 5, "stride": 32, "batch_size": 4, "single_cls": True, "rect": True}
    samples = Samples(path, **{name: np.array(value)[()] for name, value in options.items()})
    assert json.loads(json.dumps(samples.fingerprint())) == json.loads(json.dumps(Samples(path, **options).fingerprint()))


def test_a_policy_may_be_named(store_of: Any) -> None:
    """As on the command line."""
    assert Samples(store_of("detect"), imgsz=64, policy="yolov5").policy == preset("yolov5")


def test_training_on_all_splits_at_once_warns(tmp_path: Path) -> None:
    """It is allowed, and most often an oversight: what is validated on would be trained on."""
    path = kit.converted(tmp_path, images=8, splits={"train": 0.5, "val": 0.5})
    with pytest.warns(UserWarning, match="training is on all splits, 'train', 'val'; open the one that is meant"):
        assert len(Samples(fastdata.open_store(path), imgsz=64)) == 8
