"""A page that is written again whenever its files change, until somebody stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

Signature = tuple[tuple[str, int, int], ...]


def signature(paths: Sequence[Path]) -> Signature:
    """Names, sizes and times of change of the files of all paths, as far as they are there; empty before the first."""
    found = []
    for path in paths:
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            try:
                status = file.stat()
            except OSError:
                continue
            found.append((str(file), status.st_size, status.st_mtime_ns))
    return tuple(found)


def watch(paths: Sequence[Path], make: Callable[[], None], every: float) -> bool:
    """Call ``make`` when the files are there and after each change, looking every ``every`` seconds; until Ctrl-C.

    Returns whether it was ever called.
    """
    seen: Signature = ()
    try:
        while True:
            now = signature(paths)
            if now and now != seen:
                make()
                seen = now
            time.sleep(every)
    except KeyboardInterrupt:
        return bool(seen)
