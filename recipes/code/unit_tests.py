"""Unit tests as data sets write them, turned into the form that the sandbox runs: statements that call the solution."""

from __future__ import annotations

import ast
import builtins

SOLUTION_MODULE = "solution"
"""Where tests in pytest's style import from (KodCode)."""


class UnusableError(ValueError):
    """Tests that the sandbox cannot run; the text is the reason that is counted."""


def from_pytest(source: str) -> str:
    """A pytest file as a plain program: without the import of the solution, its test functions called at the end.

    Names that were imported from the solution stay free, which is how the sandbox knows them. `UnusableError` for
    what needs pytest itself (fixtures, `raises`, `parametrize`), for test classes and for renaming imports.
    """
    tree = parsed(source)
    body = [node for node in tree.body if not _is_dropped(node)]
    kept = ast.Module(body, type_ignores=[])
    if any(isinstance(node, ast.Name) and node.id == "pytest" for node in ast.walk(kept)):
        raise UnusableError("tests that need pytest")
    if any(_imports_solution(node) for node in ast.walk(kept)):
        raise UnusableError("tests that import the solution in an unusual way")
    if any(isinstance(node, ast.ClassDef) and node.name.startswith("Test") for node in body):
        raise UnusableError("tests in a class")
    calls = []
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            if node.args.args or node.args.kwonlyargs:
                raise UnusableError("tests that need pytest")
            calls.append(f"{node.name}()")
    return "\n".join([_written(kept), *calls]) + "\n"


def _written(tree: ast.Module) -> str:
    try:
        return ast.unparse(tree)
    except RecursionError as error:
        raise UnusableError("tests that are nested too deeply") from error


def _is_dropped(node: ast.stmt) -> bool:
    """`from solution import f` and `import pytest` at the top; the rest is kept or refused."""
    if isinstance(node, ast.ImportFrom) and node.module == SOLUTION_MODULE:
        return all(name.asname in (None, name.name) and name.name != "*" for name in node.names)
    return isinstance(node, ast.Import) and [name.name for name in node.names] == ["pytest"]


def _imports_solution(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == SOLUTION_MODULE
    return isinstance(node, ast.Import) and SOLUTION_MODULE in [name.name for name in node.names]


def is_pytest(source: str) -> bool:
    """Whether a text is a pytest file: it imports from `solution`, or has test functions that nobody calls.

    What only `if __name__ == "__main__"` calls is called by nobody: in the sandbox that is not the tests' name.
    """
    tree = parsed(source)
    running = [node for statement in tree.body if not _is_guard(statement) for node in ast.walk(statement)]
    called = {node.func.id for node in running if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return any(_imports_solution(node) for node in ast.walk(tree)) or any(
        name.startswith("test_") and name not in called for name in functions
    )


def unguarded(source: str) -> str:
    """Tests that run whatever their name: what stands under `if __name__ == "__main__"` stands at the top."""
    tree = parsed(source)
    if not any(map(_is_guard, tree.body)):
        return source
    bodies = [node.body if isinstance(node, ast.If) and _is_guard(node) else [node] for node in tree.body]
    return _written(ast.Module([node for body in bodies for node in body], type_ignores=[])) + "\n"


def _is_guard(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`, in whatever order."""
    return isinstance(node, ast.If) and {"__name__", "'__main__'"} <= {
        ast.unparse(part) for part in ast.walk(node.test) if isinstance(part, ast.Name | ast.Constant)
    }


def check_usable(source: str, entry_point: str | None) -> None:
    """`UnusableError` for tests that could not fail, or that nobody would call."""
    tree = parsed(source)
    if not any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(tree)):
        raise UnusableError("tests without an assert")
    has_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    if has_check and not entry_point:
        raise UnusableError("tests with check(candidate) and no entry_point")


def built_in_entry_point(solution: str, source: str) -> str | None:
    """The function that the tests call and the reference solution defines under the name of a built-in (MBPP's
    `sum(a, b)`), which they would otherwise find; None where there is no such function, or more than one."""
    try:
        calls, defined = ast.walk(parsed(source)), parsed(solution).body
    except UnusableError:
        return None
    called = {node.func.id for node in calls if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    functions = {node.name for node in defined if isinstance(node, ast.FunctionDef)}
    found = called & functions & set(dir(builtins))
    return found.pop() if len(found) == 1 else None


def parsed(source: str) -> ast.Module:
    """The syntax tree; `UnusableError` where there is none."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnusableError("tests that are not Python") from error


def preamble(prompt: str, entry_point: str) -> str | None:
    """What stands around the function that a HumanEval prompt leaves open: imports and helpers, which its tests may
    use; None if the prompt is not a program with that function."""
    try:
        tree = parsed(prompt)
    except UnusableError:
        return None
    rest = [node for node in tree.body if not _defines(node, entry_point)]
    return "".join(ast.unparse(node) + "\n" for node in rest) if len(rest) < len(tree.body) else None


def description(prompt: str, entry_point: str) -> str:
    """The task in words, without signature and examples: the docstring of the function up to the first `>>>`.

    The whole prompt where there is no such docstring.
    """
    try:
        found = [node for node in parsed(prompt).body if _defines(node, entry_point)]
    except UnusableError:
        found = []
    words = ast.get_docstring(found[0]) if found and isinstance(found[0], ast.FunctionDef) else None
    return (words or prompt).partition(">>>")[0].strip()


def _defines(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name
