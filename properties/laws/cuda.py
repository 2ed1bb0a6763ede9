"""What only a GPU shows: graphs, streams, syncs, compilations, devices and serving's sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from twinlaw.properties.arena import Arena
from twinlaw.properties.case import Case, TensorSpec, Values
from twinlaw.properties.laws.law import law
from twinlaw.properties.laws.requests import slots_arg
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.strategies.layouts import pick
from twinlaw.properties.strategies.values import draw_indices
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial


@st.composite
def _refills(draw: st.DrawFn, subject: Subject) -> tuple[Case, list[Case]]:
    """A call and three others of the same geometry with other contents: other slots, none live."""
    contract = subject.contract
    case = draw(legal_cases(contract, least=1))
    others = []
    for kind in ("live", "idle", "mixed"):
        other = case
        for arg in contract.args:
            spec = case.tensors[arg.name]
            if isinstance(spec, TensorSpec):
                values = replace(spec.values, seed=draw(st.integers(0, 999)))
                if arg.indexes:
                    n, size = spec.layout.shape[0], case.sizes[arg.indexes]
                    values = Values("indices", numbers=(-1,) * n)
                    if kind != "idle":
                        values = draw_indices(draw, n, size, False, unique=arg.unique)
                other = other.changed(**{arg.name: spec.filled(values)})
        others.append(other)
    return case, others


@law("graph-replay", _refills, device="cuda", effort=0.5)
def graph_replay(trial: Trial, example: tuple[Case, list[Case]]) -> None:
    """A captured call, replayed on new contents, gives the bits of an eager call on them."""
    case, others = example
    arena = trial.arena(case)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        trial.call(arena)  # whatever has to be compiled
        stream.synchronize()
        warm = arena.results()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            trial.call(arena)
    for name, held in arena.results().items():
        same_bits(name, held, warm[name])  # capture alone runs nothing
    for other in others:
        fresh = trial.arena(other)
        _refill(arena, fresh)
        graph.replay()
        torch.cuda.synchronize()
        for name, wanted in trial.call(fresh).results().items():
            same_bits(name, arena.result(name), wanted)


def _refill(arena: Arena, fresh: Arena) -> None:
    """Put the bytes of one call's buffers into those of another of the same geometry."""
    for mine, theirs in zip(arena.memory(), fresh.memory(), strict=True):
        mine.copy_(theirs)


@law("no-host-sync", lambda s: legal_cases(s.contract), device="cuda", effort=0.5)
def no_host_sync(trial: Trial, case: Case) -> None:
    """A warm call never waits for the device and allocates nothing on it."""
    trial.call(trial.arena(case))
    arena = trial.arena(case)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    try:
        with warnings.catch_warnings():  # that the mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        trial.call(arena)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert allocated == 0, f"the call made {allocated} allocations on the device"


@law("side-stream", lambda s: legal_cases(s.contract, least=1), device="cuda", effort=0.5)
def side_stream(trial: Trial, case: Case) -> None:
    """A call runs on the current stream: after what was queued there, and before what follows."""
    wanted = trial.results(case)
    arena, stale = trial.arena(case), trial.arena(case)
    for memory in stale.memory():
        memory.zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000)  # about a millisecond in which the inputs are still zero
        _refill(stale, arena)
        trial.call(stale)
        results = {name: stale.arguments[name].clone() for name in wanted}
    stream.synchronize()
    for name, result in results.items():
        same_bits(name, result.cpu(), wanted[name])


@law("second-device", lambda s: legal_cases(s.contract, least=1), device="cuda", effort=0.5, gpus=2)
def second_device(trial: Trial, case: Case) -> None:
    """Tensors on another device than the current one give the same bits, there."""
    wanted = trial.results(case)
    elsewhere = Trial(trial.subject, "cuda:1")
    with torch.cuda.device(0):
        for name, result in elsewhere.results(case).items():
            same_bits(name, result, wanted[name])


MOST_COMPILATIONS = 8
"""Variants that a serving-like sweep may compile beyond the first, such as 64-bit strides."""


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """The names of the kernels that are compiled meanwhile."""
    from triton import knobs

    compiled: list[str] = []

    def hook(*args: Any, **kwargs: Any) -> None:
        compiled.append(str(kwargs.get("repr", "")))

    with knobs.runtime.scope():
        knobs.runtime.jit_post_compile_hook = hook
        yield compiled


@st.composite
def _sweep(draw: st.DrawFn, subject: Subject) -> list[Case]:
    """One model's calls in serving: many batch sizes, pools and strides; dtypes and dims stay."""
    contract = subject.contract
    base = draw(legal_cases(contract, least=2))
    fixed = dict(base.scalars)
    for name, spec in base.tensors.items():
        fixed |= {name: spec.dtype} if isinstance(spec, TensorSpec) else {}
    varying = {slots_arg(contract).dim_names[0], slots_arg(contract).indexes}
    model = {d.name: base.sizes[d.name] for d in contract.dims if d.name not in varying}
    sweep = [base]
    for _ in range(20):
        sizes = model | {str(name): draw(st.integers(1, 40)) for name in varying}
        sweep.append(draw(legal_cases(contract, fixed=fixed, sizes=sizes)))
    return sweep


@law("bounded-recompilation", _sweep, device="cuda", effort=0.2)
def bounded_recompilation(trial: Trial, sweep: list[Case]) -> None:
    """Batch sizes, slot counts and strides of a serving run compile a handful of variants."""
    trial.call(trial.arena(sweep[0]))
    with _compilations() as compiled:
        for case in sweep:
            trial.call(trial.arena(case))
    assert len(compiled) <= MOST_COMPILATIONS, (
        f"{len(sweep)} calls of one model compiled {len(compiled)} variants: {compiled}"
    )


@st.composite
def _serving(draw: st.DrawFn, subject: Subject) -> Case:
    """A call at the sizes of a real model, every tensor in a legal layout of its own."""
    contract = subject.contract
    return draw(legal_cases(contract, sizes=pick(draw, contract.serving)))


@law("serving-sizes", _serving, device="cuda", effort=0.12)
def serving_sizes(trial: Trial, case: Case) -> None:
    """At the sizes of real models the op agrees with its oracle and stays within its elements."""
    arena = trial.arena(case)
    before = trial.logical(arena)
    trial.judge(before, trial.call(arena).results())
    arena.assert_contained()
