"""Runs after ``openrlhf.trainer.ppo_trainer``: an experience maker that gives credit."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import openrlhf.trainer.ppo_trainer as host
import torch

from rredcot_plugin import __version__
from rredcot_plugin.adapter.dump import Dumper
from rredcot_plugin.adapter.probe_plan import ProbePlan, plan_metrics, plan_probes
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.trace_record import Asked, CreditedBatch
from rredcot_plugin.baselines.base import needs_of
from rredcot_plugin.credit.advantages import EPSILON
from rredcot_plugin.integrations.openrlhf.rows import (
    Place,
    places_of,
    read_rewards,
    read_rows,
    response_numbers,
    write_tokens,
)
from rredcot_plugin.integrations.openrlhf.settings import settings_of_process
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Credit, Rollouts, Segments
from rredcot_plugin.values.base import scores_read

Base: Any = host.RemoteExperienceMaker

THEIR_EPSILON = 1e-9
"""Added to a group's deviation by ``group_norm``, where verl adds 1e-6."""

SIGNALS = ("entropies", "sum_pi_squared")
"""What the pass finds of actions beside their log-probs, by field of ``Rollouts``."""


@dataclasses.dataclass
class Step:
    """What is known between the two halves of a step; ``answers`` None until the pass has been run, ``scores`` those of a
    reward model after each token of the sequences."""

    places: list[Place]
    rows: PromptedRollouts
    segments: Segments
    plan: ProbePlan
    answers: list[torch.Tensor] | None = None
    signals: dict[str, list[torch.Tensor]] = dataclasses.field(default_factory=dict)
    scores: list[torch.Tensor] | None = None
    seconds: float = 0.0


class RRedCoTExperienceMaker(Base):
    """OpenRLHF's maker; the advantages and returns of its experiences are ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = s = settings_of_process(self.args)
        self.calibrator = s.build_calibrator()
        self.table = TokenBytes.from_tokenizer(self.tokenizer)
        self.encoder = ProbeEncoder(self.tokenizer, s.bridge, s.terminator, s.max_probe_tokens)
        self.squares = "sum_pi_squared" in needs_of(s.build_baseline(log_probs=True))
        self.reads = scores_read(s.build_value_estimator())
        self.step: Step | None = None
        self.global_step = 0
        self.dumper = None
        if s.dump_dir:
            about = {"version": __version__, "options": dataclasses.asdict(s)}
            self.dumper = Dumper(Path(s.dump_dir), s.dump_max_mb, about=about)

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """Segment, ask for the probes in OpenRLHF's own log-prob pass, read the answers."""
        self.step = self._planned(samples_list)
        made: list[Any] = super().make_experience(samples_list)
        return made

    def _planned(self, samples: list[Any]) -> Step:
        places = places_of(samples)
        rows = read_rows(samples, places, self.args.rollout.n_samples_per_prompt).read(self.table)
        segments = self.settings.build_levels(rows.rollouts)[-1]
        return Step(places, rows, segments, plan_probes(rows, segments, self.settings, self.encoder))

    def _dispatch_forward(self, group: Any, sync_condition: Any, **kwargs: Any) -> Any:
        if group is self.actor_model_group and self.step is not None:
            flat, backend = iter(self.step.plan.packed), self.settings.probe_backend
            sequences = kwargs["sequences"]
            kwargs["probes"] = [list(itertools.islice(flat, len(own))) for own in sequences]
            kwargs["probe_backend"] = ["batched" if backend == "batched" else "cached"] * len(sequences)
            kwargs["squares"] = [self.squares] * len(sequences)
        elif group is self.reward_model_group and "reward_model" in self.reads:
            kwargs["every_token"] = [True] * len(kwargs["sequences"])
        return super()._dispatch_forward(group, sync_condition, **kwargs)

    def _flatten_results(self, refs: Any, duplicate_factor: int) -> list[Any]:
        found: list[Any] = super()._flatten_results(refs, duplicate_factor)
        if self.step is None or not found or not isinstance(found[0], dict):
            return found
        if "rewards" in found[0]:
            self.step.scores = [batch["scores"] for batch in found]
            return [batch["rewards"] for batch in found]
        self.step.answers = [own for batch in found for own in batch["answers"]]
        self.step.signals = {name: [batch[name] for batch in found] for name in SIGNALS if name in found[0]}
        self.step.seconds = sum(batch["seconds"] for batch in found)
        return [batch["log_probs"] for batch in found]

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Length penalties and metrics are OpenRLHF's; then credit. The KL penalty stays on its tokens."""
        assert self.step is not None
        step, begin = self.step, time.perf_counter()
        kl = response_numbers([experience.kl for experience in experiences], step.places)
        super().compute_advantages_and_returns(experiences)
        rollouts = dataclasses.replace(
            self._rollouts(experiences, step, kl), token_scores=self._scores(experiences, step)
        )
        probed = None
        if step.answers is not None and step.plan.size:
            probed = step.plan.probed(step.answers, length_normalize=self.settings.length_normalize)
        credit = assign_credit(
            rollouts, self.settings, segments=step.segments, probed=probed, calibrator=self.calibrator
        )
        factor = self._deviation(rollouts)
        credit = dataclasses.replace(
            credit,
            advantages=credit.advantages * factor,
            # those that a critic learns from are in units of the reward
            returns=credit.returns * (1.0 if self.settings.has_critic else factor),
        )
        write_tokens(experiences, step.places, "advantages", credit.advantages)
        write_tokens(experiences, step.places, "returns", credit.returns)
        self._log(experiences, step, credit, time.perf_counter() - begin)
        self._dump(step, rollouts, credit)
        self.step = None
        return experiences

    def _scores(self, experiences: list[Any], step: Step) -> dict[str, torch.Tensor]:
        """What a critic or a reward model says of the state before each token, (rows, T); NaN where nothing was said."""
        found = {}
        if "critic" in self.reads:
            found["critic"] = response_numbers([own.values for own in experiences], step.places)
        if (
            step.scores is not None
        ):  # column j of a critic's values has seen token j, as column j of the scores has
            found["reward_model"] = response_numbers(step.scores, step.places)
        return found

    def _rollouts(self, experiences: list[Any], step: Step, kl: torch.Tensor) -> Rollouts:
        """The rows with what the pass has found, with rewards after length penalties, and with the KL penalty."""
        mask = step.rows.rollouts.response_mask
        rewards = read_rewards(experiences, step.places, mask)
        penalties = None
        if self.kl_ctl.value > 0:
            penalties = torch.where(mask, -self.kl_ctl.value * kl, 0.0)
            rewards = rewards + penalties
        tables = {"log_probs": [experience.action_log_probs for experience in experiences], **step.signals}
        found: dict[str, Any] = {
            name: torch.where(mask, response_numbers(own, step.places), 0.0) for name, own in tables.items()
        }
        return dataclasses.replace(step.rows.rollouts, rewards=rewards, penalties=penalties, **found)

    def _deviation(self, rollouts: Rollouts) -> torch.Tensor:
        """(B, 1) from verl's division by (std + 1e-6) to that of ``group_norm``."""
        outcomes = rollouts.outcomes
        if self.settings.scale != "group_std":
            return torch.ones(len(outcomes), 1)
        names = {name: number for number, name in enumerate(dict.fromkeys(rollouts.group_ids))}
        index = torch.tensor([names[name] for name in rollouts.group_ids])
        stds = torch.stack([outcomes[index == group].std() for group in range(len(names))])[index]
        return torch.where(stds > 0, (stds + EPSILON) / (stds + THEIR_EPSILON), 1.0)[:, None]

    def _log(self, experiences: list[Any], step: Step, credit: Credit, seconds: float) -> None:
        """Metrics, which OpenRLHF averages over samples."""
        metrics = {
            **plan_metrics(step.plan, step.rows.tokens),
            **credit.metrics,
            "timing_s/rredcot_probes": step.seconds,
            "timing_s/rredcot_credit": seconds,
        }
        for experience in experiences:
            number = len(experience.sequences)
            experience.info |= {name: torch.full((number,), float(value)) for name, value in metrics.items()}

    def _dump(self, step: Step, rollouts: Rollouts, credit: Credit) -> None:
        """What people look at; nothing in here changes a number of the step."""
        if self.dumper is None or self.global_step % self.settings.dump_every:
            return
        asked = None if step.answers is None else Asked(step.plan, step.answers)
        self.dumper.write(self.global_step, 0, CreditedBatch(step.rows, rollouts, credit, self.table, asked))


host.RemoteExperienceMaker = RRedCoTExperienceMaker
