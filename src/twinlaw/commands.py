"""The subcommands of ``twinlaw``, each a function that parses and hands over."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from twinlaw.contract import Contract
    from twinlaw.properties.subjects import Op

__all__ = ["app"]

app = typer.Typer(
    help="Fused Triton kernels, each proven against a plain PyTorch twin.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Names = Annotated[list[str] | None, typer.Option("--op", metavar="NAME", help="Only this op.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where kernels run; cpu is Triton's interpreter."),
]
Profile = Annotated[
    Literal["quick", "gate", "deep"], typer.Option(help="How many examples a law is tried on.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twinlaw {version()}")
        raise typer.Exit


def version() -> str:
    """The installed version; a checkout that is only on the path has none."""
    try:
        return importlib.metadata.version("twinlaw")
    except importlib.metadata.PackageNotFoundError:
        return "(a checkout)"


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Fused Triton kernels, each proven against a plain PyTorch twin."""


@app.command()
def ops(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this op.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print the contract of each op: what it accepts, argument by argument."""
    from twinlaw.properties.subjects import OPS

    if name is not None and name not in OPS:
        raise typer.BadParameter(f"there is no op {name!r}; there are {', '.join(OPS)}")
    chosen = {key: op for key, op in OPS.items() if name in (None, key)}
    if as_json:
        typer.echo(json.dumps({key: _facts(op) for key, op in chosen.items()}, indent=2))
        return
    console = Console()
    for key, op in chosen.items():
        console.print(f"[bold]{key}[/bold]\n{_summary(op)}")
        console.print(_contract_table(op.contract))
        for relation in op.contract.relations():
            console.print(f"  {relation}", highlight=False)
        console.print()


HEADINGS = ("argument", "shape", "dtype", "layout", "access")


def _contract_table(contract: Contract) -> Table:
    shown = Table(*HEADINGS)
    shown.columns[0].no_wrap = True
    for row in contract.rows():
        shown.add_row(*(cell.replace("[", r"\[") for cell in row))
    return shown


def _facts(op: Op) -> dict[str, object]:
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in op.contract.rows()]
    return {"summary": _summary(op), "parameters": rows, "relations": op.contract.relations()}


def _summary(op: Op) -> str:
    return (getattr(op.fused, op.name).__doc__ or "").strip().partition("\n")[0]


@app.command()
def verify(
    op: Names = None,
    device: Device = "auto",
    profile: Profile = "quick",
    seed: Annotated[
        str | None, typer.Option(metavar="N|random", help="What the draws start from.")
    ] = None,
    workers: Annotated[
        str, typer.Option("-n", metavar="N|auto", help="Processes; 0 proves in this one.")
    ] = "auto",
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit report.")
    ] = None,
) -> None:
    """Hold the ops to every law. Exit 0: all proven; 1: a law is broken; 2: could not judge."""
    from twinlaw.verify import verify

    for given, word, option in ((seed, "random", "--seed"), (workers, "auto", "-n")):
        if given not in (None, word) and not given.isdecimal():
            raise typer.BadParameter(
                f"{given!r} is neither a number nor {word!r}", param_hint=option
            )
    count = None if workers == "auto" else int(workers)
    raise typer.Exit(verify(op or [], device, profile, seed=seed, workers=count, junit=junit))
