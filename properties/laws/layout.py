"""Layouts carry no meaning: the same logical values give the same bits, wherever they lie."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from twinlaw.properties.case import Case, Layout, TensorSpec, dense
from twinlaw.properties.laws.law import law
from twinlaw.properties.strategies.cases import legal_cases
from twinlaw.properties.subjects import Subject
from twinlaw.properties.tolerance import same_bits
from twinlaw.properties.trial import Trial


@law("layout-invariance", lambda s: legal_cases(s.contract, least=1))
def layout_invariance(trial: Trial, case: Case) -> None:
    """Every argument in a legal layout of its own gives the bits that dense ones give."""
    _assert_as_dense(trial, case)


@st.composite
def _misaligned(draw: st.DrawFn, subject: Subject) -> Case:
    """Dense tensors moved by a few elements, and free strides made odd: nothing divides by 16."""
    case = draw(legal_cases(subject.contract, least=1, layouts=False))
    for arg in subject.contract.args:
        spec = case.tensors[arg.name]
        if isinstance(spec, TensorSpec):
            layout = spec.layout
            offset, gap = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            free = (
                arg.dense_from if arg.dense_from is not None else len(layout.shape) - arg.unit_last
            )
            strides = tuple(s + gap if d < free else s for d, s in enumerate(layout.strides))
            if gap and free > 1 and arg.written:  # each free dim must step over the inner ones
                strides = _nested(layout.shape, free, gap)
            words = (f"storage offset {offset}, {gap} more elements to each free stride",)
            case = case.changed(
                **{arg.name: spec.laid_out(Layout(layout.shape, strides, offset, words))}
            )
    return case


def _nested(shape: tuple[int, ...], free: int, gap: int) -> tuple[int, ...]:
    strides, pitch = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d] = pitch + (gap if d < free else 0)
        pitch = strides[d] * shape[d]
    return tuple(strides)


@law("alignment", _misaligned)
def alignment(trial: Trial, case: Case) -> None:
    """Offsets and strides that break 16-byte divisibility, or equal 1, change no bit."""
    _assert_as_dense(trial, case)


def _assert_as_dense(trial: Trial, case: Case) -> None:
    arena = trial.arena(case)
    before = trial.logical(arena)
    results = trial.call(arena).results()
    for name, wanted in trial.called(before).items():
        same_bits(name, results[name], wanted)


@st.composite
def _degenerate(draw: st.DrawFn, subject: Subject) -> Case:
    """Small calls in which most sizes are 0 or 1, with odd strides where they mean nothing."""
    case = draw(legal_cases(subject.contract))
    odd = st.sampled_from((0, 1, 2, 7, 10**6))
    tensors = dict(case.tensors)
    for name, spec in case.tensors.items():
        if isinstance(spec, TensorSpec):
            layout = dense(spec.layout.shape)
            empty = 0 in layout.shape
            strides = tuple(
                draw(odd) if n == 1 or empty else s
                for n, s in zip(layout.shape, layout.strides, strict=True)
            )
            words = ("strides of dims that have no layout are odd",)
            tensors[name] = spec.laid_out(Layout(layout.shape, strides, 0, words))
    return replace(case, tensors=tensors)


@law("size-0-and-1", _degenerate)
def size_0_and_1(trial: Trial, case: Case) -> None:
    """Dims of size 0 and 1 have no layout: any stride is accepted and none changes a bit."""
    trial.assert_right(case)
