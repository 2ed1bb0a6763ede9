"""How every op launches: the tensors' device, its current stream, and grids of any size."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from triton.runtime.jit import JITFunction

__all__ = ["as_float", "launch"]

_MOST_PROGRAMS = 2**30
"""Programs a launch: below the 2**31 - 1 of a grid's x axis, so that program numbers of the first
launches, and with them all index arithmetic on them, stay 32-bit."""


def launch(kernel: Any, programs: int, tensor: torch.Tensor, *args: Any, **meta: Any) -> None:
    """Run ``programs`` programs of ``kernel`` where ``tensor`` lives, on that device's stream.

    The kernel's first parameter is the number of the launch's first program. It adds that to
    ``tl.program_id(0)``, the one grid axis in use (the others end at 65,535).

    Raises ValueError when ``tensor`` is on the CPU and the kernel is compiled for a GPU.
    """
    if tensor.device.type == "cpu" and isinstance(kernel, JITFunction):
        raise ValueError(
            "the tensors are on the CPU, but Triton compiles for a GPU in this process: move them "
            "to a GPU, or set TRITON_INTERPRET=1 before triton is first imported"
        )
    with _current(tensor.device):
        for first in range(0, programs, _MOST_PROGRAMS):
            grid = (min(_MOST_PROGRAMS, programs - first),)
            kernel[grid](first, *args, **meta)


def as_float(number: float) -> float:
    """A real number as a kernel takes it: an integer too large for a float is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Make ``device`` the current one: Triton launches there, wherever the tensors are."""
    if device.type == "cpu":
        return nullcontext()
    module = torch.get_device_module(device)
    if module.current_device() == device.index:
        return nullcontext()
    guard: AbstractContextManager[Any] = module.device(device)
    return guard
