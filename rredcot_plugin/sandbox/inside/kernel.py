"""A process that called ``confine`` has resource limits and a system-call filter that it cannot take off.

Resource limits bound what a process may use; they are inherited and, lowered hard, stay low. The seccomp filter
closes what they leave open: memory that no limit counts (System V shared memory, memfd, a tmpfs in a user
namespace of one's own), sockets (vsock has no namespace), leaving the process group, and the larger part of the
kernel's surface for attacks. Refused calls fail with EPERM, so that a program sees an exception.

Of sockets there are pairs of streams only, which asyncio needs: nothing can be reached from one but its other end.
Any other kind of pair can send to an address, and so to sockets of the machine.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

from .landlock import lock

TYPE_CHECKING = False  # as in ``typing``, whose import would cost every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Numbers from the kernel's tables: arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl (aarch64).
_SAME_EVERYWHERE = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 440, 442, 447)
# pidfd_send_signal, io_uring_*, open_tree, move_mount, fs*, pidfd_getfd, process_madvise, mount_setattr, memfd_secret
_REFUSED = {
    # socket, connect, bind, ptrace, shmget, semget, msgget, pivot_root, chroot, mount, umount2, add_key, request_key, keyctl,
    # mq_open, unshare, setns, perf_event_open, process_vm_readv/writev, memfd_create, bpf, userfaultfd,
    # setpgid, setsid
    "x86_64": (
        *(
            41,
            42,
            49,
            101,
            29,
            64,
            68,
            155,
            161,
            165,
            166,
            248,
            249,
            250,
            240,
            272,
            308,
            298,
            310,
            311,
            319,
            321,
            323,
        ),
        *(109, 112),
    ),
    "aarch64": (
        *(
            198,
            203,
            200,
            117,
            194,
            190,
            186,
            41,
            51,
            40,
            39,
            217,
            218,
            219,
            180,
            97,
            268,
            241,
            270,
            271,
            279,
            280,
            282,
        ),
        *(154, 157),
    ),
}
# Refused where no process namespace hides the others: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo,
# and on x86_64 fork and vfork.
_REFUSED_ALONE = {"x86_64": (62, 200, 234, 129, 297, 57, 58), "aarch64": (129, 130, 131, 138, 240)}
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_AF_UNIX, _SOCK_STREAM, _FLAGS_OF_TYPE = 1, 1, 0x80800  # SOCK_NONBLOCK, SOCK_CLOEXEC

_NEW_NAMESPACE = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_THREAD = 0x00010000  # CLONE_THREAD
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 4, 22, 38, 2
_CAPABILITY_VERSION = 0x20080522


def confine(
    limits: Mapping[str, int], *, may_fork: bool, paths: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Put the limits and the filter on this process and its children. ``OSError`` where the kernel refuses.

    ``may_fork=False`` also refuses new processes (threads stay allowed) and signals to others. ``paths``: those to
    ``read`` and to ``write``; others are refused where the kernel has Landlock.
    """
    bound(limits, may_fork)
    _shut()
    if paths is not None:
        lock(paths["read"], paths["write"])
    _filter(program(os.uname().machine, may_fork))


def bound(limits: Mapping[str, int], may_fork: bool) -> None:
    """Lower the resource limits, hard: bytes, seconds and counts of the keys of ``Limits``.

    The one on processes counts all of a user, so it makes sense only where the user is the sandbox's own.
    """
    cpu = limits["cpu_seconds"]
    for name, soft, hard in (
        ("CPU", cpu, cpu + 1),  # SIGXCPU, which may be caught, and a second later SIGKILL
        ("AS", limits["memory_bytes"], limits["memory_bytes"]),
        ("FSIZE", limits["file_bytes"], limits["file_bytes"]),
        *((("NPROC", limits["processes"], limits["processes"]),) if may_fork else ()),
        ("NOFILE", 64, 64),
        ("CORE", 0, 0),
        ("MEMLOCK", 0, 0),
        ("MSGQUEUE", 0, 0),
    ):
        number = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(number)[1]
        if ceiling != resource.RLIM_INFINITY:  # whoever started us may have been given less
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(number, (soft, hard))


def program(machine: str, may_fork: bool) -> bytes:
    """The filter as classic BPF. ``OSError`` for a machine whose call numbers are not known here."""
    if machine not in _ARCH:
        raise OSError(f"the system-call filter knows {', '.join(_ARCH)}, not {machine}")
    refused = (*_REFUSED[machine], *_SAME_EVERYWHERE, *(() if may_fork else _REFUSED_ALONE[machine]))
    lines = [
        *((_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, _ARCH[machine]), (_RETURN, 0, 0, _KILL)),
        (_LOAD, 0, 0, 0),
        *((_JUMP_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)),  # x32 numbers the calls anew
        *((_JUMP_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)),  # its flags lie in memory: use clone
    ]
    for number in refused:
        lines += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    pair = [
        *((_LOAD, 0, 0, 16), (_JUMP_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, _EPERM)),
        *((_LOAD, 0, 0, 24), (_AND, 0, 0, 0xFFFFFFFF ^ _FLAGS_OF_TYPE), (_JUMP_EQUAL, 1, 0, _SOCK_STREAM)),
        *((_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)),
    ]
    lines += [(_JUMP_EQUAL, 0, len(pair), _SOCKETPAIR[machine]), *pair]
    clone = [(_LOAD, 0, 0, 16), (_JUMP_BITS, 0, 1, _NEW_NAMESPACE), (_RETURN, 0, 0, _EPERM)]
    if not may_fork:
        clone += [(_JUMP_BITS, 1, 0, _THREAD), (_RETURN, 0, 0, _EPERM)]
    lines += [(_JUMP_EQUAL, 0, len(clone), _CLONE[machine]), *clone, (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def _shut() -> None:
    """No capability, none to be had, and no /proc/<pid>/mem of this process for others of its user.

    Namespaces take these away already; without them this keeps a solution out of the checker's memory. It does not
    keep it out of the trainer's, which ``lock`` does where the kernel has Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if (
        libc.capset(header, none)
        or libc.prctl(_PR_SET_DUMPABLE, zero, zero, zero, zero)
        or libc.prctl(_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero)
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"privileges: {os.strerror(number)}")


def _filter(bpf: bytes) -> None:
    """The filter; after ``_shut`` no privilege is needed for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = _Program(len(bpf) // 8, bpf)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(wanted), zero, zero):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
