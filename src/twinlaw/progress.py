"""What ``twinlaw verify`` shows while it works: a bar in a terminal, else a line now and then."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich import progress
from rich.console import Console

from twinlaw.plugin import LEDGER, Ledger, device_of, pytest_report_header
from twinlaw.report import took

__all__ = ["Progress"]

EVERY = 30.0
"""Seconds between two lines in a log: what is silent for minutes is taken for dead."""


class Progress:
    """A pytest plugin that counts laws as they are judged and keeps the text of what failed."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.device = ""
        self.failures: list[tuple[str, str]] = []
        """Title and text."""
        # pytest puts files of its own in the place of stdout while a test runs.
        self._console = Console(file=os.fdopen(os.dup(1), "w"))
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("laws, {task.fields[failed]} failed,"),
            progress.TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("proving", total=None, failed=0)
        self._over = threading.Event()

    def pytest_configure(self, config: pytest.Config) -> None:
        self.ledger, self.device = config.stash[LEDGER], device_of(config)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        """Show progress from here on, whatever ends the loop."""
        header = pytest_report_header(session.config)
        self._console.print(header, highlight=False, soft_wrap=True)
        log = threading.Thread(target=self._log, daemon=True)
        with self._bar:
            log.start()
            try:
                return (yield)
            finally:
                self._over.set()
                log.join()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._bar.update(self._task, total=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._bar.update(self._task, total=len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            told = dict(report.user_properties)
            title = f"{told['twin-op']}: {told['twin-law']}" if told else report.nodeid
            self._fail(title, report.longreprtext)
        if report.when not in ("setup", "teardown"):
            self._bar.advance(self._task)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report.nodeid, report.longreprtext)

    def pytest_internalerror(self, excrepr: Any) -> None:
        self._fail("internal error", str(excrepr))

    def _fail(self, title: str, text: str) -> None:
        self.failures.append((title, text))
        self._bar.update(self._task, failed=len(self.failures))
        self._console.print(f"failed: {title}", style="red", highlight=False, soft_wrap=True)

    def _log(self) -> None:
        task = self._bar.tasks[0]
        while not self._over.wait(EVERY):
            if self._bar.disable:
                self._console.print(
                    f"{int(task.completed)} of {task.total or '?'} laws, "
                    f"{len(self.failures)} failed, {took(task.elapsed or 0)}"
                )
