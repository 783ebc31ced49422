"""The drop-in dataset under real loaders: the same bytes whatever the workers, and the right epoch in each of them."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import training_kit as kit
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Subset

from fastdata.augment.policy import Policy
from fastdata.dataset import WholeBatch, YoloDataset
from fastdata.errors import UsageError
from fastdata.render.tiles import BadRecord
from fastdata.sampler import Index, Sampler
from fastdata.samples import Samples

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later

PLAIN = Policy(hsv_h=0, hsv_s=0, hsv_v=0, close_mosaic=1)
EPOCHS = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eight flat pictures of 32 px."""
    return kit.flat(tmp_path_factory.mktemp("dataset"))


def dataset(path: Path, **options: Any) -> YoloDataset:
    """Small and quick."""
    return YoloDataset(path, **({"imgsz": 32, "policy": PLAIN, "epochs": EPOCHS, "seed": 4} | options))


def load(ds: YoloDataset, start_method: str | None = None, **options: Any) -> DataLoader[Any]:
    """A torch loader, with two workers when a start method is given."""
    if start_method:
        alive = {"multiprocessing_context": start_method, "prefetch_factor": 4, "persistent_workers": True}
        options = {"num_workers": 2} | alive | options
    return DataLoader(ds, 2, collate_fn=ds.collate_fn, **options)  # type: ignore[arg-type]


def digests(loader: DataLoader[Any]) -> list[str]:
    """Of each batch of a pass."""
    return [kit.digest(batch) for batch in loader]


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[str]]:
    """The batches of each epoch, made in this process."""
    ds = dataset(path)
    sampler = ds.sampler()
    return [digests(load(ds, sampler=sampler)) for _ in range(EPOCHS)]


class Ids:
    """The ids of a sampler, or the same without their tags: one loader for both, because starting workers is what takes time."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.plain = sampler, False

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.sampler))) if self.plain else iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


@pytest.mark.parametrize(("start_method", "workers"), [("fork", 2), ("spawn", 2), ("forkserver", 1)])
def test_workers_make_the_same_bytes_and_close_mosaic_in_time(
    path: Path, expected: list[list[str]], start_method: str, workers: int
) -> None:
    """Case aug-close-in-workers: workers that stay alive over all epochs and fetch ahead; the last epoch is plain in each.

    Afterwards the same workers, asked with plain ids, hear of the epoch that is said between two passes.
    """
    ds = dataset(path)
    ids = Ids(ds.sampler())
    loader = load(ds, start_method, sampler=ids, num_workers=workers)
    seen = [[(kit.digest(b), kit.colours_in(b["img"][0].numpy()), len(b["cls"])) for b in loader] for _ in range(EPOCHS)]
    assert [[digest for digest, _, _ in epoch] for epoch in seen] == expected
    assert max(colours for epoch in seen[:-1] for _, colours, _ in epoch) > 1
    assert {(colours, labels) for _, colours, labels in seen[-1]} == {(1, 2)}

    ids.plain = True
    alone = dataset(path)
    passes = []
    for epoch in (0, 1, 0, 2):
        ds.set_epoch(epoch)
        alone.set_epoch(epoch)
        passes.append(digests(loader))
        assert passes[-1] == digests(load(alone))
    assert passes[0] == passes[2]
    assert len({tuple(batches) for batches in passes}) == 3


def test_one_by_one_and_at_once_is_the_same(path: Path) -> None:
    """A wrapper that asks for single samples, as ConcatDataset does, gets the same batch."""
    ds = dataset(path)
    ids = [Index(i, 1) for i in (3, 0, 6)]
    whole = ds.__getitems__(ids)
    assert isinstance(whole, WholeBatch)
    single = [ds[i] for i in ids]
    assert kit.digest(ds.collate_fn(single)) == kit.digest(ds.collate_fn(whole))
    assert kit.digest(ds.collate_fn(list(whole))) == kit.digest(whole.batch)
    assert kit.digest(ds.collate_fn(whole[1:])) == kit.digest(ds.collate_fn(single[1:]))
    assert kit.digest(whole[-1]) == kit.digest(single[2])
    with pytest.raises(IndexError, match=r"0\.\.2"):
        whole[3]


def test_a_batch_may_span_epochs(path: Path) -> None:
    """A loader that never ends its sampler cuts batches where it likes; each sample keeps its own epoch."""
    ds = dataset(path)
    ids = [Index(0, 0), Index(1, 2), Index(2, 0)]
    mixed = ds.collate_fn(ds.__getitems__(ids))
    assert kit.digest(mixed) == kit.digest(ds.collate_fn([ds[i] for i in ids]))


def test_the_same_tag_gives_the_same_sample_again(path: Path) -> None:
    """Case aug-read-twice: whatever was taken in between; labels that a caller changes in place are its own."""
    ds = dataset(path)
    first = ds[Index(0, 1)]
    want = kit.digest(first)
    first["bboxes"] += 1
    first["cls"] += 1
    for i in range(8):
        ds[Index(i, 1)]
    assert kit.digest(ds[Index(0, 1)]) == want
    assert kit.digest(ds[Index(0, 1, draw=1)]) != want


def test_plain_ids_never_repeat_an_epoch_silently(path: Path) -> None:
    """The n-th time counts as epoch n, with one warning for all."""
    ds = dataset(path)
    first = [kit.digest(ds[i]) for i in range(8)]
    assert first == [kit.digest(ds[Index(i, 0)]) for i in range(8)]
    with pytest.warns(UserWarning, match="carry no epoch"):
        second = kit.digest(ds[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest = [kit.digest(ds[i]) for i in range(1, 8)]
    assert [second, *rest] == [kit.digest(ds[Index(i, 1)]) for i in range(8)]


def test_workers_that_are_started_anew_go_on_counting(path: Path) -> None:
    """Workers of a plain loader die with the epoch; what they counted does not."""
    ds = dataset(path)
    loader = load(ds, num_workers=2, multiprocessing_context="fork")
    ds._shared.has_warned.value = True  # its text would be on a worker's terminal, not here
    passes = [digests(loader) for _ in range(2)]
    assert passes == [
        [kit.digest(ds.collate_fn([ds[Index(i, e)], ds[Index(i + 1, e)]])) for i in range(0, 8, 2)] for e in range(2)
    ]


def test_saying_the_epoch_is_enough(path: Path) -> None:
    """No warning, and the same sample as long as the epoch is the same."""
    ds = dataset(path)
    ds.set_epoch(1)
    assert kit.digest(ds[0]) == kit.digest(ds[0]) == kit.digest(ds[Index(0, 1)])
    with pytest.raises(UsageError, match="epoch must be at least 0"):
        ds.set_epoch(-1)


def test_a_validation_needs_no_epoch(path: Path) -> None:
    """It has no chance: ids can be taken as often as one likes."""
    ds = dataset(path, augment=False)
    assert kit.digest(ds[0]) == kit.digest(ds[0])


def test_closing_mosaic_by_hand_reaches_workers(path: Path) -> None:
    """A trainer whose number of epochs is not known says when; ``mosaic`` is the other way that trainers say it."""
    for close in (lambda ds: ds.close_mosaic(hyp=None), lambda ds: setattr(ds, "mosaic", False)):
        ds = dataset(path, epochs=None, policy=Policy(hsv_h=0, hsv_s=0, hsv_v=0))
        loader = load(ds, "fork", sampler=ds.sampler())
        assert ds.mosaic
        assert max(kit.colours_in(image.numpy()) for batch in loader for image in batch["img"]) > 1
        close(ds)
        assert not ds.mosaic
        assert max(kit.colours_in(image.numpy()) for batch in loader for image in batch["img"]) == 1


def test_mosaic_that_was_closed_by_hand_can_be_opened_again(path: Path) -> None:
    """For a second training with the same dataset, in workers too."""
    ds = dataset(path, epochs=None)
    loader = load(ds, "fork", sampler=range(8))
    ds.set_epoch(0)
    want = digests(loader)
    ds.close_mosaic()
    assert digests(loader) != want
    ds.mosaic = True
    assert digests(loader) == want


def test_the_epoch_and_not_the_call_decides_where_the_epochs_are_known(path: Path) -> None:
    """Batches of the epoch before that were fetched ahead keep their mosaics."""
    ds = dataset(path)
    want = kit.digest(ds[Index(0, 1)])
    ds.close_mosaic(None)
    assert kit.digest(ds[Index(0, 1)]) == want


def test_a_dataset_can_be_copied(path: Path) -> None:
    """By pickle and by copy, with what was said to it; from then on they are apart."""
    ds = dataset(path)
    ds.set_epoch(1)
    for other in (pickle.loads(pickle.dumps(ds)), copy.deepcopy(ds)):
        assert kit.digest(other[0]) == kit.digest(ds[0])
        other.set_epoch(0)
        assert kit.digest(other[0]) == kit.digest(ds[Index(0, 0)]) != kit.digest(ds[0])


def test_a_worker_is_sent_neither_pixels_nor_labels(path: Path) -> None:
    """What crosses to it is the store's path, the settings and a few bytes per picture, also after everything was used."""
    ds = dataset(path)
    fresh = len(pickle.dumps(ds))
    for i in range(8):
        ds[Index(i, 0)]
    assert len(ds.labels) == len(ds.im_files) == 8
    assert len(pickle.dumps(ds)) < fresh + 16 < 3000


def test_workers_take_one_thread(path: Path) -> None:
    """Each would start as many as there are cores; also when the parent has taken a sample before."""
    ds = dataset(path)
    ds[Index(0, 0)]

    def threads(samples: Any) -> tuple[int, int]:
        import cv2

        return cv2.getNumThreads(), torch.get_num_threads()

    loader = DataLoader(ds, 2, collate_fn=threads, num_workers=1, multiprocessing_context="fork")  # type: ignore[arg-type]
    assert set(loader) == {(1, 1)}


def test_what_a_trainer_reads_is_there(path: Path) -> None:
    """Names and forms of the trainers' own dataset."""
    ds = dataset(path, batch_size=3)
    assert [row["cls"].tolist() for row in ds.labels] == [[[i % 2]] for i in range(8)]
    assert ds.im_files == [f"{i:03d}.png" for i in range(8)]
    assert (len(ds), ds.batch_size, ds.rect, ds.batch_shapes) == (8, 3, False, None)
    assert repr(ds).startswith("YoloDataset(")
    ds.update_labels(None)
    assert sum(len(row["cls"]) for row in ds.labels) == 8
    ds.update_labels([1, 7])
    assert [len(row["cls"]) for row in ds.labels] == [i % 2 for i in range(8)]
    ds.set_epoch(2)
    assert [len(ds[i]["cls"]) for i in range(8)] == [i % 2 for i in range(8)]


def test_rect_validation_through_a_loader(tmp_path: Path) -> None:
    """Each batch at its own shape, every picture once, in the order of the sampler and over ranks."""
    ds = YoloDataset(kit.converted(tmp_path, images=9), imgsz=64, augment=False, rect=True, batch_size=2)
    assert ds.batch_shapes is not None
    files: list[str] = []
    for rank in range(2):
        for batch in load(ds, sampler=ds.sampler(rank, 2)):
            files += batch["im_file"]
    assert files == ds.im_files
    shapes = [tuple(batch["img"].shape[2:]) for batch in load(ds, sampler=ds.sampler())]
    assert shapes == list(map(tuple, ds.batch_shapes.tolist()))


def test_rect_training_is_not_dealt_where_it_cannot_be(tmp_path: Path) -> None:
    """Shapes go with the order: shuffled, or every other id, no batch would fit together."""
    path = kit.converted(tmp_path, images=9, size_hw=[(32, 64), (64, 64), (64, 32)])
    ds = YoloDataset(path, imgsz=64, rect=True, batch_size=3)
    assert [int(i) for i in ds.sampler()] == list(range(9))
    for options in ({"shuffle": True}, {"world_size": 2}):
        with pytest.raises(UsageError, match="training with rect must be on one rank and not shuffled"):
            ds.sampler(**options)
    square = YoloDataset(kit.flat(tmp_path), imgsz=32, rect=True)
    assert list(square.sampler()) != list(range(8))


def test_a_subset_of_torch_works(path: Path) -> None:
    """It hands on plain ids, which is the case of ``set_epoch``."""
    ds = dataset(path)
    ds.set_epoch(0)
    part = Subset(ds, [5, 2, 7])  # type: ignore[arg-type]
    batch = next(iter(DataLoader(part, 3, collate_fn=ds.collate_fn)))
    assert batch["im_file"] == tuple(ds[i]["im_file"] for i in (5, 2, 7))


def test_ids_outside_are_index_errors(path: Path) -> None:
    """Negative ones count from the end, as in a list."""
    ds = dataset(path, augment=False)
    assert kit.digest(ds[-1]) == kit.digest(ds[7])
    for i in (8, -9):
        with pytest.raises(IndexError, match=r"0\.\.7"):
            ds[i]


def test_a_damaged_record_in_a_worker_is_named_here(tmp_path: Path) -> None:
    """The error crosses the process with the picture's key; planned around, every worker comes to the same batches."""
    path = kit.flat(tmp_path)
    kit.damage(path, 5)
    with pytest.raises(BadRecord) as caught:
        dataset(path).__getitems__([Index(5, 0)])
    # What torch does with an error in a worker; a real one that fails takes torch five seconds to end.
    wrapped = ExceptionWrapper((BadRecord, caught.value, None), "in DataLoader worker process 0")
    with pytest.raises(BadRecord, match=r"in DataLoader worker process 0[\s\S]*005\.png: entry 5"):
        wrapped.reraise()
    patient = dataset(path, on_bad="replan")
    assert digests(load(patient, "fork", sampler=patient.sampler())) == digests(load(patient, sampler=patient.sampler()))


def test_samples_and_dataset_agree(path: Path) -> None:
    """The threaded loader is built on the samples, the dataset too: one truth."""
    samples = Samples(path, imgsz=32, policy=PLAIN, epochs=EPOCHS, seed=4)
    ds = dataset(path)
    ids = [1, 6]
    assert kit.digest(samples.batch(*samples.draw(ids, 1))) == kit.digest(ds.__getitems__([Index(i, 1) for i in ids]).batch)


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """A fork while torch's threads run in the parent is not what is tested here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
