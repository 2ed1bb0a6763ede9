"""Ops and subjects: what is specified, and the callable that is held to it.

An *op* is a specification: a contract, a plain reference and what follows from them. A *subject*
is an op together with an implementation. Ours stand in :data:`OPS`; one line registers one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch

from twinlaw.contract import Contract
from twinlaw.properties.aot import Compilation

__all__ = ["OPS", "Op", "Subject"]


@dataclass(frozen=True)
class Op:
    """A specification. ``stem`` is the name of its file in ``reference`` and in ``fused``."""

    stem: str
    name: str

    @cached_property
    def _reference(self) -> ModuleType:
        return importlib.import_module(f"twinlaw.reference.{self.stem}")

    @cached_property
    def fused(self) -> ModuleType:
        """The module of our implementation."""
        return importlib.import_module(f"twinlaw.fused.{self.stem}")

    @property
    def contract(self) -> Contract:
        contract: Contract = self.fused.CONTRACT
        return contract

    @property
    def reference(self) -> Callable[..., Any]:
        """The op in plain PyTorch, with the op's signature and in-place effects."""
        function: Callable[..., Any] = getattr(self._reference, self.name)
        return function

    @property
    def legal(self) -> Callable[..., bool]:
        """Whether a call is legal, by slow and obvious means of its own."""
        predicate: Callable[..., bool] = self._reference.legal
        return predicate

    @property
    def touched(self) -> Callable[..., Mapping[str, torch.Tensor]]:
        """By written argument, a bool mask of the elements that active requests name."""
        masks: Callable[..., Mapping[str, torch.Tensor]] = self._reference.touched
        return masks

    @property
    def unspecified(self) -> Callable[..., Mapping[str, torch.Tensor]]:
        """By written argument, a bool mask of what a caller's error leaves unspecified."""
        masks: Callable[..., Mapping[str, torch.Tensor]] = self._reference.unspecified
        return masks

    @property
    def error_bound(self) -> Callable[..., Mapping[str, torch.Tensor]] | None:
        """By written argument, the error bound in float64; None for ops that only move bits."""
        return getattr(self._reference, "error_bound", None)

    def subject(self) -> Subject:
        """Our own implementation, to be judged like any other."""
        return Subject(
            self,
            getattr(self.fused, self.name),
            self.contract,
            unchecked=self.fused._unchecked,
            compilations=tuple(Compilation(**c) for c in self.fused.COMPILATIONS),
        )


@dataclass(frozen=True)
class Subject:
    """An implementation of ``op``: a callable with the op's parameters, passed by name.

    ``contract`` is what it claims to accept: the op's own, or a narrower one. ``unchecked`` is
    the same op without its validator, where there is one, and ``compilations`` lists what
    :mod:`twinlaw.properties.aot` compiles ahead of time.
    """

    op: Op
    function: Callable[..., Any]
    contract: Contract
    unchecked: Callable[..., Any] | None = None
    compilations: tuple[Compilation, ...] = ()

    @property
    def name(self) -> str:
        return self.op.name

    def validate(self, arguments: Mapping[str, Any]) -> None:
        """Raise what the contract raises for ``arguments``."""
        self.contract.check(*(arguments[p.name] for p in self.contract.parameters))

    def having(self, **changes: Any) -> Subject:
        """The same subject with some parts replaced."""
        return replace(self, **changes)


OPS = {
    op.name: op
    for op in (
        Op("gdn_packed_decode", "fused_recurrent_gated_delta_rule_packed_decode"),
        Op("mamba_state_scatter", "fused_mamba_state_scatter_with_mask"),
    )
}
