"""Values: what tensors hold. Floats by distribution and seed, so that every machine fills alike;
indices one by one, live or garbage."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from twinlaw.properties.case import TensorSpec, Values
from twinlaw.properties.strategies.layouts import pick

__all__ = ["draw_floats", "draw_indices", "fill", "garbage_indices"]

EDGES = (0.0, -0.0, 1e-30, -1e-30, 1e-6, 0.5, 19.9, 20.1, -20.0, 87.0, -87.0, -104.0, 1e3, -1e3)
"""Where exp, softplus, sigmoid and the norm change their ways."""

_I31, _I32, _I63 = 2**31, 2**32, 2**63


def draw_floats(draw: st.DrawFn, mood: str | None = None) -> Values:
    """Distributions from simple to hard; most are normal, over six orders of magnitude.

    ``mood`` decides the kind, or, if it is ``"bits"``, adds raw bits, NaN payloads included.
    """
    kinds: tuple[str, ...] = ("normal",) * 4 + ("small integers", "iota", "ones", "zeros", "edges")
    if mood == "bits":
        kinds += ("bits",) * 6
    kind = mood if mood and mood != "bits" else pick(draw, kinds)
    scale = pick(draw, (1.0, 1.0, 1e-2, 1e-4, 1e2)) if kind == "normal" else 1.0
    return Values(kind, draw(st.integers(0, 2**16)), scale)


def draw_indices(
    draw: st.DrawFn, n: int, size: int, wide: bool, *, unique: bool, null: int | None = None
) -> Values:
    """``n`` indices into a dim of ``size``: live ones (``unique``: each at most once) and garbage.

    ``wide`` admits 64-bit garbage, which narrowed to 32 bits would look live.
    """
    left = [i for i in range(size) if i != null]
    numbers = []
    for _ in range(n):
        if left and draw(st.integers(0, 7)) < 7:
            live = pick(draw, left)
            if unique:
                left.remove(live)
            numbers.append(live)
        else:
            numbers.append(pick(draw, garbage_indices(size, wide, null)))
    return Values("indices", numbers=tuple(numbers))


def garbage_indices(size: int, wide: bool, null: int | None = None) -> list[int]:
    """Indices that name nothing, near every bound and of every width."""
    options = [-1, -2, size, size + 1, 2 * size + 1, _I31 - 1, -_I31]
    if null is not None and 0 <= null < size:
        options = [null] * 6 + options  # or it would be one of many
    if wide:
        options += [_I32, _I32 + max(size - 1, 0), -_I32, _I31, _I63 - 1, -_I63]
    return options


def fill(spec: TensorSpec) -> torch.Tensor:
    """The values of a tensor, dense, on the CPU: the same bits everywhere."""
    shape, values, dtype = spec.layout.shape, spec.values, spec.torch_dtype
    if values.numbers is not None:
        return torch.tensor(values.numbers, dtype=torch.int64).to(dtype).reshape(shape)
    generator = torch.Generator().manual_seed(values.seed)
    if values.kind == "bits" or not (dtype.is_floating_point and dtype.itemsize > 1):
        return _bits(shape, dtype, generator)
    return _FILLS[values.kind](shape, generator).mul(values.scale).to(dtype)


def _bits(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Random bits of any dtype: for ops that move them, NaN payloads and odd bools included."""
    n = dtype.itemsize * torch.Size(shape).numel()
    noise = torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator)
    return noise.view(dtype).reshape(shape)


def _edges(shape: Any, generator: torch.Generator) -> torch.Tensor:
    picks = torch.randint(0, len(EDGES), shape, generator=generator)
    return torch.tensor(EDGES, dtype=torch.float64)[picks]


_FILLS = {
    "normal": lambda s, g: torch.randn(s, dtype=torch.float64, generator=g),
    "small integers": lambda s, g: torch.randint(-3, 4, s, generator=g).double(),
    "iota": lambda s, g: torch.arange(torch.Size(s).numel(), dtype=torch.float64).reshape(s) % 17,
    "ones": lambda s, g: torch.ones(s, dtype=torch.float64),
    "zeros": lambda s, g: torch.zeros(s, dtype=torch.float64),
    "edges": _edges,
}
