"""The lean trainer: what one step of verl does, in one process and one thread, without Ray.

Every step: sample, judge, one log-prob pass, credit, one update with verl's loss. One update a step on rollouts of the
very policy that is updated, as in the demo's runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lab.devices import clock
from lab.models import weights_digest
from lab.rollouts import with_signals
from lab.store import Store
from lab.tasks import FAMILIES

from learn.batch import first_actor, judge, response_log_probs, rollouts, seed_of
from learn.credit import Crediter
from learn.greedy import greedy
from learn.reward_model import load_reward_model
from learn.runs import PHASES, TRAIN_SEEDS, Record, Run, model_digest
from learn.systems import Judging
from learn.verl_parts import Updater, actor_config

EVAL_SEED = 0
Row = dict[str, float]
Tell = Callable[[int], None]


class LeanTrainer:
    """One run. ``seconds`` are those of ``clock``."""

    def __init__(self, run: Run, models: Path) -> None:
        sizes, family = run.sizes, FAMILIES[run.family]
        torch.manual_seed(seed_of(run.seed, "torch", 0))
        store = Store(models)
        self.actor = first_actor(family, store, sizes.clean_steps, run.device)
        self.run, self.weights = run, weights_digest(self.actor.model)
        judge_of = model_digest(family.model, sizes.clean_steps)
        asks = run.system.needs_reward_model
        self.reward_model = load_reward_model(self.actor, store, judge_of, Judging()) if asks else None
        self.crediter = Crediter(run.system, self.actor, run.seed, self.reward_model)
        self.updater = Updater(self.actor.model, actor_config(run.rate, sizes.prompts, sizes.group, sizes.warmup))
        self.train = family.problems("train", sizes.prompts * sizes.steps, TRAIN_SEEDS + run.seed)
        self.held_out = family.problems("val", sizes.eval_questions, EVAL_SEED)
        self.seconds: dict[str, float] = {}

    def fit(self, tell: Tell = lambda step: None) -> Record:
        """All steps; rows of numbers by name: ``steps`` one entry a step, ``evals`` one a validation; ``weights`` is a
        digest of the model that was trained on.

        Raises:
            FloatingPointError: a gradient that is not finite; also ValueError or RuntimeError by what broke.
        """
        sizes = self.run.sizes
        steps, evals = [], [self._evaluate(0, sizes.eval_samples)]
        for step in range(1, sizes.steps + 1):
            steps.append(self.step(step))
            last = step == sizes.steps
            if last or step % sizes.eval_every == 0:
                evals.append(self._evaluate(step, sizes.final_samples if last else sizes.eval_samples))
            tell(step)
        record: Record = {"weights": self.weights, "steps": _columns(steps), "evals": _columns(evals)}
        if self.reward_model is not None:
            record["reward_model_auc"] = float(self.reward_model.held_out_auc)
        return record

    def step(self, number: int) -> Row:
        """One step of training, ``number`` from 1."""
        sizes, self.seconds = self.run.sizes, {}
        questions = self.train[(number - 1) * sizes.prompts : number * sizes.prompts]
        with self._timed("rollout"):
            rows = rollouts(self.actor, questions, sizes.group, seed_of(self.run.seed, "rollout", number))
        asked = [question for question in questions for _ in range(sizes.group)]
        with self._timed("log_prob"):
            batch = with_signals(self.actor, rows, asked, keep_trunk=self.run.system.probes)
        with self._timed("credit"):
            credit = self.crediter(batch, number)
        with self._timed("update"):
            found = response_log_probs(self.actor.model, batch)
            norm = self.updater(found, batch.rows.rollouts, credit.advantages)
        mask, entropies = batch.rows.rollouts.response_mask, batch.rows.rollouts.entropies
        assert entropies is not None
        return {
            **judge(self.actor, asked, rows),
            "grad_norm": norm,
            "entropy": float(entropies[mask].mean()),
            "response_tokens": float(mask.sum()),
            "continuation_tokens": float(credit.continuation_tokens),
            "probe_tokens": float(credit.probe_tokens),
            **{f"seconds_{name}": self.seconds[name] for name in PHASES},
        }

    def _evaluate(self, step: int, samples: int) -> Row:
        """Held-out questions, answered at temperature 1; the same questions in every run, once more greedily if the run
        says so."""
        begin = clock(self.run.device)
        rows = rollouts(self.actor, self.held_out, samples, seed_of(self.run.seed, "eval", step))
        asked = [question for question in self.held_out for _ in range(samples)]
        found = judge(self.actor, asked, rows)
        if self.run.greedy:
            with greedy(self.actor.model):
                surest = rollouts(self.actor, self.held_out, 1, seed_of(self.run.seed, "greedy", step))
            found["greedy"] = judge(self.actor, self.held_out, surest)["accuracy"]
        return {"step": step, **found, "seconds": clock(self.run.device) - begin}

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begin = clock(self.run.device)
        yield
        self.seconds[phase] = clock(self.run.device) - begin


def _columns(rows: list[Row]) -> dict[str, list[Any]]:
    return {name: [round(float(row[name]), 6) for row in rows] for name in rows[0]}
