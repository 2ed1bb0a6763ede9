"""A counterexample as a stand-alone script: torch and the op, no Hypothesis and no suite."""

from __future__ import annotations

from typing import Any

import torch

from twinlaw.properties.case import Case, StandIn, TensorSpec
from twinlaw.properties.strategies.values import fill
from twinlaw.properties.subjects import Subject

__all__ = ["script"]


def script(case: Case, subject: Subject, law: str, device: str) -> str:
    """Python source that builds the case's arguments, calls the subject and the reference.

    Each tensor is a view of a flat buffer of its own (or of another tensor's, where the case has
    it so), filled with the same values as in the suite.
    """
    function = subject.function
    module, name = function.__module__, getattr(function, "__qualname__", "function")
    lines = [f'"""{law}: {subject.name}, reproduced without the suite."""']
    if device == "cpu":
        lines += ["import os", 'os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported']
    lines += ["import torch", f"from {module} import {name.split('.')[0]} as fused", ""]
    for argument, spec in case.tensors.items():
        lines += _tensor(argument, spec, case, device)
    for argument, value in case.scalars.items():
        lines.append(f"{argument} = {value!r}")
    names = ", ".join(f"{n}={n}" for n in (*case.tensors, *case.scalars))
    reference = f"{subject.op.reference.__module__}"
    lines += [
        "",
        f"print(fused({names}))",
        f"# The reference takes the same arguments: {reference}.{subject.name}",
    ]
    return "\n".join(lines) + "\n"


def _tensor(name: str, spec: TensorSpec | StandIn | None, case: Case, device: str) -> list[str]:
    if spec is None:
        return [f"{name} = None"]
    if isinstance(spec, StandIn):
        return [f"{name} = ...  # {spec}"]
    layout = spec.layout
    if spec.inside:
        host, byte = spec.inside
        start = byte // spec.itemsize + layout.offset
        buffer = f"{host}_buffer.view({spec.torch_dtype})"
        lines = []
    else:
        start = layout.offset
        guests = [s for s in case.tensors.values() if isinstance(s, TensorSpec)]
        ends = [
            byte + (s.layout.offset + s.layout.extent) * s.itemsize
            for s in guests
            for byte in [
                0 if s is spec else s.inside[1] if s.inside and s.inside[0] == name else None
            ]
            if byte is not None
        ]
        size = -(-max(ends) // 8) * 8
        lines = [f"{name}_buffer = torch.zeros({size}, dtype=torch.uint8, device={device!r})"]
        buffer = f"{name}_buffer.view({spec.torch_dtype})"
    lines.append(f"# {spec.layout}")
    view = f"{buffer}.as_strided({layout.shape}, {layout.strides}, {start})"
    lines.append(f"{name} = {view}")
    lines += _values(name, spec)
    return lines


def _values(name: str, spec: TensorSpec) -> list[str]:
    """Statements that fill a view; what overlaps itself is filled element by element."""
    values: Any = fill(spec)
    if not values.numel():
        return []
    if not values.is_floating_point() or values.itemsize == 1:
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        if values.dtype not in (torch.int32, torch.int64):
            listed = values.reshape(-1).view(bits.get(values.itemsize, torch.uint8)).tolist()
            source = f"torch.tensor({listed}, dtype={bits.get(values.itemsize, torch.uint8)})"
            source += f".view({values.dtype}).reshape({tuple(values.shape)})"
        else:
            source = f"torch.tensor({values.tolist()})"
    else:
        source = f"torch.tensor({values.double().tolist()}, dtype=torch.float64)"
    flat = "for at, value in zip({0}.stride() and torch.cartesian_prod(*map(torch.arange, {0}.shape)).reshape(-1, {0}.dim()).tolist(), {1}.flatten(), strict=True):"
    if any(s == 0 and n > 1 for n, s in zip(spec.layout.shape, spec.layout.strides, strict=True)):
        return [flat.format(name, source), f"    {name}[tuple(at)] = value"]
    return [f"{name}.copy_({source})"]
