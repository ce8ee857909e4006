"""A run of the tiny reasoner in a process of its own, and what it has logged."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rredcot_plugin.tiny.openrlhf import command, environment

LIMIT = 600

START = """
from rredcot_plugin.integrations import lazy
lazy.install({{{module!r}: "breakage"}})
"""


def run(
    folder: Path,
    *words: str,
    without: str | None = None,
    code: int = 0,
    changed: dict[str, str] | None = None,
) -> str:
    """Standard output and error of a run, which must end with ``code``; ``changed`` variables of its environment."""
    done = subprocess.run(
        command(folder, *words, without=without),
        env=environment() | (changed or {}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def numbers(log: str, name: str) -> list[float]:
    """A metric of every step."""
    return [float(found) for found in re.findall(rf"'{re.escape(name)}': ([-0-9.e]+)", log)]


def broken(folder: Path, module: str, breakage: str) -> dict[str, str]:
    """Variables of a run whose processes execute ``breakage`` after the import of ``module``: Python starts every one of them
    with ``sitecustomize``."""
    (folder / "breakage.py").write_text(breakage)
    (folder / "sitecustomize.py").write_text(START.format(module=module))
    return {"PYTHONPATH": f"{folder}:{environment()['PYTHONPATH']}"}
