"""Addresses are 64-bit: where an element lies in memory changes nothing."""

from __future__ import annotations

import itertools
import mmap
from typing import Any

import torch
from hypothesis import strategies as st

from twinlaw.properties.case import Case, TensorSpec, Values
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial


@st.composite
def _live(draw: st.DrawFn, subject: Subject) -> Case:
    """A dense call in which every request is active and the last slot, row and step are used."""
    case = draw(legal_cases(subject.contract, least=2, layouts=False, fixed={"null_slot": None}))
    for arg in subject.contract.args:
        spec = case.tensors[arg.name]
        if arg.indexes and isinstance(spec, TensorSpec):
            n, last = spec.layout.shape[0], case.sizes[arg.indexes] - 1
            numbers = tuple(last - i if last >= i else -1 for i in range(n))
            numbers = numbers if arg.unique else (last,) * n
            case = case.changed(**{arg.name: spec.filled(Values("indices", numbers=numbers))})
    return case


@law("64-bit-addressing", _live, effort=0.16)
def addressing(trial: Trial, case: Case) -> None:
    """A slot, row, head or layer 2**31 or 2**32 elements into a tensor is found like any other."""
    before = trial.logical(trial.arena(case))
    wanted = trial.called(before)
    for arg in trial.subject.contract.args:
        spec = case.tensors[arg.name]
        if not isinstance(spec, TensorSpec):
            continue
        free = arg.dense_from if arg.dense_from is not None else len(spec.layout.shape)
        # On a GPU the memory is real: 2**32 elements of 8 bytes would be too much of it.
        reaches = (2**31, 2**32) if spec.itemsize <= 4 else (2**31,)
        for dim, reach in itertools.product(range(free - arg.unit_last), reaches):
            arguments = trial.arena(case).arguments
            arguments[arg.name] = far_copy(before[arg.name], dim, reach, trial.device)
            try:
                trial.subject.function(**arguments)
                for written in trial.written:
                    result = arguments[written.name].cpu().contiguous()
                    same_bits(written.name, result, wanted[written.name])
            except AssertionError as error:
                where = f"dim {dim} of `{arg.name}` reaches {reach} elements"
                raise AssertionError(f"{error} (where {where})") from None
            finally:
                arguments.clear()
                if trial.device != "cpu":
                    torch.cuda.empty_cache()


def far_copy(tensor: torch.Tensor, dim: int, reach: int, device: str) -> torch.Tensor:
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
