"""What came out, as text: one table an op, one row a law. Importing this module is light."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Row", "not_run", "table", "took"]


@dataclass
class Row:
    """What one law said of one op; a verdict other than ``passed`` proves nothing."""

    op: str
    law: str
    verdict: str = "not finished"
    examples: int = 0
    worst: float = 0.0
    """The largest error over bound."""
    seconds: float = 0.0


_STYLES = {"passed": "", "failed": "bold red", "error": "bold red"}
"""By verdict; any other one is yellow."""


def table(rows: Iterable[Row], width: int, *, colour: bool = False) -> str:
    """The rows in at most ``width`` columns, grouped by op; without ``colour``, plain text."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    by_op: dict[str, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row.op, []).append(row)
    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    for op, its in by_op.items():
        shown = Table(title=op, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        shown.add_column("law", overflow="fold")
        for heading in ("examples", "error/bound", "time"):
            shown.add_column(heading, justify="right")
        shown.add_column("verdict")
        for row in its:
            shown.add_row(
                row.law,
                f"{row.examples:,}" if row.examples else "",
                f"{row.worst:.3f}" if row.worst else "",
                took(row.seconds),
                row.verdict,
                style=_STYLES.get(row.verdict, "yellow"),
            )
        console.print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def not_run(laws: Iterable[str], device: str) -> str:
    """The laws that say nothing on ``device``, which are not proven; empty when there are none."""
    listed = ", ".join(sorted(laws))
    return f"not run on {device}: {listed}" if listed else ""


def took(seconds: float) -> str:
    """A duration: ``0.8 s``, ``1 min 23 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
