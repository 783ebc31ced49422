"""Where the batches of a trainer are made, and how it gets GPU memory back that its model turns out to need.

On a GPU a trainer's batches are made there, by :class:`fastdata.Loader`. Its pictures may take memory that the model needs a
moment later, so before the trainer pays for that, the pictures do:

* out of memory in the first epoch: the trainer closes its loader, halves the batch and builds both loaders again. If pictures lay
  in GPU memory, the batch is put back to what it was and that try does not count; without such pictures the trainer goes its way.
* out of memory in a validation: the trainer has no answer. The pictures go, and the validation is done again.
* out of memory in a later epoch, or with several GPUs: the trainer has no answer, and nothing here can give one. What stays free
  beside the pictures for that is ``reserve_gb``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastdata.errors import UsageError
from fastdata.gpu_maker import Placement, is_out_of_memory

AHEAD = 4
"""Batches at least that are ready or in the making on a GPU: two would do while each takes as long as the one before it."""

WITHOUT_MEMORY = {"auto": "stream", "decode": "stream", "device": "pinned"}
"""What stands in for a residency that takes GPU memory, in a training that ran out of it."""

OUT_OF_MEMORY = "fastdata_out_of_memory"
"""Key under which a loader hands over, in the place of a batch, that the GPU had no memory for it: a trainer looks for such an
error while it trains on a batch, not while it takes one."""


@dataclass(frozen=True, slots=True)
class Making:
    """What the user said about where batches are made: plain values."""

    device: str = "auto"
    """``auto``: on the trainer's GPU where it has one. ``cpu``: by the processor, as on a trainer without a GPU."""
    residency: str = "auto"
    """One of :data:`fastdata.residency.RESIDENCIES`."""
    reserve_gb: float | None = None
    """GPU memory that stays free beside the pictures, GB; ``None``: the loader's own."""

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu"):
            raise UsageError(
                f"device must be 'auto', the trainer's own, or 'cpu', got {self.device!r}; which GPU it is, say to the trainer"
            )
        Placement(self.residency, self.reserve_gb)


def loader_options(making: Making, device: Any, *, training: bool, has_yielded: bool = False) -> dict[str, Any]:
    """Return the options of a loader that say where its batches are made: none where the processor makes them.

    Args:
        making: Of the user.
        device: The trainer's ``torch.device``.
        training: Or validation. Its pictures take no GPU memory unless the user asked for that, for what a validation itself
            needs is not known before the first one; nor are they decoded by the GPU, so that a score is one over the same pixels
            everywhere.
        has_yielded: Whether this training ran out of memory before: no picture goes into GPU memory again.
    """
    if making.device == "cpu" or not is_gpu(device):
        return {}
    residency = making.residency
    if residency == "auto" and not training:
        residency = "stream"
    if has_yielded:
        residency = WITHOUT_MEMORY.get(residency, residency)
    return {"device": device, "residency": residency, "reserve_gb": making.reserve_gb}


def is_gpu(device: Any) -> bool:
    """Tell whether a ``torch.device`` is one that batches can be made on."""
    return bool(device.type == "cuda")


def prefetch_of(threads: int, *, on_gpu: bool) -> int:
    """Return how many batches each thread makes ahead. On a GPU all threads together have :data:`AHEAD`, or one each: they take
    memory that the model may want."""
    return max(-(-AHEAD // threads), 1) if on_gpu else 2


class Unused(int):
    """A number of retries that were not used up, and that says all the same that one is due.

    The trainer goes on to its next epoch if its counter is false, and gives up at 3: what was 0 must stay 0, and be true.
    """

    def __bool__(self) -> bool:
        return True


def spare_batch(trainer: Any, say: Callable[[str], None]) -> None:
    """Undo the halving of a trainer's batch if pictures lay in GPU memory: it is tried without these first.

    To be called before the trainer builds its loaders, each time. The first time nothing happens.

    Args:
        trainer: One that has just halved ``batch_size`` and ``args.batch``, and counted that in ``_oom_retries``.
        say: Takes one line.
    """
    before, trainer.fastdata_batch = getattr(trainer, "fastdata_batch", None), trainer.batch_size
    retries = getattr(trainer, "_oom_retries", 0)
    if not retries or not any(loader.has_kept for loader in _loaders(trainer)):
        return
    trainer.fastdata_has_yielded = True
    trainer.batch_size = trainer.args.batch = trainer.fastdata_batch = before
    trainer._oom_retries = Unused(retries - 1)
    say(f"fastdata: the batch stays at {before}: it is tried again without pictures in GPU memory, and that retry does not count")


def validate_again(trainer: Any, validate: Callable[[], Any], say: Callable[[str], None]) -> Any:
    """Return what a validation returns; one that runs out of memory is done again without pictures in GPU memory, if any were.

    Not with several GPUs: the others would wait for what this one has left out.

    Args:
        trainer: In training.
        validate: Its own validation.
        say: Takes one line.
    """
    try:
        return validate()
    except RuntimeError as err:
        if not is_out_of_memory(err) or trainer.world_size > 1 or not sum(loader.release() for loader in _loaders(trainer)):
            raise
    # Out here the error is gone, and with it the frames that held what the attempt had made.
    trainer.fastdata_has_yielded = True
    trainer._clear_memory()
    trainer.validator.gdict = None  # what it had begun to collect for a file in COCO's form
    say("fastdata: the validation ran out of memory and is done again, without pictures in GPU memory")
    return validate()


def has_yielded(trainer: Any) -> bool:
    """Tell whether pictures have left GPU memory for a trainer's model."""
    return bool(getattr(trainer, "fastdata_has_yielded", False))


def _loaders(trainer: Any) -> list[Any]:
    return list(getattr(trainer, "fastdata_loaders", {}).values())
