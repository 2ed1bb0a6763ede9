"""Fused and reference agree."""

from __future__ import annotations

from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.trial import Trial


@law("agreement", lambda s: legal_cases(s.contract), effort=2)
def agreement(trial: Trial, case: Case) -> None:
    """Every written element is within its error bound of the float64 oracle, or the same bits."""
    arena = trial.arena(case)
    before = trial.logical(arena)
    trial.judge(before, trial.call(arena).results())
