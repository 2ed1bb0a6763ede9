"""Illegal calls: near misses that break one clause of a contract and keep the others, and calls
that are arbitrary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from hypothesis import strategies as st

from twinlaw.contract import Arg, Clause, Contract
from twinlaw.properties.case import (
    STRANGE,
    WRONG_KINDS,
    Case,
    Layout,
    StandIn,
    TensorSpec,
    Values,
    dense,
)
from twinlaw.properties.strategies.cases import computed, dtypes_of, legal_cases, shape_of
from twinlaw.properties.strategies.layouts import any_layout, overlapping_layout, pick

__all__ = ["arbitrary_cases", "near_misses", "paged_together"]

Breaker = Callable[[st.DrawFn, Case, Contract, Clause], Case]

OTHER_DTYPES = ("float64", "int16", "uint8", "bool", "complex64", "complex128", "int32", "float32")


@st.composite
def near_misses(draw: st.DrawFn, contract: Contract, clause: Clause | None = None) -> Case:
    """A legal call, changed to break ``clause``, or one drawn from all of the contract's."""
    if clause is None:
        clause = pick(draw, contract.clauses)
    case = draw(legal_cases(contract, least=2, layouts=draw(st.booleans())))
    kind = next(k for k in _BREAKERS if clause.kind.startswith(k))
    broken = _BREAKERS[kind](draw, _present(case, clause.argument), contract, clause)
    return replace(broken, broken=str(clause))


def _present(case: Case, name: str) -> Case:
    """The same case with ``name`` given, where an optional argument is to be broken."""
    if case.tensors.get(name, 0) is not None:
        return case
    n = next(s for s in case.tensors.values() if isinstance(s, TensorSpec) and s.values.numbers)
    shape = n.layout.shape
    return case.changed(
        **{name: TensorSpec("int64", dense(shape), Values(numbers=(0,) * shape[0]))}
    )


def _spread(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """The tensor with another shape, dense; indices all 0."""
    values = spec.values
    if values.numbers is not None:
        values = replace(values, numbers=(0,) * prod(shape))
    return replace(spec, layout=dense(shape), values=values)


def _kind(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    wrong: tuple[Any, ...]
    for s in contract.scalars:
        if s.name == name:
            wrong = {
                "real": ("x", None, True, [1.0], 1j),
                "flag": (0, 1, None, "yes"),
                "int?": (1.5, "0", True, [0]),
            }[s.kind]
            return case.changed(**{name: pick(draw, wrong)})
    kinds = WRONG_KINDS[1:] if contract.arg(name).optional else WRONG_KINDS
    return case.changed(**{name: StandIn(pick(draw, kinds), case.tensor(name))})


def _plain(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    spec = case.tensor(name)
    kinds = STRANGE if spec.torch_dtype.is_floating_point and spec.itemsize > 1 else STRANGE[:2]
    return case.changed(**{name: StandIn(pick(draw, kinds), spec)})


def _device(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    return case.changed(**{name: StandIn("a tensor elsewhere", case.tensor(name))})


def _rank(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    arg, spec = contract.arg(name), case.tensor(name)
    shape = spec.layout.shape
    fewer = shape[1 : len(arg.dim_names)]
    options = [fewer] if arg.rest else [fewer, (1, *shape), (*shape, 1)]
    return case.changed(**{name: _spread(spec, pick(draw, options))})


def _dtype(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    arg, spec = contract.arg(name), case.tensor(name)
    others = [t for t in OTHER_DTYPES if t not in dtypes_of(arg)]
    return case.changed(**{name: replace(spec, dtype=pick(draw, others))})


def _same_dtype(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    spec = case.tensor(name)
    others = [t for t in dtypes_of(contract.arg(name)) if t != spec.dtype]
    return case.changed(**{name: replace(spec, dtype=pick(draw, others))})


def _shape(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    """One size off by one, in a dim that another argument has too or that the contract fixes."""
    name = clause.argument
    arg, spec = contract.arg(name), case.tensor(name)
    shape = spec.layout.shape
    shared = [
        i
        for i, d in enumerate(arg.dim_names)
        if d.isdigit() or sum(d in a.dim_names for a in contract.args) > 1
    ]
    shared += range(len(arg.dim_names), len(shape))
    i = pick(draw, shared)
    size = max(shape[i] + pick(draw, (1, -1)), 0)
    return case.changed(**{name: _spread(spec, (*shape[:i], size, *shape[i + 1 :]))})


def _range(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    """Every argument with the sizes that one dim beyond its range gives."""
    dim = next(d for d in contract.dims if clause.kind == f"range of {d.name}")
    ends = [dim.least - 1] + ([dim.most + 1] if dim.most else [])
    sizes = {**case.sizes, dim.name: pick(draw, ends)}
    for d in contract.dims:  # what is computed from the dim follows, the dim itself stays
        if d.of and d != dim:
            sizes[d.name] = computed(d, sizes)
    resized = {a.name: _spread(case.tensor(a.name), shape_of(a, sizes)) for a in contract.args}
    return replace(case, tensors=resized, sizes=sizes)


def _rule(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    """A size that a rule alone binds, changed until the rule is broken."""
    name = clause.argument
    rules = [r for r in contract.rules if r.argument == name]
    arg, spec = contract.arg(name), case.tensor(name)
    i = len(arg.dim_names) - 1
    size = spec.layout.shape[i]
    options = [s for s in range(2 * size + 2) if not _holds(rules, case, arg.dim_names[i], s)]
    new = pick(draw, options)
    return case.changed(**{name: _spread(spec, (*spec.layout.shape[:i], new))})


def _holds(rules: list[Any], case: Case, dim: str, size: int) -> bool:
    return all(r.holds({**case.sizes, dim: size}) for r in rules)


def _unit(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    spec = case.tensor(name)
    shape, plain = spec.layout.shape, dense(spec.layout.shape)
    step = pick(draw, (2, 3))
    stepped = tuple(s * step for s in plain.strides)
    options = [Layout(shape, stepped, 0, (f"every {step}th of the last dim",))]
    if len(shape) > 1 and shape[-2] > 1:
        swapped = dense((*shape[:-2], shape[-1], shape[-2])).strides
        strides = (*swapped[:-2], swapped[-1], swapped[-2])
        options.append(Layout(shape, strides, 0, ("last two dims transposed",)))
    if not contract.arg(name).written:
        options.append(Layout(shape, (*plain.strides[:-1], 0), 0, ("last dim expanded",)))
    return case.changed(**{name: spec.laid_out(pick(draw, options))})


def _dense(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    """A gap, a step or a swap within the dims that must be dense."""
    name = clause.argument
    arg, spec = contract.arg(name), case.tensor(name)
    shape, first = spec.layout.shape, arg.dense_from or 0
    dims = [d for d in range(first, len(shape)) if shape[d] > 1]
    dim, gap = pick(draw, dims), draw(st.integers(1, 3))
    strides, pitch = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d] = pitch + gap * (d == dim)
        pitch = strides[d] * max(shape[d], 1)
    words = (f"{gap} elements of padding after each step of dim {dim}",)
    return case.changed(**{name: spec.laid_out(Layout(shape, tuple(strides), 0, words))})


def _overlap(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    name = clause.argument
    spec = case.tensor(name)
    layout = overlapping_layout(draw, contract.arg(name), spec.layout.shape)
    return case.changed(**{name: spec.laid_out(layout)})


def _sharing(draw: st.DrawFn, case: Case, contract: Contract, clause: Clause) -> Case:
    """Another argument laid, dense, over an element of the written one."""
    name = clause.argument
    other = clause.kind.removeprefix("sharing with ")
    case = _present(case, other)
    host, guest = case.tensor(name), case.tensor(other)
    offsets = host.layout.offsets().reshape(-1)
    element = int(offsets[draw(st.integers(0, len(offsets) - 1))]) + host.layout.offset
    byte = element * host.itemsize // guest.itemsize * guest.itemsize
    laid = guest.laid_out(dense(guest.layout.shape))
    return case.changed(
        **{name: replace(host, inside=None), other: replace(laid, inside=(name, byte))}
    )


_BREAKERS: dict[str, Breaker] = {
    "kind": _kind,
    "plain": _plain,
    "device": _device,
    "rank": _rank,
    "dtype": _dtype,
    "same dtype": _same_dtype,
    "shape": _shape,
    "range": _range,
    "rule": _rule,
    "unit stride": _unit,
    "dense": _dense,
    "overlap": _overlap,
    "sharing": _sharing,
}


@st.composite
def arbitrary_cases(draw: st.DrawFn, contract: Contract) -> Case:
    """A legal call, then up to three arguments in raw layouts, other dtypes, shapes or buffers."""
    case = draw(legal_cases(contract))
    names = [n for n, s in case.tensors.items() if s is not None]
    for _ in range(draw(st.integers(1, 3))):
        name = pick(draw, names)
        spec = case.tensor(name)
        shape = spec.layout.shape
        change = pick(draw, ("layout", "layout", "dtype", "shape", "buffer"))
        if change == "layout":
            spec = spec.laid_out(any_layout(draw, shape))
        elif change == "dtype":
            spec = replace(spec, dtype=pick(draw, (*OTHER_DTYPES, "float16", "int64")))
        elif change == "shape":
            rank = draw(st.integers(0, 5))
            spec = _spread(spec, tuple(draw(st.integers(0, 3)) for _ in range(rank)))
        else:
            host = pick(draw, names)
            if host == name or case.tensor(host).inside or _is_host(case, name):
                continue
            byte = draw(st.integers(0, 40)) * spec.itemsize
            spec = replace(spec, inside=(host, byte))
        case = case.changed(**{name: replace(spec, inside=spec.inside)})
    return case


def _is_host(case: Case, name: str) -> bool:
    specs = (s for s in case.tensors.values() if isinstance(s, TensorSpec))
    return any(s.inside and s.inside[0] == name for s in specs)


def paged_together(case: Case, a: Arg, b: Arg) -> Case | None:
    """Both tensors as entries of one page, interleaved along dim 0 without sharing an element.

    This is how a serving engine keeps the convolution and the recurrent state of a slot. None
    when a contract forbids either to be strided along its first dim.
    """
    if 0 in (a.dense_from, b.dense_from) or len(a.layout.split()) < 2 or len(b.layout.split()) < 2:
        return None
    first, second = case.tensor(a.name), case.tensor(b.name)
    entries = [_entry_bytes(s) for s in (first, second)]
    page = sum(entries)
    laid = []
    for spec in (first, second):
        plain = dense(spec.layout.shape)
        strides = (page // spec.itemsize, *plain.strides[1:])
        words = (f"one of two entries of a page of {page} bytes",)
        laid.append(spec.laid_out(Layout(plain.shape, strides, 0, words)))
    return case.changed(**{a.name: laid[0], b.name: replace(laid[1], inside=(a.name, entries[0]))})


def _entry_bytes(spec: TensorSpec) -> int:
    """Bytes of one entry along dim 0, up to a multiple of 8 so that any dtype may follow."""
    return -(-prod(spec.layout.shape[1:]) * spec.itemsize // 8) * 8
