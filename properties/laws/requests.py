"""Requests are independent: a result never depends on a request's neighbours or its place.

These laws work on logical arguments, dense copies: which rows of which argument belong to a
request follows from the contract, as the first dim of the tensor of slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from twinlaw.contract import Arg, Contract
from twinlaw.properties.case import Case, Values
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.strategies.layouts import pick
from twinlaw.properties.strategies.values import garbage_indices
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial

Arguments = Mapping[str, Any]


def slots_arg(contract: Contract) -> Arg:
    """The argument that names the slot of each request."""
    return next(a for a in contract.args if a.unique)


def _rows(contract: Contract) -> list[Arg]:
    """The arguments with a row for each request."""
    batch = slots_arg(contract).dim_names[0]
    return [a for a in contract.args if a.dim_names[0] == batch]


def _explicit(contract: Contract, arguments: Arguments) -> dict[str, Any]:
    """The same call with optional indices given: left out, request i reads row i."""
    n = len(arguments[slots_arg(contract).name])
    left_out = (a.name for a in contract.args if a.indexes and arguments[a.name] is None)
    return {**arguments, **{name: torch.arange(n) for name in left_out}}


def _selected(contract: Contract, arguments: Arguments, requests: Sequence[int]) -> dict[str, Any]:
    """The same call with these requests only, in this order."""
    chosen = {a.name: arguments[a.name][list(requests)] for a in _rows(contract)}
    return {**arguments, **chosen}


def _assert_rows(
    trial: Trial, got: Arguments, wanted: Arguments, requests: Sequence[int], arg: Arg
) -> None:
    """Row j of ``got`` is row ``requests[j]`` of ``wanted``; pools are the same throughout."""
    rows = arg.name in {a.name for a in _rows(trial.subject.contract)}
    same_bits(
        arg.name, got[arg.name], wanted[arg.name][list(requests)] if rows else wanted[arg.name]
    )


@st.composite
def _permuted(draw: st.DrawFn, subject: Subject) -> tuple[Case, list[int]]:
    case = draw(legal_cases(subject.contract, least=1))
    n = case.tensor(slots_arg(subject.contract).name).layout.shape[0]
    return case, draw(st.permutations(range(n)))


@law("batch-invariance", _permuted)
def batch_invariance(trial: Trial, example: tuple[Case, list[int]]) -> None:
    """Requests in another order, or each in a call of its own, give the same bits."""
    case, order = example
    contract = trial.subject.contract
    before = _explicit(contract, trial.logical(trial.arena(case)))
    wanted = trial.called(before)
    permuted = trial.called(_selected(contract, before, order))
    for arg in trial.written:
        _assert_rows(trial, permuted, wanted, order, arg)
    pools = {a.name: before[a.name] for a in trial.written if a not in _rows(contract)}
    for i in order:
        alone = trial.called({**_selected(contract, before, [i]), **pools})
        for arg in trial.written:
            if arg.name in pools:
                pools[arg.name] = alone[arg.name]
            else:
                same_bits(arg.name, alone[arg.name], wanted[arg.name][[i]])
    for name, pool in pools.items():
        same_bits(name, pool, wanted[name])


@st.composite
def _with_idle(draw: st.DrawFn, subject: Subject) -> tuple[Case, list[tuple[int, str, int]]]:
    """A call, and idle requests to put into it: where, by which index, with which value."""
    contract = subject.contract
    case = draw(legal_cases(contract, least=1))
    spec = case.tensor(slots_arg(contract).name)
    n, idle = spec.layout.shape[0], []
    for _ in range(draw(st.integers(1, 3))):
        arg = pick(draw, [a for a in contract.args if a.indexes])
        null = case.scalars.get("null_slot") if arg.unique else None
        value = pick(draw, garbage_indices(case.sizes[str(arg.indexes)], True, null))
        idle.append((draw(st.integers(0, n)), arg.name, value))
    return case, idle


@law("inactive-requests", _with_idle)
def inactive_requests(trial: Trial, example: tuple[Case, list[tuple[int, str, int]]]) -> None:
    """Inactive requests, with NaN for inputs, change nothing but their own rows, which are zero."""
    case, idle = example
    contract = trial.subject.contract
    before = _explicit(contract, trial.logical(trial.arena(case)))
    wanted = trial.called(before)
    n = len(before[slots_arg(contract).name])
    order = list(range(n))
    for j, (at, _, _) in enumerate(idle):
        order.insert(at, n + j)
    padded = dict(before)
    for arg in _rows(contract):
        rows = [before[arg.name], *(_idle_row(arg, before, why) for why in idle)]
        wide = torch.int64 if arg.indexes else before[arg.name].dtype
        padded[arg.name] = torch.cat([r.to(wide) for r in rows])[order]
    results = trial.called(padded)
    live, dead = ([j for j, i in enumerate(order) if (i < n) is alive] for alive in (True, False))
    places = [order[j] for j in live]
    for arg in trial.written:
        if arg in _rows(contract):
            same_bits(arg.name, results[arg.name][live], wanted[arg.name][places])
            assert not results[arg.name][dead].any(), f"`{arg.name}` of an inactive request isn't 0"
        else:
            same_bits(arg.name, results[arg.name], wanted[arg.name])


def _idle_row(arg: Arg, before: Arguments, why: tuple[int, str, int]) -> torch.Tensor:
    """One row of an inactive request: live indices but for the one that idles it, NaN inputs."""
    tensor = before[arg.name]
    if arg.indexes:
        return torch.tensor([why[2] if arg.name == why[1] else 0])
    return torch.full_like(tensor[:1], torch.nan)


@st.composite
def _garbage(draw: st.DrawFn, subject: Subject) -> Case:
    """Any 64-bit values at all in one index tensor, or in all; repeated ones included."""
    case = draw(legal_cases(subject.contract, least=1))
    indexing = [a for a in subject.contract.args if a.indexes and case.tensors[a.name]]
    only = pick(draw, [*indexing, None])  # garbage in one would hide what another does
    for arg in indexing:
        spec, size = case.tensor(arg.name), case.sizes[str(arg.indexes)]
        if only in (arg, None):
            numbers = tuple(_any_index(draw, size) for _ in range(spec.layout.shape[0]))
            wide = replace(spec, dtype="int64", values=Values("indices", numbers=numbers))
            case = case.changed(**{arg.name: wide})
    return case


def _any_index(draw: st.DrawFn, size: int) -> int:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.integers(0, size - 1))
    if kind < 3:
        return pick(draw, garbage_indices(size, True))
    return draw(st.integers(-(2**63), 2**63 - 1))


@law("index-garbage", _garbage, effort=2)
def index_garbage(trial: Trial, case: Case) -> None:
    """Any 64-bit index is harmless: nothing outside is touched, and the live requests are right."""
    arena = trial.arena(case)
    before = trial.logical(arena)
    trial.judge(before, trial.call(arena).results())
    arena.assert_contained()


@st.composite
def _one_poisoned(draw: st.DrawFn, subject: Subject) -> tuple[Case, int]:
    case = draw(legal_cases(subject.contract, least=2))
    n = case.tensor(slots_arg(subject.contract).name).layout.shape[0]
    return case, draw(st.integers(0, n - 1))


@law("nan-containment", _one_poisoned)
def nan_containment(trial: Trial, example: tuple[Case, int]) -> None:
    """NaN in one request's inputs and slot reaches no other request's results."""
    case, victim = example
    contract = trial.subject.contract
    before = _explicit(contract, trial.logical(trial.arena(case)))
    wanted = trial.called(before)
    poisoned = dict(before)
    for arg in _rows(contract):
        if before[arg.name].is_floating_point():
            poisoned[arg.name] = before[arg.name].clone()
            poisoned[arg.name][victim] = torch.nan
    mine = trial.subject.op.touched(**_selected(contract, before, [victim]))
    for arg in trial.written:
        if arg.access == "rw":
            poisoned[arg.name] = before[arg.name].masked_fill(mine[arg.name], torch.nan)
    results = trial.called(poisoned)
    for arg in trial.written:
        if arg in _rows(contract):
            others = [i for i in range(len(before[arg.name])) if i != victim]
            same_bits(arg.name, results[arg.name][others], wanted[arg.name][others])
        else:
            rest = ~mine[arg.name]
            same_bits(arg.name, results[arg.name][rest], wanted[arg.name][rest])


@st.composite
def _repeated(draw: st.DrawFn, subject: Subject) -> Case:
    """A call that asks for its indices to be checked; with an index twice, live or idle, or not."""
    contract = subject.contract
    case = draw(legal_cases(contract, least=2, fixed={"validate_indices": True}))
    spec = case.tensor(slots_arg(contract).name)
    numbers = list(spec.values.numbers or ())
    kind = pick(draw, ("none", "live", "idle"))
    if kind != "none":
        numbers[:2] = [-1 if kind == "idle" else numbers[0]] * 2
    values = Values("indices", numbers=tuple(numbers))
    return case.changed(**{slots_arg(contract).name: spec.filled(values)})


@law("duplicates-refused", _repeated)
def duplicates_refused(trial: Trial, case: Case) -> None:
    """With `validate_indices`, two active requests on one slot are refused, and nothing else is."""
    slots = slots_arg(trial.subject.contract).name
    arena = trial.arena(case)
    legal = trial.subject.op.legal(**arena.arguments)
    before = trial.logical(arena)
    try:
        trial.call(arena)
    except ValueError as error:
        refusal = str(error)
    else:
        assert legal, "under-rejection: two active requests name one slot, yet the call ran"
        trial.judge(before, arena.results())
        return
    assert not legal, f"over-rejection: no active slot is named twice, but: {refusal}"
    assert slots in refusal, f"the error must name `{slots}`: {refusal}"
    arena.assert_untouched()
