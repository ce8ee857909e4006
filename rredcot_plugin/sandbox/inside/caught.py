"""An exception of the solution counts as expected only where the tests catch it in a place that can be seen.

Python itself swallows exceptions: ``all(map(candidate, …))`` takes a StopIteration for the end, iteration by
``__getitem__`` an IndexError, ``getattr`` with a default an AttributeError. A solution that raises the right one
would skip the comparison. So the ``except`` clauses and ``with`` blocks of the tests are made to report what they
catch, and an exception that was raised and never reported means that the tests did not pass.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False  # as in ``typing``, whose import would cost every run milliseconds; so does ast
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from typing import Any

_MARK = "_raised_by_solution"
_END = object()


class Caught:
    """Exceptions that were raised in the tests' process, until the tests catch them."""

    def __init__(self) -> None:
        self._open: dict[int, BaseException] = {}

    def raised(self, error: BaseException) -> BaseException:
        """The same exception, from here on watched."""
        try:
            raise error  # gives it a traceback, whose absence would mean "caught" below
        except type(error):
            setattr(error, _MARK, True)
            self._open[id(error)] = error
        return error

    def names(self) -> dict[str, Any]:
        """What instrumented tests find among their globals."""
        return {"__caught__": self._caught, "__again__": self._again, "next": self._next}

    def swallowed(self) -> str:
        """The first exception that the tests went on after without having caught it; empty if there is none."""
        for error in self._open.values():
            if error.__traceback__ is not None:  # unittest's assertRaises(ValueError, f, x) takes it away
                return f"{type(error).__name__} of the solution, which no except or with of the tests caught"
        return ""

    def _caught(self) -> None:
        for error in _parts(sys.exc_info()[1]):
            self._open.pop(id(error), None)

    def _again(self) -> None:
        for error in _parts(sys.exc_info()[1]):
            if hasattr(error, _MARK):
                self._open[id(error)] = error

    def _next(self, iterator: Any, default: Any = _END) -> Any:
        """``next`` for the tests: an empty result of the solution must not end their own iteration either."""
        try:
            return builtins.next(iterator) if default is _END else builtins.next(iterator, default)
        except StopIteration as error:
            if sys._getframe(1).f_code.co_name != "__next__":
                self.raised(error)
            raise


def instrument(tree: ast.Module) -> None:
    """Make every ``except`` clause and ``with`` block of ``tree`` report what it catches, and what leaves it."""
    import ast

    _rewrite(tree)
    ast.fix_missing_locations(tree)


def _parts(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and, for a group (``except*``), those in it."""
    if error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for part in error.exceptions:
                yield from _parts(part)


def _rewrite(node: ast.AST) -> None:
    """Statements only: no expression holds a ``try`` or a ``with``, and literals of tests can be large."""
    import ast

    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        statements = getattr(node, block, None)
        if not isinstance(statements, list):
            continue
        for place, statement in enumerate(statements):
            _rewrite(statement)
            if isinstance(statement, ast.ExceptHandler):
                reopened = _try(statement.body, _call("__again__"))
                statement.body = [_call("__caught__"), reopened]
            elif isinstance(statement, ast.With | ast.AsyncWith):
                statement.body = [_try(statement.body, _call("__caught__"))]
                statements[place] = ast.copy_location(_try([statement], _call("__again__")), statement)


def _call(name: str) -> ast.stmt:
    import ast

    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))


def _try(body: list[ast.stmt], note: ast.stmt) -> ast.stmt:
    """``body``; what leaves it as an exception is noted on the way."""
    import ast

    everything = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), None, [note, ast.Raise()])
    return ast.Try(body, [everything], [], [])
