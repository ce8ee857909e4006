"""Whether an installed rredcot has what it needs beside its modules. Exit code 1 and a line for each thing that is missing."""

from __future__ import annotations

import sys
from importlib import metadata, resources
from pathlib import Path

FILES = (
    "py.typed",
    "conf/rredcot/default.yaml",
    "tiny/checkpoint/config.json",
    "tiny/checkpoint/model.safetensors",
    "tiny/train_cpu.sh",
    "report/page.html",
    "report/page.css",
    "report/report.css",
    "report/report.js",
    "dry_run/architectures.json",
)


def missing() -> list[str]:
    """What is not there, in words."""
    package = resources.files("rredcot_plugin")
    found = [f"{name}: not in the package" for name in FILES if not package.joinpath(name).is_file()]
    plugins = {entry.name for entry in metadata.entry_points(group="verl.plugins")}
    found += [
        f"{name}: no entry point of verl.plugins" for name in ("rredcot", "rredcot_cpu") if name not in plugins
    ]
    if not (Path(sys.prefix) / "share/rredcot/recipes/common.sh").is_file():
        found.append("share/rredcot/recipes: not installed; `rredcot recipe` needs them")
    if "site-packages" not in str(package):
        found.append(f"{package}: a checkout was imported, not what is installed")
    return found


def main() -> int:
    lines = missing()
    print("\n".join(lines) or f"rredcot {metadata.version('rredcot')}: complete")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
