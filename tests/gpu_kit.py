"""Where GPU code is tested: on the GPU where there is one, and in ordinary memory with Triton's interpreter everywhere."""

from __future__ import annotations

import os
from typing import Any

import pytest


def needs_cuda() -> Any:
    """Return the first GPU.

    A test without one is skipped, or fails where FASTDATA_REQUIRE_CUDA=1 says that there must be one.
    """
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    why = "needs a GPU: torch.cuda.is_available() is False"
    if os.environ.get("FASTDATA_REQUIRE_CUDA") == "1":
        pytest.fail(f"{why}, and FASTDATA_REQUIRE_CUDA=1 says that there must be one")
    pytest.skip(why)


def any_device() -> Any:
    """Return the first GPU, or the processor, whose kernels run in Triton's interpreter."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
