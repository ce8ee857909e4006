"""Values of options as people write them on a command line or in a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import IO, Any

FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z|[-+]\.\d+\Z")
"""Numbers of other command lines, and of Hydra's, that YAML 1.1 takes for text: 5e-1, 1.5e3."""


def read_value(text: str | IO[str]) -> Any:
    """YAML, with every number that a float may be written as.

    >>> read_value("5e-1"), read_value("{x: [1.5e3, 1e3x]}")
    (0.5, {'x': [1500.0, '1e3x']})

    Raises:
        yaml.YAMLError: it cannot be read.
    """
    import yaml

    return yaml.load(text, _loader())


HOME = re.compile(r"^\+{0,2}algorithm\.rredcot\.")
"""Where verl's configuration has the options, with what Hydra takes before it."""


def read_pairs(pairs: Sequence[str], into: dict[str, Any] | None = None, *, option: str = "set") -> dict[str, Any]:
    """The mapping with ``key=value`` pairs put in, values in YAML; a dot in a key opens a mapping. Keys may be written as for
    verl, too.

    >>> read_pairs(["+algorithm.rredcot.lam=0.9", "segmenter_kwargs.tokens=8"])
    {'lam': 0.9, 'segmenter_kwargs': {'tokens': 8}}

    Raises:
        ValueError: a pair without a sign, a value that is not YAML, or a dot in a key whose value is not a mapping;
            ``option`` is what the command line calls a pair.
    """
    import yaml

    found = dict(into or {})
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ValueError(f"{option}={pair}: expected KEY=VALUE")
        *path, last = HOME.sub("", key.strip()).split(".")
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


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """With resolvers of its own."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
    return Loader
