"""What watching costs: the packed decode interpreted, plainly and under the memory checker.

Run ``TRITON_INTERPRET=1 python benchmarks/memcheck.py`` where twinlaw is installed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from machine import machine

from twinlaw.fused.gdn_packed_decode import CONTRACT, _unchecked
from twinlaw.properties import interpreter
from twinlaw.properties.memcheck import memcheck


def milliseconds(function: Callable[[], object], repeats: int = 15) -> float:
    """The median time of a call, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    interpreter.enable()
    B, H, HV, K, V, N = 3, 2, 4, 64, 16, 5
    arguments = {
        "mixed_qkv": torch.randn(B, 2 * H * K + HV * V),
        "a": torch.randn(B, HV),
        "b": torch.randn(B, HV),
        "A_log": torch.randn(HV),
        "dt_bias": torch.randn(HV),
        "scale": 0.125,
        "initial_state": torch.randn(N, HV, V, K),
        "out": torch.empty(B, 1, HV, V),
        "ssm_state_indices": torch.tensor([3, 0, 4]),
        "use_qk_l2norm_in_kernel": True,
    }
    plain = milliseconds(lambda: _unchecked(**arguments))
    watched = milliseconds(
        lambda: memcheck(_unchecked, access=CONTRACT, witnesses=False, **arguments)
    )
    print(machine())
    print(f"packed decode, {B * HV * V // 8} programs, interpreted: {plain:.1f} ms")
    print(f"the same, watched: {watched:.1f} ms, {watched / plain:.2f} times as long")


if __name__ == "__main__":
    main()
