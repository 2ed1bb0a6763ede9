"""Sound kernels in spoiling wrappers. Most read from the contract what to spoil, so fit any op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from broken.twin import BOTH, DECODE, SCATTER, Function, Twin, check, wrapped
from twinlaw.contract import Arg
from twinlaw.properties.case import dense
from twinlaw.properties.subjects import Op

Wrap = Callable[[Op, Function], Function]


def _slots(op: Op) -> Arg:
    return next(a for a in op.contract.args if a.unique)


def _written(op: Op, access: str = "w") -> list[str]:
    return [a.name for a in op.contract.args if access in a.access]


def _first(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the first element, as integers: its bits."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor[(0,) * tensor.dim()].view(bits[tensor.itemsize])


# --- layout ---------------------------------------------------------------------------------------


def takes_for_dense(name: str, dim: int) -> Wrap:
    """Computes the stride of one dim from the shape, where that stays inside the tensor."""

    def wrap(op: Op, sound: Function) -> Function:
        def function(**arguments: Any) -> Any:
            tensor = arguments[name]
            if tensor is not None and tensor.numel():
                strides = list(tensor.stride())
                strides[dim] = dense(tuple(tensor.shape)).strides[dim]
                if _reach(tensor, strides) <= _reach(tensor, tensor.stride()):
                    view = tensor.as_strided(tensor.shape, strides, tensor.storage_offset())
                    arguments[name] = view
            return op.fused._unchecked(**arguments)

        return function

    return wrap


def _reach(tensor: torch.Tensor, strides: Any) -> int:
    return sum((n - 1) * int(s) for n, s in zip(tensor.shape, strides, strict=True))


def _strided() -> Iterator[Twin]:
    for op in BOTH:
        for arg in op.contract.args:
            tokens = arg.layout.split()
            for dim, token in enumerate(tokens):
                if token == "*" and not arg.optional:
                    name = f"{arg.name} taken for dense in dim {dim}"
                    yield wrapped(op, name, takes_for_dense(arg.name, dim), "layout-invariance")


def moves(name: str, elements: Callable[[torch.Tensor], int]) -> Wrap:
    """Takes a tensor to start some elements before it does, where there is memory."""

    def wrap(op: Op, sound: Function) -> Function:
        def function(**arguments: Any) -> Any:
            tensor = arguments[name]
            start = tensor.storage_offset() - elements(tensor)
            if tensor.numel() and start >= 0:
                arguments[name] = tensor.as_strided(tensor.shape, tensor.stride(), start)
            return op.fused._unchecked(**arguments)

        return function

    return wrap


def _past_16_bytes(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() % 16 // tensor.itemsize


def copies(name: str) -> Wrap:
    """Works on a dense copy where the caller's tensor is none."""

    def wrap(op: Op, sound: Function) -> Function:
        def function(**arguments: Any) -> Any:
            sound(**arguments | {name: arguments[name].contiguous()})

        return function

    return wrap


LAYOUT = (
    *_strided(),
    *(
        wrapped(op, f"{name} rounded down to 16 bytes", moves(name, _past_16_bytes), "alignment")
        for op, name in (
            *((DECODE, "mixed_qkv"), (DECODE, "initial_state")),
            *((SCATTER, "dst"), (SCATTER, "src")),
        )
    ),
    wrapped(DECODE, "a read one element early", moves("a", lambda t: 1), "agreement", "poison"),
    wrapped(
        SCATTER, "src read one element early", moves("src", lambda t: 1), "agreement", "poison"
    ),
    *(
        wrapped(op, f"{name} updated in a copy", copies(name), "layout-invariance", "agreement")
        for op, name in ((DECODE, "initial_state"), (SCATTER, "dst"))
    ),
)

# --- what is written ------------------------------------------------------------------------------


def resets_indices(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        sound(**arguments)
        arguments[_slots(op).name].fill_(-1)

    return function


def scribbles_on_the_null_slot(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        sound(**arguments)
        pool = next(a for a in op.contract.args if a.written and _slots(op).indexes in a.dim_names)
        dim = pool.dim_names.index(str(_slots(op).indexes))
        tensor, null = arguments[pool.name], arguments["null_slot"]
        if null is not None and 0 <= null < tensor.shape[dim]:
            tensor.select(dim, null).fill_(1)

    return function


WRITTEN = tuple(
    twin
    for op in BOTH
    for twin in (
        wrapped(op, "indices reset", resets_indices, "input-immutability", "containment"),
        wrapped(op, "null slot used as scratch", scribbles_on_the_null_slot, "unnamed-slots"),
    )
)

# --- other requests, other calls ------------------------------------------------------------------


def forgets_the_last_of_an_even_batch(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        name = _slots(op).name
        slots = arguments[name].clone()
        if len(slots) and len(slots) % 2 == 0:
            slots[-1] = -1
        sound(**arguments | {name: slots})

    return function


def remembers_indices_by_shape(op: Op, sound: Function) -> Function:
    seen: dict[Any, torch.Tensor] = {}

    def function(**arguments: Any) -> Any:
        name = _slots(op).name
        key = tuple((v.shape, v.dtype) for v in arguments.values() if torch.is_tensor(v))
        sound(**arguments | {name: seen.setdefault(key, arguments[name].clone())})

    return function


def scales_by_the_batch(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        sound(**arguments | {"scale": arguments["scale"] * len(arguments["a"])})

    return function


def masks_by_multiplying(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        sound(**arguments)
        leak = 0.0 * arguments["mixed_qkv"].float().sum()
        if leak != 0:  # NaN
            arguments["out"].add_(leak)

    return function


def counts_calls(op: Op, sound: Function) -> Function:
    calls = [0]

    def function(**arguments: Any) -> Any:
        sound(**arguments)
        calls[0] += 1
        for name in _written(op):
            if arguments[name].numel():
                _first(arguments[name]).bitwise_xor_(calls[0] % 64)

    return function


def does_nothing_at_first(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        if _is_new(op, arguments):
            check(op.contract, arguments)
        else:
            sound(**arguments)

    return function


def warms_up_in_place(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        if _is_new(op, arguments):
            sound(**arguments)
        sound(**arguments)

    return function


def _is_new(op: Op, arguments: Mapping[str, Any]) -> bool:
    """Whether the validator has not met such a call before."""
    values = [arguments[p.name] for p in op.contract.parameters]
    return op.contract._memory.find(values) is None


CALLS = (
    *(
        twin
        for op in BOTH
        for twin in (
            wrapped(
                op,
                "last request of an even batch forgotten",
                forgets_the_last_of_an_even_batch,
                *("agreement", "batch-invariance"),
            ),
            wrapped(
                op, "indices remembered by shape", remembers_indices_by_shape, "batch-invariance"
            ),
            wrapped(op, "result counts calls", counts_calls, "determinism"),
            wrapped(op, "first call does nothing", does_nothing_at_first, "first-call"),
        )
    ),
    wrapped(DECODE, "scaled by the batch", scales_by_the_batch, "agreement", "batch-invariance"),
    wrapped(
        DECODE,
        "rows masked by multiplying",
        masks_by_multiplying,
        *("nan-containment", "inactive-requests"),
    ),
    wrapped(DECODE, "first call runs twice", warms_up_in_place, "first-call"),
)

# --- refusals -------------------------------------------------------------------------------------


def writes_before_it_refuses(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        with contextlib.suppress(Exception):
            for name in _written(op):
                arguments[name].fill_(0.5)
        sound(**arguments)

    return function


def refuses_with(error: type[Exception]) -> Wrap:
    def wrap(op: Op, sound: Function) -> Function:
        def function(**arguments: Any) -> Any:
            try:
                sound(**arguments)
            except ValueError as refusal:
                raise error(str(refusal)) from refusal

        return function

    return wrap


def refuses_in_silence(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        with contextlib.suppress(ValueError, TypeError):
            sound(**arguments)

    return function


def refuses_an_empty_batch(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        if not arguments[_slots(op).name].numel():
            raise RuntimeError("grid of no programs")
        sound(**arguments)

    return function


def refuses_after_the_call(op: Op, sound: Function) -> Function:
    def function(**arguments: Any) -> Any:
        op.fused._unchecked(**arguments)
        sound(**arguments)

    return function


REFUSALS = tuple(
    twin
    for op in BOTH
    for twin in (
        wrapped(
            op,
            "written before refused",
            writes_before_it_refuses,
            *("rejection-is-clean", "alias-rejection"),
        ),
        wrapped(
            op,
            "RuntimeError for ValueError",
            refuses_with(RuntimeError),
            *("rejection-is-clean", "alias-rejection", "duplicates-refused"),
            raises=RuntimeError,
        ),
        wrapped(
            op,
            "AssertionError for ValueError",
            refuses_with(AssertionError),
            *("rejection-is-clean", "alias-rejection"),
        ),
        wrapped(
            op,
            "refused in silence",
            refuses_in_silence,
            *("rejection-is-clean", "alias-rejection", "duplicates-refused"),
        ),
        wrapped(
            op,
            "empty batch refused",
            refuses_an_empty_batch,
            "size-0-and-1",
            raises=RuntimeError,
        ),
        wrapped(
            op, "duplicates refused after the call", refuses_after_the_call, "duplicates-refused"
        ),
    )
)

TWINS = (*LAYOUT, *WRITTEN, *CALLS, *REFUSALS)
