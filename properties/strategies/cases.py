"""Legal calls, made up from a contract: sizes, then a dtype, layout and values an argument."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from twinlaw.contract import BITS, Arg, Contract, Dim, Scalar
from twinlaw.properties.case import Case, TensorSpec, Values, dense
from twinlaw.properties.strategies.layouts import legal_layout, pick
from twinlaw.properties.strategies.values import draw_floats, draw_indices

__all__ = ["computed", "dense_case", "dtypes_of", "legal_cases", "shape_of", "small_sizes"]

BIT_DTYPES = (
    *("float32", "bfloat16", "float16", "int8", "bool", "int64"),
    *("float64", "complex64", "float8_e4m3fn", "uint8", "int16"),
)
"""Dtypes of 1, 2, 4 and 8 bytes that an op which moves bits is tried on."""

SMALL = 3
"""The most of any dim without edges of its own: an interpreted program costs milliseconds."""


def draw_sizes(
    draw: st.DrawFn, contract: Contract, least: int | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """A size for every dim. Sizes that coincide hide bugs, so each is drawn on its own.

    ``least`` raises every free dim to at least that size; those in ``given`` are not drawn.
    """
    drawn: dict[str, Any] = {}
    variadic = {a.rest for a in contract.args if a.rest}
    for dim in contract.dims:
        low = max(dim.least, least or 0)
        edges = [e for e in dim.edges if e >= low]
        variable = dim.name in variadic
        if dim.name in given:
            drawn[dim.name] = given[dim.name]
        elif dim.of:
            drawn[dim.name] = computed(dim, drawn)
        elif bool(edges) and draw(st.booleans()):
            edge = pick(draw, edges)
            drawn[dim.name] = (edge,) if variable else edge
        elif variable:
            count = draw(st.integers(1 if least else 0, SMALL))
            drawn[dim.name] = tuple(_small(draw, low) for _ in range(count))
        else:
            drawn[dim.name] = min(_small(draw, low), dim.most or SMALL + low)
    return drawn


def _small(draw: st.DrawFn, low: int) -> int:
    """A small size; 0, which empties the whole call, in one of ten cases where it may be."""
    if low == 0 and draw(st.integers(0, 9)) == 9:
        return 0
    return draw(st.integers(max(low, 1), SMALL + low))


def computed(dim: Dim, sizes: Mapping[str, Any]) -> int:
    """The size that a dim's formula gives."""
    return int(eval(dim.of or "", {"__builtins__": {}}, dict(sizes)))


def shape_of(arg: Arg, sizes: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape that ``sizes`` give an argument."""
    named = [int(d) if d.isdigit() else sizes[d] for d in arg.dim_names]
    return (*named, *(sizes[arg.rest] if arg.rest else ()))


def dtypes_of(arg: Arg) -> tuple[str, ...]:
    """The dtypes that an argument is tried with."""
    return BIT_DTYPES if arg.dtypes == BITS else arg.dtypes


@st.composite
def legal_cases(
    draw: st.DrawFn,
    contract: Contract,
    least: int | None = None,
    layouts: bool = True,
    fixed: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
) -> Case:
    """A call that ``contract`` accepts: every argument in a legal layout of its own.

    ``least`` is the least size of free dims and ``layouts=False`` keeps every argument dense.
    ``fixed`` gives scalars and dtypes by the argument's name, and ``sizes`` free dims, instead of
    drawing them.
    """
    fixed = fixed or {}
    size = draw_sizes(draw, contract, least, sizes or {})
    scalars: dict[str, Any] = {
        s.name: fixed[s.name] if s.name in fixed else _scalar(draw, s, size, contract)
        for s in contract.scalars
    }
    null = scalars.get("null_slot")
    # Edges of several arguments at once meet too rarely when each is drawn for itself.
    mood = pick(draw, (None,) * 6 + ("edges", "small integers"))
    tensors: dict[str, TensorSpec | None] = {}
    for arg in contract.args:
        if arg.optional and arg.name not in fixed and not draw(st.booleans()):
            tensors[arg.name] = None
            continue
        shape = shape_of(arg, size)
        like = tensors.get(arg.same_dtype or "")
        dtype = like.dtype if like else fixed.get(arg.name) or pick(draw, dtypes_of(arg))
        layout = legal_layout(draw, arg, shape) if layouts else dense(shape)
        values = (
            draw_indices(
                draw,
                shape[0],
                size[arg.indexes],
                dtype == "int64",
                unique=arg.unique,
                null=null if arg.unique else None,
            )
            if arg.indexes
            else draw_floats(draw, "bits" if arg.dtypes == BITS else mood)
        )
        tensors[arg.name] = TensorSpec(dtype, layout, values)
    return Case(contract.op, tensors, scalars, size)


def small_sizes(contract: Contract, arg: Arg, options: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Every choice of ``options`` for the dims of ``arg``; of 1 and 2 for those behind a formula.

    Dims on which ``arg`` does not depend are 1.
    """
    formulas = {d.name: d.of for d in contract.dims if d.of}
    direct, behind = {*arg.dim_names, arg.rest}, set[str]()
    for name in reversed(formulas):
        if name in direct | behind:
            behind |= set(re.findall(r"[A-Za-z]\w*", formulas[name]))
    choices: list[Sequence[Any]] = []
    free = [d for d in contract.dims if not d.of]
    for d in free:
        if any(d.name == a.rest for a in contract.args):
            choices.append(((), (2,), (2, 2)) if d.name in direct else ((),))
        elif d.name in direct:
            choices.append([n for n in options if n >= d.least])
        else:
            choices.append((1, 2) if d.name in behind else (1,))
    for chosen in itertools.product(*choices):
        sizes: dict[str, Any] = dict(zip((d.name for d in free), chosen, strict=True))
        for d in contract.dims:
            if d.of:
                sizes[d.name] = computed(d, sizes)
        yield sizes


def dense_case(contract: Contract, sizes: Mapping[str, Any]) -> Case:
    """The plainest call with ``sizes``: dense, ones, index 0 throughout."""
    tensors: dict[str, TensorSpec | None] = {}
    for arg in contract.args:
        shape = shape_of(arg, sizes)
        values = Values("indices", numbers=(0,) * shape[0]) if arg.indexes else Values("ones")
        tensors[arg.name] = TensorSpec(dtypes_of(arg)[0], dense(shape), values)
    plainest = {"real": 1.0, "flag": False, "int?": None}
    scalars = {s.name: plainest[s.kind] for s in contract.scalars}
    return Case(contract.op, tensors, scalars, sizes)


def _scalar(draw: st.DrawFn, s: Scalar, size: Mapping[str, Any], contract: Contract) -> Any:
    if s.kind == "flag":
        # What a check of values refuses is no matter of layout: the law on duplicates asks for it.
        return s.name != "validate_indices" and draw(st.booleans())
    if s.kind == "real":
        return pick(draw, (1.0, 0.125, -2.0, 3, 0.0, 1e-3))
    pool = next(a.indexes for a in contract.args if a.unique and a.indexes)
    return pick(draw, (None, None, 0, max(size[pool] - 1, 0), -1, size[pool], 2**40))
