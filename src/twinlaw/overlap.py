"""Exact answers about the memory of strided views: self-overlap and sharing.

Both ask whether a bounded linear Diophantine equation has a solution. The usual cases (nested
strides, address ranges apart) are decided at once; the rest by a search with bound and divisibility
cuts. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["View", "overlaps_itself", "share_memory"]


class View(NamedTuple):
    """The metadata of a strided tensor: sizes and strides in elements, ``address`` in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    device: str
    address: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes_spanned(self) -> int:
        """Bytes from the first element to the end of the last; 0 when there is none."""
        if 0 in self.shape:
            return 0
        last = sum(s * (n - 1) for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    def __str__(self) -> str:
        return f"shape {self.shape}, strides {self.strides}"


_PATIENCE = 200_000
"""Branches the solver takes before it gives up and calls two views overlapping."""


def _reaches(terms: Sequence[tuple[int, int]], target: int) -> bool:
    """Whether the sum of c·x over (c, most) in ``terms`` is ``target`` for some 0 <= x <= most.

    A bounded linear Diophantine equation with c > 0. Terms that continue one another (a dense
    block) are folded first; then the largest coefficient branches, with bound and divisibility
    cuts, and the last two terms are solved in closed form.
    """
    folded: list[tuple[int, int]] = []
    for c, most in sorted(t for t in terms if t[1] > 0):
        if folded and c % folded[-1][0] == 0 and c // folded[-1][0] <= folded[-1][1] + 1:
            base, reach = folded[-1]
            folded[-1] = (base, reach + c // base * most)
        else:
            folded.append((c, most))
    if not folded:
        return target == 0
    largest_first = folded[::-1]
    n = len(largest_first)
    divisor, total = [0] * (n + 1), [0] * (n + 1)
    for i in range(n - 1, -1, -1):
        c, most = largest_first[i]
        divisor[i] = math.gcd(divisor[i + 1], c)
        total[i] = total[i + 1] + c * most
    steps = 0

    def search(i: int, goal: int) -> bool:
        nonlocal steps
        if goal < 0 or goal > total[i] or goal % divisor[i]:
            return False
        if i == n - 1:
            return True
        c, most = largest_first[i]
        low, high = max(0, -(-(goal - total[i + 1]) // c)), min(most, goal // c)
        # c·x = goal modulo what the smaller terms can make, so only every `period`-th x can do.
        period = divisor[i + 1] // divisor[i]
        inverse = pow(c // divisor[i], -1, period) if period > 1 else 0
        x = low + (goal // divisor[i] * inverse - low) % period
        if i == n - 2:
            return x <= high
        while x <= high:
            steps += 1
            if steps > _PATIENCE or search(i + 1, goal - c * x):
                return True
            x += period
        return False

    return search(0, target)


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two index tuples of a view (sizes and strides in elements) name one element."""
    if 0 in shape:
        return False
    dims = sorted((s, n - 1) for n, s in zip(shape, strides, strict=True) if n > 1)
    reach = 0
    for stride, most in dims:  # each dim steps over all that the smaller ones reach: no overlap
        if stride <= reach:
            break
        reach += stride * most
    else:
        return False
    span = sum(s * most for s, most in dims)
    if dims[0][0] == 0 or math.prod(most + 1 for _, most in dims) > span + 1:
        return True
    # Two tuples with one offset differ; let dim i be the first where the first is ahead, by 1+x.
    # Later dims differ by -most..most, shifted here to 0..2·most.
    return any(
        _reaches(
            [(stride, most - 1), *((s, 2 * m) for s, m in dims[i + 1 :])],
            sum(s * m for s, m in dims[i + 1 :]) - stride,
        )
        for i, (stride, most) in enumerate(dims)
    )


def share_memory(a: View, b: View) -> bool:
    """Whether an element of ``a`` and one of ``b`` have a byte in common."""
    if 0 in a.shape or 0 in b.shape:
        return False
    if a.address + a.nbytes_spanned <= b.address or b.address + b.nbytes_spanned <= a.address:
        return False
    terms = [(1, a.itemsize - 1), (1, b.itemsize - 1)]
    for view in (a, b):
        pairs = zip(view.shape, view.strides, strict=True)
        terms += [(s * view.itemsize, n - 1) for n, s in pairs if s > 0]
    # a's byte is counted from its first, b's backwards from its last, so that all terms add up.
    return _reaches(terms, b.address + b.nbytes_spanned - 1 - a.address)
