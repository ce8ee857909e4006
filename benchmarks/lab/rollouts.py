"""Groups of rollouts of a laboratory family as the batch that a training step sees, with Monte-Carlo references."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lab.family import Family, Question
from lab.sampling import Prefix, continuations
from lab.store import Store
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.offline.encode import EncodedRow, RowEncoder, step_rows
from rredcot_plugin.offline.input_columns import Row
from rredcot_plugin.offline.model import KeptTrunk, Scorer
from rredcot_plugin.tiny.reasoner import prompt_text
from rredcot_plugin.types import Segments

PREFIXES_PER_PART = 64
"""Prefixes whose continuations are stored together; an interrupted run loses at most one such part."""


@dataclass(frozen=True)
class Actor:
    """A model with its tokenizer, on one family."""

    family: Family
    model: Any
    tokenizer: Any

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.model)

    @cached_property
    def encoder(self) -> RowEncoder:
        return RowEncoder(self.tokenizer)

    def prompt(self, question: Question) -> Prefix:
        return tuple(self.tokenizer(prompt_text(self.tokenizer, question.text))["input_ids"])

    def judge_ahead(self, questions: Sequence[Question], responses: Sequence[Sequence[list[int]]]) -> None:
        """Has responses to each question run in the sandbox, where the family has one, as many at a time as there are
        cores; ``family.reward`` knows them from here on."""
        if self.family.whole:
            asked = [(q, self.text(tokens)) for q, own in zip(questions, responses, strict=True) for tokens in own]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda pair: self.family.reward(*pair), asked))

    def text(self, tokens: list[int]) -> str:
        """Tokens as text, the closing special token included."""
        return self.encoder.table.align(np.array(tokens, dtype=np.int64))[0]


@dataclass(frozen=True)
class LabBatch:
    """``rows`` with log-probs and entropies; ``tokens[b]`` is prompt + response, ``questions[b]`` its question;
    ``trunk`` for probes of the same weights."""

    rows: PromptedRollouts
    tokens: list[list[int]]
    questions: list[Question]
    trunk: KeptTrunk | None = None

    def prefix(self, row: int, start: int) -> Prefix:
        """Prompt and the first ``start`` tokens of the response."""
        return tuple(self.tokens[row][: len(self.rows.prompts[row]) + start])


def sample_batch(
    actor: Actor, questions: list[Question], group: int, seed: int, store: Store, name: str
) -> LabBatch:
    """``group`` rollouts of each question, in the order of the questions."""
    prompts = [actor.prompt(question) for question in questions]
    settings = [actor.family.name, [q.text for q in questions], group, seed]

    def sample() -> list[list[list[int]]]:
        return continuations(actor.model, prompts, [actor.family.max_response_tokens] * len(prompts), group, seed)

    responses = store.json(name, settings, sample)
    actor.judge_ahead(questions, responses)
    encoded = [
        encode(actor, question, prompt, response, f"{number}")
        for number, (question, prompt, own) in enumerate(zip(questions, prompts, responses, strict=True))
        for response in own
    ]
    return with_signals(actor, encoded, [question for question in questions for _ in range(group)])


def encode(actor: Actor, question: Question, prompt: Prefix, response: list[int], group: str) -> EncodedRow:
    """A response with its text and its reward."""
    text, spans = actor.encoder.table.align(np.array(response, dtype=np.int64))
    reward = actor.family.reward(question, text)
    row = Row(0, question.text, text, reward, group, ground_truth=question.answer or None)
    return EncodedRow(row, list(prompt), response, text, spans, "", True)


def with_signals(
    actor: Actor, encoded: list[EncodedRow], questions: list[Question], keep_trunk: bool = False
) -> LabBatch:
    """The batch with the log-probs and entropies of one forward pass, and its trunk where that is to be kept."""
    batch, tokens = step_rows(encoded), [row.tokens for row in encoded]
    starts = [len(row.prompt) for row in encoded]
    found, trunk = (
        actor.scorer.signals_and_trunk(tokens, starts)
        if keep_trunk
        else (actor.scorer.signals(tokens, starts), None)
    )
    log_probs, entropies = (torch.zeros(batch.rollouts.token_ids.shape) for _ in range(2))
    for i, (own_log_probs, own_entropies) in enumerate(found):
        log_probs[i, : len(own_log_probs)] = own_log_probs
        entropies[i, : len(own_entropies)] = own_entropies
    rollouts = dataclasses.replace(batch.rollouts, log_probs=log_probs, entropies=entropies)
    return LabBatch(dataclasses.replace(batch, rollouts=rollouts), tokens, questions, trunk)


@dataclass(frozen=True)
class Reference:
    """Mean reward of independent continuations at the states of some rows; NaN where none were made.

    ``values`` and ``few`` (B, S) are means of ``samples`` and of a few *other* continuations: the reference, and
    what an estimator by Monte Carlo would have.
    """

    values: np.ndarray
    few: np.ndarray
    samples: int

    @property
    def noise(self) -> np.ndarray:
        """Squared standard error of ``values``, p(1 − p)/(n − 1), unbiased."""
        return self.values * (1 - self.values) / (self.samples - 1)


def reference_values(
    actor: Actor,
    batch: LabBatch,
    segments: Segments,
    at: list[int],
    samples: int,
    few: int,
    seed: int,
    store: Store,
) -> Reference:
    """Monte-Carlo values of every state of the rows ``at``; equal prefixes share their continuations."""
    starts, counts = segments.starts.tolist(), segments.num_segments.tolist()
    places = [(row, k, batch.prefix(row, starts[row][k])) for row in at for k in range(counts[row])]
    spent = {prefix: starts[row][k] for row, k, prefix in places}
    question = {prefix: batch.questions[row] for row, _, prefix in places}
    distinct = list(spent)
    means: dict[Prefix, tuple[float, float]] = {}
    for first in range(0, len(distinct), PREFIXES_PER_PART):
        part = distinct[first : first + PREFIXES_PER_PART]
        settings = [actor.family.name, [list(prefix) for prefix in part], samples, few, seed + first]

        def sample(part: list[Prefix] = part, seed: int = seed + first) -> list[list[float]]:
            budgets = [actor.family.max_response_tokens - spent[prefix] for prefix in part]
            found = continuations(actor.model, part, budgets, samples + few, seed)
            whole = [[[*p[len(p) - spent[p] :], *t] for t in own] for p, own in zip(part, found, strict=True)]
            actor.judge_ahead([question[prefix] for prefix in part], whole)
            return [
                _rewards(actor, question[p], len(p) - spent[p], p, own) for p, own in zip(part, found, strict=True)
            ]

        for prefix, rewards in zip(
            part, store.json(f"reference_{actor.family.name}", settings, sample), strict=True
        ):
            means[prefix] = (float(np.mean(rewards[:samples])), float(np.mean(rewards[samples:])))
    values, others = (np.full(segments.exists.shape, np.nan) for _ in range(2))
    for row, k, prefix in places:
        values[row, k], others[row, k] = means[prefix]
    return Reference(values, others, samples)


def _rewards(actor: Actor, question: Question, prompt: int, prefix: Prefix, found: list[list[int]]) -> list[float]:
    start = list(prefix[prompt:])
    return [actor.family.reward(question, actor.text(start + tokens)) for tokens in found]
