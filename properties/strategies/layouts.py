"""Layouts, recipe first: a dense tensor and one or two small named twists.

Counterexamples shrink towards dense, offset 0 and size 1, and read as a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from hypothesis import strategies as st

from twinlaw.contract import Arg
from twinlaw.properties.case import Layout, dense

__all__ = ["any_layout", "legal_layout", "overlapping_layout", "pick", "twisted"]

ODD_STRIDES = (0, 1, 2, 7, 10**6)
"""Strides that a dim of size 1 may carry without meaning anything by them."""


T = TypeVar("T")


def pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """One of ``options``, the first the simplest.

    Unlike ``sampled_from`` it needs no new strategy for each list, which costs most of a draw.
    """
    return options[draw(st.integers(0, len(options) - 1))]


@dataclass(frozen=True)
class Twist:
    """One named change: ``stretch`` of a dim's stride, or its order, overlap, offset or oddity."""

    kind: str
    dim: int = 0
    amount: int = 0

    def __str__(self) -> str:
        words = {
            "pad": f"{self.amount} elements of padding after each step of dim {self.dim}",
            "step": f"every {self.amount}th of dim {self.dim}",
            "page": f"dim {self.dim} strides over pages of {self.amount} entries",
            "inner": f"dim {self.dim} moved inwards to place {self.amount}",
            "expand": f"dim {self.dim} expanded (stride 0)",
            "slide": f"dim {self.dim} slides by one element",
            "offset": f"storage offset {self.amount}",
            "odd": f"dim {self.dim}, of size 1, has stride {self.amount}",
        }
        return words[self.kind]


def twisted(shape: Sequence[int], twists: Sequence[Twist]) -> Layout:
    """The layout that ``twists``, in any order, make of a dense tensor of ``shape``."""
    order = list(range(len(shape)))
    for t in twists:
        if t.kind == "inner":
            order.remove(t.dim)
            order.insert(t.amount, t.dim)
    strides, offset, pitch = [0] * len(shape), 0, 1
    for dim in reversed(order):
        stride, here = pitch, [t for t in twists if t.dim == dim]
        for t in here:
            if t.kind == "pad":
                stride += t.amount
            elif t.kind == "step":
                stride *= t.amount
            elif t.kind == "page":
                offset += pitch * (t.amount - 1)  # the last entry of its page: the others precede
                stride *= t.amount
        kinds = {t.kind for t in here}
        if "expand" in kinds:
            stride = 0
        elif "slide" in kinds:
            stride = 1
            pitch += max(shape[dim] - 1, 0)
        else:
            pitch = stride * max(shape[dim], 1)
        strides[dim] = stride
        for t in here:
            if t.kind == "odd" and (shape[dim] == 1 or 0 in shape):
                strides[dim] = t.amount
    offset += sum(t.amount for t in twists if t.kind == "offset")
    return Layout(tuple(shape), tuple(strides), offset, tuple(str(t) for t in twists))


def legal_layout(draw: st.DrawFn, arg: Arg, shape: tuple[int, ...]) -> Layout:
    """Any kind of layout that ``arg`` admits for ``shape``; page-strided pools are frequent."""
    twists: dict[str, Twist] = {}
    options = _legal_twists(arg, shape)
    kinds = tuple(options)
    for _ in range(draw(st.integers(0, 3))):
        kind = pick(draw, kinds)
        dims, amounts = options[kind]
        twists[kind] = Twist(kind, pick(draw, dims), pick(draw, amounts))
    return twisted(shape, tuple(twists.values()))


def _legal_twists(
    arg: Arg, shape: tuple[int, ...]
) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    """By kind of twist, the dims and the amounts that keep a dense layout legal for ``arg``."""
    free = _free(arg, shape)
    pool = [d for d in free if shape[d] > 1]
    ones = [d for d, n in enumerate(shape) if n == 1 or 0 in shape]
    options: dict[str, tuple[Sequence[int], Sequence[int]]] = {"offset": ((0,), (1, 2, 3, 4, 8))}
    if pool:
        options["page"] = (pool[:1], (2, 3, 4))
        options["pad"] = (pool, (1, 2, 3, 4, 5))
        options["step"] = (pool, (2, 3))
    if pool and not arg.written:
        options["slide"] = (pool, (0,))
        if not arg.unique:  # the same index again and again is a caller's error
            options["expand"] = (pool, (0,))
    if len(free) > 1:
        options["inner"] = (free, free)
    if ones:
        options["odd"] = (ones, ODD_STRIDES)
    return options


def _free(arg: Arg, shape: tuple[int, ...]) -> list[int]:
    """The dims whose stride the contract leaves free."""
    if arg.dense_from is not None:
        return list(range(arg.dense_from))
    return list(range(len(shape) - arg.unit_last))


def overlapping_layout(draw: st.DrawFn, arg: Arg, shape: tuple[int, ...]) -> Layout:
    """A layout in which two indices name one element and nothing else is wrong.

    ``shape`` must have more than one element along a dim whose stride is free, and none of 0.
    """
    free = _free(arg, shape)
    dims = [d for d in free if shape[d] > 1]
    dim = pick(draw, dims)
    options = [twisted(shape, [Twist("expand", dim)])]
    if prod(shape[d] for d in range(len(shape)) if d not in free) > 1:
        # A slide by one overlaps only what spans more than one element.
        options.append(twisted(shape, [Twist("slide", dim)]))
    if len(dims) > 1:
        options.append(_colliding(shape, dims))
    return pick(draw, options)


def _colliding(shape: tuple[int, ...], dims: list[int]) -> Layout:
    """Two free dims with one stride: (0, 1) and (1, 0) meet, though no stride is 0."""
    layout = dense(shape)
    strides = list(layout.strides)
    strides[dims[0]] = strides[dims[1]]
    words = (f"dims {dims[0]} and {dims[1]} have the same stride",)
    return replace(layout, strides=tuple(strides), words=words)


def any_layout(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Raw strides, legal or not."""
    strides = tuple(pick(draw, (0, 1, 2, 3, 4, 5, 6, 8, 9, 12, 24)) for _ in shape)
    return Layout(shape, strides, draw(st.integers(0, 3)), ("raw strides",))
