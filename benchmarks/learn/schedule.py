"""Which runs are wanted, in which order, and which learning rate each system gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from learn.runs import DONE, Record, Run, Sizes
from learn.systems import System

Records = Mapping[Run, Record]
Pair = tuple[str, str]
"""Names of a family and a system."""


@dataclass(frozen=True)
class Tuned:
    """The chosen rate; ``scores`` by rate, 0 for a rate of which every run failed; ``failed`` runs."""

    rate: float
    scores: dict[float, float]
    failed: int

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is the least or the largest of several: a better one may lie outside."""
        return len(self.scores) > 1 and self.rate in (min(self.scores), max(self.scores))


@dataclass(frozen=True)
class Plan:
    """Every system is tuned on the same ``rates`` and ``tuning_seeds``, then measured on ``seeds``.

    Raises:
        ValueError: a seed that tunes and measures.
    """

    families: tuple[str, ...]
    systems: tuple[System, ...]
    rates: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    sizes: Sizes

    def __post_init__(self) -> None:
        both = set(self.seeds) & set(self.tuning_seeds)
        if both:
            raise ValueError(f"--seeds: {sorted(both)} are used for tuning too; measured seeds must be others")

    @property
    def size(self) -> int:
        """Runs of the whole plan."""
        pairs = len(self.families) * len(self.systems)
        return pairs * (len(self.rates) * len(self.tuning_seeds) + len(self.seeds))

    def tuning(self) -> list[Run]:
        """In turns over systems and families, so that what an interrupted plan leaves is balanced."""
        order = product(self.tuning_seeds, self.rates, self.families, self.systems)
        return [Run(family, system, rate, seed, self.sizes) for seed, rate, family, system in order]

    def measured(self, tuned: Mapping[Pair, Tuned]) -> list[Run]:
        """The runs of the systems that are tuned already, in turns."""
        return [
            Run(family, system, tuned[family, system.name].rate, seed, self.sizes)
            for seed, family, system in product(self.seeds, self.families, self.systems)
            if (family, system.name) in tuned
        ]

    def tuned(self, records: Records) -> dict[Pair, Tuned]:
        """The rate of every family and system whose tuning runs are all there.

        The score of a rate: held-out accuracy, the mean over the validations of the second half and over seeds;
        a failed run counts as 0. Of equal scores the smaller rate is taken.
        """
        wanted: dict[Pair, list[Run]] = {}
        for run in self.tuning():
            wanted.setdefault((run.family, run.system.name), []).append(run)
        return {
            pair: _tuned(runs, records) for pair, runs in wanted.items() if all(run in records for run in runs)
        }

    def todo(self, records: Records) -> list[Run]:
        """What is to be run next: tuning first."""
        tuning = [run for run in self.tuning() if run not in records]
        return tuning + [run for run in self.measured(self.tuned(records)) if run not in records]


def _tuned(runs: Iterable[Run], records: Records) -> Tuned:
    found: dict[float, list[float]] = {}
    failed = 0
    for run in runs:
        done = records[run]["status"] == DONE
        failed += not done
        found.setdefault(run.rate, []).append(late_accuracy(records[run]) if done else 0.0)
    scores = {rate: float(np.mean(own)) for rate, own in sorted(found.items())}
    return Tuned(max(scores, key=lambda rate: scores[rate]), scores, failed)


def late_accuracy(record: Record) -> float:
    """Mean held-out accuracy of the validations in the second half of the steps."""
    steps, accuracy = (np.array(record["evals"][name]) for name in ("step", "accuracy"))
    return float(accuracy[steps > steps[-1] / 2].mean())
