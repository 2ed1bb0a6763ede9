"""A trial: cases of one subject, built and run on one device, with the oracle beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from twinlaw.contract import Arg
from twinlaw.properties.arena import Arena
from twinlaw.properties.case import Case
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import judge, same_bits

__all__ = ["Trial"]


@dataclass
class Trial:
    """What a law is handed: the subject, the device and what it can do with a case."""

    subject: Subject
    device: str
    seed: int | None = None
    """What seeds draws that a law makes by itself."""
    worst: float = 0.0
    """The largest error over bound seen so far."""
    examples: int = 0
    """How many examples have been tried so far."""

    def arena(self, case: Case, poison: str = "nan", output: str = "nan") -> Arena:
        return Arena(case, self.subject.contract, self.device, poison, output)

    def call(self, arena: Arena) -> Arena:
        """Run the subject on an arena's arguments."""
        self.subject.function(**arena.arguments)
        return arena

    def results(self, case: Case, **fills: str) -> dict[str, torch.Tensor]:
        """What the written arguments hold after a call of ``case``."""
        return self.call(self.arena(case, **fills)).results()

    def refusal(self, arguments: Mapping[str, Any]) -> Exception | None:
        """The ValueError or TypeError with which the validator refuses, or None."""
        try:
            self.subject.validate(arguments)
        except (ValueError, TypeError) as error:
            return error
        return None

    def called(self, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """What the written arguments hold after a call on dense copies of ``arguments``."""
        own = {
            n: v.to(self.device, copy=True) if isinstance(v, torch.Tensor) else v
            for n, v in arguments.items()
        }
        self.subject.function(**own)
        return {a.name: own[a.name].cpu() for a in self.written}

    def logical(self, arena: Arena) -> dict[str, Any]:
        """The arguments of a call that has not run yet, every tensor a dense copy on the CPU."""
        return {
            name: arena.result(name) if isinstance(value, torch.Tensor) else value
            for name, value in arena.arguments.items()
        }

    def touched(self, arena: Arena) -> Mapping[str, torch.Tensor]:
        """By written argument, the elements that active requests of the call name."""
        return self.subject.op.touched(**self.logical(arena))

    def judge(self, before: Mapping[str, Any], results: Mapping[str, torch.Tensor]) -> None:
        """Compare with the oracle: in float64 within the bound, or bit for bit.

        ``before`` are the logical arguments as they were, ``results`` the written ones after.
        Pools are compared first: what they hold outlives the call.
        """
        op = self.subject.op
        wide = {n: _widened(v) if op.error_bound else _copied(v) for n, v in before.items()}
        op.reference(**wide)
        bounds = op.error_bound(**before) if op.error_bound else {}
        touched, unspecified = op.touched(**before), op.unspecified(**before)
        for arg in sorted(self.written, key=lambda a: a.access != "rw"):
            name, got = arg.name, results[arg.name]
            same_bits(name, got[~touched[name]], before[name][~touched[name]])
            # What is not judged is taken for right, so that indices still are the tensor's own.
            judged = touched[name] & ~unspecified[name]
            oracle = torch.where(judged, wide[name], got.to(wide[name].dtype))
            self.worst = max(self.worst, judge(name, got, oracle, bounds.get(name)))

    def assert_right(self, case: Case) -> None:
        """The call is accepted, agrees with the oracle and changes no byte that is not its own."""
        arena = self.arena(case)
        refusal = self.refusal(arena.arguments)
        assert refusal is None, f"over-rejection: the call is legal, but: {refusal}"
        before = self.logical(arena)
        self.judge(before, self.call(arena).results())
        arena.assert_contained()

    @property
    def written(self) -> list[Arg]:
        return [a for a in self.subject.contract.args if a.written]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return _copied(value)
