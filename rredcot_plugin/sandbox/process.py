"""Sandboxed processes are started, watched and ended here; none outlives the call, whatever it does.

Everything goes in through sealed memory files and comes out through pipes that are read with a bound, so neither
a flood nor a program that never reads can hold up the caller. Safe from several threads at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from pathlib import Path
from typing import Any

from rredcot_plugin.sandbox.launch import FOLDER, Means, environment, paths_without_namespaces
from rredcot_plugin.sandbox.limits import Limits
from rredcot_plugin.sandbox.orphans import adopting, reap

START_SECONDS = 30  # for building the sandbox and starting the interpreter, before the limits begin
_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE


class SandboxFailed(RuntimeError):  # noqa: N818  says what is so
    """The sandbox itself did not start: a fault of the machine, no verdict on the program."""


@dataclass(frozen=True)
class Result:
    """What a program did. ``ended`` is "exit", "timeout" (wall clock) or "output" (wrote more than allowed).

    ``returncode`` is a shell's: 128 + n after signal n; None unless it ended by itself. ``stdout`` and ``stderr``
    are cut at the limit, ``seconds`` is the wall clock of the whole call.
    """

    ended: str
    returncode: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0. Says nothing about being right: ``os._exit(0)`` does too."""
        return self.ended == "exit" and self.returncode == 0


def run_with(means: Means, source: str, stdin: str, limits: Limits) -> Result:
    """Run a Python program with a given means; ``SandboxFailed`` where it did not start."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        child = Child.start(stack, means, limits, {"role": "program", "source": source}, stdin=stdin)
        ended = watch(child, [child], limits)
        child.end()
        child.require_started()
    out, err = (bytes(child.said[stream]).decode("utf-8", "replace") for stream in ("stdout", "stderr"))
    return Result(ended, child.status if ended == "exit" else None, out, err, time.monotonic() - started)


# -- processes -------------------------------------------------------------------------------------------------


class Pipe:
    """A pipe whose two ends are closed with ``stack``, or before."""

    def __init__(self, stack: contextlib.ExitStack):
        self.reads, self.writes = os.pipe()
        self._open = {self.reads, self.writes}
        stack.callback(self.keep_only, None)

    def keep_only(self, end: int | None) -> None:
        """Close this process's other end (both for None)."""
        for fd in list(self._open):
            if fd != end:
                self._open.discard(fd)
                os.close(fd)


@dataclass
class Child:
    """A sandboxed process tree: its head, the pipes it writes to and what it has written."""

    head: subprocess.Popen[bytes]
    ready: int
    started: bool = False
    said: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})
    status: int | None = None

    @classmethod
    def start(
        cls,
        stack: contextlib.ExitStack,
        means: Means,
        limits: Limits,
        job: dict[str, Any],
        stdin: str = "",
        **fds: int,
    ) -> Child:
        """Start it; ``stack`` ends it and removes its folder. ``fds``: the job's own ends of pipes."""
        folder = Path(tempfile.mkdtemp(prefix="rredcot-sandbox-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ready = Pipe(stack)
        paths = None if means.strong else paths_without_namespaces(folder)
        job |= {"limits": asdict(limits), "may_fork": means.strong, "paths": paths, "ready": ready.writes, **fds}
        stack.enter_context(adopting())
        with _memory_file(json.dumps(job).encode()) as file, _memory_file(stdin.encode()) as typed:
            command = means.command(file, folder, limits)
            head = subprocess.Popen(
                command,
                stdin=typed,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(FOLDER if means.strong else str(folder)),
                cwd=folder,
                pass_fds=(file, ready.writes, *fds.values()),
                start_new_session=True,
            )
        ready.keep_only(ready.reads)
        child = cls(head, ready.reads)
        stack.callback(child.end)
        return child

    def pipes(self) -> list[tuple[str, int]]:
        """The names and descriptors of what it writes to."""
        assert self.head.stdout is not None and self.head.stderr is not None
        return [("stdout", self.head.stdout.fileno()), ("stderr", self.head.stderr.fileno())]

    def end(self) -> None:
        """Kill the whole group (which ends the namespaces), wait, close. Twice is harmless."""
        if self.status is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.head.pid, signal.SIGKILL)  # before the wait: until then the number is ours
        self.status = self.head.wait()
        reap(self.head.pid)
        for stream in (self.head.stdout, self.head.stderr):
            assert stream is not None
            stream.close()

    def require_started(self) -> None:
        """``SandboxFailed`` unless the limits were in place and the job begun."""
        if not self.started:
            detail = bytes(self.said["stderr"]).decode("utf-8", "replace").strip()[-400:]
            raise SandboxFailed(f"the sandbox did not start (status {self.status}): {detail or 'no message'}")


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """A file in memory that nobody can change; read from its start."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        fcntl(fd, F_ADD_SEALS, _SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def watch(leader: Child, children: list[Child], limits: Limits) -> str:
    """Read what the children write until the leader has ended, time is out or too much came.

    The wall clock starts when all children have: a slow start is the machine's fault, not the program's.
    """
    deadline = time.monotonic() + START_SECONDS
    waiting = True
    with selectors.DefaultSelector() as selector, _exit_of(leader) as over:
        selector.register(over, selectors.EVENT_READ)
        for child in children:
            for name, fd in (*child.pipes(), ("ready", child.ready)):
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ, (child, name))
        while (left := deadline - time.monotonic()) > 0:
            ready = [key for key, _ in selector.select(left)]
            ended = any(key.fd == over for key in ready)
            for key in list(selector.get_map().values()) if ended else ready:
                if key.data and key.data[1] == "ready":
                    _note_start(key, selector)
                elif key.fd != over and not _keep(key, selector, limits.output_bytes):
                    return "output"
            if ended:
                return "exit"
            if waiting and all(child.started for child in children):
                waiting, deadline = False, time.monotonic() + limits.wall_seconds
    return "timeout"


@contextlib.contextmanager
def _exit_of(child: Child) -> Iterator[int]:
    """A descriptor that becomes readable when the process has ended: it may have closed its pipes long before."""
    fd = os.pidfd_open(child.head.pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _note_start(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
    """The byte that a child writes once it is confined, or the end of the pipe."""
    try:
        key.data[0].started |= os.read(key.fd, 1) == b"1"
    except BlockingIOError:
        return
    selector.unregister(key.fd)


def _keep(key: selectors.SelectorKey, selector: selectors.BaseSelector, most: int) -> bool:
    """Take what there is; False once the child has written more than ``most`` bytes."""
    child, name = key.data
    while True:
        try:
            part = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return True
        if not part:
            selector.unregister(key.fd)
            return True
        room = most - sum(map(len, child.said.values()))
        child.said[name] += part[: max(room, 0)]
        if len(part) > room:
            return False


def read_all(fd: int, most: int) -> bytes:
    """What lies in the pipe, without waiting."""
    os.set_blocking(fd, False)
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return b""
