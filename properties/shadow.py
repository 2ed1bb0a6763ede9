"""Shadow memory: where the elements of tensors lie, and which access touched each one last.

A tensor's elements are kept as maximal runs of bytes, never as a map of its span: a pool whose
slots lie 2**31 elements apart costs as much as a dense one. Tensors whose spans interleave share
one :class:`Memory`, so that an element which two views name has one history. Addresses are
absolute, in bytes; accesses are named by a clock that starts at 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

__all__ = ["Argument", "Memory", "arrange"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(eq=False)
class Argument:
    """A tensor that kernels are given: its name, what they may do with it, and its elements."""

    name: str
    access: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    address: int
    storage: int
    """The address of the storage that the tensor is a view of."""
    floating: bool
    declared: bool = True
    starts: Array = field(init=False)
    ends: Array = field(init=False)
    """The runs of bytes that are elements, sorted and apart from one another."""
    memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self.starts, self.ends = _runs(self.shape, self.strides, self.itemsize, self.address)

    @classmethod
    def of(cls, name: str, access: str, tensor: torch.Tensor, declared: bool = True) -> Argument:
        return cls(
            name,
            access,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.element_size(),
            tensor.data_ptr(),
            tensor.untyped_storage().data_ptr(),
            tensor.is_floating_point(),
            declared,
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes a tensor from other views of its storage."""
        return self.address, self.shape, self.strides, self.itemsize

    @property
    def written(self) -> bool:
        return "w" in self.access

    @property
    def span(self) -> tuple[int, int]:
        """First byte and end; nothing at all for an empty tensor."""
        return (int(self.starts[0]), int(self.ends[-1])) if len(self.starts) else (0, 0)

    def contains(self, addresses: Array, width: int) -> Array:
        """Which accesses of ``width`` bytes cover whole elements, or lie within one."""
        if not len(self.starts):
            return np.zeros(addresses.shape, bool)
        if len(self.starts) == 1:
            inside = (addresses >= self.starts[0]) & (addresses <= self.ends[0] - width)
        else:
            run = np.searchsorted(self.starts, addresses, "right") - 1
            inside = (run >= 0) & (addresses <= self.ends[run] - width)
        if self.itemsize > 1:
            inside &= (addresses - self.address) & (min(width, self.itemsize) - 1) == 0
        elements: Array = inside
        return elements

    def touched_by(self, addresses: Array, width: int) -> Array:
        """Which accesses of ``width`` bytes have a byte of an element."""
        run = np.searchsorted(self.starts, addresses + (width - 1), "right") - 1
        return (run >= 0) & (addresses < self.ends[run]) if len(self.ends) else run >= 0

    def addresses(self, mask: Array | None = None) -> Array:
        """The address of every element, or of those that ``mask`` picks, in index order."""
        total = np.zeros(self.shape, np.int64)
        for dim, (n, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            at = [n if d == dim else 1 for d in range(len(self.shape))]
            total += (np.arange(n, dtype=np.int64) * stride).reshape(at)
        return self.address + self.itemsize * (total.reshape(-1) if mask is None else total[mask])

    def nearest(self, address: int) -> tuple[int, ...] | None:
        """The index of the element nearest to ``address``; None when there is no element."""
        if not len(self.starts):
            return None
        run = int(np.searchsorted(self.starts, address, "right")) - 1
        near = [r for r in (run, run + 1) if 0 <= r < len(self.starts)]
        bytes_ = [min(max(address, int(self.starts[r])), int(self.ends[r]) - 1) for r in near]
        byte = min(bytes_, key=lambda b: abs(b - address))
        return _index_at((byte - self.address) // self.itemsize, self.shape, self.strides)

    def distance(self, address: int) -> float:
        """Bytes from ``address`` to the nearest byte of the tensor's span."""
        first, end = self.span
        return max(first - address, address - end + 1, 0) if end else math.inf


def _runs(
    shape: Sequence[int], strides: Sequence[int], itemsize: int, address: int
) -> tuple[Array, Array]:
    if 0 in shape:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    length = 1
    offsets = np.zeros(1, np.int64)
    for stride, n in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1 and s):
        if len(offsets) == 1 and stride <= length:  # it continues the run, or overlaps it
            length += stride * (n - 1)
        else:
            offsets = (offsets[:, None] + np.arange(n, dtype=np.int64) * stride).reshape(-1)
    starts = np.sort(offsets) * itemsize + address
    reach = np.maximum.accumulate(starts + length * itemsize)
    first = np.append(True, starts[1:] > reach[:-1])
    return starts[first], reach[np.append(first[1:], True)]


def _index_at(offset: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """An index tuple whose element lies ``offset`` elements from the first one."""
    order = sorted((d for d in range(len(shape)) if strides[d]), key=lambda d: -strides[d])
    reach = [sum(strides[d] * (shape[d] - 1) for d in order[i:]) for i in range(len(order) + 1)]
    index = [0] * len(shape)

    def search(i: int, rest: int) -> bool:
        if i == len(order):
            return rest == 0
        stride, n = strides[order[i]], shape[order[i]]
        for at in range(min(n - 1, rest // stride), -1, -1):
            if rest - at * stride > reach[i + 1]:
                return False
            index[order[i]] = at
            if search(i + 1, rest - at * stride):
                return True
        return False

    search(0, offset)
    return tuple(index)


def arrange(arguments: Iterable[Argument]) -> list[Memory]:
    """Give every argument its memory: one for each set of arguments whose spans interleave."""
    memories: list[Memory] = []
    together: list[Argument] = []
    end = -1
    for argument in sorted(arguments, key=lambda a: a.span):
        if together and (argument.span[0] >= end):
            memories.append(Memory(together))
            together = []
        together.append(argument)
        end = max(end, argument.span[1])
    return [*memories, Memory(together)] if together else memories


class Memory:
    """The elements of some arguments in cells of equal size, and the times of accesses to them.

    ``writer`` is the last plain write of each cell; ``reader`` and ``reader2`` are reads by two
    programs, if two read it in the present launch, and ``atomic``, ``atomic2`` likewise;
    ``released`` is the last atomic that released. 0 stands for none. All arrays come from
    ``calloc``: cells that nothing touches take no memory.
    """

    writer: Array
    reader: Array
    reader2: Array
    atomic: Array
    atomic2: Array
    released: Array

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = tuple(arguments)
        for argument in arguments:
            argument.memory = self
        starts, ends = (np.concatenate([getattr(a, e) for a in arguments]) for e in EDGES)
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.append(True, starts[1:] > reach[:-1])[: len(starts)]
        self.starts, self.ends = starts[first], reach[np.append(first[1:], True)[: len(starts)]]
        origin = arguments[0].address
        self.unit = math.gcd(
            *(a.itemsize for a in arguments), *(a.address - origin for a in arguments), 8
        )
        self.writable = any(a.written for a in arguments)
        self.write_only = [a for a in arguments if a.access == "w"]
        self.reset()

    def reset(self) -> None:
        """Forget every access."""
        self.bases = np.append(0, np.cumsum((self.ends - self.starts) // self.unit))
        for name in HISTORIES:
            setattr(self, name, np.zeros(self.bases[-1], np.int64))
        self.has_atomics = False
        self.undo: list[tuple[Array, Array]] = []
        """Addresses and bits of cells before their first write."""

    def cells(self, addresses: Array, width: int) -> Array:
        """The cells of accesses of ``width`` bytes, ``width // unit`` for each, in order."""
        if width < self.unit:
            self._refine(width)
        if len(self.starts) == 1:
            cells = (addresses - self.starts[0]) // self.unit
        else:
            run = np.searchsorted(self.starts, addresses, "right") - 1
            cells = (addresses - self.starts[run]) // self.unit + self.bases[run]
        if width > self.unit:
            cells = (cells[:, None] + np.arange(width // self.unit)).reshape(-1)
        found: Array = cells
        return found

    def _refine(self, unit: int) -> None:
        """Go on with smaller cells, each with the history of the one that it was part of."""
        parts = self.unit // unit
        for name in HISTORIES:
            setattr(self, name, np.repeat(getattr(self, name), parts))
        offsets = np.arange(parts) * unit
        self.undo = [
            ((at[:, None] + offsets).reshape(-1), bits.view(f"u{unit}")) for at, bits in self.undo
        ]
        self.unit = unit
        self.bases = self.bases * parts

    def addresses(self, cells: Array) -> Array:
        run = np.searchsorted(self.bases, cells, "right") - 1
        addresses: Array = self.starts[run] + (cells - self.bases[run]) * self.unit
        return addresses

    def cells_of(self, view: Argument) -> Array:
        """The cells that elements of any tensor lie in."""
        if view.itemsize < self.unit:
            self._refine(view.itemsize)
        at = (view.addresses()[:, None] + np.arange(0, view.itemsize, self.unit)).reshape(-1)
        run = np.searchsorted(self.starts, at, "right") - 1
        inside = (run >= 0) & (at < self.ends[run])
        return self.cells(at[inside], self.unit)

    def is_write_only(self, cells: Array) -> Array:
        """Which cells no argument may read before they are written."""
        readable = [a for a in self.arguments if a.access != "w"]
        only = np.ones(len(cells), bool)
        for argument in readable:
            only &= ~argument.touched_by(self.addresses(cells), self.unit)
        return only

    def untouched(self, cells: Array) -> Array:
        """Which cells nothing has written so far."""
        untouched: Array = (self.writer[cells] == 0) & (self.atomic[cells] == 0)
        return untouched

    def save(self, cells: Array) -> None:
        """Keep the bits of those cells that are about to be written for the first time."""
        fresh = cells[self.untouched(cells)]
        if len(fresh):
            at = self.addresses(fresh)
            self.undo.append((at, self.read(at)))

    def saved(self) -> tuple[Array, Array]:
        """Addresses and first bits of all cells that were written."""
        if not self.undo:
            return np.empty(0, np.int64), np.empty(0, f"u{self.unit}")
        at, bits = (np.concatenate(part) for part in zip(*self.undo, strict=True))
        at, first = np.unique(at, return_index=True)
        return at, bits[first]

    def read(self, addresses: Array) -> Array:
        """The bits of the cells at ``addresses``."""
        from triton.runtime.interpreter import _interpreter

        dtype = np.dtype(f"u{self.unit}")
        none = np.zeros(len(addresses), dtype)
        everywhere = np.ones(len(addresses), bool)
        bits: Array = _interpreter.load(addresses.astype(np.uint64), everywhere, none, dtype)
        return bits

    def write(self, addresses: Array, bits: Array) -> None:
        """Put ``bits`` into the cells at ``addresses``."""
        from triton.runtime.interpreter import _interpreter

        everywhere = np.ones(len(addresses), bool)
        _interpreter.store(addresses.astype(np.uint64), np.ascontiguousarray(bits), everywhere)


EDGES = ("starts", "ends")
HISTORIES = ("writer", "reader", "reader2", "atomic", "atomic2", "released")
