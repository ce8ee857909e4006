"""The size of files and functions: what cannot be read at once is split."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("rredcot_plugin", "benchmarks", "tools", "recipes", "examples", "tests")
MOST_LINES_OF_FUNCTION, MOST_LINES_OF_FILE = 60, 300

FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_there_is_something_to_look_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(FOLDERS)


def test_no_function_is_too_long() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}: {function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in FILES
        for function in functions(path)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_FUNCTION} == {}


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_FILE} == {}
