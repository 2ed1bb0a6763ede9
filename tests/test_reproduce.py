"""Scripts of counterexamples: they run alone and make the arena's arguments bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

import twinlaw
from twinlaw.properties.arena import Arena
from twinlaw.properties.case import Case, Layout, StandIn, TensorSpec, Values, dense
from twinlaw.properties.reproduce import arguments_script, script
from twinlaw.properties.strategies.cases import dense_case, legal_cases, small_sizes
from twinlaw.properties.strategies.illegal import near_misses
from twinlaw.properties.subjects import OPS, Subject
from twinlaw.properties.tolerance import as_bits

SUBJECTS = {name: op.subject() for name, op in OPS.items()}
SCATTER = SUBJECTS["fused_mamba_state_scatter_with_mask"]

once = settings(
    max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def rebuilt(case: Case, subject: Subject) -> dict[str, Any]:
    space: dict[str, Any] = {"torch": torch}
    exec(arguments_script(case, subject, "cpu"), space)
    arguments: dict[str, Any] = space["arguments"]
    return arguments


def assert_rebuilt(case: Case, subject: Subject) -> None:
    """Each argument of the script is the arena's: bits, shape, strides, dtype and place."""
    wanted, got = Arena(case, subject.contract, "cpu").arguments, rebuilt(case, subject)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        if not isinstance(case.tensors.get(name), TensorSpec):
            continue
        assert got[name].dtype == value.dtype
        assert got[name].shape == value.shape
        assert got[name].stride() == value.stride()
        assert got[name].storage_offset() == value.storage_offset()
        assert got[name].untyped_storage().nbytes() == value.untyped_storage().nbytes()
        assert torch.equal(as_bits(got[name]), as_bits(value)), name


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
def test_legal_arguments_are_the_arenas(subject: Subject) -> None:
    @seed(0)
    @once
    @given(legal_cases(subject.contract))
    def check(case: Case) -> None:
        assert_rebuilt(case, subject)

    check()


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
def test_illegal_arguments_are_the_arenas(subject: Subject) -> None:
    """Shared buffers and overlapping layouts included; every script can be run."""

    @seed(0)
    @once
    @given(near_misses(subject.contract))
    def check(case: Case) -> None:
        assert_rebuilt(case, subject)

    check()


def scattered(dtype: str, layout: Layout, values: Values) -> Case:
    """A commit of one request in which ``src`` is as given."""
    case = dense_case(SCATTER.contract, {"L": 2, "S": 2, "R": 1, "D": 3, "n": 1, "E": (4,)})
    dst = TensorSpec(dtype, dense((2, 2, 4)))
    return case.changed(dst=dst, src=TensorSpec(dtype, layout, values))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int64", "float8_e4m3fn", "bfloat16", "float16", "float64", "complex64"],
)
@pytest.mark.parametrize("kind", ["normal", "small integers", "iota", "ones", "zeros", "edges"])
def test_values_are_the_arenas(dtype: str, kind: str) -> None:
    values = Values(kind, seed=3, scale=1e-4 if kind == "normal" else 1.0)
    assert_rebuilt(scattered(dtype, dense((2, 1, 3, 4)), values), SCATTER)


@pytest.mark.parametrize("strides", [(12, 12, 0, 1), (1, 1, 1, 1), (0, 0, 4, 1)])
def test_overlapping_arguments_are_the_arenas(strides: tuple[int, ...]) -> None:
    assert_rebuilt(scattered("float32", Layout((2, 1, 3, 4), strides, 3), Values()), SCATTER)


def test_what_stands_in_for_a_tensor_is_built() -> None:
    case = scattered("float32", dense((2, 1, 3, 4)), Values())
    kinds = {"None", "a list", "a number", "a numpy array", "a meta tensor", "a sparse tensor"}
    for kind in kinds | {"a lazily negated view", "a nested tensor"}:
        stand_in = StandIn(kind, case.tensor("src"))
        got, wanted = rebuilt(case.changed(src=stand_in), SCATTER)["src"], stand_in.make("cpu")
        assert type(got) is type(wanted), kind
        if isinstance(wanted, torch.Tensor):
            facts = ("is_sparse", "is_nested", "is_meta", "dtype")
            assert [getattr(got, f) for f in facts] == [getattr(wanted, f) for f in facts], kind
            assert got.is_neg() == wanted.is_neg()


def run(source: str) -> str:
    """What a script prints in a process of its own."""
    environment = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    } | {"PYTHONPATH": str(Path(twinlaw.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())
def test_script_runs_alone(subject: Subject) -> None:
    sizes = next(small_sizes(subject.contract, subject.contract.args[0], (2,)))
    source = script(dense_case(subject.contract, sizes), subject, "agreement", "cpu")
    assert len(source.splitlines()) < 60
    told = run(source).splitlines()
    assert told[0] == "legal, says the reference: True"
    assert [line.partition(":")[0] for line in told[1:]] == [
        a.name for a in subject.contract.args if a.written
    ]


def test_script_shows_the_difference() -> None:
    case = scattered("float32", dense((2, 1, 3, 4)), Values())
    source = script(case, SCATTER.having(function=lambda **_: None), "agreement", "cpu")
    assert "fused = ...  # put here what was judged: <function" in source
    start = source.index("fused = ...")
    source = source[:start] + "fused = dict" + source[source.index("\n", start) :]
    assert "dst: different bytes 32" in run(source)


def test_script_of_an_illegal_call_shows_the_refusal() -> None:
    case = scattered("float32", dense((2, 1, 3, 4)), Values())
    case = case.changed("src: dtype", src=TensorSpec("float64", dense((2, 1, 3, 4))))
    source = script(case, SCATTER, "rejects-near-misses", "cpu")
    assert "# Must raise: the call breaks src: dtype." in source
    with pytest.raises(AssertionError, match="ContractValueError"):
        run(source)
