"""What the tests of the sandbox share: each strong means of this machine, and that a test leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rredcot_plugin.sandbox import Limits, available, isolation
from rredcot_plugin.sandbox.launch import Means, missing_for

SECRET = "correct-horse-battery-staple"
PATIENT = Limits(wall_seconds=60.0)  # a loaded machine must not turn "refused" into "timeout"
BRIEF = Limits(cpu_seconds=1, wall_seconds=60.0)
HANGS = Limits(wall_seconds=1.5)
REQUIRED = bool(os.environ.get("RREDCOT_REQUIRE_SANDBOX"))
STRONG = ("bubblewrap", "unshare")

_tried: dict[str, tuple[Means | None, str]] = {}


def require(name: str) -> Means:
    """The strong means of that name. Without it the test is skipped and says why.

    With ``RREDCOT_REQUIRE_SANDBOX=1`` it fails, unless its tools are not installed and another means is there.
    """
    if name not in _tried:
        why = []
        for means, tools in isolation._candidates():
            if means.name == name:
                missing = missing_for(*tools)
                got_out = missing or isolation._escapes(means)
                why.append(got_out)
                if not got_out:
                    _tried[name] = means, ""
                    break
        else:
            _tried[name] = None, f"{name}: {'; '.join(why)}"
    found, reason = _tried[name]
    if found is None:
        if REQUIRED and (available().means is None or "not installed" not in reason):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(params=STRONG)
def each_strong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Means:
    """The test runs in every strong means of this machine."""
    means = require(request.param)
    monkeypatch.setattr(isolation, "_found", isolation.Availability(means, ()))
    return means


def sandboxed() -> set[int]:
    """Processes of this machine that run, or build, a sandbox."""
    lines = {process.pid: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
    return {pid for pid, line in lines.items() if "sandbox" in line and "inside" in line}


def children() -> set[int]:
    """Children of this process, zombies included; threads and processes may end while they are counted."""
    return {child.pid for child in psutil.Process().children()}


def descriptors() -> set[str]:
    """Open descriptors of this process and what each one is."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed in the meantime, as the one that listed them is
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


def settles(leftovers: Callable[[], set[Any]], seconds: float = 30.0) -> set[Any]:
    """What is still left over after that time, the empty set as soon as nothing is."""
    deadline = time.monotonic() + seconds
    while (left := leftovers()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture
def unharmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test: no process, descriptor or file is left, and the secret is where it was."""
    monkeypatch.setenv("RREDCOT_TEST_SECRET", SECRET)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if available().means is None and not REQUIRED:
        pytest.skip(f"{available()}")
    before, mine, ours = descriptors(), children(), sandboxed()
    yield
    # Other threads open and close files, and other test processes run sandboxes; those end, what leaked stays.
    assert settles(lambda: {path.name for path in tmp_path.iterdir()}) == set()
    assert settles(lambda: descriptors() - before) == set()
    assert settles(lambda: children() - mine) == set()
    left = sandboxed() - ours
    assert settles(lambda: left & sandboxed()) == set()
