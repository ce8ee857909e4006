"""What commands take as a script: a file that is there."""

from __future__ import annotations

from pathlib import Path

import typer


def check_script(script: Path) -> None:
    """Say which folder a script was looked for in, unless it is there.

    Raises:
        typer.BadParameter: there is no such file, or it is a folder.
    """
    if script.is_dir():
        raise typer.BadParameter(f"{script}: is a folder; expected a script that starts a trainer")
    if not script.is_file():
        raise typer.BadParameter(f"{script}: no such file (looked in {script.absolute().parent})")
