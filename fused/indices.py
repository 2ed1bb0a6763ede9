"""What index tensors mean on the host side; kernels check the values themselves."""

from __future__ import annotations

import torch

__all__ = ["null_or_inactive", "refuse_duplicates"]


def null_or_inactive(null_slot: int | None, slots: int) -> int:
    """The null slot as kernels take it: -1, inactive anyway, when no slot is set apart."""
    return null_slot if null_slot is not None and 0 <= null_slot < slots else -1


def refuse_duplicates(name: str, indices: torch.Tensor, active: torch.Tensor) -> None:
    """Raise ValueError if two active entries of ``indices`` [n] name one slot; syncs."""
    slots, counts = indices[active].unique(return_counts=True)
    if (counts > 1).any():
        twice = slots[counts > 1].tolist()
        raise ValueError(
            f"`{name}` must name each slot at most once among active requests: got {twice} more "
            "than once; give each request a slot of its own"
        )
