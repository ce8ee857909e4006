"""The command line: what is OpenRLHF's, and the options of ``--algo.rredcot.<key>``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from rredcot_plugin.written import read_value

ESTIMATOR = "--algo.advantage.estimator"
PREFIX = "--algo.rredcot."
GROUP, PPO, RED = "rredcot", "rredcot_ppo", "red"
STANDS_FOR = {GROUP: "flash_reinforce", PPO: "gae", RED: "flash_reinforce"}
"""What OpenRLHF is told instead of our name, whose models (a critic with ``gae``), checks and metrics apply as well. Of its
estimators without a critic, ``flash_reinforce`` alone takes one rollout of a prompt and does not whiten."""


@dataclass(frozen=True)
class Arguments:
    """``host``: what OpenRLHF parses; ``estimator``: ours, None where another one trains; ``options``: the keys of ``algo.rredcot``."""

    host: list[str]
    estimator: str | None
    options: dict[str, Any]


def split_arguments(words: Sequence[str]) -> Arguments:
    """Take ``--algo.rredcot.<key> VALUE`` (YAML) out, and the estimator's name.

    >>> split_arguments(["--algo.advantage.estimator", "rredcot", "--algo.rredcot.segmenter_kwargs.tokens", "8"])
    Arguments(host=['--algo.advantage.estimator', 'flash_reinforce'], estimator='rredcot', options={'segmenter_kwargs': {'tokens': 8}})

    Raises:
        ValueError: a key without a value, or beside another estimator.
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
        if not value or (value.startswith("--") and not equals):
            empty = "nothing; an empty text is \"''\""
            raise ValueError(f"{flag}: expected a value after it, got {value or empty}")
        if flag == ESTIMATOR:
            estimator = value
            host += [flag, STANDS_FOR.get(value, value)]
        else:
            _put(options, flag, value)
    if estimator not in STANDS_FOR and options:
        names = ", ".join(STANDS_FOR)
        raise ValueError(f"{PREFIX}{next(iter(options))}: needs {ESTIMATOR} {names}; got {estimator or 'none'}")
    return Arguments(host, estimator if estimator in STANDS_FOR else None, options)


def _put(options: dict[str, Any], flag: str, value: str) -> None:
    """``--algo.rredcot.a.b VALUE`` -> options["a"]["b"]."""
    *parents, key = flag.removeprefix(PREFIX).split(".")
    for number, parent in enumerate(parents, 1):
        options = options.setdefault(parent, {})
        if not isinstance(options, dict):
            above = PREFIX + ".".join(parents[:number])
            raise ValueError(
                f"{flag}: {above} has a value of its own already, {options!r}; leave one of the two out"
            )
    try:
        options[key] = read_value(value)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{flag} {value}: expected a value in YAML; put text with special characters into quotes within the shell's, as in "
            f"\"'{value}'\""
        ) from error
