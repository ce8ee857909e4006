"""The console command `rredcot`. Exit codes: 0 fine, 1 the check failed, 2 usage."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

NEEDS = ("typer", "rich", "yaml")


def main() -> None:
    """Entry point: run the command line, or say in one line how to install what it needs (exit code 2)."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"not installed: {', '.join(missing)}; pip install 'rredcot[cli]'\n")
        raise SystemExit(2)
    import_module("rredcot_plugin.commands.app").app()


if __name__ == "__main__":
    main()
