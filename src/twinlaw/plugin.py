"""The pytest plugin: on which device laws are proven, how hard, for which ops, and what came out.

Nothing heavy is imported before a test asks for it.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

__all__ = ["Twin"]

PROFILES = ("quick", "gate", "deep")


@dataclass(frozen=True)
class Twin:
    """What the command line said: the fixture ``twin``."""

    device: str
    profile: str


@dataclass
class Ledger:
    """What the laws went through in this run, gathered from the reports of all workers."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)
    """Laws that say nothing on this run's device."""


LEDGER = pytest.StashKey[Ledger]()


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


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the device before anything can import Triton, and pin each worker to one GPU."""
    config.stash[LEDGER] = Ledger()
    device = device_of(config)
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    elif worker := re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", "")):
        gpus = visible_gpus()
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(worker[1]) % len(gpus)]


def device_of(config: pytest.Config) -> str:
    """``cpu`` or ``cuda``, as the command line says or as this machine has it."""
    chosen: str = config.getoption("--twin-device")
    return ("cuda" if visible_gpus() else "cpu") if chosen == "auto" else chosen


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes.

    Asked of the driver's management library, so that no CUDA context is made and no torch loaded.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [g for g in listed.split(",") if g.strip() not in ("", "-1")]
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:  # no NVIDIA driver; ROCm's device node stands for one AMD GPU
        return ["0"] if os.path.exists("/dev/kfd") else []
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() == 0:
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return [str(i) for i in range(count.value)]


def pytest_report_header(config: pytest.Config) -> str:
    """Say where kernels run and how hard they are tried."""
    device = device_of(config)
    where = "Triton's interpreter on the CPU" if device == "cpu" else "compiled, on CUDA"
    if device == "cpu" and not visible_gpus():
        where += " (there is no GPU)"
    return f"twinlaw: {where}; profile {config.getoption('--twin-profile')}"


@pytest.fixture(scope="session")
def twin(request: pytest.FixtureRequest) -> Twin:
    """The device and the profile of this run."""
    return Twin(device_of(request.config), request.config.getoption("--twin-profile"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other ops than those asked for, and laws that say nothing on this device."""
    ops, device = config.getoption("--twin-op"), device_of(config)
    kept, left_out = [], []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        law, subject = params.get("law"), params.get("subject")
        if law is None or subject is None:
            kept.append(item)
        elif law.device not in (None, device):
            config.stash[LEDGER].elsewhere.add(f"{law.name} (needs {law.device})")
            left_out.append(item)
        else:
            (kept if not ops or subject.name in ops else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Gather what a law went through; under xdist this runs where the table is printed."""
