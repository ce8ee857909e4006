"""What sandboxed code cannot reach, how programs run and end, and weak isolation."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
from rredcot_plugin.sandbox.inside import landlock
from rredcot_plugin.sandbox.process import run_with
from tests.unit.sandbox_checks import BRIEF, HANGS, PATIENT, SECRET, each_strong, require, unharmed  # noqa: F401  fixtures
from tests.unit.sandbox_programs import CHEATS, TESTS

pytestmark = pytest.mark.usefixtures("unharmed")


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


@pytest.mark.usefixtures("each_strong")
@pytest.mark.parametrize("name", REACH)
def test_nothing_outside_is_within_reach(name: str, secret_file: Path) -> None:
    source = REACH[name].format(file=secret_file, parent=os.getpid()) if "{" in REACH[name] and name != "environment" else REACH[name]  # fmt: skip
    assert not attempt(source).ok


@pytest.mark.usefixtures("each_strong")
def test_clean_environment_and_empty_folder() -> None:
    result = attempt("import os, sys\nprint(sorted(os.environ), os.listdir('.'), len(os.listdir('/')), sys.argv)")
    assert result.ok and "'HOME', 'LANG'" in result.stdout and "[] " in result.stdout


@pytest.mark.usefixtures("each_strong")
def test_installed_packages_are_not_seen() -> None:
    """HumanEval is one, with the tests of its problems; so is whatever else holds a data set."""
    prefix = Path(sys.base_prefix).resolve()
    folders = [*prefix.glob("lib*/python3*/*-packages"), *Path("/usr/local").glob("lib*/python3*/*-packages")]
    there = [str(path) for folder in folders for path in list(folder.iterdir())[:3]]
    if not there:
        pytest.skip("nothing is installed beside the interpreter's own library")
    attempt(f"import os\nfor path in {there}:\n    if os.path.exists(path): print('out')")
    assert run_code("import decimal, json, sqlite3, unittest", limits=PATIENT).ok


@pytest.mark.usefixtures("each_strong")
def test_empty_files_take_no_memory_without_end() -> None:
    result = run_code("import os\nfor i in range(5000): os.mknod(str(i))", limits=PATIENT)
    assert not result.ok and "No space left on device" in result.stderr


def test_a_machine_that_lets_no_one_mount_still_isolates(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AppArmor's profile of bubblewrap: everything holds but the number of files, and no privilege is left."""
    require("bubblewrap")
    monkeypatch.setattr(launch, "_COUNT_FILES", "false")
    result = run_with(launch.Means("bubblewrap"), "import socket\nsocket.sethostname('x')", "", PATIENT)
    assert result.stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")
    if os.geteuid() == 0:  # real root must not go on with its privileges
        with pytest.raises(SandboxFailed, match="did not start"):
            run_with(launch.Means("bubblewrap", drops=True), "pass", "", PATIENT)


@pytest.mark.usefixtures("each_strong")
def test_no_descriptor_of_the_caller_is_inherited(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w+") as file:
        file.write(SECRET)
        file.flush()
        os.set_inheritable(file.fileno(), True)
        attempt(
            "import os\nfor fd in range(3, 64):\n    try: print(os.pread(fd, 99, 0))\n    except OSError: pass"
        )
    (tmp_path / "open").unlink()


@pytest.mark.usefixtures("each_strong")
def test_background_processes_end_with_the_call(tmp_path: Path) -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n    for fd in range(64):\n        try: os.close(fd)\n"
        "        except OSError: pass\n    time.sleep(999)\nprint('started')"
    )
    started = time.monotonic()
    assert run_code(source, limits=PATIENT).stdout == "started\n"
    assert time.monotonic() - started < 45  # not the wall limit; the fixture looks for what is left


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


def test_without_strong_isolation_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_found", isolation.Availability(None, ("bubblewrap: not installed: bwrap",)))
    with pytest.raises(SandboxUnavailable, match=r'not installed: bwrap.*isolation="weak".*trust_code'):
        run_code("pass")
    with pytest.raises(SandboxUnavailable):
        run_tests("def f(x): return x", "assert f(1) == 1")
    assert run_code("print(1)", isolation="weak", limits=PATIENT).stdout == "1\n"


def test_a_means_that_does_not_hold_is_not_used() -> None:
    assert "opened a socket" not in (got_out := isolation._escapes(launch.Means("weak")))
    assert "did not hold" in got_out and "filled the disk" in got_out
    assert ("read /etc/passwd" in got_out) == (not landlock.version())


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
        "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nprint('out')",
        "import os\nprint(os.environ['RREDCOT_TEST_SECRET'])",
        "x = bytearray(10 * 2**30)\nprint('out')",
        "open('x', 'wb').write(bytes(2 << 20))\nprint('out')",
        "while True: print('x' * 1000)",
    ],
)
def test_weak_isolation_still_bounds(source: str) -> None:
    assert not attempt(source.format(parent=os.getpid()), isolation="weak").ok


LANDLOCKED = {
    **{name: REACH[name] for name in ("/etc/shadow", "home", "overwrites", "link", "link to write", "hard link")},
    "trainer's memory": "open('/proc/{parent}/mem', 'rb')\nprint('out')",
    "trainer's environment": "print(open('/proc/{parent}/environ').read())",
    "checker": "import sys\nopen(sys._getframe(1).f_code.co_filename, 'a')\nprint('out')",
}


@pytest.mark.skipif(
    not landlock.version(), reason="this kernel has no Landlock; docs/guides/sandbox.md says what follows"
)
@pytest.mark.parametrize("name", LANDLOCKED)
def test_weak_isolation_bounds_files_where_the_kernel_has_landlock(name: str, secret_file: Path) -> None:
    assert not attempt(LANDLOCKED[name].format(file=secret_file, parent=os.getpid()), isolation="weak").ok


def test_weak_isolation_runs_on_a_kernel_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """``paths`` None is what such a kernel amounts to; the checker's own memory stays closed."""
    monkeypatch.setattr("rredcot_plugin.sandbox.process.paths_without_namespaces", lambda folder: None)

    def passes(solution: str, tests: str = TESTS) -> bool:
        return run_tests(solution, tests, "f", isolation="weak", trust_code=True, limits=PATIENT).passed

    assert passes("def f(x): return x * x")
    assert not passes(*CHEATS["memory of the checker"])
