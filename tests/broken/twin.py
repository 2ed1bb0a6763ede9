"""What a broken twin is, and how one is made of a sound op."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from twinlaw.contract import Contract
from twinlaw.properties.subjects import OPS, Op, Subject

DECODE = OPS["fused_recurrent_gated_delta_rule_packed_decode"]
SCATTER = OPS["fused_mamba_state_scatter_with_mask"]
BOTH = (DECODE, SCATTER)

Function = Callable[..., Any]
"""An implementation, called with the op's parameters by name."""


@dataclass(frozen=True)
class Twin:
    """A subject with one bug, and the laws that catch it.

    ``profile`` is how hard they must try. ``raises`` is what the twin itself raises in place of a
    law's AssertionError, and ``says`` a part of either's message. ``device`` is the only device on
    which the bug shows, None for any.
    """

    op: Op
    name: str
    laws: tuple[str, ...]
    make: Callable[[], Subject]
    profile: str = "gate"
    raises: type[Exception] = AssertionError
    says: str = ""
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.op.stem}: {self.name}"


def edited(op: Op, name: str, old: str, new: str, *laws: str, **traits: Any) -> Twin:
    """The op's own module with one place of its source changed."""

    def make() -> Subject:
        source = inspect.getsource(op.fused)
        found = source.count(old)
        assert found == 1, f"{op.stem}.py has {old!r} {found} times, not once: adapt {name!r}"
        module = _module(f"{op.stem} {name}", source.replace(old, new))
        function = getattr(module, op.name)
        return op.subject().having(
            function=function, contract=module.CONTRACT, unchecked=module._unchecked
        )

    return Twin(op, name, laws, make, **traits)


def _module(title: str, source: str) -> ModuleType:
    """A module from source that is in no file; linecache shows it to Triton and in tracebacks."""
    name = f"broken.{re.sub(r'[^0-9A-Za-z]+', '_', title)}"
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def wrapped(
    op: Op, name: str, wrap: Callable[[Op, Function], Function], *laws: str, **traits: Any
) -> Twin:
    """The sound op inside a wrapper that spoils it."""
    return Twin(
        op, name, laws, lambda: op.subject().having(function=wrap(op, _sound(op))), **traits
    )


def _sound(op: Op) -> Function:
    function: Function = getattr(op.fused, op.name)
    return function


def accepting(op: Op, name: str, contract: Contract, *laws: str, **traits: Any) -> Twin:
    """The sound kernel behind another contract."""

    def function(**arguments: Any) -> Any:
        check(contract, arguments)
        return op.fused._unchecked(**arguments)

    def make() -> Subject:
        return op.subject().having(function=function, contract=contract)

    return Twin(op, name, laws, make, **traits)


def check(contract: Contract, arguments: Mapping[str, Any]) -> None:
    """What ``contract`` says of arguments given by name."""
    contract.check(*(arguments[p.name] for p in contract.parameters))
