"""A command line that starts an interpreter in isolation.

Two means build the same small world: bubblewrap, or util-linux's ``unshare`` with a short script. In it are the
system's programs and the interpreter, read-only, one writable folder in memory, no network, no other processes,
no privileges. ``isolation.py`` tries whether it holds.
"""

from __future__ import annotations

import functools
import glob
import os
import platform
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rredcot_plugin.sandbox.limits import Limits

FOLDER = "/sandbox"  # the writable one
CODE = "/sandbox-code"  # where the package ``inside`` is seen
_INSIDE = Path(__file__).resolve().parent / "inside"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
_START = "import sys; sys.path.insert(0, {!r}); from inside.roles import main; main()"
_NO_PRIVILEGES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")

# Builds the world on a tmpfs and moves into it. Arguments: root, size, pairs (source, place), --, command; without a
# source the place is empty.
# The shell stays as process 1 of the namespace: with it everything in there ends.
_BUILD = r"""
set -e; umask 022
root=$1; size=$2; shift 2
mount -t tmpfs -o mode=755,size=1m,nr_inodes=4k tmpfs "$root"
mkdir "$root/empty"
while [ "$1" != -- ]; do
  to=$root$2
  mkdir -p "${to%/*}"
  if [ -z "$1" ]; then mount --bind "$root/empty" "$to"
  elif [ -L "$1" ]; then cp -P "$1" "$to"
  elif [ -d "$1" ]; then mkdir -p "$to"; mount --rbind "$1" "$to"
  else : > "$to"; mount --bind "$1" "$to"; fi
  shift 2
done
shift
while read -r _ _ _ _ at _; do
  case $at in
    "$root"/dev/*) ;;
    "$root"/*) mount -o remount,bind,ro,nosuid,nodev "$(printf %b "$at")" ;;
  esac
done < /proc/self/mountinfo
mkdir "$root/old" "$root/sandbox"
ln -s /sandbox "$root/dev/shm"  # named semaphores, on which Python's locks between processes lie
ln -s old/proc "$root/proc"  # umount reads it; once done, it leads nowhere
mount -t tmpfs -o "mode=777,nosuid,nodev,size=$size,nr_inodes=1k" tmpfs "$root/sandbox"
mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . old
umount -l /old
cd /sandbox
set +e
"$@"
exit $?
"""

# bubblewrap bounds the bytes of the writable folder only, and empty files take none but a kilobyte each of the kernel's
# memory. "$0" is its size.
_COUNT_FILES = f"mount -t tmpfs -o remount,nosuid,nodev,nr_inodes=1k,size=$0 tmpfs {FOLDER}"


@dataclass(frozen=True)
class Means:
    """One way to isolate. ``drops`` means that real root hands over to a user id that nobody else has."""

    name: str  # "bubblewrap", "unshare" or "weak"
    drops: bool = False

    @property
    def strong(self) -> bool:
        """Whether files, network and processes of the machine are out of reach."""
        return self.name != "weak"

    def command(self, job: int, keep: Path, limits: Limits) -> list[str]:
        """The command line for the job behind descriptor ``job``; ``keep``: an empty folder of this run."""
        seconds = f"{limits.wall_seconds + 60:.1f}"  # should whoever started it be gone by then
        code = CODE if self.strong else str(_INSIDE.parent)
        python = [_interpreter(), "-I", "-S", "-B", "-c", _START.format(code), str(job)]
        inner = {"bubblewrap": _bubblewrap, "unshare": _unshare, "weak": _weak}[self.name]
        return [_tool("timeout"), "-s", "KILL", seconds, *inner(self.drops, python, keep, limits.file_bytes * 16)]


def environment(folder: str) -> dict[str, str]:
    """All that a sandboxed program finds in its environment."""
    return {
        "PATH": _SEARCH,
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }


def _weak(drops: bool, python: list[str], keep: Path, size: int) -> list[str]:
    return python


def _unshare(drops: bool, python: list[str], keep: Path, size: int) -> list[str]:
    shown = (*_shown(), *(("", place) for place in _packages()), *((d, d) for d in _DEVICES))
    pairs = [part for pair in shown for part in pair]
    return [
        *(_tool("unshare"), "--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child"),
        *(() if drops else ("--user", "--map-root-user")),
        *("sh", "-c", _BUILD, "sh", str(keep), str(size), *pairs, "--"),
        *("setpriv", *_new_user(drops), *_NO_PRIVILEGES, *python),
    ]


def _bubblewrap(drops: bool, python: list[str], keep: Path, size: int) -> list[str]:
    what = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    what += ["--die-with-parent", "--cap-drop", "ALL"]
    needed = ("SYS_ADMIN", "SETPCAP", *(("SETUID", "SETGID") if drops else ()))
    what += [part for cap in needed for part in ("--cap-add", f"CAP_{cap}")]
    if not drops:
        what += ["--unshare-user", "--uid", "0", "--gid", "0"]  # its own root: nobody else may mount
    for source, place in _shown():
        if os.path.islink(source):
            what += ["--symlink", os.readlink(source), place]
        else:
            for parent in reversed(Path(place).parents[:-1]):  # it would make them readable to itself only
                what += ["--perms", "0755", "--dir", str(parent)]
            what += ["--ro-bind", source, place]
    for place in _packages():
        what += ["--ro-bind", str(keep), place]
    what += ["--perms", "0755", "--dir", "/dev"]
    for device in _DEVICES:
        what += ["--dev-bind", device, device]
    what += ["--symlink", FOLDER, "/dev/shm"]  # named semaphores, on which Python's locks between processes lie
    what += ["--perms", "0777", "--size", str(size), "--tmpfs", FOLDER, "--remount-ro", "/", "--chdir", FOLDER]
    drop = " ".join(("setpriv", *_new_user(drops), *_NO_PRIVILEGES))
    start = f'{_COUNT_FILES} && exec {drop} "$@"'
    if not drops:
        # without real root to give up, what AppArmor lets no one mount runs all the same, its files uncounted
        start += '; exec "$@"'
    return [_tool("bwrap"), *what, "--", "sh", "-c", start, str(size), *python]


def _new_user(drops: bool) -> tuple[str, ...]:
    user = spare_user() if drops else None
    return () if user is None else (f"--reuid={user}", f"--regid={user}", "--clear-groups")


def spare_user() -> int | None:
    """A user id nobody has, drawn anew for each run; None without the right to become one.

    Real root is exempt from the limit on processes, and that limit counts all processes of a user.
    """
    if os.geteuid() != 0:
        return None
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(ranges, key=lambda entry: entry[2])
    if count < 10_000:
        return None
    lowest = 1 << 30 if count > 1 << 31 else first + count // 2
    return lowest + secrets.randbelow(1 << 30 if count > 1 << 31 else count // 2 - 1000)


@functools.cache
def _interpreter() -> str:
    """The interpreter itself, not the one of a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def _shown() -> tuple[tuple[str, str], ...]:
    """What of the machine is seen inside, read-only: (source, place)."""
    wanted = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache"]
    wanted += [sys.base_prefix, sys.base_exec_prefix, _interpreter()]
    shown: list[str] = []
    for path in wanted:
        inside_another = any(path == other or path.startswith(other + "/") for other in shown)
        if os.path.lexists(path) and path != "/" and not inside_another:
            shown.append(path)
    return (*((path, path) for path in shown), (str(_INSIDE), f"{CODE}/inside"))


@functools.cache
def _packages() -> tuple[str, ...]:
    """Folders of packages in what is shown, which are empty inside: HumanEval comes as one, with its tests."""
    folders = [source for source, _ in _shown() if os.path.isdir(source)]
    found = {
        os.path.realpath(path)
        for folder in folders
        for base in ("", "local/", "envs/*/")
        for path in glob.glob(f"{glob.escape(folder)}/{base}lib*/python3*/*-packages")
    }
    return tuple(sorted(path for path in found if any(path.startswith(folder + "/") for folder in folders)))


def paths_without_namespaces(folder: Path) -> dict[str, list[str]]:
    """What weak isolation leaves to ``read`` and to ``write`` where the kernel has Landlock."""
    return {"read": [source for source, _ in _shown()], "write": [str(folder), *_DEVICES]}


def missing_for(*tools: str) -> str:
    """Why programs cannot be isolated with these tools; empty if nothing is missing."""
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"the system-call filter knows x86_64 and aarch64, not {platform.machine()}"
    absent = [tool for tool in tools if not _tool(tool)]
    return f"not installed: {', '.join(absent)}" if absent else ""


def _tool(name: str) -> str:
    """Looked for on the caller's PATH, then in the system's folders."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SEARCH}") or ""
