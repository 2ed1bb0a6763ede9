"""One decode step of the gated delta rule for a packed batch (GDN packed decode).

The maths is the gated delta rule of Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving
Mamba2 with Delta Rule" (2024), for one token, with the gates of Qwen3-Next.
"""

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
    is_real_number,
    unit_last_stride,
    writes_are_exclusive,
)
from twinlaw.reference.rounding import (
    ETA,
    Approx,
    constant,
    dot,
    exp,
    loaded,
    rsqrt,
    sigmoid,
    softplus,
    stored,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
EPSILON = 1e-6


@torch.no_grad()
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
    """Update the state of each active request in place, write its output row, return both.

    mixed_qkv:         [B, 2·H·K + HV·V], all q heads, then all k heads, then all v heads
    a, b:              [B, HV], inputs of the decay and of β
    A_log, dt_bias:    [HV]
    scale:             factor of q
    initial_state:     [N, HV, V, K], the pool, updated in place
    out:               [B, 1, HV, V], written; zeros for an inactive request
    ssm_state_indices: [B], int32 or int64, the request's slot in the pool

    H is inferred from the width of `mixed_qkv`; value head h reads q/k head h // (HV / H).
    A request is inactive if its index is negative, `null_slot`, or not below N.

    The maths is done in float64 if an argument is float64, else in float32, whatever the other
    dtypes, and results are rounded once, when stored; the output comes from the state before that.
    Requests are done in order, so of several that name one slot (a caller's error) each continues
    from the one before. Layouts are not validated: that is what `legal` is for.

    Raises ValueError if `validate_indices` and two active requests name the same slot.
    """
    slots, value_heads, v_dim, k_dim = initial_state.shape
    request_slots = active_slots(ssm_state_indices, slots, null_slot)
    if validate_indices:
        reject_repeated_slots("ssm_state_indices", request_slots)

    floats = (mixed_qkv, a, b, A_log, dt_bias, initial_state, out)
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in floats) else torch.float32
    A_log, dt_bias = A_log.to(dtype), dt_bias.to(dtype)

    for n, slot in enumerate(request_slots):
        if slot is None:
            out[n] = 0
            continue
        q, k, v = _heads(mixed_qkv[n].to(dtype), value_heads, v_dim, k_dim)
        if use_qk_l2norm_in_kernel:
            q = q / (q.square().sum(-1, keepdim=True) + EPSILON).sqrt()
            k = k / (k.square().sum(-1, keepdim=True) + EPSILON).sqrt()
        q = q * scale
        x = a[n].to(dtype) + dt_bias
        g = -A_log.exp() * torch.where(x > 20, x, x.exp().log1p())
        beta = b[n].to(dtype).sigmoid()

        S = initial_state[slot].to(dtype)  # [HV, V, K]
        S = g.exp()[:, None, None] * S
        delta = v - (S * k[:, None, :]).sum(-1)  # [HV, V]
        S = S + (beta[:, None] * delta)[:, :, None] * k[:, None, :]
        out[n, 0] = (S * q[:, None, :]).sum(-1)
        initial_state[slot] = S
    return out, initial_state


def legal(
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
) -> bool:
    """Whether the fused op must accept this call. Any objects may be passed; none is modified.

    The shapes are those of the op. Beyond them: float16, bfloat16 or float32 for every float
    argument, each on its own; all on one device; 1 ≤ K ≤ 256, V, HV ≥ 1, H a positive integer that
    divides HV; unit stride in the last dim of `mixed_qkv`, `a`, `b` and `initial_state`; `A_log`,
    `dt_bias` and `out` contiguous; no element of `initial_state` or `out` named twice, by itself
    or by another argument; with `validate_indices`, no slot named by two active requests.
    """
    floats = (mixed_qkv, a, b, A_log, dt_bias, initial_state, out)
    if not all(is_plain_tensor(t) for t in (*floats, ssm_state_indices)):
        return False
    if not (
        is_real_number(scale)
        and isinstance(use_qk_l2norm_in_kernel, bool)
        and is_null_slot(null_slot)
        and isinstance(validate_indices, bool)
    ):
        return False
    device = ssm_state_indices.device
    if not all(t.dtype in DTYPES and t.device == device for t in floats):
        return False

    if mixed_qkv.ndim != 2 or initial_state.ndim != 4:
        return False
    requests, width = mixed_qkv.shape
    slots, value_heads, v_dim, k_dim = initial_state.shape
    if not (1 <= k_dim <= 256 and v_dim >= 1 and value_heads >= 1):
        return False
    heads, remainder = divmod(width - value_heads * v_dim, 2 * k_dim)
    if remainder or heads < 1 or value_heads % heads:
        return False
    if not (
        a.shape == b.shape == (requests, value_heads)
        and A_log.shape == dt_bias.shape == (value_heads,)
        and out.shape == (requests, 1, value_heads, v_dim)
        and is_index_vector(ssm_state_indices, requests)
    ):
        return False

    if not (
        all(unit_last_stride(t) for t in (mixed_qkv, a, b, initial_state))
        and all(is_dense(t) for t in (A_log, dt_bias, out))
        and writes_are_exclusive(
            [initial_state, out], [mixed_qkv, a, b, A_log, dt_bias, ssm_state_indices]
        )
    ):
        return False
    return not (
        validate_indices and repeated_slots(active_slots(ssm_state_indices, slots, null_slot))
    )


@torch.no_grad()
def error_bound(
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
) -> dict[str, torch.Tensor]:
    """How far a float32 implementation may be from the float64 result, element by element.

    Takes the op's arguments as they are before the call and modifies none. Returns float64 tensors
    "initial_state" [N, HV, V, K] and "out" [B, 1, HV, V]: bounds of the absolute error, for the
    dtypes that `initial_state` and `out` have.

    The recurrence is followed with the rules of `reference.rounding`. For K terms to a sum, with
    d = exp(g), S' = d·S, δ = v - S'·k, t = β·δ and e_x the error of x, that comes to

        e_d     = d·((5/4·|g| + 4)·u + e_g)     e_g ≤ |g|·(17 + 5/4·|A_log| + 9/4·|x|)·u
        e_S'    = |S|·e_d + u·|S'|
        e_δ     = Σ(|S'|·e_k + |k|·e_S') + K·u·Σ|S'·k| + u·(|v| + Σ|S'·k|)
        e_t     = β·e_δ + |δ|·e_β + u·|t|       e_β ≤ β·(10 + 5/4·|b|)·u
        e_S     = e_S' + |t|·e_k + |k|·e_t + u·|t·k| + u·(|S'| + |t·k|)
        e_out   = Σ(|S|·e_q + |q|·e_S) + K·u·Σ(|S'| + |t·k|)·|q|

    where e_k is 0, and (K/2 + 8)·u·|k| with the l2 norm; e_q likewise, with u·|q| more for the
    scale. Each product and sum may also lose η = 2⁻¹²⁶ to a flush to zero. Storing adds the
    rounding of the storage dtype, whose share is then the largest for 16-bit tensors.

    The bound is 0 where nothing is computed: slots that no active request names, rows of inactive
    requests. It is infinite where the result is not specified: beyond the range of float32 or of
    the storage dtype, with non-finite input, and in all that belongs to a slot which more than one
    active request names (`validate_indices` is ignored).
    """
    slots, value_heads, v_dim, k_dim = initial_state.shape
    request_slots = active_slots(ssm_state_indices, slots, null_slot)
    repeated = repeated_slots(request_slots)
    state_bound = torch.zeros(initial_state.shape, dtype=torch.float64, device=out.device)
    out_bound = torch.zeros(out.shape, dtype=torch.float64, device=out.device)

    for n, slot in enumerate(request_slots):
        if slot is None:
            continue
        if slot in repeated:
            state_bound[slot] = out_bound[n] = torch.inf
            continue
        q, k, v = (loaded(t) for t in _heads(mixed_qkv[n], value_heads, v_dim, k_dim))
        if use_qk_l2norm_in_kernel:
            q = q * rsqrt(dot(q, q) + constant(EPSILON)).unsqueeze(-1)
            k = k * rsqrt(dot(k, k) + constant(EPSILON)).unsqueeze(-1)
        q = q * constant(scale)
        decay = _decay(loaded(A_log), loaded(a[n]) + loaded(dt_bias))
        beta = sigmoid(loaded(b[n]))

        S = loaded(initial_state[slot])
        S = decay.unsqueeze(-1).unsqueeze(-1) * S
        delta = v - dot(S, k.unsqueeze(-2))
        S = S + (beta.unsqueeze(-1) * delta).unsqueeze(-1) * k.unsqueeze(-2)
        out_bound[n, 0] = stored(dot(S, q.unsqueeze(-2)), out.dtype)
        state_bound[slot] = stored(S, initial_state.dtype)
    return {"initial_state": state_bound, "out": out_bound}


def touched(
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
) -> dict[str, torch.Tensor]:
    """Bool masks of the elements that the call writes: "initial_state" [N, HV, V, K] and "out".

    Of the state, the slots of active requests; of the output, all.
    """
    state = torch.zeros(initial_state.shape, dtype=torch.bool)
    for slot in active_slots(ssm_state_indices, initial_state.shape[0], null_slot):
        if slot is not None:
            state[slot] = True
    return {"initial_state": state, "out": torch.ones(out.shape, dtype=torch.bool)}


def unspecified(
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
) -> dict[str, torch.Tensor]:
    """Bool masks of what more than one active request names: those slots and those output rows."""
    request_slots = active_slots(ssm_state_indices, initial_state.shape[0], null_slot)
    repeated = repeated_slots(request_slots)
    state = torch.zeros(initial_state.shape, dtype=torch.bool)
    rows = torch.zeros(out.shape, dtype=torch.bool)
    for n, slot in enumerate(request_slots):
        if slot in repeated:
            state[slot] = rows[n] = True
    return {"initial_state": state, "out": rows}


def _heads(
    row: torch.Tensor, value_heads: int, v_dim: int, k_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The q [HV, K], k [HV, K] and v [HV, V] that each value head reads, of one packed row."""
    v_width = value_heads * v_dim
    qk_width = (row.shape[0] - v_width) // 2
    heads = qk_width // k_dim
    q = row[:qk_width].reshape(heads, k_dim)
    k = row[qk_width : 2 * qk_width].reshape(heads, k_dim)
    v = row[2 * qk_width :].reshape(value_heads, v_dim)
    qk_head = torch.arange(value_heads, device=row.device) // (value_heads // heads)
    return q[qk_head], k[qk_head], v


def _decay(A_log: Approx, x: Approx) -> Approx:
    """exp(g) with g = -exp(A_log)·softplus(x).

    Once g is below -128 the decay is less than η and an implementation has η or less, also where
    exp(A_log) or g is infinite there; only softplus(x) flushed to zero would make inf·0 of it.
    """
    positive = softplus(x)
    g = -(exp(A_log) * positive)
    decay = exp(g)
    vanishes = (g.value < -128) & (positive.value > 4 * ETA)
    return Approx(decay.value, torch.where(vanishes, ETA, decay.error), decay.magnitude)
