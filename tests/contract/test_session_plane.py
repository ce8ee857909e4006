"""What is read and asked of sessions of several rows, and what a dump says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.parcel import parcel, unparcel
from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.batch import open_rows
from rredcot_plugin.integrations.verl.prefix_scores import PrefixScorer
from rredcot_plugin.integrations.verl.session_plane import SessionLayout, as_sessions, layout_of
from rredcot_plugin.integrations.verl.sessions import row_roles
from rredcot_plugin.reference.metric_names import known_metrics
from tests.contract.cut_sessions import (
    TOOLS,
    TURN,
    assert_same_turns,
    cut_entries,
    stepped,
    tool_rows,
    turns_of,
    whole_entries,
)
from tests.contract.memory import (
    PARTITION,
    MemoryQueue,
    assert_credited,
    enqueue,
    expected,
    key_of,
    make_trainer,
    padding,
    step,
)
from tests.contract.runner_steps import config


def test_the_answer_of_a_session_begins_in_its_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, queue = tool_rows(), MemoryQueue(monkeypatch)
    trainer = make_trainer(queue, {**TURN, "value_estimator": "attention"})
    found = step(trainer, enqueue(queue, [*cut_entries(rows), *padding(rows, 2)]))
    assert all(torch.isfinite(own).all() for own in found.values())
    starts = {key: int(queue.rows[PARTITION, key][transfer_fields.ANSWER_START]) for key in found}
    for row in TOOLS:
        *earlier, last = (f"{key_of(rows, row)[:-2]}_{number}" for number, _ in enumerate(turns_of(rows, row)))
        assert all(starts[key] == -1 for key in earlier)
        prompt = len(queue.rows[PARTITION, last]["prompts"])
        assert prompt <= starts[last] < prompt + len(found[last])
        scores = [queue.rows[PARTITION, key][transfer_fields.SCORES["attention"]] for key in earlier]
        assert not any(own.any() for own in scores)


def test_a_reward_model_reads_every_output_after_its_own_prompt() -> None:
    class Scorer(PrefixScorer):
        def every_token(self, traces: Any) -> list[torch.Tensor]:
            return [torch.cumsum(trace.float(), 0) for trace in traces]

    tokens = torch.tensor([[5, 6, 0, 7, 8, 9], [4, 0, 0, 0, 0, 0]])
    rollouts = rr.Rollouts(tokens, tokens > 0, torch.zeros(2, 6), ["a", "a"])
    first, second = torch.tensor([1, 2]), torch.tensor([3])
    outputs = [[Output(first, 0, 2), Output(second, 3, 3, 1)], [Output(first, 0, 1)]]
    rows = PromptedRollouts(rollouts, [first, first], ["", ""], [6, 1], outputs)
    found = object.__new__(Scorer).scores(rows)
    assert torch.equal(found[0].nan_to_num(-1), torch.tensor([3.0, 8, -1, 3, 10, 18]))
    assert torch.equal(found[1].nan_to_num(-1), torch.tensor([3.0, -1, -1, -1, -1, -1]))


def test_a_dump_has_one_trace_a_session_and_says_which_output_a_segment_stands_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows, options = tool_rows(), {"dump_dir": str(tmp_path), "dump_every": 1}
    stepped(monkeypatch, cut_entries(rows), options)
    records = {one["session"]: one for one in map(json.loads, (tmp_path / "2.jsonl").read_text().splitlines())}
    assert len(records) == 20
    for row, outcome in enumerate(rows.rollouts.outcomes.tolist()):
        record, turns = records[key_of(rows, row)[:-2]], list(turns_of(rows, row))
        assert record["reward"] == pytest.approx(outcome)
        assert sum(segment["reward"] for segment in record["segments"]) == pytest.approx(outcome, abs=1e-4)
        assert ("outputs" in record) == (len(turns) > 1)
        if len(turns) == 1:
            continue
        assert [own["number"] for own in record["outputs"]] == list(range(len(turns)))
        assert record["outputs"][0]["prompt"] == record["prompt"]
        assert len({own["prompt"] for own in record["outputs"]}) == len(turns)
        places = [segment["output"] for segment in record["segments"]]
        assert places == sorted(places) and set(places) == set(range(len(turns)))
        for number, turn in enumerate(turns):
            tokens = sum(segment["tokens"] for segment in record["segments"] if segment["output"] == number)
            assert tokens == turn.stop - turn.start


def test_some_sessions_of_a_plane_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, queue = tool_rows(), MemoryQueue(monkeypatch)
    batch = enqueue(queue, cut_entries(rows))
    roles = row_roles(batch.keys, batch.tags)
    plane = as_sessions(open_rows(batch, roles.active), layout_of(batch, roles))
    some = [roles.names.index(key_of(rows, row)[:-2]) for row in (12, 3, 5)]
    part, whole = unparcel(parcel(plane.take(some))).rows(), plane.rows().take(some)
    width = part.token_ids.shape[1]
    assert part.lengths == whole.lengths and part.rollouts.group_ids == whole.rollouts.group_ids
    assert part.tokens == whole.tokens == sum(map(len, part.traces()))
    for name in ("token_ids", "response_mask", "rewards", "log_probs"):
        assert torch.equal(getattr(part.rollouts, name), getattr(whole.rollouts, name)[:, :width]), name
    for row in range(3):
        mine, theirs = part.outputs_of(row), whole.outputs_of(row)
        assert [(o.start, o.length, o.number) for o in mine] == [(o.start, o.length, o.number) for o in theirs]
        assert all(torch.equal(a.prompt, b.prompt) for a, b in zip(mine, theirs, strict=True))
    assert len(plane.reward_fields()) == 20 and plane.group_ids() == plane.rows().rollouts.group_ids


@pytest.mark.parametrize("options", [{}, {"segmenter": "sentence", "lam": 0.9}, {"probe_backend": "batched"}])
def test_a_session_of_one_row_is_that_row_to_the_bit(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tool_rows()
    entries = whole_entries(rows)
    known, metrics = stepped(monkeypatch, entries, options)
    monkeypatch.setattr(SessionLayout, "is_trivial", False)
    joined, others = stepped(monkeypatch, entries, options)
    assert all(torch.equal(joined[key], own) for key, own in known.items())
    assert {k: v for k, v in metrics.items() if k[:7] == "rredcot"} == {
        k: v for k, v in others.items() if k[:7] == "rredcot"
    }


def with_state_values(entries: list[Any], said: dict[str, Any]) -> list[Any]:
    """The entries with what the agent loop left in ``extra_fields`` beside verl's own, by key."""
    return [
        (key, {**fields, "extra_fields": {"turn_scores": [], **said.get(key, {})}}, tags)
        for key, fields, tags in entries
    ]


def test_the_environments_estimates_reach_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the turns of a session are one row or one row each; as the core alone has them, missing ones counted."""
    rows, options = tool_rows(), {"value_estimator": "environment", "bridge": "auto"}
    whole, cut, scores = {}, {}, torch.full(rows.rollouts.rewards.shape, torch.nan)
    for row in TOOLS:
        said = [0.2 + 0.1 * turn + 0.01 * row for turn, _ in enumerate(turns_of(rows, row))]
        said = said[:-1] if row == 5 else said  # one is missing
        whole[key_of(rows, row)] = {"state_values": said}
        for number, (value, turn) in enumerate(zip(said, turns_of(rows, row), strict=False)):
            cut[f"{key_of(rows, row)[:-2]}_{number}"] = {"state_values": [value]}
            scores[row, turn.start] = value
    as_rows = whole_entries(rows)
    found, metrics = stepped(monkeypatch, with_state_values(as_rows, whole), options)
    turns, theirs = stepped(monkeypatch, with_state_values(cut_entries(rows), cut), options)
    assert_same_turns(rows, found, turns)
    name = "rredcot/fallback/no_state_value/mean"
    later = sum(len(gaps) for gaps in TOOLS.values())
    assert metrics[name] == theirs[name] == pytest.approx(1 / later) and name in known_metrics()
    credit, _ = expected(
        rows, config(segmenter="turn", value_estimator="environment", baseline="value"),
        token_scores={"environment": scores},
    )  # fmt: skip
    assert_credited(found, rows, credit)
    nothing, _ = stepped(monkeypatch, with_state_values(as_rows, {}), options)
    assert not torch.allclose(nothing[key_of(rows, 1)], found[key_of(rows, 1)], atol=1e-2)


def test_siblings_read_texts_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, options = tool_rows(), {"value_estimator": "siblings", "calibrate": "none", "bridge": "auto"}
    entries = whole_entries(rows)
    found, _ = stepped(monkeypatch, entries, options)
    own = config(segmenter="turn", value_estimator="siblings", baseline="value", calibrate="none")
    assert_credited(found, rows, expected(rows, own)[0])
