"""``twinlaw verify``: the suite run by pytest, apart from the pytest settings of the caller."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

import twinlaw
from twinlaw.plugin import visible_gpus
from twinlaw.progress import Progress
from twinlaw.report import not_run, table, took

__all__ = ["BROKEN", "PROVEN", "UNJUDGED", "verify"]

PROVEN, BROKEN, UNJUDGED = 0, 1, 2
"""Exit codes."""

SUITE = Path(twinlaw.__file__).parent / "properties" / "suite.py"


def verify(
    ops: Sequence[str],
    device: str,
    profile: str,
    *,
    seed: str | None = None,
    workers: int | None = None,
    junit: Path | None = None,
    suite: Path = SUITE,
) -> int:
    """Prove every law of ``ops`` (of all, if empty), print what came out, return the exit code.

    ``workers`` is the number of processes (None for as many as suit the machine, 0 for this one),
    ``suite`` the test file to run.
    """
    start = time.monotonic()
    count = _workers(device) if workers is None else workers
    arguments = [
        str(suite),
        f"--twin-device={device}",
        f"--twin-profile={profile}",
        *(f"--twin-op={op}" for op in ops),
        *([f"--hypothesis-seed={seed}"] if seed else []),
        *([f"--numprocesses={count}", "--dist=worksteal"] if count else []),
        *([f"--junitxml={junit}"] if junit else []),
    ]
    progress = Progress()
    _isolate()
    code = int(pytest.main([*_ISOLATED, f"--rootdir={suite.parent}", *arguments], [progress]))
    console = Console()
    for title, text in progress.failures:
        console.rule(title, style="red", characters="-")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    rows = progress.ledger.ordered() if progress.ledger else []
    if rows:
        print(table(rows, console.width, colour=console.is_terminal))
    if progress.ledger and (rest := not_run(progress.ledger.elsewhere, progress.device)):
        print(rest)
    verdicts = [row.verdict for row in rows]
    broken, proven = verdicts.count("failed"), verdicts.count("passed")
    if broken:
        outcome, result = f"{broken} of {len(rows)} laws broken", BROKEN
    elif code == 0 and proven == len(rows) > 0:
        outcome, result = f"{proven} laws proven", PROVEN
    else:
        outcome, result = f"could not judge: {proven} of {len(rows)} laws proven", UNJUDGED
    print(f"{outcome}, took {took(time.monotonic() - start)}")
    return result


def _workers(device: str) -> int:
    """One process a core, at most eight; on GPUs, whose work is short, at most four each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = 0 if device == "cpu" else len(visible_gpus())
    return min(cores or 1, 4 * gpus or 8)


def _isolate() -> None:
    """Plugins of other people stay out, in workers too; what is needed is named below."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)


_ISOLATED = (
    *("-c", os.devnull),
    *("-p", "twinlaw.plugin"),
    *("-p", "hypothesispytest"),
    *("-p", "xdist"),
    *("-p", "no:cacheprovider"),
    *("-p", "no:terminalreporter"),  # Progress takes its place
    "--import-mode=importlib",
    # Others may warn as they please; a warning that our own lines cause is a fault of theirs.
    *("-o", r"filterwarnings=error:::twinlaw\."),
)
