"""Memory that two arguments share: views that interleave are fine, a shared element is not."""

from __future__ import annotations

from hypothesis import strategies as st

from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.strategies.illegal import near_misses, paged_together
from twinlaw.properties.strategies.layouts import pick
from twinlaw.properties.subjects import Subject
from twinlaw.properties.trial import Trial


@st.composite
def _shared(draw: st.DrawFn, subject: Subject) -> Case:
    """A call in which a written argument shares an element with itself or with another."""
    clauses = subject.op.contract.clauses
    overlaps = [c for c in clauses if c.kind == "overlap" or c.kind.startswith("sharing")]
    broken: Case = draw(near_misses(subject.op.contract, pick(draw, overlaps)))
    return broken


@law("alias-rejection", _shared)
def alias_rejection(trial: Trial, case: Case) -> None:
    """A written tensor that overlaps itself or another argument is refused, untouched."""
    arena = trial.arena(case)
    assert not trial.subject.op.legal(**arena.arguments), "the predicate sees no shared element"
    try:
        trial.subject.function(**arena.arguments)
    except ValueError:
        arena.assert_untouched()
    else:
        raise AssertionError(f"under-rejection: the call breaks {case.broken}, yet it ran")


@st.composite
def _interleaved(draw: st.DrawFn, subject: Subject) -> Case:
    """A call in which two arguments are entries of one page, at least one of them written."""
    contract = subject.contract
    case = draw(legal_cases(contract, least=1))
    pairs = [(a, b) for a in contract.args for b in contract.args if a != b and a.written]
    paged = [paged_together(case, a, b) for a, b in pairs if case.tensors[b.name]]
    return pick(draw, [p for p in paged if p is not None])


@law("interleaved-views", _interleaved)
def interleaved_views(trial: Trial, case: Case) -> None:
    """Views that interleave in one buffer without sharing an element are accepted and right."""
    trial.assert_right(case)
