"""Every method on the steps of a family: advantages of every token, and the gradient of every group under them.

The gradient of a group under a method is a backward pass through Σ A_t log π(o_t), for all methods at once, and then
sketched: no gradient of a segment or a token is kept. All methods see the same groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from grads.step import config
from lab.store import Store

from estimators_table.batch import VERL, Batch
from estimators_table.leave_one_out import otb_leave_one_out
from estimators_table.stage import Ready
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.rows import StepRows

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
    "rredcot": {},
    "rredcot_no_std": {"scale": "none"},
    "rredcot_value": {"scale": "none", "baseline": "value"},
    "rredcot_trace": {"scale": "none", "baseline": "trace"},
}
"""Options on top of the defaults, with ``segmenter: newline``; ``rredcot`` is the default, divided by the group's
deviation."""

WINDOW_OF = {"value": "value"}
"""Baseline → whose past steps its calibrator has seen; the default's for all others."""


def from_verl(ready: Ready, rows: StepRows, chosen: list[int]) -> Table:
    """verl's estimators on the whole step, the leave-one-out token baseline, and two other loss aggregations."""
    batch = verl_batch(ready, rows, chosen)
    found = {name: VERL[name].call(batch) for name in FROM_VERL}
    found["otb_leave_one_out"] = otb_leave_one_out(batch)
    lengths = batch.mask.sum(1, keepdim=True)
    found["rloo_token_mean"] = found["rloo"] / lengths.mean()
    found["rloo_seq_mean_token_mean"] = found["rloo"] / lengths
    return found


def verl_batch(ready: Ready, rows: StepRows, chosen: list[int]) -> Batch:
    rollouts, group = rows.rollouts, ready.sizes.group
    mask = rollouts.response_mask.double()
    squares = torch.zeros_like(mask)
    for row, i in enumerate(chosen):
        squares[row, : len(ready.squares[i])] = ready.squares[i].double()
    greedy = torch.tensor(ready.greedy, dtype=torch.float64).repeat_interleave(group)
    index = np.array(rollouts.group_ids, dtype=object)
    log_probs = rollouts.log_probs.double() * mask
    return Batch(rollouts.rewards.double(), mask, index, log_probs, squares, torch.zeros_like(mask), greedy)


def from_ours(ready: Ready, rows: StepRows, number: int) -> Table:
    """``assign_credit`` with the calibrators that have seen past steps on other prompts."""
    window = ready.windows[number % len(ready.windows)]
    segments = config().build_segmenter()(rows.rollouts)
    found = {}
    for name, options in OURS.items():
        chosen = config(**options, calibrate_window=ready.sizes.past)
        calibrator = chosen.build_calibrator()
        calibrator.load_state_dict(window[WINDOW_OF.get(chosen.baseline, "default")])
        probed = ready.asked.probed(rows, segments, chosen)
        credit = assign_credit(rows.rollouts, chosen, segments=segments, probed=probed, calibrator=calibrator)
        found[name] = credit.advantages.double()
    return found


def gradients(ready: Ready, store: Store, progress: Callable[[int], None]) -> dict[str, torch.Tensor]:
    """Method → sketches (N, P, k) of the groups' gradients of every step; from the store where it has them."""
    steps: dict[str, list[torch.Tensor]] = {}
    for n in range(ready.sizes.steps):
        rows, chosen = ready.step(n)
        for kind, table in {"verl": from_verl(ready, rows, chosen), "ours": from_ours(ready, rows, n)}.items():
            stored = store.tensors(
                f"estimators_{kind}_{n}",
                settings_of(ready, chosen, table),
                lambda table=table, chosen=chosen: step_gradients(ready, chosen, table),  # type: ignore[misc]
            )
            for name, found in stored.items():
                steps.setdefault(name, []).append(found)
        progress(n)
    return {name: torch.stack(found) for name, found in steps.items()}


def settings_of(ready: Ready, chosen: list[int], table: Mapping[str, torch.Tensor]) -> list[Any]:
    """What tells two sets of gradients apart: the traces, and what each of their tokens counts."""
    traces = [list(ready.traces.rows[i].tokens) for i in chosen]
    numbers = {
        name: hashlib.sha256(x.float().numpy().round(5).tobytes()).hexdigest() for name, x in sorted(table.items())
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
