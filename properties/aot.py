"""Compile kernels for GPUs that are not there, and say what they need of them.

Triton's compiler and the assemblers in its wheel need no driver. So every CPU can check, for each
launch configuration, what no interpreter sees: that the compiler accepts the kernel, and that it
fits into registers. A process that interprets its kernels cannot compile them as well, so
``compile_all`` does its work in a fresh one, which is also a command:

    python -m twinlaw.properties.aot < COMPILATIONS.json > OUTCOMES.jsonl
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "TARGETS",
    "Compilation",
    "CompilationError",
    "Compiled",
    "Outcome",
    "Target",
    "compile_all",
    "compile_for",
]

Constant = bool | int | float | str | None


class Target(NamedTuple):
    """A GPU: Triton's backend, the architecture in its terms, and threads a warp."""

    backend: str
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


TARGETS = (
    Target("cuda", 80, 32),
    Target("cuda", 90, 32),
    Target("cuda", 100, 32),
    Target("hip", "gfx942", 64),
)
"""Ampere, Hopper, Blackwell and CDNA3."""


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One specialisation of a kernel: what Triton would compile for one kind of launch.

    ``kernel`` is ``"package.module:name"`` or ``"path/to/file.py:name"``. ``signature`` gives each
    remaining parameter Triton's name of its type (``"*bf16"``, ``"i32"``, ``"fp32"``).
    ``constexprs`` holds the others: those declared ``tl.constexpr``, and those that a launch turns
    into constants, None and integers equal to 1. ``divisible_by_16`` names pointers and integers
    that a launch finds to be multiples of 16.
    """

    kernel: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Constant]
    num_warps: int = 4
    num_stages: int | None = None
    divisible_by_16: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the machine code needs.

    ``registers`` a thread, ``spills``: 32-bit registers kept in memory for want of room (a thread's
    on NVIDIA, vector and scalar ones together on AMD), and ``shared``: bytes of shared memory.
    """

    registers: int
    spills: int
    shared: int


class CompilationError(Exception):
    """The compiler's refusal, in its own words."""


class Outcome(NamedTuple):
    """One compilation for one target: ``Compiled``, or the reason why not."""

    compilation: Compilation
    target: Target
    result: Compiled | CompilationError


def compile_all(
    compilations: Iterable[Compilation], targets: Iterable[Target] = TARGETS
) -> list[Outcome]:
    """Compile everything for every target, in one fresh process; outcomes in order.

    What the compiler refuses, or dies of, is an outcome. Raises RuntimeError when the process
    cannot even start its work.
    """
    targets = tuple(targets)
    jobs = [(compilation, target) for compilation in compilations for target in targets]
    outcomes: list[Outcome] = []
    while len(outcomes) < len(jobs):
        todo = jobs[len(outcomes) :]
        worker = _run_worker([[vars(compilation), target] for compilation, target in todo])
        lines = worker.stdout.splitlines()
        if not lines:
            raise RuntimeError(
                f"ahead-of-time compilation must start: exit code {worker.returncode}, "
                f"{worker.stderr.strip()[-2000:]}"
            )
        results = [_from_json(line) for line in lines[1:]]
        if len(results) < len(todo):
            results.append(
                CompilationError(
                    f"the compiler died with exit code {worker.returncode}: "
                    f"{worker.stderr.strip()[-2000:]}"
                )
            )
        outcomes += [Outcome(*job, result) for job, result in zip(todo, results, strict=False)]
    return outcomes


def _run_worker(jobs: list[Any]) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # The worker finds the modules that this process finds.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "twinlaw.properties.aot"],
        input=json.dumps(jobs, default=dict),  # mappings of any kind
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _from_json(line: str) -> Compiled | CompilationError:
    result = json.loads(line)
    return CompilationError(result["error"]) if "error" in result else Compiled(**result)


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Constant],
    target: Target,
    *,
    num_warps: int = 4,
    num_stages: int | None = None,
    divisible_by_16: Iterable[str] = (),
) -> Compiled:
    """Compile ``kernel``, a ``triton.jit`` function, in this process; see ``Compilation``.

    Raises CompilationError with the compiler's words, ValueError for a parameter that is given no
    type, and TypeError for a kernel of a process that interprets.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.runtime.jit import JITFunction

    while not isinstance(kernel, JITFunction):  # below autotune and heuristics
        if type(kernel).__name__ == "InterpretedFunction" or not hasattr(kernel, "fn"):
            raise TypeError(
                f"`kernel` must be a compiled triton.jit function: got {type(kernel).__name__}; "
                "use compile_all() from a process that interprets"
            )
        kernel = kernel.fn
    names = kernel.arg_names
    if unknown := {*signature, *constexprs, *divisible_by_16} - {*names}:
        raise ValueError(f"`{kernel.__name__}` has no parameter {', '.join(sorted(unknown))}")
    if untyped := [name for name in names if name not in signature and name not in constexprs]:
        raise ValueError(
            f"`signature` must type every parameter of `{kernel.__name__}` that is no constant: "
            f"add {', '.join(untyped)}"
        )
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constexprs else signature[name] for name in names},
        dict(constexprs),
        {(names.index(name),): [["tt.divisibility", 16]] for name in divisible_by_16},
    )
    options = {"num_warps": num_warps}
    if num_stages is not None:
        options["num_stages"] = num_stages
    log = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        knobs.compilation.always_compile = True  # what comes from the cache brings no log
        knobs.nvidia.dump_ptxas_log = True
        try:
            binary = compile(source, GPUTarget(*target), options)
        except Exception as error:
            raise CompilationError(f"{type(error).__name__}: {error}") from error
    shared = binary.metadata.shared
    if target.backend == "cuda":
        return _from_ptxas_log(log.getvalue(), shared)
    return _from_amdgcn(binary.asm["amdgcn"], shared)


def _from_ptxas_log(log: str, shared: int) -> Compiled:
    registers, stores = (
        _found(r"Used (\d+) registers", log),
        _found(r"(\d+) bytes spill stores", log),
    )
    return Compiled(max(registers), sum(stores) // 4, shared)


def _from_amdgcn(assembly: str, shared: int) -> Compiled:
    registers = _found(r"\.vgpr_count:\s*(\d+)", assembly)
    spills = _found(r"\.[sv]gpr_spill_count:\s*(\d+)", assembly)
    return Compiled(max(registers), sum(spills), shared)


def _found(pattern: str, text: str) -> list[int]:
    numbers = [int(number) for number in re.findall(pattern, text)]
    if not numbers:
        raise RuntimeError(f"Triton's compiler must report {pattern!r}: it says {text[:500]!r}")
    return numbers


def _load(kernel: str) -> Any:
    """The function that ``Compilation.kernel`` names."""
    place, _, name = kernel.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(f"`kernel` must name a Python file: got {place}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _outcome(job: list[Any]) -> dict[str, Any]:
    fields, target = job
    kernel = fields.pop("kernel")
    try:
        compiled = compile_for(_load(kernel), target=Target(*target), **fields)
    except CompilationError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{kernel} cannot be compiled: {type(error).__name__}: {error}"}
    return dataclasses.asdict(compiled)


def main() -> None:
    """Read jobs as JSON, [compilation, target] each; print ``{}``, then a line for each."""
    # Whether a * b + c is fused is Triton's to decide, but 3.9 wants to be told.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    # Whatever kernels' modules and assemblers print must not come between the lines.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as cache, lines:
        os.environ["TRITON_CACHE_DIR"] = cache
        print("{}", file=lines, flush=True)
        for job in json.load(sys.stdin):
            print(json.dumps(_outcome(job)), file=lines, flush=True)


if __name__ == "__main__":
    main()
