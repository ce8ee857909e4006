"""Hostile code gets no reward and does no harm; correct code passes. Real processes, no stand-ins.

A machine without strong isolation skips these tests and says why; with ``RREDCOT_REQUIRE_SANDBOX=1`` it fails them.
"""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rredcot_plugin.sandbox import (
    Limits,
    Result,
    SandboxFailed,
    SandboxUnavailable,
    available,
    isolation,
    launch,
    run_code,
    run_tests,
)
from rredcot_plugin.sandbox.inside import kernel, plain
from rredcot_plugin.sandbox.process import run_with

SECRET = "correct-horse-battery-staple"
PATIENT = Limits(wall_seconds=60.0)  # a loaded machine must not turn "refused" into "timeout"
BRIEF = Limits(cpu_seconds=1, wall_seconds=60.0)
HANGS = Limits(wall_seconds=1.5)
TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n"


def sandboxed() -> set[int]:
    """Processes of this machine that run, or build, a sandbox."""
    lines = {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
    return {pid for pid, line in lines.items() if "sandbox" in line and "inside" in line}


def children() -> set[int]:
    """Children of this process, zombies included; threads and processes may end while they are counted."""
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture(autouse=True)
def unharmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test: no process, descriptor or file is left, and the secret is where it was."""
    monkeypatch.setenv("RREDCOT_TEST_SECRET", SECRET)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if available().means is None and not os.environ.get("RREDCOT_REQUIRE_SANDBOX"):
        pytest.skip(f"{available()}")
    before, mine, ours = set(os.listdir("/proc/self/fd")), children(), sandboxed()
    yield
    assert not list(tmp_path.iterdir())
    assert set(os.listdir("/proc/self/fd")) == before
    assert children() == mine
    # Other test processes may be running sandboxes too, but those end; what leaked would stay.
    left, deadline = sandboxed() - ours, time.monotonic() + 30
    while (left := left & sandboxed()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_this_machine_has_strong_isolation() -> None:
    found = available()
    assert found.means is not None, f"{found}. {isolation.ADVICE}"
    assert found.means.strong and "strong isolation by" in str(found)


# -- correct solutions -----------------------------------------------------------------------------------------

CORRECT = {
    "floats": (
        "def has_close(numbers, threshold):\n"
        "    return any(abs(a - b) < threshold for i, a in enumerate(numbers) for b in numbers[:i])",
        "METADATA = {}\ndef check(candidate):\n"
        "    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True\n"
        "    assert candidate([1.0, 2.0], threshold=0.5) == False\n",
        "has_close",
    ),
    "close floats": (
        "import math\ndef root(x):\n    return math.sqrt(x)",
        "import math\ndef check(candidate):\n    assert abs(candidate(2) - 2 ** .5) < 1e-12\n"
        "    assert math.isnan(candidate(float('nan'))) and candidate(math.inf) == math.inf\n",
        "root",
    ),
    "unicode": ("def f(s): return s[::-1]", "assert f('žluťoučký 🐎') == '🐎 ýkčuoťulž'\nassert f('\\ud800') == '\\ud800'", None),
    "nested": (
        "from collections import Counter\ndef f(s): return {'n': Counter(s), (1, 2): [b'x', {1}, frozenset((2,)), None, 1j]}",
        "assert f('aab') == {'n': {'a': 2, 'b': 1}, (1, 2): [b'x', {1}, frozenset({2}), None, 1j]}",
        None,
    ),
    "large": (
        "import math\ndef f(n): return [math.factorial(n)] * 20",
        "import math\nassert f(2000) == [math.factorial(2000)] * 20",
        None,
    ),
    "exceptions": (
        "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x",
        "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'negative'\nelse:\n    assert False\nassert f(1) == 1",
        None,
    ),
    "helpers": (
        "def encode(s): return s[1:] + s[:1]\ndef decode(s): return s[-1:] + s[:-1]",
        "def check(candidate):\n    for word in ('abc', 'x', ''):\n        assert candidate(encode(word)) == word\n",
        "decode",
    ),
    "class": ("class Solution:\n    def twice(self, x): return 2 * x", "assert candidate(4) == 8", "Solution.twice"),
    "talkative": ("def f(x):\n    print('thinking', x)\n    return x", "assert f(1) == 1", None),
    "threads": (
        "import threading\ndef f(x):\n    out = []\n    t = threading.Thread(target=lambda: out.append(x))\n"
        "    t.start(); t.join()\n    return out",
        "assert f(1) == [1]",
        None,
    ),
    "asyncio": ("import asyncio\nasync def g(x): return x\ndef f(x): return asyncio.run(g(x))", "assert f(3) == 3", None),
    "no main": ("def f(x): return x\nif __name__ == '__main__':\n    raise SystemExit(1)", "assert f(3) == 3", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRECT)
def test_correct_solutions_pass(name: str) -> None:
    solution, tests, entry_point = CORRECT[name]
    result = run_tests(solution, tests, entry_point, limits=PATIENT)
    assert result.passed and result.reason == "" and result.seconds > 0, result


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


# -- hostile solutions: verdict --------------------------------------------------------------------------------

FORGERIES = {
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef f(x): os._exit(0)",
    "sys.exit": "import sys\ndef f(x): sys.exit(0)",
    "sys.exit at load": "import sys\nsys.exit(0)",
    "patched assert": "import builtins\nclass A(BaseException): pass\nbuiltins.AssertionError = A\ndef f(x): return 0",
    "always equal": "class E:\n    __eq__ = lambda *a: True\ndef f(x): return E()",
    "always equal int": "class E(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\ndef f(x): return E(0)",
    "always equal list": "class E(list):\n    __eq__ = lambda *a: True\ndef f(x): return E()",
    "marker": 'print(\'["", true, ""]\\nPASSED\\nOK\', flush=True)\ndef f(x): return 0',
    "every descriptor": (
        'import os\nfor fd in range(64):\n    try: os.write(fd, b\'["", true, ""]\')\n    except OSError: pass\n'
        "def f(x): return 0"
    ),
    "patched checker": (
        "import sys\nfor m in list(sys.modules.values()):\n    for n in ('_reason', 'check_solution', 'encode', 'send'):\n"
        "        if hasattr(m, n): setattr(m, n, lambda *a: True)\ndef f(x): return 0"
    ),
    "exit handler": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): raise SystemExit(0)",
    "trace hook": "import sys\nsys.settrace(lambda *a: sys.exit(0))\ndef f(x): return 0",
    "optimised": "import sys, os\ndef f(x): os.execv(sys.executable, [sys.executable, '-O', '-c', 'pass'])",
    "patched builtins": "import builtins\nbuiltins.compile = builtins.exec = builtins.abs = lambda *a: True\ndef f(x): return 0",
    "pickle": "class P:\n    def __reduce__(self): return (exec, ('import os; os._exit(0)',))\ndef f(x): return P()",
    "frames": (
        "import sys, gc\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'secret' in o:\n"
        "            return 4\n    return 0"
    ),
    "stop iteration": "def f(x): raise StopIteration",
    "huge integer": "def f(x): return 1 << (8 << 23)",
    "huge text": "def f(x): return 'x' * (8 << 20)",
    "deep data": "def f(x):\n    for _ in range(10**5): x = [x]\n    return x",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_solution_forges_the_verdict(name: str) -> None:
    limits = HANGS if name == "patched checker" else PATIENT  # it no longer answers
    result = run_tests(FORGERIES[name], TESTS, "f", limits=limits)
    assert not result.passed and result.reason, result


def test_tests_that_catch_everything_do_not_pass_a_dead_solution() -> None:
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass\n"
    result = run_tests("import os\ndef f(x): os._exit(0)", tests, limits=PATIENT)
    assert not result.passed and "ended" in result.reason


# -- hostile solutions: harm -----------------------------------------------------------------------------------

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
    source, limits = EXHAUSTION[name]
    if "def f(" not in source:
        source += "\ndef f(x): return x * x"
    result = run_tests(source, TESTS, "f", limits=limits)
    assert not result.passed and result.reason, result
    assert result.seconds < 60


def attempt(source: str, **given: str) -> Result:
    """Run it; hostile programs here print "out" if they succeed."""
    result = run_code(source, limits=PATIENT, **given)
    assert "out\n" not in result.stdout and SECRET not in result.stdout + result.stderr, result
    return result


@pytest.fixture
def secret_file() -> Iterator[Path]:
    path = Path.home() / f".rredcot-test-{os.getpid()}"
    path.write_text(SECRET)
    yield path
    assert path.read_text() == SECRET
    path.unlink()


REACH = {
    "environment": "import os\nprint(os.environ, open('/proc/self/environ').read(), open(f'/proc/{os.getppid()}/environ').read())",
    "network": "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)\nprint('out')",
    "vsock": "import socket\nsocket.socket(40, socket.SOCK_STREAM)\nprint('out')",
    "/etc/shadow": "print(open('/etc/shadow').read(), 'out')",
    "home": "print(open('{file}').read())",
    "overwrites": "open('{file}', 'w').write('gone')",
    "link": "import os\nos.symlink('{file}', 'x')\nprint(open('x').read())",
    "link to write": "import os\nos.symlink('{file}', 'x')\nopen('x', 'w').write('gone')",
    "hard link": "import os\nos.link('{file}', 'x')\nprint(open('x').read())",
    "parent folder": "open('../x', 'w').write('x')\nprint('out')",
    "old root": "import os\nassert os.listdir('/old')\nprint('out')",
    "code": "open('/sandbox-code/inside/roles.py', 'a').write('#')\nprint('out')",
    "interpreter": "import os\nopen(os.__file__, 'a').write('#')\nprint('out')",
    "kills": "import os\nos.kill({parent}, 9)\nprint('out')",
    "kills all": "import os, signal\nos.kill(-1, 15)\nos.kill({parent}, 9)\nprint('out')",
    "kills process 1": "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(.2)\nos.kill(os.getppid(), 0)\nos.kill({parent}, 9)\nprint('out')",
    "namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\nprint('out')",
    "chroot": "import os\nos.chroot('/usr')\nprint('out')",
    "root": "import os\nos.setuid(0)\nos.mknod('x', 0o60600, os.makedev(254, 0))\nprint('out')",
    "session": "import os\nos.setsid()\nprint('out')",
    "more limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('out')",
}  # fmt: skip


@pytest.mark.parametrize("name", REACH)
def test_nothing_outside_is_within_reach(name: str, secret_file: Path) -> None:
    source = REACH[name].format(file=secret_file, parent=os.getpid()) if "{" in REACH[name] and name != "environment" else REACH[name]  # fmt: skip
    assert not attempt(source).ok


def test_clean_environment_and_empty_folder() -> None:
    result = attempt("import os, sys\nprint(sorted(os.environ), os.listdir('.'), len(os.listdir('/')), sys.argv)")
    assert result.ok and "'HOME', 'LANG'" in result.stdout and "[] " in result.stdout


def test_no_descriptor_of_the_caller_is_inherited(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w+") as file:
        file.write(SECRET)
        file.flush()
        os.set_inheritable(file.fileno(), True)
        attempt(
            "import os\nfor fd in range(3, 64):\n    try: print(os.pread(fd, 99, 0))\n    except OSError: pass"
        )
    (tmp_path / "open").unlink()


def test_background_processes_end_with_the_call(tmp_path: Path) -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n    for fd in range(64):\n        try: os.close(fd)\n"
        "        except OSError: pass\n    time.sleep(999)\nprint('started')"
    )
    started = time.monotonic()
    assert run_code(source, limits=PATIENT).stdout == "started\n"
    assert time.monotonic() - started < 45  # not the wall limit; the fixture looks for what is left


# -- run_code --------------------------------------------------------------------------------------------------


def test_a_program_reads_and_writes_text() -> None:
    result = run_code("import sys\nprint(sys.stdin.read()[::-1])\nprint('é', file=sys.stderr)", stdin="žluť 🐎")
    assert (result.ok, result.stdout, result.stderr) == (True, "🐎 ťulž\n", "é\n")


def test_large_input_nobody_reads_holds_nothing_up() -> None:
    assert run_code("pass", stdin="x" * (4 << 20), limits=PATIENT).ok


def test_how_a_program_ended_is_told() -> None:
    assert run_code("import sys\nsys.exit(3)", limits=PATIENT).returncode == 3
    assert "ZeroDivisionError" in run_code("1 / 0", limits=PATIENT).stderr
    assert run_code("while True: pass", limits=BRIEF).returncode == 128 + 24  # SIGXCPU
    slow = run_code("import time\nprint('x', flush=True)\ntime.sleep(99)", limits=HANGS)
    assert (slow.ended, slow.returncode, slow.stdout, slow.ok) == ("timeout", None, "x\n", False)
    loud = run_code("print('x' * 10**6)", limits=Limits(wall_seconds=60.0, output_bytes=1000))
    assert (loud.ended, len(loud.stdout)) == ("output", 1000)


def test_several_threads_run_sandboxes_at_once() -> None:
    def square(n: int) -> bool:
        return run_tests(f"def f(x): return {n}", f"assert f(0) == {n % 3}", limits=PATIENT).passed

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(square, range(6))) == [n == n % 3 for n in range(6)]


# -- isolation that is missing or weak -------------------------------------------------------------------------


def test_without_strong_isolation_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_found", isolation.Availability(None, ("bubblewrap: not installed: bwrap",)))
    with pytest.raises(SandboxUnavailable, match=r'not installed: bwrap.*Install bubblewrap.*isolation="weak"'):
        run_code("pass")
    with pytest.raises(SandboxUnavailable):
        run_tests("def f(x): return x", "assert f(1) == 1")
    assert run_code("print(1)", isolation="weak", limits=PATIENT).stdout == "1\n"


def test_a_means_that_does_not_hold_is_not_used() -> None:
    assert "opened a socket" not in (got_out := isolation._escapes(launch.Means("weak")))
    assert "did not hold" in got_out and "read /etc/passwd" in got_out


def test_a_sandbox_that_does_not_start_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    means = available().means
    assert means is not None
    monkeypatch.setattr(launch, "_interpreter", lambda: "/nowhere/python")
    with pytest.raises(SandboxFailed, match="did not start"):
        run_with(means, "pass", "", PATIENT)
    with pytest.raises(SandboxFailed, match="did not start"):
        run_tests("def f(x): return x", "assert f(1) == 1", limits=PATIENT)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fork()\nprint('out')",
        "import os\nos.kill({parent}, 9)\nprint('out')",
        "import os\nos.setsid()\nprint('out')",
        "import socket\nsocket.socket()\nprint('out')",
        "import os\nprint(os.environ['RREDCOT_TEST_SECRET'])",
        "x = bytearray(10 * 2**30)\nprint('out')",
        "open('x', 'wb').write(bytes(2 << 20))\nprint('out')",
        "while True: print('x' * 1000)",
    ],
)
def test_weak_isolation_still_bounds(source: str) -> None:
    assert not attempt(source.format(parent=os.getpid()), isolation="weak").ok


def test_weak_isolation_gives_the_same_verdicts() -> None:
    assert run_tests("def f(x): return x * x", TESTS, "f", isolation="weak", limits=PATIENT).passed
    assert not run_tests(FORGERIES["always equal int"], TESTS, "f", isolation="weak", limits=PATIENT).passed


# -- parts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu_seconds": 0}, "cpu_seconds must be a positive integer, got 0"),
        ({"cpu_seconds": 1.5}, "cpu_seconds must be a positive integer, got 1.5"),
        ({"wall_seconds": -1}, "wall_seconds must be a positive number, got -1"),
        ({"wall_seconds": float("nan")}, "wall_seconds must be a positive number, got nan"),
        ({"processes": True}, "processes must be a positive integer, got True"),
        ({"output_bytes": "1"}, "output_bytes must be a positive integer, got '1'"),
        ({"memory_bytes": 1000}, "memory_bytes must be at least 67108864, got 1000"),
    ],
)
def test_limits_name_key_and_value(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**given)


def test_isolation_is_strong_or_weak() -> None:
    with pytest.raises(ValueError, match="got 'none'"):
        run_code("pass", isolation="none")


@pytest.mark.parametrize(
    "value", [0, -(1 << 9999), True, 1.5, float("inf"), "é\0", b"\0", (), [[]], {1: {2: (3,)}}, 2j]
)
def test_plain_data_survives_the_way(value: object) -> None:
    back = plain.decode(plain.encode(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "data", [5, ["x", []], ["l", 3], ["d", [[["l", []], 1]]], ["i", "zz"], [], ["b", "0"], {}]
)
def test_what_is_no_plain_data_is_refused(data: object) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, IndexError)):
        plain.decode(data)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed_and_fits_the_kernel(machine: str) -> None:
    assert len(kernel.program(machine, True)) % 8 == 0
    assert len(kernel.program(machine, True)) < len(kernel.program(machine, False)) < 4096 * 8
    with pytest.raises(OSError, match="mips"):
        kernel.program("mips", True)
