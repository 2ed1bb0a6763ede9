"""torch's own test for tensors with the metadata of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["same_metadata"]


def same_metadata(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """A function that says whether others have the class, dtype, device, shape, strides and
    dispatch keys (layout, lazy negation) of ``tensors``; None where this torch offers none.

    This is what ``torch.compile`` guards its graphs with: a sixth of the time that reading the
    same from Python takes (benchmarks/validator.py). It is private API, hence the None.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        guards = TensorGuards(
            *tensors,
            # Typed as flat lists; torch itself passes, and reads, one list a tensor.
            dynamic_dims_sizes=[list(t.shape) for t in tensors],  # type: ignore[misc]
            dynamic_dims_strides=[list(t.stride()) for t in tensors],  # type: ignore[misc]
        )
        check: Callable[..., bool] = guards.check
        return check if check(*tensors) else None
    except (ImportError, TypeError, ValueError, RuntimeError):
        return None
