"""Pictures drawn by the processor into page-locked memory, for a GPU that cannot draw or must not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy.typing as npt

from fastdata.augment.recipe import Recipe
from fastdata.residency.pinned_ring import Buffer, Ring
from fastdata.samples import Samples

if TYPE_CHECKING:
    from torch import Tensor


def draw_here(samples: Samples, ids: npt.ArrayLike, epoch: int, ring: Ring) -> tuple[Recipe, Buffer, Tensor]:
    """Draw a batch into memory that is used again: PyTorch fills what is new, where a training shall be deterministic.

    Args:
        samples: What of.
        ids: (B,)
        epoch: From 0.
        ring: Whose memory.

    Returns:
        What was drawn; the memory, to be given back when it has been copied; and (B, 3, H, W) uint8 in it.
    """
    shape = samples.shape_of(ids)
    buffer = ring.take(math.prod(shape))
    try:
        host = buffer.tensor.view(shape)
        recipe, _ = samples.draw(ids, epoch, out=host.numpy())
    except BaseException:
        buffer.after(None)
        raise
    return recipe, buffer, host
