"""What files say of the options that they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rredcot_plugin.registry import VALUE_ESTIMATORS

ABOUT = "run.json"
"""What a folder of dumps says of its run."""

CALIBRATE, ESTIMATOR = "options.calibrate", "options.value_estimator"

LONGEST_OPTION = 60


def read_options(path: Path) -> dict[str, str]:
    """The options of a run as texts: ``run.json`` of a folder of dumps, or what `rredcot score` wrote beside its file.

    Empty where there is no such file, or none that can be read.
    """
    # a folder has nothing beside it, and the present one, ".", has no name to look by
    files = [path / ABOUT] if path.is_dir() else [path.with_name(path.name + ".meta.json"), path.parent / ABOUT]
    for file in files:
        try:
            found = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        return {name: _shown(value) for name, value in _flat(found)}
    return {}


def may_be_fitted(options: Mapping[str, str]) -> bool:
    """Whether values of a run with these options are fitted on other prompts, as far as the name of the estimator tells."""
    name = options.get(ESTIMATOR)
    known = name in VALUE_ESTIMATORS.names()
    return not known or bool(getattr(VALUE_ESTIMATORS.factory(str(name)), "calibrates", True))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _flat(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_OPTION else text[:LONGEST_OPTION] + " …"
