"""What rredcot does in the driver's one process: seconds on one core, and memory. O(batch), whatever the GPUs.

Seconds come from benchmarks on CPU cores, `a step` of an Intel Xeon, the others of an AMD EPYC. They are linear in tokens
and in probes, above what a step takes however small it is:

    credit    1,024 rollouts × 8,192 tokens in 1.19 s, four steps past, segmentation included    assign_credit_hybrid.json
    text      of each token, for segmenters and probes                                plan_check.json
    probes    placing them, vectors for TransferQueue included                        plan_check.json
    a step    credit 0.02 s, planning 0.05 s, of 64 rollouts of 40 tokens in verl     step_share.json
    rows      of each token, taking rows in and putting them together: 0.433 µs in all, less credit, text and
              the reading of 32 bytes at the rate measured beside it                  driver.json
    shared    what stays with the driver of a step that other processes share         driver.json
"""

from __future__ import annotations

from dataclasses import dataclass

from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.planning.transfers import DRIVER, PROCESSES, Transfer

CREDIT_A_TOKEN = 1.19 / (1024 * 8192)
CREDIT_A_STEP = 0.0227
PLAN_A_STEP = 0.0496
ALIGN_A_TOKEN = 7.4e-8
READ_BYTES = 32
"""Read of a response token: ids and mask 8 each, reward, the engine's log-prob, the actor's log-prob and entropy 4 each."""

ROWS_A_TOKEN = 4.33e-7 - CREDIT_A_TOKEN - ALIGN_A_TOKEN - READ_BYTES / 3.22e8
PLAN_A_PROBE = 2.5e-6

SHARED_A_TOKEN = 3.6e-8
SHARED_A_PROBE = 1e-7
FIT_A_STEP = 0.14
"""The two fits of the default, of values and of baselines, see a sample of a big step and stay with the driver."""

STORAGES = 8
"""TransferQueue's storage processes in verl's configuration: as many readers are served at a time."""

ROW_BYTES = 41
"""A response token: tensors 21, text and offsets 20 (assign_credit_hybrid.json)."""

CREDIT_BYTES = 21
"""What assign_credit needs on top, a response token (assign_credit_hybrid.json)."""

PROBE_BYTES = 146
"""A planned probe (plan_check.json)."""


@dataclass(frozen=True)
class DriverMemory:
    """Bytes in the driver's process while a step is at work."""

    rows: float
    credit: float
    probes: float

    @property
    def total(self) -> float:
        return self.rows + self.credit + self.probes


def credit_seconds(setup: Setup) -> float:
    """Segmentation, values, calibration, redistribution: linear in response tokens; 0 with GRPO. Shared, the fit."""
    if setup.estimator == "none":
        return 0.0
    if setup.is_shared:
        return CREDIT_A_STEP + FIT_A_STEP
    return CREDIT_A_STEP + CREDIT_A_TOKEN * setup.traces * setup.response_length


def planning_seconds(setup: Setup) -> float:
    """Rows and text of every token (text twice with ``monte_carlo``, which reads its rows by itself), and every probe
    once; shared, what the driver takes in and puts together."""
    if setup.estimator == "none":
        return 0.0
    tokens, probes = setup.traces * setup.response_length, setup.traces * setup.probes_a_trace
    if setup.is_shared:
        return PLAN_A_STEP + SHARED_A_TOKEN * tokens + SHARED_A_PROBE * probes
    readings = 2 if setup.estimator == "monte_carlo" else 1
    return PLAN_A_STEP + (ROWS_A_TOKEN + readings * ALIGN_A_TOKEN) * tokens + PLAN_A_PROBE * probes


def others_seconds(setup: Setup, moved: list[Transfer]) -> float:
    """What the driver waits for: the work of a step divided by those that share it, one core each, and the bytes that
    they read and write."""
    if not setup.is_shared:
        return 0.0
    processes = min(setup.credit_workers, setup.prompts)
    tokens, probes = setup.traces * setup.response_length, setup.traces * setup.probes_a_trace
    work = (ROWS_A_TOKEN + ALIGN_A_TOKEN + CREDIT_A_TOKEN) * tokens + PLAN_A_PROBE * probes
    rate = min(processes, STORAGES) * setup.transfer_gb * 1e9
    return work / processes + sum(t.bytes for t in moved if t.who == PROCESSES) / rate


def transfer_seconds(setup: Setup, moved: list[Transfer], *, ours: bool) -> float:
    """Bytes that the driver itself reads and writes, at the assumed rate."""
    return sum(t.bytes for t in moved if t.who == DRIVER and t.ours == ours) / (setup.transfer_gb * 1e9)


def driver_memory(setup: Setup) -> DriverMemory:
    """Estimated peak by part, of what rredcot holds."""
    if setup.estimator == "none":
        return DriverMemory(0.0, 0.0, 0.0)
    tokens = setup.traces * setup.response_length
    return DriverMemory(
        rows=ROW_BYTES * tokens,
        credit=CREDIT_BYTES * tokens,
        probes=PROBE_BYTES * setup.traces * setup.probes_a_trace,
    )
