"""The reference ops against implementations in plain Python numbers."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from twinlaw.reference import (
    fused_mamba_state_scatter_with_mask,
    fused_recurrent_gated_delta_rule_packed_decode,
    gdn_packed_decode,
    mamba_state_scatter,
)

Case = dict[str, Any]
FLOATS = ("mixed_qkv", "a", "b", "A_log", "dt_bias", "initial_state", "out")
HEADS = [(2, 6), (3, 6), (1, 4), (4, 4)]
LADDER = [0.0, 1e-30, 1e-3, 0.7, 5.0, 19.9, 20.0, 20.1, 88.7, 1e4]
LADDER += [-x for x in LADDER]


def gdn_case(
    seed: int = 0,
    *,
    requests: int = 2,
    heads: int = 2,
    value_heads: int = 4,
    k_dim: int = 5,
    v_dim: int = 3,
    slots: int = 4,
    dtype: torch.dtype = torch.float64,
    l2norm: bool = False,
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "mixed_qkv": normal(requests, 2 * heads * k_dim + value_heads * v_dim),
        "a": normal(requests, value_heads),
        "b": normal(requests, value_heads),
        "A_log": normal(value_heads),
        "dt_bias": normal(value_heads),
        "scale": k_dim**-0.5,
        "initial_state": normal(slots, value_heads, v_dim, k_dim),
        "out": torch.full((requests, 1, value_heads, v_dim), math.nan, dtype=dtype),
        "ssm_state_indices": torch.randperm(slots, generator=generator)[:requests],
        "use_qk_l2norm_in_kernel": l2norm,
    }


def copied(case: Case) -> Case:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in case.items()}


def in_float32(case: Case) -> Case:
    return {k: v.float() if k in FLOATS else v for k, v in case.items()}


def scalar_softplus(x: float) -> float:
    if x > 20:
        return x
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def scalar_sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def scalar_decode(case: Case) -> tuple[list[Any], list[Any]]:
    """The op on nested lists of Python floats: the output and the pool."""
    pool = case["initial_state"].tolist()
    value_heads, v_dim, k_dim = case["initial_state"].shape[1:]
    rows = case["mixed_qkv"].tolist()
    heads = (len(rows[0]) - value_heads * v_dim) // (2 * k_dim)
    out = []
    for n, slot in enumerate(case["ssm_state_indices"].tolist()):
        out_row = []
        for h in range(value_heads):
            group = h // (value_heads // heads)
            q = [rows[n][group * k_dim + j] for j in range(k_dim)]
            k = [rows[n][(heads + group) * k_dim + j] for j in range(k_dim)]
            v = [rows[n][2 * heads * k_dim + h * v_dim + i] for i in range(v_dim)]
            if case["use_qk_l2norm_in_kernel"]:
                q_norm = math.sqrt(math.fsum(x * x for x in q) + 1e-6)
                k_norm = math.sqrt(math.fsum(x * x for x in k) + 1e-6)
                q, k = [x / q_norm for x in q], [x / k_norm for x in k]
            x = case["a"].tolist()[n][h] + case["dt_bias"].tolist()[h]
            decay = math.exp(-math.exp(case["A_log"].tolist()[h]) * scalar_softplus(x))
            beta = scalar_sigmoid(case["b"].tolist()[n][h])
            out_head = []
            for i in range(v_dim):
                S = [decay * s for s in pool[slot][h][i]]
                delta = v[i] - math.fsum(s * kj for s, kj in zip(S, k, strict=True))
                S = [s + beta * delta * kj for s, kj in zip(S, k, strict=True)]
                pool[slot][h][i] = S
                out_head.append(
                    math.fsum(s * qj * case["scale"] for s, qj in zip(S, q, strict=True))
                )
            out_row.append(out_head)
        out.append([out_row])
    return out, pool


def assert_near(got: torch.Tensor, expected: list[Any]) -> None:
    """Equal but for a few float64 roundings."""
    wanted = torch.tensor(expected, dtype=torch.float64).reshape(got.shape)
    torch.testing.assert_close(got.to(torch.float64), wanted, rtol=1e-13, atol=1e-13)


# fused_recurrent_gated_delta_rule_packed_decode


@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize(("heads", "value_heads"), HEADS)
def test_decode_agrees_with_scalars(heads: int, value_heads: int, l2norm: bool) -> None:
    for seed in range(3):
        case = gdn_case(seed, heads=heads, value_heads=value_heads, l2norm=l2norm)
        expected_out, expected_state = scalar_decode(case)
        out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
        assert out is case["out"]
        assert state is case["initial_state"]
        assert_near(out, expected_out)
        assert_near(state, expected_state)


@pytest.mark.parametrize("l2norm", [False, True])
def test_decode_of_other_dtypes_is_within_the_error_bound(l2norm: bool) -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float32]
    for seed, (dtype, state_dtype) in enumerate(itertools.product(dtypes, dtypes)):
        case = gdn_case(seed, dtype=dtype, l2norm=l2norm)
        case["initial_state"] = case["initial_state"].to(state_dtype)
        expected_out, expected_state = scalar_decode(case)
        bound = gdn_packed_decode.error_bound(**case)
        out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
        for name, got, expected in (
            ("out", out, expected_out),
            ("initial_state", state, expected_state),
        ):
            wanted = torch.tensor(expected, dtype=torch.float64)
            assert ((got.double() - wanted).abs() <= bound[name] + 1e-13).all()


@pytest.mark.parametrize("bias", [0.0, 0.25, -3.0])
@pytest.mark.parametrize("A_log", [-30.0, -1.0, 0.0, 3.0])
def test_gates_on_a_ladder(A_log: float, bias: float) -> None:
    case = gdn_case(requests=1, heads=1, value_heads=len(LADDER))
    case["a"][0] = torch.tensor(LADDER) - bias
    case["b"][0] = torch.tensor(LADDER[::-1])
    case["dt_bias"][:], case["A_log"][:] = bias, A_log
    expected_out, expected_state = scalar_decode(case)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert_near(out, expected_out)
    assert_near(state, expected_state)
    single = in_float32(case)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**single)
    assert out.isfinite().all()
    assert state.isfinite().all()


def decay_of(x: float, dtype: torch.dtype = torch.float64) -> float:
    """The factor that a state is multiplied by for a + dt_bias = x and A_log = 0."""
    case = gdn_case(requests=1, heads=1, value_heads=1, k_dim=1, v_dim=1, slots=1, dtype=dtype)
    case["a"][:], case["dt_bias"][:], case["A_log"][:] = x, 0, 0
    case["mixed_qkv"][:], case["initial_state"][:] = 0, 1
    return float(fused_recurrent_gated_delta_rule_packed_decode(**case)[1])


def test_softplus_edges() -> None:
    assert decay_of(-1000.0) == 1.0
    assert decay_of(1000.0) == 0.0
    assert decay_of(0.0) == decay_of(-0.0) == pytest.approx(0.5, rel=1e-15)
    above = math.nextafter(20.0, 21.0)
    assert decay_of(above) == pytest.approx(math.exp(-above), rel=1e-14)
    assert decay_of(20.0) == pytest.approx(math.exp(-20.0) / (1 + math.exp(-20.0)), rel=1e-14)
    assert decay_of(20.0) < decay_of(above)  # the step down from log1p to x is in the definition
    # Without log1p, float32 would lose exp(-17) in 1 + exp(-17), and with it all decay.
    assert decay_of(-15.0, torch.float32) < 1


@pytest.mark.parametrize(("heads", "value_heads"), HEADS)
def test_integers_are_exact(heads: int, value_heads: int) -> None:
    """With no decay, β = 1 and small integers every float32 operation is exact."""
    rng = random.Random(heads)
    k_dim, v_dim = 3, 2
    case = gdn_case(
        requests=1, heads=heads, value_heads=value_heads, k_dim=k_dim, v_dim=v_dim, slots=1
    )
    q, k = ([[rng.randint(-4, 4) for _ in range(k_dim)] for _ in range(heads)] for _ in "qk")
    v = [[rng.randint(-4, 4) for _ in range(v_dim)] for _ in range(value_heads)]
    S = [[[rng.randint(-4, 4) for _ in k[0]] for _ in v[0]] for _ in v]
    case["mixed_qkv"][0] = torch.tensor([x for part in (q, k, v) for row in part for x in row])
    case["initial_state"][0] = torch.tensor(S)
    case["a"][:], case["dt_bias"][:], case["b"][:], case["scale"] = -1e4, 0, 1e4, 2
    single = in_float32(case)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**single)
    for h, i in itertools.product(range(value_heads), range(v_dim)):
        group = h * heads // value_heads
        delta = v[h][i] - sum(s * x for s, x in zip(S[h][i], k[group], strict=True))
        row = [s + delta * x for s, x in zip(S[h][i], k[group], strict=True)]
        assert state[0, h, i].tolist() == row
        assert out[0, 0, h, i] == 2 * sum(s * x for s, x in zip(row, q[group], strict=True))


def test_zero_vectors_have_a_norm() -> None:
    case = gdn_case(l2norm=True)
    case["mixed_qkv"][:] = 0
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert not out.any()
    assert state.isfinite().all()


def test_nan_and_inf_stay_where_they_belong() -> None:
    case = gdn_case(requests=3)
    case["mixed_qkv"][0, -1] = math.nan  # last element of v: last row of the last head
    case["a"][1, 2] = math.nan
    case["b"][1, 0] = math.inf
    slots = case["ssm_state_indices"]
    case["initial_state"][slots[2], 1, 0, 0] = math.inf
    clean = gdn_case(requests=3)
    expected_out, expected_state = fused_recurrent_gated_delta_rule_packed_decode(**clean)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert out[0, 0, -1, -1].isnan()
    assert state[slots[0], -1, -1].isnan().all()
    assert out[1, 0, 2].isnan().all()
    assert state[slots[1], 2].isnan().all()
    assert out[1, 0, 0].isfinite().all()  # β = 1
    assert not out[2, 0, 1, 0].isfinite()
    out[0, 0, -1, -1] = expected_out[0, 0, -1, -1]
    out[1, 0, [0, 2]] = expected_out[1, 0, [0, 2]]
    out[2, 0, 1, 0] = expected_out[2, 0, 1, 0]
    assert torch.equal(out, expected_out)
    state[slots[0], -1, -1] = expected_state[slots[0], -1, -1]
    state[slots[1], [0, 2]] = expected_state[slots[1], [0, 2]]
    state[slots[2], 1, 0] = expected_state[slots[2], 1, 0]
    assert torch.equal(state, expected_state)


@pytest.mark.parametrize("null_slot", [None, 0, 2, -7, 100])
def test_inactive_requests(null_slot: int | None) -> None:
    indices = [-1, 0, 2**32 + 3, 1, 2**63 - 1, 2, -(2**63), 3, 4, -(2**32) + 1]
    active = {n: i for n, i in enumerate(indices) if 0 <= i < 4 and i != null_slot}
    case = gdn_case(requests=len(indices), slots=4)
    case["ssm_state_indices"] = torch.tensor(indices)
    inactive = [n for n in range(len(indices)) if n not in active]
    for name in ("mixed_qkv", "a", "b"):
        case[name][inactive] = math.nan
    alone = copied(case)
    for name in ("mixed_qkv", "a", "b", "out", "ssm_state_indices"):
        alone[name] = alone[name][list(active)]
    expected_out, expected_state = scalar_decode(alone)
    bound = gdn_packed_decode.error_bound(**case, null_slot=null_slot)
    before = case["initial_state"].clone()
    out, state = fused_recurrent_gated_delta_rule_packed_decode(
        **case, null_slot=null_slot, validate_indices=True
    )
    assert not out[inactive].any()
    assert_near(out[list(active)], expected_out)
    assert_near(state, expected_state)
    untouched = [slot for slot in range(4) if slot not in active.values()]
    assert torch.equal(state[untouched], before[untouched])
    assert not bound["out"][inactive].any()
    assert not bound["initial_state"][untouched].any()
    assert bound["out"][list(active)].all()
    assert bound["initial_state"][list(active.values())].all()


def test_index_layouts() -> None:
    case = gdn_case()
    expected_out, expected_state = fused_recurrent_gated_delta_rule_packed_decode(**copied(case))
    wide = torch.full((2, 3), -1, dtype=torch.int32)
    wide[:, 1] = case["ssm_state_indices"]
    case["ssm_state_indices"] = wide[:, 1]
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert torch.equal(out, expected_out)
    assert torch.equal(state, expected_state)


def test_results_land_in_the_callers_views() -> None:
    case = gdn_case()
    expected_out, expected_state = fused_recurrent_gated_delta_rule_packed_decode(**copied(case))
    page = torch.full((4, 100), 7.0, dtype=torch.float64)
    case["initial_state"] = page[:, 20:80].view(4, 4, 3, 5).copy_(case["initial_state"])
    case["A_log"] = torch.nn.Parameter(case["A_log"])
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert torch.equal(out, expected_out)
    assert torch.equal(state, expected_state)
    assert torch.equal(page[:, 20:80].reshape(state.shape), expected_state)
    assert (page[:, :20] == 7).all()
    assert (page[:, 80:] == 7).all()


@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.float16])
def test_narrow_state_is_rounded_once_and_after_the_output(state_dtype: torch.dtype) -> None:
    case = gdn_case(dtype=torch.float32)
    case["initial_state"] = case["initial_state"].to(state_dtype)
    wide = copied(case)
    wide["initial_state"] = wide["initial_state"].float()
    expected_out, expected_state = fused_recurrent_gated_delta_rule_packed_decode(**wide)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert torch.equal(out, expected_out)
    assert torch.equal(state, expected_state.to(state_dtype))


def test_stores_round_to_nearest_even() -> None:
    case = gdn_case(requests=1, heads=1, value_heads=1, k_dim=1, v_dim=4, slots=1)
    single = in_float32(case)
    ulp = 2.0**-7
    v = [1 + 0.5 * ulp, 1 + 1.5 * ulp, 1 + 0.75 * ulp, 1 + 0.25 * ulp]
    single["mixed_qkv"][0] = torch.tensor([1.0, 1.0, *v])
    single["initial_state"] = torch.zeros(1, 1, 4, 1, dtype=torch.bfloat16)
    single["out"] = single["out"].bfloat16()
    single["b"][:], single["scale"] = 1e4, 1
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**single)
    nearest = [1.0, 1 + 2 * ulp, 1 + ulp, 1.0]
    assert out.flatten().tolist() == nearest
    assert state.flatten().tolist() == nearest


def test_repeated_slots_are_done_in_order_or_refused() -> None:
    case = gdn_case(requests=3)
    case["ssm_state_indices"] = torch.tensor([1, 3, 1])
    refused = copied(case)
    with pytest.raises(ValueError, match=r"ssm_state_indices.*\[1\]"):
        fused_recurrent_gated_delta_rule_packed_decode(**refused, validate_indices=True)
    assert refused["out"].isnan().all()
    assert torch.equal(refused["initial_state"], case["initial_state"])
    expected_out, expected_state = scalar_decode(case)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert_near(out, expected_out)
    assert_near(state, expected_state)
    bound = gdn_packed_decode.error_bound(**case)
    assert bound["initial_state"][1].isinf().all()
    assert bound["out"][[0, 2]].isinf().all()
    assert bound["out"][1].isfinite().all()
    assert bound["initial_state"][[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize(("requests", "slots"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_to_do(requests: int, slots: int) -> None:
    case = gdn_case(requests=requests, slots=max(requests, slots), dtype=torch.float32)
    case["initial_state"] = case["initial_state"][:slots]
    before = case["initial_state"].clone()
    assert gdn_packed_decode.legal(**case)
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert not out.any()
    assert torch.equal(state, before)


def padded_rows(t: torch.Tensor) -> torch.Tensor:
    return torch.zeros(t.shape[0], 2 * t[0].numel() + 1)[:, : t[0].numel()].view(t.shape).copy_(t)


LEGAL: dict[str, Callable[[Case], object]] = {
    "dense": lambda c: None,
    "row gaps": lambda c: c.update({k: padded_rows(c[k]) for k in ("mixed_qkv", "a", "b")}),
    "expanded rows": lambda c: c.update(mixed_qkv=c["mixed_qkv"][:1].expand(2, -1)),
    "one a for all": lambda c: c.update(a=c["b"]),
    "page-strided pool": lambda c: c.update(initial_state=padded_rows(c["initial_state"])),
    "V and heads swapped in memory": lambda c: c.update(
        initial_state=c["initial_state"].transpose(1, 2).contiguous().transpose(1, 2)
    ),
    "mixed dtypes": lambda c: c.update(
        a=c["a"].half(), A_log=c["A_log"].bfloat16(), initial_state=c["initial_state"].half()
    ),
    "parameter": lambda c: c.update(A_log=torch.nn.Parameter(c["A_log"])),
    "strided indices": lambda c: c.update(ssm_state_indices=torch.arange(6).int()[::3]),
    "expanded indices": lambda c: c.update(ssm_state_indices=torch.tensor([2]).expand(2)),
    "nonsense indices": lambda c: c.update(ssm_state_indices=torch.tensor([-1, 2**40])),
    "scale nan": lambda c: c.update(scale=math.nan),
    "integer scale": lambda c: c.update(scale=1),
    "far null slot": lambda c: c.update(null_slot=-5),
    "repeats are inactive": lambda c: c.update(
        ssm_state_indices=torch.tensor([-1, -1]), validate_indices=True
    ),
    "repeats are null": lambda c: c.update(
        ssm_state_indices=torch.tensor([3, 3]), validate_indices=True, null_slot=3
    ),
    "no requests": lambda c: c.update(
        {k: c[k][:0] for k in ("mixed_qkv", "a", "b", "out", "ssm_state_indices")}
    ),
    "interleaved out and pool": lambda c: c.update(
        out=torch.zeros(4, 24).view(4, 2, 1, 4, 3)[0],
        initial_state=torch.zeros(4, 4, 3, 5),
    ),
}

ILLEGAL: dict[str, Callable[[Case], object]] = {
    "not a tensor": lambda c: c.update(b=None),
    "list": lambda c: c.update(a=c["a"].tolist()),
    "meta": lambda c: c.update(out=c["out"].to("meta")),
    "float64": lambda c: c.update(dt_bias=c["dt_bias"].double()),
    "integer state": lambda c: c.update(initial_state=c["initial_state"].int()),
    "int16 indices": lambda c: c.update(ssm_state_indices=torch.tensor([0, 1]).short()),
    "index rank": lambda c: c.update(ssm_state_indices=torch.tensor([[0, 1]])),
    "index length": lambda c: c.update(ssm_state_indices=torch.tensor([0, 1, 2])),
    "scale string": lambda c: c.update(scale="1"),
    "scale tensor": lambda c: c.update(scale=torch.tensor(1.0)),
    "scale bool": lambda c: c.update(scale=True),
    "flag int": lambda c: c.update(use_qk_l2norm_in_kernel=1),
    "null slot bool": lambda c: c.update(null_slot=False),
    "null slot float": lambda c: c.update(null_slot=0.0),
    "validate int": lambda c: c.update(validate_indices=1),
    "rank of qkv": lambda c: c.update(mixed_qkv=c["mixed_qkv"][None]),
    "rank of state": lambda c: c.update(initial_state=c["initial_state"][0]),
    "rank of out": lambda c: c.update(out=c["out"][:, 0]),
    "shape of a": lambda c: c.update(a=c["a"][:1]),
    "shape of dt_bias": lambda c: c.update(dt_bias=c["dt_bias"][:3]),
    "width": lambda c: c.update(mixed_qkv=c["mixed_qkv"][:, :-1]),
    "no q heads": lambda c: c.update(mixed_qkv=c["mixed_qkv"][:, :12]),
    "negative width": lambda c: c.update(mixed_qkv=c["mixed_qkv"][:, :2]),
    "3 heads for 4": lambda c: c.update(mixed_qkv=torch.zeros(2, 42)),
    "K of 0": lambda c: c.update(initial_state=torch.zeros(4, 4, 3, 0)),
    "K of 257": lambda c: c.update(
        initial_state=torch.zeros(4, 4, 3, 257), mixed_qkv=torch.zeros(2, 2 * 257 + 12)
    ),
    "V of 0": lambda c: c.update(
        initial_state=torch.zeros(4, 4, 0, 5),
        mixed_qkv=torch.zeros(2, 20),
        out=torch.zeros(2, 1, 4, 0),
    ),
    "inner stride of qkv": lambda c: c.update(mixed_qkv=torch.zeros(2, 64)[:, ::2]),
    "inner stride of b": lambda c: c.update(b=torch.zeros(4, 2).T),
    "strided A_log": lambda c: c.update(A_log=torch.zeros(8)[::2]),
    "expanded dt_bias": lambda c: c.update(dt_bias=torch.zeros(1).expand(4)),
    "padded out": lambda c: c.update(out=torch.zeros(2, 1, 4, 4)[..., :3]),
    "K and V swapped in memory": lambda c: c.update(
        initial_state=torch.zeros(4, 4, 5, 3).transpose(2, 3)
    ),
    "expanded pool": lambda c: c.update(
        initial_state=torch.zeros(1, 4, 3, 5).expand(4, -1, -1, -1)
    ),
    "overlapping slots": lambda c: c.update(
        initial_state=torch.zeros(240).as_strided((4, 4, 3, 5), (59, 15, 5, 1))
    ),
    "out in the pool": lambda c: c.update(out=c["initial_state"][0].view(-1)[:24].view(2, 1, 4, 3)),
    "out over qkv": lambda c: c.update(out=c["mixed_qkv"].view(-1)[:24].view(2, 1, 4, 3)),
    "bytes of the pool as indices": lambda c: c.update(
        ssm_state_indices=c["initial_state"].view(-1)[:2].view(torch.int32)
    ),
    "repeated slot": lambda c: c.update(
        ssm_state_indices=torch.tensor([2, 2]), validate_indices=True
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_decode(name: str) -> None:
    case = gdn_case(dtype=torch.float32)
    LEGAL[name](case)
    before = copied(case)
    assert gdn_packed_decode.legal(**case) is True
    assert torch.equal(case["initial_state"], before["initial_state"])
    fused_recurrent_gated_delta_rule_packed_decode(**case)
    assert case["out"].isfinite().all() or math.isnan(case["scale"])


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_decode(name: str) -> None:
    case = gdn_case(dtype=torch.float32)
    ILLEGAL[name](case)
    assert gdn_packed_decode.legal(**case) is False


# fused_mamba_state_scatter_with_mask

COPIED_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.int16,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex64,
]


def random_bits(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random bytes as `dtype`: NaNs with payloads among them; for bool only 0 and 1."""
    size = math.prod(shape) * dtype.itemsize
    data = [rng.randrange(2 if dtype == torch.bool else 256) for _ in range(size)]
    return torch.tensor(data, dtype=torch.uint8).view(dtype).reshape(shape)


def bits(t: torch.Tensor) -> list[int]:
    return list(t.reshape(-1).view(torch.uint8).tolist()) if t.numel() else []


def scatter_case(
    seed: int = 0,
    *,
    layers: int = 2,
    slots: int = 5,
    rows: int = 4,
    steps: int = 3,
    inner: tuple[int, ...] = (2, 3),
    dtype: torch.dtype = torch.float32,
) -> Case:
    rng = random.Random(seed)
    return {
        "dst": random_bits(rng, (layers, slots, *inner), dtype),
        "src": random_bits(rng, (layers, rows, steps, *inner), dtype),
        "dst_indices_raw": torch.tensor([3, 0, 4]),
        "step_indices_raw": torch.tensor([2, 0, 1]),
        "src_indices_raw": None,
    }


def assert_scatters(case: Case, null_slot: int | None = None) -> None:
    """The op's dst against the definition, block by block, as bytes."""
    dst, src = case["dst"], case["src"]
    layers, slots = dst.shape[:2]
    rows, steps = src.shape[1:3]
    requests = len(case["dst_indices_raw"])
    expected = {
        (layer, slot): bits(dst[layer, slot])
        for layer, slot in itertools.product(range(layers), range(slots))
    }
    for i in range(requests):
        slot, step = int(case["dst_indices_raw"][i]), int(case["step_indices_raw"][i])
        r = i if case["src_indices_raw"] is None else int(case["src_indices_raw"][i])
        if slot in range(slots) and slot != null_slot and step in range(steps) and r in range(rows):
            for layer in range(layers):
                expected[layer, slot] = bits(src[layer, r, step])
    fused_mamba_state_scatter_with_mask(**case, null_slot=null_slot)
    for (layer, slot), block in expected.items():
        assert bits(dst[layer, slot]) == block


@pytest.mark.parametrize("dtype", COPIED_DTYPES, ids=str)
def test_scatter_copies_bits(dtype: torch.dtype) -> None:
    case = scatter_case(dtype=dtype)
    assert mamba_state_scatter.legal(**case)
    assert_scatters(case)


@pytest.mark.parametrize(
    "sizes",
    [
        {"inner": ()},
        {"inner": (1, 2, 1, 2)},
        {"inner": (0, 2)},
        {"layers": 0},
        {"slots": 0},
        {"rows": 0},
        {"steps": 0},
    ],
    ids=str,
)
def test_scatter_of_odd_sizes(sizes: Any) -> None:
    case = scatter_case(**sizes)
    assert mamba_state_scatter.legal(**case)
    assert_scatters(case)


@pytest.mark.parametrize("null_slot", [None, 0, 4, -1])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_scatter_of_inactive_requests(index_dtype: torch.dtype, null_slot: int | None) -> None:
    far = [2**32 + 3, -(2**63), 2**63 - 1] if index_dtype == torch.int64 else [2**31 - 1]
    candidates = [-1, 0, 1, 2, 3, 4, 5, *far]
    rng = random.Random(5)
    for seed in range(30):
        case = scatter_case(seed)
        chosen = [rng.sample(candidates, 6) for _ in range(3)]
        for name, index in zip(("dst", "step", "src"), chosen, strict=True):
            case[f"{name}_indices_raw"] = torch.tensor(index, dtype=index_dtype)
        if seed % 2:
            case["src_indices_raw"] = None  # and two requests more than src has rows
        assert_scatters(case, null_slot)


def test_scatter_between_views() -> None:
    case = scatter_case(inner=(2,))
    page = torch.zeros(5, 2, 7)
    buffer = torch.arange(40.0)
    case["dst"] = page.transpose(0, 1)[:, :, 3:5]
    case["src"] = buffer.as_strided((2, 4, 3, 2), (0, 5, 1, 1))
    case["dst_indices_raw"] = torch.tensor([1, 0, 0, 9])[::3]
    case["step_indices_raw"] = torch.tensor([2]).expand(2)
    case["src_indices_raw"] = torch.tensor([3, 0])
    assert mamba_state_scatter.legal(**case)
    assert_scatters(case)
    assert page[1, 0, 3:5].tolist() == [17.0, 18.0]
    assert page.count_nonzero() == 4


def test_scatter_of_repeated_slots() -> None:
    case = scatter_case()
    case["dst_indices_raw"][:] = 1
    refused = copied(case)
    with pytest.raises(ValueError, match=r"dst_indices_raw.*\[1\]"):
        fused_mamba_state_scatter_with_mask(**refused, validate_indices=True)
    assert bits(refused["dst"]) == bits(case["dst"])
    assert mamba_state_scatter.legal(**case)
    assert not mamba_state_scatter.legal(**case, validate_indices=True)
    assert_scatters(case)
    case["step_indices_raw"] = torch.tensor([3, 0, -1])  # one active request is left
    assert mamba_state_scatter.legal(**case, validate_indices=True)
    fused_mamba_state_scatter_with_mask(**case, validate_indices=True)


ILLEGAL_SCATTER: dict[str, Callable[[Case], object]] = {
    "not a tensor": lambda c: c.update(step_indices_raw=None),
    "two dtypes": lambda c: c.update(src=c["src"].int()),
    "16 bytes": lambda c: c.update({k: c[k].to(torch.complex128) for k in ("dst", "src")}),
    "conjugate": lambda c: c.update({k: c[k].to(torch.complex64).conj() for k in ("dst", "src")}),
    "rank of dst": lambda c: c.update(dst=c["dst"][:, 0, 0, 0], src=c["src"][:, 0, 0, 0]),
    "rank of src": lambda c: c.update(src=c["src"][:, 0]),
    "layers": lambda c: c.update(src=c["src"][:1]),
    "E": lambda c: c.update(src=c["src"][..., :2].contiguous()),
    "index dtype": lambda c: c.update(step_indices_raw=c["step_indices_raw"].short()),
    "index rank": lambda c: c.update(dst_indices_raw=torch.tensor(0)),
    "index length": lambda c: c.update(step_indices_raw=torch.tensor([0])),
    "source index length": lambda c: c.update(src_indices_raw=torch.tensor([0, 1])),
    "E of dst": lambda c: c.update(dst=c["dst"].transpose(2, 3).contiguous().transpose(2, 3)),
    "E of src": lambda c: c.update(src=torch.zeros(2, 4, 3, 2, 4)[..., :3]),
    "expanded layers": lambda c: c.update(dst=c["dst"][:1].expand(2, -1, -1, -1)),
    "overlapping slots": lambda c: c.update(
        dst=torch.zeros(60).as_strided((2, 5, 2, 3), (30, 5, 3, 1))
    ),
    "src in dst": lambda c: c.update(
        src=c["dst"].view(-1).as_strided((2, 4, 3, 2, 3), (0, 0, 6, 3, 1))
    ),
    "indices in dst": lambda c: c.update(
        {k: c[k].view(torch.int32) for k in ("dst", "src")}
        | {"dst_indices_raw": c["dst"].view(torch.int32).view(-1)[57:]}
    ),
    "null slot bool": lambda c: c.update(null_slot=True),
    "validate int": lambda c: c.update(validate_indices=0),
}


@pytest.mark.parametrize("name", ILLEGAL_SCATTER)
def test_illegal_scatter(name: str) -> None:
    case = scatter_case()
    ILLEGAL_SCATTER[name](case)
    assert mamba_state_scatter.legal(**case) is False
