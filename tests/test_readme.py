"""What the README lists is what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinlaw.properties.laws import LAWS
from twinlaw.properties.subjects import OPS

README = Path(__file__).parents[1] / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="no checkout beside the tests")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    section = README.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_law_is_told_in_its_own_words() -> None:
    assert rows("Laws") == [[law.name, law.statement] for law in LAWS]


def test_every_op_is_listed() -> None:
    assert [row[0] for row in rows("Ops")] == [f"`{name}`" for name in OPS]
