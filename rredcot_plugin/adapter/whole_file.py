"""Files that nobody meets half written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The place to write ``path`` in: what stands there in the end becomes ``path`` in one move.

    After an error, or an interrupt, ``path`` is as before and nothing is left of the try.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
