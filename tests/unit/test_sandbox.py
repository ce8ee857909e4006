"""Hostile code gets no reward and does no harm; correct code passes. Real processes, no stand-ins.

What harms the machine is tried in every strong means that it has. A machine without strong isolation skips these tests and
says why; with ``RREDCOT_REQUIRE_SANDBOX=1`` it fails them. The verdicts are in test_sandbox_verdicts.py.
"""

from __future__ import annotations

import pytest

from rredcot_plugin.sandbox import (
    available,
    isolation,
    run_tests,
)
from tests.unit.sandbox_checks import BRIEF, HANGS, PATIENT, SECRET, each_strong, unharmed  # noqa: F401  fixtures
from tests.unit.sandbox_programs import TESTS

pytestmark = pytest.mark.usefixtures("unharmed")


def test_this_machine_has_strong_isolation() -> None:
    found = available()
    assert found.means is not None, f"{found}. {isolation.ADVICE}"
    assert found.means.strong and "strong isolation by" in str(found)


@pytest.mark.parametrize(
    ("solution", "tests", "reason"),
    [
        ("def f(x): return x + 1", TESTS, "AssertionError in line 2 of the tests"),
        ("def f(x): return", TESTS, "AssertionError"),
        ("def f(x): raise ValueError('no')", TESTS, "ValueError in line 2 of the tests: no"),
        ("def g(x): return x", TESTS, "does not define 'f'"),
        ("def f(x) return x", TESTS, "does not load: SyntaxError"),
        ("1 / 0", TESTS, "does not load: ZeroDivisionError"),
        ("def f(x): return x * x", "x = 1", "never called"),
        ("def f(x): return x * x", "def check(candidate: pass", "SyntaxError"),
        ("def f(x): return x * x", "import sys\nassert f(2) == 4\nsys.exit(0)", "SystemExit"),
        ("def f(x): return x * x", "import os\nassert f(2) == 4\nos._exit(0)", "without a verdict"),
        ("def f(x): return lambda: 4", TESTS, "function is not plain data"),
        ("def f(x): return f(x)", TESTS, "RecursionError"),
    ],
)
def test_wrong_solutions_and_tests_say_why(solution: str, tests: str, reason: str) -> None:
    result = run_tests(solution, tests, "f", limits=PATIENT)
    assert not result.passed and reason in result.reason, result


def test_check_needs_an_entry_point() -> None:
    assert "entry_point" in run_tests("def f(x): return x * x", TESTS, limits=PATIENT).reason


EXHAUSTION = {
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", HANGS),
    "endless loop": ("while True: pass", BRIEF),
    "endless call": ("def f(x):\n    while True: pass", BRIEF),
    "catches the signal": (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        BRIEF,
    ),
    "sleeps": ("import time\ntime.sleep(1e6)", HANGS),
    "10 GB": ("x = bytearray(10 * 2**30)", PATIENT),
    "10 GB in parts": ("x = []\nwhile True: x.append(bytearray(2**24))", PATIENT),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        BRIEF,
    ),
    "floods output": ("while True: print('x' * 1000)", PATIENT),
    "floods errors": ("import os\nwhile True: os.write(2, b'x' * 65536)", PATIENT),
    "floods and closes": ("import os, sys\nsys.stdout.write('x' * 10**6)\nos.close(1)", PATIENT),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef g(n): return g(n + 1) + 1\ng(0)", BRIEF),
    "large file": ("open('x', 'wb').write(bytes(2 << 20))", PATIENT),
    "fills the disk": ("for i in range(99): open(str(i), 'wb').write(bytes(1 << 20))", PATIENT),
    "many files": ("i = 0\nwhile True:\n    i += 1\n    open(str(i), 'w').close()", BRIEF),
    "shared memory": (
        "import ctypes\nassert ctypes.CDLL(None).shmget(0, 10 * 2**30, 0o1600) >= 0",
        PATIENT,
    ),
}


@pytest.mark.parametrize("name", EXHAUSTION)
def test_exhaustion_ends_without_reward(name: str) -> None:
    exhaust(name)


@pytest.mark.usefixtures("each_strong")
@pytest.mark.parametrize(
    "name", ["fork bomb", "sleeps", "threads", "fills the disk", "large file", "shared memory"]
)
def test_what_the_means_bounds_is_bounded_by_each(name: str) -> None:
    exhaust(name)


def exhaust(name: str) -> None:
    source, limits = EXHAUSTION[name]
    if "def f(" not in source:
        source += "\ndef f(x): return x * x"
    result = run_tests(source, TESTS, "f", limits=limits)
    assert not result.passed and result.reason, result
    assert result.seconds < 60
