"""The same call does the same, now and later."""

from __future__ import annotations

from hypothesis import strategies as st

from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial


def _two_cases(subject: Subject) -> st.SearchStrategy[tuple[Case, Case]]:
    one = legal_cases(subject.contract, least=1)
    return st.tuples(one, one)


@law("determinism", _two_cases)
def determinism(trial: Trial, example: tuple[Case, Case]) -> None:
    """A call gives the same bits again, also after a call of another geometry."""
    case, between = example
    first = trial.results(case)
    trial.results(between)
    for name, again in trial.results(case).items():
        same_bits(name, again, first[name])


@law("first-call", lambda s: legal_cases(s.contract, least=1), effort=0.3)
def first_call(trial: Trial, case: Case) -> None:
    """A layout's first call is no different: the validator remembers, the result does not show."""
    trial.subject.contract.forget()
    first = trial.results(case)
    for name, second in trial.results(case).items():
        same_bits(name, second, first[name])
