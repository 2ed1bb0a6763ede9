"""Ahead-of-time compilation: resources on four GPUs, and refusals, without one."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
import triton.language as tl

from twinlaw.properties.aot import (
    TARGETS,
    Compilation,
    CompilationError,
    Compiled,
    Outcome,
    Target,
    compile_all,
)

HERE = str(Path(__file__).resolve())


@triton.jit
def scale_kernel(x, out, bias, n, step, factor, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + o * step, mask=o < n).to(tl.float32) * factor
    if bias is not None:
        v += tl.load(bias + o, mask=o < n)
    tl.store(out + o, v, mask=o < n)


@triton.jit
def crowded_kernel(x, out, n, BLOCK: tl.constexpr):
    """Eight blocks that all live through a loop."""
    o = tl.arange(0, BLOCK)
    a = tl.load(x + o)
    b, c, d, e, f, g, h = a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7
    for _ in range(n):
        a, b, c, d, e, f, g, h = b * h, c + a, d * b, e + c, f * d, g + e, h * f, a + g
    tl.store(out + o, a + b + c + d + e + f + g + h)


@triton.jit
def changing_kernel(out, n):
    """A variable that enters the loop as int32 and leaves it as float32."""
    total = n
    for _ in range(n):
        total = total + 0.5
    tl.store(out, total)


@triton.jit
def sum_kernel(x, out, BLOCK: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, BLOCK))))


SCALE = Compilation(
    f"{HERE}:scale_kernel",
    {"x": "*bf16", "out": "*fp32", "n": "i32", "factor": "fp32"},
    {"bias": None, "step": 1, "BLOCK": 256},
    num_warps=2,
    divisible_by_16=("x", "out", "n"),
)
IN_OUT = {"x": "*fp32", "out": "*fp32"}
CROWDED = Compilation(
    f"{HERE}:crowded_kernel", {**IN_OUT, "n": "i32"}, {"BLOCK": 4096}, num_warps=1
)
CHANGING = Compilation(f"{HERE}:changing_kernel", {"out": "*fp32", "n": "i32"}, {})
SHARED = Compilation(f"{HERE}:sum_kernel", IN_OUT, {"BLOCK": 1024})
UNTYPED = Compilation(f"{HERE}:changing_kernel", {"out": "*fp32"}, {})
MISSING = Compilation(f"{HERE}:no_such_kernel", {}, {})

JOBS = {
    "scale": SCALE,
    "shared": SHARED,
    "changing": CHANGING,
    "untyped": UNTYPED,
    "missing": MISSING,
}


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], Outcome]:
    """All jobs for all targets, from one worker process."""
    found = compile_all(JOBS.values())
    keys = [(name, str(target)) for name in JOBS for target in TARGETS]
    expected = [(compilation, target) for compilation in JOBS.values() for target in TARGETS]
    assert [(outcome.compilation, outcome.target) for outcome in found] == expected
    return dict(zip(keys, found, strict=True))


def compiled(outcome: Outcome) -> Compiled:
    assert isinstance(outcome.result, Compiled), outcome.result
    return outcome.result


def refusal(outcome: Outcome) -> str:
    assert isinstance(outcome.result, CompilationError)
    return str(outcome.result)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_small_kernel_fits(outcomes: dict[tuple[str, str], Outcome], target: Target) -> None:
    result = compiled(outcomes["scale", str(target)])
    assert 0 < result.registers <= 64
    assert result.spills == 0
    assert result.shared == 0


def test_a_crowded_kernel_spills() -> None:
    """One warp has 32 x 255 registers for 8 x 4096 numbers; a wave of CDNA3, 64 x 512."""
    _, hopper, _, cdna3 = TARGETS
    on_hopper, on_cdna3 = compile_all([CROWDED], (hopper, cdna3))
    assert compiled(on_hopper).spills > 0
    assert compiled(on_cdna3).spills > 0


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_reduction_shares(outcomes: dict[tuple[str, str], Outcome], target: Target) -> None:
    """Four warps meet in shared memory; each brings at least one float32."""
    assert compiled(outcomes["shared", str(target)]).shared >= 16


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_refusal_is_readable(outcomes: dict[tuple[str, str], Outcome], target: Target) -> None:
    message = refusal(outcomes["changing", str(target)])
    assert message.startswith("CompilationError: ")
    assert "def changing_kernel(out, n):" in message
    assert "Loop-carried variable total has initial type int32" in message


def test_a_missing_type_is_named(outcomes: dict[tuple[str, str], Outcome]) -> None:
    message = refusal(outcomes["untyped", "sm_80"])
    assert "`signature` must type every parameter of `changing_kernel`" in message
    assert "add n" in message


def test_a_missing_kernel_is_named(outcomes: dict[tuple[str, str], Outcome]) -> None:
    assert f"{HERE}:no_such_kernel cannot be compiled" in refusal(outcomes["missing", "gfx942"])


def test_a_dying_compiler_is_an_outcome(tmp_path: Path) -> None:
    fatal = tmp_path / "fatal.py"
    fatal.write_text("import os\nprint('noise', flush=True)\nos._exit(3)\n", encoding="utf-8")
    dies = Compilation(f"{fatal}:kernel", {}, {})
    first, second = compile_all([dies, CHANGING], TARGETS[:1])
    assert "the compiler died with exit code 3: noise" in refusal(first)
    assert refusal(second).startswith("CompilationError: ")


def test_nothing_to_do_starts_nothing() -> None:
    assert compile_all([]) == []


@pytest.mark.parametrize("mode", ["interprets", "compiles"])
def test_a_process_of_either_mode_can_compile(mode: str) -> None:
    """The worker compiles even if its parent interprets, which cannot compile by itself."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["TRITON_INTERPRET"] = "1" if mode == "interprets" else "0"
    code = f"""
import runpy
from twinlaw.properties.aot import *
there = runpy.run_path({HERE!r}, run_name="test_aot")
print(compile_all([there["SCALE"]], TARGETS[:1])[0].result.spills)
try:
    print(compile_for(there["scale_kernel"], {{}}, {{}}, TARGETS[0]))
except (TypeError, ValueError) as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    spills, complaint = done.stdout.splitlines()
    assert spills == "0"
    if mode == "interprets":
        assert complaint.startswith("TypeError `kernel` must be a compiled triton.jit function")
    else:
        assert complaint.startswith("ValueError `signature` must type every parameter")
