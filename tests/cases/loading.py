"""Carry out the cases about reading samples: twice, in worker processes, and on several ranks."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from label_kit import Shot, Thing, write

from cases.checks import Outcome
from fastdata.augment.order import epoch_order
from fastdata.augment.policy import Policy, preset
from fastdata.augment.recipe import FILL, differences
from fastdata.catalog import COLUMNS
from fastdata.dataset import YoloDataset
from fastdata.samples import Samples
from fastdata.store.read import Store, open_store

READ_TWICE = {
    "labels_after_reading": "equal to labels",
    "store_bytes_after_reading": "unchanged",
    "same_seed_epoch_index": "equal pixels and labels",
    "stored_arrays": "read-only",
}
"""What a case of reading twice expects beside the conversion, and the only answers that are known."""


def read_twice_complaints(step: dict[str, Any], expect: dict[str, Any], outcome: Outcome) -> list[str]:
    """Take one sample twice and all others in between, and look at it, at the store and at what is in memory."""
    wrong = [
        f"the runner must know how {name} can be {expect[name]!r}" for name, said in READ_TWICE.items() if expect[name] != said
    ]
    numbers = dict(step["augment"])
    imgsz = numbers.pop("imgsz")
    before = _hashes(outcome.out)
    with open_store(outcome.out, outcome.split) as store:
        stored = [store.instances(i) for i in range(len(store))]
        copies = [{name: getattr(one, name).copy() for name in one.__dataclass_fields__} for one in stored]
        samples = Samples(store, policy=Policy(**numbers), imgsz=imgsz, stride=1, seed=step["seed"])
        number = step["read_index_twice"]
        drawn = [samples.draw([i], step["epoch"]) for i in (number, *range(len(samples)), number)]
        (recipe, image), (again, image_again) = drawn[0], drawn[-1]
        wrong += [f"{name} of the sample must be the same when it is taken again" for name in differences(recipe, again)]
        if not np.array_equal(image, image_again):
            wrong.append("the pixels of the sample must be the same when it is taken again")
        if all(np.array_equal(image, other) for _, other in drawn[1:-1]):
            wrong.append("the samples must not all be the same")
        for i, (one, copy) in enumerate(zip(stored, copies, strict=True)):
            moved = [name for name, was in copy.items() if getattr(one, name).tobytes() != was.tobytes()]
            wrong += [f"{name} of picture {i} must be as stored after reading" for name in moved]
        wrong += [f"{name} must be read-only" for name in COLUMNS if store.catalog.column(name).flags.writeable]
        if store.read(0).flags.writeable:
            wrong.append("stored bytes must be read-only")
    if _hashes(outcome.out) != before:
        wrong.append("the bytes of the store must be the same after reading")
    return wrong


def _hashes(out: Path) -> dict[str, str]:
    files = [out] if out.is_file() else sorted(out.iterdir())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run_mosaic_schedule(do: dict[str, Any], expect: dict[str, Any], folder: Path) -> None:
    """Train on flat pictures in worker processes, and count the colours of every sample of every epoch."""
    assert do["runs"] == ["same loader for all epochs"]
    h, w = do["image_size"]
    colours = np.array([[20 * i + 5, 250 - 25 * i, 60 + 23 * i] for i in range(do["flat_images"])], np.uint8)
    shots = [
        Shot(np.broadcast_to(colour, (h, w, 3)).copy(), [Thing(0, (4.0, 6.0, w - 6.0, h - 3.0))]) for colour in colours
    ]
    # No warp: each pixel is one of a picture or the fill. Close to the last epochs, mosaic alone decides.
    policy = Policy(
        **preset("none").as_dict() | {name: do[name] for name in ("mosaic", "mixup", "close_mosaic")}
    )
    with open_store(write(folder / "flat.lmdb", shots, task="detect")) as store:
        for method in do["start_methods"]:
            dataset = YoloDataset(
                store, policy=policy, imgsz=do["imgsz"], batch_size=do["batch"], epochs=do["epochs"], stride=1, seed=0
            )
            seen = [list(_colours_and_labels(batches)) for batches in _epochs(dataset, do, method)]
            assert [len(samples) for samples in seen] == [do["flat_images"]] * do["epochs"]
            mixed = [any(count > 1 for count, _ in samples) for samples in seen]
            assert mixed == expect["mosaic_by_epoch"], f"{method}: {mixed}"
            assert expect["before_close"] == {"some_samples_with_more_than_one_colour": mixed[0]}
            after = expect["after_close"]
            for samples, is_mixed in zip(seen, expect["mosaic_by_epoch"], strict=True):
                if not is_mixed:
                    assert max(count for count, _ in samples) <= after["colours_per_sample_max"], f"{method}: {samples}"
                    assert {labels for _, labels in samples} == {after["labels_per_sample"]}, f"{method}: {samples}"


def _colours_and_labels(batches: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield for each sample how many colours and how many labels it has."""
    for batch in batches:
        for k, image in enumerate(batch["img"].numpy()):
            yield len(_colours(image)), int((batch["batch_idx"] == k).sum())


def _colours(image: npt.NDArray[np.uint8]) -> set[tuple[int, ...]]:
    """The colours of a (3, H, W) picture but for the fill."""
    return {tuple(colour) for colour in np.unique(image.reshape(3, -1), axis=1).T.tolist()} - {(FILL, FILL, FILL)}


def _epochs(dataset: YoloDataset, do: dict[str, Any], method: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the batches of each epoch from one loader with workers that stay alive."""
    loader = _loader(dataset, dataset.sampler(), do, multiprocessing_context=method, persistent_workers=do["persistent_workers"])
    for _ in range(do["epochs"]):
        yield list(loader)
    _end(loader)


def _loader(dataset: YoloDataset, sampler: Any, do: dict[str, Any], **more: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, batch_size=do["batch"], sampler=sampler, collate_fn=dataset.collate_fn, num_workers=do["workers"],
        prefetch_factor=do["prefetch_factor"], **more,
    )  # fmt: skip


def _end(loader: Any) -> None:
    """End the workers of a loader that keeps them, now and not at some later collection."""
    loader._iterator = None
    gc.collect()


def run_sampler(do: dict[str, Any], expect: dict[str, Any], folder: Path) -> None:
    """Iterate epochs through a real loader on each rank, with and without ``set_epoch``, and write down the ids."""
    thing = Thing(0, (1.0, 1.0, 7.0, 7.0))
    shots = [Shot(np.full((8, 8, 3), 9 * i, np.uint8), [thing], key=f"{i}.png") for i in range(do["length"])]
    assert expect["also_when_set_epoch_is_never_called"] == (False in do["set_epoch_called"])
    with open_store(write(folder / "order.lmdb", shots, task="detect")) as store:
        runs = [_ids_of_ranks(store, do, is_called) for is_called in do["set_epoch_called"]]
        assert all(run == runs[0] for run in runs), "the order must not depend on whether set_epoch is called"
        full = runs[0]
        for epoch in range(do["epochs"]):
            parts = [rank[epoch] for rank in full]
            assert {len(part) for part in parts} == {expect["per_rank_per_epoch"]}
            ids = [i for part in parts for i in part]
            assert len(set(ids)) == expect["each_epoch"]["union"]
            assert len(ids) - len(set(ids)) == expect["each_epoch"]["overlap"]
            if expect["ranks_agree_on_order"]:
                one_order = np.stack(parts, axis=1).reshape(-1).tolist()
                assert one_order == epoch_order(do["length"], do["seed"], epoch).tolist()
        assert expect["orders_of_epochs"] == "all different"
        assert len({tuple(rank[epoch]) for rank in full for epoch in range(do["epochs"])}) == do["world"] * do["epochs"]
        assert expect["started_at_epoch_2"] == "same order as epoch 2 of a full run"
        for start in (_set_epoch, _load_epoch):
            for rank in range(do["world"]):
                dataset = _dataset(store, do)
                sampler = dataset.sampler(rank, do["world"])
                start(sampler, do, 2)
                assert _ids(_loader(dataset, sampler, do)) == full[rank][2]


def _set_epoch(sampler: Any, do: dict[str, Any], epoch: int) -> None:
    sampler.set_epoch(epoch)


def _load_epoch(sampler: Any, do: dict[str, Any], epoch: int) -> None:
    sampler.load_state_dict(sampler.state_dict() | {"epoch": epoch, "position": 0})


def _dataset(store: Store, do: dict[str, Any]) -> YoloDataset:
    return YoloDataset(store, policy=preset("none"), imgsz=8, stride=1, seed=do["seed"], batch_size=do["batch"])


def _ids_of_ranks(store: Store, do: dict[str, Any], is_called: bool) -> list[list[list[int]]]:
    """Return the ids of each rank in each epoch."""
    out = []
    for rank in range(do["world"]):
        dataset = _dataset(store, do)
        sampler = dataset.sampler(rank, do["world"])
        loader = _loader(dataset, sampler, do, persistent_workers=True)
        epochs = []
        for epoch in range(do["epochs"]):
            if is_called:
                sampler.set_epoch(epoch)
            epochs.append(_ids(loader))
        _end(loader)
        out.append(epochs)
    return out


def _ids(loader: Any) -> list[int]:
    return [int(Path(file).stem) for batch in loader for file in batch["im_file"]]


RUNS: dict[str, Callable[[dict[str, Any], dict[str, Any], Path], None]] = {
    "mosaic_schedule": run_mosaic_schedule, "sampler": run_sampler,
}  # fmt: skip
"""By the word of the case."""
