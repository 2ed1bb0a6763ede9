"""Contracts that accept too much or too little. Dropped clauses are the tests' own affair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from broken.twin import BOTH, DECODE, SCATTER, Twin, accepting
from twinlaw.contract import INDICES, Arg, Contract, ContractValueError
from twinlaw.properties.subjects import Op


@dataclass(frozen=True)
class Stricter(Contract):
    """A contract that first refuses what ``excess`` says of the arguments by name."""

    excess: Callable[[Mapping[str, Any]], bool] = lambda arguments: False

    def check(self, *values: Any) -> None:
        super().check(*values)
        names = [p.name for p in self.parameters]
        if self.excess(dict(zip(names, values, strict=True))):
            raise ContractValueError(f"`{names[0]}` or another argument is not as it used to be")


def _stricter(
    op: Op, name: str, excess: Callable[[Mapping[str, Any]], bool], *laws: str, **traits: Any
) -> Twin:
    parts = {f.name: getattr(op.contract, f.name) for f in fields(Contract) if f.init}
    return accepting(op, name, Stricter(**parts, excess=excess), *laws, **traits)


def _tensors(op: Op, arguments: Mapping[str, Any]) -> list[tuple[Arg, Any]]:
    return [(a, arguments[a.name]) for a in op.contract.args if arguments[a.name] is not None]


def _ranges_meet(op: Op) -> Callable[[Mapping[str, Any]], bool]:
    """Compares first and last bytes, to which interleaved views look shared."""

    def excess(arguments: Mapping[str, Any]) -> bool:
        spans = []
        for arg, tensor in _tensors(op, arguments):
            if tensor.numel():
                pairs = zip(tensor.shape, tensor.stride(), strict=True)
                last = sum((n - 1) * s for n, s in pairs)
                start = tensor.data_ptr()
                spans.append((start, start + (last + 1) * tensor.itemsize, arg.written))
        spans.sort()
        return any(
            b[0] < a[1] and (a[2] or b[2]) for i, a in enumerate(spans) for b in spans[i + 1 :]
        )

    return excess


def _has_offset(op: Op) -> Callable[[Mapping[str, Any]], bool]:
    return lambda arguments: any(t.data_ptr() % 16 for _, t in _tensors(op, arguments))


def _unit_strides_of_nothing(op: Op) -> Callable[[Mapping[str, Any]], bool]:
    """Wants the stride 1 of a last dim of size 1, too."""

    def excess(arguments: Mapping[str, Any]) -> bool:
        tensors = [t for a, t in _tensors(op, arguments) if a.unit_last or a.dense_from == 0]
        return any(t.shape[-1] == 1 and t.stride(-1) != 1 for t in tensors)

    return excess


def _empty(dim: str, op: Op) -> Callable[[Mapping[str, Any]], bool]:
    def excess(arguments: Mapping[str, Any]) -> bool:
        arg = next(a for a in op.contract.args if dim in a.dim_names)
        return int(arguments[arg.name].shape[arg.dim_names.index(dim)]) == 0

    return excess


def _changed(contract: Contract, name: str, **parts: Any) -> Contract:
    """The same contract with one argument declared otherwise."""
    parameters = tuple(
        replace(p, **parts) if isinstance(p, Arg) and p.name == name else p
        for p in contract.parameters
    )
    return replace(contract, parameters=parameters)


NARROWED = (
    (DECODE, "initial_state", "dense"),
    (DECODE, "initial_state", "* dense"),
    (DECODE, "mixed_qkv", "dense"),
    (DECODE, "a", "dense"),
    (DECODE, "b", "dense"),
    (DECODE, "ssm_state_indices", "dense"),
    (SCATTER, "dst", "dense"),
    (SCATTER, "src", "dense"),
    (SCATTER, "dst_indices_raw", "dense"),
    (SCATTER, "step_indices_raw", "dense"),
    (SCATTER, "src_indices_raw", "dense"),
)

WIDENED = ((DECODE, "mixed_qkv", "* *"), (SCATTER, "dst", "* * *"))
"""Of the first argument, with which the exhaustive law begins."""

EXACT = ("agrees-on-arbitrary",)
NEEDLESSLY = ((DECODE, "ssm_state_indices", "dense"), (SCATTER, "dst_indices_raw", "dense"))
NEEDLESS = ("no-needless-clause",)


def _loose(op: Op, kind: str) -> Contract:
    dropped = (c for c in op.contract.clauses if c.kind == kind or c.kind.startswith(f"{kind} "))
    return op.contract.without(*dropped)


TWINS = (
    *(
        accepting(op, f"{name} must be {layout}", op.contract.with_layout(name, layout), *EXACT)
        for op, name, layout in NARROWED
    ),
    *(
        accepting(
            op, f"{name} need not be {layout}", op.contract.with_layout(name, layout), *NEEDLESS
        )
        for op, name, layout in NEEDLESSLY
    ),
    *(
        accepting(
            op, f"{name} may be {layout}", op.contract.with_layout(name, layout), "small-scope"
        )
        for op, name, layout in WIDENED
    ),
    accepting(
        DECODE,
        "A_log must be float32",
        _changed(DECODE.contract, "A_log", dtypes=("float32", "float32")),
        *EXACT,
    ),
    *(
        accepting(
            op, f"{name} must be int64", _changed(op.contract, name, dtypes=INDICES[1:] * 2), *EXACT
        )
        for op, name in ((DECODE, "ssm_state_indices"), (SCATTER, "step_indices_raw"))
    ),
    *(
        _stricter(op, f"{dim} of 0 refused", _empty(dim, op), "accepts-legal", "size-0-and-1")
        for op, dim in ((DECODE, "B"), (DECODE, "N"), *((SCATTER, d) for d in "LSRDn"))
    ),
    *(
        twin
        for op in BOTH
        for twin in (
            _stricter(op, "overlapping ranges refused", _ranges_meet(op), "interleaved-views"),
            _stricter(
                op,
                "unaligned addresses refused",
                _has_offset(op),
                *("accepts-legal", "agrees-on-arbitrary"),
            ),
            accepting(op, "any dtype accepted", _loose(op, "dtype"), *EXACT, "rejects-near-misses"),
            accepting(op, "shared memory accepted", _loose(op, "sharing"), "alias-rejection"),
            accepting(op, "self-overlap accepted", _loose(op, "overlap"), "alias-rejection"),
        )
    ),
    _stricter(
        DECODE,
        "odd strides of size-1 dims refused",
        _unit_strides_of_nothing(DECODE),
        *("size-0-and-1", "accepts-legal"),
    ),
)
