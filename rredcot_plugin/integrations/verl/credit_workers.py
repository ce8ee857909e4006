"""Shares the work of a big step between processes of the driver's node, by whole groups.

verl's driver is one process; what it does for a batch takes as long however many GPUs wait for it. Up to
``choices.AUTO_TOKENS`` the driver does the work itself, beyond it Ray actors do (``credit_workers``), which read their rows
from TransferQueue themselves. They reserve no CPUs: verl may have claimed all of the cluster's for its own workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rredcot_plugin.adapter.data_plane import Source
from rredcot_plugin.adapter.group_work import GroupWork, numbers_in_parts, plan_in_parts, split_groups
from rredcot_plugin.adapter.parcel import parcel, unparcel
from rredcot_plugin.adapter.probe_plan import ProbePlan
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import BatchSummary, Index
from rredcot_plugin.choices import choose_workers
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.verl.worker_pool import WorkerLostError, WorkerPool
from rredcot_plugin.segmenters.nested import NestedSegmenter
from rredcot_plugin.state_numbers import StateNumbers
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import AnswerStyle, ProbeEncoder
from rredcot_plugin.types import Segments
from rredcot_plugin.values.base import with_parts
from rredcot_plugin.values.proposals import floor_of

logger = logging.getLogger(__name__)


class CreditWorker:
    """``GroupWork`` in a process of its own, which reads its rows itself and lays down its probes itself."""

    def __init__(
        self,
        modules: Sequence[str],
        config: RRedCoTConfig,
        table: TokenBytes,
        encoder: ProbeEncoder,
        *,
        delivers: bool,
    ) -> None:
        for module in modules:  # those of a user register their classes when imported
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        torch.set_num_threads(1)
        self._work = GroupWork(config, table, encoder)
        self._delivers = delivers
        self._source: Source | None = None
        self._lowest: float | None = None

    def do(self, method: str, parcelled: Any) -> Any:
        """The method's result with these arguments, both as parcels."""
        with short_of_memory():
            return parcel(getattr(self, method)(*unparcel(parcelled)))

    def read(self, source: Source, index: Index) -> BatchSummary:
        self._source = source
        with reaching():
            rows = source.rows()
        return self._work.read(rows, index)

    def plan(self, seen: Mapping[str, Any], floor: torch.Tensor) -> ProbePlan:
        """Without the segments, which the driver has from ``read``, and without the probes where they are delivered."""
        plan = self._work.plan(seen, floor)
        if self._delivers:
            assert self._source is not None
            with reaching():
                self._source.put_probes(plan.packed)
            plan = dataclasses.replace(plan, packed=[])
        nothing = Segments(torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        return dataclasses.replace(plan, segments=nothing)

    def state_numbers(self) -> StateNumbers:
        """With the signals of the actor that is trained."""
        assert self._source is not None
        with reaching():
            update_signals(self._work, self._source)
        return self._work.state_numbers()


@contextlib.contextmanager
def reaching() -> Iterator[None]:
    """Whatever goes wrong in here is a ``ConnectionError``: the driver may still reach what this process does not."""
    try:
        yield
    except Exception as error:
        raise ConnectionError(f"no way to TransferQueue: {error!r}") from error


@contextlib.contextmanager
def short_of_memory() -> Iterator[None]:
    """torch's error for memory that the CPU lacks is a ``MemoryError`` like everybody else's."""
    try:
        yield
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):
            raise MemoryError(str(error)) from error
        raise


def update_signals(work: GroupWork, source: Source) -> None:
    """Hand over the signals of the actor that is trained."""
    assert work.rows is not None
    signals = source.signals(work.rows.token_ids.shape[1])
    work.update_signals(*(signals.get(name) for name in ("log_probs", "entropies", "sum_pi_squared")))


def start_member(config: RRedCoTConfig, table: TokenBytes, encoder: ProbeEncoder, *, delivers: bool) -> Any:
    """One actor, on this node: its user code lies where the driver's does, and the batch stays in memory."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0)(CreditWorker).options(scheduling_strategy=here)
    return actor.remote(
        modules_of(config), config, table, dataclasses.replace(encoder, _seen={}), delivers=delivers
    )


def modules_of(config: RRedCoTConfig) -> list[str]:
    """Modules that register what the work of a group looks up by name, levels of a segmenter and parts of a mixture included."""
    parts = [*_with_levels(config.build_segmenter()), *with_parts(config.build_value_estimator())]
    return sorted({type(part).__module__ for part in parts})


def _with_levels(segmenter: Any) -> Iterator[Any]:
    yield segmenter
    if isinstance(segmenter, NestedSegmenter):
        for member in segmenter.members:
            yield from _with_levels(member)


class CreditWorkers:
    """Splits a batch, has its parts worked on here or in Ray actors, and puts the results together.

    Actors read their parts from the source, so that no token passes the driver. With ``delivers`` probes are laid down
    there by whoever made them. An actor that is lost costs one warning: the driver then does the work of its step and of
    all later ones itself, with the same result.
    """

    def __init__(
        self, config: RRedCoTConfig, table: TokenBytes, encoder: ProbeEncoder, *, delivers: bool = True
    ) -> None:
        self.config, self.table, self.encoder, self.delivers = config, table, encoder, delivers
        self.group_ids: list[str] = []
        self._here = GroupWork(config, table, encoder)
        self._source: Source | None = None
        self.pool = self._hire()
        self._indices: list[Index] = []
        self._style: AnswerStyle | None = None
        self._lost = False

    @property
    def rows(self) -> PromptedRollouts | None:
        """Those of the batch at hand with their texts, and the signals that were handed over, where the driver works alone."""
        return None if self.processes else self._here.rows

    @property
    def processes(self) -> int:
        """How many actors work on the batch at hand; 0: the driver alone."""
        return len(self._indices) if len(self._indices) > 1 else 0

    def plan(
        self, source: Source, sizes: Sequence[int], lowest: float | None = None
    ) -> tuple[BatchSummary, ProbePlan]:
        """The summary of a batch, and its probes; ``sizes`` are the tokens of its responses, ``lowest`` the lowest reward of
        past steps."""
        self._source, self._indices, self._lowest, self._style = source, [], lowest, None
        wanted = 1 if self._lost else self._wanted(sum(sizes))
        if wanted > 1:
            self.group_ids = source.group_ids()
            self._indices = split_groups(self.group_ids, sizes, wanted)
        if not self.processes:
            return self.alone()
        try:
            return plan_in_parts(source, self._indices, self.pool.ask, self._follow, lowest)
        except WorkerLostError as error:
            self._lose(error)
            return self.alone()

    def alone(self) -> tuple[BatchSummary, ProbePlan]:
        """The same of the batch at hand, by the driver, which has its rows then."""
        assert self._source is not None
        self._indices = []
        rows = self._source.rows()
        self.group_ids = [str(name) for name in rows.rollouts.group_ids]
        summary = self._here.read(rows)
        plan = self._here.plan(self._follow(summary.style), floor_of(summary.outcomes, self._lowest))
        if self.delivers and plan.size:
            self._source.put_probes(plan.packed)
        return summary, plan

    def undelivered(self) -> ProbePlan:
        """From here on probes stay in their plan; that of the batch at hand, by the driver."""
        self.delivers = False
        self.pool.dismiss()
        self.pool = self._hire()
        return self.alone()[1]

    def read_signals(self) -> StateNumbers | None:
        """Read the signals of the actor that is trained, after the log-prob pass. Returns what processes make of them
        (``state_numbers``); None where the driver has worked alone: its ``rows`` then hold them."""
        assert self._source is not None
        if not self.processes:
            update_signals(self._here, self._source)
            return None
        try:
            return numbers_in_parts(self._indices, self.pool.ask)
        except WorkerLostError as error:
            self._lose(error)
        self._here.read(self._source.rows())
        update_signals(self._here, self._source)
        return self._here.state_numbers()

    def _follow(self, style: AnswerStyle) -> dict[str, Any]:
        """What the driver's encoder has seen once it follows what is due for the batch at hand, which may be planned more than
        once."""
        self._style = self._style or self.encoder.due(style)
        self.encoder.follow(self._style)
        return self.encoder.state_dict()

    def _hire(self) -> WorkerPool:
        """A pool whose processes start when they are first asked."""
        start = partial(start_member, self.config, self.table, self.encoder, delivers=self.delivers)
        return WorkerPool(start, self.config.credit_timeout_s)

    def _wanted(self, tokens: int) -> int:
        return int(choose_workers(self.config, tokens, len(os.sched_getaffinity(0))).value)

    def _lose(self, error: WorkerLostError) -> None:
        """From here on without actors."""
        logger.warning(
            "rredcot: a process of credit_workers=%s failed (%s); from here on the driver does the work itself, which is slower. %s",
            self.config.credit_workers,
            error,
            error.way_out,
        )
        self.pool.dismiss()
        self._indices, self._lost = [], True
