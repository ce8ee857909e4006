"""Which isolation this machine has: a means counts only after a program that tries to get out has failed to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rredcot_plugin.sandbox.launch import Means, missing_for, spare_user
from rredcot_plugin.sandbox.limits import Limits
from rredcot_plugin.sandbox.process import SandboxFailed, run_with

ADVICE = (
    "Install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap), or allow unprivileged user namespaces "
    '(sysctl user.max_user_namespaces; in a container --security-opt seccomp=unconfined); or pass isolation="weak" and, '
    "for verdicts, trust_code=True: limits and a system-call filter only, for code that you trust (docs/guides/sandbox.md)"
)


class SandboxUnavailable(RuntimeError):  # noqa: N818  says what is so
    """This machine has no isolation of the kind asked for. The message names what is missing and what to do."""


@dataclass(frozen=True)
class Availability:
    """``means``: the strong isolation that ``run_code`` uses, None without one. ``missing``: why not a better one."""

    means: Means | None
    missing: tuple[str, ...]

    def __str__(self) -> str:
        have = f"strong isolation by {self.means.name}" if self.means else "no strong isolation"
        return "; ".join((have, *self.missing))


# Runs inside. Each line tries to get out in one way; what succeeds is printed.
_ESCAPES = """
import os, sys
got_out = []
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    got_out.append(name)
def bomb():
    for _ in range({processes} + 8):
        if os.fork() == 0:
            import time
            time.sleep(5)
            os._exit(0)
import socket
attempt("opened a socket", lambda: socket.socket())
attempt("wrote to /", lambda: open("/x", "w"))
attempt("wrote to /usr", lambda: open("/usr/x", "w"))
attempt("read /etc/passwd", lambda: open("/etc/passwd"))
attempt("saw the processes", lambda: os.listdir("/proc/self"))
attempt("signalled the process that started it", lambda: os.kill({parent}, 0))
attempt("changed user", lambda: os.setuid(0) if os.getuid() else None if {drops} else os.setuid(1))
attempt("filled the disk", lambda: [open(f"{{i}}", "wb").write(bytes({file_bytes})) for i in range(20)])
attempt("started more processes than allowed", bomb)
print(got_out or "held")
"""

_lock = threading.Lock()
_found: Availability | None = None


def available() -> Availability:
    """Which strong isolation this machine has, tried by running it (once a process, well under a second each)."""
    global _found
    with _lock:
        if _found is None:
            _found = _look()
        return _found


def choose(isolation: str) -> Means:
    """The means for ``"strong"`` or ``"weak"``; ``SandboxUnavailable`` where the machine has none."""
    if isolation not in ("strong", "weak"):
        raise ValueError(f'isolation must be "strong" or "weak", got {isolation!r}')
    if isolation == "weak":
        missing = missing_for("timeout")
        if missing:
            raise SandboxUnavailable(f"no weak isolation either: {missing}")
        return Means("weak")
    found = available()
    if found.means is None:
        raise SandboxUnavailable(f"code is not run: {found}. {ADVICE}.")
    return found.means


def _look() -> Availability:
    missing: list[str] = []
    for means, tools in _candidates():
        why = missing_for(*tools) or _escapes(means)
        if not why:
            return Availability(means, tuple(missing))
        missing.append(f"{means.name}{' as root' if means.drops else ''}: {why}")
    return Availability(None, tuple(missing))


def _candidates() -> Iterator[tuple[Means, tuple[str, ...]]]:
    for name, tools in (
        ("bubblewrap", ("bwrap", "sh", "mount")),
        ("unshare", ("unshare", "sh", "mount", "umount", "pivot_root")),
    ):
        if spare_user() is not None:
            yield Means(name, drops=True), (*tools, "timeout", "setpriv")
        yield Means(name), (*tools, "timeout", "setpriv")


def _escapes(means: Means) -> str:
    """What got out, or why it did not start; empty if the isolation held."""
    limits = Limits(wall_seconds=20.0)
    source = _ESCAPES.format(
        processes=limits.processes, file_bytes=limits.file_bytes, parent=os.getpid(), drops=means.drops
    )
    try:
        outcome = run_with(means, source, "", limits).stdout.strip()
    except (SandboxFailed, OSError) as error:
        return str(error)
    return "" if outcome == "held" else f"did not hold: {outcome or 'the check itself ended early'}"
