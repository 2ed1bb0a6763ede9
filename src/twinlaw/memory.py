"""What a validator remembers: the calls that it has accepted, by all that a verdict depends on.

The last one is looked at first. Serving repeats itself, layer after layer and token after token,
so that most calls end there. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Accepted", "Memory", "SameMetadata"]

SameMetadata = Callable[..., bool]
"""Whether tensors (all of a call's, in order) have the metadata of those it was made for."""

MOST = 4096
"""Signatures that are remembered before all are forgotten and it starts anew."""


@dataclass(slots=True)
class Accepted:
    """An accepted signature: how far each tensor reaches, and which pairs may not share."""

    spans: Sequence[int]
    pairs: Sequence[tuple[int, int]]
    disjoint: set[tuple[int, ...]]
    """Addresses of such calls' tensors at which they share nothing."""
    kinds: tuple[Any, ...] = ()
    same_metadata: SameMetadata | None = None

    def surely_disjoint(self, addresses: tuple[int, ...]) -> bool:
        """Whether, at these addresses, no pair even touches the other's range."""
        if addresses in self.disjoint:
            return True
        spans = self.spans
        for i, j in self.pairs:
            first, second = addresses[i], addresses[j]
            if first < second + spans[j] and second < first + spans[i]:
                return False
        self.found_disjoint(addresses)
        return True

    def found_disjoint(self, addresses: tuple[int, ...]) -> None:
        """Remember that tensors at these addresses share nothing."""
        if len(self.disjoint) >= MOST:
            self.disjoint.clear()
        self.disjoint.add(addresses)


class Memory:
    """Accepted calls of one contract.

    ``tensors`` and ``scalars`` are positions of parameters; ``optional`` ones may be None. The
    readers are compiled from one expression each: a loop over arguments costs three times as
    much. ``guard`` makes a test for tensors like given ones, where that is faster than reading
    their metadata, or answers None.
    """

    def __init__(
        self,
        count: int,
        tensors: Sequence[int],
        optional: Sequence[int],
        guard: Callable[[Sequence[Any]], SameMetadata | None] | None,
    ) -> None:
        self._guard = guard
        self._last: Accepted | None = None
        self._all: dict[Any, Accepted] = {}

        def reader(entry: Callable[[str], str], positions: Sequence[int], around: str) -> Any:
            parts = [
                f"*(() if x{i} is None else ({entry(f'x{i}')},)), "
                if i in optional
                else f"{entry(f'x{i}')}, "
                for i in positions
            ]
            names = ", ".join(f"x{i}" for i in range(count))
            return eval(f"lambda same, {names}: {around.format(''.join(parts))}", {})

        loose = [i for i in range(count) if i not in tensors or i in optional]
        facts = "({0}.__class__, {0}.shape, {0}.stride(), {0}.dtype, {0}.device, "
        facts += "{0}.is_neg(), {0}.is_conj())"
        self._addresses = reader("{}.data_ptr()".format, tensors, "({})")
        self._facts = reader(facts.format, tensors, "({})")
        self._same = reader("{}".format, tensors, "same({})")
        # What isn't a tensor counts by its class: no verdict depends on more.
        names = ", ".join(f"x{i}" for i in range(count))
        kinds = "".join(f"x{i}.__class__, " for i in loose)
        self._kinds = eval(f"lambda {names}: ({kinds})", {})

    def find(self, values: Sequence[Any]) -> Accepted | None:
        """The accepted signature that these arguments have, if any."""
        last = self._last
        kinds = self._kinds(*values)
        if last is not None and last.kinds == kinds and last.same_metadata is not None:
            try:
                if self._same(last.same_metadata, *values):
                    return last
            except TypeError:  # one of them is no tensor
                return None
        try:
            found = self._all.get((kinds, self._facts(None, *values)))
        except Exception:  # nothing whose metadata can't be read was ever accepted
            return None
        if found is not None:
            self._last = found
        return found

    def addresses(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Where the tensors among ``values`` lie, in order."""
        addresses: tuple[int, ...] = self._addresses(None, *values)
        return addresses

    def keep(self, values: Sequence[Any], accepted: Accepted) -> None:
        """Remember that a call with this signature was accepted."""
        if len(self._all) >= MOST:
            self.forget()
        accepted.kinds = self._kinds(*values)
        if self._guard:
            tensors = self._same(lambda *tensors: tensors, *values)
            accepted.same_metadata = self._guard(tensors)
        self._all[accepted.kinds, self._facts(None, *values)] = accepted
        self._last = accepted

    def forget(self) -> None:
        """Forget everything."""
        self._all.clear()
        self._last = None
