"""The one judge of numbers: elementwise against a float64 oracle and its derived error bound.

A reference's ``error_bound`` gives, for every element that an op writes, the first-order forward
error of any float32 implementation. Nothing loosens it: no flag, no environment variable.
"""

from __future__ import annotations

import torch

__all__ = ["judge", "same_bits"]


def judge(name: str, got: torch.Tensor, oracle: torch.Tensor, bound: torch.Tensor | None) -> float:
    """The largest error over bound of ``got`` against ``oracle`` (float64, same shape).

    Where the bound is infinite or NaN (float32 itself may overflow there) anything goes. NaN and
    infinity must be where the oracle has them; an infinity may also stand for a value that the
    dtype of ``got`` cannot hold. Without a bound, the bits must be the same.

    Raises AssertionError that names the worst element.
    """
    if bound is None:
        same_bits(name, got, oracle)
        return 0.0
    if not got.numel():
        return 0.0
    value = got.double()
    free = ~bound.isfinite()
    most = torch.finfo(got.dtype).max
    overflow = (oracle.abs() + bound >= most) & value.isinf() & (value.sign() == oracle.sign())
    same = (value == oracle) | (value.isnan() & oracle.isnan())
    error = torch.where(free | overflow | same, 0.0, (value - oracle).abs())
    ratio = torch.where(error == 0, 0.0, error / bound).nan_to_num(nan=torch.inf)
    worst = int(ratio.argmax())
    if ratio.flatten()[worst] > 1:
        at = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
        raise AssertionError(
            f"`{name}`{list(at)} is {value.flatten()[worst]:.9g}, the oracle says "
            f"{oracle.flatten()[worst]:.9g}: off by {ratio.flatten()[worst]:.3g} times the bound"
        )
    return float(ratio.max())


def same_bits(name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise AssertionError unless both tensors, of one dtype and shape, hold the same bits."""
    assert got.shape == wanted.shape, f"`{name}` has shape {got.shape}, not {wanted.shape}"
    assert got.dtype == wanted.dtype, f"`{name}` has dtype {got.dtype}, not {wanted.dtype}"
    differ = (as_bits(got) != as_bits(wanted)).any(-1)
    if differ.any():
        at = differ.nonzero()[0].tolist()
        raise AssertionError(
            f"`{name}`{at} is {got[tuple(at)].item()!r}, not {wanted[tuple(at)].item()!r}, "
            f"and {int(differ.sum())} of {differ.numel()} elements differ in their bits"
        )


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of every element, in a last dim of their own; the data is not shared."""
    # Not .contiguous(), which leaves a dim of size 1 the stride that it has.
    flat = tensor.flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).view(*tensor.shape, tensor.itemsize)
