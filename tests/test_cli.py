"""The command, in processes of its own and from a folder that is not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

import twinlaw

SCATTER = "fused_mamba_state_scatter_with_mask"


def python(folder: Path, code: str) -> tuple[int, str, str]:
    """Exit code, output and errors of ``code``, with nothing else of this run's settings."""
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST_", "TRITON_INTER"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=clean | {"PYTHONPATH": str(Path(twinlaw.__file__).parent.parent), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    return python(
        folder, f"import sys, twinlaw.cli\nsys.argv[1:] = {arguments}\ntwinlaw.cli.main()"
    )


def test_ops_prints_contracts(tmp_path: Path) -> None:
    code, told, errors = command(tmp_path, "ops", SCATTER)
    assert code == 0, errors
    assert "[L, R, D, *E]" in told
    assert "D >= 0 (draft steps a row)" in told


def test_ops_as_json(tmp_path: Path) -> None:
    code, told, errors = command(tmp_path, "ops", "--json")
    assert code == 0, errors
    facts = json.loads(told)[SCATTER]
    assert facts["parameters"][0]["argument"] == "dst"
    assert facts["parameters"][0]["access"] == "written"
    assert facts["relations"]


def test_unknown_names_are_usage_errors(tmp_path: Path) -> None:
    """``verify`` has read the real suite to know; the folder's pytest settings have no say."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit('not ours')\n")
    code, _, errors = command(tmp_path, "ops", "typo")
    assert code == 2
    assert SCATTER in errors
    code, told, errors = command(tmp_path, "verify", "--op", "typo", "--device", "cpu", "-n", "0")
    assert code == 2
    assert "--twin-op typo: there are only laws of" in errors
    assert "could not judge" in told


@pytest.mark.parametrize("option", [("-n", "-1"), ("--seed", "x"), ("--profile", "typo")])
def test_wrong_options_are_usage_errors(tmp_path: Path, option: tuple[str, str]) -> None:
    assert command(tmp_path, "verify", *option)[0] == 2


VERIFY = """
import sys
from pathlib import Path
from twinlaw.verify import verify
junit = Path("report.xml")
sys.exit(verify([], "cpu", "quick", workers={workers}, suite=Path("law_suite.py"), junit=junit))
"""


def judged(folder: Path, suite: str, workers: int = 0) -> tuple[int, str, str]:
    (folder / "law_suite.py").write_text(suite)
    return python(folder, VERIFY.format(workers=workers))


BROKEN = f"""
from twinlaw.properties import suite
from twinlaw.properties.laws import LAWS
from twinlaw.properties.subjects import OPS

suite.LAWS = [law for law in LAWS if law.name in ("agreement", "accepts-legal")]
subject = OPS["{SCATTER}"].subject()
test_laws = suite.laws_of(subject.having(function=lambda **_: None))
"""


def test_proven_laws_exit_0(tmp_path: Path) -> None:
    code, told, errors = judged(tmp_path, BROKEN.replace(".having(function=lambda **_: None)", ""))
    assert code == 0, told + errors
    assert "twinlaw: Triton's interpreter on the CPU" in told
    assert "2 laws proven, took" in told
    assert told.count(SCATTER) == 1, "one table"
    cases = xml.etree.ElementTree.parse(tmp_path / "report.xml").iter("testcase")
    assert [case.attrib["name"] for case in cases] == [
        f"test_laws[{SCATTER}-agreement]",
        f"test_laws[{SCATTER}-accepts-legal]",
    ]


def test_broken_law_exits_1_and_is_told_in_full(tmp_path: Path) -> None:
    code, told, errors = judged(tmp_path, BROKEN)
    assert code == 1, told + errors
    assert f"failed: {SCATTER}: agreement" in told
    assert "`dst`[0, 0] is nan" in told
    assert "Alone, as a script:" in told
    assert "1 of 2 laws broken, took" in told


CRASHING = BROKEN.replace("lambda **_: None", "lambda **_: __import__('os')._exit(3)")


def test_law_that_brings_its_process_down_is_broken(tmp_path: Path) -> None:
    code, told, errors = judged(tmp_path, CRASHING, workers=1)
    assert code == 1, told + errors
    assert [line.split()[0] for line in told.splitlines() if line.endswith(" failed")] == [
        "agreement"
    ]


@pytest.mark.parametrize(
    "suite",
    [
        "import no_such_module",
        "def test_no_law(): pass",
        BROKEN.replace("lambda **_: None", "lambda **_: __import__('pytest').skip()"),
    ],
    ids=["broken suite", "no law", "skipped"],
)
def test_what_cannot_be_judged_exits_2(tmp_path: Path, suite: str) -> None:
    code, told, errors = judged(tmp_path, suite)
    assert code == 2, told + errors
    assert "could not judge" in told


def test_bare_install_says_what_to_install(tmp_path: Path) -> None:
    code, _, errors = python(
        tmp_path, "import sys\nsys.modules['typer'] = None\nimport twinlaw.cli\ntwinlaw.cli.main()"
    )
    assert code == 2
    assert errors.splitlines() == [
        "twinlaw verify needs the extra: pip install 'twinlaw[verify]' (there is no typer)"
    ]


def test_version_and_help(tmp_path: Path) -> None:
    assert command(tmp_path, "--version")[1].startswith("twinlaw ")
    for subcommand in ((), ("ops",), ("verify",)):
        code, told, _ = command(tmp_path, *subcommand, "--help")
        assert code == 0
        assert "Usage: twinlaw" in told
