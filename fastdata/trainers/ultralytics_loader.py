"""What an Ultralytics trainer sees as its dataset and its loader (8.4.190), over ``YoloDataset`` and ``Loader``.

What it touches of the loader is little, and all of it is here: ``len``, iteration, ``dataset``, ``sampler``, ``batch_size``,
``drop_last``, ``num_workers``, ``reset`` and ``close``. It calls ``iter`` twice an epoch, so an iterator does nothing before its
first batch.

The epoch is the trainer's own, read when the first batch of an iteration is asked for. So it is right after a resume, when an
epoch is done again, and however late the trainer tells a sampler; and mosaic closes at that epoch in every thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastdata.dataset import YoloDataset
from fastdata.gpu_maker import is_out_of_memory
from fastdata.loader import Loader
from fastdata.trainers.ultralytics_device import OUT_OF_MEMORY, prefetch_of

Clock = Callable[[], tuple[int, int | None]]
"""Says which epoch it is, from 0, and how many there will be; ``None`` where that has no meaning, as in validation."""


class TrainerDataset(YoloDataset):
    """A dataset that remembers whether the trainer has closed mosaic."""

    closed = False

    def close_mosaic(self, hyp: Any = None) -> None:
        """Let mosaic, MixUp, CutMix and Copy-Paste rest from the next epoch on, also where its number alone would not say so."""
        super().close_mosaic(hyp)
        self.closed = True


class TrainerLoader:
    """The batches of a trainer or validator.

    Args:
        dataset: What is trained or validated on.
        clock: Which epoch it is.
        rank: 0..world_size - 1.
        world_size: How many processes share an epoch.
        drop_last: Leave out a last batch that is not full.
        threads: How many make batches.
        on_gpu: Options of ``Loader`` that say where batches are made; none: by the processor.
    """

    def __init__(
        self,
        dataset: TrainerDataset,
        clock: Clock,
        *,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        threads: int = 1,
        on_gpu: Mapping[str, Any] | None = None,
    ) -> None:
        self.dataset, self.batch_size, self.drop_last = dataset, dataset.batch_size, drop_last
        samples = dataset.samples
        self._clock = clock
        self._loader = Loader(
            samples,
            dataset.batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=samples.augment and not samples.shapes_differ,
            drop_last=drop_last,
            threads=threads,
            prefetch=prefetch_of(threads, on_gpu=bool(on_gpu)),
            epoch_of=self._epoch,
            **(on_gpu or {}),
        )
        self.sampler = dataset.sampler(rank, world_size)
        """The ids of this rank. Only asked for its length, and in validation for the ids: the loader knows its own order."""
        self.num_workers = self._loader.threads
        """Threads; no process is started."""
        self.has_kept = False
        """Whether pictures were kept in GPU memory when this was closed."""

    def _epoch(self) -> int:
        """Return the epoch that begins, and let its number decide whether mosaic is closed."""
        epoch, epochs = self._clock()
        samples = self.dataset.samples
        if self.dataset.closed:  # stays so, also where a training by time finds that it will have more epochs
            end = epoch + samples.policy.close_mosaic
            epochs = end if epochs is None else min(epochs, end)
        samples.epochs = epochs
        return epoch

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches; in training, the news that there was no memory for one in its place, see :data:`OUT_OF_MEMORY`."""
        batches = iter(self._loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as err:
                if not (self.dataset.samples.augment and is_out_of_memory(err)):
                    raise
                batch = {OUT_OF_MEMORY: err}
            yield batch
            del batch  # its memory goes when the trainer lets it go, not when there is another one

    @property
    def residency(self) -> str:
        """Where the pictures are read from, see ``Loader``; ``host`` where the processor draws."""
        return self._loader.residency

    def reset(self) -> None:
        """Forget what was made ahead."""
        self._loader.reset()

    def release(self) -> int:
        """Give back the GPU memory of the pictures, and keep none there from now on; returns how much that was, bytes."""
        return self._loader.release()

    def close(self) -> None:
        """End the threads and free the memory for pictures."""
        samples, residency = self.dataset.samples, self.residency
        windowed = samples.augment and samples.policy.window is not None
        self.has_kept = residency == "device" or (residency == "decode" and windowed)
        self._loader.close()
