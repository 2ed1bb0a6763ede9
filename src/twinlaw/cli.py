"""The command ``twinlaw``: what each op accepts, and whether it keeps the laws."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]

EXTRA = ("typer", "rich", "pytest", "xdist", "hypothesis", "numpy", "ml_dtypes")
"""What the extra ``verify`` brings; the library itself has no need of it."""


def main() -> None:
    """Run the command, or say what to install."""
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        print(
            f"twinlaw verify needs the extra: pip install 'twinlaw[verify]' "
            f"(there is no {', '.join(missing)})",
            file=sys.stderr,
        )
        sys.exit(2)
    from twinlaw.commands import app

    app(prog_name="twinlaw")


if __name__ == "__main__":
    main()
