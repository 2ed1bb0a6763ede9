"""Micro-kernels: what an interpreted kernel must compute just as a compiled one does.

Each function in ``CASES`` launches kernels on a device and returns one tensor. Run as a script,
this module interprets all of them in a process of its own and saves the results:

    TRITON_INTERPRET=1 python micro_kernels.py (repaired | stock) OUT.pt

A case that raises is saved as the text of its error.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

if __name__ == "__main__" and sys.argv[1] == "repaired":
    # Before Triton is imported, and before kernels bind libdevice's functions.
    from twinlaw.properties import interpreter

    interpreter.enable()

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.libdevice import log1p

Case = Callable[[str], torch.Tensor]
CASES: dict[str, Case] = {}
REFUSED: dict[str, Callable[[str], None]] = {}
"""Launches that must raise when interpreted: right or loud, never silently wrong."""

BLOCK = 2048


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def refused(function: Callable[[str], None]) -> Callable[[str], None]:
    REFUSED[function.__name__] = function
    return function


# --- inputs ---------------------------------------------------------------------------------------


def every_16_bits(dtype: torch.dtype) -> torch.Tensor:
    """All 65,536 values of a 16-bit dtype."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


def partners(dtype: torch.dtype) -> torch.Tensor:
    """A second operand for ``every_16_bits``: again every value, each beside another one."""
    order = torch.randperm(2**16, generator=torch.Generator().manual_seed(0))
    return every_16_bits(dtype)[order]


def float32_edges() -> torch.Tensor:
    """Around every bfloat16, denormals, infinities and NaNs included: on it, halfway to the next,
    and next to either."""
    high = every_16_bits(torch.int16).to(torch.int32) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    return (high[None, :] | low[:, None]).reshape(-1).view(torch.float32)


def float16_edges() -> torch.Tensor:
    """The same around every float16."""
    exact = every_16_bits(torch.float16).float()
    bits = exact.view(torch.int32)
    low = torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001], dtype=torch.int32)
    return (bits[None, :] + low[:, None]).reshape(-1).view(torch.float32)


def integers(*shape: int) -> torch.Tensor:
    """Small enough that every sum and product of them is exact in 16 bits."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(1))


def launch(kernel: Any, out: torch.Tensor, *args: Any, **meta: Any) -> torch.Tensor:
    """Run an elementwise kernel over ``out``, whose size is a multiple of BLOCK."""
    kernel[(out.numel() // BLOCK,)](*args, out, BLOCK=BLOCK, **meta)
    return out


# --- casts ----------------------------------------------------------------------------------------


@triton.jit
def cast_kernel(x, out, BLOCK: tl.constexpr, ROUNDING: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o).to(out.dtype.element_ty, fp_downcast_rounding=ROUNDING))


def cast(x: torch.Tensor, to: torch.dtype, device: str, rounding: str | None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=to, device=device)
    return launch(cast_kernel, out, x.to(device), ROUNDING=rounding)


@case
def float32_to_bfloat16(device: str) -> torch.Tensor:
    return cast(float32_edges(), torch.bfloat16, device, None)


@case
def float32_to_bfloat16_toward_zero(device: str) -> torch.Tensor:
    return cast(float32_edges(), torch.bfloat16, device, "rtz")


@case
def float32_to_float16(device: str) -> torch.Tensor:
    return cast(float16_edges(), torch.float16, device, None)


@case
def float32_to_float16_toward_zero(device: str) -> torch.Tensor:
    return cast(float16_edges(), torch.float16, device, "rtz")


@case
def bfloat16_to_float32(device: str) -> torch.Tensor:
    return cast(every_16_bits(torch.bfloat16), torch.float32, device, None)


@case
def bfloat16_to_float16(device: str) -> torch.Tensor:
    return cast(every_16_bits(torch.bfloat16), torch.float16, device, None)


@case
def float16_to_bfloat16(device: str) -> torch.Tensor:
    return cast(every_16_bits(torch.float16), torch.bfloat16, device, None)


@case
def bfloat16_to_int32(device: str) -> torch.Tensor:
    return cast(torch.arange(-1024, 1024).bfloat16(), torch.int32, device, None)


@case
def int32_to_bfloat16(device: str) -> torch.Tensor:
    return cast(torch.arange(-(2**16), 2**16, dtype=torch.int32), torch.bfloat16, device, None)


@triton.jit
def store_kernel(x, out, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o))


@case
def store_as_bfloat16(device: str) -> torch.Tensor:
    x = float32_edges()
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=device)
    return launch(store_kernel, out, x.to(device))


# --- 16-bit arithmetic ----------------------------------------------------------------------------


@triton.jit
def arithmetic_kernel(x, y, out, BLOCK: tl.constexpr, OP: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + o), tl.load(y + o)
    if OP == "add":
        result = a + b
    elif OP == "sub":
        result = a - b
    elif OP == "mul":
        result = a * b
    elif OP == "div":
        result = a / b
    elif OP == "neg":
        result = -a
    elif OP == "abs":
        result = tl.abs(a)
    elif OP == "fma":
        result = tl.fma(a, b, a)
    elif OP == "maximum":
        result = tl.maximum(a, b)
    elif OP == "where":
        result = tl.where(a < b, a, b)
    elif OP == "literal":
        result = a * 2.5
    elif OP == "lt":
        result = a < b
    elif OP == "ge":
        result = a >= b
    elif OP == "eq":
        result = a == b
    elif OP == "ne":
        result = a != b
    else:
        result = a > 0.0
    tl.store(out + o, result)


def arithmetic(name: str, dtype: torch.dtype, to: torch.dtype, op: str) -> None:
    def run(device: str) -> torch.Tensor:
        x, y = every_16_bits(dtype).to(device), partners(dtype).to(device)
        out = torch.empty(x.shape, dtype=to, device=device)
        return launch(arithmetic_kernel, out, x, y, OP=op)

    CASES[f"{name}_{op}"] = run


for op in ("add", "sub", "mul", "neg", "abs", "fma", "maximum", "where", "literal"):
    arithmetic("bfloat16", torch.bfloat16, torch.bfloat16, op)
for op in ("lt", "ge", "eq", "ne", "positive"):
    arithmetic("bfloat16", torch.bfloat16, torch.int8, op)
for op in ("add", "mul", "maximum"):
    arithmetic("float16", torch.float16, torch.float16, op)
arithmetic("bfloat16", torch.bfloat16, torch.float32, "div")


@triton.jit
def constants_kernel(x, out, n):
    o = tl.arange(0, 8)
    tl.store(out + o, tl.full([8], 1.7, tl.bfloat16))
    tl.store(out + 8 + o, tl.load(x + o, mask=o < n, other=-0.6))
    tl.store(out + 16 + o, tl.zeros([8], tl.bfloat16))


@case
def bfloat16_constants(device: str) -> torch.Tensor:
    out = torch.empty(24, dtype=torch.bfloat16, device=device)
    constants_kernel[(1,)](torch.ones(8, dtype=torch.bfloat16, device=device), out, 5)
    return out


# --- reductions -----------------------------------------------------------------------------------


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def reductions_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o[:, None] * N + o[None, :])
    tl.store(out + o, tl.sum(v, 0))
    tl.store(out + N + o, tl.sum(v, 1))
    tl.store(out + 2 * N + o[:, None], tl.sum(v, 1, keep_dims=True))
    tl.store(out + 3 * N, tl.sum(v))
    tl.store(out + 3 * N + 3 + tl.zeros([1, 1], tl.int32), tl.sum(v, keep_dims=True))
    tl.store(out + 3 * N + 1, tl.max(v))
    tl.store(out + 3 * N + 2, tl.min(v))
    tl.store(out + 4 * N + o, tl.reduce(v, 1, larger))
    tl.store(out + 5 * N + o[:, None] * N + o[None, :], tl.cumsum(v, 1))


def reductions(dtype: torch.dtype, device: str) -> torch.Tensor:
    out = torch.zeros(21 * 16, dtype=dtype, device=device)
    reductions_kernel[(1,)](integers(16, 16).to(device, dtype), out, N=16)
    return out


@case
def bfloat16_reductions(device: str) -> torch.Tensor:
    return reductions(torch.bfloat16, device)


@case
def float16_reductions(device: str) -> torch.Tensor:
    return reductions(torch.float16, device)


@case
def float32_reductions(device: str) -> torch.Tensor:
    return reductions(torch.float32, device)


@case
def int8_reductions(device: str) -> torch.Tensor:
    return reductions(torch.int8, device)


def rows() -> torch.Tensor:
    """Sums whose rounding shows."""
    return torch.rand(64, 1024, generator=torch.Generator().manual_seed(2))


@triton.jit
def row_sum_kernel(x, out, N: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * N + tl.arange(0, N))))


def row_sums(dtype: torch.dtype, device: str) -> torch.Tensor:
    x = rows().to(device, dtype)
    out = torch.empty(len(x), dtype=torch.float32, device=device)
    row_sum_kernel[(len(x),)](x, out, N=x.shape[1])
    return out


@case
def bfloat16_row_sums(device: str) -> torch.Tensor:
    return row_sums(torch.bfloat16, device)


@case
def float16_row_sums(device: str) -> torch.Tensor:
    return row_sums(torch.float16, device)


@triton.jit
def dot_kernel(x, y, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tile = o[:, None] * N + o[None, :]
    tl.store(out + tile, tl.dot(tl.load(x + tile), tl.load(y + tile)))


@case
def bfloat16_dot(device: str) -> torch.Tensor:
    x, y = (integers(2, 16, 16)).to(device, torch.bfloat16)
    out = torch.empty(16, 16, dtype=torch.float32, device=device)
    dot_kernel[(1,)](x, y, out, N=16)
    return out


# --- masks and control flow -----------------------------------------------------------------------


@triton.jit
def block_masks_kernel(out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, ((o > 2) and (o < 5)).to(tl.int32))
    tl.store(out + N + o, ((o < 2) or (o > 5) or (o == 3)).to(tl.int32))
    tl.store(out + 2 * N + o, o, mask=(o > 2) and (o != 5))
    both = N > 2 and o > 1
    tl.store(out + 3 * N + o, both.to(tl.int32))


@case
def block_masks(device: str) -> torch.Tensor:
    out = torch.full((4, 8), -1, dtype=torch.int32, device=device)
    block_masks_kernel[(1,)](out, N=8)
    return out


@triton.jit
def negated_mask_kernel(out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, o, mask=not (o < 3))


@case
def negated_mask(device: str) -> torch.Tensor:
    out = torch.full((8,), -1, dtype=torch.int32, device=device)
    negated_mask_kernel[(1,)](out, N=8)
    return out


@triton.jit
def constants_first_kernel(x, out, USE: tl.constexpr):
    if USE and tl.load(x) > 0:
        tl.store(out, 1)
    if x is None or tl.load(x) > 0:
        tl.store(out + 1, 2)
    if not USE:
        tl.store(out + 2, 3)


@case
def constants_cut_logic_short(device: str) -> torch.Tensor:
    """Without the short cut, the kernel would load from None, which nothing can compile."""
    out = torch.zeros(3, dtype=torch.int32, device=device)
    constants_first_kernel[(1,)](None, out, USE=False)
    return out


@triton.jit
def scalars_and_kernel(x, count, n):
    if n > 0 and tl.atomic_add(count, 1) >= 0:
        tl.store(x, 1)


@case
def scalars_do_not(device: str) -> torch.Tensor:
    """The right operand is evaluated although the left one is false: the count goes up."""
    x, count = torch.zeros(2, 1, dtype=torch.int32, device=device)
    scalars_and_kernel[(1,)](x, count, 0)
    return torch.cat([x, count])


@triton.jit
def scalar_mask_kernel(x, out, n):
    o = tl.arange(0, 8)
    tl.store(out + o, tl.load(x + o, mask=(o < n) & (n > 3), other=-1))


@case
def scalar_comparison_in_a_mask(device: str) -> torch.Tensor:
    out = torch.empty(8, dtype=torch.int32, device=device)
    scalar_mask_kernel[(1,)](torch.arange(8, dtype=torch.int32, device=device), out, 6)
    return out


@triton.jit
def loop_kernel(x, out, n, BLOCK: tl.constexpr):
    total = 0
    for first in range(0, n, BLOCK):
        o = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + o, mask=o < n, other=0))
    tl.store(out, total)


@case
def loop_over_a_runtime_bound(device: str) -> torch.Tensor:
    out = torch.empty(1, dtype=torch.int32, device=device)
    loop_kernel[(1,)](torch.arange(10, dtype=torch.int32, device=device), out, 10, BLOCK=4)
    return out


@triton.autotune([triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n), mask=o < n)


@case
def autotuned(device: str) -> torch.Tensor:
    out = torch.empty(10, dtype=torch.int32, device=device)
    x = torch.arange(10, dtype=torch.int32, device=device)
    tuned_kernel[lambda meta: (triton.cdiv(10, meta["BLOCK"]),)](x, out, 10)
    return out


@triton.jit
def nan_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o)
    tl.store(out + o, tl.maximum(v, 1.0))
    tl.store(out + N + o, tl.minimum(v, 1.0))
    tl.store(out + 2 * N + o, tl.clamp(v, -1.0, 2.0))  # not symmetric: that may go by the sign bit
    tl.store(out + 3 * N + o, tl.maximum(v, 1.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4 * N, tl.max(v))


@case
def maximum_of_nan(device: str) -> torch.Tensor:
    x = torch.tensor([float("nan"), 2.0, 0.5, float("inf")], device=device)
    out = torch.zeros(17, device=device)
    nan_kernel[(1,)](x, out, N=4)
    return out


@triton.jit
def overflow_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o)
    tl.store(out + o, v * v)
    tl.store(out + N + o, 1.0 / (v - v))
    tl.store(out + 2 * N + o, tl.sqrt(-v))
    tl.store(out + 3 * N + o, tl.log(v - v))
    tl.store(out + 4 * N, tl.max(tl.sqrt(-v)))


@case
def overflow_without_warnings(device: str) -> torch.Tensor:
    out = torch.zeros(17, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        overflow_kernel[(1,)](torch.full((4,), 1e30, device=device), out, N=4)
    return out


# --- arguments ------------------------------------------------------------------------------------


@triton.jit
def float_argument_kernel(x, out, scale):
    o = tl.arange(0, 8)
    tl.store(out + o, tl.load(x + o) * scale)
    tl.store(out + 8, scale * 3.0)
    tl.store(out + 9, scale.to(tl.float64) * 1e9)


@case
def float_arguments_are_float32(device: str) -> torch.Tensor:
    out = torch.empty(10, device=device)
    x = torch.arange(1, 9, device=device).bfloat16()
    float_argument_kernel[(1,)](x, out, 0.1)
    return out


@triton.jit
def int_argument_kernel(out, a, b, small):
    tl.store(out, a + b)
    tl.store(out + 1, a * 2)
    tl.store(out + 2, -a)
    tl.store(out + 3, small * 2147483647 + small)


@case
def int_arguments_of_32_and_64_bits(device: str) -> torch.Tensor:
    out = torch.empty(4, dtype=torch.int64, device=device)
    int_argument_kernel[(1,)](out, 2**31 + 5, 2**31 + 7, 2)
    return out


@triton.jit
def bool_argument_kernel(out, flag, other):
    tl.store(out, flag)
    if flag:
        tl.store(out + 1, 7)
    if not other:
        tl.store(out + 2, 8)


@case
def bool_arguments(device: str) -> torch.Tensor:
    out = torch.zeros(3, dtype=torch.int32, device=device)
    bool_argument_kernel[(1,)](out, True, False)
    return out


# --- memory ---------------------------------------------------------------------------------------


@triton.jit
def copy_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tl.load(x + o))


UNITS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


def any_bits(dtype: torch.dtype) -> torch.Tensor:
    """64 elements of any bits, except that a bool is 0 or 1."""
    size = 64 * dtype.itemsize
    bits = torch.randint(-128, 128, (size,), generator=torch.Generator().manual_seed(3))
    return (bits & 1 if dtype == torch.bool else bits).to(torch.int8).view(dtype)


@case
def copies(device: str) -> torch.Tensor:
    """Every dtype as itself and, through triton.reinterpret, as an integer; all as bytes."""
    outs = []
    for dtype in DTYPES:
        x = any_bits(dtype).to(device)
        out, units = torch.zeros_like(x), torch.zeros_like(x)
        copy_kernel[(1,)](x, out, N=64)
        views = (triton.reinterpret(t, UNITS[dtype.itemsize]) for t in (x, units))
        copy_kernel[(1,)](*views, N=64)
        outs += [out.view(torch.uint8), units.view(torch.uint8)]
    return torch.cat(outs)


@triton.jit
def reinterpreted_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tl.load(x + o) * 2)


@case
def reinterpreted_as_bfloat16(device: str) -> torch.Tensor:
    x = torch.arange(1, 9, device=device).bfloat16().view(torch.int16)
    out = torch.zeros(8, dtype=torch.int16, device=device)
    views = (triton.reinterpret(t, tl.bfloat16) for t in (x, out))
    reinterpreted_kernel[(1,)](*views, N=8)
    return out.view(torch.bfloat16)


@triton.jit
def gather_kernel(x, indices, keep, out, n, N: tl.constexpr):
    o = tl.arange(0, N)
    i = tl.load(indices + o)
    inside = (i >= 0) & (i < n) & tl.load(keep + o)
    tl.store(out + o, tl.load(x + i, mask=inside, other=0), mask=o < N)


@case
def gather_by_int64(device: str) -> torch.Tensor:
    """Bool loads, int64 loads, and indices that are only harmless in 64 bits."""
    indices = torch.tensor([0, 3, -1, 2**32 + 1, 2**33, -(2**40), 2, 1], device=device)
    keep = torch.tensor([True, True, True, True, True, True, True, False], device=device)
    x = torch.arange(10, 18, device=device)
    out = torch.empty(8, dtype=torch.int64, device=device)
    gather_kernel[(1,)](x, indices, keep, out, 8, N=8)
    return out


# --- elementary functions -------------------------------------------------------------------------

FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "sin", "cos", "erf")
DEVICE_FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sinh", "asin"),
    *("pow", "fmod"),
)


def arguments() -> torch.Tensor:
    """Where float32's own rounding, not the algorithm, dominates the error of each function."""
    return torch.linspace(0.02, 0.98, 64)


@triton.jit
def functions_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o)
    tl.store(out + o, tl.exp(v))
    tl.store(out + N + o, tl.exp2(v))
    tl.store(out + 2 * N + o, tl.log(v))
    tl.store(out + 3 * N + o, tl.log2(v))
    tl.store(out + 4 * N + o, tl.sqrt(v))
    tl.store(out + 5 * N + o, tl.rsqrt(v))
    tl.store(out + 6 * N + o, tl.sigmoid(v))
    tl.store(out + 7 * N + o, tl.sin(v))
    tl.store(out + 8 * N + o, tl.cos(v))
    tl.store(out + 9 * N + o, tl.erf(v))


@case
def functions(device: str) -> torch.Tensor:
    out = torch.empty(len(FUNCTIONS), 64, device=device)
    functions_kernel[(1,)](arguments().to(device), out, N=64)
    return out


@triton.jit
def device_functions_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o)
    tl.store(out + o, libdevice.exp(v))
    tl.store(out + N + o, libdevice.exp2(v))
    tl.store(out + 2 * N + o, libdevice.expm1(v))
    tl.store(out + 3 * N + o, libdevice.log(v))
    tl.store(out + 4 * N + o, libdevice.log2(v))
    tl.store(out + 5 * N + o, log1p(v))
    tl.store(out + 6 * N + o, libdevice.sqrt(v))
    tl.store(out + 7 * N + o, libdevice.rsqrt(v))
    tl.store(out + 8 * N + o, libdevice.tanh(v))
    tl.store(out + 9 * N + o, libdevice.sinh(v))
    tl.store(out + 10 * N + o, libdevice.asin(v))
    tl.store(out + 11 * N + o, libdevice.pow(v, 2.5))
    tl.store(out + 12 * N + o, libdevice.fmod(v, 0.25))


@case
def device_functions(device: str) -> torch.Tensor:
    out = torch.empty(len(DEVICE_FUNCTIONS), 64, device=device)
    device_functions_kernel[(1,)](arguments().to(device), out, N=64)
    return out


# --- what must raise ------------------------------------------------------------------------------


@triton.jit
def block_condition_kernel(out):
    o = tl.arange(0, 8)
    if o > 2:
        tl.store(out + o, 1)


@refused
def block_as_condition(device: str) -> None:
    block_condition_kernel[(1,)](torch.zeros(8, dtype=torch.int32, device=device))


@triton.jit
def block_choice_kernel(out):
    o = tl.arange(0, 8)
    tl.store(out + o, 1 if o > 2 else 2)


@refused
def block_as_ternary_condition(device: str) -> None:
    block_choice_kernel[(1,)](torch.zeros(8, dtype=torch.int32, device=device))


@triton.jit
def chain_kernel(out):
    o = tl.arange(0, 8)
    tl.store(out + o, (2 < o < 5).to(tl.int32))


@refused
def chained_comparison(device: str) -> None:
    """Before Triton 3.9, which compiles it."""
    chain_kernel[(1,)](torch.zeros(8, dtype=torch.int32, device=device))


@triton.jit
def bessel_kernel(out):
    tl.store(out, libdevice.j0(tl.load(out)))


@refused
def libdevice_without_a_twin(device: str) -> None:
    bessel_kernel[(1,)](torch.zeros(1, device=device))


@triton.jit
def half_exp_kernel(out):
    tl.store(out, libdevice.exp(tl.load(out)))


@refused
def libdevice_of_float16(device: str) -> None:
    half_exp_kernel[(1,)](torch.zeros(1, dtype=torch.float16, device=device))


@triton.jit
def assignment_kernel(out, n):
    if n > 0 and (m := n + 1) > 1:
        tl.store(out, m)


@refused
def assignment_inside_and(device: str) -> None:
    assignment_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=device), 1)


@triton.jit
def atomic_kernel(x):
    tl.atomic_add(x + tl.arange(0, 4), tl.full([4], 1.0, tl.bfloat16))


@refused
def bfloat16_atomic(device: str) -> None:
    atomic_kernel[(1,)](torch.zeros(4, dtype=torch.bfloat16, device=device))


def results() -> dict[str, torch.Tensor | str]:
    found: dict[str, torch.Tensor | str] = {}
    for name, run in {**CASES, **REFUSED}.items():
        try:
            result = run("cpu")
            found[name] = "it ran" if result is None else result
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    torch.save(results(), sys.argv[2])
