"""Watching Triton's interpreter: every access of every program goes by an observer first.

Beside the addresses, an observer is told what the interpreter itself does not know. *Origin*: the
tensors that a pointer was made from, so that an element of a neighbour is out of bounds. *Exact*:
the address as it would be if no integer on its way had wrapped. Both ride on the interpreter's
handles through the operations that make addresses. The hooks are in place only while
:func:`watching`; they are private names of Triton, the same from 3.6 to 3.9.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from twinlaw.properties.shadow import Argument, Array

__all__ = ["Access", "Observer", "site", "watching"]


@dataclass
class Access:
    """One load, store or atomic of one program: the lanes that are on."""

    kind: Literal["read", "write", "atomic read", "atomic"]
    addresses: Array
    """In bytes, int64."""
    width: int
    """Bytes that each lane covers."""
    lanes: Array
    """The place of each lane in the flattened block."""
    origin: tuple[Argument, ...] | None
    """The tensors that the pointer was made from; None when that is not known."""
    wrapped: Array | None
    """Lanes whose address was made with an integer that wrapped; None when there are none."""
    acquires: bool = False
    releases: bool = False
    swaps: bool = False
    """An exchange: an atomic that may be meant to write only."""


class Observer(Protocol):
    """Who is asked before memory is touched."""

    def launch(self, kernel: Any, tensors: Sequence[torch.Tensor]) -> None:
        """A launch begins, on ``tensors``."""

    def order(self, program: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
        """The program to run when it is the turn of ``program``."""

    def origin(self, tensor: Any) -> tuple[Argument, ...]:
        """The tensors that a launch's argument is made of."""

    def access(self, access: Access) -> Array:
        """Which of the lanes may touch memory."""

    def undefined(self, dtype: Any, stored: np.dtype[Any]) -> Any:
        """What masked-off lanes of a load of ``dtype`` without ``other`` hold, as ``stored``."""

    def host(self, tensor: torch.Tensor) -> None:
        """PyTorch, not a kernel, is about to write ``tensor``."""


_CODES: dict[CodeType, str] = {}
"""Code of interpreted functions, not counting Triton's own, and their names."""


def site() -> tuple[str, int]:
    """File and line of the kernel, or of its helper function, that runs now."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _CODES:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


@contextmanager
def watching(observer: Observer) -> Iterator[None]:
    """Let ``observer`` see what kernels and PyTorch do to memory, until the block ends.

    Raises AttributeError or ImportError when the installed Triton lacks one of the hooks.
    """
    from triton.runtime import interpreter

    undo: list[tuple[Any, str, Any]] = []

    def hook(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        stock = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        undo.append((owner, name, stock))
        setattr(owner, name, make(stock))

    writes = _HostWrites(observer)
    try:
        _hook_launches(interpreter, hook, observer, writes)
        _hook_pointers(interpreter, hook)
        _hook_integers(interpreter, hook)
        _hook_memory(interpreter, hook, observer)
        with writes:
            yield
    finally:
        for owner, name, stock in reversed(undo):
            setattr(owner, name, stock)


# --- launches -------------------------------------------------------------------------------------


class _HostWrites(TorchDispatchMode):
    """Tells of tensors that PyTorch writes between launches."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer
        self.launching = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked by PyTorch, which imports its compiler, for seconds, to answer True."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.launching and torch.Tag.inplace_view not in func.tags:
            for i, parameter in enumerate(func._schema.arguments):
                if parameter.alias_info is not None and parameter.alias_info.is_write:
                    value = args[i] if i < len(args) else kwargs.get(parameter.name)
                    for tensor in value if isinstance(value, (list, tuple)) else [value]:
                        if isinstance(tensor, torch.Tensor):
                            self.observer.host(tensor)
        return func(*args, **kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a launch's argument: itself, in tuples, behind wrappers and descriptors."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "base"):
        yield from _tensors(value.base)


def _hook_launches(
    interpreter: Any, hook: Callable[..., None], observer: Observer, writes: _HostWrites
) -> None:
    bound: list[tuple[dict[str, Any], str, Any]] = []
    adapted: set[int] = set()

    def language(stock: Any) -> Any:
        """Adapt built-ins that a module has under a name of its own: ``exp = tl.exp``."""

        def patch_lang(function: Any) -> Any:
            names = function.__globals__
            if id(names) not in adapted:
                adapted.add(id(names))
                for name, value in list(names.items()):
                    if interpreter.tl.core.is_builtin(value):
                        bound.append((names, name, value))
                        names[name] = partial(value, _semantic=interpreter.interpreter_semantic)
            return stock(function)

        return patch_lang

    def launch(stock: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [t for value in (*args, *kwargs.values()) for t in _tensors(value)]
            observer.launch(self.fn, tensors)
            writes.launching = True
            try:
                return stock(self, *args, **kwargs)
            finally:
                writes.launching = False
                for names, name, builtin in bound:
                    names[name] = builtin
                bound.clear()
                adapted.clear()

        return call

    def convert(stock: Any) -> Any:
        def implicit_cvt(argument: Any) -> Any:
            result = stock(argument)
            if hasattr(argument, "data_ptr"):
                tensor = argument if isinstance(argument, torch.Tensor) else argument.base
                result.handle.origin = observer.origin(tensor)
            return result

        return implicit_cvt

    def grid(stock: Any) -> Any:
        def set_grid_idx(self: Any, *program: int) -> None:
            stock(self, *observer.order(program, self.grid_dim))

        return set_grid_idx

    def rewritten(stock: Any) -> Any:
        def rewrite(self: Any) -> Any:
            function = stock(self)
            if not function.__globals__["__name__"].startswith("triton."):
                _CODES[function.__code__] = function.__name__
            return function

        return rewrite

    hook(interpreter.GridExecutor, "__call__", launch)
    hook(interpreter, "_implicit_cvt", convert)
    hook(interpreter, "_patch_lang", language)
    hook(interpreter.InterpreterBuilder, "set_grid_idx", grid)
    hook(interpreter.InterpretedFunction, "rewrite", rewritten)
    # The interpreter computes every 32-bit sum again in 64 bits for an assertion that is off.
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    hook(interpreter.interpreter_builder, "options", lambda stock: options)


# --- pointers and the integers that they are made of ----------------------------------------------


def _hook_pointers(interpreter: Any, hook: Callable[..., None]) -> None:
    """Carry what is known of a pointer or an integer through what only moves it."""
    builder, TensorHandle = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def moving(stock: Any) -> Any:
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = stock(self, *args, **kwargs)
            source = args[0] if isinstance(args[0], TensorHandle) else args[1]
            known = source.__dict__
            if "origin" in known:
                result.origin = source.origin
            if "exact" in known:
                places = np.arange(source.data.size).reshape(source.data.shape)
                handle = TensorHandle(places, interpreter.tl.int64)
                moved = stock(self, *(handle if a is source else a for a in args), **kwargs)
                result.exact = source.exact.reshape(-1)[moved.data]
            return result

        return move

    def viewing(stock: Any) -> Any:
        def view(self: Any, source: Any, *rest: Any) -> Any:
            result = stock(self, source, *rest)
            for name in ("origin", "exact"):
                if name in source.__dict__:
                    setattr(result, name, getattr(source, name))
            return result

        return view

    def adding(stock: Any) -> Any:
        def create_addptr(self: Any, pointer: Any, offset: Any) -> Any:
            result = stock(self, pointer, offset)
            if "origin" in pointer.__dict__:
                result.origin = pointer.origin
            if "exact" in pointer.__dict__ or "exact" in offset.__dict__:
                width = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
                _remember(result, _exact(pointer) + width * _exact(offset))
            return result

        return create_addptr

    def selecting(stock: Any) -> Any:
        def ternary_op(self: Any, condition: Any, lhs: Any, rhs: Any, operation: Any) -> Any:
            result = stock(self, condition, lhs, rhs, operation)
            if operation is np.where:
                if "origin" in lhs.__dict__ and "origin" in rhs.__dict__:
                    result.origin = (*lhs.origin, *rhs.origin)
                if "exact" in lhs.__dict__ or "exact" in rhs.__dict__:
                    _remember(result, np.where(condition.data, _exact(lhs), _exact(rhs)))
            return result

        return ternary_op

    def materializing(stock: Any) -> Any:
        def materialize_pointers(self: Any, *args: Any) -> Any:
            pointers, mask = stock(self, *args)
            if "origin" in self.base.__dict__:
                pointers.origin = self.base.origin
            return pointers, mask

        return materialize_pointers

    for name in ("expand_dims", "broadcast", "splat", "unsplat", "reshape", "trans"):
        hook(builder, f"create_{name}", moving)
    for name in ("bitcast", "int_to_ptr", "ptr_to_int"):
        hook(builder, f"create_{name}", viewing)
    hook(builder, "create_addptr", adding)
    hook(builder, "ternary_op", selecting)
    for name in ("BlockPointerHandle", "TensorDescHandle"):  # the former until Triton 3.7
        if hasattr(interpreter, name):
            hook(getattr(interpreter, name), "materialize_pointers", materializing)


def _exact(handle: Any) -> Array:
    """What the integers in ``handle`` would be in infinite precision, as Python's."""
    exact: Array | None = handle.__dict__.get("exact")
    return handle.data.astype(object) if exact is None else exact


def _remember(handle: Any, exact: Any) -> None:
    """Note the exact values of integers, if they are others."""
    exact = np.asarray(exact, object)
    if (exact != handle.data).any():
        handle.exact = exact


def _hook_integers(interpreter: Any, hook: Callable[..., None]) -> None:
    """Follow sums, products and shifts of integers that wrap, until something else is computed.

    A remainder, a division, a bitwise operation or a comparison makes something new: a hash may
    wrap on its way to a bucket.
    """

    def following(stock: Any) -> Any:
        def binary_op(self: Any, lhs: Any, rhs: Any, operation: Any) -> Any:
            result = stock(self, lhs, rhs, operation)
            if operation in _RING and result.data.dtype.kind in "iu":
                known = "exact" in lhs.__dict__ or "exact" in rhs.__dict__
                if known or _may_wrap(lhs.data, rhs.data, result.data, operation):
                    _remember(result, _RING[operation](_exact(lhs), _exact(rhs)))
            return result

        return binary_op

    def casting(stock: Any) -> Any:
        def cast_impl(self: Any, source: Any, target: Any) -> Any:
            result = stock(self, source, target)
            kinds = source.data.dtype.kind + result.data.dtype.kind
            narrows = result.data.dtype.itemsize < source.data.dtype.itemsize
            if (narrows or "exact" in source.__dict__) and kinds in ("ii", "iu", "ui", "uu"):
                _remember(result, _exact(source))
            return result

        return cast_impl

    hook(interpreter.InterpreterBuilder, "binary_op", following)
    hook(interpreter.InterpreterBuilder, "cast_impl", casting)


_RING: dict[Any, Callable[[Any, Any], Any]] = {
    np.add: lambda a, b: a + b,
    np.subtract: lambda a, b: a - b,
    np.multiply: lambda a, b: a * b,
    np.left_shift: lambda a, b: a * 2 ** (b % 64),
}


def _may_wrap(a: Array, b: Array, result: Array, operation: Any) -> bool:
    """Whether the exact result may differ: never wrongly False."""
    if result.size == 1:
        return bool(_RING[operation](a.item(), b.item()) != result.item())
    limits = np.iinfo(result.dtype)
    approximate = _RING[operation](a.astype(float), b.astype(float))
    least, most = approximate.min(), approximate.max()
    return bool(least < limits.min * (1 - 1e-15) or most > limits.max * (1 - 1e-15))


# --- memory ---------------------------------------------------------------------------------------


def _hook_memory(interpreter: Any, hook: Callable[..., None], observer: Observer) -> None:
    TensorHandle, _ir = interpreter.TensorHandle, interpreter._ir
    builder = interpreter.InterpreterBuilder
    acquiring = (_ir.MEM_SEMANTIC.ACQUIRE, _ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
    releasing = (_ir.MEM_SEMANTIC.RELEASE, _ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
    plainly: list[tuple[Any, Any]] = []
    """Semantic and scope of the atomic that is being made of plain loads or stores."""

    def allowed(kind: Any, pointers: Any, on: Array, how: Any = None, swaps: bool = False) -> Array:
        """The lanes, of those that are ``on``, which may touch memory.

        ``how`` is an atomic's semantic and scope. One for its own program only is no atomic to
        the others.
        """
        if how and how[1] == _ir.MEM_SYNC_SCOPE.CTA:
            kind, how = "read" if kind == "atomic read" else "write", None
        if on.shape != pointers.data.shape:
            on = np.broadcast_to(on, pointers.data.shape)
        flat = pointers.data.view(np.int64).reshape(-1)
        lanes = np.flatnonzero(on)
        if not len(lanes):
            return on
        wrapped = None
        if "exact" in pointers.__dict__:
            exact = pointers.exact.reshape(-1)
            wrapped = ((exact - pointers.data.reshape(-1)) % 2**64 != 0).astype(bool)[lanes]
        access = Access(
            kind,
            flat if len(lanes) == len(flat) else flat[lanes],
            max(1, pointers.get_element_ty().primitive_bitwidth // 8),
            lanes,
            pointers.__dict__.get("origin"),
            wrapped,
            how is not None and how[0] in acquiring,
            how is not None and how[0] in releasing,
            swaps,
        )
        good = observer.access(access)
        if good.all():
            return on
        left = np.zeros(flat.shape, bool)
        left[lanes[good]] = True
        return left.reshape(on.shape)

    def loading(stock: Any) -> Any:
        def create_masked_load(
            self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **options: Any
        ) -> Any:
            on = np.asarray(mask.data)
            # A volatile load looks at a flag that others set while this program waits.
            volatile = options.get("is_volatile", bool(rest) and rest[-1] is True)
            how = plainly[-1] if plainly else (None, None) if volatile else None
            left = allowed("atomic read" if how else "read", pointers, on, how)
            if other is None and not on.all():
                dtype = pointers.get_element_ty()
                np_dtype = interpreter._get_np_dtype(dtype)
                poison = np.full(on.shape, observer.undefined(dtype, np_dtype), np_dtype)
                other = TensorHandle(poison, dtype)
            if left is not on:
                mask = TensorHandle(left, interpreter.tl.int1)
            return stock(self, pointers, mask, other, *rest, **options)

        return create_masked_load

    def storing(stock: Any) -> Any:
        def create_masked_store(
            self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any
        ) -> Any:
            on = np.asarray(mask.data)
            how = plainly[-1] if plainly else None
            left = allowed("atomic" if how else "write", pointers, on, how, swaps=True)
            if left is not on:
                mask = TensorHandle(left, interpreter.tl.int1)
            return stock(self, pointers, value, mask, *rest, **options)

        return create_masked_store

    def updating(stock: Any) -> Any:
        def create_atomic_rmw(
            self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *how: Any
        ) -> Any:
            on = np.asarray(mask.data)
            swaps = operation == _ir.ATOMIC_OP.XCHG
            left = allowed("atomic", pointers, on, how, swaps)
            return stock(self, operation, pointers, value, TensorHandle(left, mask.dtype), *how)

        return create_atomic_rmw

    def comparing(stock: Any) -> Any:
        def create_atomic_cas(self: Any, pointers: Any, old: Any, new: Any, *how: Any) -> Any:
            on = np.ones(pointers.data.shape, bool)
            left = allowed("atomic", pointers, on, how)
            if left.all():
                return stock(self, pointers, old, new, *how)
            # It takes no mask: lanes that may not touch memory are left out.
            parts = (
                TensorHandle(np.broadcast_to(h.data, on.shape)[left], h.dtype)
                for h in (pointers, old, new)
            )
            found = np.zeros(on.shape, old.data.dtype)
            if left.any():
                found[left] = stock(self, *parts, *how).data
            return TensorHandle(found, old.dtype.scalar)

        return create_atomic_cas

    def made_of_plain(stock: Any) -> Any:
        def atomic(self: Any, *args: Any) -> Any:
            plainly.append(args[-2:])
            try:
                return stock(self, *args)
            finally:
                plainly.pop()

        return atomic

    hook(builder, "create_masked_load", loading)
    hook(builder, "create_masked_store", storing)
    hook(builder, "create_atomic_rmw", updating)
    hook(builder, "create_atomic_cas", comparing)
    for name in ("load", "store", "poll"):  # from Triton 3.9 on
        if f"create_atomic_{name}" in builder.__dict__:
            hook(builder, f"create_atomic_{name}", made_of_plain)
