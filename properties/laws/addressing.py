"""Addresses are 64-bit: where an element lies in memory changes nothing."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from hypothesis import strategies as st

from twinlaw.properties.case import Case, TensorSpec
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.strategies.layouts import pick
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial

Example = tuple[Case, str, int, int]


@st.composite
def _far(draw: st.DrawFn, subject: Subject) -> Example:
    """A call, an argument and a dim of it whose last index lies 2**31 or 2**32 elements away."""
    case = draw(legal_cases(subject.contract, least=2, layouts=False))
    options = []
    for arg in subject.contract.args:
        spec = case.tensors[arg.name]
        if isinstance(spec, TensorSpec):
            rank = len(spec.layout.shape)
            free = arg.dense_from if arg.dense_from is not None else rank - arg.unit_last
            options += [(arg.name, dim) for dim in range(free)]
    name, dim = pick(draw, options)
    # On a GPU the memory is real: 2**32 elements of 8 bytes would be too much of it.
    reach = 2**31 if case.tensor(name).itemsize > 4 else pick(draw, (2**31, 2**32))
    return case, name, dim, reach


@law("64-bit-addressing", _far, effort=0.5)
def addressing(trial: Trial, example: Example) -> None:
    """A slot, row, head or layer 2**31 or 2**32 elements into a tensor is found like any other."""
    case, name, dim, reach = example
    before = trial.logical(trial.arena(case))
    wanted = trial.called(before)
    arguments = trial.arena(case).arguments
    arguments[name] = _far_copy(before[name], dim, reach, trial.device)
    trial.subject.function(**arguments)
    for arg in trial.written:
        same_bits(arg.name, arguments[arg.name].cpu().contiguous(), wanted[arg.name])
    if trial.device != "cpu":
        arguments.clear()
        torch.cuda.empty_cache()


def _far_copy(tensor: torch.Tensor, dim: int, reach: int, device: str) -> torch.Tensor:
    """A copy whose last index along ``dim`` lies ``reach`` elements or more from its first.

    Before it lie 2**31 elements more, for an offset that wraps to be wrong and not fatal. On a
    CPU all this is reserved and never touched; on a GPU it is real.
    """
    strides = list(tensor.stride())
    strides[dim] = reach // (tensor.shape[dim] - 1) + 1
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    memory = _reserve((2**31 + extent) * tensor.itemsize, device).view(tensor.dtype)
    far = memory.as_strided(tensor.shape, strides, 2**31)
    far.copy_(tensor)
    return far


def _reserve(size: int, device: str) -> torch.Tensor:
    size = -(-size // 8) * 8
    if device != "cpu":
        return torch.empty(size, dtype=torch.uint8, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)


_NORESERVE: Any = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's flag, which Python names from 3.13 on: what is never touched takes no memory."""
