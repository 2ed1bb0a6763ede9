"""Broken twins: kernels, wrappers and contracts with one deliberate bug each.

They prove that the laws can fail. None of them leaves the memory that the laws set aside around a
call's tensors, so that a bug is a wrong result and never a crash.
"""

from __future__ import annotations

from broken import contracts, decode, machine, scatter, wrappers
from broken.twin import Twin

__all__ = ["TWINS", "Twin"]

TWINS: tuple[Twin, ...] = (
    *(*decode.TWINS, *scatter.TWINS, *wrappers.TWINS),
    *(*contracts.TWINS, *machine.TWINS),
)
