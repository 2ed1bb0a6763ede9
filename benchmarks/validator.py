"""What validation costs a call of the packed decode.

Run ``python benchmarks/validator.py`` where twinlaw is
installed.

Medians over batches of calls, in microseconds of host time. The kernel is not launched, so a GPU
changes only where the tensors lie.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from machine import machine

from twinlaw.fused.gdn_packed_decode import CONTRACT


def arguments(B: int, device: str) -> list[Any]:
    """A call of Qwen3-Next's packed decode, in the order of the parameters."""
    H, HV, K, V, N = 16, 32, 128, 128, 16
    half = {"dtype": torch.bfloat16, "device": device}
    return [
        torch.empty(B, 2 * H * K + HV * V, **half),
        torch.empty(B, HV, **half),
        torch.empty(B, HV, **half),
        torch.empty(HV, device=device),
        torch.empty(HV, device=device),
        K**-0.5,
        torch.empty(N, HV, V, K, device=device),
        torch.empty(B, 1, HV, V, **half),
        torch.zeros(B, dtype=torch.int64, device=device),
        True,
        None,
        False,
    ]


def microseconds(function: Callable[[], object], calls: int = 2000, batches: int = 25) -> float:
    """The median time of a call, over batches of calls."""
    times = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def alternately(calls: Sequence[Sequence[Any]]) -> Callable[[], object]:
    """A function that checks one of ``calls`` after the other, one each time."""
    turn = 0

    def check() -> None:
        nonlocal turn
        turn = (turn + 1) % len(calls)
        CONTRACT.check(*calls[turn])

    return check


def first_time(call: Sequence[Any]) -> None:
    CONTRACT.forget()
    CONTRACT.check(*call)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    one, other, smaller = arguments(8, device), arguments(8, device), arguments(4, device)
    overhead = microseconds(lambda: None)
    rows = {
        "the same call again": lambda: CONTRACT.check(*one),
        "the same layout elsewhere, call by call": alternately([one, other]),
        "two batch sizes in turn": alternately([one, smaller]),
        "a layout seen for the first time": lambda: first_time(one),
    }
    print(machine())
    print(f"{'validation of a packed decode':<42} us a call")
    for name, function in rows.items():
        calls = 100 if "first" in name else 2000
        print(f"{name:<42} {microseconds(function, calls) - overhead:8.2f}")


if __name__ == "__main__":
    main()
