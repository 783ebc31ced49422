"""What an Ultralytics trainer sees as its loader and its dataset (8.4.190), over ``fastdata.Loader`` and ``fastdata.Samples``.

What it touches is little, and all of it is here: on the loader ``len``, iteration, ``dataset``, ``sampler``, ``batch_size``,
``drop_last``, ``num_workers``, ``reset`` and ``close``; on the dataset ``len``, ``labels``, ``im_files``, ``batch_size``,
``rect``, ``batch_shapes``, ``mosaic`` and ``close_mosaic``. It calls ``iter`` twice an epoch, so an iterator does nothing before
its first batch.

The epoch is the trainer's own, read when the first batch of an iteration is asked for. So it is right after a resume, when an
epoch is done again, and however late the trainer tells a sampler; and mosaic closes at that epoch in every thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.order import EpochOrder, exact_batches, rank_positions
from fastdata.loader import Loader
from fastdata.samples import Samples

Clock = Callable[[], tuple[int, int | None]]
"""Says which epoch it is, from 0, and how many there will be; ``None`` where that has no meaning, as in validation."""


class TrainerDataset:
    """The pictures of one use of a store, as the trainer's own code looks at a dataset.

    Args:
        samples: What is trained or validated on.
    """

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.labels = samples.labels
        """Sequence of ``{"cls": (n, 1), "bboxes": (n, 4) xywh_norm}``: for the label plots, class weights, memory estimate."""
        self.batch_size = samples.batch_size
        self.rect = samples.rect
        self.mosaic = samples.augment and samples.policy.mosaic > 0
        """Set to ``False`` by the trainer when it closes mosaic; ``close_mosaic`` is what counts."""
        self.closed = False
        """Whether the trainer has closed mosaic."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def im_files(self) -> list[str]:
        """The picture's path in its dataset, for each id."""
        return self.samples.im_files

    @property
    def batch_shapes(self) -> npt.NDArray[np.int64] | None:
        """(batches, 2) height and width when ``rect``."""
        return self.samples.batch_shapes

    def close_mosaic(self, hyp: Any = None) -> None:
        """Let mosaic, MixUp, CutMix and Copy-Paste rest from the next epoch on, also where its number alone would not say so.

        Args:
            hyp: The trainer's arguments, which say nothing that is not known.
        """
        self.mosaic, self.closed = False, True


class TrainerSampler:
    """The ids of a rank in the order of its batches. The trainer asks for its length, and lists it in validation."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.epoch = 0

    def __len__(self) -> int:
        return sum(1 for _ in self._positions())

    def __iter__(self) -> Iterator[int]:
        loader = self._loader
        order = EpochOrder(len(loader.samples), loader.samples.seed, self.epoch, loader.shuffle)
        return iter(order.at(np.fromiter(self._positions(), np.int64)).tolist())

    def _positions(self) -> Iterator[int]:
        loader = self._loader
        n, rank, world_size = len(loader.samples), loader.rank, loader.world_size
        if loader.exact:
            for batch in exact_batches(n, loader.batch_size, rank, world_size):
                yield from batch
        else:
            yield from rank_positions(n, rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Take note: the order of the epoch is computed, and which one it is the loader asks the trainer itself."""
        self.epoch = epoch


class TrainerLoader:
    """The batches of a trainer or validator.

    Args:
        samples: What is trained or validated on.
        batch_size: Pictures a batch, for this rank.
        clock: Which epoch it is.
        rank: 0..world_size - 1.
        world_size: How many processes share an epoch.
        drop_last: Leave out a last batch that is not full.
        threads: How many make batches; as many as this rank may use when ``None``.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        clock: Clock,
        *,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        threads: int | None = None,
    ) -> None:
        self.dataset = TrainerDataset(samples)
        self.batch_size, self.drop_last = batch_size, drop_last
        self._clock = clock
        self._loader = Loader(
            samples,
            batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=samples.augment and not samples.shapes_differ,
            drop_last=drop_last,
            threads=threads,
            epoch_of=self._epoch,
        )
        self.sampler = TrainerSampler(self._loader)
        self.num_workers = self._loader.threads

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
        return iter(self._loader)

    def reset(self) -> None:
        """Forget what was made ahead."""
        self._loader.reset()

    def close(self) -> None:
        """End the threads and free the memory for pictures."""
        self._loader.close()
