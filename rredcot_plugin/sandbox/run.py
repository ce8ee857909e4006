"""What users call: run a program, or put a solution to its tests, in the isolation this machine has."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from dataclasses import dataclass

from rredcot_plugin.report.text import visible
from rredcot_plugin.sandbox.isolation import SandboxUnavailable, choose
from rredcot_plugin.sandbox.limits import Limits
from rredcot_plugin.sandbox.process import Child, Pipe, Result, read_all, run_with, watch

UNTRUSTED = (
    'isolation="weak" gives no verdict that a reward can rely on: where the kernel has no Landlock, a solution can '
    "read the tests in the memory of the trainer. Use strong isolation (docs/guides/sandbox.md says how to get it), or say "
    "that you trust the code: trust_code=True (RREDCOT_TRUST_CODE=1 for recipes/code)."
)


@dataclass(frozen=True)
class TestResult:
    """The verdict on a solution; ``reason`` is empty if it passed. ``seconds`` is the wall clock of the call.

    The reason may quote the solution: it is always text that can be encoded, without control characters.
    """

    __test__ = False  # for pytest: no test class

    passed: bool
    reason: str
    seconds: float


def run_code(source: str, *, stdin: str = "", limits: Limits | None = None, isolation: str = "strong") -> Result:
    """Run a Python program (standard library only) in the sandbox and return what it wrote.

    ``SandboxUnavailable`` where the machine lacks the isolation, ``SandboxFailed`` where it did not start.
    """
    return run_with(choose(isolation), source, stdin, limits or Limits())


def run_tests(
    solution: str,
    tests: str,
    entry_point: str | None = None,
    *,
    limits: Limits | None = None,
    isolation: str = "strong",
    trust_code: bool = False,
) -> TestResult:
    """Whether ``solution`` passes ``tests``: asserts on its functions, or HumanEval's ``check(candidate)``.

    The two run in a sandbox each; arguments and results travel as plain data. ``entry_point`` is the function
    that ``candidate`` stands for; ``Class.method`` works. Errors as for ``run_code``; also ``SandboxUnavailable``
    for weak isolation without ``trust_code``, which says that the solution will not attack what runs it.
    """
    limits, means, started = limits or Limits(), choose(isolation), time.monotonic()
    if not (means.strong or trust_code):
        raise SandboxUnavailable(UNTRUSTED)
    secret = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        requests, replies, verdict = (Pipe(stack) for _ in range(3))
        worker = Child.start(
            stack,
            means,
            limits,
            {"role": "solution", "source": solution},
            reads=requests.reads,
            writes=replies.writes,
        )
        job = {"role": "checker", "tests": tests, "entry_point": entry_point, "secret": secret}
        checker = Child.start(
            stack, means, limits, job, reads=replies.reads, writes=requests.writes, verdict=verdict.writes
        )
        for pipe in (requests, replies, verdict):
            pipe.keep_only(pipe.reads if pipe is verdict else None)
        ended = watch(checker, [worker, checker], limits)
        checker.end()
        worker.end()
        said = read_all(verdict.reads, 1 << 16)
        worker.require_started()
        checker.require_started()
    reason = _why(ended, said, secret, checker.status)
    return TestResult(not reason, reason, time.monotonic() - started)


def _why(ended: str, said: bytes, secret: str, status: int | None) -> str:
    """Why the solution did not pass; empty only for the checker's own word, complete and with the secret."""
    if ended == "timeout":
        return "timeout: the wall clock ran out"
    if ended == "output":
        return "output: the solution or the tests wrote more than allowed"
    try:
        mark, passed, reason = json.loads(said)
    except (ValueError, TypeError):
        return f"the checker ended without a verdict (status {status})"
    if mark != secret:
        return "the verdict is not the checker's"
    # A lone surrogate would end the run where verl writes the reason as UTF-8, an escape reach a terminal.
    return "" if passed is True and not reason else visible(str(reason))
