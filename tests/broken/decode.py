"""Packed decode with one line changed."""

from __future__ import annotations

from typing import Any

from broken.twin import DECODE, Twin, edited

ROUNDED = ".to(tl.bfloat16).to(tl.float32)"
SLOT = "slot = tl.load(slots + n * slots_step).to(tl.int64)"
STORE = "tl.store(out_v, tl.sum(S * q_k[None, :], 1), in_v)"
INACTIVE = "        tl.store(out_v, 0.0, in_v)\n        return"


def _decode(name: str, old: str, new: str, *laws: str, **traits: Any) -> Twin:
    return edited(DECODE, name, old, new, *laws, **traits)


MASKS = (
    _decode("out's tail of V unmasked", STORE, STORE.replace(", in_v)", ")"), "containment"),
    _decode(
        "zeros' tail of V unmasked",
        INACTIVE,
        INACTIVE.replace(", in_v)", ")"),
        "containment",
    ),
    _decode(
        "state's tail of K unmasked",
        "in_v[:, None] & in_k[None, :]",
        "in_v[:, None] & (k >= 0)[None, :]",
        *("containment", "agreement"),
    ),
    _decode(
        "k's tail unmasked, and its norm with it",
        "tl.load(row + (H + qk_head) * K + k, in_k, 0)",
        "tl.load(row + (H + qk_head) * K + k)",
        "agreement",
    ),
    _decode("row of v one short", "v < V, k < K", "v < V - 1, k < K", "complete-write"),
)

WATCHED = (
    _decode(
        "v read past its row's end",
        "2 * H * K + h * V + v, in_v, 0)",
        "2 * H * K + h * V + v)",
        "memory-clean",
    ),
    _decode(
        "blocks of V overlap by a row",
        "(program % tiles).to(tl.int64) * BLOCK_V",
        "(program % tiles).to(tl.int64) * (BLOCK_V - 1)",
        "race-free",
    ),
)

ADDRESSES = (
    _decode(
        "slot times stride in 32 bits",
        "slot * state_slot",
        "(slot * state_slot).to(tl.int32)",
        "64-bit-addressing",
    ),
    _decode(
        "head times stride in 32 bits",
        "h * state_head",
        "(h * state_head).to(tl.int32)",
        "64-bit-addressing",
    ),
    _decode(
        "row times stride in 32 bits",
        "qkv + n * qkv_row",
        "qkv + (n * qkv_row).to(tl.int32)",
        "64-bit-addressing",
    ),
    _decode(
        "state read as [K, V]",
        "v[:, None] * state_v + k[None, :]",
        "v[:, None] + k[None, :] * V",
        "agreement",
    ),
)

INDICES = (
    _decode(
        "null_slot ignored",
        " | (slot == null_slot)",
        "",
        "agreement",
    ),
    _decode("slot 0 always null", "(slot < 0)", "(slot <= 0)", "agreement"),
    _decode(
        "index past the end clamped",
        SLOT,
        f"{SLOT}\n    slot = tl.where(slot >= n_slots, n_slots - 1, slot)",
        *("index-garbage", "inactive-requests"),
    ),
    _decode(
        "negative index counts from the end",
        SLOT,
        f"{SLOT}\n    slot = tl.where(slot < 0, slot + n_slots, slot)",
        *("index-garbage", "inactive-requests"),
    ),
    _decode(
        "index narrowed before its check",
        ".to(tl.int64)\n    if",
        ".to(tl.int32).to(tl.int64)\n    if",
        *("index-garbage", "inactive-requests"),
    ),
    _decode(
        "inactive row skipped",
        INACTIVE,
        "        return",
        *("agreement", "complete-write", "inactive-requests", "poison"),
    ),
    _decode(
        "inactive row of ones",
        INACTIVE,
        INACTIVE.replace("0.0", "1.0"),
        *("agreement", "inactive-requests", "index-garbage"),
    ),
)

HEADS = (
    _decode("heads mapped modulo H", "h // (HV // H)", "h % H", "agreement"),
    _decode("gate of head 0 for all", "tl.load(A_log + h)", "tl.load(A_log)", "agreement"),
    _decode("bias of head 0 for all", "tl.load(dt_bias + h)", "tl.load(dt_bias)", "agreement"),
)

ARGUMENTS = (
    _decode("norm flag ignored", "L2NORM=use_qk_l2norm_in_kernel", "L2NORM=False", "agreement"),
    _decode("scale ignored", "q_k = q_k * scale", "q_k = q_k * 1.0", "agreement"),
    _decode("scale applied to k", "q_k = q_k * scale", "k_k = k_k * scale", "agreement"),
    _decode("epsilon forgotten", "tl.sum(k_k * k_k) + 1e-6", "tl.sum(k_k * k_k)", "agreement"),
)

PRECISION = (
    _decode(
        "softplus loses small e^x",
        "tl.where(u == 1.0, e, tl.log(u) * (e / (u - 1.0)))",
        "tl.log(u)",
        "agreement",
    ),
    _decode("beta rounded", "beta * (v_v", f"beta{ROUNDED} * (v_v", "agreement"),
    _decode(
        "k rounded", "q_k = q_k * scale", f"q_k = q_k * scale\n    k_k = k_k{ROUNDED}", "agreement"
    ),
    _decode("decay rounded", "* tl.exp(g)", f"* tl.exp(g){ROUNDED}", "agreement"),
    _decode(
        "S k rounded",
        "S_k = tl.sum(S * k_k[None, :], 1)",
        f"S_k = tl.sum(S * k_k[None, :], 1){ROUNDED}",
        "agreement",
    ),
    _decode(
        "out from the stored state",
        STORE,
        STORE.replace("S *", "S.to(state.dtype.element_ty).to(tl.float32) *"),
        "agreement",
    ),
    _decode(
        "out from the state before the update",
        STORE,
        STORE.replace("S *", "(S - (beta * (v_v - S_k))[:, None] * k_k[None, :]) *"),
        "agreement",
    ),
    _decode("softplus overflows", "tl.where(x > 20.0, x, ", "tl.where(x > 1e9, x, ", "agreement"),
)

HOST = (
    _decode(
        "duplicates not refused",
        "    if validate_indices:",
        "    if validate_indices and not validate_indices:",
        "duplicates-refused",
    ),
    _decode(
        "duplicates sought among clamped indices",
        '"ssm_state_indices", slots, active',
        '"ssm_state_indices", slots.clamp(0, N - 1), active | True',
        "duplicates-refused",
    ),
    _decode(
        "an empty pool taken for nothing to do",
        "    launch(\n",
        "    if not initial_state.numel():\n        return out, initial_state\n    launch(\n",
        *("agreement", "size-0-and-1"),
    ),
)

TWINS = (*MASKS, *WATCHED, *ADDRESSES, *INDICES, *HEADS, *ARGUMENTS, *PRECISION, *HOST)
