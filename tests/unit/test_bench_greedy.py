"""The benchmark on learning: validations without chance."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch
from lab.store import Store
from lab.tasks import FAMILIES
from learn.batch import first_actor, rollouts
from learn.curves import curves_of
from learn.greedy import greedy
from learn.trainer import LeanTrainer

from tests.unit.learning_cases import NO_MODELS, TINY, run_of


def test_it_draws_the_most_probable_tokens_and_does_not_depend_on_the_seed() -> None:
    actor = first_actor(FAMILIES["sums"], Store(NO_MODELS), 1, "cpu")
    questions = actor.family.problems("val", 3, 0)
    with greedy(actor.model):
        once, again = ([row.response for row in rollouts(actor, questions, 2, seed)] for seed in (0, 1))
    assert once == again and once[0] == once[1]
    prompt = list(actor.prompt(questions[0]))
    logits = actor.model(torch.tensor([prompt + once[0]])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == once[0]
    sampled = [row.response for row in rollouts(actor, questions, 8, 0)]
    assert len(set(map(tuple, sampled))) > len(questions)  # chance is back


def test_a_greedy_validation_changes_nothing_else() -> None:
    run = run_of("grpo", TINY)
    plain, both = (LeanTrainer(r, NO_MODELS).fit() for r in (run, replace(run, greedy=True)))
    assert len(both["evals"].pop("greedy")) == len(both["evals"]["step"])
    for record in (plain, both):
        del record["evals"]["seconds"]
    assert plain["evals"] == both["evals"] and plain["steps"]["grad_norm"] == both["steps"]["grad_norm"]


def test_runs_without_it_keep_their_identity_and_curves() -> None:
    run = run_of("grpo", TINY)
    assert "greedy" not in run.identity and replace(run, greedy=True).identity == {**run.identity, "greedy": True}
    record = LeanTrainer(replace(run, greedy=True), NO_MODELS).fit() | {"status": "done"}
    assert curves_of([(0, record)]).evals["greedy"].shape == (1, 2)
    del record["evals"]["greedy"]
    assert "greedy" not in curves_of([(0, record)]).evals
