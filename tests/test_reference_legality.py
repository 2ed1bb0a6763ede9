"""The layout facts of the reference, against what torch itself does with the memory."""

import itertools
import math
import mmap
import random
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from twinlaw.reference.legality import (
    LONGEST_LIST,
    element_offsets,
    element_offsets_tensor,
    is_dense,
    is_null_slot,
    is_plain_tensor,
    is_real_number,
    overlaps_itself,
    share_memory,
    unit_last_stride,
    writes_are_exclusive,
)

LAYOUTS = [
    (sizes, strides)
    for rank in (0, 1, 2, 3)
    for sizes in itertools.product((0, 1, 2, 3), repeat=rank)
    for strides in itertools.product((0, 1, 2, 3, 6), repeat=rank)
]


def places(t: torch.Tensor) -> list[int]:
    """The elements of a view of `torch.arange(...)`: where torch finds each of them."""
    return list(t.flatten().tolist())


def random_view(rng: random.Random, buffer: torch.Tensor) -> torch.Tensor:
    """A view of a few elements of a byte buffer, in some integer dtype."""
    typed = buffer.view(rng.choice([torch.uint8, torch.int16, torch.int32, torch.int64]))
    rank = rng.randrange(4)
    sizes = [rng.choice([0, 1, 2, 2, 3]) for _ in range(rank)]
    strides = [rng.choice([0, 1, 1, 2, 3, 5]) for _ in range(rank)]
    return typed.as_strided(sizes, strides, rng.randrange(32) // typed.element_size())


def writing_is_seen(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether `b` changes when every element of `a` is written, one at a time."""
    assert not b.any()
    for index in itertools.product(*map(range, a.shape)):
        a[index] = torch.iinfo(a.dtype).max - 2  # no zero byte
    seen = bool(b.any())
    for index in itertools.product(*map(range, a.shape)):
        a[index] = 0
    return seen


def test_offsets_are_where_torch_finds_the_elements() -> None:
    buffer = torch.arange(64)
    for sizes, strides in LAYOUTS:
        found = places(buffer.as_strided(sizes, strides))
        assert element_offsets(sizes, strides) == found
        assert element_offsets_tensor(sizes, strides).tolist() == found


def test_offsets_beyond_32_bits() -> None:
    expected = [0, 1, 2**31, 2**31 + 1, 2**32, 2**32 + 1]
    assert element_offsets((3, 2), (2**31, 1)) == expected
    assert element_offsets_tensor((3, 2), (2**31, 1)).tolist() == expected


def test_self_overlap_is_an_element_found_twice() -> None:
    buffer = torch.arange(64)
    for sizes, strides in LAYOUTS:
        view = buffer.as_strided(sizes, strides)
        found = places(view)
        assert overlaps_itself(view) == (len(found) != len(set(found)))


@pytest.mark.parametrize(
    ("sizes", "strides", "overlaps"),
    [
        pytest.param((3,), (0,), True, id="expanded"),
        pytest.param((1, 4), (0, 1), False, id="expanded, size 1"),
        pytest.param((0, 3), (1, 0), False, id="expanded, empty"),
        pytest.param((3, 4), (1, 1), True, id="sliding windows"),
        pytest.param((3, 2), (2, 3), False, id="interleaved without collision"),
        pytest.param((4, 3), (2, 3), True, id="interleaved with collision"),
        pytest.param((2, 1, 3), (3, 10**6, 1), False, id="size 1, any stride"),
        pytest.param((40, 60), (1, 40), False, id="long, transposed"),
        pytest.param((60, 50), (49, 1), True, id="long, rows meet"),
        pytest.param((60, 50), (51, 1), False, id="long, padded rows"),
    ],
)
def test_self_overlap(sizes: tuple[int, ...], strides: tuple[int, ...], overlaps: bool) -> None:
    view = torch.empty(2_000_000, dtype=torch.uint8).as_strided(sizes, strides)
    assert overlaps_itself(view) == overlaps


def test_dense_is_the_layout_of_a_fresh_tensor() -> None:
    buffer = torch.arange(64)
    for sizes, strides in LAYOUTS:
        view = buffer.as_strided(sizes, strides)
        for first in range(len(sizes) + 1):
            by_definition = 0 in sizes or all(
                strides[dim] == math.prod(sizes[dim + 1 :])
                for dim in range(first, len(sizes))
                if sizes[dim] > 1
            )
            assert is_dense(view, first) == by_definition
        assert is_dense(view) == view.is_contiguous()


def test_dense_beyond_the_listed_length() -> None:
    pool = torch.empty(4, 50, 60)
    assert pool[0].numel() > LONGEST_LIST
    assert is_dense(pool)
    assert is_dense(pool[:, :25].unsqueeze(1), 2)
    assert not is_dense(pool[:, :, :59], 1)
    assert not is_dense(pool.transpose(1, 2), 1)


@pytest.mark.parametrize(
    ("sizes", "strides", "unit"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (0, 1), True),
        ((2, 3), (6, 2), False),
        ((2, 3), (1, 0), False),
        ((2, 1), (1, 7), True),
        ((0, 3), (6, 2), True),
    ],
)
def test_unit_last_stride(sizes: tuple[int, ...], strides: tuple[int, ...], unit: bool) -> None:
    assert unit_last_stride(torch.empty(64).as_strided(sizes, strides)) == unit


def test_sharing_is_a_write_that_is_seen() -> None:
    rng = random.Random(20)
    buffer = torch.zeros(512, dtype=torch.uint8)
    outcomes = {True: 0, False: 0}
    for _ in range(1500):
        a, b = random_view(rng, buffer), random_view(rng, buffer)
        seen = writing_is_seen(a, b)
        assert share_memory(a, b) == share_memory(b, a) == seen
        outcomes[seen] += 1
    assert min(outcomes.values()) > 100


def test_views_that_interleave_share_nothing() -> None:
    page = torch.zeros(8, 10)
    assert not share_memory(page[:, :6], page[:, 6:])
    assert share_memory(page[:, :6], page[:, 5:])
    flat = torch.zeros(3000)
    assert not share_memory(flat[::2], flat[1::2])
    assert share_memory(flat[::2], flat[1::3])
    assert not share_memory(page, page.clone())


def test_sharing_is_decided_on_bytes() -> None:
    storage = torch.zeros(64, dtype=torch.uint8)
    words, halves = storage.view(torch.float32), storage.view(torch.float16)
    assert share_memory(words[1:2], halves[3:4])
    assert not share_memory(words[1:2], halves[4:5])
    assert share_memory(words[::2], halves[1::4])
    assert not share_memory(words[::2], halves[2::4])
    memory = bytearray(16)
    single = torch.frombuffer(memory, dtype=torch.uint8)
    aligned = torch.frombuffer(memory, dtype=torch.float32)
    unaligned = torch.frombuffer(memory, dtype=torch.float32, offset=2, count=3)
    assert share_memory(unaligned[:1], single[5:6])
    assert not share_memory(unaligned[:1], single[6:7])
    assert share_memory(unaligned[:1], aligned[0])
    assert share_memory(unaligned[:1], aligned[1])
    assert not share_memory(unaligned[:1], aligned[2])


def test_empty_tensors_share_nothing() -> None:
    row = torch.zeros(8)
    assert not share_memory(row, row[4:4])
    assert not share_memory(row[4:4], row[4:4])


def test_what_is_written_is_owned_alone() -> None:
    page = torch.zeros(4, 6)
    left, right = page[:, :3], page[:, 3:]
    windows = page[0].unfold(0, 3, 1)
    assert writes_are_exclusive([left, right], [])
    assert writes_are_exclusive([left], [right, right.expand(2, 4, 3)])
    assert writes_are_exclusive([], [windows, page, page])
    assert writes_are_exclusive([page[1]], [windows])
    assert not writes_are_exclusive([windows], [])
    assert not writes_are_exclusive([page], [right])
    assert not writes_are_exclusive([left, page], [])
    assert not writes_are_exclusive([left, left], [])


@pytest.mark.skipif(sys.platform != "linux", reason="reserves memory the way Linux does")
def test_views_that_span_more_than_32_bits() -> None:
    reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE: nothing is touched
    storage = torch.frombuffer(mmap.mmap(-1, 2**33 + 4096, flags=reserve), dtype=torch.uint8)
    far = storage.as_strided((3, 4), (2**32, 1))
    assert not overlaps_itself(far)
    assert share_memory(far, storage[2**33 + 3 :][:1])
    assert not share_memory(far, storage[2**33 + 4 :][:1])
    assert not share_memory(far, storage.as_strided((2, 4), (2**32, 1), 4))


def test_plain_tensors() -> None:
    real = torch.ones(2, 3)
    assert is_plain_tensor(real)
    assert is_plain_tensor(torch.nn.Parameter(real))
    assert is_plain_tensor(real.as_strided((2, 2), (0, 1)))
    assert is_plain_tensor(real[:0])
    assert is_plain_tensor(real.to(torch.complex64))


def test_tensors_that_are_not_plain() -> None:
    real = torch.ones(2, 3)
    pair = real.to(torch.complex64)
    freed = real.clone()
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake, empty_fake = torch.ones(2, 3), torch.ones(0, 3)
    with warnings.catch_warnings():  # of what torch means to change or remove
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        quantized = torch.quantize_per_tensor(real, 0.1, 0, torch.quint8)
    others: list[object] = [
        None,
        1.0,
        [1.0, 2.0],
        real.numpy(),
        real.to("meta"),
        real.to_sparse(),
        nested,
        quantized,
        pair.conj(),
        pair.conj().imag,
        freed,
        fake,
        empty_fake,
    ]
    mistaken = [type(x) for x in others if is_plain_tensor(x)]  # some cannot even be printed
    assert not mistaken


@pytest.mark.parametrize("x", [0, -3, 0.5, math.nan, math.inf, Fraction(1, 3), np.float32(2)])
def test_real_numbers(x: object) -> None:
    assert is_real_number(x)


@pytest.mark.parametrize("x", [True, np.True_, None, "1", 1j, torch.tensor(1.0)])
def test_what_is_no_real_number(x: object) -> None:
    assert not is_real_number(x)


@pytest.mark.parametrize("x", [None, 0, -1, 2**70])
def test_null_slots(x: object) -> None:
    assert is_null_slot(x)


@pytest.mark.parametrize("x", [True, 0.0, "0", torch.tensor(0)])
def test_what_is_no_null_slot(x: object) -> None:
    assert not is_null_slot(x)
