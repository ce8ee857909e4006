"""A training step in phases, one after the other, with seconds as assumed and operations as counted.

    generation        B T tokens at the assumed decode rate of all GPUs
    continuations     B (K − 1) samples T / 2 tokens, likewise (monte_carlo): each as long as what its trace had left
    log-prob pass     B F(n)                         / (G · peak · mfu)
    probes            B F(probes)                    / (G · peak · mfu)
    update            B 3 F(n), 4 F(n) recomputing   / (G · peak · mfu)
    driver            credit, planning, its TransferQueue reads and writes, and waiting for the processes that share
                      all three (planning/driver.py)

Segments have equal lengths. Left out: weight synchronisation, rewards, a reference model, a critic, prompts' prefill,
waiting for the longest trace, and what verl's own driver computes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rredcot_plugin.planning import driver
from rredcot_plugin.planning.flops import Flops, batched_probes, even_boundaries, forked_probes, trace_pass
from rredcot_plugin.planning.models import ModelSizes
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.planning.transfers import transfers

NOTHING = Flops(0.0, 0.0, 0.0)
GPU, DRIVER = "GPUs", "driver"


@dataclass(frozen=True)
class Phase:
    """``tokens`` and ``flops`` of the whole step over all GPUs, ``seconds`` of it."""

    name: str
    where: str
    seconds: float
    tokens: float = 0.0
    flops: Flops = NOTHING
    ours: bool = False


@dataclass(frozen=True)
class Step:
    """The phases of one estimator's step; ``seconds`` is their sum, ``share`` rredcot's part of it."""

    estimator: str
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def share(self) -> float:
        return sum(phase.seconds for phase in self.phases if phase.ours) / self.seconds

    @property
    def driver_share(self) -> float:
        """rredcot's part on the driver, of the step."""
        ours = sum(phase.seconds for phase in self.phases if phase.ours and phase.where == DRIVER)
        return ours / self.seconds

    def phase(self, name: str) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)


def plan_step(sizes: ModelSizes, setup: Setup) -> Step:
    """The step of this setup's estimator.

    Raises:
        ValueError: prompt and response are longer than the model has positions for.
    """
    P, T = setup.prompt_length, setup.response_length
    if sizes.positions is not None and sizes.positions < P + T:
        raise ValueError(
            f"response-length={T}: with prompt-length={P} that is {P + T:,} tokens, more than the {sizes.positions:,} "
            f"positions of {sizes.name}"
        )
    B, n = setup.traces, P + T
    forward, probes = trace_pass(sizes, n).times(B), probe_flops(sizes, setup).times(B)
    continued = B * setup.states * setup.samples * T / 2 if setup.estimator == "monte_carlo" else 0.0
    decode, moved = setup.gpus * setup.decode_rate, transfers(setup)
    backward = forward.times(4 if setup.recompute else 3)
    return Step(
        setup.estimator,
        (
            Phase("generation", GPU, B * T / decode, B * T),
            Phase("continuations", GPU, continued / decode, continued, ours=True),
            Phase("log-prob pass", GPU, forward.total / setup.rate, B * n, forward),
            Phase("probes", GPU, probes.total / setup.rate, probe_tokens(setup), probes, ours=True),
            Phase("update", GPU, backward.total / setup.rate, B * n, backward),
            Phase("verl's transfers", DRIVER, driver.transfer_seconds(setup, moved, ours=False)),
            Phase("rredcot's transfers", DRIVER, driver.transfer_seconds(setup, moved, ours=True), ours=True),
            Phase("planning", DRIVER, driver.planning_seconds(setup), ours=True),
            Phase("credit", DRIVER, driver.credit_seconds(setup), ours=True),
            Phase("processes beside it", DRIVER, driver.others_seconds(setup, moved), ours=True),
        ),
    )


def probe_flops(sizes: ModelSizes, setup: Setup) -> Flops:
    """Operations of the probes of one trace."""
    if setup.probes_a_trace == 0:
        return NOTHING
    boundaries = even_boundaries(setup.prompt_length, setup.response_length, setup.segments)
    count = batched_probes if setup.backend == "batched" else forked_probes
    return count(sizes, boundaries, setup.proposals, setup.probe_tokens)


def probe_tokens(setup: Setup) -> float:
    """Tokens that the probes of a step feed to the model; a probe of its own row brings its prefix along."""
    prefix = setup.prompt_length + setup.response_length / 2 if setup.backend == "batched" else 0.0
    return setup.traces * setup.probes_a_trace * (setup.probe_tokens + prefix)


def alternatives(sizes: ModelSizes, setup: Setup) -> list[Step]:
    """Steps of GRPO, of this setup, and of Monte-Carlo continuations with its ``samples``; each estimator once."""
    names = dict.fromkeys(("none", setup.estimator, "monte_carlo"))
    return [plan_step(sizes, dataclasses.replace(setup, estimator=name)) for name in names]
