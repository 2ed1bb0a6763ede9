"""What a law is: a sentence, what it draws, and a check that raises AssertionError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from twinlaw.properties.subjects import Subject
from twinlaw.properties.trial import Trial

__all__ = ["Law", "law"]

Draws = Callable[[Subject], "st.SearchStrategy[Any]"]


@dataclass(frozen=True)
class Law:
    """A property of any subject.

    ``check`` is handed a trial and one drawn example (None when the law draws nothing) and raises
    AssertionError where the law is broken. ``effort`` scales how many examples are tried.
    ``device`` is the only device type on which the law says anything, None for any, and ``gpus``
    how many of it there must be. ``needs`` names what a subject may lack.
    """

    name: str
    statement: str
    check: Callable[[Trial, Any], None]
    draws: Draws | None
    effort: float
    device: str | None
    gpus: int
    needs: str | None

    def silent_on(self, subject: Subject, device: str, gpus: int) -> str | None:
        """Why the law has nothing to say here, or None when it has."""
        if self.needs and not getattr(subject, self.needs):
            return f"the subject has no {self.needs}"
        if self.device == "cuda" and device == "cpu":
            return "needs cuda"
        if self.gpus > gpus:
            return f"needs {self.gpus} GPUs in one process"
        if self.device == "cpu" and device != "cpu" and subject != subject.op.subject():
            return "needs the interpreter"  # a worker finds our own subjects only
        return None

    def __str__(self) -> str:
        return self.name


def law(
    name: str,
    draws: Draws | None = None,
    *,
    effort: float = 1.0,
    device: str | None = None,
    gpus: int = 0,
    needs: str | None = None,
) -> Callable[[Callable[[Trial, Any], None]], Law]:
    """Decorator: the law that a check states; the first line of its docstring is the statement."""

    def declare(check: Callable[[Trial, Any], None]) -> Law:
        statement = (check.__doc__ or "").strip().splitlines()[0]
        return Law(name, statement, check, draws, effort, device, gpus, needs)

    return declare
