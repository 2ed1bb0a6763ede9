"""The laws as pytest tests: what ``twinlaw verify`` runs, and what a test file asks for.

from twinlaw.properties.suite import laws_of
test_laws = laws_of(subject)
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from twinlaw.properties.case import Case
from twinlaw.properties.laws import LAWS, Law
from twinlaw.properties.prove import prove
from twinlaw.properties.reproduce import script
from twinlaw.properties.subjects import OPS, Subject
from twinlaw.properties.trial import Trial

__all__ = ["laws_of"]

Test = Callable[..., None]


def laws_of(*subjects: Subject) -> Test:
    """A test that holds every subject to every law; the plugin says on which device, how hard.

    Laws that say nothing on that device are deselected, and the final table says so. A broken
    law is told in words and a script; pytest's ``--full-trace`` shows the traceback instead.
    """
    pairs = [
        pytest.param(law, subject, id=f"{subject.name}-{law.name}")
        for subject in subjects
        for law in LAWS
    ]

    @pytest.mark.parametrize(("law", "subject"), pairs)
    def test(law: Law, subject: Subject, twin: Any, request: pytest.FixtureRequest) -> None:
        seen, text = _Watch(law), ""
        try:
            proof = prove(seen.law, subject, twin.device, twin.profile, at=twin.seed)
            seen.examples, seen.worst = proof.examples, proof.worst
        except Exception as error:
            if request.config.getoption("--full-trace"):
                raise
            text = _told(law, subject, error, seen.broken_by, twin.device)
        finally:
            request.node.user_properties += [
                ("twin-examples", seen.examples),
                ("twin-worst", seen.worst),
            ]
        if text:
            pytest.fail(text, pytrace=False)

    holds: Test = test
    return holds


class _Watch:
    """A law that remembers how far it came and what broke it last: the smallest example."""

    def __init__(self, law: Law) -> None:
        self.law = replace(law, check=self._check)
        self.broken_by: Any = None
        self.examples, self.worst = 0, 0.0
        self._original = law.check

    def _check(self, trial: Trial, example: Any) -> None:
        try:
            self._original(trial, example)
        except Exception:
            self.broken_by = example
            raise
        finally:
            self.examples, self.worst = trial.examples, trial.worst


def _told(law: Law, subject: Subject, error: Exception, example: Any, device: str) -> str:
    """A broken law: what it states, what was seen, on which input, and a script that shows it."""
    parts = [
        f"{subject.name} breaks the law {law.name!r} on {device}: {law.statement}",
        str(error) if isinstance(error, AssertionError) else _located(error),
    ]
    drawn = example if isinstance(example, tuple) else (example,)
    parts += [str(d) for d in drawn if isinstance(d, Case)]
    if beside := [repr(d) for d in drawn if d is not None and not isinstance(d, Case)]:
        parts.append("Drawn beside it: " + ", ".join(beside))
    if cases := [d for d in drawn if isinstance(d, Case)]:
        parts.append("Alone, as a script:")
        parts.append(script(cases[0], subject, law.name, device))
    return "\n\n".join(parts)


_INTERNAL = tuple(
    str(Path(file).resolve().parent) for file in (__file__, hypothesis.__file__) if file
)
"""Folders whose frames say nothing about the subject."""


def _located(error: Exception) -> str:
    """What was raised, and the frames of it that belong to the subject, the innermost last."""
    lines = [f"{type(error).__name__}: {error}"]
    cause: BaseException = error
    while cause.__cause__:  # Triton's interpreter wraps what a kernel raised
        cause = cause.__cause__
    frames = [
        frame
        for frame in traceback.extract_tb(cause.__traceback__)
        if not str(Path(frame.filename).resolve()).startswith(_INTERNAL)
    ]
    lines += [f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames[-6:]]
    return "\n".join(lines)


test_laws = laws_of(*(op.subject() for op in OPS.values()))
