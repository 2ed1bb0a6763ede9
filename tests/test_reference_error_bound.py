"""The error bound of the decode: kept by float32 code, however it adds, and broken by less."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from twinlaw.reference import fused_recurrent_gated_delta_rule_packed_decode
from twinlaw.reference.gdn_packed_decode import error_bound
from twinlaw.reference.rounding import (
    ETA,
    Approx,
    U,
    constant,
    dot,
    exp,
    loaded,
    sigmoid,
    softplus,
)

Case = dict[str, Any]
Sum = Callable[[torch.Tensor], torch.Tensor]
LOG2_E = torch.tensor(math.log2(math.e), dtype=torch.float32)


def left_to_right(t: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(t[..., 0])
    for j in range(t.shape[-1]):
        total = total + t[..., j]
    return total


def as_a_tree(t: torch.Tensor) -> torch.Tensor:
    while t.shape[-1] > 1:
        t = torch.nn.functional.pad(t, (0, t.shape[-1] % 2))
        t = t[..., ::2] + t[..., 1::2]
    return t[..., 0]


SUMS: dict[str, Sum] = {
    "torch": lambda t: t.sum(-1),
    "left to right": left_to_right,
    "right to left": lambda t: left_to_right(t.flip(-1)),
    "tree": as_a_tree,
}


def gdn_case(
    seed: int,
    *,
    amplitude: float = 1.0,
    k_dim: int = 32,
    l2norm: bool = False,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
) -> Case:
    requests, heads, value_heads, v_dim = 2, 1, 3, 8
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).mul(amplitude).to(dtype)

    return {
        "mixed_qkv": normal(requests, 2 * heads * k_dim + value_heads * v_dim),
        "a": normal(requests, value_heads),
        "b": normal(requests, value_heads),
        "A_log": normal(value_heads).clamp(-10, 10),
        "dt_bias": normal(value_heads),
        "scale": k_dim**-0.5,
        "initial_state": normal(requests, value_heads, v_dim, k_dim).to(state_dtype),
        "out": torch.zeros(requests, 1, value_heads, v_dim, dtype=dtype),
        "ssm_state_indices": torch.arange(requests),
        "use_qk_l2norm_in_kernel": l2norm,
    }


def one_number(**changes: float) -> Case:
    """A case of one request, head, row and column: q = k = v = S = 1, no decay, β = 1/2."""
    values = {"q": 1.0, "k": 1.0, "v": 1.0, "a": -1e4, "b": 0.0, "A_log": 0.0, "S": 1.0} | changes
    return {
        "mixed_qkv": torch.tensor([[values["q"], values["k"], values["v"]]]),
        "a": torch.tensor([[values["a"]]]),
        "b": torch.tensor([[values["b"]]]),
        "A_log": torch.tensor([values["A_log"]]),
        "dt_bias": torch.zeros(1),
        "scale": values.get("scale", 1.0),
        "initial_state": torch.tensor([[[[values["S"]]]]]),
        "out": torch.zeros(1, 1, 1, 1),
        "ssm_state_indices": torch.tensor([0]),
    }


def float32_exp(x: torch.Tensor) -> torch.Tensor:
    return torch.exp2(x * LOG2_E)


def float32_decode(case: Case, add: Sum, narrow: str = "") -> dict[str, torch.Tensor]:
    """The op as a float32 kernel might do it; `narrow` names a number it rounds to bfloat16."""

    def kept(name: str, t: torch.Tensor) -> torch.Tensor:
        return t.bfloat16().float() if name == narrow else t

    state, out = case["initial_state"].clone(), case["out"].clone()
    value_heads, v_dim, k_dim = state.shape[1:]
    for n, slot in enumerate(case["ssm_state_indices"].tolist()):
        q, k, v = case["mixed_qkv"][n].float().split([k_dim, k_dim, value_heads * v_dim])
        if case.get("use_qk_l2norm_in_kernel"):
            q = q * torch.rsqrt(add(q * q) + 1e-6)
            k = k / torch.sqrt(add(k * k) + 1e-6)
        q, k, v = kept("q", q * case["scale"]), kept("k", k), v.view(value_heads, v_dim)
        x = case["a"][n].float() + case["dt_bias"].float()
        y = float32_exp(x)
        y_plus_1 = 1 + y
        log1p = torch.where(y_plus_1 == 1, y, y_plus_1.log() * y / (y_plus_1 - 1))
        g = kept("g", -float32_exp(case["A_log"].float()) * torch.where(x > 20, x, log1p))
        beta = kept("beta", 1 / (1 + float32_exp(-case["b"][n].float())))
        S = kept("S'", float32_exp(g)[:, None, None] * state[slot].float())
        delta = kept("delta", v - add(S * k))
        S = S + (beta[:, None] * delta)[:, :, None] * k
        out[n, 0] = add(S * q)
        state[slot] = S
    return {"initial_state": state, "out": out}


def oracle(case: Case) -> dict[str, torch.Tensor]:
    """The reference in float64 on the stored inputs."""
    wide: Case = {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in case.items()
    }
    wide["initial_state"] = case["initial_state"].double().clone()
    out, state = fused_recurrent_gated_delta_rule_packed_decode(**wide)
    return {"initial_state": state, "out": out}


def errors_over_bound(case: Case, *results: dict[str, torch.Tensor]) -> list[dict[str, float]]:
    """The largest ratio of error to bound, wherever there is a bound, of each result."""
    expected, bound = oracle(case), error_bound(**case)
    return [
        {
            name: float(
                ((t.double() - expected[name]).abs() / bound[name])[bound[name].isfinite()].max()
            )
            for name, t in result.items()
        }
        for result in results
    ]


def keeps_the_bound(case: Case, *results: dict[str, torch.Tensor]) -> bool:
    ratios = errors_over_bound(case, *results)
    return all(ratio <= 1 for result in ratios for ratio in result.values())


def single(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


@pytest.mark.parametrize(
    ("got", "approx"),
    [
        pytest.param(
            single(1 + 2**-12) * single(1 + 2**-12),
            loaded(single(1 + 2**-12)) * loaded(single(1 + 2**-12)),
            id="a tie of a product",
        ),
        pytest.param(single(1) + single(U), loaded(single(1)) + loaded(single(U)), id="1 + u"),
        pytest.param(
            left_to_right(single(1, *[U] * 9)),
            dot(loaded(single(1, *[U] * 9)), loaded(torch.ones(10))),
            id="1 + u + ... + u",
        ),
        pytest.param(single(1e-6), constant(1e-6), id="constant"),
        pytest.param(single(0), loaded(single(2.0**-140)), id="flushed when loaded"),
        pytest.param(single(0), constant(2.0**-140), id="flushed constant"),
        pytest.param(
            single(0),
            loaded(single(2.0**-100)) * loaded(single(2.0**-100)),
            id="flushed product",
        ),
        pytest.param(
            single(0),
            loaded(single(1.5 * ETA)) - loaded(single(ETA)),
            id="flushed difference",
        ),
        pytest.param(single(0), exp(loaded(single(-100))), id="flushed exp"),
        pytest.param(single(0), sigmoid(loaded(single(-100))), id="flushed sigmoid"),
        pytest.param(single(0), softplus(loaded(single(-100))), id="flushed softplus"),
    ],
)
def test_each_rounding_is_charged(got: torch.Tensor, approx: Approx) -> None:
    """The worst that a single operation can do, which is more than nothing, is in its bound."""
    error = (got.double() - approx.value).abs()
    assert (error > 0).all()
    assert (error <= approx.error).all()
    assert (approx.error <= 2 * error + 4 * ETA).all()


def cases(k_dim: int, l2norm: bool) -> Iterator[Case]:
    for seed, amplitude in enumerate([1e-20, 1e-3, 0.1, 1.0, 1.0, 3.0, 10.0, 100.0, 1e4]):
        yield gdn_case(seed, amplitude=amplitude, k_dim=k_dim, l2norm=l2norm)


@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize("k_dim", [1, 2, 3, 16, 128])
def test_float32_keeps_the_bound(k_dim: int, l2norm: bool) -> None:
    for case in cases(k_dim, l2norm):
        assert error_bound(**case)["out"].isfinite().all()
        assert keeps_the_bound(case, *(float32_decode(case, add) for add in SUMS.values()))


@pytest.mark.parametrize("state_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_storage_keeps_the_bound(dtype: torch.dtype, state_dtype: torch.dtype) -> None:
    for seed, amplitude in enumerate([1e-6, 1e-3, 1.0, 10.0]):
        case = gdn_case(seed, amplitude=amplitude, dtype=dtype, state_dtype=state_dtype)
        assert keeps_the_bound(case, float32_decode(case, SUMS["torch"]))


@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize("k_dim", [8, 32, 128])
def test_a_bfloat16_step_breaks_the_bound(k_dim: int, l2norm: bool) -> None:
    steps = ["S'", "k", "beta", "g", "delta"]
    for seed in range(4):
        case = gdn_case(seed, k_dim=k_dim, l2norm=l2norm)
        results = [float32_decode(case, SUMS["torch"], narrow) for narrow in steps]
        for ratio in errors_over_bound(case, *results):
            assert ratio["initial_state"] > 50
            assert ratio["out"] > 2


@pytest.mark.parametrize("l2norm", [False, True])
def test_a_bfloat16_q_breaks_the_bound_of_the_output(l2norm: bool) -> None:
    for seed in range(4):
        case = gdn_case(seed, k_dim=128, l2norm=l2norm)
        (ratio,) = errors_over_bound(case, float32_decode(case, SUMS["torch"], "q"))
        assert ratio["initial_state"] <= 1
        assert ratio["out"] > 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_storage_is_charged_one_rounding(dtype: torch.dtype) -> None:
    """A narrow result may be off by half a unit in the last place and hardly by more."""
    case = gdn_case(0, dtype=dtype, state_dtype=dtype, k_dim=8)
    expected, bound = oracle(case), error_bound(**case)
    for name, value in expected.items():
        half_ulp = torch.finfo(dtype).eps / 2 * value.abs()
        assert (bound[name] >= half_ulp).all()
        assert (bound[name] <= 1.01 * half_ulp + 1e-4).all()


def test_subnormal_storage_is_charged_half_a_unit() -> None:
    case = one_number(q=0.0, v=0.0, k=0.0, S=2.0**-24)
    case["initial_state"] = case["initial_state"].half()
    assert error_bound(**case)["initial_state"].item() == pytest.approx(2.0**-25, rel=1e-3)


def test_a_flush_to_zero_keeps_the_bound() -> None:
    case = one_number(S=0.0, k=1e-30, v=1e-10, b=100.0)
    exact = oracle(case)["initial_state"].item()
    assert 0 < exact < 2.0**-126
    assert exact <= error_bound(**case)["initial_state"].item() < 2.0**-120


@pytest.mark.parametrize("b", [-88.0, -89.0, -104.0, -1e4, 88.0, 1e4])
def test_saturated_beta_keeps_the_bound(b: float) -> None:
    case = one_number(b=b, S=0.25, q=3.0)
    assert keeps_the_bound(case, float32_decode(case, SUMS["torch"]))
    assert error_bound(**case)["out"].item() < 1e-5


@pytest.mark.parametrize("A_log", [-200.0, -88.0, 80.0, 88.7, 89.0, 200.0, 800.0])
@pytest.mark.parametrize("a", [-80.0, -20.0, 0.0, 19.99, 20.01, 100.0])
def test_decay_without_range_keeps_the_bound(a: float, A_log: float) -> None:
    """Also where exp(A_log) is infinite: no decay of it is left but zero."""
    case = one_number(a=a, A_log=A_log, S=0.7, k=0.9)
    assert keeps_the_bound(case, float32_decode(case, SUMS["torch"]))
    assert error_bound(**case)["initial_state"].item() < 1e-3


def test_nothing_is_promised_of_inf_times_zero() -> None:
    for a in (-200.0, -90.0):  # softplus is flushed, or may be
        case = one_number(a=a, A_log=100.0)
        assert error_bound(**case)["initial_state"].isinf()
        assert error_bound(**case)["out"].isinf()


@pytest.mark.parametrize(
    ("changes", "unspecified"),
    [
        pytest.param({"S": 1e20, "k": 1e19}, {"initial_state", "out"}, id="S'·k"),
        pytest.param({"k": 1e-3, "v": 3.3e38, "S": -3e38}, set(), id="in range"),
        pytest.param({"S": -3e38, "v": 3e38}, {"initial_state", "out"}, id="v - S'·k"),
        pytest.param({"S": 0.0, "v": 1e20, "k": 1e20}, {"initial_state", "out"}, id="δ·k"),
        pytest.param({"S": 1e20, "q": 1e20}, {"out"}, id="S·q"),
        pytest.param({"q": 1e20, "scale": 1e20, "S": 0.0, "v": 0.0}, {"out"}, id="q·scale"),
        pytest.param({"q": 0.0, "scale": 1e39}, {"out"}, id="scale"),
        pytest.param({"q": math.nan}, {"out"}, id="NaN in q"),
        pytest.param({"S": math.inf}, {"initial_state", "out"}, id="inf in S"),
    ],
)
def test_nothing_is_promised_beyond_the_range(
    changes: dict[str, float], unspecified: set[str]
) -> None:
    bound = error_bound(**one_number(**changes))
    assert {name for name, t in bound.items() if t.isinf()} == unspecified
    assert not any(t.isnan().any() for t in bound.values())


def test_nothing_is_promised_of_a_norm_beyond_the_range() -> None:
    for changes, unspecified in (
        ({"q": 1e19}, set()),
        ({"q": 2e19}, {"out"}),
        ({"k": 2e19}, {"initial_state", "out"}),
    ):
        bound = error_bound(**one_number(**changes), use_qk_l2norm_in_kernel=True)
        assert {name for name, t in bound.items() if t.isinf()} == unspecified


def test_nothing_is_promised_beyond_the_range_of_storage() -> None:
    for v, unspecified in ((65500.0, False), (65510.0, False), (65530.0, True)):
        case = one_number(b=100.0, S=0.0, v=v)
        case["initial_state"] = case["initial_state"].half()
        bound = error_bound(**case)
        assert bound["initial_state"].isinf() == unspecified
        assert bound["out"].isfinite()


def test_other_heads_keep_their_bound() -> None:
    case = gdn_case(0)
    everywhere = error_bound(**case)
    case["a"][1, 2] = math.nan
    bound = error_bound(**case)
    assert bound["out"][1, 0, 2].isinf().all()
    bound["out"][1, 0, 2] = everywhere["out"][1, 0, 2]
    assert bound["initial_state"][1, 2].isinf().all()
    bound["initial_state"][1, 2] = everywhere["initial_state"][1, 2]
    assert torch.equal(bound["out"], everywhere["out"])
    assert torch.equal(bound["initial_state"], everywhere["initial_state"])


def test_bound_modifies_nothing() -> None:
    case = gdn_case(0)
    before = {name: x.clone() for name, x in case.items() if isinstance(x, torch.Tensor)}
    bound = error_bound(**case)
    for name, x in before.items():
        assert torch.equal(case[name], x)
    for name in ("initial_state", "out"):
        assert bound[name].shape == case[name].shape
        assert bound[name].dtype == torch.float64
