"""Every method on the steps of a family: advantages of every token, and the gradient of every group under them.

A baseline per trace needs the gradients of whole traces. Baselines per segment or token would need one for each of them;
instead, the gradient of a group under such a method is a backward pass through Σ A_t log π(o_t), for all these methods at
once, and then sketched. All methods see the same groups.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from grads.sketch import segment_gradients
from grads.step import config
from lab.store import Store

from estimators_table.batch import VERL, Batch
from estimators_table.leave_one_out import otb_leave_one_out
from estimators_table.stage import Ready
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.offline.encode import EncodedRow
from rredcot_plugin.pipeline import assign_credit

Table = dict[str, torch.Tensor]
"""Method → advantages (B, T), over the group's rollouts still to be averaged."""

FROM_VERL = (
    "grpo",
    "grpo_no_std",
    "rloo",
    "remax",
    "opo",
    "optimal_token_baseline",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "gdpo",
)
OURS: dict[str, dict[str, Any]] = {
    "rredcot_no_std": {"scale": "none"},
    "rredcot": {"scale": "group_std"},
    "rredcot_value": {"scale": "none", "baseline": "value"},
    "rredcot_trace": {"scale": "none", "baseline": "trace"},
    "rredcot_token": {"scale": "none", "baseline": "token"},
}
"""Options on top of the defaults, with ``segmenter: newline``; ``rredcot`` is the default, divided by the group's
deviation."""


def from_verl(ready: Ready, rows: PromptedRollouts, chosen: list[int]) -> Table:
    """verl's estimators on the whole step, the leave-one-out token baseline, and two other loss aggregations."""
    batch = verl_batch(ready, rows, chosen)
    found = {name: VERL[name].call(batch) for name in FROM_VERL}
    found["otb_leave_one_out"] = otb_leave_one_out(batch)
    lengths, usual = batch.mask.sum(1, keepdim=True), mean_length(ready)
    found["rloo_token_mean"] = found["rloo"] * usual / lengths.mean()
    found["rloo_seq_mean_token_mean"] = found["rloo"] * usual / lengths
    return found


def mean_length(ready: Ready) -> float:
    """Of all rollouts: a constant, so that gradients per token are as long as those per trace."""
    return float(np.mean([len(ready.traces.rows[i].response) for own in ready.traces.rollouts for i in own]))


def verl_batch(ready: Ready, rows: PromptedRollouts, chosen: list[int]) -> Batch:
    rollouts, group = rows.rollouts, ready.sizes.group
    mask = rollouts.response_mask.double()
    squares = padded_squares(ready, rows, chosen).double()
    greedy = torch.tensor(ready.greedy, dtype=torch.float64).repeat_interleave(group)
    index = np.array(rollouts.group_ids, dtype=object)
    assert rollouts.log_probs is not None
    log_probs = rollouts.log_probs.double() * mask
    return Batch(
        rollouts.token_ids,
        rollouts.rewards.double(),
        mask,
        index,
        log_probs,
        squares,
        torch.zeros_like(mask),
        greedy,
    )


def padded_squares(ready: Ready, rows: PromptedRollouts, chosen: list[int]) -> torch.Tensor:
    """Σ_v π_v² (B, T) of the step's rows."""
    squares = torch.zeros(rows.rollouts.token_ids.shape)
    for row, i in enumerate(chosen):
        squares[row, : len(ready.squares[i])] = ready.squares[i]
    return squares


def from_ours(ready: Ready, rows: PromptedRollouts, chosen: list[int], number: int) -> Table:
    """``assign_credit`` with the calibrators that have seen past steps on other prompts."""
    window = ready.windows[number % len(ready.windows)]
    squares = padded_squares(ready, rows, chosen)
    rollouts = dataclasses.replace(rows.rollouts, sum_pi_squared=squares)
    segments = config().build_segmenter()(rollouts)
    found = {}
    for name, options in OURS.items():
        own = config(**options, calibrate_window=ready.sizes.past)
        calibrator = own.build_calibrator()
        # past steps are kept for both baselines that are fitted
        calibrator.load_state_dict(window["value" if own.baseline == "value" else "default"])
        probed = ready.asked.probed(rows, segments, own)
        credit = assign_credit(rollouts, own, segments=segments, probed=probed, calibrator=calibrator)
        found[name] = credit.advantages.double()
    return found


def gradients(ready: Ready, store: Store, progress: Callable[[int], None]) -> dict[str, torch.Tensor]:
    """Method → sketches (N, P, k) of the groups' gradients of every step; what needed the model is in the store.

    Where all tokens of a trace have one advantage, the gradient is a sum of whole traces' gradients, each computed once.
    """
    whole = whole_traces(ready, store)
    steps: dict[str, list[torch.Tensor]] = {}
    for n in range(ready.sizes.steps):
        rows, chosen = ready.step(n)
        table = from_verl(ready, rows, chosen) | from_ours(ready, rows, chosen, n)
        varied = {name: x for name, x in table.items() if not is_flat(x, rows.rollouts.response_mask)}
        distinct, same = without_multiples(varied, ready.sizes.group)
        stored = store.tensors(
            f"estimators_{n}",
            settings_of(ready, chosen, distinct),
            lambda distinct=distinct, chosen=chosen: step_gradients(ready, chosen, distinct),  # type: ignore[misc]
        )
        for name, own in table.items():
            if name in distinct:
                found = stored[name]
            elif name in same:
                other, factors = same[name]
                found = stored[other] * factors[:, None]
            else:
                found = flat_gradients(own[:, 0].float(), whole[chosen], ready.sizes.group)
            steps.setdefault(name, []).append(found)
        progress(n)
    return {name: torch.stack(found) for name, found in steps.items()}


def is_flat(table: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether the unmasked tokens of every trace share one advantage; responses begin in the first column."""
    return bool(torch.allclose(torch.where(mask, table, table[:, :1]), table[:, :1].expand_as(table), atol=1e-6))


def without_multiples(table: Table, group: int) -> tuple[Table, dict[str, tuple[str, torch.Tensor]]]:
    """The methods that are not multiples, group by group, of an earlier one; and which one the others are a multiple of,
    with the factor (P,) of every group: a division by the group's deviation needs no gradients of its own."""
    distinct: Table = {}
    same: dict[str, tuple[str, torch.Tensor]] = {}
    for name, own in table.items():
        x = own.unflatten(0, (-1, group)).flatten(1)
        for other, first in distinct.items():
            y = first.unflatten(0, (-1, group)).flatten(1)
            factors = (x * y).sum(1) / y.square().sum(1).clamp(min=1e-12)
            if torch.allclose(factors[:, None] * y, x, atol=1e-5):
                same[name] = other, factors.float()
                break
        else:
            distinct[name] = own
    return distinct, same


def whole_traces(ready: Ready, store: Store) -> torch.Tensor:
    """(M, k): the sketched gradient of log π(trace) of every distinct trace."""

    def make(rows: list[EncodedRow]) -> dict[str, torch.Tensor]:
        parts = [
            ready.sketch(segment_gradients(ready.actor.model, row.prompt, row.response, [(0, len(row.response))]))
            for row in rows
        ]
        return {"sketches": torch.cat(parts)}

    found = torch.zeros(len(ready.traces.rows), ready.sketch.size)
    for p, rolled in enumerate(ready.traces.rollouts):
        own = np.unique(rolled)
        rows = [ready.traces.rows[i] for i in own]
        settings = [ready.sketch.size, [row.tokens for row in rows]]
        found[own] = store.tensors(f"whole_traces_{p}", settings, lambda rows=rows: make(rows))["sketches"]  # type: ignore[misc]
    return found


def flat_gradients(advantages: torch.Tensor, sketches: torch.Tensor, group: int) -> torch.Tensor:
    """(P, k) of the advantages (B,) and the gradients (B, k) of whole traces."""
    return (advantages[:, None] * sketches).unflatten(0, (-1, group)).mean(1)


def settings_of(ready: Ready, chosen: list[int], table: Table) -> list[Any]:
    """What tells two sets of gradients apart: the traces, and what each of their tokens counts."""
    traces = [list(ready.traces.rows[i].tokens) for i in chosen]
    numbers = {
        name: hashlib.sha256(x.float().numpy().round(4).tobytes()).hexdigest() for name, x in sorted(table.items())
    }
    return [ready.sketch.size, traces, numbers]


def step_gradients(ready: Ready, chosen: list[int], table: Table) -> dict[str, torch.Tensor]:
    """Method → (P, k)."""
    group, names = ready.sizes.group, list(table)
    stacked = torch.stack([table[name].float() for name in names])
    found = [
        group_gradients(ready, chosen[first : first + group], stacked[:, first : first + group])
        for first in range(0, len(chosen), group)
    ]
    return dict(zip(names, torch.stack(found, dim=1), strict=True))


def group_gradients(ready: Ready, chosen: list[int], advantages: torch.Tensor) -> torch.Tensor:
    """(E, k) sketches of (1/G) Σ_i Σ_t A_t ∇ log π(o_t) for advantages (E, G, T). One forward pass."""
    distinct, at = np.unique(chosen, return_inverse=True)
    rows = [ready.traces.rows[i] for i in distinct]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.tokens) for row in rows], batch_first=True)
    start = len(rows[0].prompt)
    width = ids.shape[1] - start
    weights = torch.zeros(len(advantages), len(rows), width)
    weights.index_add_(1, torch.from_numpy(at), advantages[:, :, :width] / len(chosen))
    model = ready.actor.model
    normed = model(ids, use_cache=False).logits[:, start - 1 : -1].log_softmax(-1)
    picked = normed.gather(-1, ids[:, start:, None])[..., 0]
    sums = torch.einsum("erw,rw->e", weights, picked)
    found = torch.autograd.grad(sums, list(model.parameters()), torch.eye(len(sums)), is_grads_batched=True)
    return ready.sketch(torch.cat([g.flatten(1) for g in found], dim=1))
