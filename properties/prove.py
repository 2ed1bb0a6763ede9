"""Proving a law: Hypothesis draws examples, the law checks them, a failure is told and scripted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, note, seed, settings

from twinlaw.properties import interpreter
from twinlaw.properties.case import Case
from twinlaw.properties.laws.law import Law
from twinlaw.properties.reproduce import script
from twinlaw.properties.subjects import Subject
from twinlaw.properties.trial import Trial

__all__ = ["PROFILES", "Proof", "prove"]

PROFILES = {"quick": 25, "gate": 150, "deep": 1500}
"""Examples a law (times its effort) in each Hypothesis profile."""


@dataclass(frozen=True)
class Proof:
    """What a law went through without being broken."""

    examples: int
    worst: float
    """The largest error over bound."""
    seconds: float


def prove(
    law: Law,
    subject: Subject,
    device: str,
    profile: str = "quick",
    *,
    at: int | None = None,
    shrink: bool = True,
) -> Proof:
    """Hold ``subject`` to ``law`` on ``device`` (``cpu`` or ``cuda``).

    ``at`` seeds the draws; left out, pytest's ``--hypothesis-seed`` or chance decides.
    ``shrink=False`` stops at the first counterexample, whatever its size.

    Raises AssertionError, or what the subject itself raised, with the smallest counterexample as
    a sentence about its layouts and a script that reproduces it.
    """
    start = time.perf_counter()
    if law.device == "cpu" and device != "cpu":
        return _prove_in_worker(law, subject, profile, at)
    if device == "cpu":
        interpreter.enable()
    trial = Trial(subject, device, at)
    if law.draws is None:
        law.check(trial, None)
        return Proof(trial.examples, trial.worst, time.perf_counter() - start)

    def check(example: Any) -> None:
        trial.examples += 1
        try:
            law.check(trial, example)
        except Exception:
            note(f"{law.name} of {subject.name} is broken: {law.statement}")
            if case := _case_of(example):
                note("Reproduce it alone with:\n\n" + script(case, subject, law.name, device))
            raise

    # Hypothesis keys its database of failures by the name.
    name = re.sub(r"\W", "_", f"law_{law.name}_of_{subject.name}")
    check.__name__ = check.__qualname__ = name
    test = settings(
        max_examples=max(1, int(PROFILES[profile] * law.effort)),
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if shrink else [])],
    )(given(law.draws(subject))(check))
    if at is not None:
        test = seed(at)(test)
    test()
    return Proof(trial.examples, trial.worst, time.perf_counter() - start)


def _prove_in_worker(law: Law, subject: Subject, profile: str, at: int | None) -> Proof:
    """Prove a law about interpreted kernels from a process that compiles them.

    One process cannot do both: Triton's own helpers are bound to one mode when it is imported.
    Another process can find a subject of ours by its name, and no other.
    """
    if subject != subject.op.subject():
        raise ValueError(
            f"`{law.name}` needs Triton's interpreter: prove a subject of your own with "
            "--twin-device cpu"
        )
    start = time.perf_counter()
    worker = subprocess.run(
        [
            sys.executable,
            "-m",
            "twinlaw.properties.prove",
            law.name,
            subject.name,
            profile,
            str(at),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = worker.stdout.rstrip().rpartition("\n")[2]
    if worker.returncode:
        raise AssertionError(worker.stderr[-4000:] or f"the worker died: {worker.returncode}")
    return replace(Proof(**json.loads(last)), seconds=time.perf_counter() - start)


def _worker(law: str, op: str, profile: str, at: str) -> None:
    """What the worker does: prove one law on the CPU and print the proof as JSON."""
    from twinlaw.properties.laws import LAWS
    from twinlaw.properties.subjects import OPS

    interpreter.enable()
    chosen = next(candidate for candidate in LAWS if candidate.name == law)
    seeded = None if at == "None" else int(at)
    print(json.dumps(asdict(prove(chosen, OPS[op].subject(), "cpu", profile, at=seeded))))


def _case_of(example: Any) -> Case | None:
    """The case that an example is or begins with."""
    if isinstance(example, tuple) and example:
        example = example[0]
    return example if isinstance(example, Case) else None


if __name__ == "__main__":
    _worker(*sys.argv[1:])
