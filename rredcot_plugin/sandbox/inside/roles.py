"""The three jobs of a sandboxed interpreter: run a program, answer calls to a solution, check a solution.

The checker holds the tests and decides; the solution sits in another sandbox and is reached through two pipes.
So nothing that the solution does to its own interpreter (built-ins, ``assert``, exit handlers, the stack) can
touch the comparison, and of the tests it sees the arguments of the calls only.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from _thread import allocate_lock  # ``threading`` takes milliseconds to import

from .caught import Caught, instrument
from .kernel import confine
from .plain import ChannelError, decode, encode, receive, send

TYPE_CHECKING = False  # as in ``typing``, whose import would cost every run milliseconds; so do ast and traceback
if TYPE_CHECKING:
    import ast
    from collections.abc import Callable
    from typing import Any

    Job = dict[str, Any]


def run_program(job: Job) -> None:
    """Run ``source`` as ``__main__``; its own exit status and traceback are the outcome."""
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # which ``site`` would give
    _execute(job["source"], "<solution>", "__main__")


def _execute(source: str | ast.Module, file: str, name: str, **given: Any) -> dict[str, Any]:
    """Run ``source`` as the module ``name``, which dataclasses and pickle look up, and return its names."""
    module = sys.modules[name] = type(sys)(name)
    names = vars(module)
    names |= given
    exec(compile(source, file, "exec", dont_inherit=True), names)
    return names


# -- the solution's side ---------------------------------------------------------------------------------------


def answer_calls(job: Job) -> None:
    """Load ``source`` and answer ``[number, name, arguments, keywords]`` until the checker closes."""
    requests, replies = job["reads"], job["writes"]
    receive(requests)  # the checker is up: whatever goes wrong from here on is the solution's doing
    try:
        names = _execute(job["source"], "<solution>", "solution")
    except BaseException as error:  # noqa: BLE001  SystemExit too: the reply says that it did not load
        send(replies, ["raised", 0, type(error).__name__, _text(error)])
        return
    send(replies, ["value", 0, None])
    while True:
        number, name, args, kwargs = receive(requests)
        try:
            result = encode(_find(names, name)(*decode(args), **decode(kwargs)))
        except BaseException as error:  # noqa: BLE001  whatever it was, the checker decides
            send(replies, ["raised", number, _builtin_name(type(error)), _text(error)])
        else:
            send(replies, ["value", number, result])


def _find(names: dict[str, Any], path: str) -> Callable[..., Any]:
    """``f``, or ``Solution.f``: a class on the way is instantiated without arguments."""
    first, *rest = path.split(".")
    if first not in names:
        raise NameError(f"the solution does not define {first!r}")
    found: Callable[..., Any] = names[first]
    for name in rest:
        found = getattr(found() if isinstance(found, type) else found, name)
    return found


def _builtin_name(kind: type[BaseException]) -> str:
    """The nearest built-in class: tests that expect a ``ValueError`` get one for ``JSONDecodeError``."""
    base = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    return (kind if base in (Exception, BaseException) else base).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:  # noqa: BLE001  its __str__ is the solution's
        return ""


# -- the tests' side -------------------------------------------------------------------------------------------


class SolutionGone(BaseException):
    """No further answer will come. Not an ``Exception``: tests that catch those must not go on."""


class _Link:
    """The pipe to the solution. ``broken`` says why there is no verdict but failure, whatever the tests catch."""

    def __init__(self, reads: int, writes: int):
        self.reads, self.writes = reads, writes
        self.calls = 0
        self.lock = allocate_lock()  # tests may call from several threads
        self.broken = ""
        self.caught = Caught()

    def loaded(self) -> None:
        """Let the solution load, and wait until it has."""
        self._send(["load"])
        kind, _, *rest = self._reply(0)
        if kind != "value":
            self._give_up(f"the solution does not load: {': '.join(str(part) for part in rest)}")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = [name, encode(args), encode(kwargs)]  # a TypeError here is the tests' own
        with self.lock:
            self.calls += 1
            self._send([self.calls, *request])
            kind, _, *rest = self._reply(self.calls)
        if kind == "raised":
            raise self.caught.raised(_as_builtin(*rest))
        try:
            return decode(rest[0])
        except Exception as error:  # noqa: BLE001  any: the bytes are the solution's
            self._give_up(f"the solution did not send plain data ({type(error).__name__})")

    def _send(self, message: list[Any]) -> None:
        try:
            send(self.writes, message)
        except ChannelError as error:
            self._give_up(str(error))

    def _reply(self, number: int) -> list[Any]:
        try:
            reply = receive(self.reads)
        except ChannelError as error:
            self._give_up(str(error))
        well_formed = len(reply) == (3 if reply[:1] == ["value"] else 4) and reply[0] in ("value", "raised")
        if self.broken or not well_formed or reply[1] != number:
            self._give_up(self.broken or "the solution wrote into the channel of its results")
        return reply

    def _give_up(self, reason: str) -> Any:
        self.broken = self.broken or reason
        raise SolutionGone(self.broken)


def _as_builtin(name: Any, text: Any) -> Exception:
    """The exception as a built-in one, so that tests which expect a ``ValueError`` see one.

    As in a generator (PEP 479), those that end an iteration become a RuntimeError.
    """
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    ends = (StopIteration, StopAsyncIteration)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ends):
        try:
            return kind(str(text))
        except TypeError:  # UnicodeDecodeError and the like want more arguments
            pass
    return RuntimeError(f"{str(name)[:80]}: {text}")


class _Remote:
    """A function of the solution, seen from the tests: arguments and results travel by value."""

    def __init__(self, link: _Link, name: str):
        self._link, self._name = link, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self._name, args, kwargs)


def check_solution(job: Job) -> None:
    """Run the tests and write ``[secret, passed, reason]`` once, after the last of them."""
    link = _Link(job["reads"], job["writes"])
    reason = ""
    try:
        link.loaded()
        _run_tests(link, job["tests"], job["entry_point"])
    except BaseException as error:  # noqa: BLE001  a test that exits has not passed
        reason = _reason(error) or type(error).__name__
    reason = link.broken or reason or link.caught.swallowed()
    reason = reason or ("" if link.calls else "the tests never called the solution")
    verdict = json.dumps([job["secret"], not reason, reason[:500]]).encode()
    os.write(job["verdict"], verdict)


def _run_tests(link: _Link, tests: str, entry_point: str | None) -> None:
    import ast

    tree = compile(tests, "<tests>", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    given: dict[str, Any] = link.caught.names()
    given |= {name: _Remote(link, name) for name in _solution_names(tree, entry_point)}
    if entry_point:
        given["candidate"] = _Remote(link, entry_point)
    instrument(tree)
    names = _execute(tree, "<tests>", "__tests__", **given)
    check = names.get("check")
    if not link.calls and callable(check) and not isinstance(check, _Remote):
        if not entry_point:
            raise ValueError("the tests define check(candidate), which needs an entry_point")
        check(_Remote(link, entry_point))


def _solution_names(tree: ast.Module, entry_point: str | None) -> set[str]:
    """Names that the tests use and neither bind nor find among the built-ins: those of the solution.

    A built-in name (MBPP has a ``sum(a, b)``) is the solution's if the entry point says so, or if nothing else can
    be: the tests call one built-in and no other name is free. Never because the solution defines it, which could
    then bring a ``len`` or ``abs`` of its own into the comparison.
    """
    used, bound, called = _names_of(tree)
    free = used - bound - _BUILTINS
    if entry_point:
        asked_for = not {"check", "candidate"} & (used | bound) and entry_point not in bound
        return free | ({entry_point} & _BUILTINS if asked_for else set())
    return free or (called - bound if len(called - bound) == 1 else set())


_BUILTINS = frozenset(dir(builtins))


def _names_of(tree: ast.Module) -> tuple[set[str], set[str], set[str]]:
    """The names that ``tree`` reads, those that it binds, and the built-in functions and types that it calls."""
    import ast

    used: set[str] = set()
    bound: set[str] = set()
    called: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _is_function(node.func.id):
            called.add(node.func.id)
    return used, bound, called


def _is_function(name: str) -> bool:
    """Whether a built-in could be what a solution is asked to write: no exception, and not ``print``."""
    found = getattr(builtins, name, None)
    is_exception = isinstance(found, type) and issubclass(found, BaseException)
    return callable(found) and not is_exception and name != "print"


def _reason(error: BaseException) -> str:
    if isinstance(error, SolutionGone):
        return str(error)
    import traceback

    line = next(
        (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == "<tests>"), 0
    )
    where = f" in line {line} of the tests" if line else ""
    return f"{type(error).__name__}{where}: {_text(error)}".removesuffix(": ")


ROLES: dict[str, Callable[[Job], None]] = {
    "program": run_program,
    "solution": answer_calls,
    "checker": check_solution,
}


def main() -> None:
    """Read the job, confine this process, say so, and start: ``python -c … <descriptor of the job>``."""
    with open(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        job = json.load(file)
    sys.argv = [job["role"]]
    sys.path.pop(0)  # this package is none of the solution's
    confine(job["limits"], may_fork=job["may_fork"], paths=job["paths"])
    os.write(job["ready"], b"1")
    os.close(job["ready"])
    ROLES[job["role"]](job)
