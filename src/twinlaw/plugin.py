"""The pytest plugin: on which device laws are proven, how hard, for which ops, and what came out.

Nothing heavy is imported before a test asks for it: every pytest run of an environment that has
twinlaw installed loads this module.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from twinlaw.report import Row, not_run, table

__all__ = ["LEDGER", "Ledger", "Twin", "visible_gpus"]

PROFILES = ("quick", "gate", "deep")

SEED = "0"
"""Runs without ``--hypothesis-seed`` draw the same examples every time."""


@dataclass(frozen=True)
class Twin:
    """What the command line said: the fixture ``twin``."""

    device: str
    profile: str
    seed: int | None
    """None for a seed in words, which Hypothesis has taken up by itself."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; all have defaults that suit a first run."""
    group = parser.getgroup("twinlaw", "proving fused kernels against their references")
    group.addoption(
        "--twin-device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where kernels run; cpu is Triton's interpreter (default: cuda if there is a GPU)",
    )
    group.addoption(
        "--twin-profile",
        choices=PROFILES,
        default="quick",
        help="how many examples each law is tried on (default: quick)",
    )
    group.addoption(
        "--twin-op", action="append", default=[], metavar="NAME", help="only laws of this op"
    )


# --- the device ---------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the device before a conftest imports Triton; pytest calls this in plugins only."""
    _set_device(early_config.known_args_namespace.twin_device)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the device before a test module imports Triton, and one seed for all workers."""
    chosen: str = config.getoption("--twin-device")
    if chosen == "cuda" and not visible_gpus():
        raise pytest.UsageError("--twin-device cuda: there is no GPU that this process may use")
    _set_device(chosen)
    if chosen != "auto" and "triton" in sys.modules:
        from twinlaw.properties.interpreter import is_interpreting

        if is_interpreting() != (chosen == "cpu"):
            mode = "to interpret" if is_interpreting() else "to compile"
            raise pytest.UsageError(
                f"--twin-device {chosen}: Triton has been imported before pytest was configured, "
                f"{mode} kernels; import it later, or set TRITON_INTERPRET in the environment"
            )
    if config.getoption("--hypothesis-seed", None) == "random":
        config.option.hypothesis_seed = str(random.getrandbits(32))
    ledger = config.stash[LEDGER] = Ledger(config)
    config.pluginmanager.register(ledger, "twinlaw-ledger")


def _set_device(chosen: str) -> None:
    """Tell Triton and CUDA, neither of which has started: an xdist worker gets one GPU."""
    device = _resolve(chosen)
    os.environ["TRITON_INTERPRET"] = "1" if device == "cpu" else "0"
    if worker := re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", "")):
        _pin_gpu(int(worker[1]))


@functools.cache  # once a process: the device is set more than once
def _pin_gpu(worker: int) -> None:
    """Put the worker's own GPU first, where it is the current device; the others stay visible."""
    if gpus := visible_gpus():
        own = worker % len(gpus)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[own:] + gpus[:own])


def _resolve(chosen: str) -> str:
    if chosen != "auto":
        return chosen
    interpret = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
    return "cuda" if visible_gpus() and not interpret else "cpu"


def device_of(config: pytest.Config) -> str:
    """``cpu`` or ``cuda``, as the command line says or as this machine has it."""
    return _resolve(config.getoption("--twin-device"))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    there = [str(i) for i in range(gpus_of_driver())]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not there:
        return there
    names = [name.strip() for name in listed.split(",")]
    hidden = [i for i, name in enumerate(names) if name in ("", "-1")]
    return names[: hidden[0]] if hidden else names  # CUDA reads no further than a wrong name


def gpus_of_driver() -> int:
    """How many GPUs the driver knows.

    Asked of its management library, so that no CUDA context is made and no torch loaded.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:  # no NVIDIA driver; ROCm's device node stands for one AMD GPU
        return int(os.path.exists("/dev/kfd"))
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() == 0:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return count.value


def seed_of(config: pytest.Config) -> str:
    """What the draws start from."""
    seed: str | None = config.getoption("--hypothesis-seed", None)
    return SEED if seed is None else seed


def pytest_report_header(config: pytest.Config) -> str:
    """Say where kernels run, how hard they are tried, and from which seed."""
    device = device_of(config)
    where = "Triton's interpreter on the CPU" if device == "cpu" else "compiled, on CUDA"
    if device == "cpu" and not visible_gpus():
        where += " (there is no GPU)"
    profile = config.getoption("--twin-profile")
    return f"twinlaw: {where}; profile {profile}; seed {seed_of(config)}"


@pytest.fixture(scope="session")
def twin(request: pytest.FixtureRequest) -> Twin:
    """The device, the profile and the seed of this run."""
    seed = seed_of(request.config)
    number = int(seed) if re.fullmatch(r"-?\d+", seed) else None
    return Twin(device_of(request.config), request.config.getoption("--twin-profile"), number)


# --- which laws, and what came out --------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other ops than those asked for, and laws that say nothing on this device."""
    ops, device, ledger = config.getoption("--twin-op"), device_of(config), config.stash[LEDGER]
    pairs = {item: pair for item in items if (pair := _law_and_subject(item))}
    known = sorted({subject.name for _, subject in pairs.values()})
    if unknown := pairs and [op for op in ops if op not in known]:
        ledger.refuse(f"--twin-op {unknown[0]}: there are only laws of {', '.join(known)}")
        items.clear()
    left_out = []
    for item, (law, subject) in pairs.items():
        if ops and subject.name not in ops:
            left_out.append(item)
        elif why := law.silent_on(subject, device, len(visible_gpus())):
            ledger.elsewhere.add(f"{law.name} ({why})")
            left_out.append(item)
        else:  # before it is proven: a law that brings its worker down is told of too
            item.user_properties += [("twin-op", subject.name), ("twin-law", law.name)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _law_and_subject(item: pytest.Item) -> tuple[Any, Any] | None:
    """What a test made by ``laws_of`` is about."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    law, subject = parameters.get("law"), parameters.get("subject")
    about_a_law = hasattr(law, "statement") and hasattr(subject, "contract")
    return (law, subject) if about_a_law else None


class Ledger:
    """What the laws said in this run, gathered from the reports of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rows: dict[str, Row] = {}
        """By test id."""
        self.elsewhere: set[str] = set()
        """Names of laws that say nothing on this run's device."""
        self._refusal: str | None = None
        self._order: list[str] = []

    def ordered(self) -> list[Row]:
        """The rows in the order in which the laws were collected, whoever proved them."""
        place = {test: i for i, test in enumerate(self._order)}
        return [self.rows[test] for test in sorted(self.rows, key=lambda t: place.get(t, -1))]

    def refuse(self, text: str) -> None:
        """Raise UsageError; a worker leaves that to the process in front of the user."""
        if not hasattr(self.config, "workerinput"):
            raise pytest.UsageError(text)
        self._refusal = text

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Enter a report; under xdist this runs where the table is printed too."""
        told: dict[str, Any] = dict(report.user_properties)
        if "twin-law" in told:
            self.rows.setdefault(report.nodeid, Row(told["twin-op"], told["twin-law"]))
        row = self.rows.get(report.nodeid)
        if row is None:
            return
        if report.when == "call":
            row.examples = told.get("twin-examples", 0)
            row.worst = told.get("twin-worst", 0.0)
            row.seconds = report.duration
        if report.failed:  # also when a worker crashed, in no phase that has a name
            row.verdict = "error" if report.when in ("setup", "teardown") else "failed"
        elif report.skipped:
            row.verdict = "skipped"
        elif report.when == "call":
            row.verdict = "passed"

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Every worker collects the same."""
        self._order = ids

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """A worker hands over what no report carries; what it refused is refused here."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["twinlaw"] = (sorted(self.elsewhere), self._refusal)
        yield
        if self._refusal and not hasattr(self.config, "workeroutput"):
            raise pytest.UsageError(self._refusal)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker hands over; one that crashed hands over nothing."""
        output = getattr(node, "workeroutput", None) or {}
        elsewhere, refusal = output.get("twinlaw", ((), None))
        self.elsewhere |= set(elsewhere)
        self._refusal = self._refusal or refusal

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, and what is not in it."""
        if self.rows:
            width, colour = terminalreporter._tw.fullwidth, terminalreporter.hasmarkup
            terminalreporter.section("laws")
            terminalreporter.write_line(table(self.ordered(), width, colour=colour))
            if rest := not_run(self.elsewhere, device_of(self.config)):
                terminalreporter.write_line(rest)


LEDGER = pytest.StashKey[Ledger]()
