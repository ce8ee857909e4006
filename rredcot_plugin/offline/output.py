"""The file of scored rollouts: appended chunk by chunk, and continued where an earlier run stopped.

Two files stand beside it: `<out>.meta.json` says what it was made from, `<out>.state.pt` how far it has come and
what calibration remembers. The state is written after the lines that it covers, so after a cut at any moment the
lines that no state covers are cut off and made again, to the same bytes. One process writes at a time: it holds a lock
on the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch

from rredcot_plugin.adapter.whole_file import whole_file
from rredcot_plugin.offline.json_lines import BadLine
from rredcot_plugin.offline.out_file import why_no_file

KEPT = 2
"""States that are kept: where the file lost more than the last chunk, scoring starts over."""


class OutputExistsError(ValueError):
    """The output is in the way: ``--force`` overwrites it, or another process is writing to it."""


@dataclass(frozen=True)
class State:
    """After ``chunks`` chunks the file has ``size`` bytes."""

    chunks: int = 0
    size: int = 0
    calibrator: Mapping[str, Any] = field(default_factory=lambda: {"features": [], "outcome": [], "weight": []})
    left_out: Sequence[BadLine] = ()


class Output:
    """Opened with ``Output.open``; ``state`` says where to go on. As a context it lets the file go at its end."""

    def __init__(self, path: Path, file: BinaryIO, states: list[State]) -> None:
        self.path = path
        self.state = states[-1]
        self._file = file
        self._states = states

    @classmethod
    def open(cls, path: Path, meta: Mapping[str, Any], force: bool = False) -> Output:
        """Begin a file, or go on with one of the same ``meta``.

        Raises:
            OutputExistsError: a file that this command did not make, or made from something else, naming what
                differs; with ``force`` it is emptied instead. One that another process writes to, whatever ``force``.
            ValueError: a folder that cannot be written to.
        """
        if why := why_no_file(path):
            raise OutputExistsError(why)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        try:
            _lock(file, path)
            return cls(path, file, _begin(path, file, json.loads(json.dumps(meta, default=str)), force))
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(
        self, records: Sequence[Mapping[str, Any]], calibrator: Mapping[str, Any], left_out: Sequence[BadLine]
    ) -> None:
        """Write one chunk's records, and that the chunk is done.

        Raises:
            ValueError: somebody else has changed the file since the chunk before.
        """
        found = self.path.stat().st_size if self.path.exists() else "no"
        if found != self.state.size:
            raise ValueError(
                f"out={self.path}: expected the {self.state.size} bytes that this run has left there, got {found}: "
                "something else writes to it; stop that, and run the same command again"
            )
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        self._file.write(lines.encode("utf-8"))
        self._file.flush()
        os.fsync(self._file.fileno())
        size = os.fstat(self._file.fileno()).st_size
        before = self.state
        self.state = State(before.chunks + 1, size, calibrator, (*before.left_out, *left_out))
        self._states = [*self._states, self.state][-KEPT:]
        with whole_file(state_path(self.path)) as part:
            torch.save([_plain(state) for state in self._states], part)


def meta_path(path: Path) -> Path:
    return path.with_name(path.name + ".meta.json")


def state_path(path: Path) -> Path:
    return path.with_name(path.name + ".state.pt")


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep the file from other processes until it is closed; a file system without locks is passed over."""
    with suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputExistsError(
                f"{path}: another rredcot score is writing to it; wait until that has ended, or use another --out"
            ) from error


def _begin(path: Path, file: BinaryIO, meta: Mapping[str, Any], force: bool) -> list[State]:
    """The states to continue from; the file is cut off after the last; it is emptied with ``force``."""
    if force:
        file.truncate(0)
        for side in (meta_path(path), state_path(path)):
            side.unlink(missing_ok=True)
    size = os.fstat(file.fileno()).st_size
    if size or state_path(path).exists():  # a run that ended before its first chunk leaves nothing to keep
        _check_meta(path, meta)
    else:
        with whole_file(meta_path(path)) as part:
            part.write_bytes(json.dumps(meta, indent=1).encode())
    states = [state for state in _read_states(path) if state.size <= size]
    file.truncate(states[-1].size)
    return states


def _check_meta(path: Path, meta: Mapping[str, Any]) -> None:
    way_out = "use another --out, or --force to overwrite it"
    if not meta_path(path).is_file():
        raise OutputExistsError(
            f"{path}: in the way, and not made by rredcot score (no {meta_path(path).name}); {way_out}"
        )
    try:
        there = dict(_flat(json.loads(meta_path(path).read_text("utf-8"))))
    except ValueError as error:
        raise OutputExistsError(f"{meta_path(path)}: cannot be read ({error}); {way_out}") from error
    here = dict(_flat(meta))
    differing = sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))
    if differing:
        named = "; ".join(f"{key}: {there.get(key)!r} there, {here.get(key)!r} now" for key in differing)
        raise OutputExistsError(f"{path}: made with other arguments ({named}); {way_out}")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by their path."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _read_states(path: Path) -> list[State]:
    """The states that were kept, the empty one first; an unreadable file counts as none."""
    try:
        found = torch.load(state_path(path), weights_only=True)
        kept = [State(**{**s, "left_out": tuple(BadLine(*bad) for bad in s["left_out"])}) for s in found]
    except Exception:  # noqa: BLE001 - absent, cut, or no state at all: then scoring starts over
        kept = []
    return [State(), *kept]


def _plain(state: State) -> dict[str, Any]:
    return {**vars(state), "left_out": [(bad.number, bad.reason) for bad in state.left_out]}
