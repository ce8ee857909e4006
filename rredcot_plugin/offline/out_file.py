"""What an output must be, for the commands and for what they call; imports nothing, so that commands start fast."""

from __future__ import annotations

from pathlib import Path

SCORED = ".scored.jsonl"
"""How the name of scored rollouts ends, in place of that of the rollouts."""


def why_no_file(path: Path) -> str:
    """Why ``path`` is in the way of a file whatever ``--force``; empty where a file may be written."""
    if not path.exists() or path.is_file():
        return ""
    return f"{path}: expected a file to write to, got {'a folder' if path.is_dir() else 'something else'}"
