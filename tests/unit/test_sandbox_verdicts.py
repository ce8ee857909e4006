"""Cheats earn nothing and honest programs earn everything, in every isolation of this machine."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable

import pytest

from rredcot_plugin.sandbox import Limits, SandboxUnavailable, TestResult, isolation, run_tests
from rredcot_plugin.sandbox.inside import landlock
from tests.unit.sandbox_checks import BRIEF, HANGS, PATIENT, STRONG, require, unharmed  # noqa: F401  a fixture
from tests.unit.sandbox_honest import HONEST, HONEST_BY_THE_SYSTEM, SQUARE
from tests.unit.sandbox_programs import BY_THE_SYSTEM, CHEATS, EVERY_AND_MAP, HANGING, PROPERTY, SEQUENCE, TESTS

pytestmark = pytest.mark.usefixtures("unharmed")
Run = Callable[..., TestResult]
ISOLATIONS = (*STRONG, "weak")


def runs_in(name: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run_tests`` in one of the isolations."""
    if name == "weak":
        return lambda *given, **more: run_tests(*given, isolation="weak", trust_code=True, **more)
    monkeypatch.setattr(isolation, "_found", isolation.Availability(require(name), ()))
    return run_tests


@pytest.fixture(params=ISOLATIONS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run_tests`` in each isolation."""
    return runs_in(request.param, monkeypatch)


def everywhere(programs: Iterable[str], by_the_system: Iterable[str]) -> list[tuple[str, str]]:
    """Each program with bubblewrap and in weak isolation, those that concern the system with ``unshare`` too."""
    return [(where, name) for where in ("bubblewrap", "weak") for name in programs] + [
        ("unshare", name) for name in by_the_system
    ]


@pytest.mark.parametrize(("where", "name"), everywhere(HONEST, HONEST_BY_THE_SYSTEM))
def test_honest_programs_earn_everything(where: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = runs_in(where, monkeypatch)(*HONEST[name], limits=PATIENT)
    assert result.passed and result.reason == "" and result.seconds > 0, result


SILENT = {"patched checker", "closes everything", "alarm", "becomes /bin/true", "patched import"}
"""These may leave a process that no longer answers."""
BUSY = {*HANGING, "colliding keys"}


@pytest.mark.parametrize(("where", "name"), everywhere(CHEATS, BY_THE_SYSTEM))
def test_cheats_earn_nothing(where: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "memory of the trainer" and where == "weak" and not landlock.version():
        pytest.skip(
            "weak isolation shows the trainer's memory where the kernel has no Landlock: docs/guides/sandbox.md"
        )
    solution, tests = CHEATS[name]
    limits = HANGS if name in SILENT else BRIEF if name in BUSY else PATIENT
    result = runs_in(where, monkeypatch)(
        solution, tests, "f" if "check(candidate)" in tests else None, limits=limits
    )
    assert not result.passed and result.reason, result


def test_there_are_enough_programs() -> None:
    assert len(CHEATS) >= 40 and len(HONEST) >= 15


@pytest.mark.parametrize("tests", [EVERY_AND_MAP, SEQUENCE, PROPERTY + "assert getattr(S(), 'right', True)\n"])
def test_what_the_tests_swallow_is_named(run: Run, tests: str) -> None:
    """The same tests pass with a right solution, and name the exception of a wrong one."""
    assert run(SQUARE, tests, limits=PATIENT).passed
    kind = "AttributeError" if "getattr" in tests else "IndexError"
    reason = run(f"def f(x): raise {kind}", tests, limits=PATIENT).reason
    assert kind in reason and ("which no except or with of the tests caught" in reason or tests == EVERY_AND_MAP)


@pytest.mark.parametrize(
    ("solution", "tests"),
    [
        ("def f(x): return float('nan')", "assert not abs(f(2) - 4) > 1e-6\n"),
        ("def f(x): raise ValueError", "try:\n    assert f(2) == 4\nexcept ValueError:\n    pass\n"),
        ("def f(x): return []", SEQUENCE.replace("f(i) == i * i", "f(i)[0] == i * i")),
        ("def f(x): return x\ndef close(a, b): return True", "assert close(f(2), 4)\n"),
    ],
    ids=["nan", "tests that catch", "an error of the tests' own", "a name that the tests leave open"],
)
def test_what_remains_is_the_fault_of_the_tests(solution: str, tests: str) -> None:
    """docs/guides/sandbox.md lists these: wrong solutions that pass, because the tests let them."""
    assert run_tests(solution, tests, limits=PATIENT).passed


def test_built_in_names_belong_to_the_solution_only_where_nothing_else_can_be(run: Run) -> None:
    solution = "def sum(a, b): return a + b\ndef len(x): return 2"
    assert run(solution, "assert sum(1, 2) == 3\n", limits=PATIENT).passed
    tests = "assert sum(1, 2) == 3 and len([]) == 0\n"
    assert run(solution, tests, "sum", limits=PATIENT).passed
    assert not run(solution, tests, limits=PATIENT).passed
    assert not run(solution, "assert len([]) == 2\nassert sum([1]) == 1\n", limits=PATIENT).passed


@pytest.mark.parametrize(
    ("solution", "shown"),
    [
        (r"raise ValueError('\ud800 \x1b[2J')", "the solution does not load: ValueError: · ·[2J"),
        (r"def f(x): raise ValueError('\ud800\x1b')", "ValueError in line 1 of the tests: ··"),
    ],
)
def test_a_reason_can_always_be_written(solution: str, shown: str) -> None:
    """verl writes it as UTF-8, and a lone surrogate of the solution's would end the run."""
    reason = run_tests(solution, "assert f(2) == 4\n", limits=PATIENT).reason
    assert reason == shown and reason.encode()


@pytest.mark.parametrize("where", STRONG)
def test_processes_of_a_program_have_locks_and_pools(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solution = (
        "import multiprocessing as m\ndef f(numbers):\n    with m.Lock(), m.Pool(2) as pool:\n"
        "        return pool.map(abs, numbers)"
    )
    result = runs_in(where, monkeypatch)(solution, "assert f([1, -2]) == [1, 2]", "f", limits=PATIENT)
    assert result.passed, result


# -- weak isolation --------------------------------------------------------------------------------------------


def test_weak_isolation_gives_no_verdict_unless_the_code_is_trusted() -> None:
    with pytest.raises(SandboxUnavailable, match=r"trust_code=True.*RREDCOT_TRUST_CODE=1"):
        run_tests(SQUARE, TESTS, "f", isolation="weak")
    assert run_tests(SQUARE, TESTS, "f", isolation="weak", trust_code=True, limits=PATIENT).passed
    assert run_tests(SQUARE, TESTS, "f", trust_code=True, limits=PATIENT).passed


@pytest.mark.skipif(sys.platform != "linux", reason="abstract addresses are Linux's")
def test_no_datagram_reaches_a_socket_of_the_machine(run: Run) -> None:
    address = f"\0rredcot-test-{os.getpid()}"
    solution = (
        "import socket\ndef f(kind):\n    try:\n        a, b = socket.socketpair(socket.AF_UNIX, kind)\n"
        f"        a.sendto(b'out', {address!r})\n    except OSError: return False\n    return True"
    )
    tests = f"assert not any([f(kind) for kind in {[int(socket.SOCK_DGRAM), int(socket.SOCK_STREAM), 5, 2 | 0x80000]}])\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.setblocking(False)
        assert run(solution, tests, limits=PATIENT).passed
        with pytest.raises(BlockingIOError):
            listener.recv(8)


def test_a_pair_of_streams_serves_asyncio_alone(run: Run) -> None:
    solution = (
        "import socket\ndef f():\n    a, b = socket.socketpair()\n    a.sendall(b'x')\n    got = b.recv(1)\n"
        "    for call in (lambda: a.bind('x'), lambda: a.connect('x'), lambda: socket.socket()):\n"
        "        try: call()\n        except PermissionError: continue\n        return 'reached'\n    return got"
    )
    assert run(solution, "assert f() == b'x'\n", limits=Limits(wall_seconds=60.0)).passed
