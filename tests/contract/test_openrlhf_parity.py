"""The same rollouts through the adapters of verl and of OpenRLHF get the same credit, to the last bit.

Both sides are what runs in training, without their engines: verl's own trainer over TransferQueue in memory, and OpenRLHF's
experiences (a namespace of the fields that are read; ``tests/openrlhf`` has the real class). Log-probs of tokens and probes
are those of ``memory.py`` on either side.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.openrlhf.step import Crediter
from tests.contract.memory import (
    TEMPERATURE,
    MemoryQueue,
    key_of,
    lay_down,
    make_trainer,
    probe_log_prob,
    step,
    token_log_probs,
)
from tests.contract.runner_steps import (
    config,
    queue,  # noqa: F401  fixtures
)
from tests.unit.test_group_work import TOKENIZER, bare_rows

GROUP_OF_ROWS = 2
"""Rows of an experience."""


def experiences_of(rows: PromptedRollouts, order: list[int]) -> list[Any]:
    """The rows as OpenRLHF has them, ``order`` in which they come; a group's rows have neighbouring indices."""
    groups = {name: number for number, name in enumerate(dict.fromkeys(rows.rollouts.group_ids))}
    size = len(rows.lengths) // len(groups)
    seen = dict.fromkeys(groups, 0)
    index = []
    for name in rows.rollouts.group_ids:
        index.append(groups[name] * size + seen[name])
        seen[name] += 1
    assert set(seen.values()) == {size}
    found = []
    for first in range(0, len(order), GROUP_OF_ROWS):
        own = order[first : first + GROUP_OF_ROWS]
        traces = [torch.cat([rows.prompts[i], rows.rollouts.token_ids[i, : rows.lengths[i]]]) for i in own]
        width = max(map(len, traces))
        tables = {name: torch.zeros(len(own), width - 1) for name in ("log_probs", "actions")}
        sequences, attention = (torch.zeros(len(own), width, dtype=torch.long) for _ in range(2))
        for row, (i, trace) in enumerate(zip(own, traces, strict=True)):
            prompt = len(rows.prompts[i])
            sequences[row, : len(trace)], attention[row, : len(trace)] = trace, 1
            tables["actions"][row, prompt - 1 : len(trace) - 1] = rows.rollouts.response_mask[
                i, : rows.lengths[i]
            ].float()
            tables["log_probs"][row, : len(trace) - 1] = torch.tensor(token_log_probs(trace, 0, TEMPERATURE)[1:])
        found.append(
            SimpleNamespace(
                sequences=sequences,
                attention_mask=attention,
                action_mask=tables["actions"].long(),
                action_log_probs=tables["log_probs"],
                rollout_log_probs=None,
                rewards=rows.rollouts.outcomes[own].float(),
                index=[index[i] for i in own],
                labels=[{"ground_truth": rows.rollouts.ground_truths[i]} for i in own],
                info={},
            )
        )
    return found


def credit_in_openrlhf(
    rows: PromptedRollouts, order: list[int], options: dict[str, Any]
) -> dict[int, torch.Tensor]:
    """The advantages of every row's response."""
    settings = config(**options)
    groups = len(set(rows.rollouts.group_ids))
    crediter = Crediter(settings, TOKENIZER, len(rows.lengths) // groups)
    batch = experiences_of(rows, order)
    planned = crediter.plan(batch)
    planned.answers = [
        torch.tensor([probe_log_prob(own.sequences[row], spec, 0, TEMPERATURE) for spec in specs])
        for (own, row), specs in zip(
            ((own, row) for own in batch for row in range(len(own.index))), planned.plan.specs, strict=True
        )
    ]
    planned.signals = {
        "entropies": [own.action_log_probs.abs().sqrt() for own in batch],
        "sum_pi_squared": [own.action_log_probs.exp().square() for own in batch],
    }
    crediter.credit(batch, planned, [torch.zeros_like(own.action_log_probs) for own in batch], 0.0)
    found = {}
    for number, at in zip(order, planned.places, strict=True):
        found[number] = batch[at.experience].advantages[at.row, at.first : at.end]
    return found


@pytest.mark.parametrize(("seed", "shape"), [(0, (5, 4)), (1, (5, 4)), (2, (5, 4)), (0, (16, 1))])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_estimator": "confidence"},
        {"baseline": "token", "segmenter": "fixed"},
        {"calibrate": "none", "lam": 0.9},
        {"segmenter": "nested", "lam_coarse": 0.8, "lam": 0.5},
    ],
    ids=lambda options: ",".join(options) or "default",
)
def test_both_adapters_give_the_same_credit(
    queue: MemoryQueue, options: dict[str, Any], seed: int, shape: tuple[int, int]
) -> None:
    """``shape``: prompts, at most 16 so that each is a fold of its own, and rollouts of each."""
    options = {"segmenter": "newline", "scale": "none", **options}
    rows = bare_rows(*shape, seed=seed)
    batch = lay_down(queue, rows, seed=seed, pad=0)
    order = [int(key.split("_")[-2]) for key in batch.keys]
    in_verl = step(make_trainer(queue, options), batch)
    in_openrlhf = credit_in_openrlhf(rows, order, options)
    assert max(float(own.abs().max()) for own in in_openrlhf.values()) > 0.01
    in_another_order = credit_in_openrlhf(rows, sorted(order), options)
    for row in order:
        theirs = in_verl[key_of(rows, row)]
        assert torch.equal(in_openrlhf[row], theirs)
        torch.testing.assert_close(in_another_order[row], theirs, rtol=0, atol=2e-6)
