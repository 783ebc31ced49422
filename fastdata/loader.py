"""Batches for training and validation, made by threads of this process.

    for batch in Loader(store, batch_size=16, seed=0):
        batch["img"]  # (B, 3, H, W) uint8
    for batch in Loader(store, batch_size=16, seed=0, device="cuda"):
        batch["img"]  # drawn by the GPU, where it and all labels are

What a batch holds is a function of the settings, the epoch and its place in the order: the number of threads and the prefetch
decide when it is there, nothing else; nor does it matter where the store's pictures are read from.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import cv2
import numpy as np
import numpy.typing as npt

from fastdata.augment.order import EpochOrder, exact_batches, rank_positions
from fastdata.augment.recipe import Recipe
from fastdata.buffers import Buffers
from fastdata.errors import DataError, FastdataError, MissingExtra, StoreError, UsageError
from fastdata.gpu_maker import GpuMaker, Placement, Plans, device_of, is_out_of_memory
from fastdata.host import usable_cores
from fastdata.prefetch import Prefetch
from fastdata.resume import place_of, state_of
from fastdata.samples import Samples
from fastdata.store.read import Store

Batch = dict[str, Any]
I64 = npt.NDArray[np.int64]

GPU_THREADS, GPU_AHEAD = 8, 8
"""Threads that make batches for a GPU where nobody says how many, at most, and batches that may be ready: on an H200's host,
streaming gathers 15,000 pictures of 640 px a second with 8 threads and no more with 16; 8 batches of 128 take 1.3 GB."""
NEAR_THREADS = 2
"""Threads where pictures are in GPU memory, or where the GPU fetches them itself: 2 make more than 4 or 8."""

KEYS_SHOWN = 8
"""How many pictures an error names; it gives the ids of all."""


class Loader:
    """Iterable over the batches of an epoch, one epoch an iteration.

    **Training** (the samples are augmented, or ``shuffle``): over the ranks each id comes once an epoch, but for the ``n %
    world_size`` last ones of its order, other ones each epoch, so that all ranks take as many steps. **Validation** (neither):
    each id comes exactly once, in order; ranks may differ by a batch.

    Threads live while somebody iterates, and start when the first batch is asked for: ``iter(loader)`` alone does nothing. Ending
    an iteration in any way ends them. A second iteration that begins takes over from one that was left alone. OpenCV is told to
    use one thread per call in this process (``cv2.setNumThreads(0)``), for the threads here use the cores already.

    ``img`` lies in memory that is used again when neither the tensor nor any view of it is left: a batch that is kept, or a part
    of one, never changes. All other tensors are new. At most ``threads * prefetch`` batches exist besides those that the consumer
    holds.

    **With a GPU** each thread makes batches on a stream of its own, and the consumer's current stream waits for them: the program
    does not. Tensors are then PyTorch's own memory. The program may be four batches ahead of the GPU, see
    ``fastdata.gpu_maker.QUEUED``.

    Args:
        source: An opened store, or its samples.
        batch_size: Pictures a batch, for this rank.
        rank: 0..world_size - 1.
        world_size: How many processes share an epoch.
        shuffle: Another order each epoch; ``None``: when the samples are augmented and all of one shape.
        drop_last: Leave out a last batch that is not full. In training alone.
        threads: How many make batches; ``None``: the cores that this process may use, shared among the ranks of this machine
            (``LOCAL_WORLD_SIZE``, which torchrun sets).
        prefetch: Batches that are ready or in the making, per thread; ``None``: 2, or 8 in all on a GPU.
        device: Where batches are drawn and lie, a CUDA device or its name (``cuda``: the current one); ``None`` or ``cpu``: drawn
            by the processor, in ordinary memory.
        residency: Where the GPU finds the pictures, one of :data:`fastdata.residency.RESIDENCIES`; see there.
        reserve_gb: GPU memory that pictures leave free beside what the training was seen to take, GB; ``None``: a stated share.
        dtype: Of ``img`` on the GPU: ``uint8``, or ``float16``, ``bfloat16`` or ``float32``, which are 0..1.
        channels_last: Memory format of ``img`` on the GPU.
        read_ahead: Have the system read what a batch shows from the disk as soon as it is planned. On a GPU.
        epoch_of: Called when an iteration begins, says which epoch it is; ``None``: they are counted, see :meth:`set_epoch`.
        options: Of :class:`fastdata.samples.Samples`, when ``source`` is a store.

    Raises:
        UsageError: An argument breaks its rule, or there is no such GPU.
        MissingExtra: A GPU is asked for and torch is not installed.
    """

    def __init__(
        self,
        source: Store | Samples,
        batch_size: int = 16,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool | None = None,
        drop_last: bool = False,
        threads: int | None = None,
        prefetch: int | None = None,
        device: Any = None,
        residency: str = "auto",
        reserve_gb: float | None = None,
        dtype: str = "uint8",
        channels_last: bool = False,
        read_ahead: bool = True,
        epoch_of: Callable[[], int] | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("prefetch", prefetch), ("threads", threads)):
            if value is None and name != "batch_size":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
        if isinstance(source, (Store, str, os.PathLike)):
            source = Samples(source, batch_size=batch_size, **options)
        elif options:
            raise UsageError(f"options of the samples must come with a store, got {', '.join(options)} beside samples")
        self.samples = source
        self.batch_size, self.rank, self.world_size = int(batch_size), rank, world_size
        self.shuffle = source.augment and not source.shapes_differ if shuffle is None else bool(shuffle)
        self.drop_last, self.epoch_of = drop_last, epoch_of
        self.exact = not (source.augment or self.shuffle)
        """Whether this is validation: every id exactly once."""
        self._check()
        self.device = self._device_of(device)
        """A ``torch.device`` with its number; ``None``: the processor."""
        cores = max(usable_cores() // _ranks_here(), 1)
        if self.device is not None:
            cores = min(cores, GPU_THREADS)
        self.threads = cores if threads is None else int(threads)
        usual = 2 if self.device is None else max(GPU_AHEAD // self.threads, 1)
        self.prefetch = usual if prefetch is None else int(prefetch)
        self._on_gpu = Placement(residency, reserve_gb, dtype, channels_last, read_ahead)
        if self.device is None and self._on_gpu != Placement():
            raise UsageError(
                "residency, reserve_gb, dtype, channels_last and read_ahead must come with a GPU, as device='cuda', got "
                f"device={device!r}"
            )
        self._next = self._place = (0, 0)
        self._start_idle()

    _device_of = staticmethod(device_of)

    def _start_idle(self) -> None:
        self._maker: Processor | GpuMaker = Processor(self.samples)
        if self.device is not None:
            ahead, ranks = self.threads * self.prefetch, 1 if self.exact else self.world_size
            self._maker = GpuMaker(self.samples, self.device, self._on_gpu, ahead=ahead, ranks=ranks, quiet=self.rank > 0)
        self._current: Callable[[], _Iteration | None] = lambda: None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_maker", "_current")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_idle()

    def _check(self) -> None:
        n, world_size = len(self.samples), self.world_size
        if self.exact:
            next(exact_batches(n, self.batch_size, self.rank, world_size), None)
            if self.drop_last:
                raise UsageError("drop_last must be False where every picture counts exactly once, as in validation, got True")
        else:
            each = len(rank_positions(n, self.rank, world_size))
            if self.batch_size > each:
                share = f"{each} ({n} images over {world_size} ranks)" if world_size > 1 else f"{n}, the size of the set"
                fix = f"set batch_size={each} or add images"
                raise UsageError(f"batch_size must be at most {share}, got {self.batch_size}; {fix}")
        if self.samples.shapes_differ:
            if self.batch_size != self.samples.batch_size:
                raise UsageError(
                    f"batch_size must be that of the samples where batches differ in shape (rect), {self.samples.batch_size}, "
                    f"got {self.batch_size}"
                )
            if self.shuffle or (world_size > 1 and not self.exact):
                raise UsageError(
                    "batches that differ in shape (rect) must come in order, and in training to a single rank, got "
                    f"shuffle={self.shuffle} and world_size={world_size}; set shuffle=False or rect=False"
                )

    @property
    def epoch(self) -> int:
        """The epoch of the batch that was handed out last, or the one to come when the last one is complete."""
        return self._place[0]

    @property
    def residency(self) -> str:
        """Where the pictures are read from: ``host`` where the processor draws, before the first batch what was asked for."""
        return self._maker.residency

    @property
    def why(self) -> str:
        """Why that is so, in a line."""
        return self._maker.why

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be ``epoch``: from its beginning, or from where a loaded state of that epoch says."""
        if isinstance(epoch, bool) or not isinstance(epoch, (int, np.integer)) or epoch < 0:
            raise UsageError(f"epoch must be a whole number of at least 0, got {epoch!r}")
        if epoch != self._next[0]:
            self._next = (int(epoch), 0)
        self._place = self._next

    def __len__(self) -> int:
        """Return how many batches this rank has in a whole epoch."""
        return self._steps(0)[0]

    def __iter__(self) -> Iterator[Batch]:
        return _Iteration(self)

    def ids(self, epoch: int, batch: int) -> I64:
        """Return the ids of a batch of this rank, in order, without making it.

        Args:
            epoch: From 0.
            batch: From 0, counted from the beginning of the epoch.

        Raises:
            UsageError: The epoch has no such batch.
        """
        count, positions_of = self._steps(0)
        if not 0 <= batch < count:
            raise UsageError(f"batch must be in 0..{count - 1} ({count} batches of {self.batch_size}), got {batch}")
        return EpochOrder(len(self.samples), self.samples.seed, epoch, self.shuffle).at(np.array(positions_of(batch)))

    def state_dict(self) -> dict[str, Any]:
        """Return where the training stands after the batches that were handed out, as JSON values.

        Batches that are ready and were not asked for do not count. It is the same on all ranks between their steps, so one of
        them may save it for all.
        """
        return state_of(*self._place, self._fingerprint(), self.samples.bad.copy())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state: the rest of its epoch, which may be nothing.

        In training any ``batch_size``, ``rank`` and ``world_size`` will do: what is left of the epoch is dealt anew.

        Raises:
            UsageError: Samples would not be those of the run that the state is of.
        """
        epoch, position, bad = place_of(state, self._fingerprint(), len(self.samples))
        self.reset()
        self.samples.bad.update(bad)
        self._next = self._place = (epoch, position)

    def reset(self) -> None:
        """Forget what was made ahead: an iteration that goes on makes its next batches anew, with the samples as they are now."""
        iteration = self._current()
        if iteration is not None:
            iteration.drop()

    def release(self) -> int:
        """Give back the GPU memory that pictures are kept in, and keep none there from now on; the iteration goes on.

        Returns:
            How much that was, bytes.
        """
        self.reset()
        return self._maker.release()

    def close(self) -> None:
        """End the threads and let go of the memory for pictures. The loader can be used again."""
        self.reset()
        self._maker.close()

    def _fingerprint(self) -> dict[str, Any]:
        loader: dict[str, Any] = {"shuffle": self.shuffle}
        if self.exact:  # ranks have parts of their own, of whole batches, and none can go on with another's
            loader |= {"rank": self.rank, "world_size": self.world_size, "batch_size": self.batch_size}
        return self.samples.fingerprint() | {"loader": loader}

    def _begin(self) -> tuple[int, int]:
        """Return epoch and first position of an iteration that begins now."""
        epoch, start = self._next
        if self.epoch_of is not None:
            told = int(self.epoch_of())
            epoch, start = told, (start if told == epoch else 0)
        self._next, self._place = (epoch + 1, 0), (epoch, start)
        return epoch, start

    def _steps(self, start: int) -> tuple[int, Callable[[int], range]]:
        """Return how many batches this rank has from position ``start`` on, and the positions of each by its number."""
        n, size = len(self.samples), self.batch_size
        if self.exact:
            mine = [batch for batch in exact_batches(n, size, self.rank, self.world_size) if batch.start >= start]
            return len(mine), mine.__getitem__
        positions = rank_positions(n, self.rank, self.world_size, start=start)
        count = len(positions) // size if self.drop_last else -(-len(positions) // size)
        return count, lambda k: positions[k * size : (k + 1) * size]


class Processor:
    """Makes batches by the processor, in ordinary memory.

    Args:
        samples: What of.
    """

    residency, why = "host", "no GPU was asked for"

    def __init__(self, samples: Samples) -> None:
        self._samples, self._buffers = samples, Buffers()

    def plans(self, ids_of: Callable[[int], I64], count: int, epoch: int, batch_size: int) -> None:
        """Each batch is planned alone: that takes little beside drawing it."""

    def make(self, ids: I64, epoch: int, recipe: Recipe | None = None) -> Batch:
        """Return a batch: called by any thread."""
        drawn = self._samples.draw(ids, epoch, out=self._buffers.take(self._samples.shape_of(ids)))
        return self._samples.batch(*drawn)

    def handed_over(self, batch: Batch) -> Batch:
        """Return what the consumer gets."""
        return batch

    def ready(self) -> None:
        """Nothing is to be done before a batch."""

    def begin(self) -> None:
        """Nor before an epoch."""

    def epoch_ended(self) -> None:
        """Nor after one."""

    def release(self) -> int:
        """No GPU memory is kept."""
        return 0

    def close(self) -> None:
        """Let go of the memory for pictures."""
        self._buffers = Buffers()


class _Iteration:
    """One pass over what an epoch has left."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._epoch, self._ended = 0, False
        self._positions_of: Callable[[int], range] = range
        self._ahead: Prefetch[Any] | None = None
        self._plans: Plans | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        loader = self._loader
        if loader._current() is not self:
            loader.reset()
            loader._current = weakref.ref(self)
        loader._maker.ready()
        ahead = self._ahead or self._begin()
        try:
            batch = loader._maker.handed_over(next(ahead))
        except StopIteration:
            self._ended, loader._place = True, loader._next
            loader._maker.epoch_ended()
            raise
        except Exception:
            self._ended = True
            raise
        done = self._positions_of(ahead.given - 1)
        loader._place = (self._epoch, done[-1] + (1 if loader.exact else loader.world_size - loader.rank))
        return batch

    def drop(self) -> None:
        """End the threads and forget what they made; the next batch is made anew."""
        if self._ahead is not None:
            self._ahead.drop()
        if self._plans is not None:
            self._plans.clear()

    def _begin(self) -> Prefetch[Any]:
        _prepare_process()
        loader = self._loader
        samples, maker = loader.samples, loader._maker
        maker.begin()
        step = loader.batch_size * (1 if loader.exact else loader.world_size)
        epoch, start = loader._begin()
        count, positions_of = loader._steps(start)
        order = EpochOrder(len(samples), samples.seed, epoch, loader.shuffle)

        def ids_of(k: int) -> I64:
            return order.at(np.array(positions_of(k)))

        plans = maker.plans(ids_of, count, epoch, loader.batch_size)

        def make(k: int) -> Any:  # refers to neither loader nor iteration: threads must not keep what ends them alive
            ids = ids_of(k)
            try:
                return maker.make(ids, epoch, None if plans is None else plans.of(k))
            except MissingExtra:
                raise
            except Exception as cause:
                if is_out_of_memory(cause):  # a trainer knows it by its type, and tries again with less
                    raise
                raise _told(cause, samples, ids, epoch, positions_of(k)[0] // step) from cause

        self._epoch, self._positions_of, self._plans = epoch, positions_of, plans
        # Where pictures wait for nobody a batch is a few calls of Python: more threads would only wait for its lock.
        threads = min(loader.threads, NEAR_THREADS) if maker.residency in ("device", "pinned") else loader.threads
        self._ahead = Prefetch(make, count, threads, loader.threads * loader.prefetch, gentle=loader.device is not None)
        return self._ahead


def _prepare_process() -> None:
    """Do once, in the consumer's thread, what no other thread must: set OpenCV's threads, and import.

    An import that another thread is busy with, kernels that are compiled meanwhile included, holds a lock; a process that is
    forked at that time would wait for it for ever.
    """
    cv2.setNumThreads(0)  # not 1: in a process that was forked it would wait for ever for threads that its parent had
    import fastdata.render.kernels.draw  # noqa: F401

    with contextlib.suppress(ImportError):  # told by the batch, with what to install
        import torch  # noqa: F401


def _told(cause: Exception, samples: Samples, ids: I64, epoch: int, number: int) -> FastdataError:
    """Return the error of a batch: of the cause's kind where that is one of ours."""
    kind = next((kind for kind in (UsageError, DataError, StoreError) if isinstance(cause, kind)), FastdataError)
    text = str(cause) if kind is not FastdataError else f"{type(cause).__name__}: {cause}"
    keys = [samples.im_files[i] for i in ids[:KEYS_SHOWN].tolist()]
    more = f" and {len(ids) - KEYS_SHOWN} more" if len(ids) > KEYS_SHOWN else ""
    return kind(f"{text}; in batch {number} of epoch {epoch}, of ids {ids.tolist()}: {', '.join(keys)}{more}")


def _ranks_here() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(told), 1) if told.isdecimal() else 1
