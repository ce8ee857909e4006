"""No run leaves a process, nor a zombie where nobody else reaps them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rredcot_plugin.sandbox import orphans
from tests.unit.sandbox_checks import require

PARENT = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # all orphans come here, and are not reaped
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
        state, parent = open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[:2]
    except OSError:  # of somebody else, gone since
        continue
    if int(parent) == os.getpid():
        print(entry, state)
"""
RUNS = """
from rredcot_plugin.sandbox import Limits, run_code, run_tests
limits = Limits(wall_seconds=1.0)
assert run_code("print(1)").stdout == "1\\n"
assert run_code("while True: pass", limits=limits).ended == "timeout"
assert run_tests("def f(x): return x", "assert f(2) == 2").passed
"""


def test_a_run_leaves_nothing_to_whoever_adopts_orphans() -> None:
    require("bubblewrap")
    done = subprocess.run([sys.executable, "-c", PARENT, RUNS], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def adopts() -> bool:
    return bool(orphans._asked())


def test_orphans_come_here_as_long_as_anybody_wants_them() -> None:
    assert not adopts()
    with orphans.adopting():
        with orphans.adopting():
            assert adopts()
        assert adopts()
    assert not adopts()


def test_a_forked_child_starts_anew() -> None:
    with orphans.adopting():
        child = os.fork()
        if child == 0:
            free = not orphans._adoption.wanted and orphans._adoption.lock.acquire(blocking=False)
            os._exit(0 if free and not adopts() else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_was_asked_for_before_stays() -> None:
    code = "from rredcot_plugin.sandbox import orphans as o; o.ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nwith o.adopting(): pass\nassert o._asked()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_adopted_processes_are_reaped_and_others_are_not(tmp_path: Path) -> None:
    with orphans.adopting():
        other = subprocess.Popen(["sleep", "60"])
        head = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True)
        threading.Event().wait(0.5)
        os.killpg(head.pid, 9)
        head.wait()
        orphans.reap(head.pid)
        with pytest.raises(ProcessLookupError):
            os.killpg(head.pid, 0)
        assert other.poll() is None
        other.kill()
        other.wait()
