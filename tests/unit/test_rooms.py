"""Which part of the package may know which: arrows go from what people use, over hosts, to the method, and never back."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rredcot_plugin"
METHOD = [
    "types",
    "registry",
    "checks",
    "groups",
    "config",
    "allowed",
    "biases",
    "choices",
    "options",
    "presets",
    "text",
    "segmenters",
    "probes",
    "values",
    "baselines",
    "credit",
    "state_numbers",
    "state_values",
    "earned",
    "measured",
    "scaled",
    "pipeline",
    "testing",
    "renamed",
    "written",
]
"""What turns rollouts into credit: torch and numpy, no host."""
HOSTS = (
    "integrations.verl",
    "integrations.verl_cpu",
    "integrations.openrlhf",
    "integrations.openrlhf_cpu",
    "integrations.cpu",
    "integrations.advice",
)
PEOPLE = (
    "report",
    "offline",
    "planning",
    "dry_run",
    "demo",
    "tiny",
    "commands",
    "sandbox",
    "cli",
    "explanation",
    "reference",
)


def room_of(module: str) -> str:
    """``rredcot_plugin.integrations.verl.batch`` -> ``integrations.verl``; elsewhere one name."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] == "integrations" else parts[0]


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file names in an import, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "rredcot_plugin":
            found |= {f"rredcot_plugin.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rredcot_plugin."):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("rredcot_plugin.")}
    return found


def arrows() -> list[tuple[str, str, str]]:
    """(file, its room, a room that it knows)."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
        if path.name == "__init__.py" and path.parent == PACKAGE:
            continue  # the public names
        found += [(name, room_of(name), room_of(module)) for module in imports_of(path)]
    return [(name, own, other) for name, own, other in found if own != other]


def test_the_method_knows_nobody_else() -> None:
    assert [(name, other) for name, own, other in arrows() if own in METHOD and other not in METHOD] == []


def test_between_host_and_method_stands_the_adapter() -> None:
    allowed = {*METHOD, "adapter"}
    assert [(name, other) for name, own, other in arrows() if own == "adapter" and other not in allowed] == []


def test_nothing_that_trains_knows_the_command_line() -> None:
    trains = {*METHOD, *HOSTS, "adapter", "report", "offline", "planning", "tiny", "sandbox"}
    assert [(name, other) for name, own, other in arrows() if own in trains and other in ("commands", "cli")] == []


def test_every_room_is_known_here() -> None:
    known = {*METHOD, *HOSTS, *PEOPLE, "adapter", "conf", "integrations.lazy", "integrations.__init__"}
    assert {own for _, own, _ in arrows()} <= known
