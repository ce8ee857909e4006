"""What a command cannot do without, checked before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import typer


def require(names: Sequence[str], extra: str, code: int = 1) -> None:
    """Exit with ``code`` and the way out unless all modules ``names`` are installed; ``extra`` of rredcot has them."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        typer.echo(f"not installed: {', '.join(missing)}; pip install 'rredcot[{extra}]'", err=True)
        raise typer.Exit(code)
