"""Values of options as people write them on a command line or in a file."""

from __future__ import annotations

import re
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


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """With resolvers of its own."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
    return Loader
