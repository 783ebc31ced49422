"""Batches made on a GPU, beside what it trains.

A thread makes a whole batch on a stream of its own: plan, bring the pixels there (``fastdata.residency``), copy labels and tables
once, draw. It waits for nothing of that but leaves an *event* behind, and the consumer's stream waits for the event. So planning,
copying and drawing go on while the model trains, and the program never stops for the GPU.

Memory comes from PyTorch's allocator, which keeps what one stream let go for that stream. What the consumer got is also told to
its stream (``record_stream``), so that memory is not written again before the consumer's kernels have read it.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.errors import MissingExtra, UsageError
from fastdata.residency import RESIDENCIES, Fetched, Source
from fastdata.residency.draw_here import draw_here
from fastdata.residency.lane import Lane, is_lost
from fastdata.residency.open import Opened, Opener
from fastdata.residency.pinned_ring import Ring
from fastdata.residency.read_ahead import will_need
from fastdata.samples import Samples
from fastdata.store.index import WILL_NEED
from fastdata.terminal import say

Batch = dict[str, Any]
I64 = npt.NDArray[np.int64]

DTYPES = ("uint8", "float16", "bfloat16", "float32")

QUEUED = 4
"""Batches that the consumer may have in its stream's queue before it is made to wait for the oldest. Without a bound, a program
that never looks at a result is as far ahead as the queue of launches lets it, and the memory of all those batches is in use. One
in the queue keeps a GPU busy; more even out steps of different length."""

PLANNED = 512
"""Samples that are planned in one call, if batches are smaller. Planning holds the lock of the interpreter, and much of it is
done once per call: 58 µs a sample for 16, 19 for 64, 13 for 128, 7 for 512, 8 for 1,024 (default policy, one core). To cut a
batch out takes 30 µs."""

_LAUNCHING = threading.Lock()
"""Held while kernels are launched: Triton compiles each once then, and its interpreter can do one thing at a time."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What the user said about batches on a GPU, see :class:`fastdata.loader.Loader`.

    Raises:
        UsageError: A value breaks its rule.
    """

    residency: str = "auto"
    reserve_gb: float | None = None
    dtype: str = "uint8"
    channels_last: bool = False
    read_ahead: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (("residency", self.residency, RESIDENCIES), ("dtype", self.dtype, DTYPES)):
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        gb = self.reserve_gb
        if gb is not None and (isinstance(gb, bool) or not isinstance(gb, Real) or not 0 <= gb < math.inf):
            raise UsageError(f"reserve_gb must be a number of at least 0, or None, got {gb!r}")


def device_of(device: Any) -> Any:
    """Return a GPU as a ``torch.device`` with its number; ``None`` for the processor.

    Args:
        device: ``None``, a name (``cpu``, ``cuda``, ``cuda:1``) or a ``torch.device``.

    Raises:
        UsageError: It is none of these, or there is no such GPU.
        MissingExtra: torch is not installed.
    """
    if device is None or device == "cpu":
        return None
    try:
        import torch
    except ImportError as err:
        raise MissingExtra("torch", "train", "make batches on a GPU") from err
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as err:
        raise UsageError(f"device must be None, 'cpu', 'cuda', 'cuda:<number>' or a torch.device, got {device!r}") from err
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UsageError(f"device must be the processor or a CUDA device, got {str(device)!r}")
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else f"; torch {torch.__version__} was built without CUDA"
        raise UsageError(
            f"device must be one that is there, got {str(device)!r}, and torch finds no GPU{built}; set device='cpu'"
        )
    number, count = torch.cuda.current_device() if device.index is None else device.index, torch.cuda.device_count()
    if number >= count:
        raise UsageError(f"device must be one of cuda:0..cuda:{count - 1}, got {str(device)!r}")
    return torch.device("cuda", number)


def is_out_of_memory(err: BaseException) -> bool:
    """Return whether an error says that GPU memory is full."""
    return isinstance(err, RuntimeError) and "out of memory" in str(err).lower()


@dataclass(frozen=True, slots=True)
class Made:
    """A batch in the making."""

    batch: Batch
    done: Any
    """The event after which it is there; ``None`` in ordinary memory."""


class Plans:
    """The recipes of an epoch's batches, planned for several batches at once by whichever thread comes first.

    Without a lock, see ``fastdata.buffers``; a process that was forked does not wait for threads that only its parent has.

    Args:
        samples: What of.
        ids_of: The ids of a batch by its number.
        count: How many batches.
        epoch: From 0.
        together: Batches that are planned in one call.
        ahead: Batches that may be in the making.
    """

    def __init__(
        self, samples: Samples, ids_of: Callable[[int], I64], count: int, epoch: int, *, together: int, ahead: int
    ) -> None:
        self._samples, self._ids_of, self._count, self._epoch = samples, ids_of, count, epoch
        self._together, self._ahead = together, ahead
        self._made: dict[tuple[int, int], Future[tuple[Recipe, I64] | None]] = {}

    def of(self, k: int) -> Recipe | None:
        """Return the recipe of batch ``k``; ``None`` where it must be planned alone, which may tell what is wrong with it."""
        group, within = divmod(k, self._together)
        mine: Future[tuple[Recipe, I64] | None] = Future()
        made = self._made.setdefault((os.getpid(), group), mine)
        if made is mine:
            for old in [key for key in list(self._made) if (key[1] + 1) * self._together <= k - self._ahead]:
                self._made.pop(old, None)
            try:
                mine.set_result(self._planned(group))
            except Exception:
                mine.set_result(None)
            except BaseException:
                mine.set_result(None)
                raise
        planned = made.result()
        return None if planned is None else planned[0].slots(*planned[1][within : within + 2].tolist())

    def clear(self) -> None:
        """Forget what was planned: the samples have changed."""
        self._made = {}

    def _planned(self, group: int) -> tuple[Recipe, I64]:
        first = group * self._together
        ids = [self._ids_of(k) for k in range(first, min(first + self._together, self._count))]
        return self._samples.recipe(np.concatenate(ids), self._epoch), np.cumsum([0, *map(len, ids)])


class GpuMaker:
    """Makes batches on a GPU.

    Where the GPU cannot draw, or ``transforms`` need the pixels in ordinary memory, the processor draws into page-locked memory,
    which is copied; ``residency`` is ``host`` then.

    Args:
        samples: What of.
        device: A GPU; the processor: all is done in ordinary memory, by Triton's interpreter.
        placement: Where pictures lie, and the form of ``img``.
        ahead: Batches that may be ready or in the making.
        ranks: Of ``torch.distributed`` that train on the same samples at the same time; 1: this one alone.
        quiet: Say nothing.
    """

    def __init__(
        self, samples: Samples, device: Any, placement: Placement, *, ahead: int, ranks: int = 1, quiet: bool = False
    ) -> None:
        self._samples, self._device, self._placement = samples, device, placement
        reserve = None if placement.reserve_gb is None else int(min(placement.reserve_gb, 1e6) * 1e9)
        self._ahead, self._quiet = ahead, quiet
        self._opener = Opener(samples, device, reserve, ahead, ranks, quiet)
        self._opened: Opened | None = None
        self._has_kernels = self._has_seen_epoch = self._has_tried = self._has_released = False
        self._ring = Ring(device)  # where the processor draws
        self._lanes: deque[Lane] = deque()
        self._queued: deque[Any] = deque()
        self._making = 0
        self._change = threading.Condition()

    @property
    def residency(self) -> str:
        """Where pictures are read from; before the first batch what was asked for."""
        if self._opened is None:
            return self._placement.residency
        return "host" if self._opened.source is None else self._opened.source.name

    @property
    def why(self) -> str:
        """Why that is so, in a line."""
        return "no batch was asked for yet" if self._opened is None else self._opened.why

    def ready(self) -> None:
        """Open the pictures if they are not: before any batch is made. In the consumer's thread.

        Raises:
            UsageError: This process was forked from one that uses GPUs.
        """
        if is_lost(self._device):
            raise UsageError(f"{self._device} must be used by a process that was spawned, got one that was forked; use 'spawn'")
        if self._opened is None:
            self._opened = self._open()
            if self._opened.fell_back:
                self._say(self._opened.why)

    def begin(self) -> None:
        """Bring the pictures nearer if it is time for that: before an epoch, in the consumer's thread."""
        self.ready()
        if self._placement.residency == "auto" and self._has_seen_epoch and not (self._has_tried or self._has_released):
            self._has_tried = True
            self._promote()

    def plans(self, ids_of: Callable[[int], I64], count: int, epoch: int, batch_size: int) -> Plans:
        """Return the plans of an epoch, see :class:`Plans`."""
        together = 1 if self._samples.shapes_differ else max(PLANNED // batch_size, 1)
        return Plans(self._samples, ids_of, count, epoch, together=together, ahead=self._ahead)

    def epoch_ended(self) -> None:
        """Learn that the training has seen a whole epoch, so that what it takes of the memory is known."""
        self._has_seen_epoch = True

    def make(self, ids: I64, epoch: int, recipe: Recipe | None = None) -> Made:
        """Make a batch and do not wait for it: called by any thread.

        Args:
            ids: Of the batch.
            epoch: From 0.
            recipe: Of these, where it is planned already.

        Raises:
            BadRecord: A record is damaged; the message begins with the key of its entry.
        """
        with self._change:
            if (opened := self._opened) is None:
                raise UsageError("the loader must be open while a batch is made, got one that was closed meanwhile")
            self._making += 1
        try:
            lane = self._lane()
            try:
                with lane.used():
                    if opened.source is None:
                        return self._by_host(lane, ids, epoch)
                    return self._by_gpu(lane, opened.source, ids, epoch, recipe)
            finally:
                self._lanes.append(lane)
        finally:
            with self._change:
                self._making -= 1
                self._change.notify_all()

    def handed_over(self, made: Made) -> Batch:
        """Return a batch to the consumer, whose current stream waits for it. In the consumer's thread."""
        if made.done is None:
            return made.batch
        import torch

        stream = torch.cuda.current_stream(self._device)
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # waiting takes no core away from the threads
        event.record(stream)
        self._queued.append(event)
        if len(self._queued) > QUEUED:
            self._queued.popleft().synchronize()
        stream.wait_event(made.done)
        for value in made.batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(stream)
        return made.batch

    def release(self) -> int:
        """Give back the GPU memory in which pictures are kept, and keep none there from now on.

        Returns:
            How much that was, bytes.
        """
        source = None if self._opened is None or is_lost(self._device) else self._opened.source
        self._has_released = True
        if source is None or not (freed := source.nbytes_device):
            return 0
        import torch

        self._replace(self._opener.less())
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._say(f"{freed / 1e9:.2f} GB of GPU memory were given back: {self.why}")
        return freed

    def close(self) -> None:
        """Let go of pictures and streams. The next batch opens them again."""
        if is_lost(self._device):
            return
        self._replace(None)
        self._ring.close()
        self._ring = Ring(self._device)
        self._lanes.clear()
        self._has_tried = False
        self._queued.clear()

    def _open(self) -> Opened:
        """Open the pictures, and import what threads will need: none of them must hold the lock of an import, see ``loader``."""
        from fastdata.render.cuda import unsupported

        why = unsupported(self._device)
        why = self._tried() if why is None else why
        self._has_kernels = why is None
        if why is None and self._samples.transforms is not None:
            why = "transforms are applied to pictures in ordinary memory"
        if why is not None:
            return Opened(None, f"batches are drawn by the processor and copied to the GPU: {why}", fell_back=True)
        opened = self._opener.less() if self._has_released else self._opener.first(self._placement.residency)
        if self._placement.read_ahead and WILL_NEED is not None:
            import fastdata.residency.advise  # noqa: F401
        return opened

    def _tried(self) -> str | None:
        """Compile the kernels by drawing a sample of which nothing is there; return why that cannot be done.

        Triton needs a C compiler on the machine, and a driver that knows its PTX.
        """
        import torch

        import fastdata.render.cuda_masks
        import fastdata.residency.pull
        import fastdata.residency.triton_pull  # noqa: F401

        recipe = self._samples.recipe([0])
        try:
            with _LAUNCHING:
                self._drawn(recipe, np.zeros((len(recipe.record), 3), np.int64))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except Exception as err:
            if is_out_of_memory(err):
                raise
            first_line = (str(err).splitlines() or [""])[0]
            return f"Triton cannot compile for {self._device}: {type(err).__name__}: {first_line}"
        return None

    def _promote(self) -> None:
        """Put the pictures where they are faster, if there is room for them."""
        if self._opened is not None and self._opened.source is not None:
            self._replace(self._opener.more(self._opened.source))
            self._say(self.why)

    def _replace(self, opened: Opened | None) -> None:
        """Let batches be made of other pictures; let go of those that there were when nobody reads them any more."""
        with self._change:
            self._change.wait_for(lambda: not self._making)
            for lane in self._lanes:
                lane.finish()
            before, self._opened = self._opened, opened
        source = None if before is None else before.source
        if source is not None and (opened is None or opened.source is not source):
            source.close()

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(f"fastdata: {text}")

    def _lane(self) -> Lane:
        # The one that was used last: there are as many as threads are at work, and streams keep memory for themselves.
        try:
            return self._lanes.pop()
        except IndexError:
            return Lane(self._device)

    def _by_gpu(self, lane: Lane, source: Source, ids: I64, epoch: int, planned: Recipe | None) -> Made:
        """Have the GPU draw a batch."""
        reads_ahead = self._placement.read_ahead and source.name in ("stream", "decode")

        def fetch(recipe: Recipe) -> Fetched:
            if reads_ahead:
                will_need(self._samples.store, recipe)
            with _LAUNCHING if source.name == "pinned" else nullcontext():  # which has a kernel of its own
                return source.fetch(recipe)

        recipe, fetched = self._samples.planned(ids, epoch, 0, fetch, planned)
        try:
            where, staged = fetched.where, fetched.staged
            if staged is not None:
                staged = staged.to(self._device, non_blocking=True)  # alive until all is told: its memory is this stream's
                where = where + np.where(where[:, 2:] != 0, [[staged.data_ptr(), 0, 0]], 0)
            batch = self._batch(recipe, lambda: self._drawn(recipe, where))
        finally:
            done = lane.mark(fetched.hold)
        return Made(batch, done)

    def _drawn(self, recipe: Recipe, where: I64) -> Any:
        import torch

        from fastdata.render.cuda import render

        dtype = getattr(torch, self._placement.dtype)
        return render(recipe, where, device=self._device, dtype=dtype, channels_last=self._placement.channels_last)

    def _by_host(self, lane: Lane, ids: I64, epoch: int) -> Made:
        """Draw a batch by the processor and have it copied."""
        import torch

        recipe, buffer, host = draw_here(self._samples, ids, epoch, self._ring)
        try:
            form = torch.channels_last if self._placement.channels_last else torch.contiguous_format
            img = host.to(self._device, non_blocking=True, copy=True).contiguous(memory_format=form)
            if self._placement.dtype != "uint8":
                img = img.to(torch.float32).mul_(1 / 255).to(getattr(torch, self._placement.dtype))
            batch = self._batch(recipe, lambda: img)
        finally:
            done = lane.mark((buffer,))
        return Made(batch, done)

    def _batch(self, recipe: Recipe, draw: Callable[[], Any]) -> Batch:
        """Return a batch whose masks the GPU fills, where it can."""
        order = masks = None
        if recipe.task == "segment" and self._has_kernels:
            from fastdata.render.cuda_masks import area_order, batch_masks

            order = area_order(recipe.labels)
        with _LAUNCHING:
            img = draw()
            if order is not None:
                ratio, overlap = self._samples.mask_ratio, self._samples.overlap_mask
                masks = batch_masks(recipe.labels, recipe.out_hw, ratio, self._device, order, overlap=overlap)
        return self._samples.batch(recipe, img, self._device, masks)
