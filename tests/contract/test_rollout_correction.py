"""verl's rollout correction beside credit: its weights count once, in the loss; what it rejects earns nothing and changes
nothing of others. And its filter of groups, which sees what the reward function said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.workers.config import FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from tests.contract.async_steps import MODES, ListedQueue, rollout, sampled_step, trainer_of
from tests.contract.memory import PARTITION, TEMPERATURE, assert_credited, expected, key_of, token_log_probs
from tests.contract.runner_steps import config
from tests.unit.test_group_work import bare_rows

CORRECTION = "algorithm.rollout_correction."
STEP = 3


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> ListedQueue:
    return ListedQueue(monkeypatch)


def drifted(rows: PromptedRollouts) -> list[torch.Tensor]:
    """Log-probs of a rollout engine that differ from the actor's by up to 0.4 at a token, by 3 in all of row 2 and in the
    third unmasked token of row 5."""
    found = []
    for row, length in enumerate(rows.lengths):
        trace = torch.cat([rows.prompts[row], rows.token_ids[row, :length]])
        own = torch.tensor(token_log_probs(trace, STEP - 1, TEMPERATURE)[-length:])
        drift = 0.4 * torch.sin(torch.arange(length) + row)
        if row == 2:
            drift -= 3.0
        if row == 5:
            drift[int(rows.rollouts.response_mask[5].nonzero()[2])] = -3.0
        found.append(own + drift)
    return found


def corrected(
    queue: ListedQueue, mode: str, *overrides: str, rows: PromptedRollouts | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    """Advantages of a step and what the queue held of its rows at its end, by key."""
    rows = rows or bare_rows()
    trainer = trainer_of(queue, mode, {}, *(CORRECTION + own for own in overrides))
    rollout(queue, rows, STEP, rollout_log_probs=drifted(rows))
    held = {key: row for (_, key), row in queue.rows.items() if "responses" in row}
    return sampled_step(trainer, STEP), held


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_are_beside_the_advantages_and_not_in_them(queue: ListedQueue, mode: str, level: str) -> None:
    """The loss, verl's own, is then that of our credit with every weight once."""
    rows = bare_rows()
    found, held = corrected(queue, mode, f"rollout_is={level}", "rollout_is_threshold=2.0")
    credit, _ = expected(rows, config(), weights=STEP - 1)
    assert_credited(found, rows, credit)
    actor = FSDPActorConfig(strategy="fsdp2", rollout_n=4, use_dynamic_bsz=True, ppo_mini_batch_size=5)
    spread = []
    for row, log_probs in enumerate(drifted(rows)):
        key, mask = key_of(rows, row), rows.rollouts.response_mask[row, : rows.lengths[row]]
        own = held[key]
        ratio = (own["old_log_probs"] - log_probs) * mask
        total = ratio if level == "token" else ratio.sum().expand_as(ratio)
        weight = total.clamp(-20, 20).exp().clamp(max=2.0) * mask
        assert torch.allclose(own["rollout_is_weights"], weight, rtol=1e-4, atol=1e-6), key
        spread.append(weight[mask])
        loss, _ = get_policy_loss_fn("vanilla")(
            old_log_prob=own["old_log_probs"][None],
            log_prob=own["old_log_probs"][None],
            advantages=found[key][None],
            response_mask=mask[None],
            config=actor,
            rollout_is_weights=own["rollout_is_weights"][None],
        )
        wanted = -(credit.advantages[row, : len(mask)] * weight)[mask].mean()
        assert float(loss) == pytest.approx(float(wanted), abs=1e-5)
    assert float(torch.cat(spread).std()) > 0.1


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_without_a_log_prob_pass_weights_are_the_losses_alone(queue: ListedQueue, loss_type: str) -> None:
    """``bypass_mode``: ``old_log_probs`` are the rollout engine's, and nothing of ours has weighted anything yet."""
    rows = bare_rows()
    options = ("bypass_mode=True", "rollout_is=token", f"loss_type={loss_type}")
    found, held = corrected(queue, "sync", *options)
    assert_credited(found, rows, bypassed(rows))
    correction = {"bypass_mode": True, "rollout_is": "token", "rollout_is_threshold": 2.0, "loss_type": loss_type}
    policy_loss = PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=correction)
    actor = FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, use_dynamic_bsz=True, ppo_mini_batch_size=5, policy_loss=policy_loss
    )
    for row in range(len(rows.lengths)):
        key, mask = key_of(rows, row), rows.rollouts.response_mask[row, : rows.lengths[row]]
        assert "rollout_is_weights" not in held[key]
        now = held[key]["old_log_probs"] + 0.1
        loss, _ = get_policy_loss_fn("bypass_mode")(
            old_log_prob=held[key]["old_log_probs"][None],
            log_prob=now[None],
            advantages=found[key][None],
            response_mask=mask[None],
            config=actor,
        )
        times = torch.tensor(0.1).exp() * (now if loss_type == "reinforce" else 1.0)
        wanted = -(found[key] * times)[mask].mean()
        assert float(loss) == pytest.approx(float(wanted), abs=1e-5)


def bypassed(rows: PromptedRollouts) -> Any:
    """Credit of probes under the actor's weights and the rollout engine's log-probs."""
    signals = torch.nn.utils.rnn.pad_sequence(drifted(rows), batch_first=True)
    signals = torch.nn.functional.pad(signals, (0, rows.token_ids.shape[1] - signals.shape[1]))
    return expected(rows, config(), weights=STEP - 1, log_probs=signals, entropies=None)[0]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_log_prob_pass_probes_run_under_the_weights_that_the_actor_has(
    queue: ListedQueue, mode: str
) -> None:
    """Nothing else is there: no pass asks for them, and the start of the run says so where these may be newer ones."""
    rows = bare_rows()
    trainer = trainer_of(queue, mode, {}, CORRECTION + "bypass_mode=True")
    rollout(queue, rows, STEP, rollout_log_probs=drifted(rows))
    held = {key: row for (_, key), row in queue.rows.items() if "responses" in row}
    assert_credited(sampled_step(trainer, STEP), rows, bypassed(rows))
    assert trainer.actor_rollout_wg.calls == ["probes"]
    for row, log_probs in enumerate(drifted(rows)):
        assert torch.equal(held[key_of(rows, row)]["old_log_probs"], log_probs)


@pytest.mark.parametrize("mode", MODES)
def test_a_rejected_row_earns_nothing_and_is_still_a_sibling(queue: ListedQueue, mode: str) -> None:
    """verl's GRPO counts its reward in the group's mean as well: it was rejected for its log-probs, not for its outcome."""
    rows = bare_rows()
    credit, _ = expected(rows, config(), weights=STEP - 1)
    found, held = corrected(queue, mode, "rollout_rs=seq_mean_k1", "rollout_rs_threshold=0.5_2.0")
    gone = key_of(rows, 2)
    assert not held[gone]["response_mask"].any() and not found[gone].any()
    assert sum(not bool(own["response_mask"].any()) for own in held.values()) == 1
    for row, length in enumerate(rows.lengths):
        if row != 2:
            assert torch.allclose(found[key_of(rows, row)], credit.advantages[row, :length], atol=1e-5)


def test_a_rejected_token_earns_nothing_and_its_neighbours_what_they_did(queue: ListedQueue) -> None:
    rows = bare_rows()
    credit, _ = expected(rows, config(), weights=STEP - 1)
    found, held = corrected(queue, "separate_async", "rollout_rs=token_k1", "rollout_rs_threshold=0.5_2.0")
    own, wanted = found[key_of(rows, 5)], credit.advantages[5, : rows.lengths[5]].clone()
    at = int(rows.rollouts.response_mask[5].nonzero()[2])
    assert float(wanted[at]) != 0.0 == float(own[at]) and not held[key_of(rows, 5)]["response_mask"][at]
    wanted[at] = 0.0
    assert torch.allclose(own, wanted, atol=1e-5)


def accuracies(rows: PromptedRollouts) -> list[float]:
    """1 in every row of the first prompt, 0 in those of the second, both elsewhere."""
    order = sorted({str(uid) for uid in rows.rollouts.group_ids})
    seen: dict[str, int] = {}
    found = []
    for uid in map(str, rows.rollouts.group_ids):
        seen[uid] = seen.get(uid, 0) + 1
        found.append({order[0]: 1.0, order[1]: 0.0}.get(uid, float(seen[uid] % 2)))
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metric", ["acc", "reward"])
def test_groups_are_filtered_by_what_the_reward_function_said(queue: ListedQueue, mode: str, metric: str) -> None:
    """Groups whose ``acc`` is the same in all rows go, however their rewards were shaped; with ``reward``, the other way
    round. A step before has put credit of its own rows into the same queue."""
    rows, acc = bare_rows(), accuracies(bare_rows())
    filtered = ("algorithm.filter_groups.enable=True", f"algorithm.filter_groups.metric={metric}")
    trainer = trainer_of(queue, mode, {"scale": "none"}, *(f"++{own}" for own in filtered))
    said = [{"reward_extra_info": {"acc": own}} for own in acc]
    rollout(queue, rows, STEP, extra_fields=said)
    kept_scores = {key: row["rm_scores"].clone() for (_, key), row in queue.rows.items() if "rm_scores" in row}
    values = acc if metric == "acc" else rows.rollouts.outcomes.tolist()
    groups: dict[str, set[float]] = {}
    for uid, own in zip(map(str, rows.rollouts.group_ids), values, strict=True):
        groups.setdefault(uid, set()).add(own)
    gone = {uid for uid, own in groups.items() if len(own) == 1}
    assert len(gone) == 2 if metric == "acc" else not gone
    buffer = trainer.replay_buffer
    for after in (False, True):
        if after:
            credited(queue, trainer, rows)
        buffer._sync_metadata_from_transfer_queue()
        buffer._dapo_classification_cache.clear()
        uids, counts = buffer._dapo_filtered_keys(PARTITION)
        assert uids == gone and sum(counts.values()) == len(gone)
        stored = {key: row for (_, key), row in queue.rows.items() if "rm_scores" in row}
        assert all(torch.equal(stored[key]["rm_scores"], own) for key, own in kept_scores.items())
    refilled: list[int] = []
    buffer.refill_fn = refilled.append
    batch, metrics = buffer.sample(global_steps=STEP, partition_id=PARTITION, batch_size=len(groups) - len(gone))
    assert {key.split("_")[0] for key in batch.keys} == groups.keys() - gone
    assert metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY, {}) == ({1.0: 1, 0.0: 1} if gone else {})


def credited(queue: ListedQueue, trainer: Any, rows: PromptedRollouts) -> None:
    """Credit of all rows that lie in the queue, as a step of their own would give it."""
    keys = [key_of(rows, row) for row in range(len(rows.lengths))]
    batch = queue.kv_batch_put(keys, PARTITION)
    batch.extra_info["temperature"] = TEMPERATURE
    trainer._compute_old_log_prob(batch, {})
    trainer._compute_advantage(batch, {})
    assert transfer_fields.PROBES in queue.rows[PARTITION, keys[0]]
