"""A plan as plain numbers, for `rredcot plan --json` and for its tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rredcot_plugin.planning.driver import STORAGES, DriverMemory, driver_memory
from rredcot_plugin.planning.memory import PhaseMemory, phases
from rredcot_plugin.planning.models import ModelSizes
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.planning.step import Step, alternatives
from rredcot_plugin.planning.transfers import DRIVER, Transfer, transfers

STORED_ROWS = 100_000
"""verl's default of transfer_queue.backend.SimpleStorage.total_storage_size."""

PROBE_ROWS = 4096
"""Probes that lie there at once where they are rows of their own (`integrations.verl.batched`)."""

DRIVER_SHARE = 0.01
"""What rredcot's work on the driver should stay below, of a step."""


@dataclass(frozen=True)
class Plan:
    """``steps``: GRPO, the setup's estimator, Monte-Carlo continuations; each once."""

    model: ModelSizes
    setup: Setup
    steps: list[Step]
    memory: list[PhaseMemory]
    moved: list[Transfer]
    driver: DriverMemory

    @property
    def step(self) -> Step:
        return next(step for step in self.steps if step.estimator == self.setup.estimator)

    def bytes_of(self, *, ours: bool, who: str | None = None) -> float:
        return sum(t.bytes for t in self.moved if t.ours == ours and who in (None, t.who))

    def stored_rows(self) -> int:
        """Rows in TransferQueue at once: the rollouts, and with ``batched`` some of the probes."""
        own_rows = self.setup.traces * self.setup.probes_a_trace if self.setup.backend == "batched" else 0
        return self.setup.traces + min(own_rows, PROBE_ROWS)

    def warnings(self) -> list[str]:
        """What does not fit, each in one sentence with the way out."""
        found = []
        if (share := self.step.driver_share) > DRIVER_SHARE:
            found.append(
                f"rredcot takes {share:.1%} of the step on the driver, more than {DRIVER_SHARE:.0%}: use fewer or shorter "
                "rollouts per step, fewer segments and proposals, or more --credit-workers"
            )
        if (rows := self.stored_rows()) > STORED_ROWS:
            found.append(
                f"{rows:,} rows are more than TransferQueue keeps by default: raise "
                f"transfer_queue.backend.SimpleStorage.total_storage_size above {STORED_ROWS:,}"
            )
        for phase in self.memory:
            if phase.bytes + phase.added > self.setup.gpu_bytes:
                found.append(
                    f"{phase.name}: {(phase.bytes + phase.added) / 1e9:.1f} GB per GPU do not fit into "
                    f"{self.setup.gpu_gb:g}: use more GPUs, shorter traces, or split the model further"
                )
        return found

    def assumptions(self) -> list[str]:
        s = self.setup
        return [
            f"{s.mfu:.0%} of {s.tflops:,.0f} TFLOP/s in forward and backward, probes included (--mfu)",
            "probes cost only their operations: on an H100 64 of them in 16,384 tokens took 1.21 times the pass, not 1.06",
            f"{s.decode_rate:,.0f} tokens per second and GPU while generating (--decode-tokens-per-second)",
            f"{s.transfer_gb:g} GB/s between a process and TransferQueue (--transfer-gb-per-second), "
            f"{STORAGES} processes at a time",
            "every trace has the mean length, every segment the same; phases run one after the other",
            "every layer attends to all earlier tokens: sliding windows and linear attention count as full",
            "Monte-Carlo continuations end where their trace did; prefixes come from the rollout server's cache",
            "driver: cores as fast as those of the benchmarks (AMD EPYC, Intel Xeon), "
            + (f"{s.credit_workers} of them for credit_workers" if s.is_shared else "one of them for rredcot"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything, in seconds, bytes, tokens and operations."""
        steps = {
            step.estimator: {
                "seconds": step.seconds,
                "rredcot_share": step.share,
                "rredcot_driver_share": step.driver_share,
                "phases": [{**asdict(phase), "flops": asdict(phase.flops)} for phase in step.phases],
            }
            for step in self.steps
        }
        return {
            "model": asdict(self.model),
            "setup": {**asdict(self.setup), "traces": self.setup.traces, "probes_a_trace": self.setup.probes_a_trace},
            "steps": steps,
            "memory_bytes_a_gpu": [asdict(phase) for phase in self.memory],
            "driver_memory_bytes": {**asdict(self.driver), "total": self.driver.total},
            "transfers": [asdict(moved) for moved in self.moved],
            "bytes_a_step": {
                "verl": self.bytes_of(ours=False),
                "rredcot": self.bytes_of(ours=True),
                "rredcot_driver": self.bytes_of(ours=True, who=DRIVER),
            },
            "stored_rows": self.stored_rows(),
            "warnings": self.warnings(),
            "assumptions": self.assumptions(),
        }  # fmt: skip


def make_plan(sizes: ModelSizes, setup: Setup) -> Plan:
    """Everything that `rredcot plan` prints.

    Raises:
        ValueError: as ``plan_step``.
    """
    return Plan(
        sizes, setup, alternatives(sizes, setup), phases(sizes, setup), transfers(setup), driver_memory(setup)
    )
