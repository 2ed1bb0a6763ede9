"""Kernels for the compiler alone; a file of their own, as it reads them in a process of its own."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def takes_three_of_four(x):  # type: ignore[no-untyped-def]
    tl.store(x + tl.arange(0, 3), 0.0)  # a block's size must be a power of two


@triton.jit
def hoards(x, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    o = tl.arange(0, BLOCK)
    held = tl.load(x + o)
    tl.store(x + o, held / tl.sum(held))  # all of it is needed twice
