"""Advantages of a step's rollouts, as each system gives them, and the tokens that this took."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from lab.baseline import whole_baseline
from lab.grpo import (
    grpo_advantages,
    otb_advantages,
    reinforce_plus_plus_advantages,
    reward_advantages,
    rloo_advantages,
)
from lab.rollouts import Actor, LabBatch
from transformers import Qwen3ForSequenceClassification

from learn.batch import sample, seed_of, with_squares
from learn.line_rewards import on_lines
from learn.reward_model import scores_before
from learn.systems import (
    GRPO,
    NO_BASELINE,
    NO_REWARD,
    OTB,
    REINFORCE_PLUS_PLUS,
    RLOO,
    SHUFFLED,
    TRUE,
    WHOLE,
    System,
)
from learn.true_values import true_values
from rredcot_plugin.adapter.probe_plan import answer_starts, plan_probes
from rredcot_plugin.credit.advantages import EPSILON
from rredcot_plugin.credit.redistribution import spread_to_tokens, sum_per_segment
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Credit, Segments
from rredcot_plugin.values.base import scores_read

WITHOUT_SEGMENTS = {
    GRPO: grpo_advantages,
    RLOO: rloo_advantages,
    REINFORCE_PLUS_PLUS: reinforce_plus_plus_advantages,
    OTB: otb_advantages,
    NO_BASELINE: reward_advantages,
}


@dataclass(frozen=True)
class StepCredit:
    """Advantages (B, T); tokens generated for values, and tokens of probes."""

    advantages: torch.Tensor
    continuation_tokens: int = 0
    probe_tokens: int = 0


class Crediter:
    """Gives credit step by step; keeps the fit of past steps as the verl integration does."""

    def __init__(
        self, system: System, actor: Actor, seed: int, reward_model: Qwen3ForSequenceClassification | None = None
    ) -> None:
        """Raises ValueError for a system that reads a reward model, without one."""
        self.system, self.actor, self.seed, self.reward_model = system, actor, seed, reward_model
        self.segmenter = system.config.build_segmenter()
        if system.kind in WITHOUT_SEGMENTS:
            return
        if system.needs_reward_model and reward_model is None:
            raise ValueError(f"{system.name}: value_estimator=reward_model needs a reward model, got None")
        self.config = config = system.config
        self.estimator = config.build_value_estimator()
        self.calibrator = config.build_calibrator()
        self.encoder = ProbeEncoder(actor.tokenizer, config.bridge, config.terminator, config.max_probe_tokens)

    def __call__(self, batch: LabBatch, step: int) -> StepCredit:
        """Raises ValueError where values are not finite."""
        if self.system.by_lines:
            batch = on_lines(self.actor.family, batch, self.segmenter(batch.rows.rollouts))
        if self.system.reads_squares:
            batch = with_squares(self.actor.model, batch)
        if self.system.kind in WITHOUT_SEGMENTS:
            return StepCredit(WITHOUT_SEGMENTS[self.system.kind](batch.rows.rollouts))
        segments: Segments = self.segmenter(batch.rows.rollouts)
        if self.system.kind == NO_REWARD:
            return StepCredit(sharpening(batch, segments))
        if self.system.kind in (WHOLE, TRUE):
            values = self._given(batch, segments)
            given = assign_credit(batch.rows.rollouts, self.config, segments=segments, values=values)
            return StepCredit(given.advantages)
        credit, continued, probed = self._assigned(batch, segments, step)
        if self.system.kind == SHUFFLED:
            assert credit.baselines is not None
            values = foreign_values(
                credit.baselines, segments, batch.rows.rollouts.group_ids, seed_of(self.seed, "shuffle", step)
            )
            credit = assign_credit(batch.rows.rollouts, self.config, segments=segments, values=values)
        return StepCredit(credit.advantages, continued, probed)

    def _given(self, batch: LabBatch, segments: Segments) -> torch.Tensor:
        """Values (B, S) that are not estimated from probes."""
        if self.system.kind == WHOLE:
            return whole_baseline(batch.rows.rollouts, segments)
        return true_values(self.actor, batch, segments, self.segmenter)

    def _assigned(self, batch: LabBatch, segments: Segments, step: int) -> tuple[Credit, int, int]:
        plan = plan_probes(batch.rows, segments, self.config, self.encoder)
        log_probs = self.actor.scorer.probes(batch.tokens, plan.specs, batch.trunk)
        probed = plan.probed(log_probs, length_normalize=self.config.length_normalize)
        scores, continued = self._token_scores(batch, segments, step)
        credit = assign_credit(
            dataclasses.replace(batch.rows.rollouts, token_scores=scores),
            self.config,
            segments=segments,
            probed=probed,
            calibrator=self.calibrator,
        )
        return credit, continued, plan.tokens

    def _token_scores(self, batch: LabBatch, segments: Segments, step: int) -> tuple[dict[str, torch.Tensor], int]:
        """What ``attention``, ``gradient``, ``reward_model`` and ``monte_carlo`` read, and the tokens generated for it."""
        found, continued = {}, 0
        for name in sorted(scores_read(self.estimator)):
            if name == "monte_carlo":
                found[name], continued = self._continued(batch, segments, step)
            elif name in ("attention", "gradient"):
                found[name] = self._attributed(name, batch, segments)
            elif name == "reward_model" and self.reward_model is not None:
                prompts, width = map(len, batch.rows.prompts), batch.rows.rollouts.token_ids.shape[1]
                found[name] = scores_before(self.reward_model, batch.tokens, list(prompts), width)
            else:
                raise ValueError(f"{self.system.name}: this trainer has no scores {name!r}")
        return found, continued

    def _attributed(self, name: str, batch: LabBatch, segments: Segments) -> torch.Tensor:
        table = torch.full(batch.rows.rollouts.token_ids.shape, torch.nan)
        for row, start in enumerate(answer_starts(batch.rows, segments)):
            if start >= 0:
                found = self.actor.scorer.attribution(name, batch.tokens[row], start)
                table[row, : batch.rows.lengths[row]] = found[len(batch.rows.prompts[row]) :]
        return table

    def _continued(self, batch: LabBatch, segments: Segments, step: int) -> tuple[torch.Tensor, int]:
        """Mean reward of continuations after each boundary; equal prefixes share theirs, as inside verl."""
        table = torch.full(batch.rows.rollouts.token_ids.shape, torch.nan)
        starts, counts = segments.starts.tolist(), segments.num_segments.tolist()
        places = [(row, starts[row][k]) for row in range(len(counts)) for k in range(1, counts[row])]
        first = {batch.prefix(row, start): (row, start) for row, start in reversed(places)}
        if not first:
            return table, 0
        budgets = [self.actor.family.max_response_tokens - start for _, start in first.values()]
        seed = seed_of(self.seed, "monte_carlo", step)
        sampled = sample(self.actor, list(first), budgets, self.estimator.samples, seed)
        spent = [batch.prefix(row, start)[len(batch.rows.prompts[row]) :] for row, start in first.values()]
        whole = [[[*before, *tokens] for tokens in own] for before, own in zip(spent, sampled, strict=True)]
        questions = [batch.questions[row] for row, _ in first.values()]
        self.actor.judge_ahead(questions, whole)
        means = {
            prefix: np.mean([self.actor.family.reward(question, self.actor.text(tokens)) for tokens in own])
            for prefix, question, own in zip(first, questions, whole, strict=True)
        }
        for row, start in places:
            table[row, start] = float(means[batch.prefix(row, start)])
        return table, sum(len(tokens) for own in sampled for tokens in own)


def sharpening(batch: LabBatch, segments: Segments) -> torch.Tensor:
    """The control without any reward, (B, T): a segment's advantage is its own log-prob, to mean 0 and deviation 1
    over the segments of its group. It makes probable steps more probable and knows nothing of right and wrong."""
    log_probs = batch.rows.rollouts.log_probs
    assert log_probs is not None
    sums = sum_per_segment(log_probs, segments)
    advantages, exists = torch.zeros_like(sums), segments.exists
    groups = np.array(batch.rows.rollouts.group_ids)
    for group in np.unique(groups):
        at = exists & torch.from_numpy(groups == group)[:, None]
        if int(at.sum()) > 1:
            advantages[at] = (sums[at] - sums[at].mean()) / (sums[at].std() + EPSILON)
    return spread_to_tokens(advantages, segments.segment_ids)


def foreign_values(values: torch.Tensor, segments: Segments, group_ids: object, seed: int) -> torch.Tensor:
    """Values (B, S) of traces of *other* groups, a different one for each trace; the prompt keeps its own.

    A trace that is longer than the one whose values it gets repeats the last of them.
    """
    groups = np.array(group_ids)
    rng = np.random.default_rng(seed)
    names = np.unique(groups)
    if len(names) < 2:
        raise ValueError("values cannot be shuffled between groups: there is only one group")
    giver = dict(zip(names, np.roll(names, int(rng.integers(1, len(names)))), strict=True))
    result = values.clone()
    counts = segments.num_segments
    for name in names:
        own, other = np.flatnonzero(groups == name), np.flatnonzero(groups == giver[name])
        for row, source in zip(own, rng.permutation(np.resize(other, len(own))), strict=True):
            last = int(counts[source].clamp(min=1)) - 1
            columns = torch.arange(1, values.shape[1]).clamp(max=last)
            result[row, 1:] = values[source, columns]
    return torch.where(segments.exists, result, 0.0)
