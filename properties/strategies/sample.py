"""A few examples of a strategy, for laws that look for evidence and not for a counterexample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

__all__ = ["sample"]

T = TypeVar("T")


def sample(strategy: st.SearchStrategy[T], count: int, at: int | None) -> Iterator[T]:
    """At most ``count`` examples, drawn in batches as they are asked for; ``at`` is the seed."""
    batch = 5
    for start in range(0, count, batch):
        drawn: list[T] = []

        @seed((at or 0) + start)
        @settings(
            max_examples=batch,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.tuples(st.just(drawn), strategy))
        def collect(example: tuple[list[T], T]) -> None:
            example[0].append(example[1])

        collect()
        yield from drawn
