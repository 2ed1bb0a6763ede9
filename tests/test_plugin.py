"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

import twinlaw
from twinlaw import plugin
from twinlaw.report import Row, not_run, table, took

SUITE = """
from dataclasses import replace
from twinlaw.properties import suite
from twinlaw.properties.laws import LAWS
from twinlaw.properties.subjects import OPS

subject = OPS["fused_mamba_state_scatter_with_mask"].subject()
kept = ("agreement", "accepts-legal", "graph-replay")
suite.LAWS = [law for law in LAWS if law.name in kept]
test_laws = suite.laws_of(subject)
"""
BROKEN = (
    SUITE.replace("laws_of(subject)", "laws_of(subject.having(function=commit_nothing))")
    + """
def test_other():
    pass
"""
)
BROKEN = BROKEN.replace("\ntest_laws", "\n\ndef commit_nothing(**_):\n    pass\n\n\ntest_laws")

TWO_GPUS = "import twinlaw.plugin\ntwinlaw.plugin.gpus_of_driver = lambda: 2\n"


def run(folder: Path, *arguments: str, suite: str, **environment: str) -> tuple[int, str]:
    """Exit code and output of pytest on ``suite``, with no plugin but ours and xdist."""
    (folder / "test_suite.py").write_text(suite)
    (folder / "two_gpus.py").write_text(TWO_GPUS)
    path = os.pathsep.join([str(Path(twinlaw.__file__).parent.parent), str(folder)])
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES"))
    }
    command = [sys.executable, "-m", "pytest", "-p", "hypothesispytest", "-p", "xdist"]
    command += ["-p", "twinlaw.plugin", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


CPU = ("--twin-device", "cpu")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_passed_laws_are_in_the_table_and_others_beside_it(tmp_path: Path, workers: str) -> None:
    code, told = run(tmp_path, *CPU, "-n", workers, suite=SUITE)
    assert code == 0, told
    assert "twinlaw: Triton's interpreter on the CPU" in told
    assert "profile quick; seed 0" in told
    rows = [line.split() for line in told.splitlines() if line.endswith(" passed")]
    assert [row[:2] for row in rows] == [["agreement", "50"], ["accepts-legal", "50"]]
    assert "not run on cpu: graph-replay" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("workers", ["0", "2"])
def test_broken_law_is_told_in_words_and_a_script(tmp_path: Path, workers: str) -> None:
    report = tmp_path / "junit.xml"
    code, told = run(
        tmp_path,
        *CPU,
        "-n",
        workers,
        "-k",
        "agreement or other",
        f"--junitxml={report}",
        suite=BROKEN,
    )
    assert code == 1
    expected = [
        "breaks the law 'agreement' on cpu: Every written element is within its error bound",
        "`dst`[0, 0] is nan, not ",
        "dst: float32, shape (1, 1), strides (1, 1), offset 0: dense; values normal #0",
        "from test_suite import commit_nothing as fused",
        "fused(**arguments)",
    ]
    places = [told.find(text) for text in expected]
    assert -1 not in places, told
    assert places == sorted(places)
    assert "Traceback" not in told
    assert "prove.py" not in told
    failed = [line.split() for line in told.splitlines() if line.endswith(" failed")]
    assert failed[0][0] == "agreement"
    assert int(failed[0][1]) > 0, "a broken law has tried examples too"
    case = next(
        c
        for c in xml.etree.ElementTree.parse(report).iter("testcase")
        if "agree" in c.attrib["name"]
    )
    properties = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    assert properties["twin-op"] == "fused_mamba_state_scatter_with_mask"
    assert properties["twin-law"] == "agreement"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_unknown_op_is_a_usage_error_that_names_the_known(tmp_path: Path, workers: str) -> None:
    code, told = run(tmp_path, *CPU, "-n", workers, "--twin-op", "typo", suite=SUITE)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--twin-op typo: there are only laws of fused_mamba_state_scatter_with_mask" in told


def test_op_options_leave_other_tests_alone(tmp_path: Path) -> None:
    code, told = run(tmp_path, "--twin-op", "typo", suite="def test_plain(): pass")
    assert code == 0, told
    assert "1 passed" in told
    assert "error/bound" not in told


def test_cuda_without_a_gpu_is_a_usage_error(tmp_path: Path) -> None:
    code, told = run(
        tmp_path, "--twin-device", "cuda", suite="def test(): pass", CUDA_VISIBLE_DEVICES=""
    )
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--twin-device cuda: there is no GPU" in told


def test_triton_that_compiles_already_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("import triton\n")
    code, told = run(tmp_path, *CPU, "-p", "early", suite="def test(): pass")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "Triton has been imported before pytest was configured, to compile kernels" in told


MODES = """
import os

def test_mode():
    print("mode", os.environ["TRITON_INTERPRET"], os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "mode"),
    [
        ((), {}, "mode 0 None"),
        ((), {"CUDA_VISIBLE_DEVICES": ""}, "mode 1"),
        ((), {"TRITON_INTERPRET": "1"}, "mode 1 None"),
        (("--twin-device", "cpu"), {}, "mode 1 None"),
        (("--twin-device", "cuda"), {"TRITON_INTERPRET": "1"}, "mode 0 None"),
    ],
)
def test_device_is_chosen_before_triton_is_imported(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], mode: str
) -> None:
    code, told = run(tmp_path, "-s", "-p", "two_gpus", *arguments, suite=MODES, **environment)
    assert code == 0, told
    assert mode in told
    interpreted = "Triton's interpreter on the CPU" in told
    assert interpreted is (mode.split()[1] == "1")


def test_each_worker_has_one_gpu_for_its_current_device(tmp_path: Path) -> None:
    suite = (
        "import os, pytest\n"
        "@pytest.mark.parametrize('i', range(3))\n"
        "def test_pin(i, worker_id, record_property):\n"
        "    expected = {'gw0': '5,7', 'gw1': '7,5', 'gw2': '5,7'}[worker_id]\n"
        "    assert os.environ['CUDA_VISIBLE_DEVICES'] == expected\n"
    )
    code, told = run(tmp_path, "-n3", "-p", "two_gpus", suite=suite, CUDA_VISIBLE_DEVICES="5,7")
    assert code == 0, told


def test_visible_gpus_end_at_a_wrong_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "gpus_of_driver", lambda: 3)
    for listed, expected in [("2,0", ["2", "0"]), ("1,-1,2", ["1"]), ("", []), ("-1", [])]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert plugin.visible_gpus() == expected
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert plugin.visible_gpus() == ["0", "1", "2"]


def test_seed_is_hypothesis_own_option(tmp_path: Path) -> None:
    suite = "def test_seed(twin): print('seeded', twin.seed)"
    for given, told_seed in (("7", "7"), ("-7", "-7")):
        _, told = run(tmp_path, "-s", f"--hypothesis-seed={given}", suite=suite)
        assert f"; seed {told_seed}" in told
        assert f"seeded {told_seed}" in told
    _, told = run(tmp_path, "-s", "--hypothesis-seed=random", suite=suite)
    number = told.partition("; seed ")[2].split()[0]
    assert number.isdecimal()
    assert f"seeded {number}" in told


def test_table_fits_and_says_what_failed() -> None:
    rows = [
        Row("an_op", "agreement", "passed", 50, 0.4321, 1.24),
        Row("an_op", "a-law-with-a-name-that-is-long", "failed", 12345, 0.0, 83.4),
    ]
    told = table(rows, 60)
    assert max(map(len, told.splitlines())) <= 60
    assert "0.43" in told
    assert "12,345" in told
    assert "\x1b" not in told
    assert "\x1b" in table(rows, 60, colour=True)
    assert not_run({"b", "a"}, "cpu") == "not run on cpu: a, b"
    assert not_run(set(), "cpu") == ""


def test_durations() -> None:
    assert [took(s) for s in (0.84, 59.6, 83.4, 7500)] == [
        "0.8 s",
        "1 min 00 s",
        "1 min 23 s",
        "2 h 05 min",
    ]


def test_what_a_subject_raises_is_told_by_its_own_frames() -> None:
    from twinlaw.properties.suite import _located

    try:
        try:
            raise KeyError("in the kernel")
        except KeyError as inner:
            raise RuntimeError("in the interpreter") from inner
    except RuntimeError as error:
        error.__notes__ = ["Failing test case: ..."]
        told = _located(error).splitlines()
    assert told[0] == "RuntimeError: in the interpreter"
    assert len(told) == 2
    assert told[1].endswith('raise KeyError("in the kernel")')
