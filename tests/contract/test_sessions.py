"""Sessions of several rows: one outcome, one count, and for every row the credit of its own turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import core_algos

from tests.contract.cut_sessions import TOOLS, TURN, assert_same_turns, cut_entries, stepped, tool_rows, turns_of
from tests.contract.memory import (
    PARTITION,
    MemoryQueue,
    enqueue,
    key_of,
    lay_down,
    make_trainer,
    padding,
    step,
)
from tests.contract.test_verl_options import verl_config

KL = "algorithm.use_kl_in_reward=True"

CASES: list[dict[str, Any]] = [
    {},
    {"lam": 0.9},
    {"baseline": "least_variance"},
    {"baseline": "token"},
    {"value_estimator": "confidence"},
    {"probe_backend": "batched"},
    {"segmenter": "none"},
    {"segmenter": "none", "baseline": "token"},
]


@pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(map(str, options.values())) or "turn")
def test_a_session_cut_into_rows_has_the_credit_of_the_same_session_in_one(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, queue = tool_rows(), MemoryQueue(monkeypatch)
    before: dict[str, Any] = {}
    whole = step(make_trainer(queue, {**TURN, **options}), lay_down(queue, rows), before)
    cut, metrics = stepped(monkeypatch, [*cut_entries(rows), *padding(rows, 3)], options)
    assert_same_turns(rows, whole, cut)
    assert metrics["rredcot/sessions/rows/mean"] == 25 / 20 and before["rredcot/sessions/rows/mean"] == 1
    for name, value in before.items():
        if name.startswith("rredcot/") and name not in {
            "rredcot/sessions/rows/mean",
            "rredcot/probes/token_overhead/mean",
        }:
            assert metrics[name] == pytest.approx(value, abs=1e-5), name


def test_every_row_has_the_number_of_its_own_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tool_rows()
    found, _ = stepped(monkeypatch, cut_entries(rows), {})
    for row in TOOLS:
        session = key_of(rows, row)[:-2]
        numbers = [found[f"{session}_{number}"] for number, _ in enumerate(turns_of(rows, row))]
        assert all(float(own.std(correction=0)) < 1e-6 for own in numbers[:-1]), "the last one may have an answer"
        assert len({round(float(own[0]), 4) for own in numbers}) == len(numbers)


def test_a_penalty_on_any_row_of_a_session_stays_on_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tool_rows()
    controller = core_algos.get_kl_controller(verl_config().algorithm.kl_ctrl)
    controller.value = 0.5

    def penalised(lay: Any) -> dict[str, torch.Tensor]:
        queue = MemoryQueue(monkeypatch)
        trainer = make_trainer(queue, TURN, KL, kl_ctrl_in_reward=controller)
        batch: KVBatchMeta = lay(queue)
        trainer._compute_old_log_prob(batch, {})
        for key in batch.keys:
            stored = queue.rows[PARTITION, key]
            stored["ref_log_prob"] = stored["old_log_probs"] - stored["responses"] % 5 / 8.0
        trainer._compute_advantage(batch, {})
        return {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}

    whole = penalised(lambda queue: lay_down(queue, rows))
    entries = [*cut_entries(rows), *padding(rows, 2)]
    cut = penalised(lambda queue: enqueue(queue, entries))
    assert_same_turns(rows, whole, cut)
    plain, _ = stepped(monkeypatch, entries, {})
    key = f"{key_of(rows, 5)[:-2]}_0"
    assert not torch.allclose(plain[key], cut[key], atol=1e-3), "the penalties of all turns count"
    copy = {name: fields for name, fields, _ in entries}[key]["rm_scores"]
    unread = penalised(lambda queue: enqueue(queue, changed(entries, key, rm_scores=copy * torch.nan)))
    assert all(torch.isfinite(own).all() for own in unread.values())


def test_a_critics_values_are_joined_and_its_returns_go_back_to_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = tool_rows()

    def returns(lay: Any, estimator: str) -> dict[str, torch.Tensor]:
        queue = MemoryQueue(monkeypatch)
        options = {"segmenter": "turn"}
        trainer = make_trainer(queue, options, f"algorithm.adv_estimator={estimator}", use_critic=True)
        batch: KVBatchMeta = lay(queue)
        trainer._compute_old_log_prob(batch, {})
        for key in batch.keys:
            stored = queue.rows[PARTITION, key]
            stored["values"] = (stored["responses"] % 7).float() / 7
        trainer._compute_advantage(batch, {})
        return {key: queue.rows[PARTITION, key]["returns"] for key in batch.keys}

    whole = returns(lambda queue: lay_down(queue, rows), "rredcot_ppo")
    cut = returns(lambda queue: enqueue(queue, cut_entries(rows)), "rredcot_ppo")
    assert_same_turns(rows, whole, cut)
    assert float(torch.cat(list(cut.values())).abs().max()) > 0.1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_rows_and_padding_among_them_change_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tool_rows()
    known, _ = stepped(monkeypatch, cut_entries(rows), {})
    shuffled, _ = stepped(monkeypatch, [*cut_entries(rows), *padding(rows, 5)], {}, seed=seed)
    for key, own in known.items():
        assert torch.allclose(shuffled[key], own, atol=1e-6), key
    assert all(float(shuffled[f"pad_{i}_0"].abs().max()) == 0 for i in range(5))


def without(entries: list[Any], key: str) -> list[Any]:
    return [entry for entry in entries if entry[0] != key]


def changed(entries: list[Any], key: str, **fields: Any) -> list[Any]:
    """The rows with other fields under one key."""
    return [(name, {**own, **fields} if name == key else own, tags) for name, own, tags in entries]


def test_a_missing_row_is_counted_and_the_session_is_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tool_rows()
    session = key_of(rows, 5)[:-2]
    gap = without(cut_entries(rows), f"{session}_1")
    found, metrics = stepped(monkeypatch, gap, {})
    assert metrics["rredcot/fallback/missing_row/mean"] == pytest.approx(1 / 20)
    renamed = [(f"{session}_1" if key == f"{session}_2" else key, *rest) for key, *rest in gap]
    closed, whole = stepped(monkeypatch, renamed, {})
    assert whole["rredcot/fallback/missing_row/mean"] == 0
    assert torch.equal(found[f"{session}_0"], closed[f"{session}_0"])
    assert torch.equal(found[f"{session}_2"], closed[f"{session}_1"])
    first, metrics = stepped(monkeypatch, without(cut_entries(rows), f"{session}_0"), {})
    assert metrics["rredcot/fallback/missing_row/mean"] == pytest.approx(1 / 20)
    assert all(torch.isfinite(own).all() for own in first.values())


@pytest.mark.parametrize("tokens", [0, 3])
def test_an_earlier_row_without_tokens_of_the_model_is_as_if_it_were_not_there(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tool_rows()
    session = key_of(rows, 5)[:-2]
    entries = cut_entries(rows)
    stored = {key: fields for key, fields, _ in entries}[f"{session}_1"]
    nothing = {
        "responses": torch.arange(3)[:tokens],
        "response_mask": torch.zeros(tokens, dtype=torch.int64),
        "rm_scores": torch.full((tokens,), torch.nan),
        "rollout_log_probs": torch.zeros(tokens),
        "input_ids": torch.cat([stored["prompts"], torch.arange(3)[:tokens]]),
    }
    found, _ = stepped(monkeypatch, changed(entries, f"{session}_1", **nothing), {})
    absent, _ = stepped(monkeypatch, without(entries, f"{session}_1"), {})
    for key, own in absent.items():
        assert torch.allclose(found[key], own, atol=1e-6), key
    assert not found[f"{session}_1"].any()


def test_a_session_whose_last_row_was_aborted_earns_nothing_and_counts_for_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = tool_rows()
    session, entries = key_of(rows, 5)[:-2], cut_entries(rows)
    last = {key: fields for key, fields, _ in entries}[f"{session}_2"]
    aborted = changed(entries, f"{session}_2", response_mask=torch.zeros_like(last["response_mask"]))
    found, metrics = stepped(monkeypatch, aborted, {})
    assert metrics["rredcot/fallback/lost_end/mean"] == pytest.approx(1 / 20)
    assert not any(found[f"{session}_{number}"].any() for number in range(3))
    ours, _ = stepped(monkeypatch, aborted, {"segmenter": "none"})
    queue = MemoryQueue(monkeypatch)
    grpo = step(make_trainer(queue, {}, "algorithm.adv_estimator=grpo"), enqueue(queue, aborted))
    for key, own in grpo.items():
        assert torch.allclose(ours[key], own, atol=1e-5), key


def test_a_reward_that_is_not_finite_counts_on_the_last_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tool_rows()
    session, entries = key_of(rows, 5)[:-2], cut_entries(rows)
    known, _ = stepped(monkeypatch, entries, {})

    def broken(number: int) -> list[Any]:
        fields = {key: fields for key, fields, _ in entries}[f"{session}_{number}"]
        return changed(entries, f"{session}_{number}", rm_scores=fields["rm_scores"] + torch.inf)

    earlier, metrics = stepped(monkeypatch, broken(0), {})
    assert all(torch.equal(earlier[key], own) for key, own in known.items()), "a copy is not read"
    assert metrics["rredcot/fallback/nonfinite_reward/mean"] == 0
    last, metrics = stepped(monkeypatch, broken(2), {})
    assert metrics["rredcot/fallback/nonfinite_reward/mean"] == pytest.approx(1 / 20)
    assert not any(last[f"{session}_{number}"].any() for number in range(3))
    assert all(torch.isfinite(own).all() for own in last.values())
