"""The memory checker finds exactly what is wrong: in a zoo of kernels, and against brute force.

It needs an interpreting process. Where this one compiles for a GPU, one test runs the others in
a process of their own.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from operator import mul
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from twinlaw.properties import interpreter
from twinlaw.properties.case import Case
from twinlaw.properties.memcheck import (
    KINDS,
    MemcheckError,
    Report,
    memcheck,
    self_test,
)
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.subjects import OPS
from twinlaw.properties.trial import Trial

ZOO = Path(__file__).with_name("memcheck_zoo.py")


def load_zoo() -> Any:
    spec = importlib.util.spec_from_file_location("memcheck_zoo", ZOO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


zoo = load_zoo()
interprets = pytest.mark.skipif(
    not interpreter.is_interpreting(), reason="test_in_a_process_of_its_own runs it"
)


@pytest.mark.skipif(interpreter.is_interpreting(), reason="this process interprets")
def test_in_a_process_of_its_own() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for name in [n for n in environment if n.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-q", "--twin-device", "cpu", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# --- the zoo --------------------------------------------------------------------------------------


@interprets
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr:UserWarning")
@pytest.mark.parametrize("name", zoo.CASES)
def test_zoo(name: str) -> None:
    """Exactly what is wrong is found: kind, line, argument, offset, nearest index, lanes."""
    findings = zoo.CASES[name]().findings
    expected = {(kind, zoo.line_of(mark), *rest) for kind, mark, *rest in zoo.EXPECTED[name]}
    assert {zoo.told(f) for f in findings} == expected
    assert len(findings) == len(expected)
    assert {f.file for f in findings if f.line} <= {str(ZOO)}


def test_zoo_has_every_kind_and_as_many_look_alikes() -> None:
    kinds = {kind for expected in zoo.EXPECTED.values() for kind, *_ in expected}
    assert kinds == set(KINDS)
    assert sum(not expected for expected in zoo.EXPECTED.values()) >= len(KINDS)


# --- brute force ----------------------------------------------------------------------------------

LANES = 4
OFF = -99
Summary = set[tuple[Any, ...]]
Indices = list[list[int]]


@dataclasses.dataclass
class Scene:
    """Two views of one storage, and what each lane of each program reads and writes in them."""

    shapes: list[tuple[int, ...]]
    strides: list[tuple[int, ...]]
    starts: list[int]
    access: list[str]
    sources: Indices
    targets: Indices

    def elements(self, view: int) -> list[int]:
        """The place of every element in the storage, in index order."""
        indices = itertools.product(*map(range, self.shapes[view]))
        return [self.starts[view] + sum(map(mul, i, self.strides[view])) for i in indices]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    shapes, strides = [], []
    for _ in range(2):
        rank = draw(st.integers(0, 2))
        shapes.append(tuple(draw(st.integers(0, 3)) for _ in range(rank)))
        strides.append(tuple(draw(st.integers(0, 4)) for _ in range(rank)))
    starts = [draw(st.integers(0, 8)) for _ in range(2)]
    access = [draw(st.sampled_from(("r", "w", "rw"))) for _ in range(2)]
    programs = draw(st.integers(1, 3))
    lane = st.one_of(st.integers(-2, 10), st.just(OFF))
    block = st.lists(
        st.lists(lane, min_size=LANES, max_size=LANES), min_size=programs, max_size=programs
    )
    return Scene(shapes, strides, starts, access, draw(block), draw(block))


def brute_force(scene: Scene, storage: list[float]) -> Summary:
    """(kind, argument, first program, its first lanes, how many, first offset, times); runs it."""
    names = ("x", "out")
    elements = [set(scene.elements(view)) for view in range(2)]
    readers: dict[int, set[int]] = {}
    writers: dict[int, set[int]] = {}
    found: dict[tuple[str, str], list[tuple[int, list[tuple[int, int]]]]] = {}

    def note(kind: str, view: int, program: int, lanes: list[tuple[int, int]]) -> None:
        if lanes:
            found.setdefault((kind, names[view]), []).append((program, lanes))

    for p, (sources, targets) in enumerate(zip(scene.sources, scene.targets, strict=True)):
        values = [0.0] * LANES
        on = [(lane, i) for lane, i in enumerate(sources) if i != OFF]
        outside, unknown, raced = [], [], []
        for lane, i in on:
            place = scene.starts[0] + i
            if place not in elements[0]:
                outside.append((lane, i))
                continue
            values[lane] = storage[place]
            owners = [view for view in range(2) if place in elements[view]]
            if all(scene.access[view] == "w" for view in owners) and place not in writers:
                unknown.append((lane, i))
            if writers.get(place, set()) - {p}:
                raced.append((lane, i))
        for _, i in on:
            if scene.starts[0] + i in elements[0]:  # what is out of bounds is not done
                readers.setdefault(scene.starts[0] + i, set()).add(p)
        note("out-of-bounds read", 0, p, outside)
        note("uninitialised read", 0, p, unknown)
        note("read-write race", 0, p, raced)

        on = [(lane, i) for lane, i in enumerate(targets) if i != OFF]
        outside = [(lane, i) for lane, i in on if scene.starts[1] + i not in elements[1]]
        inside = [pair for pair in on if pair not in outside]
        note("out-of-bounds write", 1, p, outside)
        if scene.access[1] == "r":
            note("write to read-only", 1, p, inside)
            continue
        places = {lane: scene.starts[1] + i for lane, i in inside}
        if scene.access[0] == "r":
            shift = scene.starts[1] - scene.starts[0]
            hit = [(lane, i + shift) for lane, i in inside if places[lane] in elements[0]]
            note("write to read-only", 0, p, hit)
        twice = [pair for pair in inside if writers.get(places[pair[0]], set()) - {p}]
        raced = [
            pair
            for pair in inside
            if readers.get(places[pair[0]], set()) - {p} and pair not in twice
        ]
        note("write-write race", 1, p, twice)
        note("read-write race", 1, p, raced)
        for lane, _ in inside:
            storage[places[lane]] = values[lane]
        for lane, _ in inside:
            writers.setdefault(places[lane], set()).add(p)

    summary: Summary = {
        (kind, name, at[0][0], tuple(lane for lane, _ in at[0][1]), at[0][1][0][1], len(at))
        for (kind, name), at in found.items()
    }
    for view in range(2):
        missing = [i for i, place in enumerate(scene.elements(view)) if place not in writers]
        if scene.access[view] == "w" and missing:
            offset = scene.elements(view)[missing[0]] - scene.starts[view]
            summary.add(("unwritten output", names[view], None, tuple(missing[:8]), offset, 1))
    return summary


@interprets
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenes())
def test_against_brute_force(scene: Scene) -> None:
    storage = torch.arange(64.0)
    x, out = map(storage.as_strided, scene.shapes, scene.strides, scene.starts)
    views = {(t.data_ptr(), t.shape, t.stride()) for t in (x, out)}
    assume(len(views) == 2)  # nothing tells one view from its double
    sources, targets = torch.tensor(scene.sources), torch.tensor(scene.targets)
    expected_storage = storage.tolist()
    expected = brute_force(scene, expected_storage)

    def launch(x: torch.Tensor, out: torch.Tensor) -> None:
        grid = (len(sources),)
        zoo.gather_scatter_kernel[grid](x, out, sources, targets, N=LANES)

    access = dict(zip(("x", "out"), scene.access, strict=True))
    report = memcheck(launch, x, out, access=access, witnesses=False)
    found = {
        (f.kind, f.argument, f.program[0] if f.line else None, f.first_lanes, f.offset, f.times)
        for f in report.findings
    }
    assert found == expected
    assert storage.tolist() == expected_storage
    assert all(f.program != f.other_program for f in report.findings)


# --- the ops --------------------------------------------------------------------------------------


@interprets
@pytest.mark.parametrize("name", OPS)
def test_ops_run_clean(name: str) -> None:
    subject = OPS[name].subject()
    trial = Trial(subject, "cpu")

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(legal_cases(subject.contract))
    def runs_clean(case: Case) -> None:
        arena = trial.arena(case)
        wanted = trial.results(case)
        report = memcheck(
            subject.function,
            **arena.arguments,
            access=subject.contract,
            touched=trial.touched(arena),
        )
        report.raise_if_dirty()
        arena.assert_contained()
        for argument, result in arena.results().items():
            assert same_memory(result, wanted[argument])

    runs_clean()


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))


# --- the function ---------------------------------------------------------------------------------


def rows(x: torch.Tensor, out: torch.Tensor) -> str:
    zoo.rows_kernel[(len(x),)](x, out, 4, 4, N=4)
    return "done"


def dirty_report() -> Report:
    access = {"x": "r", "out": "w"}
    return memcheck(rows, torch.rand(3, 9)[:, :4], torch.empty(3, 4), access=access)


@interprets
def test_report_says_what_happened_where() -> None:
    report = dirty_report()
    line = zoo.line_of("rows")
    with pytest.raises(MemcheckError) as error:
        report.raise_if_dirty()
    assert not report.clean
    assert str(error.value) == (
        f"{ZOO}:{line}: out-of-bounds read by `rows_kernel`, program (1, 0, 0): reads what is no "
        "element of the tensor that the pointer was made from: `x` at offset 4, nearest element "
        "(0, 3) of shape (3, 4), strides (9, 1); 4 lanes, first [0, 1, 2, 3]; 2 such accesses in "
        "all"
    )


@interprets
def test_clean_report_returns_what_the_function_returned() -> None:
    x, out = torch.rand(2, 3, 4)
    report = memcheck(rows, x, out=out, access={"x": "r", "out": "w"})
    report.raise_if_dirty()
    assert report.clean
    assert report.returned == "done"
    assert torch.equal(x, out)


@interprets
@pytest.mark.parametrize(
    ("access", "x", "message"),
    [
        ({"x": "r"}, torch.ones(3, 4), '"rw" for every tensor: got None for `out`'),
        ({"x": "x", "out": "w"}, torch.ones(3, 4), "for every tensor: got 'x' for `x`"),
        ({"x": "r", "out": "w"}, torch.ones(3, 4, device="meta"), "`x` must be a strided tensor"),
        ({"x": "r", "out": "w"}, torch.ones(3, 4).to_sparse(), "`x` must be a strided tensor"),
    ],
)
def test_what_it_cannot_watch_is_refused(
    access: dict[str, str], x: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        memcheck(rows, x, torch.ones(3, 4), access=access)


@interprets
def test_touched_must_fit() -> None:
    x, out = torch.rand(2, 3, 4)
    for touched in ({"other": out.bool()}, {"out": torch.ones(2, dtype=torch.bool)}):
        with pytest.raises(ValueError, match="`touched` must give bool masks"):
            memcheck(rows, x, out, access={"x": "r", "out": "w"}, touched=touched)


@interprets
def test_a_function_that_raises_after_a_finding_raises_the_finding() -> None:
    def launch(x: torch.Tensor, out: torch.Tensor, fail: bool) -> None:
        rows(x, out)
        raise KeyError("later")

    with pytest.raises(MemcheckError, match="out-of-bounds read") as error:
        memcheck(
            launch,
            torch.rand(3, 9)[:, :4],
            torch.rand(3, 4),
            True,
            access={"x": "r", "out": "w"},
        )
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(KeyError, match="later"):
        memcheck(launch, *torch.rand(2, 3, 4), True, access={"x": "r", "out": "w"})


@interprets
def test_nothing_of_it_stays_in_the_interpreter() -> None:
    from triton.runtime import interpreter as stock

    places = [
        *((stock.InterpreterBuilder, n) for n in ("binary_op", "create_masked_load", "cast_impl")),
        *((stock.GridExecutor, "__call__"), (stock, "_implicit_cvt"), (stock, "_patch_lang")),
    ]
    dirty_report()
    before = [getattr(owner, name) for owner, name in places]
    dirty_report()
    assert [getattr(owner, name) for owner, name in places] == before
    assert zoo.read_from is not zoo.tl.store
    assert "options" not in vars(stock.interpreter_builder) or (
        stock.interpreter_builder.options.sanitize_overflow
    )


@interprets
@pytest.mark.parametrize(
    "hook",
    [
        "create_masked_load",
        "create_masked_store",
        "create_atomic_rmw",
        "create_atomic_cas",
        "binary_op",
    ],
)
def test_self_test_notices_a_hook_that_does_not_fire(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twinlaw.properties import watch

    def lose(make: Callable[..., None]) -> Callable[..., None]:
        def install(*args: Any) -> None:
            hooks = [a for a in args if getattr(a, "__name__", "") == "hook"]

            def keep(owner: Any, name: str, new: Any) -> None:
                if name != hook:
                    hooks[0](owner, name, new)

            make(*(keep if a is hooks[0] else a for a in args))

        return install

    self_test()
    for part in ("_hook_memory", "_hook_integers"):
        monkeypatch.setattr(watch, part, lose(getattr(watch, part)))
    with pytest.raises(RuntimeError, match=r"Triton 3\.\S+ is not supported by the memory checker"):
        self_test()


@interprets
def test_large_sparse_views_cost_what_they_hold() -> None:
    """A pool whose slots lie 2**33 bytes apart, whose elements are fewer than a thousand."""
    far = 2**31
    pool = zoo.reserved(4 * far).as_strided((3, 4), (far, 1), 5)
    report = memcheck(
        lambda x, out: zoo.far_rows_kernel[(3,)](x, out, far, WIDE=True, N=4),
        torch.rand(3, 4),
        pool,
        access={"x": "r", "out": "w"},
    )
    assert report.clean
