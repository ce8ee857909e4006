"""Which runs are wanted, in which order, and which learning rate each system gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from lab.devices import CPU, FLOAT32

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

    A system that does best at the least or the largest rate gets the next one of ``further`` on that side, until it does
    worse there: the same rule for all. Without ``tuning_seeds`` the only rate is taken as it is.

    Raises:
        ValueError: a seed that tunes and measures, or several rates without a seed to choose one by.
    """

    families: tuple[str, ...]
    systems: tuple[System, ...]
    rates: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]
    sizes: Sizes
    further: tuple[float, ...] = ()
    device: str = CPU
    matmul: str = FLOAT32
    greedy: bool = False

    def __post_init__(self) -> None:
        both = set(self.seeds) & set(self.tuning_seeds)
        if both:
            raise ValueError(f"--seeds: {sorted(both)} are used for tuning too; measured seeds must be others")
        if not self.tuning_seeds and len(self.rates) > 1:
            raise ValueError(f"--tuning-seeds is empty: with --rates {self.rates} there must be one to choose by")

    def size(self, records: Records) -> int:
        """Runs of the whole plan, as far as it is known: a rate beyond the grid is asked for when the grid is done."""
        return len(self.tuning(records)) + len(self.families) * len(self.systems) * len(self.seeds)

    def tuning(self, records: Records) -> list[Run]:
        """In turns over systems and families, so that what an interrupted plan leaves is balanced."""
        grids = {pair: self._grid(*pair, records)[0] for pair in product(self.families, self.systems)}
        longest = max(map(len, grids.values()), default=0)
        return [
            self._run(family, system, grid[place], seed)
            for seed, place in product(self.tuning_seeds, range(longest))
            for (family, system), grid in grids.items()
            if place < len(grid)
        ]

    def measured(self, tuned: Mapping[Pair, Tuned]) -> list[Run]:
        """The runs of the systems that are tuned already, in turns."""
        return [
            self._run(family, system, tuned[family, system.name].rate, seed)
            for seed, family, system in product(self.seeds, self.families, self.systems)
            if (family, system.name) in tuned
        ]

    def tuned(self, records: Records) -> dict[Pair, Tuned]:
        """The rate of every family and system whose grid is done; rates beyond it count when all their runs are there.

        The score of a rate: held-out accuracy, the mean over the validations of the second half and over seeds;
        a failed run counts as 0. Of equal scores the smaller rate is taken.
        """
        pairs = product(self.families, self.systems)
        choices = {(family, system.name): self._grid(family, system, records)[1] for family, system in pairs}
        return {pair: choice for pair, choice in choices.items() if choice is not None}

    def todo(self, records: Records) -> list[Run]:
        """What is to be run next: tuning first, and no system is measured before its own is done."""
        tuning = [run for run in self.tuning(records) if run not in records]
        unsettled = {(run.family, run.system.name) for run in tuning}
        tuned = {pair: choice for pair, choice in self.tuned(records).items() if pair not in unsettled}
        return tuning + [run for run in self.measured(tuned) if run not in records]

    def _run(self, family: str, system: System, rate: float, seed: int) -> Run:
        return Run(
            family, system, rate, seed, self.sizes, device=self.device, matmul=self.matmul, greedy=self.greedy
        )

    def _grid(self, family: str, system: System, records: Records) -> tuple[tuple[float, ...], Tuned | None]:
        """The rates to be tried, and the choice among those of which all runs are there."""
        grid, choice = self.rates, None
        if not self.tuning_seeds:
            return grid, Tuned(self.rates[0], {}, 0)
        while True:
            runs = [self._run(family, system, rate, seed) for seed in self.tuning_seeds for rate in grid]
            if not all(run in records for run in runs):
                return grid, choice
            choice = _tuned(runs, records)
            below = [rate for rate in self.further if rate < choice.rate == min(grid)]
            above = [rate for rate in self.further if rate > choice.rate == max(grid)]
            following = max(below, default=None) or min(above, default=None)
            if following is None:
                return grid, choice
            grid = (*grid, following)


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
