"""What an index tensor means: which requests are active, and in which slot."""

import torch


def is_index_vector(t: torch.Tensor, length: int) -> bool:
    """Whether `t` is a 1-D tensor of `length` int32 or int64 numbers; any stride will do."""
    return t.dtype in (torch.int32, torch.int64) and t.ndim == 1 and t.shape[0] == length


def active_slots(indices: torch.Tensor, slots: int, null_slot: int | None) -> list[int | None]:
    """The slot of each request, and None for an inactive one.

    indices: [B], int32 or int64. An index is inactive if it is negative, equals `null_slot`, or
    is not below `slots`, the number of slots. It is judged as it is, at its full width.
    """
    return [slot if 0 <= slot < slots and slot != null_slot else None for slot in indices.tolist()]


def repeated_slots(slots: list[int | None]) -> set[int]:
    """The slots that more than one active request names: a caller's error."""
    seen: set[int] = set()
    repeated: set[int] = set()
    for slot in slots:
        if slot is not None:
            (repeated if slot in seen else seen).add(slot)
    return repeated


def reject_repeated_slots(name: str, slots: list[int | None]) -> None:
    """Raise ValueError if two active requests of index tensor `name` write the same slot."""
    repeated = repeated_slots(slots)
    if repeated:
        raise ValueError(
            f"`{name}` must name each slot at most once among active requests: "
            f"slots {sorted(repeated)} are repeated; give every request a slot of its own"
        )
