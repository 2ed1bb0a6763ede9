"""The zoo: kernels that do one thing wrong each, and innocent look-alikes.

A case launches kernels under the memory checker and returns its report. ``@dirty`` lists all that
must be found, as (kind, line, argument, offset, nearest index, lanes); the line is the one with
the comment ``# !`` or ``# ! name``. Run as a script, this module runs all cases in an interpreting
process of its own and saves the findings:

    TRITON_INTERPRET=1 python memcheck_zoo.py OUT.pickle
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import mmap
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Before Triton is imported.
    from twinlaw.properties import interpreter

    interpreter.enable()

import torch
import triton
import triton.language as tl
from triton.language import load as read_from

from twinlaw.properties.memcheck import Finding, Report, memcheck

Expected = tuple[str, str, str, int, "tuple[int, ...] | None", int]
Case = Callable[[], Report]
CASES: dict[str, Case] = {}
EXPECTED: dict[str, set[Expected]] = {}
store_to = tl.store


def dirty(*expected: Expected) -> Callable[[Case], Case]:
    def register(case: Case) -> Case:
        CASES[case.__name__] = case
        EXPECTED[case.__name__] = set(expected)
        return case

    return register


def clean(case: Case) -> Case:
    return dirty()(case)


def line_of(mark: str) -> int:
    """The line with the comment ``mark``; 0 for no line."""
    lines = Path(__file__).read_text().splitlines()
    found = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # ! {mark}")]
    assert len(found) == (mark != ""), mark
    return found[0] if found else 0


def told(finding: Finding) -> tuple[Any, ...]:
    """A finding in the words of ``Expected``, but with the line's number."""
    f = finding
    return f.kind, f.line, f.argument, f.offset, f.index, f.lanes


# --- out of bounds --------------------------------------------------------------------------------


@triton.jit
def copy(x, out, row, n, N: tl.constexpr):
    """Rows of x and of out lie ``row`` elements apart in one, N in the other."""
    i, o = tl.program_id(0), tl.arange(0, N)
    v = tl.load(x + i * row + o, o < n, 0.0)  # ! copy read
    tl.store(out + i * row + o, v, o < n)  # ! copy write


def copied(x: torch.Tensor, out: torch.Tensor, row: int, n: int) -> Report:
    launch = lambda x, out: copy[(len(x),)](x, out, row, n, N=8)  # noqa: E731
    return memcheck(launch, x, out, access={"x": "r", "out": "w"})


@clean
def strided_rows() -> Report:
    return copied(torch.rand(3, 7)[:, :4], torch.rand(3, 7)[:, :4], 7, 4)


@dirty(
    ("out-of-bounds read", "copy read", "x", 4, (0, 3), 1),
    ("out-of-bounds write", "copy write", "out", 4, (0, 3), 1),
)
def gap() -> Report:
    """The gap behind each row belongs to the storage, not to the view."""
    return copied(torch.rand(3, 7)[:, :4], torch.rand(3, 7)[:, :4], 7, 5)


@dirty(
    ("out-of-bounds read", "copy read", "x", 12, (2, 3), 4),
    ("out-of-bounds write", "copy write", "out", 12, (2, 3), 4),
    ("unwritten output", "", "out", 4, (1, 0), 4),
)
def behind() -> Report:
    return copied(torch.rand(3, 4), torch.rand(3, 4), 6, 4)


@dirty(
    ("out-of-bounds read", "shift read", "x", -1, (0,), 1),
    ("out-of-bounds write", "shift write", "out", 6, (5,), 2),
    ("unwritten output", "", "out", 0, (0,), 2),
)
def before_and_behind() -> Report:
    """One storage: before x lies padding, behind it out, behind that padding."""
    pool = torch.rand(20)
    return memcheck(shifted, pool[4:10], pool[10:16], access={"x": "r", "out": "w"})


@triton.jit
def shift_kernel(x, out, n, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o - 1, o < n)  # ! shift read
    tl.store(out + o + 2, v, o < n)  # ! shift write


def shifted(x, out):
    shift_kernel[(1,)](x, out, len(x), N=8)


@triton.jit
def neighbour_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tl.load(x + o))  # ! neighbour


@dirty(("out-of-bounds read", "neighbour", "x", 4, (3,), 4))
def neighbour() -> Report:
    """The elements behind x are out's, which the kernel may touch, but not from x."""
    pool = torch.rand(12)
    launch = lambda x, out: neighbour_kernel[(1,)](x, out, N=8)  # noqa: E731
    return memcheck(launch, pool[:4], pool[4:], access={"x": "r", "out": "rw"})


@clean
def part_of_an_argument() -> Report:
    """A launcher may pass a part and reach the whole argument from there."""
    pool = torch.rand(12)
    launch = lambda x, out: neighbour_kernel[(1,)](x[:4], out, N=8)  # noqa: E731
    return memcheck(launch, pool, torch.empty(8), access={"x": "r", "out": "w"})


@clean
def interleaved_views() -> Report:
    pool = torch.rand(16)
    return memcheck(strided_copy, pool[::2], pool[1::2], access={"x": "r", "out": "w"})


@triton.jit
def strided_kernel(x, out, x_step, out_step, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o * out_step, tl.load(x + o * x_step))  # ! strided


def strided_copy(x, out):
    strided_kernel[(1,)](x, out, x.stride(0), out.stride(0), N=8)


@dirty(
    ("out-of-bounds write", "strided", "out", 1, (0,), 4),
    ("unwritten output", "", "out", 8, (4,), 4),
)
def interleaved_views_mistaken() -> Report:
    pool = torch.rand(16)
    launch = lambda x, out: strided_kernel[(1,)](x, out, 2, 1, N=8)  # noqa: E731
    return memcheck(launch, pool[::2], pool[1::2], access={"x": "r", "out": "w"})


@triton.jit
def wild_kernel(x, out, far):
    tl.store(out, tl.load(x + far))  # ! wild read
    tl.store(out + far, 1.0)  # ! wild write
    null = tl.cast(far - far, tl.pointer_type(tl.float32))
    tl.store(out + 1, tl.load(null))  # ! null


@dirty(
    ("out-of-bounds read", "wild read", "x", 2**50, (3,), 1),
    ("out-of-bounds write", "wild write", "out", 2**50, (1,), 1),
)
def wild_pointers() -> Report:
    report = memcheck(
        lambda x, out: wild_kernel[(1,)](x, out, 2**50),
        torch.rand(4),
        torch.empty(2),
        access={"x": "r", "out": "w"},
    )
    null = [f for f in report.findings if f.line == line_of("null")]
    assert [(f.kind, f.index) for f in null] == [("out-of-bounds read", (0,))]
    return Report([f for f in report.findings if f not in null])


@triton.jit
def masked_wild_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N).to(tl.int64)
    far = tl.where(o < 4, o, 2**40)
    tl.store(out + far, tl.load(x + far, o < 4, 0.0), o < 4)


@clean
def masked_lanes_touch_nothing() -> Report:
    launch = lambda x, out: masked_wild_kernel[(1,)](x, out, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(4), torch.rand(4), access={"x": "r", "out": "w"})


@dirty(("out-of-bounds read", "strided", "x", 0, None, 8))
def empty_tensor() -> Report:
    return memcheck(
        lambda x, out: strided_kernel[(1,)](x, out, 1, 1, N=8),
        torch.empty(0),
        torch.empty(8),
        access={"x": "r", "out": "w"},
    )


# --- units ----------------------------------------------------------------------------------------


def units(start: int, count: int, unit: Any = tl.int64) -> Report:
    """Copy bfloat16 pairs of 4 as int64 units, from element ``start`` on."""

    def launch(x, out):
        views = (triton.reinterpret(t, unit) for t in (x[start:], out))
        neighbour_kernel[(1,)](*views, N=count)

    x = torch.rand(16).bfloat16()
    return memcheck(launch, x, torch.rand(8).bfloat16(), access={"x": "r", "out": "w"})


@clean
def wide_units() -> Report:
    return units(0, 2)


@clean
def narrow_units() -> Report:
    return units(0, 16, tl.int8)


@dirty(("misaligned access", "neighbour", "x", 1, (1,), 2))
def misaligned_units() -> Report:
    return units(1, 2)


@dirty(
    ("out-of-bounds read", "neighbour", "x", 16, (15,), 2),
    ("out-of-bounds write", "neighbour", "out", 8, (7,), 2),
)
def too_many_units() -> Report:
    return units(8, 4)


@triton.jit
def bytes_kernel(x, out, first, N: tl.constexpr):
    o = tl.arange(0, N)
    address = tl.cast(x, tl.int64) + first + 4 * o
    tl.store(out + o, tl.load(tl.cast(address, tl.pointer_type(tl.float32))))  # ! bytes


@clean
def addresses_as_integers() -> Report:
    launch = lambda x, out: bytes_kernel[(1,)](x, out, 8, N=2)  # noqa: E731
    return memcheck(launch, torch.rand(4), torch.empty(2), access={"x": "r", "out": "w"})


@dirty(("out-of-bounds read", "bytes", "x", 1, (1,), 2))
def between_elements() -> Report:
    launch = lambda x, out: bytes_kernel[(1,)](x, out, 6, N=2)  # noqa: E731
    return memcheck(launch, torch.rand(4), torch.empty(2), access={"x": "r", "out": "w"})


# --- access ---------------------------------------------------------------------------------------


@triton.jit
def double_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o) * 2
    tl.store(x + o, v)  # ! double x
    tl.store(out + o, tl.load(out + o) + v)  # ! double out


def doubled(**access: str) -> Report:
    x, out = torch.rand(8), torch.rand(8)
    return memcheck(lambda x, out: double_kernel[(1,)](x, out, N=8), x, out, access=access)


@clean
def in_place() -> Report:
    return doubled(x="rw", out="rw")


@dirty(("write to read-only", "double x", "x", 0, (0,), 8))
def write_to_read_only() -> Report:
    return doubled(x="r", out="rw")


@dirty(("uninitialised read", "double out", "out", 0, (0,), 8))
def uninitialised_read() -> Report:
    return doubled(x="rw", out="w")


@clean
def initialised_by_pytorch() -> Report:
    def launch(x, out):
        out.zero_()
        double_kernel[(1,)](x, out, N=8)

    return memcheck(launch, torch.rand(8), torch.empty(8), access={"x": "rw", "out": "w"})


@dirty(("uninitialised read", "double out", "out", 5, (5,), 3))
def initialised_in_part() -> Report:
    def launch(x, out):
        torch.zeros(5, out=out[:5])
        double_kernel[(1,)](x, out, N=8)

    return memcheck(launch, torch.rand(8), torch.empty(8), access={"x": "rw", "out": "w"})


@triton.jit
def twice_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tl.load(x + o))
    tl.store(out + o, tl.load(out + o) + 1)


@clean
def read_after_write() -> Report:
    launch = lambda x, out: twice_kernel[(1,)](x, out, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(8), torch.empty(8), access={"x": "r", "out": "w"})


@dirty(("unwritten output", "", "out", 14, (2, 0), 4))
def unwritten_output() -> Report:
    launch = lambda x, out: copy[(2,)](x, out, 7, 4, N=8)  # noqa: E731
    x, out = torch.rand(2, 3, 7)[..., :4]
    return memcheck(launch, x, out, access={"x": "r", "out": "w"})


@clean
def unwritten_where_nothing_is_due() -> Report:
    due = torch.tensor([True, True, False])[:, None].expand(3, 4)
    x, out = torch.rand(2, 3, 7)[..., :4]
    launch = lambda x, out: copy[(2,)](x, out, 7, 4, N=8)  # noqa: E731
    return memcheck(launch, x, out, access={"x": "r", "out": "w"}, touched={"out": due})


# --- races ----------------------------------------------------------------------------------------


@triton.jit
def bins_kernel(x, out, ATOMIC: tl.constexpr):
    bin = tl.load(x + tl.program_id(0))
    if ATOMIC:
        tl.atomic_add(out + bin, 1)
    else:
        tl.store(out + bin, bin)  # ! bins


def bins(numbers: list[int], atomic: bool) -> Report:
    return memcheck(
        lambda x, out: bins_kernel[(len(x),)](x, out, ATOMIC=atomic),
        torch.tensor(numbers, dtype=torch.int32),
        torch.zeros(4, dtype=torch.int32),
        access={"x": "r", "out": "rw"},
    )


@clean
def bins_apart() -> Report:
    return bins([3, 0, 2], atomic=False)


@clean
def bins_by_atomics() -> Report:
    return bins([3, 0, 3], atomic=True)


@dirty(("write-write race", "bins", "out", 3, (3,), 1))
def write_write_race() -> Report:
    report = bins([3, 0, 3], atomic=False)
    assert [(f.program, f.other_program) for f in report.findings] == [((2, 0, 0), (0, 0, 0))]
    assert {f.other_line for f in report.findings} == {line_of("bins")}
    return report


@triton.jit
def halves_kernel(x, out, n, N: tl.constexpr):
    """The first launch argument's rows are shifted by one: row i becomes row i + 1."""
    i, o = tl.program_id(0), tl.arange(0, N)
    tl.store(out + (i + 1) * n + o, tl.load(x + i * n + o))  # ! halves


@dirty(("read-write race", "halves", "pool", 4, (1, 0), 4))
def destination_is_a_source() -> Report:
    pool = torch.rand(3, 4)
    return memcheck(
        lambda pool: halves_kernel[(2,)](pool, pool, 4, N=4), pool, access={"pool": "rw"}
    )


@clean
def two_launches_are_ordered() -> Report:
    def launch(pool):
        halves_kernel[(1,)](pool, pool, 4, N=4)
        halves_kernel[(1,)](pool[1:], pool[1:], 4, N=4)

    return memcheck(launch, torch.rand(3, 4), access={"pool": "rw"})


@triton.jit
def read_all_kernel(x, N: tl.constexpr):
    i, o = tl.program_id(0), tl.arange(0, N)
    total = tl.sum(tl.load(x + o))  # ! read all
    if i == 3:
        tl.store(x + 7, total)  # ! write one


@dirty(("read-write race", "write one", "x", 7, (7,), 1))
def written_after_many_reads() -> Report:
    launch = lambda x: read_all_kernel[(4,)](x, N=8)  # noqa: E731
    report = memcheck(launch, torch.rand(8), access={"x": "rw"})
    assert [f.other_line for f in report.findings] == [line_of("read all")]
    return report


@clean
def one_program_may_read_and_write() -> Report:
    return memcheck(lambda x: read_all_kernel[(1,)](x, N=8), torch.rand(8), access={"x": "rw"})


@triton.jit
def atomic_and_plain_kernel(x):
    if tl.program_id(0) == 0:
        tl.atomic_add(x, 1)
    else:
        tl.store(x + 1, tl.load(x))  # ! atomic and plain


@dirty(("read-write race", "atomic and plain", "x", 0, (0,), 1))
def atomic_against_plain_read() -> Report:
    return memcheck(
        lambda x: atomic_and_plain_kernel[(2,)](x),
        torch.zeros(2, dtype=torch.int32),
        access={"x": "rw"},
    )


@triton.jit
def locked_kernel(lock, total, x, SEM: tl.constexpr):
    v = tl.load(x + tl.program_id(0))
    while tl.atomic_cas(lock, 0, 1, sem=SEM) == 1:
        pass
    tl.store(total, tl.load(total) + v)  # ! locked
    tl.atomic_xchg(lock, 0, sem=SEM)


def locked(semantic: str) -> Report:
    return memcheck(
        lambda lock, total, x: locked_kernel[(4,)](lock, total, x, SEM=semantic),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1),
        torch.arange(4.0),
        access={"lock": "rw", "total": "rw", "x": "r"},
    )


@clean
def lock() -> Report:
    return locked("acq_rel")


@dirty(
    ("read-write race", "locked", "total", 0, (0,), 1),
    ("write-write race", "locked", "total", 0, (0,), 1),
)
def lock_that_orders_nothing() -> Report:
    return locked("relaxed")


@triton.jit
def last_kernel(count, parts, out, n, N: tl.constexpr, EARLY: tl.constexpr):
    """The program that comes last adds up what all of them wrote."""
    i, o = tl.program_id(0), tl.arange(0, N)
    if EARLY:
        seen = tl.atomic_add(count, 1)
        tl.store(parts + i, i + 1.0)
    else:
        tl.store(parts + i, i + 1.0)
        seen = tl.atomic_add(count, 1)
    if seen == n - 1:
        tl.store(out, tl.sum(tl.load(parts + o)))  # ! last


def last(early: bool) -> Report:
    return memcheck(
        lambda count, parts, out: last_kernel[(4,)](count, parts, out, 4, N=4, EARLY=early),
        torch.zeros(1, dtype=torch.int32),
        torch.empty(4),
        torch.empty(1),
        access={"count": "rw", "parts": "w", "out": "w"},
    )


@clean
def last_one_adds_up() -> Report:
    return last(early=False)


@dirty(("read-write race", "last", "parts", 0, (0,), 3))
def counted_before_written() -> Report:
    return last(early=True)


@triton.jit
def rows_kernel(x, out, x_row, out_row, N: tl.constexpr):
    i, o = tl.program_id(0), tl.arange(0, N)
    tl.store(out + i * out_row + o, tl.load(x + i * x_row + o))  # ! rows


@dirty(("write-write race", "rows", "out", 2, (1, 0), 2))
def overlapping_rows() -> Report:
    x, out = torch.rand(3, 4), torch.rand(8).as_strided((3, 4), (2, 1))
    launch = lambda x, out: rows_kernel[(3,)](x, out, 4, out.stride(0), N=4)  # noqa: E731
    return memcheck(launch, x, out, access={"x": "r", "out": "w"})


@dirty(("write to read-only", "rows", "x", 4, (1, 0), 4))
def read_only_argument_inside_an_output() -> Report:
    pool = torch.rand(3, 4)
    launch = lambda x, out: rows_kernel[(1,)](x, out, 4, 4, N=4)  # noqa: E731
    return memcheck(launch, pool, pool[1:2], access={"x": "r", "out": "w"})


# --- overflow -------------------------------------------------------------------------------------


def reserved(elements: int) -> torch.Tensor:
    """float32 that takes no memory until it is touched."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, 4 * elements, flags=flags), dtype=torch.float32)


@triton.jit
def far_rows_kernel(x, out, row, WIDE: tl.constexpr, N: tl.constexpr):
    i, o = tl.program_id(0), tl.arange(0, N)
    if WIDE:
        i = i.to(tl.int64)
    tl.store(out + i * row + o, tl.load(x + i * N + o))  # ! far rows


def far_rows(wide: bool) -> Report:
    row = 2**31 - 16
    out = reserved(5 * row).as_strided((3, 4), (row, 1), row)
    return memcheck(
        lambda x, out: far_rows_kernel[(3,)](x, out, row, WIDE=wide, N=4),
        torch.rand(3, 4),
        out,
        access={"x": "r", "out": "w"},
    )


@clean
def rows_beyond_32_bits() -> Report:
    return far_rows(wide=True)


@dirty(
    ("address overflow", "far rows", "out", -32, (0, 0), 4),
    ("unwritten output", "", "out", 2**32 - 32, (2, 0), 4),
)
def rows_wrapped_to_32_bits() -> Report:
    return far_rows(wide=False)


@triton.jit
def hash_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    h = tl.load(x + o) * 1640531527 + 1566083941
    h = (h ^ (h >> 15)) * 2146121005
    tl.store(out + o, tl.load(x + (h & (N - 1))) + h)


@clean
def wrapped_hash() -> Report:
    x = torch.arange(8, dtype=torch.int32) * 77_777_777
    launch = lambda x, out: hash_kernel[(1,)](x, out, N=8)  # noqa: E731
    return memcheck(launch, x, torch.empty_like(x), access={"x": "r", "out": "w"})


@triton.jit
def there_and_back_kernel(x, out, most, N: tl.constexpr):
    o = tl.arange(0, N)
    there = o + most
    tl.store(out + o, tl.load(x + (there - most)))


@clean
def wrapped_there_and_back() -> Report:
    launch = lambda x, out: there_and_back_kernel[(1,)](x, out, 2**31 - 1, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(8), torch.empty(8), access={"x": "r", "out": "w"})


@triton.jit
def wrapped_mask_kernel(x, out, big, n, N: tl.constexpr):
    o = tl.arange(0, N)
    wraps = o * big
    tl.store(out + o, tl.load(x + wraps, o < 1, 0.0))
    narrow = (o + n).to(tl.int32)
    tl.store(out + o, tl.load(x + narrow, o < 1, 0.0))  # ! narrowed


@clean
def wrapped_lanes_masked_off() -> Report:
    launch = lambda x, out: wrapped_mask_kernel[(1,)](x, out, 2**30, 0, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(8), torch.empty(8), access={"x": "r", "out": "w"})


@dirty(("address overflow", "narrowed", "x", 3, (3,), 1))
def narrowed_to_a_legal_index() -> Report:
    launch = lambda x, out: wrapped_mask_kernel[(1,)](x, out, 2**30, 2**32 + 3, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(8), torch.empty(8), access={"x": "r", "out": "w"})


# --- undefined lanes, order -----------------------------------------------------------------------


@triton.jit
def other_kernel(x, out, n, SUM: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    v = tl.load(x + o, o < n)
    if SUM:
        tl.store(out + o, v + tl.sum(v), o < n)  # ! summed
    else:
        tl.store(out + o, v + 1, o < n)


def without_other(summed: bool) -> Report:
    launch = lambda x, out: other_kernel[(1,)](x, out, 5, SUM=summed, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(5), torch.empty(5), access={"x": "r", "out": "w"})


@clean
def undefined_lanes_stay_masked() -> Report:
    return without_other(summed=False)


@dirty(("undefined lane", "summed", "out", 0, (0,), 5))
def undefined_lanes_summed() -> Report:
    return without_other(summed=True)


@triton.jit
def maximum_kernel(x, out, n, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out, tl.max(tl.load(x + o, o < n)))  # ! maximum


@dirty(("undefined lane", "maximum", "out", 0, (0,), 1))
def undefined_lanes_in_a_maximum() -> Report:
    """Which ignores NaN, and zeros when there is a positive number."""
    launch = lambda x, out: maximum_kernel[(1,)](x, out, 5, N=8)  # noqa: E731
    return memcheck(launch, torch.rand(5), torch.empty(1), access={"x": "r", "out": "w"})


@triton.jit
def undefined_address_kernel(x, indices, out, n, N: tl.constexpr):
    o = tl.arange(0, N)
    i = tl.load(indices + o, o < n)
    tl.store(out + o, tl.load(x + i))  # ! undefined address


@dirty(
    ("undefined lane", "undefined address", "x", -1, (0,), 3),
    ("undefined lane", "undefined address", "out", 5, (5,), 3),
)
def undefined_lanes_as_addresses() -> Report:
    launch = lambda x, i, out: undefined_address_kernel[(1,)](x, i, out, 5, N=8)  # noqa: E731
    return memcheck(
        launch,
        torch.rand(3) + 1,
        torch.tensor([2, 1, 0, 2, 1]),
        torch.empty(8),
        access={"x": "r", "i": "r", "out": "w"},
    )


@triton.jit
def ticket_kernel(count, out):
    ticket = tl.atomic_add(count, 1)
    tl.store(out + ticket, tl.program_id(0))  # ! ticket


@dirty(("order-dependent", "ticket", "out", 0, (0,), 1))
def order_of_tickets() -> Report:
    count, out = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    report = memcheck(
        lambda count, out: ticket_kernel[(3,)](count, out),
        count,
        out,
        access={"count": "rw", "out": "w"},
    )
    assert (count.tolist(), out.tolist()) == ([3], [0, 1, 2])
    return Report(report.findings[:1])


@triton.jit
def sum_kernel(x, out):
    tl.atomic_add(out, tl.load(x + tl.program_id(0)))


@clean
def order_of_float_atomics() -> Report:
    return memcheck(
        lambda x, out: sum_kernel[(3,)](x, out),
        torch.tensor([1.0, 1e8, -1e8]),
        torch.zeros(1),
        access={"x": "r", "out": "rw"},
    )


@triton.jit
def wait_kernel(flags, sums, x):
    """Each program waits for the one before it."""
    i = tl.program_id(0)
    total = tl.load(x + i)
    if i > 0:
        while tl.atomic_add(flags + i - 1, 0) == 0:
            pass
        total += tl.load(sums + i - 1)
    tl.store(sums + i, total)
    tl.atomic_xchg(flags + i, 1)


@clean
def waiting_for_the_program_before() -> Report:
    report = memcheck(
        lambda flags, sums, x: wait_kernel[(4,)](flags, sums, x),
        torch.zeros(4, dtype=torch.int32),
        sums := torch.empty(4),
        torch.ones(4),
        access={"flags": "rw", "sums": "w", "x": "r"},
    )
    assert sums.tolist() == [1, 2, 3, 4]
    return report


@triton.jit
def undefined_loop_kernel(x, out, n, N: tl.constexpr):
    o = tl.arange(0, N)
    rounds = tl.max(tl.load(x + o, o < n))
    i = 0
    while i < rounds:
        tl.store(out, i)  # ! undefined loop
        i += 1


@dirty(("undefined lane", "undefined loop", "out", 0, (0,), 1))
def undefined_lanes_count_rounds() -> Report:
    launch = lambda x, out: undefined_loop_kernel[(1,)](x, out, 5, N=8)  # noqa: E731
    x, out = torch.ones(5, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    return memcheck(launch, x, out, access={"x": "r", "out": "w"})


# --- kernels of any kind --------------------------------------------------------------------------


@triton.jit
def helper(x, o, n):
    return read_from(x + o, o < n, 0.0)  # ! helper


@triton.autotune([triton.Config({"N": 8}), triton.Config({"N": 16})], key=["n"])
@triton.heuristics({"TWICE": lambda args: args["n"] > 4})
@triton.jit
def everything_kernel(
    x,
    out,
    n,
    N: tl.constexpr,
    TWICE: tl.constexpr,
):
    o = tl.arange(0, N)
    i = 0
    if n == 0:
        return
    v = helper(x, o, n)
    while i < 2:
        for _ in tl.static_range(2):
            v += helper(x, o, n) if TWICE else 0.0
        i += 1
    store_to(
        out + o,
        v,
        mask=o < n,
    )


def everything(length: int, n: int) -> Report:
    return memcheck(
        lambda x, out: everything_kernel[(1,)](x, out, n),
        torch.rand(length),
        torch.rand(8)[:n],
        access={"x": "r", "out": "w"},
    )


@clean
def tuned_helped_looped() -> Report:
    return everything(6, 6)


@clean
def early_return() -> Report:
    return everything(0, 0)


@dirty(("out-of-bounds read", "helper", "x", 5, (4,), 1))
def tuned_helped_looped_too_far() -> Report:
    report = everything(5, 6)
    assert [(f.kernel, f.times) for f in report.findings] == [("everything_kernel", 5)]
    return report


@triton.jit
def descriptor_kernel(x, out, rows, columns, STEP: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [4, 4])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [4, 4])
    target.store([STEP, 0], source.load([STEP, 0]))  # ! descriptor


def described(x: torch.Tensor, rows: int) -> Report:
    launch = lambda x, out: descriptor_kernel[(1,)](x, out, rows, 4, STEP=2)  # noqa: E731
    out = torch.rand(rows, 4)
    due = (torch.arange(rows) >= 2)[:, None].expand(rows, 4)
    return memcheck(launch, x, out, access={"x": "r", "out": "rw"}, touched={"out": due})


@clean
def tensor_descriptor() -> Report:
    return described(torch.rand(5, 4), 5)


@dirty(("out-of-bounds read", "descriptor", "x", 12, (2, 3), 8))
def tensor_descriptor_of_a_wrong_shape() -> Report:
    return described(torch.rand(3, 4), 5)


@clean
def tensors_of_its_own() -> Report:
    """Scratch that no caller sees, and a copy, may be used like any argument."""

    def launch(x, out):
        scratch = torch.empty(3, 9)[:, :4]
        rows_kernel[(3,)](x.contiguous(), scratch, 4, 9, N=4)
        rows_kernel[(3,)](scratch, out, 9, 4, N=4)

    x, out = torch.rand(4, 3).T, torch.rand(3, 4)
    report = memcheck(launch, x, out, access={"x": "r", "out": "w"})
    assert torch.equal(x, out)
    return report


@dirty(("out-of-bounds write", "rows", "a tensor of the function's own", 4, (0, 3), 4))
def out_of_bounds_of_its_own() -> Report:
    def launch(x):
        rows_kernel[(3,)](x, torch.empty(3, 9)[:, :4], 4, 4, N=4)

    return memcheck(launch, torch.rand(3, 4), access={"x": "r"})


@clean
def tensors_in_a_tuple() -> Report:
    def launch(pairs):
        for x, out in pairs:
            rows_kernel[(3,)](x, out, 4, 4, N=4)

    pairs = [tuple(torch.rand(2, 3, 4)) for _ in range(2)]
    access = {"pairs": "r", "pairs[0][1]": "w", "pairs[1][1]": "w"}
    return memcheck(launch, pairs, access=access)


@dirty(("out-of-bounds write", "atomics", "x", 4, (3,), 4))
def atomic_out_of_bounds() -> Report:
    x = torch.zeros(4, dtype=torch.int32)
    report = memcheck(lambda x: atomics_kernel[(1,)](x, N=8), x, access={"x": "rw"})
    assert x.tolist() == [1] * 4
    return report


@triton.jit
def atomics_kernel(x, N: tl.constexpr):
    tl.atomic_add(x + tl.arange(0, N), 1)  # ! atomics


if triton.__version__ < "3.9":

    @triton.jit
    def block_kernel(x, out, rows, CHECK: tl.constexpr):
        source = tl.make_block_ptr(x, (rows, 4), (4, 1), (0, 0), (4, 4), (1, 0))
        target = tl.make_block_ptr(out, (rows, 4), (4, 1), (0, 0), (4, 4), (1, 0))
        if CHECK:
            v = tl.load(source, boundary_check=(0,), padding_option="zero")
        else:
            v = tl.load(source)  # ! block
        tl.store(target, v, boundary_check=(0,))

    def blocks(check: bool) -> Report:
        launch = lambda x, out: block_kernel[(1,)](x, out, 3, CHECK=check)  # noqa: E731
        return memcheck(launch, *torch.rand(2, 3, 4), access={"x": "r", "out": "w"})

    @clean
    def block_pointer() -> Report:
        return blocks(check=True)

    @dirty(("out-of-bounds read", "block", "x", 12, (2, 3), 4))
    def block_pointer_without_check() -> Report:
        return blocks(check=False)


# --- for the comparison with brute force ----------------------------------------------------------


@triton.jit
def gather_scatter_kernel(x, out, sources, targets, N: tl.constexpr):
    """Element ``sources[p, i]`` of x to ``targets[p, i]`` of out; -99 is no element at all."""
    o = tl.program_id(0) * N + tl.arange(0, N)
    source, target = tl.load(sources + o), tl.load(targets + o)
    v = tl.load(x + source, source != -99, 0.0)
    tl.store(out + target, v, target != -99)


# --- packed decode under a kernel that takes the state for dense ----------------------------------


@triton.jit
def dense_state_kernel(state, out, slots, V, K: tl.constexpr, BLOCK_V: tl.constexpr):
    """out[n] = sum over K of state[slot], were the state dense."""
    n, v, k = tl.program_id(0), tl.arange(0, BLOCK_V), tl.arange(0, K)
    slot = tl.load(slots + n)
    tile = state + slot * V * K + v[:, None] * K + k[None, :]
    S = tl.load(tile, (v < V)[:, None], 0.0)  # ! dense state
    tl.store(out + n * V + v, tl.sum(S, 1), v < V)


@dirty(("out-of-bounds read", "dense state", "state", 4, (0, 0, 3), 8))
def state_sliced_by_two() -> Report:
    """Only every other row of V belongs to the view."""
    state = torch.rand(2, 8, 4)[:, ::2]
    return memcheck(
        lambda state, out, slots: dense_state_kernel[(2,)](state, out, slots, 4, K=4, BLOCK_V=4),
        state,
        torch.empty(2, 4),
        torch.tensor([0, 1]),
        access={"state": "r", "out": "w", "slots": "r"},
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(pickle.dumps({n: c().findings for n, c in CASES.items()}))
