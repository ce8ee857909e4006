"""What a sandbox leaves of processes is adopted and reaped here.

Bubblewrap and ``unshare`` end before their children are reaped, and those go to the first process of the machine. In a container
that may be ``sleep infinity``, which reaps nobody: three zombies per run, until no process can be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator

_SET, _GET = 36, 37  # PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER


class _Adoption:
    """Whether orphans come to this process, while at least one thread wants them."""

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """A forked child adopts nobody yet, and another thread of its parent may have had the lock."""
        self.lock = threading.Lock()
        self.wanted = 0
        self.before = 0

    def change(self, by: int) -> None:
        with self.lock:
            if self.wanted == 0:
                self.before = _asked()
            self.wanted += by
            if not self.before:
                ctypes.CDLL(None).prctl(_SET, ctypes.c_ulong(self.wanted > 0), 0, 0, 0)


def _asked() -> int:
    found = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_GET, ctypes.byref(found), 0, 0, 0)
    return found.value


_adoption = _Adoption()
os.register_at_fork(after_in_child=_adoption.start_anew)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Orphans of processes that are started inside come to this process instead of the machine's first one."""
    _adoption.change(+1)
    try:
        yield
    finally:
        _adoption.change(-1)


def reap(group: int) -> None:
    """Wait for all children, adopted ones included, of a process group that was killed."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)
