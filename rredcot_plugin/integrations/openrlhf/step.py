"""One step of credit between OpenRLHF's experiences and the method: planned before the log-prob pass, given after it.

Needs nothing of OpenRLHF but its experiences, so that tests can drive it beside verl's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from rredcot_plugin.adapter import process_rewards
from rredcot_plugin.adapter.probe_plan import ProbePlan, plan_probes
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import row_metrics
from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.choices import has_groups_mean
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.credit.advantages import EPSILON, ROUNDING
from rredcot_plugin.integrations.openrlhf.earned import moves_told, shown_by, take_told
from rredcot_plugin.integrations.openrlhf.rows import (
    Place,
    places_of,
    read_rewards,
    read_rows,
    response_numbers,
    write_tokens,
)
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.segmenters.lookahead import LookaheadWatch
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Credit, Rollouts, Segments
from rredcot_plugin.values.base import scores_read

THEIR_EPSILON = 1e-9
"""Added to a group's deviation by ``group_norm``, where verl adds 1e-6."""


@dataclasses.dataclass
class Step:
    """What is known between the two halves of a step; ``answers`` and ``signals`` of the actor's pass (``SIGNALS`` of
    the maker), and ``scores``, what a reward model says after each token of the sequences, come with the forward
    passes. ``lookahead`` says why the segmenter's boundaries are not stopping times; None where no reason is known.
    ``moved``, (rows, T), is to be added to the rewards by what was told of parts of a response, and ``unread`` of how
    many not all could be read."""

    places: list[Place]
    rows: PromptedRollouts
    levels: list[Segments]
    plan: ProbePlan
    answers: list[torch.Tensor] | None = None
    signals: dict[str, list[torch.Tensor]] = dataclasses.field(default_factory=dict)
    scores: list[torch.Tensor] | None = None
    lookahead: str | None = None
    seconds: float = 0.0
    moved: torch.Tensor | None = None
    unread: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """What a step logs of its rows, beside plan and credit."""
        return row_metrics(len(self.places), self.lookahead, self.moved, self.unread)


class Crediter:
    """Holds what outlives a step: options, tokenizer, and the fit of past steps."""

    def __init__(self, settings: RRedCoTConfig, tokenizer: Any, group_size: int) -> None:
        self.settings = s = settings
        tokenizer = getattr(
            tokenizer, "tokenizer", tokenizer
        )  # of the processor that OpenRLHF has for models with vision
        self.group_size = group_size
        self.calibrator = s.build_calibrator()
        self.table = TokenBytes.from_tokenizer(tokenizer)
        self._shown = shown_by(self.table)
        self.encoder = ProbeEncoder(tokenizer, s.bridge, s.terminator, s.max_probe_tokens)
        self.squares = "sum_pi_squared" in needs_of(s.build_baseline(log_probs=True))
        self.reads = scores_read(s.build_value_estimator())
        self._watch = LookaheadWatch(s.build_segmenter())

    def plan(self, samples: list[Any]) -> Step:
        """Rows, segments and probes of a step's experiences, before the log-prob pass."""
        places = places_of(samples)
        told = take_told(samples, places)
        rows = read_rows(samples, places, self.group_size)
        moved, unread = moves_told(rows, places, told, self._shown)
        rows = process_rewards.moved(rows, moved).read(self.table)
        levels = self.settings.build_levels(rows.rollouts)
        plan = plan_probes(rows, levels[-1], self.settings, self.encoder, self.calibrator.lowest)
        return Step(places, rows, levels, plan, lookahead=self._watch(rows.rollouts), moved=moved, unread=unread)

    def credit(
        self, experiences: list[Any], step: Step, kl: list[torch.Tensor], coefficient: float
    ) -> tuple[Credit, Rollouts]:
        """Write advantages and returns into the experiences, whose rewards are final; also the credit and what it is of.

        ``kl`` per token of each experience, in nats, is paid with ``coefficient`` and stays on its tokens.
        """
        rollouts, apart = self._rollouts(experiences, step), torch.zeros(())
        if coefficient > 0:
            paid = torch.where(rollouts.response_mask, -coefficient * response_numbers(kl, step.places), 0.0)
            if has_groups_mean(self.settings, step.levels[-1]):
                apart = _to_go(paid, rollouts.response_mask)
            else:
                rollouts = dataclasses.replace(rollouts, rewards=rollouts.rewards + paid, penalties=paid)
        probed = None
        if step.answers is not None and step.plan.size:
            probed = step.plan.probed(step.answers, length_normalize=self.settings.length_normalize)
        credit = assign_credit(
            rollouts,
            self.settings,
            segments=step.levels[-1],
            coarse=step.levels[0],
            probed=probed,
            calibrator=self.calibrator,
        )
        factor = self._deviation(rollouts)
        credit = dataclasses.replace(
            credit,
            advantages=credit.advantages * factor + apart,
            # those that a critic learns from are in units of the reward
            returns=credit.returns if self.settings.has_critic else credit.returns * factor + apart,
        )
        write_tokens(experiences, step.places, "advantages", credit.advantages)
        write_tokens(experiences, step.places, "returns", credit.returns)
        return credit, rollouts

    def _rollouts(self, experiences: list[Any], step: Step) -> Rollouts:
        """The rows with what the passes have found, and with rewards after length penalties."""
        mask = step.rows.rollouts.response_mask
        rewards = read_rewards(experiences, step.places, mask)
        if step.moved is not None:
            rewards = rewards + step.moved
        tables = {"log_probs": [experience.action_log_probs for experience in experiences], **step.signals}
        found: dict[str, Any] = {
            name: torch.where(mask, response_numbers(own, step.places), 0.0) for name, own in tables.items()
        }
        scores = self._scores(experiences, step)
        return dataclasses.replace(step.rows.rollouts, rewards=rewards, token_scores=scores, **found)

    def _scores(self, experiences: list[Any], step: Step) -> dict[str, torch.Tensor]:
        """What a critic or a reward model says of the state before each token, (rows, T): column j of either has seen token j."""
        found = {}
        if "critic" in self.reads:
            found["critic"] = response_numbers([own.values for own in experiences], step.places)
        if step.scores is not None:
            found["reward_model"] = response_numbers(step.scores, step.places)
        return found

    def _deviation(self, rollouts: Rollouts) -> torch.Tensor:
        """(B, 1) from verl's division by (std + 1e-6) to that of ``group_norm``; a group of one has no deviation to divide by."""
        outcomes = rollouts.scores.double()
        if self.settings.scale != "group_std" or self.group_size < 2:
            return torch.ones(len(outcomes), 1)
        names = {name: number for number, name in enumerate(dict.fromkeys(rollouts.group_ids))}
        index = torch.tensor([names[name] for name in rollouts.group_ids])
        stds = torch.stack([outcomes[index == group].std() for group in range(len(names))])[index]
        known = stds > ROUNDING * (1.0 + outcomes.abs())
        return torch.where(known, (stds + EPSILON) / (stds + THEIR_EPSILON), 1.0).float()[:, None]


def _to_go(paid: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(B, T): what each token and those after it pay. With one segment per trace, ``group_norm`` and ``dr_grpo`` add it to
    advantages, unscaled."""
    return torch.where(mask, paid.flip(1).cumsum(1).flip(1), 0.0)
