"""Layouts that serving engines really use, and that fused kernels really got wrong, one by one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from twinlaw.fused import (
    fused_mamba_state_scatter_with_mask,
    fused_recurrent_gated_delta_rule_packed_decode,
)
from twinlaw.plugin import Twin
from twinlaw.properties import interpreter
from twinlaw.properties.laws.addressing import far_copy
from twinlaw.properties.subjects import OPS
from twinlaw.properties.trial import Trial

DECODE = OPS["fused_recurrent_gated_delta_rule_packed_decode"]
SCATTER = OPS["fused_mamba_state_scatter_with_mask"]

Arguments = dict[str, Any]


@pytest.fixture(autouse=True)
def device(twin: Twin) -> str:
    if twin.device == "cpu":
        interpreter.enable()
    return twin.device


def decode_arguments(device: str, B: int = 3, H: int = 2, HV: int = 4, K: int = 64) -> Arguments:
    """A plain call with V = 32 rows of state a head and five slots."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    return {
        "mixed_qkv": normal(B, 2 * H * K + HV * 32),
        "a": normal(B, HV),
        "b": normal(B, HV),
        "A_log": normal(HV),
        "dt_bias": normal(HV),
        "scale": K**-0.5,
        "initial_state": normal(5, HV, 32, K),
        "out": torch.full((B, 1, HV, 32), torch.nan, device=device),
        "ssm_state_indices": torch.arange(B, device=device) + 1,
        "use_qk_l2norm_in_kernel": True,
    }


def scatter_arguments(device: str) -> Arguments:
    """Two layers, four slots of [3, 5], three requests with two draft steps each."""
    generator = torch.Generator().manual_seed(0)
    return {
        "dst": torch.randn(2, 4, 3, 5, generator=generator).to(device),
        "src": torch.randn(2, 3, 2, 3, 5, generator=generator).to(device),
        "dst_indices_raw": torch.tensor([3, -1, 0], device=device),
        "step_indices_raw": torch.tensor([1, 0, 0], device=device),
    }


def assert_right(op: Any, arguments: Arguments) -> None:
    """The fused op accepts the call and agrees with the reference, in the caller's own memory."""
    trial = Trial(op.subject(), "cpu")
    copies = {n: v.cpu().clone() if torch.is_tensor(v) else v for n, v in arguments.items()}
    getattr(op.fused, op.name)(**arguments)
    trial.judge(copies, {a.name: arguments[a.name].cpu() for a in op.contract.args if a.written})


def filled(view: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    view.copy_(values)
    return view


def stepped_in_v(state: torch.Tensor) -> torch.Tensor:
    """Every second row of V of a pool with twice the rows."""
    N, HV, V, K = state.shape
    return filled(state.new_full((N, HV, 2 * V, K), torch.nan)[:, :, ::2], state)


def transposed_heads(state: torch.Tensor) -> torch.Tensor:
    """Heads inside V: [N, V, HV, K] seen as [N, HV, V, K]."""
    N, HV, V, K = state.shape
    return filled(state.new_full((N, V, HV, K), torch.nan).transpose(1, 2), state)


def layer_of_buffer(state: torch.Tensor) -> torch.Tensor:
    """Layer 3 of a buffer in which all layers of a slot lie together."""
    N, *entry = state.shape
    return filled(state.new_full((N, 5, *entry), torch.nan)[:, 3], state)


def odd_offset(state: torch.Tensor) -> torch.Tensor:
    """One element off: contiguous, but not aligned to 16 bytes."""
    return filled(state.new_zeros(state.numel() + 1)[1:].view(state.shape), state)


def slots_far_apart(state: torch.Tensor) -> torch.Tensor:
    """The last slot begins 2**31 elements after the first."""
    return far_copy(state, 0, 2**31, str(state.device))


@pytest.mark.parametrize(
    "relaid", [stepped_in_v, transposed_heads, layer_of_buffer, odd_offset, slots_far_apart]
)
def test_decode_in_a_pool_that_is_a_view(
    device: str, relaid: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    arguments = decode_arguments(device)
    assert arguments["initial_state"].shape == (5, 4, 32, 64)
    arguments["initial_state"] = relaid(arguments["initial_state"])
    assert_right(DECODE, arguments)


def test_decode_with_size_1_dims_of_odd_strides(device: str) -> None:
    arguments = decode_arguments(device, B=1)
    arguments["out"] = arguments["out"].as_strided((1, 1, 4, 32), (7, 10**6, 32, 1))
    arguments["ssm_state_indices"] = arguments["ssm_state_indices"].as_strided((1,), (0,))
    assert_right(DECODE, arguments)


def test_decode_with_expanded_gates(device: str) -> None:
    """One row of gates for all requests: stride 0."""
    arguments = decode_arguments(device)
    arguments["a"] = arguments["a"][:1].expand(3, -1)
    arguments["b"] = arguments["b"][:1].expand(3, -1)
    assert_right(DECODE, arguments)


def test_decode_with_inputs_sliced_out_of_a_projection(device: str) -> None:
    arguments = decode_arguments(device)
    for name in ("mixed_qkv", "a", "b"):
        rows, width = arguments[name].shape
        wide = arguments[name].new_full((rows, width + 11), torch.nan)
        arguments[name] = filled(wide[:, 3 : 3 + width], arguments[name])
    assert_right(DECODE, arguments)


def test_decode_with_indices_in_a_column_of_a_table(device: str) -> None:
    """Column 1 of an int64 table whose column 0 holds other live slots."""
    arguments = decode_arguments(device)
    table = torch.tensor([[0, 4], [1, 2], [2, 2**32 + 1]], device=device)
    arguments["ssm_state_indices"] = table[:, 1]
    assert_right(DECODE, arguments)


def test_decode_with_padding_in_all_its_forms(device: str) -> None:
    arguments = decode_arguments(device, B=5)
    indices = torch.tensor([-1, 2, 0, 5, 2**32 + 3], device=device)
    assert_right(DECODE, {**arguments, "ssm_state_indices": indices, "null_slot": 0})


def test_scatter_from_a_slice_of_a_larger_scratch(device: str) -> None:
    arguments = scatter_arguments(device)
    scratch = arguments["src"].new_full((3, 7, 4, 3, 5), torch.nan)
    arguments["src"] = filled(scratch[1:, 2:5, ::2], arguments["src"])
    assert_right(SCATTER, arguments)


def test_scatter_between_interleaved_pools(device: str) -> None:
    """Destination and source take turns in one buffer and share no element."""
    arguments = scatter_arguments(device)
    both = torch.zeros(2, 4 + 6, 3, 5, device=device)
    arguments["dst"] = filled(both[:, :4], arguments["dst"])
    arguments["src"] = filled(both[:, 4:].view(2, 3, 2, 3, 5), arguments["src"])
    assert_right(SCATTER, arguments)


def test_scatter_refuses_expanded_rows(device: str) -> None:
    arguments = scatter_arguments(device)
    arguments["dst"] = arguments["dst"][:, :1].expand(-1, 4, -1, -1)
    before = arguments["dst"].clone()
    with pytest.raises(ValueError, match="`dst` is written and must not overlap itself"):
        fused_mamba_state_scatter_with_mask(**arguments)
    assert torch.equal(arguments["dst"], before)


def every_second_k(state: torch.Tensor) -> torch.Tensor:
    return torch.stack([state, state], -1)[..., 0]


OPENINGS = [
    ("initial_state", every_second_k, "`initial_state` must be contiguous in the last dim"),
    ("mixed_qkv", lambda t: t[0], "`mixed_qkv` must be a 2D tensor"),
    ("out", lambda t: t.transpose(2, 3).contiguous().transpose(2, 3), "`out` must be contiguous"),
    ("ssm_state_indices", lambda t: t[None], "`ssm_state_indices` must be 1D"),
    ("a", lambda t: t.t().contiguous().t(), "`a` must be contiguous in the last dim"),
    ("b", lambda t: t.double(), "`b` must be float16, bfloat16 or float32"),
]


@pytest.mark.parametrize(("name", "spoil", "opening"), OPENINGS)
def test_decode_errors_open_as_they_always_did(
    device: str, name: str, spoil: Callable[[torch.Tensor], torch.Tensor], opening: str
) -> None:
    """The well-known opening, then what came and the fix."""
    arguments = decode_arguments(device)
    arguments[name] = spoil(arguments[name])
    with pytest.raises(ValueError, match=f"^{re.escape(opening)}.*got .*"):
        fused_recurrent_gated_delta_rule_packed_decode(**arguments)


def test_scatter_error_names_the_dims_of_the_entry(device: str) -> None:
    arguments = scatter_arguments(device)
    arguments["dst"] = arguments["dst"].transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(
        ValueError, match=r"^dst entry dims \(dims 2\.\.3\) must be contiguous: got"
    ):
        fused_mamba_state_scatter_with_mask(**arguments)


def test_a_number_too_large_for_a_float_is_infinite(device: str) -> None:
    arguments = decode_arguments(device) | {"scale": 10**400}
    out, _ = fused_recurrent_gated_delta_rule_packed_decode(**arguments)
    assert not out.isfinite().any()
