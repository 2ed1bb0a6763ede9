"""A counterexample as a stand-alone script: torch, the op and the reference; no Hypothesis."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from twinlaw.properties.arena import GUARD, poisoned
from twinlaw.properties.case import Case, StandIn, TensorSpec
from twinlaw.properties.strategies.values import EDGES
from twinlaw.properties.subjects import Subject

__all__ = ["arguments_script", "script"]


def script(case: Case, subject: Subject, law: str, device: str) -> str:
    """Python source that makes the call of ``case`` on ``device``, and the reference's.

    The arguments are those of the arena, bit for bit and at the same places of their buffers; what
    lies between the elements is NaN. It prints whether the call is legal and how far the written
    arguments are from the reference's, which runs in float64 where the op has error bounds.
    """
    op = subject.op
    lines = [f'"""{law}: {subject.name}, without the suite."""', ""]
    if device == "cpu":
        lines += [
            "from twinlaw.properties import interpreter",
            "",
            "interpreter.enable()  # Triton's, repaired to compute what a GPU does",
            "",
        ]
    lines += [
        "import torch",
        "",
        f"from {op.reference.__module__} import legal",
        f"from {op.reference.__module__} import {op.reference.__name__} as reference",
        *_import(subject.function),
        arguments_script(case, subject, device),
        'print("legal, says the reference:", legal(**arguments))',
    ]
    if case.broken:
        lines += [
            f"# Must raise: the call breaks {case.broken}.",
            "fused(**arguments)",
            'print("accepted")',
        ]
    else:
        written = tuple(arg.name for arg in subject.contract.args if arg.written)
        lines += [_COMPARISON[bool(op.error_bound)].format(written=written)]
    return "\n".join(lines) + "\n"


def arguments_script(case: Case, subject: Subject, device: str) -> str:
    """The part of the script, after ``import torch``, that builds ``arguments``, a dict by name."""
    outputs = {a.name for a in subject.contract.args if a.access == "w"}
    specs = {n: s for n, s in case.tensors.items() if isinstance(s, TensorSpec)}
    before, inside = [_HELPERS.format(device=device)], []
    # A host before its guests, as in the arena, so that what they share holds the same in the end.
    for host in (n for n, s in specs.items() if s.inside is None):
        guests = {n: s for n, s in specs.items() if s.inside and s.inside[0] == host}
        memory = f"buffer({_size({host: specs[host], **guests})})"
        if guests:
            before.append(f"{host}_buffer = {memory}")
            memory = f"{host}_buffer"
        for name, spec in {host: specs[host], **guests}.items():
            values = _poison(spec) if name in outputs else _values(spec)
            place = f"{spec.layout.strides}, {_start(spec) // spec.itemsize}"
            if words := ", ".join(spec.layout.words):
                inside.append(f"# {words}")
            inside.append(f"{name}=tensor({memory}, {place}, {values}),")
    for name, stands_in in case.tensors.items():
        if not isinstance(stands_in, TensorSpec):
            inside += [f"{name}={_stand_in(stands_in)},"]
    inside += [f"{name}={_literal(value)}," for name, value in case.scalars.items()]
    return "\n".join([*before, "arguments = dict(", *("    " + i for i in inside), ")"])


_HELPERS = """
seed = torch.Generator().manual_seed


def buffer(size):
    return torch.full((size,), 255, dtype=torch.uint8, device={device!r})  # NaN in every dtype


def tensor(buffer, strides, offset, values):
    \"\"\"A view into `buffer`, strides and offset in elements, that holds `values`.\"\"\"
    units = {{1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}}
    unit = units.get(values.itemsize, values.dtype)  # moved as integers, so that bits stay
    memory = buffer.cpu().view(unit)
    places = torch.arange(memory.numel()).as_strided(values.shape, strides, offset)
    last = torch.zeros(memory.numel(), dtype=torch.int64)  # of indices that name one element
    last = last.scatter_reduce(0, places.flatten(), torch.arange(values.numel()), "amax")
    memory[places] = values.view(unit).flatten()[last[places]]
    buffer.copy_(memory.view(torch.uint8))
    return buffer.view(values.dtype).as_strided(values.shape, strides, offset)

"""

_COMPARISON = {
    True: """\
expected = {{
    n: x.cpu().to(torch.float64 if x.is_floating_point() else x.dtype, copy=True)
    if torch.is_tensor(x) else x
    for n, x in arguments.items()
}}
fused(**arguments)
reference(**expected)
for name in {written}:
    got, wanted = arguments[name].cpu().double(), expected[name]
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    error = torch.where(same, 0.0, (got - wanted).abs()).flatten().tolist()
    print(f"{{name}}: largest difference", max(error, default=0.0))""",
    False: """\
expected = {{n: x.cpu().clone() if torch.is_tensor(x) else x for n, x in arguments.items()}}
fused(**arguments)
reference(**expected)
for name in {written}:
    got, wanted = (
        x[name].cpu().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
        for x in (arguments, expected)
    )
    print(f"{{name}}: different bytes", int((got != wanted).sum()))""",
}
"""The calls and what they are compared by; by whether the op has error bounds."""


def _import(function: Callable[..., Any]) -> Iterator[str]:
    """Statements that name the subject ``fused``, where it can be imported."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if module in ("", "__main__") or found is not function:
        yield f"fused = ...  # put here what was judged: {function!r}"
    else:
        top, _, rest = name.partition(".")
        yield f"from {module} import {top} as fused"
        if rest:
            yield f"fused = fused.{rest}"


def _start(spec: TensorSpec) -> int:
    """Where a view begins in its buffer, in bytes."""
    return GUARD + (spec.inside[1] if spec.inside else 0) + spec.layout.offset * spec.itemsize


def _size(specs: dict[str, TensorSpec]) -> int:
    """The bytes of a buffer with a host tensor and those that live inside it: the arena's."""
    end = max(_start(s) + s.layout.extent * s.itemsize for s in specs.values())
    return -(-end // GUARD) * GUARD + GUARD


def _values(spec: TensorSpec) -> str:
    """An expression for what :func:`twinlaw.properties.strategies.values.fill` gives."""
    shape, values, dtype = spec.layout.shape, spec.values, spec.torch_dtype
    drawn = f"{shape}, dtype=torch.float64"
    if values.numbers is not None:
        source = f"torch.tensor({list(values.numbers)}, dtype=torch.int64)"
        source += "" if dtype == torch.int64 else f".to({dtype})"
        return source + ("" if len(shape) == 1 else f".reshape({shape})")
    if values.kind == "bits" or not (dtype.is_floating_point and dtype.itemsize > 1):
        size = math.prod(shape) * dtype.itemsize
        noise = (
            f"torch.randint(0, 256, ({size},), dtype=torch.uint8, generator=seed({values.seed}))"
        )
        return f"{noise}.view({dtype}).reshape({shape})"
    generator = f"generator=seed({values.seed})"
    source = {
        "normal": f"torch.randn({drawn}, {generator})",
        "small integers": f"torch.randint(-3, 4, {shape}, {generator}).double()",
        "iota": f"(torch.arange({math.prod(shape)}, dtype=torch.float64).reshape({shape}) % 17)",
        "ones": f"torch.ones({drawn})",
        "zeros": f"torch.zeros({drawn})",
        "edges": f"torch.tensor({list(EDGES)}, dtype=torch.float64)"
        f"[torch.randint(0, {len(EDGES)}, {shape}, {generator})]",
    }[values.kind]
    if values.scale != 1:
        source += f".mul({values.scale})"
    return f"{source}.to({dtype})"


def _poison(spec: TensorSpec) -> str:
    """An expression for what the arena fills an output with."""
    unit = bytes(poisoned(spec.itemsize, spec.torch_dtype, "nan").tolist())
    number = int.from_bytes(unit, sys.byteorder)
    if not number:
        return f"torch.zeros({spec.layout.shape}, dtype={spec.torch_dtype})"
    bits = f"torch.int{8 * spec.itemsize}"
    return f"torch.full({spec.layout.shape}, {number:#x}, dtype={bits}).view({spec.torch_dtype})"


def _stand_in(spec: StandIn | None) -> str:
    """An expression for what stands in for a tensor."""
    if spec is None:
        return "None"
    shape = spec.spec.layout.shape
    ones = f"torch.ones({shape}, dtype={spec.spec.torch_dtype})"
    return {
        "None": "None",
        "a list": f"[0.0] * {math.prod(shape)}",
        "a number": "1.0",
        "a numpy array": f"torch.ones({shape}).numpy()",
        "a meta tensor": f'{ones}.to("meta")',
        "a sparse tensor": f"torch.sparse_coo_tensor(torch.empty(({len(shape)}, 0), "
        f"dtype=torch.int64), torch.empty(0, dtype={spec.spec.torch_dtype}), {shape})",
        "a lazily negated view": f"torch._neg_view({ones})",
        "a nested tensor": f"torch.nested.as_nested_tensor(list({ones}) or [{ones}])",
    }.get(spec.kind) or f'"put {spec.kind} here"'


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
