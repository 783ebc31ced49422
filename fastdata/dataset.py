"""The drop-in dataset: a torch map-style ``Dataset`` over a store.

    ds = fastdata.YoloDataset(store, imgsz=640)
    loader = DataLoader(ds, batch_size=16, sampler=ds.sampler(), collate_fn=ds.collate_fn, num_workers=2)

It needs no torch until a sample is taken, holds no handle, and may be sent to any process by fork, spawn or forkserver.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fastdata.batch import join_samples, take_sample
from fastdata.errors import UsageError
from fastdata.sampler import Index, Sampler
from fastdata.samples import Samples
from fastdata.selection import LabelRows
from fastdata.store.read import Store

I64 = npt.NDArray[np.int64]
Sample = dict[str, Any]


class WholeBatch(Sequence[Sample]):
    """The samples of a batch that was drawn at once. A loader sees a sequence; ``collate_fn`` takes the batch out of it."""

    def __init__(self, batch: dict[str, Any], overlap_mask: bool) -> None:
        self.batch = batch
        self._overlap_mask = overlap_mask

    def __len__(self) -> int:
        return len(self.batch["im_file"])

    @overload
    def __getitem__(self, i: int) -> Sample: ...
    @overload
    def __getitem__(self, i: slice) -> list[Sample]: ...
    def __getitem__(self, i: int | slice) -> Sample | list[Sample]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample must be in 0..{len(self) - 1}, got {i}")
        return take_sample(self.batch, i % len(self), overlap_mask=self._overlap_mask)


class YoloDataset:
    """The samples of one use of a store, by id.

    Take ids from :meth:`sampler`: they carry their epoch into every worker. With plain ids, say :meth:`set_epoch` before each
    pass; it reaches workers that are alive. With neither, the n-th time that an id is taken counts as epoch n, with a warning.

    Args:
        store: An opened store or the path of one.
        **options: Of :class:`fastdata.samples.Samples`.

    Raises:
        UsageError: An argument breaks its rule, or the store does not have what the task needs.
    """

    def __init__(self, store: Store | str | os.PathLike[str], **options: Any) -> None:
        self.samples = Samples(store, **options)
        self._shared = _Shared(len(self.samples))
        self._open_ended = self.samples.epochs is None
        self._settled_in = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return repr(self.samples).replace("Samples(", "YoloDataset(", 1)

    def __getitem__(self, i: int) -> Sample:
        """Return one sample: a batch of one without its first axis, ``batch_idx`` zeros.

        Raises:
            IndexError: ``i`` is not in -n..n - 1.
            BadRecord: A record is damaged, and ``on_bad`` is ``raise`` or nothing is trained.
        """
        return self.__getitems__([i])[0]

    def __getitems__(self, ids: Sequence[int]) -> WholeBatch:
        """Return samples that are planned and drawn at once; a torch loader asks for each batch this way.

        Raises:
            As :meth:`__getitem__`.
        """
        if self._settled_in != os.getpid():  # and not "once": a worker that was forked has all that its parent had
            _take_one_thread()
            self._settled_in = os.getpid()
        tags = [self._tag(i) for i in ids]
        overlap = self.samples.overlap_mask
        drawn: dict[int, Sample] = {}
        for epoch in dict.fromkeys(epoch for _, epoch, _ in tags):  # more than one only if a loader's batch spans epochs
            where = [k for k, tag in enumerate(tags) if tag[1] == epoch]
            recipe, images = self.samples.draw([tags[k][0] for k in where], epoch, [tags[k][2] for k in where])
            batch = self.samples.batch(recipe, images)
            if len(where) == len(tags):
                return WholeBatch(batch, overlap)
            drawn |= {k: take_sample(batch, j, overlap_mask=overlap) for j, k in enumerate(where)}
        return WholeBatch(join_samples([drawn[k] for k in range(len(tags))]), overlap)

    @staticmethod
    def collate_fn(samples: Sequence[Sample]) -> dict[str, Any]:
        """Return the batch of some samples, see :func:`fastdata.batch.make_batch`; of one that was drawn at once, as it is."""
        return samples.batch if isinstance(samples, WholeBatch) else join_samples(list(samples))

    def sampler(self, rank: int = 0, world_size: int = 1, shuffle: bool | None = None) -> Sampler:
        """Return the ids of a rank, epoch after epoch, for ``DataLoader(sampler=...)``.

        Args:
            rank: 0..world_size - 1.
            world_size: Number of ranks.
            shuffle: ``None``: in training, unless batches have shapes of their own.

        Raises:
            UsageError: Batches have shapes of their own, and ids would not come in order; or a number breaks its rule.
        """
        s = self.samples
        if s.augment and s.shapes_differ and (shuffle or world_size > 1):
            raise UsageError(
                "training with rect must be on one rank and not shuffled, since each batch has a shape of its own, "
                f"got world_size {world_size} and shuffle {shuffle}"
            )
        shuffle = s.augment and not s.shapes_differ if shuffle is None else shuffle
        return Sampler(
            len(s), seed=s.seed, rank=rank, world_size=world_size, shuffle=shuffle, exact=not s.augment, batch_size=s.batch_size
        )

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch plain ids belong to from now on, in all workers. Ids of :meth:`sampler` know better.

        Raises:
            UsageError: It is negative.
        """
        if epoch < 0:
            raise UsageError(f"epoch must be at least 0, got {epoch}")
        self._shared.epoch.value = epoch

    @property
    def mosaic(self) -> bool:
        """Whether samples are mixed before the last epochs; trainers set it to ``False`` where those begin."""
        return self.samples.policy.mosaic > 0 and not self.samples.rect and not self._shared.closed.value

    @mosaic.setter
    def mosaic(self, on: bool) -> None:
        self._shared.closed.value = not on

    def close_mosaic(self, hyp: Any = None) -> None:
        """Mix nothing from now on, in all workers.

        Of use only where ``epochs`` was not given. Else each sample's epoch decides, also of those that were fetched ahead, and
        this changes nothing.

        Args:
            hyp: What trainers hand over; not looked at.
        """
        self._shared.closed.value = True

    @property
    def labels(self) -> LabelRows:
        """See :attr:`fastdata.samples.Samples.labels`."""
        return self.samples.labels

    @property
    def im_files(self) -> list[str]:
        """See :attr:`fastdata.samples.Samples.im_files`."""
        return self.samples.im_files

    @property
    def batch_size(self) -> int:
        """Pictures a batch, as given."""
        return self.samples.batch_size

    @property
    def rect(self) -> bool:
        """Whether batches have shapes of their own."""
        return self.samples.rect

    @property
    def batch_shapes(self) -> I64 | None:
        """See :attr:`fastdata.samples.Samples.batch_shapes`."""
        return self.samples.batch_shapes

    def update_labels(self, include_class: Sequence[int] | None) -> None:
        """Use the labels of some classes only, of those in use; before any worker is started.

        Args:
            include_class: Their ids; ``None``: nothing changes.
        """
        if include_class is not None:
            self.samples.keep_classes(include_class)

    def _tag(self, i: int) -> tuple[int, int, int]:
        """Return id, epoch and draw."""
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"id must be in 0..{n - 1}, got {i}")
        shared = self._shared
        if self._open_ended:
            self.samples.epochs = 0 if shared.closed.value else None  # 0: every epoch is one of the last
        if isinstance(i, Index):
            return int(i), i.epoch, i.draw
        where, epoch = int(i) % n, int(shared.epoch.value)
        if epoch < 0 and self.samples.augment:
            epoch = shared.times[where]
            shared.times[where] = (epoch + 1) % (1 << 16)
            if epoch and not shared.has_warned.value:
                shared.has_warned.value = True
                warnings.warn(_NO_EPOCH, stacklevel=4)
        return where, max(epoch, 0), 0


_NO_EPOCH = (
    "ids were taken twice and carry no epoch: each time counts as one epoch more. Take them from ds.sampler(), or call "
    "ds.set_epoch(epoch) before each pass"
)


class _Shared:
    """What the process that owns a dataset and its workers both see, however these were started.

    Memory is shared over fork by inheritance and over spawn and forkserver by handing it to the process that is being started;
    any other copy of it (``pickle``, ``copy``) is on its own.
    """

    def __init__(self, n: int, epoch: int = -1, closed: bool = False) -> None:
        self.epoch = RawValue("q", epoch)
        """Of plain ids; -1: nobody said."""
        self.closed = RawValue("b", closed)
        self.has_warned = RawValue("b", False)
        self.times = RawArray("H", n)
        """How often each plain id was taken: 2 bytes each."""

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return type(self), (len(self.times), int(self.epoch.value), bool(self.closed.value))
        return _adopted, (self.epoch, self.closed, self.has_warned, self.times)


def _adopted(*parts: Any) -> _Shared:
    shared = _Shared.__new__(_Shared)
    shared.epoch, shared.closed, shared.has_warned, shared.times = parts
    return shared


def _take_one_thread() -> None:
    """Keep OpenCV to one thread in a worker of a torch loader: each worker would start one per core. torch does so itself."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        import cv2

        # Not 1: that ends OpenCV's threads, and for those that a fork left behind in the parent it would wait for ever.
        cv2.setNumThreads(0)
