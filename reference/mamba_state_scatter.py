"""Commit the recurrent states of accepted draft steps to the pool."""

import torch

from twinlaw.reference.indices import (
    active_slots,
    is_index_vector,
    reject_repeated_slots,
    repeated_slots,
)
from twinlaw.reference.legality import (
    is_dense,
    is_null_slot,
    is_plain_tensor,
    writes_are_exclusive,
)

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by element size


@torch.no_grad()
def fused_mamba_state_scatter_with_mask(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> None:
    """Copy `src[l, r, step]` of each active request i, bit for bit, to `dst[l, slot]`.

    dst:              [L, S, *E], written in place; any dtype of 1, 2, 4 or 8 bytes
    src:              [L, R, D, *E], same dtype
    dst_indices_raw:  [n], int32 or int64: slot
    step_indices_raw: [n], int32 or int64: step
    src_indices_raw:  [n], int32 or int64: r; without it r = i

    for every layer l. E may be empty. Request i is active iff 0 ≤ slot < S and slot is not
    `null_slot`, 0 ≤ step < D, and 0 ≤ r < R. Requests are done in order, so of several that name
    one slot (a caller's error) the last is copied. Layouts are not validated: see `legal`.

    Raises ValueError if `validate_indices` and two active requests name the same slot.
    """
    copies = _copies(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw, null_slot)
    if validate_indices:
        reject_repeated_slots("dst_indices_raw", [slot for slot, _, _ in copies])
    bits = BITS[dst.element_size()]
    dst_bits, src_bits = dst.view(bits), src.view(bits)
    for slot, r, step in copies:
        dst_bits[:, slot] = src_bits[:, r, step]


def legal(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> bool:
    """Whether the fused op must accept this call. Any objects may be passed; none is modified.

    The shapes are those of the op. Beyond them: one dtype of 1, 2, 4 or 8 bytes for `dst` and
    `src`; all on one device; the E dims of each dense, the dims before them free; no element of
    `dst` named twice, by itself or by another argument; with `validate_indices`, no slot named by
    two active requests.
    """
    indices = [dst_indices_raw, step_indices_raw]
    if src_indices_raw is not None:
        indices.append(src_indices_raw)
    if not all(is_plain_tensor(t) for t in (dst, src, *indices)):
        return False
    if not (is_null_slot(null_slot) and isinstance(validate_indices, bool)):
        return False
    if dst.dtype != src.dtype or dst.element_size() not in BITS:
        return False
    if not all(t.device == dst.device for t in (src, *indices)):
        return False

    if dst.ndim < 2 or src.ndim != dst.ndim + 1:
        return False
    if dst.shape[0] != src.shape[0] or dst.shape[2:] != src.shape[3:]:
        return False
    if dst_indices_raw.ndim != 1:
        return False
    requests = dst_indices_raw.shape[0]
    if not all(is_index_vector(t, requests) for t in indices):
        return False

    if not (is_dense(dst, 2) and is_dense(src, 3) and writes_are_exclusive([dst], [src, *indices])):
        return False
    if not validate_indices:
        return True
    copies = _copies(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw, null_slot)
    return not repeated_slots([slot for slot, _, _ in copies])


def touched(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> dict[str, torch.Tensor]:
    """A bool mask of the elements that active requests name: "dst" [L, S, *E]."""
    copies = _copies(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw, null_slot)
    mask = torch.zeros(dst.shape, dtype=torch.bool)
    for slot, _, _ in copies:
        mask[:, slot] = True
    return {"dst": mask}


def unspecified(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices_raw: torch.Tensor,
    step_indices_raw: torch.Tensor,
    src_indices_raw: torch.Tensor | None = None,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> dict[str, torch.Tensor]:
    """A bool mask of the elements in slots that more than one active request names."""
    copies = _copies(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw, null_slot)
    mask = torch.zeros(dst.shape, dtype=torch.bool)
    for slot in repeated_slots([slot for slot, _, _ in copies]):
        mask[:, slot] = True
    return {"dst": mask}


def _copies(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_indices: torch.Tensor,
    step_indices: torch.Tensor,
    src_indices: torch.Tensor | None,
    null_slot: int | None,
) -> list[tuple[int, int, int]]:
    """The slot, r and step of each active request, in order."""
    slots = active_slots(dst_indices, dst.shape[1], null_slot)
    steps = active_slots(step_indices, src.shape[2], None)
    if src_indices is None:
        src_indices = torch.arange(len(slots))
    rows = active_slots(src_indices, src.shape[1], None)
    return [
        (slot, r, step)
        for slot, r, step in zip(slots, rows, steps, strict=True)
        if slot is not None and r is not None and step is not None
    ]
