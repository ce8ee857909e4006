"""Results kept cell by cell in one JSON file, so that a benchmark that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rredcot_plugin.adapter.whole_file import whole_file

Cell = dict[str, Any]


def load_cells(path: Path, required: Iterable[str]) -> dict[str, Cell]:
    """The cells of a results file (`raw.cells`), {} if there is no such file.

    What cannot be used is named on the terminal and measured again: a file that is not a results file is set aside
    as `<name>.corrupt`, a cell without the `required` entries is dropped.
    """
    if not path.exists():
        return {}
    try:
        cells = json.loads(path.read_text())["raw"]["cells"]
        kept = {key: cell for key, cell in cells.items() if set(required) <= set(cell)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        aside = path.with_name(path.name + ".corrupt")
        os.replace(path, aside)
        print(f"{path}: not a results file ({error!r}); set aside as {aside.name}, every cell is measured again")
        return {}
    for key in cells.keys() - kept.keys():
        print(f"{path}: cell {key!r} lacks one of {sorted(required)}; it is measured again")
    return kept


def save_cells(path: Path, cells: dict[str, Cell]) -> None:
    """Write the cells at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_text(json.dumps({"benchmark": path.stem, "finished": False, "raw": {"cells": cells}}, indent=2))


def fill_cells(
    path: Path | None,
    wanted: dict[str, Callable[[], Cell]],
    required: Iterable[str],
    *,
    force: bool = False,
    may_start: Callable[[], bool] = lambda: True,
) -> dict[str, Cell]:
    """Measure the `wanted` cells that the file does not have, saving it after each; returns those now known.

    `force` measures all of them; before each, `may_start` can say that the time is up. Without a path nothing is
    read or written. Cells of the file that are not wanted are left as they are.
    """
    stored = load_cells(path, required) if path is not None else {}
    found = {} if force else {key: cell for key, cell in stored.items() if key in wanted}
    if found:
        print(f"{path}: {len(found)} of {len(wanted)} cells are there already (--force measures them again)")
    for key in [key for key in wanted if key not in found]:
        if not may_start():
            print(f"time is up, {len(wanted) - len(found)} cells are left: run the same command again to go on")
            break
        print(f"[{len(found) + 1}/{len(wanted)}] {key}", flush=True)
        found[key] = wanted[key]()
        if path is not None:
            save_cells(path, stored | found)
    return {key: found[key] for key in wanted if key in found}
