"""Where there are no namespaces, Landlock (Linux 5.13) still bounds which files a process opens.

It also keeps the process from tracing any process outside, and so from reading or writing its memory.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

TYPE_CHECKING = False  # as in ``typing``, whose import would cost every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_ASK_VERSION, _PATH_BENEATH = 1, 1
# Bits of linux/landlock.h: all of them, by the version of the interface that the kernel speaks.
_ALL = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_READ = 0b1101  # execute, read a file, read a folder
_OF_FILES = 0xC007  # execute, write, read, truncate, ioctl
_DEVICE_NODES = 0x0840  # make a character or a block device


def version() -> int:
    """The version of Landlock's interface that the kernel speaks; 0 without Landlock."""
    spoken = ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
    return max(int(spoken), 0)


def lock(read: Sequence[str], write: Sequence[str]) -> bool:
    """Leave this process the paths in ``read``, read-only, and those in ``write``. False without Landlock.

    ``OSError`` where the kernel has Landlock and refuses all the same. Needs ``no_new_privs`` or root.
    """
    spoken = version()
    if not spoken:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    everything = _ALL[min(spoken, max(_ALL))]
    attributes = struct.pack("=Q", everything)
    rules = _call(libc, _CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    try:
        for paths, allowed in ((read, _READ), (write, everything & ~_DEVICE_NODES)):
            for path in paths:
                _allow(libc, rules, path, allowed & everything)
        _call(libc, _RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)
    return True


def _allow(libc: ctypes.CDLL, rules: int, path: str, allowed: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            allowed &= _OF_FILES
        rule = struct.pack("=Qi", allowed, fd)
        _call(libc, _ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint(0))
    finally:
        os.close(fd)


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    done = int(libc.syscall(number, *arguments))
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return done
