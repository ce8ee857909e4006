"""``process_rewards`` of a reward function, from where verl leaves them to the credit of the parts that earned them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.metric_utils import process_validation_metrics

from rredcot_plugin.adapter.process_rewards import FIELD, moved, moves
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.continuations import reward_input
from rredcot_plugin.reference.metric_names import known_metrics
from tests.contract.cut_sessions import assert_same_turns, cut_entries, stepped, tool_rows, turns_of, whole_entries
from tests.contract.memory import (
    PARTITION,
    TEMPERATURE,
    Entry,
    MemoryQueue,
    assert_credited,
    enqueue,
    expected,
    key_of,
    make_trainer,
)
from tests.contract.runner_steps import NEWLINE, config
from tests.contract.test_proto import proto_of, trainer_over
from tests.contract.test_verl_options import verl_config
from tests.unit.test_group_work import TABLE, TOKENIZER, bare_rows
from tests.unit.test_process_rewards import told_rows

LINES = {**NEWLINE, "baseline": "least_variance"}
SHARES = ["rredcot/credit/process_rewards/mean", "rredcot/fallback/process_rewards/mean"]


def entries_of(rows: PromptedRollouts, *, column: bool = False) -> list[Entry]:
    """The rows as verl's agent loop leaves them; with ``column`` as its separate reward model does."""
    assert rows.told is not None
    found: list[Entry] = []
    for (key, fields, tags), said in zip(whole_entries(rows), rows.told, strict=True):
        info = {"score": 0.5} if said is None else {"score": 0.5, FIELD: said}
        own = {FIELD: said} if column else {"extra_fields": {"reward_extra_info": info}}
        found.append((key, {**fields, **own}, tags))
    return found


def placed(rows: PromptedRollouts) -> PromptedRollouts:
    """The same rows with their rewards where they belong, and nobody who says anything."""
    added, _ = moves(rows, TABLE)
    assert added is not None and float(added.abs().max()) > 0
    return dataclasses.replace(moved(rows, added), told=None)


@pytest.mark.parametrize("column", [False, True], ids=["extra_info", "column"])
@pytest.mark.parametrize("options", [{}, {"value_estimator": "confidence"}, {"lam_turn_rewards": 0.5}], ids=str)
def test_a_step_learns_from_them_as_from_rewards_on_these_tokens(
    options: dict[str, Any], column: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = told_rows()
    found, metrics = stepped(monkeypatch, entries_of(rows, column=column), {**LINES, **options})
    credit, _ = expected(placed(rows), config(**LINES, **options))
    assert_credited(found, rows, credit)
    assert metrics[SHARES[0]] > 0 == metrics[SHARES[1]] and set(SHARES) <= set(known_metrics())


def test_without_them_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = told_rows()
    nothing = dataclasses.replace(rows, told=[None] * len(rows.lengths))
    plain = whole_entries(rows)
    quiet, metrics = stepped(monkeypatch, entries_of(nothing), LINES)
    known, _ = stepped(monkeypatch, plain, LINES)
    assert all(torch.equal(quiet[key], own) for key, own in known.items())
    assert metrics[SHARES[0]] == metrics[SHARES[1]] == 0
    ours, _ = stepped(monkeypatch, entries_of(rows), {"segmenter": "none"})
    theirs, _ = stepped(monkeypatch, plain, {"segmenter": "none"})
    assert all(torch.allclose(ours[key], own, atol=1e-6) for key, own in theirs.items())


def test_nonsense_is_counted_and_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bare_rows()
    nonsense = dataclasses.replace(rows, told=["[[", *[None] * (len(rows.lengths) - 1)])
    found, metrics = stepped(monkeypatch, entries_of(nonsense), LINES)
    plain = dataclasses.replace(rows, told=[None] * len(rows.lengths))
    known, _ = stepped(monkeypatch, entries_of(plain), LINES)
    assert all(torch.equal(found[key], own) for key, own in known.items())
    assert metrics[SHARES[1]] == 1 / len(rows.lengths)


def test_penalties_of_single_tokens_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """KL in the reward, which verl puts on the rewards before the plugin sees them."""
    rows = told_rows()
    on_tokens = placed(rows)
    controller = core_algos.get_kl_controller(verl_config().algorithm.kl_ctrl)
    controller.value = 0.5

    def penalised(entries: list[Entry]) -> dict[str, torch.Tensor]:
        queue = MemoryQueue(monkeypatch)
        trainer = make_trainer(queue, LINES, "algorithm.use_kl_in_reward=True", kl_ctrl_in_reward=controller)
        batch = enqueue(queue, entries)
        trainer._compute_old_log_prob(batch, {})
        for key in batch.keys:
            stored = queue.rows[PARTITION, key]
            stored["ref_log_prob"] = stored["old_log_probs"] - torch.arange(len(stored["responses"])) % 4 / 8.0
        trainer._compute_advantage(batch, {})
        return {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}

    plain = whole_entries(on_tokens)
    found, theirs = penalised(entries_of(rows)), penalised(plain)
    assert all(torch.allclose(found[key], own, atol=1e-5) for key, own in theirs.items())
    assert any(
        not torch.allclose(found[key], own, atol=1e-2)
        for key, own in stepped(monkeypatch, plain, LINES)[0].items()
    )


def test_the_trainer_over_dataproto_reads_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = told_rows()
    over_queue, _ = stepped(monkeypatch, entries_of(rows), LINES)
    order = list(range(len(rows.lengths)))
    own = [f"+algorithm.rredcot.{key}={value}" for key, value in LINES.items()]
    temperature = f"actor_rollout_ref.rollout.temperature={TEMPERATURE}"
    trainer = trainer_over(verl_config(temperature, "trainer.use_v1=False", *own))
    proto = proto_of(rows, order)
    proto.non_tensor_batch[FIELD] = np.empty(len(order), dtype=object)
    proto.non_tensor_batch[FIELD][:] = rows.told
    trainer._compute_old_log_prob(proto)
    advantages, _ = get_adv_estimator_fn("rredcot")(
        token_level_rewards=proto.batch["rm_scores"], response_mask=proto.batch["response_mask"], config=None
    )
    for row in order:
        theirs = over_queue[key_of(rows, row)]
        assert torch.equal(advantages[row, : len(theirs)], theirs)


def test_of_a_session_cut_into_rows_the_last_ones_characters_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl copies what the reward function said of the last output to all of them."""
    rows, entries = tool_rows(), []
    added = torch.zeros(rows.rollouts.rewards.shape)
    for key, own, tags in cut_entries(rows):
        said = {"reward_extra_info": {FIELD: [[1, 0.25]]}}
        entries.append((key, {**own, "extra_fields": said}, tags))
    for row, length in enumerate(rows.lengths):
        *_, last = turns_of(rows, row)
        added[row, last.start] += 0.25
        added[row, length - 1] -= 0.25
    found, metrics = stepped(monkeypatch, entries, {})
    whole, _ = stepped(monkeypatch, whole_entries(moved(rows, added)), {})
    assert_same_turns(rows, whole, found)
    assert metrics[SHARES[0]] == pytest.approx(0.25)


@pytest.mark.parametrize("manager", ["naive", "dapo", "rate_limited"])
def test_reward_managers_show_a_function_the_text_that_ends_are_counted_in(manager: str) -> None:
    """Without special tokens, of the last output; and they keep what it returns."""
    end, seen = TOKENIZER.eos_token_id, []

    def compute_score(solution_str: str, **_: Any) -> dict[str, Any]:
        seen.append(solution_str)
        return {"score": 1.0, FIELD: "[[1, 0.5]]"}

    ids = [*TOKENIZER("1 + 2 = 3\n")["input_ids"], end, *TOKENIZER("#### 3")["input_ids"], end]
    fields = {"data_source": "mine", "reward_model": {"ground_truth": "3"}, "extra_info": {}}
    settings = OmegaConf.create({"reward": {"reward_kwargs": {}}})
    found = get_reward_manager_cls(manager)(settings, TOKENIZER, compute_score)
    result = found.loop.run_until_complete(found.run_single(reward_input([1, 2], ids, fields)))
    assert seen == ["1 + 2 = 3\n#### 3"]
    assert result["reward_score"] == 1.0 and result["reward_extra_info"][FIELD] == "[[1, 0.5]]"
    starts = TABLE.shown_starts(np.array(ids))
    assert int(starts[-1]) == len(seen[0])


def test_validation_takes_means_over_lists_and_leaves_texts_alone() -> None:
    def metrics(first: Any, second: Any) -> dict[str, Any]:
        infos = {"reward": [1.0, 0.0], FIELD: [first, second]}
        return process_validation_metrics(["mine", "mine"], ["a", "a"], infos)["mine"]

    assert set(metrics("[[1, 0.5]]", "[]")) == {"reward"}
    with pytest.raises((ValueError, TypeError)):
        metrics([[1, 0.5]], [])
