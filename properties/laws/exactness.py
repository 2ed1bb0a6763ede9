"""The validator turns away exactly what is illegal.

Legality has two independent witnesses here: the contract, from which the validator is derived,
and the reference's predicate, which enumerates elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import dense_case, legal_cases, small_sizes
from twinlaw.properties.strategies.illegal import arbitrary_cases, near_misses
from twinlaw.properties.trial import Trial


@law("accepts-legal", lambda s: legal_cases(s.contract), effort=2)
def accepts_legal(trial: Trial, case: Case) -> None:
    """What is legal is accepted."""
    arguments = trial.arena(case).arguments
    assert trial.subject.op.legal(**arguments), (
        "the predicate calls a call made to be legal illegal"
    )
    refusal = trial.refusal(arguments)
    assert refusal is None, f"over-rejection: the call is legal, but: {refusal}"


@law("rejects-near-misses", lambda s: near_misses(s.op.contract), effort=16)
def rejects_near_misses(trial: Trial, case: Case) -> None:
    """A call that breaks one clause is refused, by an error that names an argument."""
    arguments = trial.arena(case).arguments
    assert not trial.subject.op.legal(**arguments), "the predicate calls the broken call legal"
    refusal = trial.refusal(arguments)
    assert refusal is not None, f"under-rejection: the call breaks {case.broken}, yet is accepted"
    named = [name for name in arguments if name in str(refusal)]
    assert named, f"the error names no argument: {refusal}"


@law("agrees-on-arbitrary", lambda s: arbitrary_cases(s.op.contract), effort=8)
def agrees_on_arbitrary(trial: Trial, case: Case) -> None:
    """On arbitrary calls, contract and predicate say the same."""
    _assert_agreement(trial, trial.arena(case).arguments)


@law("rejection-is-clean", lambda s: near_misses(s.op.contract))
def rejection_is_clean(trial: Trial, case: Case) -> None:
    """A refused call raises ValueError or TypeError and leaves every byte as it was."""
    arena = trial.arena(case)
    try:
        trial.subject.function(**arena.arguments)
    except (ValueError, TypeError):
        arena.assert_untouched()
    else:
        raise AssertionError(f"under-rejection: the call breaks {case.broken}, yet it ran")


@law("small-scope")
def small_scope(trial: Trial, _: None) -> None:
    """Contract and predicate agree on all layouts of every argument in a small scope."""
    contract = trial.subject.op.contract
    for arg in contract.args:
        sizes = (0, 1, 2, 3) if len(arg.layout.split()) < 3 else (1, 2)
        for chosen in small_sizes(contract, arg, sizes):
            arguments = trial.arena(dense_case(contract, chosen)).arguments
            for view in _small_views(arguments[arg.name]):
                trial.examples += 1
                _assert_agreement(trial, {**arguments, arg.name: view})


def _small_views(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of the tensor's shape with every choice of small strides, and ranks one off."""
    shape = tensor.shape
    few, more = (0, 1, 2, 4), (0, 1, 2, 3, 4, 6)
    strides = more if len(shape) < 3 else few if len(shape) < 5 else few[:3]
    memory = tensor.new_zeros(1 + sum(n * max(strides) for n in shape))
    for chosen in itertools.product(strides, repeat=len(shape)):
        yield memory.as_strided(shape, chosen)
    yield tensor[None]
    if shape[0]:
        yield tensor[0]


def _assert_agreement(trial: Trial, arguments: dict[str, Any]) -> None:
    legal, refusal = trial.subject.op.legal(**arguments), trial.refusal(arguments)
    if legal == (refusal is None):
        return
    told = "\n".join(f"  {name}: {_told(value)}" for name, value in arguments.items())
    assert not legal, f"over-rejection: legal, but refused: {refusal}\n{told}"
    raise AssertionError(f"under-rejection: illegal, but accepted:\n{told}")


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return f"{value.dtype}, shape {tuple(value.shape)}, strides {value.stride()}"
    return repr(value)
