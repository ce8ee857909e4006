"""Shares the work of a big step between processes of the driver's node, by whole groups.

verl's driver is one process; what it does for a batch takes as long however many GPUs wait for it. Up to
``AUTO_TOKENS`` the driver does the work itself, beyond it a crew of Ray actors does (``credit_workers``). They reserve no CPUs:
verl may have claimed all of the cluster's for its own workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rredcot_plugin.alignment import TokenBytes
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.encoding import Manner, ProbeEncoder
from rredcot_plugin.probing import ProbePlan
from rredcot_plugin.rows import StepRows
from rredcot_plugin.shards import (
    GroupWork,
    Index,
    features_in_parts,
    parcel,
    plan_in_parts,
    split_groups,
    unparcel,
)
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.base import leaves
from rredcot_plugin.values.features import boundary_features
from rredcot_plugin.values.proposals import lowest_of_others

logger = logging.getLogger(__name__)

AUTO_TOKENS = 1 << 20
"""Response tokens of a step up to which ``auto`` stays in the driver: about one second of work."""

MOST_WORKERS = 32
"""Of ``auto``."""


class CrewMember(GroupWork):
    """``GroupWork`` in a process of its own."""

    def __init__(
        self, modules: Sequence[str], config: RRedCoTConfig, table: TokenBytes, encoder: ProbeEncoder
    ) -> None:
        for module in modules:  # those of a user register their classes when imported
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        torch.set_num_threads(1)
        super().__init__(config, table, encoder)

    def plan(self, manner: Manner, lowest: torch.Tensor) -> ProbePlan:
        """Without the segments, which the driver has from ``read``."""
        nothing = Segments(torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        return dataclasses.replace(super().plan(manner, lowest), segments=nothing)

    def do(self, method: str, parcelled: Any) -> Any:
        """The method's result with these arguments, both as parcels."""
        return parcel(getattr(self, method)(*unparcel(parcelled)))


class Crew:
    """Splits a batch, has its parts worked on here or in Ray actors, and puts the results together."""

    def __init__(self, config: RRedCoTConfig, table: TokenBytes, encoder: ProbeEncoder) -> None:
        self.config, self.table, self.encoder = config, table, encoder
        self._here = GroupWork(config, table, encoder)
        self._members: list[Any] = []
        self._indices: list[Index] = []
        self._lost = False

    @property
    def processes(self) -> int:
        """How many actors work on the batch at hand; 0: the driver alone."""
        return len(self._indices) if len(self._indices) > 1 else 0

    def plan(self, rows: StepRows) -> tuple[list[Segments], ProbePlan]:
        """Segments of every level, coarse to fine, and the probes of the batch."""
        wanted = 1 if self._lost else self._wanted(sum(rows.lengths))
        self._indices = split_groups(rows.rollouts.group_ids, rows.lengths, wanted)
        try:
            return self._plan(rows)
        except RayActorError as error:
            self._lose(error)
            return self._plan(rows)

    def _plan(self, rows: StepRows) -> tuple[list[Segments], ProbePlan]:
        if not self.processes:
            levels, manner = self._here.read(rows)
            return levels, self._here.plan(manner, lowest_of_others(rows.rollouts.outcomes))
        levels, plan, manner = plan_in_parts(rows, self._indices, self._ask)
        self.encoder.learn(manner)  # in case the driver has to go on alone
        return levels, plan

    def with_texts(self, rows: StepRows) -> StepRows:
        """The rows that were planned last with their texts, where the driver has read them or something in it does:
        the estimators of rredcot do not, those of users may."""
        if not self.processes and self._here.rows is not None:
            return self._here.rows
        estimators = leaves(self.config.build_value_estimator())
        shipped = all(type(leaf).__module__.startswith("rredcot_plugin.") for leaf in estimators)
        return rows if shipped else rows.read(self.table)

    def features(self, rollouts: Rollouts, *states: Any) -> torch.Tensor:
        """``boundary_features`` of the batch that was planned last, with its arguments."""
        if self.processes:
            try:
                return features_in_parts(self._indices, self._ask, rollouts, *states)
            except RayActorError as error:
                self._lose(error)
        return boundary_features(rollouts, *states)

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The method's result of every part, each from an actor."""
        while len(self._members) < len(arguments):
            self._members.append(self._start())
        calls = zip(self._members, arguments, strict=False)
        found = ray.get([member.do.remote(method, parcel(given)) for member, given in calls])
        return [unparcel(each) for each in found]

    def _start(self) -> Any:
        """One actor, on this node: its user code lies where the driver's does, and the batch stays in memory."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        built = (self.config.build_segmenter(), self.config.build_value_estimator())
        modules = sorted({type(part).__module__ for part in built})
        encoder = dataclasses.replace(self.encoder, _seen={})
        actor = ray.remote(num_cpus=0)(CrewMember).options(scheduling_strategy=here)
        return actor.remote(modules, self.config, self.table, encoder)

    def _wanted(self, tokens: int) -> int:
        workers = self.config.credit_workers
        if workers == "auto":
            return min(MOST_WORKERS, len(os.sched_getaffinity(0)) // 2) if tokens > AUTO_TOKENS else 1
        return max(1, int(workers))

    def _lose(self, error: Exception) -> None:
        """From here on without actors."""
        logger.warning(
            "rredcot: a process of credit_workers=%s died (%s); the driver does the work itself from here on, slower. "
            "It may have run out of memory: set fewer algorithm.rredcot.credit_workers",
            self.config.credit_workers,
            str(error).partition("\n")[0],
        )
        self._members, self._indices, self._lost = [], [], True
