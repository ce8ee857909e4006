"""Write the generated pages and Hydra groups, or say which differ: `python -m rredcot_plugin.reference --write FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rredcot_plugin.reference.files import files


def main() -> int:
    """Exit code 1 where a file differs and ``--write`` was not given."""
    parser = argparse.ArgumentParser(prog="python -m rredcot_plugin.reference", description=__doc__)
    parser.add_argument("--write", metavar="FOLDER", type=Path, help="root of a checkout to write the files into")
    parser.add_argument("--check", metavar="FOLDER", type=Path, help="root of a checkout whose files to compare")
    args = parser.parse_args()
    root = args.write or args.check
    if root is None:
        parser.error("expected --write FOLDER or --check FOLDER")
    stale = [
        name
        for name, text in files().items()
        if not (root / name).is_file() or (root / name).read_text("utf-8") != text
    ]
    for name in stale:
        if args.write is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(files()[name], "utf-8")
        sys.stdout.write(f"{'written' if args.write is not None else 'differs'}: {name}\n")
    return int(bool(stale) and args.write is None)


if __name__ == "__main__":
    raise SystemExit(main())
