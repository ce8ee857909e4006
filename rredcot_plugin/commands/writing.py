"""Outputs that cannot be written end a command with one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def written(option: str, path: Path) -> Iterator[None]:
    """What happens inside writes ``path``, which the user gave as ``option``.

    Raises:
        typer.BadParameter: it cannot; says why.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise typer.BadParameter(f"{option}={path}: cannot be written: {reason}; take another place") from error
