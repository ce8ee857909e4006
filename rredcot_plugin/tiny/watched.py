"""A training run as a child process: its output goes to a log, its progress to whoever watches."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rredcot_plugin.tiny.progress import Progress, advance

STOP_SECONDS = 30

Show = Callable[[Progress], None]


def make_ray_folder() -> Path:
    """A folder for Ray's session; not below TMPDIR: Ray's sockets lie in there, and their paths must stay under 107
    characters."""
    return Path(tempfile.mkdtemp(prefix="rredcot_ray_", dir="/tmp"))


def run_watched(command: Sequence[str], environment: Mapping[str, str], log: Path, show: Show) -> int:
    """Run to the end, write all output to ``log`` and call ``show`` whenever the progress changes; the exit code."""
    with _child(command, environment) as child, log.open("w", encoding="utf-8") as file:
        _follow(child, file.write, show)
    return child.returncode


def _follow(child: subprocess.Popen[str], write: Callable[[str], int], show: Show) -> None:
    assert child.stdout is not None
    progress = Progress()
    show(progress)
    for line in child.stdout:
        write(line)
        now = advance(progress, line)
        if now != progress:
            progress = now
            show(progress)


@contextmanager
def _child(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A child process with its own process group, ended with it (Ray first closes down by itself)."""
    child = subprocess.Popen(
        list(command),
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield child
        child.wait()
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGINT)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
