"""What a call changes: the elements that its active requests name, all of them, no others."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from twinlaw.properties.arena import POISONS
from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial


@law("containment", lambda s: legal_cases(s.contract))
def containment(trial: Trial, case: Case) -> None:
    """No byte outside the elements of written arguments changes: guards, gaps, other tensors."""
    trial.call(trial.arena(case)).assert_contained()


@law("input-immutability", lambda s: legal_cases(s.contract))
def input_immutability(trial: Trial, case: Case) -> None:
    """Arguments that are only read keep their bits, and their shape and strides."""
    arena = trial.arena(case)
    before = trial.logical(arena)
    metadata = {
        n: (v.shape, v.stride()) for n, v in arena.arguments.items() if hasattr(v, "stride")
    }
    trial.call(arena)
    for arg in trial.subject.contract.args:
        value = arena.arguments[arg.name]
        if value is not None:
            assert metadata[arg.name] == (value.shape, value.stride()), f"`{arg.name}` was resized"
            if not arg.written:
                same_bits(arg.name, arena.result(arg.name), before[arg.name])


@law("unnamed-slots", lambda s: legal_cases(s.contract, least=1))
def unnamed_slots(trial: Trial, case: Case) -> None:
    """Slots that no active request names keep their bits, the null slot among them."""
    arena = trial.arena(case)
    before, touched = trial.logical(arena), trial.touched(arena)
    results = trial.call(arena).results()
    for arg in trial.written:
        rest = ~touched[arg.name]
        same_bits(arg.name, results[arg.name][rest], before[arg.name][rest])


@law("complete-write", lambda s: legal_cases(s.contract))
def complete_write(trial: Trial, case: Case) -> None:
    """Every element that active requests name is written: what an output held before is gone."""
    touched = trial.touched(trial.arena(case))
    one, other = (trial.results(case, output=fill) for fill in ("nan", "huge"))
    for arg in trial.written:
        mask = touched[arg.name]
        same_bits(arg.name, one[arg.name][mask], other[arg.name][mask])


def _poisoned_cases(subject: Subject) -> st.SearchStrategy[tuple[Case, str]]:
    return st.tuples(legal_cases(subject.contract, least=1), st.sampled_from(POISONS[1:]))


@law("poison", _poisoned_cases)
def poison(trial: Trial, example: tuple[Case, str]) -> None:
    """Results do not depend on what lies in gaps, guards, unwritten outputs or other slots."""
    case, fill = example
    touched = trial.touched(trial.arena(case))
    wanted = trial.results(case)
    arena = trial.arena(case, poison=fill, output=fill)
    for arg in trial.written:
        tensor = arena.arguments[arg.name]
        if arg.access == "rw" and tensor.is_floating_point():
            tensor[~touched[arg.name].to(tensor.device)] = torch.nan
    results = trial.call(arena).results()
    for arg in trial.written:
        mask = touched[arg.name]
        same_bits(arg.name, results[arg.name][mask], wanted[arg.name][mask])
