"""What only the compiler or a GPU shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from broken.twin import BOTH, DECODE, SCATTER, Function, Twin, edited, wrapped
from twinlaw.properties.aot import Compilation
from twinlaw.properties.subjects import Op

FILE = str(Path(__file__).with_name("misfits.py"))


def _compiling(op: Op, name: str, kernel: str, says: str, **constexprs: int) -> Twin:
    """The op with one kernel more among those that it says it launches."""
    made = Compilation(f"{FILE}:{kernel}", {"x": "*fp32"}, constexprs, num_warps=1)
    laws = ("compiles-everywhere",)
    return Twin(op, name, laws, lambda: op.subject().having(compilations=(made,)), says=says)


COMPILING = (
    _compiling(DECODE, "spills", "hoards", " spills: ", BLOCK=8192),
    _compiling(SCATTER, "is refused by the compiler", "takes_three_of_four", "power of 2"),
)


def _slots(op: Op) -> str:
    return next(a.name for a in op.contract.args if a.unique)


def remembers_indices_by_address(op: Op, sound: Function) -> Function:
    seen: dict[int, torch.Tensor] = {}

    def function(**arguments: Any) -> Any:
        slots = arguments[_slots(op)]
        sound(**arguments | {_slots(op): seen.setdefault(slots.data_ptr(), slots.clone())})

    return function


def looks_at_the_indices(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        if (arguments[_slots(op)] >= 0).any():
            sound(**arguments)

    return function


def copies_the_indices(op: Op, sound: Function) -> Function:
    return lambda **arguments: sound(**arguments | {_slots(op): arguments[_slots(op)].clone()})


def keeps_to_the_default_stream(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        with torch.cuda.stream(torch.cuda.default_stream()):
            sound(**arguments)

    return function


def keeps_to_the_first_device(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        if not arguments[_slots(op)].device.index:
            sound(**arguments)

    return function


RUNNING = (
    *(
        twin
        for op in BOTH
        for twin in (
            wrapped(
                op,
                "indices remembered by address",
                remembers_indices_by_address,
                "graph-replay",
                device="cuda",
            ),
            wrapped(
                op,
                "waits to see the indices",
                looks_at_the_indices,
                "no-host-sync",
                raises=RuntimeError,
                device="cuda",
            ),
            wrapped(op, "indices copied", copies_the_indices, "no-host-sync", device="cuda"),
            wrapped(
                op,
                "always on the default stream",
                keeps_to_the_default_stream,
                "side-stream",
                device="cuda",
            ),
            wrapped(
                op,
                "nothing done on another device",
                keeps_to_the_first_device,
                "second-device",
                device="cuda",
            ),
        )
    ),
    *(
        edited(
            op,
            "specialised on sizes and strides",
            "do_not_specialize=[",
            "repr=None and [",
            "bounded-recompilation",
            device="cuda",
        )
        for op in BOTH
    ),
    edited(
        DECODE,
        "64 of K at most",
        "BLOCK_K=triton.next_power_of_2(K)",
        "BLOCK_K=min(triton.next_power_of_2(K), 64)",
        "serving-sizes",
        device="cuda",
    ),
)

TWINS = (*COMPILING, *RUNNING)
