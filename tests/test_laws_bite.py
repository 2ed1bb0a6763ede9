"""Each law can fail: deliberately broken kernels, wrappers and contracts that it catches."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from twinlaw.contract import Clause
from twinlaw.plugin import Twin as Options
from twinlaw.properties.laws import LAWS
from twinlaw.properties.laws.exactness import rejects_near_misses
from twinlaw.properties.prove import prove
from twinlaw.properties.strategies.illegal import near_misses
from twinlaw.properties.subjects import OPS, Op


def load_broken() -> Any:
    """The package beside this file; pytest's importlib mode leaves tests/ off ``sys.path``."""
    folder = Path(__file__).with_name("broken")
    spec = importlib.util.spec_from_file_location(
        "broken", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["broken"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TWINS = load_broken().TWINS
BY_NAME = {law.name: law for law in LAWS}


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Draw from the seed alone, not from the failures that other runs have stored."""
    before = settings.get_current_profile_name()
    settings.register_profile("forgetful", database=None)
    settings.load_profile("forgetful")
    yield
    settings.load_profile(before)


JUDGES = {"laws", "tolerance.py", "arena.py", "trial.py", "broken"}
"""Folders and files whose assertions are about the subject, not about how the case was made."""


CATCHES = [
    pytest.param(twin, BY_NAME[law], id=f"{twin} - {law}") for twin in TWINS for law in twin.laws
]


@pytest.mark.parametrize(("broken", "catching"), CATCHES)
def test_the_law_catches_the_twin(broken: Any, catching: Any, twin: Options) -> None:
    subject = broken.make()
    if broken.device not in (None, twin.device):
        pytest.skip(f"shows on {broken.device} only")
    if why := catching.silent_on(subject, twin.device, torch.cuda.device_count()):
        pytest.skip(why)
    with pytest.raises(broken.raises, match=broken.says or None) as caught:
        prove(catching, subject, twin.device, broken.profile, at=1, shrink=False)
    if broken.raises is AssertionError:
        last = Path(traceback.extract_tb(caught.value.__traceback__)[-1].filename)
        assert {last.name, last.parent.name} & JUDGES, f"raised by {last}: {caught.value}"


CLAUSES = [
    pytest.param(op, clause, id=f"{op.stem} - {clause}")
    for op in OPS.values()
    for clause in op.contract.clauses
]


IMPLIED = re.compile(
    "(a|b|A_log|dt_bias|out|.*indices.*): rank|(dst|src): dtype|dst: shape",
)
"""Clauses that others imply and that are there to say what is wrong: a shape has its rank; of two
tensors of one dtype and with common dims, either may be looked at."""


@pytest.mark.parametrize(("op", "clause"), CLAUSES)
def test_a_dropped_clause_is_missed(op: Op, clause: Clause, twin: Options) -> None:
    """Without it a validator accepts what the predicate calls illegal, or dies of it."""
    aimed = replace(rejects_near_misses, draws=lambda s: near_misses(s.op.contract, clause))
    loose = op.subject().having(contract=op.contract.without(clause))
    if IMPLIED.fullmatch(str(clause)):
        prove(aimed, loose, twin.device, at=1, shrink=False)
    else:
        with pytest.raises((AssertionError, AttributeError, KeyError)):
            prove(aimed, loose, twin.device, at=1, shrink=False)


SILENT = {("mamba_state_scatter", "nan-containment"), ("mamba_state_scatter", "serving-sizes")}
"""No argument of the scatter that has a row for each request holds floats; it copies any size."""


@pytest.mark.parametrize("stem", [op.stem for op in OPS.values()])
def test_every_law_has_bitten(stem: str) -> None:
    bitten = {law for twin in TWINS if twin.op.stem == stem for law in twin.laws}
    silent = {law for op, law in SILENT if op == stem}
    assert {law.name for law in LAWS} - silent <= bitten
    assert not silent & bitten, "a law listed as silent bites"
