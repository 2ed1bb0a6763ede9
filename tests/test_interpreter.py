"""The interpreter's repairs: right against ml_dtypes and PyTorch, needed, and equal to a GPU.

Interpreted results come from worker processes: this process may interpret, compile, or neither.
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from twinlaw.properties import interpreter

SCRIPT = Path(__file__).with_name("micro_kernels.py")
TRITON = tuple(map(int, version("triton").split(".")[:2]))
NUMPY = tuple(map(int, version("numpy").split(".")[:2]))

Results = dict[str, torch.Tensor | str]


def load_micro_kernels() -> Any:
    spec = importlib.util.spec_from_file_location("micro_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mk = load_micro_kernels()


def python(*arguments: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    """Run a fresh Python that finds what this one finds, in the interpreter's mode or not."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def interpreted(mode: str, folder: Path, *flags: str) -> Results:
    file = folder / f"{mode}.pt"
    done = python(*flags, str(SCRIPT), mode, str(file), interpret=True)
    assert done.returncode == 0, done.stderr
    found: Results = torch.load(file, weights_only=True)
    return found


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return interpreted("repaired", tmp_path_factory.mktemp("repaired"), "-W", "error")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return interpreted("stock", tmp_path_factory.mktemp("stock"), "-W", "ignore")


# --- what is right --------------------------------------------------------------------------------


def cast_by_ml_dtypes(x: torch.Tensor) -> torch.Tensor:
    with np.errstate(all="ignore"):
        bits = x.numpy().astype(ml_dtypes.bfloat16).view(np.int16)
    return torch.from_numpy(bits).view(torch.bfloat16)


def truncated_to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    kept = (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(x.isnan(), torch.tensor(math.nan, dtype=torch.bfloat16), kept)


def largest_float16_within(x: torch.Tensor) -> torch.Tensor:
    """The largest float16 not beyond ``x``, by looking it up; infinities and NaNs stay."""
    magnitudes = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16)
    found = torch.searchsorted(magnitudes.float(), x.abs().nan_to_num(), right=True) - 1
    return torch.where(x.isfinite(), magnitudes[found].copysign(x), x).half()


X, Y = mk.every_16_bits(torch.bfloat16), mk.partners(torch.bfloat16)
XH, YH = mk.every_16_bits(torch.float16), mk.partners(torch.float16)


def reductions(dtype: torch.dtype) -> torch.Tensor:
    v = mk.integers(16, 16)
    row, column = v.sum(1), v.sum(0)
    total = torch.stack([v.sum(), v.max(), v.min(), v.sum()])
    parts = [column, row, row, total, torch.zeros(12), v.max(1).values, v.cumsum(1).reshape(-1)]
    return torch.cat(parts).to(dtype)


def maxima_of_nan() -> torch.Tensor:
    nan, inf = math.nan, math.inf
    return torch.tensor(
        [
            *(1, 2, 1, inf),  # max(x, 1)
            *(1, 1, 0.5, 1),  # min(x, 1)
            *(-1, 2, 0.5, 2),  # clamp(x, -1, 2)
            *(nan, 2, 1, inf),  # max(x, 1) with NaN passed on
            inf,
        ]
    )


def copied() -> torch.Tensor:
    return torch.cat([mk.any_bits(dtype).view(torch.uint8) for dtype in mk.DTYPES for _ in "ab"])


def scaled() -> torch.Tensor:
    scale = torch.tensor(0.1)
    rest = torch.stack([scale * 3, (scale.double() * 1e9).float()])
    return torch.cat([torch.arange(1, 9) * scale, rest])


RIGHT: dict[str, Callable[[], torch.Tensor]] = {
    "float32_to_bfloat16": lambda: mk.float32_edges().bfloat16(),
    "store_as_bfloat16": lambda: cast_by_ml_dtypes(mk.float32_edges()),
    "float32_to_bfloat16_toward_zero": lambda: truncated_to_bfloat16(mk.float32_edges()),
    "float32_to_float16": lambda: mk.float16_edges().half(),
    "float32_to_float16_toward_zero": lambda: largest_float16_within(mk.float16_edges()),
    "bfloat16_to_float32": lambda: X.float(),
    "bfloat16_to_float16": lambda: X.half(),
    "float16_to_bfloat16": lambda: XH.bfloat16(),
    "bfloat16_to_int32": lambda: torch.arange(-1024, 1024).bfloat16().int(),
    "int32_to_bfloat16": lambda: torch.arange(-(2**16), 2**16).bfloat16(),
    "bfloat16_add": lambda: X + Y,
    "bfloat16_sub": lambda: X - Y,
    "bfloat16_mul": lambda: X * Y,
    "bfloat16_abs": lambda: X.abs(),
    "bfloat16_where": lambda: torch.where(X < Y, X, Y),
    "bfloat16_literal": lambda: X * 2.5,
    "bfloat16_lt": lambda: (X < Y).to(torch.int8),
    "bfloat16_ge": lambda: (X >= Y).to(torch.int8),
    "bfloat16_eq": lambda: (X == Y).to(torch.int8),
    "bfloat16_ne": lambda: (X != Y).to(torch.int8),
    "bfloat16_positive": lambda: (X > 0).to(torch.int8),
    "float16_add": lambda: XH + YH,
    "float16_mul": lambda: XH * YH,
    "bfloat16_constants": lambda: torch.tensor(
        [1.7] * 8 + [1.0] * 5 + [-0.6] * 3 + [0.0] * 8, dtype=torch.bfloat16
    ),
    "bfloat16_reductions": lambda: reductions(torch.bfloat16),
    "float16_reductions": lambda: reductions(torch.float16),
    "float32_reductions": lambda: reductions(torch.float32),
    "int8_reductions": lambda: reductions(torch.int8),
    "bfloat16_dot": lambda: torch.matmul(*mk.integers(2, 16, 16)).float(),
    "block_masks": lambda: torch.tensor(
        [
            [0, 0, 0, 1, 1, 0, 0, 0],
            [1, 1, 0, 1, 0, 0, 1, 1],
            [-1, -1, -1, 3, 4, -1, 6, 7],
            [0, 0, 1, 1, 1, 1, 1, 1],
        ],
        dtype=torch.int32,
    ),
    "negated_mask": lambda: torch.tensor([-1, -1, -1, 3, 4, 5, 6, 7], dtype=torch.int32),
    "constants_cut_logic_short": lambda: torch.tensor([0, 2, 3], dtype=torch.int32),
    "scalars_do_not": lambda: torch.tensor([0, 1], dtype=torch.int32),
    "scalar_comparison_in_a_mask": lambda: torch.tensor(
        [0, 1, 2, 3, 4, 5, -1, -1], dtype=torch.int32
    ),
    "loop_over_a_runtime_bound": lambda: torch.tensor([45], dtype=torch.int32),
    "autotuned": lambda: torch.arange(10, dtype=torch.int32),
    "maximum_of_nan": maxima_of_nan,
    "overflow_without_warnings": lambda: torch.tensor(
        [math.inf] * 8 + [math.nan] * 4 + [-math.inf] * 4 + [math.nan]
    ),
    "float_arguments_are_float32": scaled,
    "int_arguments_of_32_and_64_bits": lambda: torch.tensor(
        [2**32 + 12, 2**32 + 10, -(2**31) - 5, 0]
    ),
    "bool_arguments": lambda: torch.tensor([1, 7, 8], dtype=torch.int32),
    "copies": copied,
    "reinterpreted_as_bfloat16": lambda: torch.arange(2, 18, 2).bfloat16(),
    "gather_by_int64": lambda: torch.tensor([10, 13, 0, 0, 0, 0, 12, 0]),
}
"""What a case gives bit for bit, though any NaN is as good as another."""

CLOSE: dict[str, tuple[Callable[[], torch.Tensor], float]] = {
    "bfloat16_div": (lambda: X.double() / Y.double(), 0.51),
    "bfloat16_fma": (lambda: torch.addcmul(X.double(), X.double(), Y.double()), 0.51),
    "bfloat16_neg": (lambda: -X.double(), 0),  # 0 - x before Triton 3.8: never -0
    "bfloat16_maximum": (lambda: torch.fmax(X.double(), Y.double()), 0),
    "float16_maximum": (lambda: torch.fmax(XH.double(), YH.double()), 0),
    "functions": (lambda: function_values(mk.FUNCTIONS), 2.5),
    "device_functions": (lambda: function_values(mk.DEVICE_FUNCTIONS), 0.51),
}
"""The real values of other cases, and how many units in the last place may be between."""


def function_values(names: tuple[str, ...]) -> torch.Tensor:
    x = mk.arguments().double()
    special = {"pow": x**2.5, "fmod": x.fmod(0.25)}
    return torch.stack([special[n] if n in special else getattr(torch, n)(x) for n in names])


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal bits, zeros' signs included, but for NaN's."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if not got.is_floating_point():
        return torch.equal(got, want)
    integer = {2: torch.int16, 4: torch.int32}[got.itemsize]
    bits = got.view(integer) == want.contiguous().view(integer)
    return bool((bits | (got.isnan() & want.isnan())).all())


def ulps(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest distance in units in the last place of ``got``'s dtype.

    NaN and infinities must agree; float64 values beyond the dtype's range count as infinite.
    """
    limits = torch.finfo(got.dtype)
    exact = want.double()
    rounded = exact.to(got.dtype)
    special = ~(got.isfinite() & rounded.isfinite())
    assert torch.equal(got[special].nan_to_num(nan=7), rounded[special].nan_to_num(nan=7))
    unit = torch.exp2(exact.abs().clamp_min(limits.tiny).log2().floor()) * limits.eps
    return float(((got.double() - exact).abs() / unit)[~special].max())


def result(results: Results, name: str) -> torch.Tensor:
    found = results[name]
    assert isinstance(found, torch.Tensor), found
    return found


# --- repaired, the interpreter is right -----------------------------------------------------------


def test_every_case_has_its_truth() -> None:
    assert set(mk.CASES) == {*RIGHT, *CLOSE, "bfloat16_row_sums", "float16_row_sums"}


@pytest.mark.parametrize("name", RIGHT)
def test_repaired_is_right(repaired: Results, name: str) -> None:
    assert same(result(repaired, name), RIGHT[name]())


@pytest.mark.parametrize("name", CLOSE)
def test_repaired_is_close(repaired: Results, name: str) -> None:
    values, most = CLOSE[name]
    assert ulps(result(repaired, name), values()) <= most


def rounding_steps(sums: torch.Tensor, dtype: torch.dtype) -> tuple[float, bool]:
    """The worst error of ``row_sums`` in roundings of the result, and whether any row has more
    than one."""
    x = mk.rows().to(dtype).double()
    exact = x.sum(1)
    unit = torch.finfo(dtype).eps / 2
    return (
        float(((sums.double() - exact).abs() / (unit * exact)).max()),
        not torch.equal(sums, exact.to(dtype).float()),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_round_at_each_step(repaired: Results, dtype: torch.dtype) -> None:
    sums = result(repaired, f"{str(dtype).removeprefix('torch.')}_row_sums")
    steps, more_than_one = rounding_steps(sums, dtype)
    assert steps <= 10  # log2 of 1024 terms
    assert more_than_one


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("block_as_condition", "a condition must be a scalar: got a block of shape [8]"),
        ("block_as_ternary_condition", "a condition must be a scalar: got a block of shape [8]"),
        ("libdevice_without_a_twin", "__nv_j0f has no NumPy twin"),
        ("libdevice_of_float16", "float16"),
        ("assignment_inside_and", "`and` and `or` must not assign"),
        ("bfloat16_atomic", "Unsupported data type"),
        pytest.param(
            "chained_comparison",
            "comparisons must not be chained before Triton 3.9",
            marks=pytest.mark.skipif(TRITON >= (3, 9), reason="Triton 3.9 compiles chains"),
        ),
    ],
)
def test_what_cannot_be_repaired_raises(repaired: Results, name: str, reason: str) -> None:
    message = repaired[name]
    assert isinstance(message, str)
    assert reason in message


# --- as it comes, it is not -----------------------------------------------------------------------

ALWAYS = True
STOCK_IS_WRONG = {
    "float32_to_bfloat16": ALWAYS,
    "store_as_bfloat16": ALWAYS,
    "float32_to_bfloat16_toward_zero": ALWAYS,
    "float32_to_float16_toward_zero": ALWAYS,
    "float16_to_bfloat16": ALWAYS,
    "int32_to_bfloat16": ALWAYS,
    "bfloat16_add": ALWAYS,
    "bfloat16_sub": ALWAYS,
    "bfloat16_mul": ALWAYS,
    "bfloat16_where": ALWAYS,
    "bfloat16_literal": ALWAYS,
    "bfloat16_lt": ALWAYS,
    "bfloat16_ge": ALWAYS,
    "bfloat16_positive": ALWAYS,
    "bfloat16_constants": ALWAYS,
    "bfloat16_reductions": ALWAYS,
    "bfloat16_dot": ALWAYS,
    "block_masks": ALWAYS,
    "negated_mask": ALWAYS,
    "scalars_do_not": ALWAYS,
    "autotuned": not torch.cuda.is_available(),
    "overflow_without_warnings": ALWAYS,
    "float_arguments_are_float32": ALWAYS,
    "int_arguments_of_32_and_64_bits": ALWAYS,
    "reinterpreted_as_bfloat16": ALWAYS,
    "bool_arguments": TRITON < (3, 8),
    "maximum_of_nan": TRITON < (3, 8),
    "scalar_comparison_in_a_mask": TRITON >= (3, 9),
    "loop_over_a_runtime_bound": TRITON < (3, 7) and NUMPY >= (2, 4),
}


@pytest.mark.skipif(TRITON > (3, 9), reason="nobody has looked at a newer Triton yet")
@pytest.mark.parametrize("name", [name for name, wrong in STOCK_IS_WRONG.items() if wrong])
def test_repair_is_needed(stock: Results, name: str) -> None:
    found = stock[name]
    assert isinstance(found, str) or not same(found, RIGHT[name]())


@pytest.mark.skipif(TRITON > (3, 9), reason="nobody has looked at a newer Triton yet")
@pytest.mark.parametrize("name", ["bfloat16_fma", "device_functions"])
def test_close_repair_is_needed(stock: Results, name: str) -> None:
    found = stock[name]
    assert isinstance(found, str) or not torch.allclose(
        found.double(), CLOSE[name][0]().to(found.dtype).double(), rtol=0.01, equal_nan=True
    )


@pytest.mark.skipif(TRITON > (3, 9), reason="nobody has looked at a newer Triton yet")
def test_stock_sums_round_once_or_add_bits(stock: Results) -> None:
    assert not rounding_steps(result(stock, "float16_row_sums"), torch.float16)[1]
    steps, _ = rounding_steps(result(stock, "bfloat16_row_sums"), torch.bfloat16)
    assert not steps <= 100


# --- it is what a GPU gives -----------------------------------------------------------------------

compiled_here = pytest.mark.skipif(
    not torch.cuda.is_available() or interpreter.is_interpreting(),
    reason="needs a GPU, and a process that compiles for it",
)
GPU_ULPS = {
    "bfloat16_neg": 0,
    "bfloat16_maximum": 0,
    "float16_maximum": 0,
    "bfloat16_fma": 1,  # where float64 loses what breaks a tie
    "functions": 4,
    "device_functions": 4,
}


@compiled_here
@pytest.mark.filterwarnings("ignore:Logical operators:UserWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_compiled_is_the_same(repaired: Results, name: str) -> None:
    assert same(mk.CASES[name]("cuda").cpu(), result(repaired, name))


@compiled_here
@pytest.mark.parametrize("name", GPU_ULPS)
def test_compiled_is_close(repaired: Results, name: str) -> None:
    compiled = mk.CASES[name]("cuda").cpu()
    assert ulps(compiled, result(repaired, name)) <= GPU_ULPS[name]


@compiled_here
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiled_sums_round_at_each_step(dtype: torch.dtype) -> None:
    sums = mk.CASES[f"{str(dtype).removeprefix('torch.')}_row_sums"]("cuda").cpu()
    steps, more_than_one = rounding_steps(sums, dtype)
    assert steps <= 14  # seven additions in a thread, then shuffles
    assert more_than_one


@compiled_here
@pytest.mark.parametrize("name", ["block_as_condition", "block_as_ternary_condition"])
def test_compiler_refuses_it_too(name: str) -> None:
    with pytest.raises(Exception, match=r"ambiguous|parsing"):
        mk.REFUSED[name]("cuda")


# --- switching it on ------------------------------------------------------------------------------


def script(code: str, *, interpret: bool = False) -> subprocess.CompletedProcess[str]:
    preamble = "import sys\nfrom twinlaw.properties import interpreter\n"
    return python("-W", "error", "-c", preamble + code, interpret=interpret)


def test_importing_it_imports_nothing_heavy() -> None:
    done = script(
        "print([m for m in ('triton', 'torch', 'numpy', 'ml_dtypes') if m in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_enable_interprets_repairs_and_can_be_repeated() -> None:
    done = script(
        """
before = interpreter.is_interpreting()
interpreter.enable()
from triton.runtime.interpreter import InterpreterBuilder as builder
once = builder.binary_op
interpreter.enable()
interpreter.repair()
interpreter.self_test()
print(before, interpreter.is_interpreting(), builder.binary_op is once)
"""
    )
    assert done.stdout == "False True True\n", done.stderr


def test_enable_after_triton_compiles_raises() -> None:
    done = script("import triton\nprint(interpreter.is_interpreting())\ninterpreter.enable()")
    assert done.stdout == "False\n"
    assert "RuntimeError: the interpreter must be chosen before Triton is imported" in done.stderr


def test_repair_of_a_compiling_process_raises() -> None:
    done = script("import triton\ninterpreter.repair()")
    assert "RuntimeError: repair() is for Triton's interpreter" in done.stderr


def test_a_repair_that_does_not_fit_names_the_version() -> None:
    done = script(
        """
from triton.runtime import interpreter as stock
del stock.ScanOps.cumprod
interpreter.repair()
""",
        interpret=True,
    )
    version_text = f"RuntimeError: Triton {version('triton')} is not supported by the interpreter"
    assert version_text in done.stderr
    assert "cumprod" in done.stderr


def test_self_test_notices_a_lost_repair() -> None:
    done = script(
        """
from triton.runtime import interpreter as stock
places = [
    (stock.InterpreterBuilder, "binary_op"),
    (stock.InterpreterBuilder, "cast_impl"),
    (stock.ReduceOps, "sum"),
    (stock, "_implicit_cvt"),
    (stock.FunctionRewriter, "ast_transformer"),
    (stock.InterpreterBuilder, "create_extern_elementwise"),
]
before = [getattr(owner, name) for owner, name in places]
interpreter.enable()
for (owner, name), lost in zip(places, before):
    repaired = getattr(owner, name)
    setattr(owner, name, lost)
    try:
        interpreter.self_test()
        print("passed without", name)
    except RuntimeError as error:
        print(error)
    setattr(owner, name, repaired)
interpreter.self_test()
""",
        interpret=True,
    )
    assert done.returncode == 0, done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == 6
    begin = f"Triton {version('triton')} is not supported by the interpreter repairs: "
    assert all(message.startswith(begin) for message in messages), messages


def test_nested_calls_do_not_adapt_the_language_again() -> None:
    done = script(
        """
import torch, triton
import triton.language as tl
from triton.runtime import interpreter as stock

@triton.jit
def one_call(x):
    tl.store(x, tl.cdiv(7, 2))

@triton.jit
def three_calls(x):
    tl.store(x, tl.cdiv(7, 2) + tl.cdiv(9, 2) + tl.cdiv(3, 2))

def adaptations(kernel):
    kernel[(1,)](torch.zeros(1))
    before = len(adapted)
    kernel[(1,)](torch.zeros(1))
    return len(adapted) - before

adapted = []
adapt = stock._patch_lang_tensor
stock._patch_lang_tensor = lambda *args: (adapted.append(args[0]), adapt(*args))
print(adaptations(one_call) == adaptations(three_calls))
interpreter.repair()
print(adaptations(one_call) == adaptations(three_calls) > 0)
""",
        interpret=True,
    )
    assert done.stdout == "False\nTrue\n", done.stderr


def test_warnings_are_silenced_in_launches_only() -> None:
    done = script(
        """
interpreter.enable()
interpreter.self_test()
import numpy as np
print(np.geterr())
try:
    np.ones(1) / np.zeros(1)
except RuntimeWarning as warning:
    print(warning)
"""
    )
    assert "'ignore'" not in done.stdout.split("'under'")[0]
    assert "divide by zero" in done.stdout, done.stderr
