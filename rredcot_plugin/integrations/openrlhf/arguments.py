"""The command line: what is OpenRLHF's, and the options of ``--algo.rredcot.<key>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

ESTIMATOR = "--algo.advantage.estimator"
PREFIX = "--algo.rredcot."
NAME = "rredcot"
STANDS_FOR = "group_norm"
"""What OpenRLHF is told instead, whose checks (more than one sample per prompt, no critic) and metrics apply as well."""
NOT_YET = ("rredcot_ppo", "red")


@dataclass(frozen=True)
class Arguments:
    """``host``: what OpenRLHF parses; ``options``: the keys of ``algo.rredcot``, None where another estimator trains."""

    host: list[str]
    options: dict[str, Any] | None


def split_arguments(words: Sequence[str]) -> Arguments:
    """Take ``--algo.rredcot.<key> VALUE`` (YAML) out, and the estimator's name.

    >>> split_arguments(["--algo.advantage.estimator", "rredcot", "--algo.rredcot.segmenter_kwargs.tokens", "8"])
    Arguments(host=['--algo.advantage.estimator', 'group_norm'], options={'segmenter_kwargs': {'tokens': 8}})

    Raises:
        ValueError: a key without a value, or beside another estimator; an estimator that is not supported here.
    """
    host: list[str] = []
    options: dict[str, Any] = {}
    estimator, rest = None, iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag != ESTIMATOR and not flag.startswith(PREFIX):
            host.append(word)
            continue
        value = value if equals else next(rest, "")
        if flag == ESTIMATOR:
            estimator = value
            host += [flag, STANDS_FOR if value == NAME else value]
        else:
            _put(options, flag, value)
    if estimator in NOT_YET:
        raise ValueError(f"{ESTIMATOR} {estimator}: only {NAME} runs in OpenRLHF so far; {estimator} runs in verl")
    if estimator != NAME and options:
        raise ValueError(f"{PREFIX}{next(iter(options))}: needs {ESTIMATOR} {NAME}, got {estimator or 'none'}")
    return Arguments(host, options if estimator == NAME else None)


def _put(options: dict[str, Any], flag: str, value: str) -> None:
    """``--algo.rredcot.a.b VALUE`` -> options["a"]["b"]."""
    if not value or value.startswith("--"):
        raise ValueError(f"{flag}: expected a value after it, got {value or 'nothing'}")
    *parents, key = flag.removeprefix(PREFIX).split(".")
    for parent in parents:
        options = options.setdefault(parent, {})
    options[key] = yaml.safe_load(value)
