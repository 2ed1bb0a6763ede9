"""Every launch configuration compiles for every target, without a GPU and without spills."""

from __future__ import annotations

from twinlaw.properties.aot import Compiled, compile_all
from twinlaw.properties.laws.law import law
from twinlaw.properties.trial import Trial


@law("compiles-everywhere", needs="compilations")
def compiles_everywhere(trial: Trial, _: None) -> None:
    """Each kernel compiles ahead of time for sm_80, sm_90, sm_100 and gfx942 and spills nothing."""
    for compilation, target, result in compile_all(trial.subject.compilations):
        trial.examples += 1
        assert isinstance(result, Compiled), f"{compilation} for {target}: {result}"
        assert result.spills == 0, f"{compilation} for {target} spills: {result}"
