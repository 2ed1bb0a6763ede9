"""The laws: one idea a file, each handed the subject that it judges."""

from twinlaw.properties.laws import (
    addressing,
    agreement,
    aliasing,
    compiling,
    cuda,
    exactness,
    frame,
    layout,
    repeat,
    requests,
    witness,
)
from twinlaw.properties.laws.law import Law, law

__all__ = ["LAWS", "Law", "law"]

_MODULES = (
    *(agreement, exactness, layout, frame, requests, repeat, aliasing, addressing),
    *(witness, compiling, cuda),
)

LAWS: tuple[Law, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Law)
)
"""Every law, in the order of the report."""
