"""Enumerable policies, their probes, and the bias of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed
from rredcot_plugin.values.proposals import Proposals, build_proposals
from tests.unit.tabular import TabularPolicy, Trace, states_of

EXACT = 1e-5
"""Tolerance where enumeration leaves nothing but float32 rounding."""


BIASED = 0.01
"""A bias that no rounding explains; the exact gradients below have entries around 0.05."""


PLAIN = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 1}, "scale": "none", "calibrate": "none"}


AnswerNow = Callable[[Trace], torch.Tensor]
"""The probability of each answer if it had to be given at this state."""


@cache
def small_policy(choices: tuple[int, ...] = (2, 2, 3), seed: int = 0) -> TabularPolicy:
    return TabularPolicy.random(choices, seed)


def made_up(answers: int, seed: int = 1) -> AnswerNow:
    """Answer probabilities that depend on the state but have nothing to do with the policy."""

    def answer_now(state: Trace) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int("".join(map(str, (seed, *state)))))
        return torch.randn(answers, generator=generator, dtype=torch.float64).mul(2).softmax(dim=0)

    return answer_now


def probe(rollouts: rr.Rollouts, segments: rr.Segments, proposals: Proposals, answer_now: AnswerNow) -> Probed:
    """What a forward pass would return: log-probs of each row's proposals at each of its states."""
    states_of_rows = states_of(rollouts, segments)
    known = {state: answer_now(state).log() for state in {state for states in states_of_rows for state in states}}
    log_pi = torch.zeros(*segments.exists.shape, proposals.valid.shape[1])
    for row, states in enumerate(states_of_rows):
        for i, state in enumerate(states):
            for n, answer in enumerate(proposals.answers[row]):
                log_pi[row, i, n] = known[state][int(answer)]
    return Probed(log_pi, proposals.utility, proposals.valid, segments.num_segments)


def probed_by(rollouts: rr.Rollouts, config: rr.RRedCoTConfig, answer_now: AnswerNow) -> Probed:
    """Proposals and probes of a batch as the estimator of ``config`` asks for them."""
    proposals = build_proposals(
        [str(answer) for answer in rollouts.token_ids[:, -1].tolist()],
        rollouts.outcomes,
        rollouts.group_ids,
        None,
        proposes=config.build_value_estimator().proposes,
        leave_one_out=config.leave_one_out,
    )
    return probe(rollouts, config.build_segmenter()(rollouts), proposals, answer_now)
