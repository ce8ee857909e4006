"""Features that calibration could have besides its own: causal, and of other rollouts only."""

from __future__ import annotations

import torch

from lab.estimators import Workbench, config_of
from rredcot_plugin.types import Rollouts, Segments
from rredcot_plugin.values.prefix_numbers import exclusive_sum

HIDDEN = 24
"""Random directions in which a hidden state is looked at."""

SEGMENT_NUMBERS = (
    "log_prob_sum",
    "log_prob_min",
    "probability_min",
    "entropy_sum",
    "entropy_max",
    "entropy_max_squared",
    "fork_log_prob",
    "fork_probability",
    "fork_probability_squared",
    "fork_probability*entropy",
    "fork_log_prob*entropy",
    "probability_min*entropy",
    "excess_max",
    "excess_sum",
)
"""Of one segment; its fork is the token at which the model was least sure."""

EXTRA: dict[str, list[str]] = {
    "unclipped probe": ["log_value"],
    "probe's past": ["logit_max", "logit_change"],
    "answer mass": ["log_mass", "logit_share"],
    "excess surprise": ["excess_sum", "excess_max", "last_excess_max"],
    "hidden states": [f"hidden_{i}" for i in range(HIDDEN)],
    "earlier segments": [f"earlier_{name}" for name in SEGMENT_NUMBERS],
}
"""Group -> columns."""


def extra_features(bench: Workbench, index: int, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All columns of ``EXTRA`` for a batch, (B, S) each, given the columns that calibration has."""
    rollouts, segments = bench.batches[index].rows.rollouts, bench.segments[index]
    return {
        **_probe_columns(bench, index, own["logit_value"]),
        **_surprise_columns(rollouts, segments),
        **_hidden_columns(bench, index),
        **_earlier_columns(rollouts, segments),
    }


def _probe_columns(bench: Workbench, index: int, logit: torch.Tensor) -> dict[str, torch.Tensor]:
    """The value's log without the floor of 1e-4, its past, and how much of all answers' mass is rewarded."""
    nothing = torch.zeros(logit.shape)
    log_value, mass, share = nothing - 20, nothing - 20, nothing
    probed = bench.probed(index, config_of("support")).get("group")
    if probed is not None:
        weight = torch.where(probed.valid, probed.utility, 0.0)[:, None, :].clamp(min=0)
        log_value = torch.logsumexp(probed.log_pi + weight.log(), dim=2).clamp(min=-20)
    everyone = bench.probed(index, config_of("self_normalized")).get("group_all")
    if everyone is not None:
        log_pi = torch.where(everyone.valid[:, None, :], everyone.log_pi, -torch.inf)
        mass = torch.logsumexp(log_pi, dim=2).clamp(min=-20)
        good = log_pi + torch.where(everyone.valid, everyone.utility, 0.0)[:, None, :].clamp(min=0).log()
        share = (torch.logsumexp(good, dim=2) - mass).clamp(-9, 0).exp().clamp(1e-4, 1 - 1e-4).logit()
    first = logit[:, 1:2] if logit.shape[1] > 1 else logit
    before = torch.cat([first, logit[:, 1:]], dim=1)  # the prompt's state is not probed
    change = torch.diff(before, dim=1, prepend=before[:, :1])
    past = before.cummax(dim=1).values
    return {
        "log_value": log_value,
        "logit_max": past,
        "logit_change": change,
        "log_mass": mass,
        "logit_share": share,
    }


def _surprise_columns(rollouts: Rollouts, segments: Segments) -> dict[str, torch.Tensor]:
    """−log-prob beyond the entropy of its place: a slip where the model was sure, not a free choice."""
    assert rollouts.log_probs is not None and rollouts.entropies is not None
    excess = torch.where(rollouts.response_mask, _excess(rollouts.log_probs, rollouts.entropies), 0.0)
    before = segments.starts
    running = torch.nn.functional.pad(excess.cummax(dim=1).values, (1, 0)).gather(1, before)
    last = torch.zeros(segments.exists.shape)
    for k in range(1, last.shape[1]):
        last[:, k] = torch.where(segments.segment_ids == k - 1, excess, 0.0).amax(dim=1)
    return {"excess_sum": exclusive_sum(excess, before), "excess_max": running, "last_excess_max": last}


def _excess(log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    return (-log_probs - entropies).clamp(min=0)


def _earlier_columns(rollouts: Rollouts, segments: Segments) -> dict[str, torch.Tensor]:
    """Sums of ``SEGMENT_NUMBERS`` over the segments before a state: what each of them did, not only the prefix as a whole."""
    numbers = torch.stack(
        [_of_segment(rollouts, segments.segment_ids == k) for k in range(segments.max_segments)], 1
    )
    earlier = (numbers * segments.exists[..., None]).cumsum(1) - numbers
    return {f"earlier_{name}": earlier[..., i] for i, name in enumerate(SEGMENT_NUMBERS)}


def _of_segment(rollouts: Rollouts, own: torch.Tensor) -> torch.Tensor:
    """``SEGMENT_NUMBERS`` (B, 14) of the segment whose tokens are ``own`` (B, T); 0 where there are none."""
    assert rollouts.log_probs is not None and rollouts.entropies is not None
    log_probs = torch.where(own, rollouts.log_probs, 0.0)
    entropies = torch.where(own, rollouts.entropies, 0.0)
    excess = _excess(log_probs, entropies)
    lowest, (entropy, fork) = log_probs.amin(1), entropies.max(1)
    at_fork = log_probs.gather(1, fork[:, None])[:, 0]
    found = (
        log_probs.sum(1),
        lowest,
        lowest.exp(),
        entropies.sum(1),
        entropy,
        entropy.square(),
        at_fork,
        at_fork.exp(),
        at_fork.exp().square(),
        at_fork.exp() * entropy,
        at_fork * entropy,
        lowest.exp() * entropy,
        excess.amax(1),
        excess.sum(1),
    )
    return torch.stack(found, 1) * own.any(1, keepdim=True)


@torch.no_grad()
def _hidden_columns(bench: Workbench, index: int) -> dict[str, torch.Tensor]:
    """The last layer's state at the token before each boundary, which the log-prob pass has computed, in a few random
    directions, the same ones always."""
    batch, segments, model = bench.batches[index], bench.segments[index], bench.actor.model
    size = model.config.hidden_size
    directions = torch.randn(size, HIDDEN, generator=torch.Generator().manual_seed(0)) / size**0.5
    starts, exists = segments.starts, segments.exists
    found = torch.zeros(*exists.shape, HIDDEN)
    for row, tokens in enumerate(batch.tokens):
        states = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
        own = starts[row, exists[row]]
        found[row, : len(own)] = states[len(batch.rows.prompts[row]) + own - 1] @ directions
    return dict(zip(EXTRA["hidden states"], found.unbind(2), strict=True))
