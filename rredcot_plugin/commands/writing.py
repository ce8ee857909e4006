"""Outputs that cannot be written end a command with one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from rredcot_plugin.offline.out_file import why_no_file


def check_is_file(option: str, path: Path) -> None:
    """A folder, or a device, is never overwritten, so that ``--force`` is not a way out.

    Raises:
        typer.BadParameter: the output is one; says which.
    """
    if why := why_no_file(path):
        raise typer.BadParameter(f"{option}={why}")


@contextmanager
def written(option: str, path: Path) -> Iterator[None]:
    """What happens inside writes ``path``, which the user gave as ``option``.

    Raises:
        typer.BadParameter: it cannot; says why.
    """
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(why_not_written(option, path, error)) from error


def why_not_written(option: str, path: Path, error: OSError) -> str:
    """Why ``path``, which the user gave as ``option``, cannot be written, for a message."""
    reason = error.strerror or type(error).__name__
    return f"{option}={path}: cannot be written: {reason}; use another place"
