"""Packed decode of the gated delta rule: one token a request, state in a pool, in place."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from twinlaw.contract import FLOATS, INDICES, Arg, Contract, Dim, Rule, Scalar
from twinlaw.fused.guard import same_metadata
from twinlaw.fused.indices import null_or_inactive, refuse_duplicates
from twinlaw.fused.launch import as_float, launch

__all__ = ["CONTRACT", "fused_recurrent_gated_delta_rule_packed_decode"]


def _heads(width: int, HV: int, V: int, K: int) -> int:
    """H, the number of q/k heads; 0 when ``width`` leaves no whole number of them."""
    H, rest = divmod(width - HV * V, 2 * K or 1)
    return 0 if rest else H


def _width_fits(dims: Any) -> bool:
    H = _heads(dims["W"], dims["HV"], dims["V"], dims["K"])
    return H > 0 and dims["HV"] % H == 0


_NOTHING = "a state without heads or rows is a mistake of shape, though nothing would be computed"

CONTRACT = Contract(
    "fused_recurrent_gated_delta_rule_packed_decode",
    parameters=(
        Arg("mixed_qkv", "B W", "* 1", FLOATS),
        Arg("a", "B HV", "* 1", FLOATS),
        Arg("b", "B HV", "* 1", FLOATS),
        Arg("A_log", "HV", "dense", FLOATS),
        Arg("dt_bias", "HV", "dense", FLOATS),
        Scalar("scale", "real", "multiplies q"),
        Arg("initial_state", "N HV V K", "* * * 1", FLOATS, access="rw"),
        Arg("out", "B 1 HV V", "dense", FLOATS, access="w"),
        Arg("ssm_state_indices", "B", "*", INDICES, indexes="N", unique=True),
        Scalar("use_qk_l2norm_in_kernel", "flag", "normalise q and k first"),
        Scalar("null_slot", "int?", "a slot whose requests are inactive"),
        Scalar("validate_indices", "flag", "refuse duplicate active slots; syncs"),
    ),
    dims=(
        Dim("B", doc="requests"),
        Dim("N", doc="slots of the pool"),
        Dim("H", least=1, doc="q/k heads"),
        Dim("G", least=1, doc="value heads a q/k head"),
        Dim("HV", least=1, of="H * G", doc="value heads", reason=_NOTHING),
        Dim("K", least=1, most=256, edges=(5, 7, 8, 16, 17, 33, 100)),
        Dim("V", least=1, reason=_NOTHING, edges=(7, 8, 9, 17)),
        Dim("W", of="2 * H * K + HV * V", doc="all q heads, all k heads, all v heads"),
    ),
    rules=(
        Rule(
            "mixed_qkv",
            "`mixed_qkv` must have a width of 2*H*K + HV*V for a positive H that divides HV",
            _width_fits,
        ),
    ),
    guard=same_metadata,
    serving=(
        {"B": 64, "N": 96, "H": 16, "G": 2, "K": 128, "V": 128},  # Qwen3-Next-80B
        {"B": 33, "N": 40, "H": 4, "G": 3, "K": 128, "V": 128},  # Qwen3.5-27B, tp 4
        {"B": 8, "N": 24, "H": 30, "G": 1, "K": 96, "V": 192},  # OLMo-Hybrid
    ),
)

_BLOCK_V = 8
"""Rows of the state a program updates, in one warp."""


@CONTRACT.documents
def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One decode step (T = 1) of the gated delta rule for B requests, state in place.

    For request n and value head h, which reads q/k head ``h // (HV / H)``, with
    S = ``initial_state[ssm_state_indices[n], h]`` of shape [V, K]::

        S   <- exp(g) S,  g = -exp(A_log[h]) softplus(a[n, h] + dt_bias[h])
        S   <- S + beta (v - S k) k^T,  beta = sigmoid(b[n, h])
        out <- S q scale

    in float32 whatever the dtypes; state and ``out`` are rounded once, when they are stored.
    A request whose index is negative, at least N or equal to ``null_slot`` is inactive: its row of
    ``out`` is zero and no state is touched. Two active requests on one slot leave that slot
    unspecified; ``validate_indices`` refuses them instead, at the cost of a device sync.

    Maths: Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule"
    (2024), equation (10); the gate is that of Mamba-2 (Dao and Gu, 2024).

    Returns ``(out, initial_state)``, the tensors that were passed.
    Raises ValueError or TypeError, before any memory is touched, for what the contract excludes.
    """
    CONTRACT.check(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        initial_state,
        out,
        ssm_state_indices,
        use_qk_l2norm_in_kernel,
        null_slot,
        validate_indices,
    )
    if validate_indices:
        slots, N = ssm_state_indices, initial_state.shape[0]
        active = (slots >= 0) & (slots < N) & (slots != null_or_inactive(null_slot, N))
        refuse_duplicates("ssm_state_indices", slots, active)
    return _unchecked(
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        scale,
        initial_state,
        out,
        ssm_state_indices,
        use_qk_l2norm_in_kernel,
        null_slot=null_slot,
    )


def _unchecked(
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor,
    out: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    null_slot: int | None = None,
    validate_indices: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op without its validator: what the kernel does with any layout at all."""
    B, width = mixed_qkv.shape
    N, HV, V, K = initial_state.shape
    launch(
        _packed_decode_kernel,
        B * HV * triton.cdiv(V, _BLOCK_V),
        initial_state,
        mixed_qkv,
        a,
        b,
        A_log,
        dt_bias,
        initial_state,
        out,
        ssm_state_indices,
        as_float(scale),
        N,
        null_or_inactive(null_slot, N),
        mixed_qkv.stride(0),
        a.stride(0),
        b.stride(0),
        *initial_state.stride()[:3],
        ssm_state_indices.stride(0),
        _heads(width, HV, V, K),
        HV,
        V,
        K=K,
        L2NORM=use_qk_l2norm_in_kernel,
        BLOCK_V=_BLOCK_V,
        BLOCK_K=triton.next_power_of_2(K),
        num_warps=1,
    )
    return out, initial_state


# Nothing is specialised on but K: one machine code serves every alignment, stride, pool and batch,
# so that sums are taken in one order and a layout cannot change a bit.
@triton.jit(
    do_not_specialize=[
        *("first", "scale", "n_slots", "null_slot", "qkv_row", "a_row", "b_row"),
        *("state_slot", "state_head", "state_v", "slots_step", "H", "HV", "V"),
    ],
    do_not_specialize_on_alignment=[
        *("qkv", "a", "b", "A_log", "dt_bias", "state", "out", "slots"),
    ],
)
def _packed_decode_kernel(
    first,
    qkv,
    a,
    b,
    A_log,
    dt_bias,
    state,
    out,
    slots,
    scale,
    n_slots,
    null_slot,
    qkv_row,
    a_row,
    b_row,
    state_slot,
    state_head,
    state_v,
    slots_step,
    H,
    HV,
    V,
    K: tl.constexpr,
    L2NORM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program: BLOCK_V rows of one value head of one request. Strides are in elements."""
    program = first + tl.program_id(0)
    tiles = (V + BLOCK_V - 1) // BLOCK_V
    n = (program // tiles // HV).to(tl.int64)
    h = (program // tiles % HV).to(tl.int64)
    v = (program % tiles).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    k = tl.arange(0, BLOCK_K)
    in_v, in_k = v < V, k < K
    out_v = out + (n * HV + h) * V + v

    slot = tl.load(slots + n * slots_step).to(tl.int64)
    if (slot < 0) | (slot >= n_slots) | (slot == null_slot):
        tl.store(out_v, 0.0, in_v)
        return

    row = qkv + n * qkv_row
    qk_head = h // (HV // H)
    q_k = tl.load(row + qk_head * K + k, in_k, 0).to(tl.float32)
    k_k = tl.load(row + (H + qk_head) * K + k, in_k, 0).to(tl.float32)
    v_v = tl.load(row + 2 * H * K + h * V + v, in_v, 0).to(tl.float32)
    if L2NORM:
        q_k = q_k / tl.sqrt(tl.sum(q_k * q_k) + 1e-6)
        k_k = k_k / tl.sqrt(tl.sum(k_k * k_k) + 1e-6)
    q_k = q_k * scale

    x = tl.load(a + n * a_row + h).to(tl.float32) + tl.load(dt_bias + h).to(tl.float32)
    g = -tl.exp(tl.load(A_log + h).to(tl.float32)) * _softplus(x)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b + n * b_row + h).to(tl.float32)))

    tile = state + slot * state_slot + h * state_head + v[:, None] * state_v + k[None, :]
    in_tile = in_v[:, None] & in_k[None, :]
    S = tl.load(tile, in_tile, 0).to(tl.float32) * tl.exp(g)
    S_k = tl.sum(S * k_k[None, :], 1)
    S += (beta * (v_v - S_k))[:, None] * k_k[None, :]
    # Past K an infinite update times k = 0 is NaN, which the sum below must not see.
    S = tl.where(in_k[None, :], S, 0.0)
    tl.store(tile, S, in_tile)
    tl.store(out_v, tl.sum(S * q_k[None, :], 1), in_v)


@triton.jit
def _softplus(x):
    """log(1 + e^x), and x itself above 20.

    With u = 1 + e^x rounded, log(u) e^x / (u - 1) undoes that rounding (Higham, "Accuracy and
    Stability of Numerical Algorithms", section 1.14.1), where log(u) alone loses small e^x.
    """
    e = tl.exp(x)
    u = 1.0 + e
    return tl.where(x > 20.0, x, tl.where(u == 1.0, e, tl.log(u) * (e / (u - 1.0))))


def _compilation(floats: str, state: str, K: int, stride: str = "i32") -> dict[str, Any]:
    """What a launch on such tensors compiles; :mod:`twinlaw.properties.aot` takes it from here."""
    pointers = dict.fromkeys(("qkv", "a", "b", "A_log", "dt_bias", "out"), f"*{floats}")
    integers = ("first", "null_slot", "n_slots", "slots_step", "H", "HV", "V")
    strides = ("qkv_row", "a_row", "b_row", "state_slot", "state_head", "state_v")
    return {
        "kernel": f"{__name__}:_packed_decode_kernel",
        "signature": {
            **pointers,
            **{"state": f"*{state}", "slots": "*i64", "scale": "fp32"},
            **dict.fromkeys(integers, "i32"),
            **dict.fromkeys(strides, stride),
        },
        "constexprs": {
            **{"K": K, "L2NORM": True},
            **{"BLOCK_V": _BLOCK_V, "BLOCK_K": triton.next_power_of_2(K)},
        },
        "num_warps": 1,
    }


COMPILATIONS = (
    _compilation("bf16", "fp32", 128),
    _compilation("bf16", "bf16", 128),
    _compilation("fp16", "fp16", 96),
    _compilation("fp32", "fp32", 256, "i64"),
    _compilation("bf16", "fp32", 1),
)
"""The launches that serving makes, and the largest and smallest K."""
