"""Parts of a batch, worked on one by one and put together, give what the whole batch gives: to the last bit."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.group_work import GroupWork, numbers_in_parts, plan_in_parts, split_groups
from rredcot_plugin.adapter.parcel import parcel, unparcel
from rredcot_plugin.adapter.probe_plan import ProbePlan, plan_metrics
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.adapter.summary import BatchSummary
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.registry import SEGMENTERS
from rredcot_plugin.state_numbers import StateNumbers, state_numbers
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import AnswerStyle, ProbeEncoder
from rredcot_plugin.tiny.reasoner import build_tokenizer

TOKENIZER = build_tokenizer()
TABLE = TokenBytes.from_tokenizer(TOKENIZER)


def bare_rows(groups: int = 5, size: int = 4, seed: int = 0) -> PromptedRollouts:
    """Rows of several groups in mixed order, as the integration reads them: tokens, no texts."""
    generator = torch.Generator().manual_seed(seed)

    def number(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator))

    texts = []
    for _ in range(groups * size):
        lines = "".join(f"{number(9)} + {number(9)} = {number(18)}\n" for _ in range(1 + number(6)))
        texts.append(f"{lines}#### {number(4)}" if number(5) else lines)
    ids = [torch.tensor(TOKENIZER(text)["input_ids"]) for text in texts]
    lengths = [len(row) for row in ids]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    mask[3, 2:4] = False
    rewards = torch.zeros(tokens.shape)
    rewards[torch.arange(len(ids)), torch.tensor(lengths) - 1] = torch.tensor([float(number(3) - 1) for _ in ids])
    order = torch.randperm(len(ids), generator=generator)
    names = [f"prompt {int(i) % groups}" for i in order]
    signal = -torch.empty(tokens.shape).exponential_(2.0, generator=generator)
    rollouts = rr.Rollouts(
        tokens,
        mask,
        rewards,
        names,
        log_probs=signal,
        ground_truths=["2"] * len(ids),
        references=["#### 2"] * len(ids),
    )
    prompts = [torch.tensor(TOKENIZER("1 + 2")["input_ids"] + [1] * (row % 3)) for row in range(len(ids))]
    return PromptedRollouts(rollouts, prompts, [""] * len(ids), lengths)


def work(config: rr.RRedCoTConfig) -> GroupWork:
    return GroupWork(
        config, TABLE, ProbeEncoder(TOKENIZER, config.bridge, config.terminator, config.max_probe_tokens)
    )


def sent(x: Any) -> Any:
    """``x`` behind the way to another process."""
    return unparcel(pickle.loads(pickle.dumps(parcel(x), protocol=5)))


def in_parts(
    rows: PromptedRollouts, config: rr.RRedCoTConfig, parts: int
) -> tuple[BatchSummary, ProbePlan, StateNumbers]:
    """What was seen, probes and the numbers of states, with every object sent as if between processes."""
    indices = split_groups(rows.rollouts.group_ids, rows.lengths, parts)
    workers = [sent(work(config)) for _ in indices]

    def ask(method: str, arguments: Any) -> list[Any]:
        calls = zip(workers, arguments, strict=True)
        return [sent(getattr(worker, method)(*sent(given))) for worker, given in calls]

    encoder = work(config).encoder

    def follow(style: AnswerStyle) -> dict[str, Any]:
        encoder.follow(style)
        return encoder.state_dict()

    seen, plan = plan_in_parts(rows, indices, ask, follow)
    signal = rows.rollouts.log_probs
    assert signal is not None
    ask("update_signals", [(signal[index], None) for index in indices])
    return seen, plan, numbers_in_parts(indices, ask)


CONFIGS: list[dict[str, Any]] = [
    *({"segmenter": name} for name in sorted(SEGMENTERS.names()) if name != "none"),
    {"segmenter": "newline", "value_estimator": "self_normalized"},
    {"segmenter": "newline", "value_estimator": "reference", "max_probe_tokens": 64},
    {"segmenter": "newline", "value_estimator": "own_ratio", "leave_one_out": False},
    {"segmenter": "newline", "max_probe_tokens": 2},
    {"segmenter": "nested", "lam_coarse": 0.9, "lam": 0.8},
    {"segmenter": "newline", "baseline": "least_variance"},
]


def test_a_part_that_had_nothing_of_a_step_probes_as_the_others_do() -> None:
    """A format that was seen in some step is kept until another one is."""
    config, rows = rr.RRedCoTConfig(segmenter="newline"), bare_rows()
    there, away = work(config), work(config)
    there.encoder.follow(AnswerStyle(Counter({"hash": 4}), 4, 0, 0))
    for own in (there, away):
        own.read(rows)
    floor, seen = torch.zeros(len(rows.lengths)), there.encoder.state_dict()
    plans = [own.plan(seen, floor) for own in (there, away)]
    assert plans[0].size and plans[0].specs == plans[1].specs
    fresh = work(config)
    fresh.read(rows)
    assert fresh.plan(fresh.encoder.state_dict(), floor).specs != plans[0].specs


@pytest.mark.parametrize("options", CONFIGS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("parts", [2, 5])
def test_parts_give_what_the_whole_gives(options: dict[str, Any], parts: int) -> None:
    config, rows = rr.RRedCoTConfig.from_mapping(options), bare_rows()
    seen, plan, numbers = in_parts(rows, config, parts)
    all_seen, expected, _ = in_parts(rows, config, 1)
    whole = all_seen.levels
    assert torch.equal(seen.outcomes, rows.rollouts.outcomes)
    assert seen.tokens == all_seen.tokens == rows.tokens
    for level, other in zip(seen.levels, whole, strict=True):
        assert torch.equal(level.segment_ids, other.segment_ids)
        assert torch.equal(level.num_segments, other.num_segments)
    assert plan.specs == expected.specs
    assert [own.tolist() for own in plan.places] == [own.tolist() for own in expected.places]
    assert plan_metrics(plan, seen.tokens) == plan_metrics(expected, rows.tokens)
    log_probs = [[-0.1 * (1 + i % 7) for i in range(len(specs))] for specs in plan.specs]

    def credit(of: ProbePlan, rollouts: rr.Rollouts, states: StateNumbers | None = None) -> rr.Credit:
        probed = of.probed(log_probs, length_normalize=False)
        return assign_credit(
            rollouts, config, segments=whole[-1], coarse=whole[0], probed=probed or None, states=states
        )

    bare = rr.Rollouts(None, rows.rollouts.response_mask, rows.rollouts.rewards, rows.rollouts.group_ids)
    shared, alone = credit(plan, bare, numbers), credit(expected, rows.rollouts)
    assert torch.equal(shared.advantages, alone.advantages)
    assert torch.equal(shared.values, alone.values)
    assert shared.metrics == alone.metrics


@pytest.mark.parametrize("parts", [2, 3])
def test_a_trace_whose_segments_are_wrong_is_named_with_its_row_of_the_batch(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, wrong = bare_rows(), 13
    texts = rows.read(TABLE).rollouts.texts
    assert texts is not None and texts.count(texts[wrong]) == 1
    whole = rr.RRedCoTConfig.build_levels

    def without_one(config: rr.RRedCoTConfig, rollouts: rr.Rollouts) -> list[rr.Segments]:
        (segments,) = whole(config, rollouts)
        left_out = torch.tensor([text == texts[wrong] for text in rollouts.texts or []])
        ids = segments.segment_ids.masked_fill(left_out[:, None], -1)
        return [rr.Segments(ids, segments.num_segments.masked_fill(left_out, 0))]

    monkeypatch.setattr(rr.RRedCoTConfig, "build_levels", without_one)
    with pytest.raises(ValueError, match=f"segments of rollout {wrong}: .* 0 masked tokens with"):
        in_parts(rows, rr.RRedCoTConfig(segmenter="newline"), parts)


def test_the_default_asks_and_fits_in_these_batches() -> None:
    """Else the parity above would compare nothing with nothing."""
    config, rows = rr.RRedCoTConfig(segmenter="newline"), bare_rows()
    _, plan, found = in_parts(rows, config, 3)
    assert plan.size > 20
    expected = state_numbers(rows.rollouts, plan.segments)
    assert found.prefixes is not None and expected.prefixes is not None
    at = plan.segments.exists
    for name, numbers in vars(found.prefixes).items():
        own = numbers[at]
        assert torch.equal(own, getattr(expected.prefixes, name)[at]), name
        assert name == "entropies" or (own.double().reshape(len(own), -1).std(dim=0) > 0).all(), (
            "without entropies 0"
        )
    assert found.gradient_norm_proxy is not None and expected.gradient_norm_proxy is not None
    assert torch.equal(found.gradient_norm_proxy, expected.gradient_norm_proxy)


def test_groups_stay_whole_and_parts_have_about_the_same_size() -> None:
    ids = [f"g{i % 7}" for i in range(70)]
    parts = split_groups(ids, [1 + i % 5 for i in range(70)], 3)
    assert sorted(row for part in parts for row in part) == list(range(70))
    assert all({ids[r] for r in a}.isdisjoint(ids[r] for r in b) for a in parts for b in parts if a is not b)
    assert split_groups(["a", "a"], [1, 1], 8) == [[0, 1]], "no more parts than groups"
    assert split_groups([], [], 4) == []


def test_a_part_keeps_every_field_of_its_rows() -> None:
    rows = bare_rows()
    taken = rows.take([7, 2])
    assert taken.lengths == [rows.lengths[7], rows.lengths[2]]
    assert torch.equal(taken.rollouts.token_ids, rows.rollouts.token_ids[[7, 2]])
    assert taken.rollouts.group_ids == [rows.rollouts.group_ids[7], rows.rollouts.group_ids[2]]
    scored = rr.Rollouts(
        **{
            **vars(rows.rollouts),
            "token_scores": {"critic": rows.rollouts.rewards},
            "penalties": rows.rollouts.rewards,
        }
    )
    some = scored.take([1])
    assert some.token_scores is not None
    assert torch.equal(some.token_scores["critic"], rows.rollouts.rewards[[1]])
    assert some.penalties is not None and some.entropies is None


def test_a_row_of_a_jagged_tensor_travels_without_the_batch() -> None:
    rows = torch.nested.as_nested_tensor([torch.arange(5000), torch.arange(3)], layout=torch.jagged).unbind()
    packed = pickle.dumps(parcel([rows[1]]), protocol=5)
    assert len(packed) < 1000
    assert torch.equal(unparcel(pickle.loads(packed))[0], torch.arange(3))


@pytest.mark.parametrize("top", [2**15 - 1, 2**15])
def test_whole_numbers_travel_in_two_bytes_where_they_fit(top: int) -> None:
    numbers = torch.tensor([[-1, 0] * 500, [3, top] * 500])
    arrived = sent(numbers)
    assert arrived.dtype == torch.int64 and torch.equal(arrived, numbers)
    assert (len(pickle.dumps(parcel(numbers), protocol=5)) < 5000) == (top < 2**15)
    assert sent(torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4)
    arrived[0] = 7


def test_what_arrives_can_be_written_to() -> None:
    arrived = sent((torch.zeros(3), None, {"a": torch.ones(2, dtype=torch.bool)}, ["text"]))
    arrived[0][0] = 1.0
    assert arrived[1] is None and arrived[2]["a"].dtype == torch.bool and arrived[3] == ["text"]
