"""A case: one call of an op, as data that can be told, shrunk, rebuilt and printed as a script."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

__all__ = ["STRANGE", "WRONG_KINDS", "Case", "Layout", "StandIn", "TensorSpec", "Values", "dense"]


@dataclass(frozen=True)
class Layout:
    """Where a tensor's elements lie in its buffer: strides and offset in elements, and in words."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    words: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements from the first to the last that the view names; 0 when there is none."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def offsets(self) -> torch.Tensor:
        """The offset of every element from the view's first, int64, in the view's shape."""
        total = torch.zeros(self.shape, dtype=torch.int64)
        for dim, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            index = torch.arange(n, dtype=torch.int64).mul_(stride)
            total += index.view([-1 if d == dim else 1 for d in range(len(self.shape))])
        return total

    def __str__(self) -> str:
        told = ", ".join(self.words) or "dense"
        return f"shape {self.shape}, strides {self.strides}, offset {self.offset}: {told}"


def dense(shape: tuple[int, ...]) -> Layout:
    """The row-major layout without gaps."""
    strides, pitch = [], 1
    for n in reversed(shape):
        strides.append(pitch)
        pitch *= max(n, 1)
    return Layout(tuple(shape), tuple(reversed(strides)))


@dataclass(frozen=True)
class Values:
    """How a tensor is filled: a distribution, its seed and scale, or the very numbers."""

    kind: str = "normal"
    seed: int = 0
    scale: float = 1.0
    numbers: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.numbers is not None:
            return str(list(self.numbers))
        return self.kind + (f" x {self.scale:g}" if self.scale != 1 else "") + f" #{self.seed}"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor argument. ``inside`` puts it into another's buffer: (name, offset in bytes)."""

    dtype: str
    layout: Layout
    values: Values = Values()
    inside: tuple[str, int] | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def itemsize(self) -> int:
        return self.torch_dtype.itemsize

    def laid_out(self, layout: Layout) -> TensorSpec:
        return replace(self, layout=layout, inside=None)

    def filled(self, values: Values) -> TensorSpec:
        return replace(self, values=values)

    def __str__(self) -> str:
        where = f", inside `{self.inside[0]}` from byte {self.inside[1]}" if self.inside else ""
        return f"{self.dtype}, {self.layout}{where}; values {self.values}"


@dataclass(frozen=True)
class StandIn:
    """What stands in for a tensor in an illegal call: something that is none, or a strange one."""

    kind: str
    spec: TensorSpec

    def make(self, device: str) -> Any:
        """The object itself, with the shape and dtype of the tensor that it stands in for."""
        shape, dtype = self.spec.layout.shape, self.spec.torch_dtype
        with warnings.catch_warnings():  # prototypes and the like, of which torch warns once
            warnings.simplefilter("ignore")
            return _STAND_INS[self.kind](shape, dtype, device)

    def __str__(self) -> str:
        return f"{self.kind} of shape {self.spec.layout.shape}"


def _lazily_negated(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch._neg_view(torch.ones(shape, dtype=dtype, device=device))


def _fake(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device=device)


def _nested(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    parts = [torch.ones(shape[1:], dtype=dtype, device=device) for _ in range(shape[0] or 1)]
    return torch.nested.as_nested_tensor(parts)


def _sparse(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    # Not ones(...).to_sparse(), which float8 has not.
    nowhere = torch.empty((len(shape), 0), dtype=torch.int64, device=device)
    values = torch.empty(0, dtype=dtype, device=device)
    return torch.sparse_coo_tensor(nowhere, values, shape)


class _Elsewhere(torch.Tensor):
    """A tensor that says it is on another device, for machines that have one device only."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 7)


def _elsewhere(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    here = torch.ones(shape, dtype=dtype)
    return here if device != "cpu" else here.as_subclass(_Elsewhere)


_STAND_INS: dict[str, Callable[[Any, Any, str], Any]] = {
    "None": lambda s, t, d: None,
    "a list": lambda s, t, d: [0.0] * prod(s),
    "a number": lambda s, t, d: 1.0,
    "a numpy array": lambda s, t, d: torch.ones(s).numpy(),
    "a meta tensor": lambda s, t, d: torch.empty(s, dtype=t, device="meta"),
    "a sparse tensor": _sparse,
    "a lazily negated view": _lazily_negated,
    "a fake tensor": _fake,
    "a nested tensor": _nested,
    "a tensor elsewhere": _elsewhere,
}


WRONG_KINDS = ("None", "a list", "a number", "a numpy array")
"""Stand-ins that are no tensor: TypeError."""

STRANGE = (
    *("a meta tensor", "a sparse tensor", "a lazily negated view"),
    *("a fake tensor", "a nested tensor"),
)
"""Stand-ins that are tensors without plain strided memory: ValueError."""


@dataclass(frozen=True)
class Case:
    """The arguments of one call; in place of a tensor may stand None or something illegal."""

    op: str
    tensors: Mapping[str, TensorSpec | StandIn | None]
    scalars: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    broken: str | None = None
    """The clause that the case was made to break, if any."""

    def tensor(self, name: str) -> TensorSpec:
        spec = self.tensors[name]
        assert isinstance(spec, TensorSpec), f"`{name}` is no tensor in this case: {spec}"
        return spec

    def changed(self, broken: str | None = None, /, **parts: Any) -> Case:
        """The same case with some arguments replaced by name."""
        tensors, scalars = dict(self.tensors), dict(self.scalars)
        for name, value in parts.items():
            (tensors if name in tensors else scalars)[name] = value
        return replace(self, tensors=tensors, scalars=scalars, broken=broken or self.broken)

    def densely(self) -> Case:
        """The same logical call with every tensor in a dense buffer of its own."""
        plain = {
            n: t.laid_out(dense(t.layout.shape)) if isinstance(t, TensorSpec) else t
            for n, t in self.tensors.items()
        }
        return replace(self, tensors=plain)

    def __str__(self) -> str:
        lines = [f"{self.op} with"]
        lines += [f"  {name}: {spec}" for name, spec in self.tensors.items()]
        lines += [f"  {name} = {value!r}" for name, value in self.scalars.items()]
        if self.broken:
            lines.append(f"  made to break {self.broken}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How Hypothesis shows a counterexample."""
        printer.text(str(self))
