"""The house rules: links, packaging, import arrows, light imports, and a place for everything."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import twinlaw

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from twinlaw.properties.subjects import Op

TESTS = Path(__file__).resolve().parent
CHECKOUT = TESTS.parent
SOURCE = CHECKOUT / "src" / "twinlaw"
PACKAGE = Path(twinlaw.__file__).parent
"""The package under test: the checkout's or an installed one."""

FOLDERS = ("fused", "properties", "reference")

in_checkout = pytest.mark.skipif(
    not all((CHECKOUT / folder).is_dir() for folder in ("src", *FOLDERS)),
    reason="an sdist has neither the links nor what they point to",
)


def modules_of(package: Path) -> Iterator[tuple[str, Path]]:
    """Each module below ``package``, through links, as its dotted name and its file."""
    for folder, _, names in os.walk(package, followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(sorted(modules_of(PACKAGE)))
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports_of(tree: ast.Module) -> set[str]:
    """What a module imports anywhere in it, functions included; ``from a import b`` is ``a.b``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules_within(*packages: str) -> dict[str, ast.Module]:
    found = {name: tree for name, tree in TREES.items() if within(name, *packages)}
    assert found, f"there is no module in {packages}"
    return found


def top_level(tree: ast.Module) -> dict[str, ast.stmt]:
    """The functions and variables of a module, by name."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = node
    return found


def run_fresh(code: str) -> None:
    """Run ``code`` in a new interpreter that imports the package under test, compiled."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def ops() -> Mapping[str, Op]:
    """The registry; imported here so that a broken op leaves the other house rules standing."""
    from twinlaw.properties.subjects import OPS

    return OPS


# Links and packaging


@in_checkout
@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_linked_into_the_package(folder: str) -> None:
    link = SOURCE / folder
    assert link.is_symlink()
    assert Path(os.readlink(link)) == Path("..", "..", folder)
    assert (CHECKOUT / folder / "__init__.py").is_file()


@in_checkout
def test_pyproject_lists_every_package() -> None:
    with open(CHECKOUT / "pyproject.toml", "rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    found = [name for name, path in modules_of(SOURCE) if path.name == "__init__.py"]
    assert sorted(listed) == sorted(found)


def test_every_folder_with_modules_is_a_package() -> None:
    assert {path.parent for path in MODULES.values()} == {
        path.parent for path in MODULES.values() if path.name == "__init__.py"
    }


def test_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@in_checkout
def test_checkout_on_pythonpath_is_what_is_tested(pytestconfig: pytest.Config) -> None:
    """An installed twinlaw never hides the checkout."""
    if SOURCE.parent in pytestconfig.getini("pythonpath"):
        assert PACKAGE.samefile(SOURCE)


def test_no_module_is_imported_under_a_second_name() -> None:
    """Neither past a link (``reference.x``) nor from a checkout beside an installed package."""
    assert "twinlaw.plugin" in sys.modules
    ours = {path.resolve() for package in (PACKAGE, SOURCE) for _, path in modules_of(package)}
    known = {(name, path.resolve()) for name, path in MODULES.items()}
    loaded = {
        (name, Path(file).resolve())
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__file__", None), str)
    }
    assert {(name, path) for name, path in loaded if path in ours} <= known


# Arrows

ALLOWED = {
    "twinlaw.overlap": (),
    "twinlaw.memory": (),
    "twinlaw.contract": ("twinlaw.memory", "twinlaw.overlap"),
    "twinlaw.reference": ("torch", "twinlaw.reference"),
    "twinlaw.fused": ("torch", "triton", "twinlaw.contract", "twinlaw.fused"),
}
"""What a part of the house may import beside the standard library."""


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part: str) -> None:
    for module, tree in modules_within(part).items():
        foreign = {
            name
            for name in imports_of(tree)
            if name.partition(".")[0] not in sys.stdlib_module_names
            and not within(name, *ALLOWED[part])
        }
        assert not foreign, f"{module} imports {sorted(foreign)}"


def test_properties_import_nothing_above_them() -> None:
    below = ("twinlaw.properties", *ALLOWED)
    for module, tree in modules_within("twinlaw.properties").items():
        above = {
            name
            for name in imports_of(tree)
            if within(name, "twinlaw") and not within(name, *below)
        }
        assert not above, f"{module} imports {sorted(above)}"


def test_laws_name_no_op() -> None:
    """A law is handed its op; one that looks an op up cannot judge anybody else's kernel."""
    registry = "twinlaw.properties.subjects"
    types = {f"{registry}.Op", f"{registry}.Subject"}
    for module, tree in modules_within("twinlaw.properties.laws").items():
        concrete = {
            name
            for name in imports_of(tree) - types
            if within(name, registry, "twinlaw.fused", "twinlaw.reference")
        }
        assert not concrete, f"{module} imports {sorted(concrete)}"


# Light imports


@pytest.mark.parametrize("module", ["twinlaw", "twinlaw.contract", "twinlaw.plugin"])
def test_import_is_light(module: str) -> None:
    """The plugin is loaded by every pytest run of an environment that has twinlaw installed."""
    run_fresh(
        f"import sys, {module}\n"
        "heavy = {'hypothesis', 'numpy', 'torch', 'triton'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )


def test_fused_needs_no_test_tool() -> None:
    run_fresh(
        "import sys\n"
        "for name in 'hypothesis', 'ml_dtypes', 'numpy', 'pytest', 'rich', 'typer', 'xdist':\n"
        "    sys.modules[name] = None\n"
        "import twinlaw.fused"
    )


def test_importing_fused_starts_no_cuda() -> None:
    run_fresh("import torch, twinlaw.fused\nassert not torch.cuda.is_initialized()")


# A place for everything


def test_every_op_has_its_four_places(ops: Mapping[str, Op]) -> None:
    """A stem that is in one place is in all: reference/, fused/, the registry and tests/."""
    stems = {
        "registry": {op.stem for op in ops.values()},
        "fused": {
            name.rpartition(".")[2]
            for name, tree in modules_within("twinlaw.fused").items()
            if "CONTRACT" in top_level(tree)
        },
        "reference": {
            name.rpartition(".")[2]
            for name, tree in modules_within("twinlaw.reference").items()
            if "legal" in top_level(tree)
        },
    }
    for place, found in stems.items():
        assert found == stems["registry"], f"{place} and the registry differ"
    missing = {stem for stem in stems["registry"] if not (TESTS / f"test_{stem}.py").is_file()}
    assert not missing, f"no tests/test_<stem>.py for {sorted(missing)}"


def test_registry_keys_are_op_names(ops: Mapping[str, Op]) -> None:
    assert {name: op.name for name, op in ops.items()} == {name: name for name in ops}


@pytest.mark.parametrize("folder", ["fused", "reference"])
def test_op_signatures_are_spelt_out_and_typed(folder: str, ops: Mapping[str, Op]) -> None:
    for name, op in ops.items():
        function = top_level(TREES[f"twinlaw.{folder}.{op.stem}"])[name]
        assert isinstance(function, ast.FunctionDef), name
        assert function.returns, name
        arguments = function.args
        assert not arguments.vararg, name
        assert not arguments.kwarg, name
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            assert argument.annotation, f"{name}: {argument.arg}"


def test_there_is_no_utils_module() -> None:
    files = [*MODULES.values(), *TESTS.rglob("*.py")]
    assert "utils.py" not in {path.name for path in files}


# Nothing that makes a red test green


@in_checkout
def test_no_test_is_run_again_until_it_passes() -> None:
    again = re.compile(r"mark\.flaky|@flaky|reruns\b|rerunfailures")
    code = [path for path in [*MODULES.values(), *TESTS.rglob("*.py")] if path != Path(__file__)]
    settings = [CHECKOUT / name for name in ("pyproject.toml", "tox.ini", "conftest.py", ".ci/run")]
    for path in (*code, *settings):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert not again.search(line), f"{path}:{number}: {line.strip()}"


def test_tolerances_live_in_one_module() -> None:
    """Elsewhere no ``rtol`` or ``atol`` is named, and nothing brings a default of its own."""
    elsewhere = TREES.keys() - {"twinlaw.properties.tolerance"}
    loose = {"rtol", "atol", "allclose", "isclose", "assert_close", "approx"}
    for module in sorted(elsewhere):
        for node in ast.walk(TREES[module]):
            match node:
                case (
                    ast.Name(id=name)
                    | ast.Attribute(attr=name)
                    | ast.alias(name=name)
                    | ast.arg(arg=name)
                    | ast.keyword(arg=name)
                ):
                    assert name not in loose, f"{module} uses {name}"
