"""Penalties, signals, critics and sessions in a step of the runner."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from verl.trainer.ppo import core_algos

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.settings import read_settings
from tests.contract.memory import (
    PARTITION,
    MemoryQueue,
    assert_credited,
    expected,
    key_of,
    lay_down,
    make_trainer,
    step,
)
from tests.contract.runner_steps import (
    NEWLINE,
    config,
    queue,  # noqa: F401  fixtures
)
from tests.contract.test_verl_options import verl_config
from tests.unit.test_group_work import bare_rows


def test_a_kl_penalty_stays_on_its_tokens(queue: MemoryQueue) -> None:
    rows = bare_rows()
    controller = core_algos.get_kl_controller(verl_config().algorithm.kl_ctrl)
    trainer = make_trainer(queue, NEWLINE, "algorithm.use_kl_in_reward=True", kl_ctrl_in_reward=controller)
    controller.value = 0.5
    batch, metrics = lay_down(queue, rows), {}
    trainer._compute_old_log_prob(batch, metrics)
    penalties = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        stored = queue.rows[PARTITION, key_of(rows, row)]
        kl = torch.arange(length) % 4 / 8.0
        stored["ref_log_prob"] = stored["old_log_probs"] - kl
        penalties[row, :length] = -0.5 * kl * rows.rollouts.response_mask[row, :length]
    for key in batch.keys:
        queue.rows[PARTITION, key].setdefault("ref_log_prob", queue.rows[PARTITION, key]["old_log_probs"])
    trainer._compute_advantage(batch, metrics)
    found = {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}
    rewards = rows.rollouts.rewards + penalties
    credit, _ = expected(rows, config(), rewards=rewards, penalties=penalties)
    assert_credited(found, rows, credit)
    spread, _ = expected(rows, config(), rewards=rewards)
    assert not torch.allclose(spread.advantages, credit.advantages, atol=1e-2), "as if it were part of the outcome"


def test_rewards_on_the_way_stay_on_their_segments(queue: MemoryQueue) -> None:
    """What an agent loop or a reward manager writes into ``rm_scores`` before the last token."""
    rows, paid = bare_rows(), torch.zeros(bare_rows().rollouts.rewards.shape)
    paid[:, 0] = 0.25 + torch.arange(len(rows.lengths)) / 8
    paid = torch.where(rows.rollouts.response_mask, paid, 0.0)
    rewards = rows.rollouts.rewards + paid
    rows = dataclasses.replace(rows, rollouts=dataclasses.replace(rows.rollouts, rewards=rewards))
    found = step(make_trainer(queue, NEWLINE), lay_down(queue, rows))
    credit, _ = expected(rows, config(), rewards=rewards)
    assert_credited(found, rows, credit)
    spread, _ = expected(rows, config(turn_rewards="redistribute"), rewards=rewards)
    assert not torch.allclose(spread.advantages, credit.advantages, atol=1e-2), (
        "as if they were part of the outcome"
    )


def test_signals_are_the_actors_and_keep_their_names(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, {**NEWLINE, "value_estimator": "confidence", "baseline": "value"})
    found = step(trainer, lay_down(queue, rows))
    own = config(value_estimator="confidence", baseline="value")
    credit, _ = expected(rows, own)
    assert_credited(found, rows, credit)
    before = rows.rollouts.log_probs
    others, _ = expected(rows, own, log_probs=before)
    assert not torch.allclose(others.advantages, credit.advantages, atol=1e-3), "those of the rollout engine"


@pytest.mark.parametrize("options", [{}, {"segmenter": "none"}, {"value_estimator": "confidence"}])
def test_squares_are_asked_of_the_pass_and_measured_from(queue: MemoryQueue, options: dict[str, Any]) -> None:
    rows, options = bare_rows(), {"baseline": "token", **options}
    trainer = make_trainer(queue, {**NEWLINE, **options})
    batch = lay_down(queue, rows)
    found = step(trainer, batch)
    assert trainer.actor_rollout_wg.infos[0][transfer_fields.SQUARES] is True
    assert transfer_fields.SQUARES not in batch.extra_info, "later passes would sum squares again"
    squares = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        squares[row, :length] = queue.rows[PARTITION, key_of(rows, row)][transfer_fields.SUM_PI_SQUARED]
    credit, _ = expected(rows, config(**options), sum_pi_squared=squares)
    assert_credited(found, rows, credit)
    plain, _ = expected(rows, config(**{**options, "baseline": "trace"}))
    assert not torch.allclose(plain.advantages, credit.advantages, atol=1e-2)


def test_squares_are_not_asked_for_in_vain(queue: MemoryQueue) -> None:
    trainer = make_trainer(queue, NEWLINE)
    step(trainer, lay_down(queue, bare_rows()))
    assert transfer_fields.SQUARES not in trainer.actor_rollout_wg.infos[0]


def test_a_critics_values_are_read_where_they_belong(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, NEWLINE, "algorithm.adv_estimator=rredcot_ppo", use_critic=True)
    batch, values = lay_down(queue, rows), torch.zeros(rows.rollouts.rewards.shape)
    trainer._compute_old_log_prob(batch, {})
    for key in batch.keys:
        stored = queue.rows[PARTITION, key]
        stored["values"] = (stored["responses"] % 7).float() / 7
    for row, length in enumerate(rows.lengths):
        values[row, :length] = queue.rows[PARTITION, key_of(rows, row)]["values"]
    trainer._compute_advantage(batch, {})
    own = read_settings(trainer.config)
    credit, _ = expected(rows, own, token_scores={"critic": values})
    assert_credited({key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}, rows, credit)
    for row, length in enumerate(rows.lengths):
        returns = queue.rows[PARTITION, key_of(rows, row)]["returns"]
        assert torch.allclose(returns, credit.returns[row, :length], atol=1e-5), "what the critic is to learn"


def test_attribution_is_asked_of_every_row_and_read_by_its_own(queue: MemoryQueue) -> None:
    rows = bare_rows()
    options = {**NEWLINE, "value_estimator": "attention", "lam": 0.9}
    trainer = make_trainer(queue, options)
    batch = lay_down(queue, rows)
    found = step(trainer, batch)
    _, segments = expected(rows, config())
    scores = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        stored = queue.rows[PARTITION, key_of(rows, row)]
        scores[row, :length] = stored[transfer_fields.SCORES["attention"]]
        count = int(segments.num_segments[row])
        first = int((segments.segment_ids[row] == count - 1).float().argmax())
        assert int(stored[transfer_fields.ANSWER_START]) == (len(rows.prompts[row]) + first if count > 1 else -1)
    assert all(int(queue.rows[PARTITION, f"pad_{i}_0"][transfer_fields.ANSWER_START]) == -1 for i in range(3))
    own = config(value_estimator="attention", lam=0.9)
    credit, _ = expected(rows, own, token_scores={"attention": scores})
    assert_credited(found, rows, credit)
    assert transfer_fields.ATTRIBUTION not in batch.extra_info


def test_squares_of_probabilities_are_asked_for_and_read_by_row(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, {"segmenter": "none", "baseline": "token"})
    batch = lay_down(queue, rows)
    found = step(trainer, batch)
    squares = torch.zeros(rows.rollouts.rewards.shape)
    for row, length in enumerate(rows.lengths):
        squares[row, :length] = queue.rows[PARTITION, key_of(rows, row)][transfer_fields.SUM_PI_SQUARED]
    credit, _ = expected(rows, config(segmenter="none", baseline="token"), sum_pi_squared=squares)
    assert_credited(found, rows, credit)
    assert transfer_fields.SQUARES not in batch.extra_info


EARLIER = {5: 10, 7: 1}


def with_earlier(rows: PromptedRollouts, earlier: dict[int, int]) -> PromptedRollouts:
    """What ``lay_down`` makes of ``rows``, put together by hand: all outputs of a session in one row."""
    rollouts, outputs = rows.rollouts, []
    members = [
        [*((row + 1 + i) % len(rows.lengths) for i in range(earlier.get(row, 0))), row] for row in range(20)
    ]
    width = max(sum(rows.lengths[i] + 1 for i in own) for own in members)
    tokens, mask, rewards = torch.zeros(20, width).long(), torch.zeros(20, width).bool(), torch.zeros(20, width)
    for row, own in enumerate(members):
        at, found = 0, []
        for number, i in enumerate(own):
            length = rows.lengths[i]
            found.append(Output(rows.prompts[i], at, length, number))
            tokens[row, at : at + length] = rows.token_ids[i, :length]
            mask[row, at : at + length] = rollouts.response_mask[i, :length]
            at += length + 1
        rewards[row, at - 2] = rollouts.outcomes[row]
        outputs.append(found)
    joined = rr.Rollouts(tokens, mask, rewards, rollouts.group_ids, ground_truths=rollouts.ground_truths)
    firsts = [own[0].prompt for own in outputs]
    lengths = [own[-1].start + own[-1].length for own in outputs]
    return PromptedRollouts(joined, firsts, [""] * 20, lengths, outputs)


def test_outputs_with_rewritten_contexts_have_the_credit_of_one_trace(queue: MemoryQueue) -> None:
    """Ten outputs before the last one of row 5: as text, its number 10 comes before 9. They are other rows' prompts and
    tokens."""
    rows = bare_rows()
    trainer, metrics = make_trainer(queue, NEWLINE), {}
    found = step(trainer, lay_down(queue, rows, earlier=EARLIER), metrics)
    joined = with_earlier(rows, EARLIER)
    credit, segments = expected(joined, read_settings(trainer.config))
    for row in range(len(rows.lengths)):
        session, outputs = key_of(rows, row)[:-2], joined.outputs_of(row)
        for number, output in enumerate(outputs):
            own = credit.advantages[row, output.start : output.start + output.length]
            assert torch.allclose(found[f"{session}_{number}"], own, atol=1e-5), (session, number)
        ids = [set(segments.segment_ids[row, o.start : o.start + o.length].tolist()) - {-1} for o in outputs]
        assert all(a.isdisjoint(b) for a, b in itertools.pairwise(ids)), "no segment reaches into the next output"
    total = (credit.segment_rewards * segments.exists).sum(dim=1)
    assert torch.allclose(total, rows.rollouts.outcomes, atol=1e-5), "the rewards of earlier outputs count nowhere"
    assert metrics["rredcot/sessions/rows/mean"] == 31 / 20


REJECTION = (
    "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
    "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0",
)


def rejected(
    queue: MemoryQueue, mode: str, options: dict[str, Any], rows: PromptedRollouts, output: int = 2
) -> dict[str, torch.Tensor]:
    """A step whose rollout correction rejects an output of the session of row 2, and nothing else."""
    trainer = make_trainer(queue, options, *REJECTION, f"algorithm.adv_estimator={mode}")
    batch = lay_down(queue, rows, earlier={2: 2, 6: 1})
    trainer._compute_old_log_prob(batch, {})
    gone = f"{key_of(rows, 2)[:-2]}_{output}"
    for key in batch.keys:
        stored = queue.rows[PARTITION, key]
        shift = 3.0 if key == gone else 0.0
        stored["rollout_log_probs"] = stored["old_log_probs"] - shift
    trainer._compute_advantage(batch, {})
    assert not queue.rows[PARTITION, gone]["response_mask"].any()
    return {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}


def test_a_rejected_last_output_earns_its_session_nothing_as_in_verls_grpo(queue: MemoryQueue) -> None:
    rows = bare_rows()
    ours = rejected(queue, "rredcot", {"segmenter": "none"}, rows)
    grpo = rejected(queue, "grpo", {}, rows)
    session = key_of(rows, 2)[:-2]
    assert [float(grpo[f"{session}_{output}"].abs().max()) for output in range(3)] == [0.0, 0.0, 0.0]
    for key, advantages in grpo.items():
        assert torch.allclose(ours[key], advantages, atol=1e-5), key
    segments = rejected(queue, "rredcot", NEWLINE, rows)
    assert [float(segments[f"{session}_{output}"].abs().max()) for output in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("options", [{"segmenter": "none"}, NEWLINE])
def test_a_rejected_earlier_output_loses_its_own_tokens_alone(queue: MemoryQueue, options: dict[str, Any]) -> None:
    rows, session = bare_rows(), key_of(bare_rows(), 2)[:-2]
    known = step(make_trainer(queue, options), lay_down(queue, rows, earlier={2: 2, 6: 1}))
    left = rejected(queue, "rredcot", options, rows, output=1)
    assert known[f"{session}_1"].any() and not left[f"{session}_1"].any()
    for key in known.keys() - {f"{session}_1"}:
        assert torch.allclose(left[key], known[key], atol=1e-6), key
