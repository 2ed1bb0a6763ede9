"""The kernel itself as a witness, watched by the memory checker.

The checker interprets kernels, so these laws look at the kernel's logic on a CPU wherever they
are proven; what a compiler makes of it is for the other laws.
"""

from __future__ import annotations

from twinlaw.contract import Clause
from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import law
from twinlaw.properties.memcheck import Report, memcheck
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.strategies.illegal import near_misses
from twinlaw.properties.strategies.sample import sample
from twinlaw.properties.trial import Trial

ORDER = ("write-write race", "read-write race", "order-dependent")
"""What the checker finds when programs depend on one another."""

PATIENCE = 40
"""Near misses that a clause is given to show that it is needed."""


@law("memory-clean", lambda s: legal_cases(s.contract), device="cpu")
def memory_clean(trial: Trial, case: Case) -> None:
    """The kernel touches elements of its arguments alone, each as declared, and misses none."""
    report = _watched(trial, case)
    assert all(f.kind in ORDER for f in report.findings), str(report)


@law("race-free", lambda s: legal_cases(s.contract, least=1), device="cpu")
def race_free(trial: Trial, case: Case) -> None:
    """No two programs conflict over an element, and their order changes nothing."""
    report = _watched(trial, case, witnesses=True)
    assert not any(f.kind in ORDER for f in report.findings), str(report)


def _watched(trial: Trial, case: Case, witnesses: bool = False) -> Report:
    arena = trial.arena(case)
    return memcheck(
        trial.subject.function,
        access=trial.subject.contract,
        touched=trial.touched(arena),
        witnesses=witnesses,
        **arena.arguments,
    )


@law("no-needless-clause", device="cpu", needs="unchecked")
def no_needless_clause(trial: Trial, _: None) -> None:
    """Each clause turns away a call that the kernel gets wrong, or its declaration says why not."""
    needless = []
    for clause in trial.subject.contract.clauses:
        if clause.reason is None and not _is_needed(trial, clause):
            needless.append(str(clause))
    assert not needless, f"over-rejection: no call shows that the kernel needs {needless}"


def _is_needed(trial: Trial, clause: Clause) -> bool:
    """Whether the kernel, without its validator, gets a near miss of ``clause`` wrong."""
    for case in sample(near_misses(trial.subject.contract, clause), PATIENCE, trial.seed):
        trial.examples += 1
        if _goes_wrong(trial, case):
            return True
    return False


def _goes_wrong(trial: Trial, case: Case) -> bool:
    """Whether the op without its validator raises, touches what it must not, or computes wrong."""
    assert trial.subject.unchecked, "the subject has no way to be called without its validator"
    arena = trial.arena(case)
    try:
        before = trial.logical(arena)
        report = memcheck(
            trial.subject.unchecked,
            access=trial.subject.contract,
            witnesses=False,
            **arena.arguments,
        )
        if any(f.kind != "unwritten output" for f in report.findings):
            return True
        trial.judge(before, arena.results())
    except Exception:
        return True
    return False
