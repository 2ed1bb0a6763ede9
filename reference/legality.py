"""Facts about arguments, found the slow and obvious way: list a view's elements and look.

An element of a view is an index tuple; its offset, counted in elements from the first one, is the
sum of index times stride. Layout questions are answered by comparing lists and sets of offsets,
never by reasoning about sorted strides.
"""

import functools
import math
import numbers
from collections.abc import Sequence

import torch

# Views with more elements than this are listed by torch, the others by Python, which is quicker
# for the few elements that a small case has.
LONGEST_LIST = 2048


def is_plain_tensor(x: object) -> bool:
    """Whether `x` is a torch tensor that is nothing but a strided view of real memory.

    Not so: other objects; sparse, nested, quantized and meta tensors; tensors with a pending
    conjugation or negation; fake tensors and wrapper subclasses, which own no memory.
    """
    return (
        isinstance(x, torch.Tensor)
        and x.layout == torch.strided
        and not (x.is_meta or x.is_nested or x.is_quantized or x.is_conj() or x.is_neg())
        and x.untyped_storage().device == x.device  # a fake tensor's storage is on "meta"
        and (x.numel() == 0 or x.data_ptr() != 0)
    )


def is_real_number(x: object) -> bool:
    """Whether `x` is an int, a float or another real scalar (NumPy's too), and not a bool."""
    return isinstance(x, numbers.Real) and not isinstance(x, bool)


def is_null_slot(x: object) -> bool:
    """Whether `x` can be a `null_slot`: None or an int that is not a bool."""
    return x is None or (isinstance(x, int) and not isinstance(x, bool))


def element_offsets(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The offset of every element, in elements, in row-major order of the index tuples."""
    offsets = [0]
    for size, stride in zip(sizes, strides, strict=True):
        steps = [i * stride for i in range(size)]
        offsets = [offset + step for offset in offsets for step in steps]
    return offsets


def element_offsets_tensor(sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """The same as `element_offsets`, as an int64 tensor, for views of millions of elements."""
    offsets = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(sizes, strides, strict=True):
        offsets = (offsets[:, None] + torch.arange(size) * stride).flatten()
    return offsets


def unit_last_stride(t: torch.Tensor) -> bool:
    """Whether neighbours in the last dim are neighbours in memory.

    A dim of size 1 and an empty tensor have no layout, so any stride will do there.
    """
    return t.stride(-1) == 1 or t.size(-1) == 1 or t.numel() == 0


def is_dense(t: torch.Tensor, first_dim: int = 0) -> bool:
    """Whether walking the dims from `first_dim` on in row-major order visits offsets 0, 1, 2, ...

    Empty tensors are dense whatever their strides.
    """
    return t.numel() == 0 or _count_up(t.shape[first_dim:], t.stride()[first_dim:])


def overlaps_itself(t: torch.Tensor) -> bool:
    """Whether two index tuples of `t` name the same element."""
    return _repeat(t.shape, t.stride())


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of `a` and an element of `b` have a byte in common.

    Decided on absolute addresses, so the two may differ in dtype and need not come from one
    storage. An empty tensor shares nothing.
    """
    return _spans_meet(_byte_span(a), _byte_span(b)) and _cells_meet(a, b)


def writes_are_exclusive(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> bool:
    """Whether the `written` arguments of a call may be written.

    That is: none overlaps itself, none shares memory with another written argument or with one
    that is only `read`. What is only read may overlap itself and other read arguments.
    """
    others = [(t, _byte_span(t)) for t in read]
    for t in written:
        span = _byte_span(t)
        for other, other_span in others:
            if _spans_meet(span, other_span) and _cells_meet(t, other):
                return False
        if overlaps_itself(t):
            return False
        others.append((t, span))
    return True


@functools.lru_cache(maxsize=4096)
def _count_up(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the offsets, as listed, are 0, 1, 2, ..."""
    count = math.prod(sizes)
    if count <= LONGEST_LIST:
        return element_offsets(sizes, strides) == list(range(count))
    return torch.equal(element_offsets_tensor(sizes, strides), torch.arange(count))


@functools.lru_cache(maxsize=4096)
def _repeat(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an offset is listed twice."""
    if math.prod(sizes) <= LONGEST_LIST:
        offsets = element_offsets(sizes, strides)
        return len(set(offsets)) < len(offsets)
    ordered = element_offsets_tensor(sizes, strides).sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


def _byte_span(t: torch.Tensor) -> tuple[int, int]:
    """The first byte address of `t` and the one after its last (torch has no negative strides)."""
    start, itemsize = t.data_ptr(), t.element_size()
    if t.numel() == 0:
        return start, start
    last = 0
    for size, stride in zip(t.shape, t.stride(), strict=True):
        last += (size - 1) * stride
    return start, start + (last + 1) * itemsize


def _spans_meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _cells_meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare the memory of two tensors cell by cell.

    A cell is as many bytes as divide both element sizes and the distance between the two first
    elements: at worst one byte. Every element then consists of whole cells.
    """
    distance = b.data_ptr() - a.data_ptr()
    cell = math.gcd(a.element_size(), b.element_size(), distance)
    a_view, b_view, start = _in_cells(a, cell), _in_cells(b, cell), distance // cell
    if max(math.prod(a_view[0]), math.prod(b_view[0])) <= LONGEST_LIST:
        b_cells = {start + offset for offset in element_offsets(*b_view)}
        return not b_cells.isdisjoint(element_offsets(*a_view))
    b_listed = start + element_offsets_tensor(*b_view)
    return bool(torch.isin(element_offsets_tensor(*a_view), b_listed).any())


def _in_cells(t: torch.Tensor, cell: int) -> tuple[list[int], list[int]]:
    """Sizes and strides of `t`, counted in cells of so many bytes, with a last dim of cells."""
    cells = t.element_size() // cell
    return [*t.shape, cells], [*(stride * cells for stride in t.stride()), 1]
