"""``key=value`` pairs of the command line as a mapping of options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rredcot_plugin.written import read_value


def read_pairs(pairs: Sequence[str], into: dict[str, Any] | None = None, *, option: str = "set") -> dict[str, Any]:
    """The mapping with ``key=value`` pairs put in, values in YAML; a dot in a key opens a mapping.

    >>> read_pairs(["lam=0.9", "segmenter_kwargs.tokens=8"])
    {'lam': 0.9, 'segmenter_kwargs': {'tokens': 8}}

    Raises:
        ValueError: a pair without a sign, a value that is no YAML, or a dot in a key whose value is no mapping;
            ``option`` is what the command line calls a pair.
    """
    import yaml

    found = dict(into or {})
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ValueError(f"{option}={pair}: expected KEY=VALUE")
        *path, last = key.strip().split(".")
        at: Any = found
        for part in path:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ValueError(f"{option}={pair}: {part} is {at!r}, which has no keys of its own")
        try:
            at[last] = read_value(value)
        except yaml.YAMLError as error:
            raise ValueError(f"options cannot be read: {pair}: {' '.join(str(error).split())}") from error
    return found
