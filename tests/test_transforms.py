"""A user's own Compose: boxes stay on their objects, and chance stays a function of the sample."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import training_kit as kit
from torch.utils.data import DataLoader

from fastdata.augment.policy import PRESETS
from fastdata.dataset import YoloDataset
from fastdata.errors import UsageError
from fastdata.sampler import Index
from fastdata.samples import Samples

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it looks for a newer version on the network when it is imported
import albumentations as A

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later

NONE = PRESETS["none"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight flat pictures of 32 x 64."""
    return kit.flat(tmp_path_factory.mktemp("transforms"), size_hw=(32, 64))


def samples_of(path: Path, transforms: Any, **options: Any) -> Samples:
    """Letterboxed pictures of 64 x 64, which the policy leaves alone: the picture is in rows 16 to 48."""
    return Samples(path, **({"imgsz": 64, "policy": NONE, "transforms": transforms} | options))


@pytest.mark.parametrize("flip", [A.HorizontalFlip(p=1), A.VerticalFlip(p=1), A.Transpose(p=1), A.RandomRotate90(p=1)])
def test_a_box_is_where_its_object_is(tmp_path: Path, flip: Any) -> None:
    """Found again in the pixels, for a Compose without ``bbox_params``: these are set for it."""
    import fastdata

    picture = np.zeros((64, 64, 3), np.uint8)
    picture[4:20, 40:60] = 255
    with fastdata.create(tmp_path / "s.lmdb", names=["a", "b"]) as writer:
        writer.add(picture, boxes=[[40, 4, 60, 20], [0, 0, 64, 64]], classes=[1, 0])
    samples = samples_of(tmp_path / "s.lmdb", A.Compose([flip]))
    recipe, images = samples.draw([0])
    ys, xs = np.nonzero(images[0, 0] > 127)
    assert recipe.labels.cls.tolist() == [1, 0]
    assert recipe.labels.xyxy_px[0].tolist() == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] != [40, 4, 60, 20]
    assert recipe.labels.xyxy_px[1].tolist() == [0, 0, 64, 64]
    assert recipe.labels.instance.tolist() == [0, 1]


def test_a_box_that_is_cut_off_takes_its_class_along(path: Path) -> None:
    """Crop and enlarge a corner without the object: no label is left, and the next picture's are its own."""
    corner = A.Compose([A.Crop(0, 0, 14, 14), A.Resize(64, 64)])
    recipe, _ = samples_of(path, corner).draw([0, 1])
    assert len(recipe.labels) == 0
    assert recipe.labels.offsets.tolist() == [0, 0, 0]
    half = A.Compose([A.Crop(0, 0, 32, 64), A.Resize(64, 64)])
    recipe, _ = samples_of(path, half).draw([0, 1])
    assert recipe.labels.cls.tolist() == [0, 1]
    np.testing.assert_allclose(recipe.labels.xyxy_px, [[32, 24, 64, 40]] * 2, atol=1e-4)


def test_limits_of_the_users_own_box_parameters_hold(path: Path) -> None:
    """What he says about boxes that are too small; the form of boxes is ours, whatever he wrote."""
    params = A.BboxParams("yolo", label_fields=["his"], min_visibility=0.9)
    half = A.Compose([A.Crop(0, 0, 32, 64), A.Resize(64, 64)], bbox_params=params)
    assert len(samples_of(path, half).draw([0])[0].labels) == 0
    whole = A.Compose([A.HorizontalFlip(p=1)], bbox_params=params)
    assert len(samples_of(path, whole).draw([0])[0].labels) == 1
    assert half.processors["bboxes"].params.label_fields == ["his"]


@pytest.mark.filterwarnings("ignore:Got processor for:UserWarning")  # the library finds them useless
@pytest.mark.parametrize("step", [A.InvertImg(p=1), A.HorizontalFlip(p=1)])
def test_what_the_users_own_says_of_labels_is_not_asked_for(path: Path, step: Any) -> None:
    """He fills in fields for boxes and keypoints by himself elsewhere, also where the transforms only change colours."""
    boxes, points = A.BboxParams("yolo", label_fields=["his"]), A.KeypointParams("xy", label_fields=["other"])
    recipe, images = samples_of(path, A.Compose([step], bbox_params=boxes, keypoint_params=points)).draw([0])
    assert len(recipe.labels) == 1
    assert (images == samples_of(path, A.Compose([step])).draw([0])[1]).all()


def test_rounding_outside_the_frame_is_cut_first(path: Path) -> None:
    """ "x_max 1.0025": the library refuses a box that rounding put a hair outside (albumentations#459)."""
    samples = samples_of(path, A.Compose([A.HorizontalFlip(p=1)]))
    recipe = Samples(path, imgsz=64, policy=NONE).recipe([0])
    over = copy.deepcopy(recipe)
    over.labels.xyxy_px[0] = [-1e-4, 8, 64.0002, 65]
    assert samples.transforms is not None
    made = samples.transforms(over, np.zeros((1, 3, 64, 64), np.uint8), seed=0, epoch=0)
    assert made.labels.xyxy_px.tolist() == [[0, 8, 64, 64]]


def test_a_box_that_rounding_closes_is_none(path: Path) -> None:
    """Numbers lie farther apart on the other side of the picture: a hair's breadth becomes nothing."""
    samples = samples_of(path, A.Compose([A.HorizontalFlip(p=1)]))
    thin = copy.deepcopy(Samples(path, imgsz=64, policy=NONE).recipe([0]))
    thin.labels.xyxy_px[0] = [10, 8, np.nextafter(np.float32(10), np.float32(11)), 28]
    assert samples.transforms is not None
    made = samples.transforms(thin, np.zeros((1, 3, 64, 64), np.uint8), seed=0, epoch=0)
    assert made.labels.offsets.tolist() == [0, 0]


CHANCE = A.Compose(
    [A.RandomBrightnessContrast(p=0.7), A.HorizontalFlip(p=0.5), A.GaussNoise(p=0.5), A.Affine(rotate=(-20, 20), p=0.8)]
)


def test_the_same_sample_is_transformed_alike_in_any_order_thread_and_process(path: Path) -> None:
    """Seed, epoch, id and draw decide; and each of them does."""
    samples = samples_of(path, CHANCE, seed=3)
    ids = range(8)
    want = [kit.digest(samples.batch(*samples.draw([i], 1))) for i in ids]
    assert [kit.digest(samples.batch(*samples.draw([i], 1))) for i in reversed(ids)][::-1] == want
    together = YoloDataset(path, imgsz=64, policy=NONE, transforms=CHANCE, seed=3).__getitems__([Index(i, 1) for i in ids])
    assert [kit.digest(samples.batch(*samples.draw([i], 1))) for i in ids] == want
    copied = pickle.loads(pickle.dumps(samples))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: kit.digest(copied.batch(*copied.draw([i], 1))), [*ids] * 4)) == want * 4
    assert kit.digest(together.batch) == kit.digest(samples.batch(*samples.draw(ids, 1)))
    assert len({*want, *(kit.digest(samples.batch(*samples.draw([i], 2))) for i in ids)}) == 16
    other = samples_of(path, CHANCE, seed=4)
    assert kit.digest(other.batch(*other.draw(ids, 1))) != kit.digest(together.batch)
    assert kit.digest(samples.batch(*samples.draw([0], 1, 1))) != want[0]


def test_workers_transform_alike(path: Path) -> None:
    """The library seeds itself anew in each process; we do not let that count."""
    ds = YoloDataset(path, imgsz=64, policy=NONE, transforms=CHANCE)
    passes = []
    for workers in (0, 2):
        loader = DataLoader(ds, 2, sampler=ds.sampler(), collate_fn=ds.collate_fn, num_workers=workers)  # type: ignore[arg-type]
        passes.append([kit.digest(batch) for batch in loader])
    assert passes[0] == passes[1]


def test_transforms_of_equal_probability_fire_apart(path: Path) -> None:
    """With one seed for each of them they would always fire together."""
    both = A.Compose([A.InvertImg(p=0.5), A.Solarize(threshold_range=(0, 0), p=0.5), A.Crop(0, 0, 64, 64, p=1)])
    samples = samples_of(path, both)
    plain = Samples(path, imgsz=64, policy=NONE).draw([0])[1]
    # Each turns values around; a picture comes out turned if exactly one of them fired.
    turned = [bool((samples.draw([0], epoch)[1] == 255 - plain).all()) for epoch in range(40)]
    assert 5 < sum(turned) < 35


@pytest.mark.parametrize("step", [A.HorizontalFlip(p=0.5), A.InvertImg(p=0.5)])
def test_the_users_compose_is_left_as_it_was(path: Path, step: Any) -> None:
    """It may be in use elsewhere."""
    mine = A.Compose([step])
    mine.set_random_seed(1)
    before = mine.random_generator.bit_generator.state
    samples_of(path, mine).draw(range(8))
    assert mine.random_generator.bit_generator.state == before
    assert mine.processors == {}


@pytest.mark.parametrize("task", ["segment", "pose", "obb"])
def test_what_moves_pixels_is_refused_where_labels_cannot_follow(tmp_path: Path, task: Any) -> None:
    """By name and with the fix; what only changes colours is welcome."""
    store = kit.converted(tmp_path, task, 4)
    nested = A.Compose([A.Blur(p=1), A.OneOf([A.HorizontalFlip(), A.Sequential([A.Affine()])])])
    with pytest.raises(UsageError, match=f"for task {task}.*HorizontalFlip, Affine; the policy has"):
        Samples(store, imgsz=64, transforms=nested)
    plain, colour = (Samples(store, imgsz=64, transforms=t) for t in (None, A.Compose([A.InvertImg(p=1)])))
    (recipe, images), (same, inverted) = plain.draw([0, 1]), colour.draw([0, 1])
    np.testing.assert_array_equal(inverted, 255 - images)
    assert recipe.labels.xyxy_px.tolist() == same.labels.xyxy_px.tolist()


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([A.Blur()], "transforms must be an albumentations.Compose, got list; write"),
        (A.Blur(), "got Blur"),
        (lambda image: image, "got function"),
    ],
)
def test_something_else_than_a_compose_is_refused(path: Path, transforms: Any, message: str) -> None:
    """At the beginning."""
    with pytest.raises(UsageError, match=message):
        samples_of(path, transforms)


@pytest.mark.parametrize("step", [A.Resize(32, 32), A.Normalize()])
def test_another_size_or_type_is_refused(path: Path, step: Any) -> None:
    """A batch is uint8 of one size; the message says what to leave out."""
    with pytest.raises(UsageError, match=r"uint8 pictures of the size that they get, \(64, 64, 3\), got .*; leave out"):
        samples_of(path, A.Compose([step])).draw([0])


def test_the_fingerprint_knows_the_transforms(path: Path) -> None:
    """And calls the same ones the same, in any process."""
    one, same, other = (samples_of(path, A.Compose([A.Blur(p=p)])).fingerprint()["transforms"] for p in (0.5, 0.5, 0.6))
    assert one == same != other
    assert samples_of(path, None).fingerprint()["transforms"] is None


def test_a_missing_package_is_named_with_the_line_that_installs_it(path: Path) -> None:
    """Instead of an import error from the depths."""
    code = (
        "import sys\n"
        "sys.modules['albumentations'] = None\n"
        "from fastdata.transforms import Transforms\n"
        "try:\n    Transforms(object(), 'detect')\n"
        "except ImportError as e:\n    print(type(e).__name__, e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("MissingExtra albumentations is needed to apply transforms; install it with: pip install")


def test_a_compose_that_is_to_be_replayed_is_refused(path: Path) -> None:
    """It hands out more than it is told to, and nothing here needs a replay."""
    with pytest.raises(UsageError, match=r"transforms must be a plain albumentations\.Compose, got a ReplayCompose"):
        samples_of(path, A.ReplayCompose([A.Blur(p=0.5)]))
