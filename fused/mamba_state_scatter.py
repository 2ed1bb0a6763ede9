"""Commit of accepted draft steps: rows of a scratch are copied into slots of a state pool."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from twinlaw.contract import BITS, INDICES, Arg, Contract, Dim, Scalar
from twinlaw.fused.guard import same_metadata
from twinlaw.fused.indices import null_or_inactive, refuse_duplicates
from twinlaw.fused.launch import launch

__all__ = ["CONTRACT", "fused_mamba_state_scatter_with_mask"]

CONTRACT = Contract(
    "fused_mamba_state_scatter_with_mask",
    parameters=(
        Arg("dst", "L S *E", "* * dense", BITS, access="w"),
        Arg("src", "L R D *E", "* * * dense", BITS, same_dtype="dst"),
        Arg("dst_indices_raw", "n", "*", INDICES, indexes="S", unique=True),
        Arg("step_indices_raw", "n", "*", INDICES, indexes="D"),
        Arg("src_indices_raw", "n", "*", INDICES, optional=True, indexes="R"),
        Scalar("null_slot", "int?", "a slot whose requests are inactive"),
        Scalar("validate_indices", "flag", "refuse duplicate active slots; syncs"),
    ),
    dims=(
        Dim("L", doc="layers"),
        Dim("S", doc="slots of the pool"),
        Dim("R", doc="rows of the scratch"),
        Dim("D", doc="draft steps a row"),
        Dim("n", doc="requests"),
        Dim("E", doc="dims of an entry", edges=(7, 16, 17, 1025)),
    ),
    guard=same_metadata,
    serving=(
        {"L": 4, "S": 12, "R": 8, "D": 4, "n": 8, "E": (32, 128, 128)},  # Qwen3-Next-80B
        {"L": 3, "S": 40, "R": 16, "D": 8, "n": 16, "E": (3, 12288)},  # Kimi-Linear-48B, windows
    ),
)

_BLOCK = 1024
"""Units a program copies."""

_UNITS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
"""Integers that entries are moved as: no float conversion can touch a NaN's payload."""


@CONTRACT.documents
def fused_mamba_state_scatter_with_mask(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> None:
    """Commit, for each request, the state of its accepted draft step, in every layer.

    For request i, with r = ``src_indices_raw[i]``, or i where that is None, and every layer l::

        dst[l, dst_indices_raw[i]] <- src[l, r, step_indices_raw[i]]

    bit for bit, for any dtype of 1, 2, 4 or 8 bytes. A request is inactive, and touches nothing,
    if its destination is negative, at least S or ``null_slot``, its step outside 0..D-1 or its
    row r outside 0..R-1. Two active requests with one destination leave that slot unspecified;
    ``validate_indices`` refuses them instead, at the cost of a device sync.

    This is the commit after speculative verification of a recurrent state cache, as serving
    engines define it.

    Raises ValueError or TypeError, before any memory is touched, for what the contract excludes.
    """
    CONTRACT.check(
        dst,
        src,
        dst_indices_raw,
        step_indices_raw,
        src_indices_raw,
        null_slot,
        validate_indices,
    )
    if validate_indices:
        _refuse_duplicates(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw, null_slot)
    _unchecked(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw, null_slot=null_slot)


def _refuse_duplicates(
    dst: torch.Tensor,
    src: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    rows: torch.Tensor | None,
    null_slot: int | None,
) -> None:
    S, (R, D) = dst.shape[1], src.shape[1:3]
    if rows is None:
        rows = torch.arange(slots.shape[0], device=slots.device)
    active = (slots >= 0) & (slots < S) & (slots != null_or_inactive(null_slot, S))
    active &= (steps >= 0) & (steps < D) & (rows >= 0) & (rows < R)
    refuse_duplicates("dst_indices_raw", slots, active)


def _unchecked(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> None:
    """The op without its validator: what the kernel does with any layout at all."""
    L, S = dst.shape[:2]
    R, D = src.shape[1:3]
    n = dst_indices_raw.shape[0]
    dst_strides, src_strides = dst.stride()[:2], src.stride()[:3]
    entry = math.prod(dst.shape[2:]) * dst.element_size()
    unit = _unit(entry, dst, src)
    per_unit = unit // dst.element_size()
    launch(
        _state_scatter_kernel,
        L * n * triton.cdiv(entry // unit, _BLOCK),
        dst,
        triton.reinterpret(dst, _UNITS[unit]),
        triton.reinterpret(src, _UNITS[unit]),
        dst_indices_raw,
        step_indices_raw,
        src_indices_raw,
        *(stride // per_unit for stride in (*dst_strides, *src_strides)),
        dst_indices_raw.stride(0),
        step_indices_raw.stride(0),
        0 if src_indices_raw is None else src_indices_raw.stride(0),
        n,
        S,
        R,
        D,
        entry // unit,
        null_or_inactive(null_slot, S),
        BLOCK=_BLOCK,
    )


def _unit(entry: int, dst: torch.Tensor, src: torch.Tensor) -> int:
    """The widest unit, in bytes, that entries, strides and addresses are all multiples of."""
    size = dst.element_size()
    strides = (
        stride * size for t in (dst, src) for stride in t.stride()[: t.dim() - dst.dim() + 2]
    )
    return max(size, math.gcd(8, entry, dst.data_ptr(), src.data_ptr(), *strides))


@triton.jit(
    do_not_specialize=[
        *("first", "dst_layer", "dst_slot", "src_layer", "src_row", "src_step", "entry"),
        *("dst_step", "steps_step", "rows_step", "n", "S", "R", "D", "null_slot"),
    ],
    do_not_specialize_on_alignment=["dst", "src", "dst_indices", "steps", "rows"],
)
def _state_scatter_kernel(
    first,
    dst,
    src,
    dst_indices,
    steps,
    rows,
    dst_layer,
    dst_slot,
    src_layer,
    src_row,
    src_step,
    dst_step,
    steps_step,
    rows_step,
    n,
    S,
    R,
    D,
    entry,
    null_slot,
    BLOCK: tl.constexpr,
):
    """One program: a block of one request's entry in one layer. Strides are in units."""
    program = first + tl.program_id(0)
    blocks = (entry + BLOCK - 1) // BLOCK
    layer = (program // blocks // n).to(tl.int64)
    i = (program // blocks % n).to(tl.int64)
    e = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)

    slot = tl.load(dst_indices + i * dst_step).to(tl.int64)
    step = tl.load(steps + i * steps_step).to(tl.int64)
    row = i if rows is None else tl.load(rows + i * rows_step).to(tl.int64)
    if (slot < 0) | (slot >= S) | (slot == null_slot):
        return
    if (step < 0) | (step >= D) | (row < 0) | (row >= R):
        return

    mask = e < entry
    from_e = src + layer * src_layer + row * src_row + step * src_step + e
    to_e = dst + layer * dst_layer + slot * dst_slot + e
    tl.store(to_e, tl.load(from_e, mask), mask)


def _compilation(unit: str, stride: str, rows: bool) -> dict[str, Any]:
    """What a launch on such tensors compiles; :mod:`twinlaw.properties.aot` takes it from here."""
    integers = ("first", "n", "S", "R", "D", "entry", "null_slot")
    outer = ("dst_layer", "dst_slot", "src_layer", "src_row", "src_step")
    return {
        "kernel": f"{__name__}:_state_scatter_kernel",
        "signature": {
            **dict.fromkeys(("dst", "src"), f"*{unit}"),
            **dict.fromkeys(("dst_indices", "steps"), "*i64"),
            **({"rows": "*i32"} if rows else {}),
            **dict.fromkeys((*integers, "dst_step", "steps_step", "rows_step"), "i32"),
            **dict.fromkeys(outer, stride),
        },
        "constexprs": {"BLOCK": _BLOCK, **({} if rows else {"rows": None})},
    }


COMPILATIONS = (
    _compilation("i64", "i32", False),
    _compilation("i64", "i64", True),
    _compilation("i8", "i32", True),
)
"""The widest and the narrowest unit, with and without 64-bit strides and explicit rows."""
