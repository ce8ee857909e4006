"""``siblings``: what other rollouts in the same state earned; states by actions, against a slow reference and by enumeration."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.values.actions import action_fingerprints
from rredcot_plugin.values.siblings import Shared
from tests.unit.agent_policy import AGENTS, CALL, random_agent
from tests.unit.test_exact_segments import BIASED, EXACT, AnyFit
from tests.unit.text_policy import TextPolicy, World, expected_gradient

Said = list[tuple[bool, str]]
"""(whether the model says it, what), one token after another."""


def call(**arguments: object) -> str:
    return f"<tool_call>{arguments}</tool_call>".replace("'", '"')


def rollouts_of(dialogues: list[Said], rewards: list[float], groups: list[object] | None = None) -> rr.Rollouts:
    """A column for each token."""
    width = max(map(len, dialogues))
    mask, paid = torch.zeros(len(dialogues), width).bool(), torch.zeros(len(dialogues), width)
    ids, texts, spans = torch.zeros(len(dialogues), width, dtype=torch.int64), [], []
    for row, said in enumerate(dialogues):
        mask[row, : len(said)] = torch.tensor([own for own, _ in said])
        ids[row, : len(said)] = torch.tensor([hash(word) % 9999 for _, word in said])
        paid[row, mask[row].nonzero()[-1]] = rewards[row]
        ends = torch.tensor([len(word) for _, word in said]).cumsum(0).tolist()
        spans.append([(end - len(word), end) for (own, word), end in zip(said, ends, strict=True) if own])
        texts.append("".join(word for _, word in said))
    return rr.Rollouts(ids, mask, paid, groups or [0] * len(dialogues), texts=texts, token_offsets=spans)


def done_before(said: Said, at: int) -> list[str]:
    """The slow reference: what was done and answered before token ``at``, as texts; calls as Python reads them."""
    found: list[str] = []
    while True:
        own = next((i for i, (mine, _) in enumerate(said) if not mine), len(said))
        spoken = "".join(word for _, word in said[: min(own, at)])
        made = [str(sorted(eval(part.split("</tool_call>")[0]).items())) for part in spoken.split("<tool_call>")[1:] if "</tool_call>" in part]  # fmt: skip
        again = next((i for i, (mine, _) in enumerate(said) if mine and i > own), len(said))
        if again > at or again == len(said):
            return found + made
        answer = "".join(word for _, word in said[own:again]).strip()
        found += [*(made or [spoken.strip()]), answer]
        said, at = said[again:], at - again


def random_dialogue(luck: random.Random) -> Said:
    said: Said = []
    for _ in range(luck.randint(1, 3)):
        for _ in range(luck.randint(0, 2)):
            said.append((True, luck.choice(["So. ", "Hm.\n"])))
        for _ in range(luck.randint(0, 2)):
            x, y = luck.randint(0, 1), luck.choice([True, False])
            text = f'{{"x": {x}, "y": 2}}' if y else f'{{ "y":2,\n"x":{x}}}'
            said += [(True, "<tool_call>"), (True, text), (True, "</tool_call>")]
        said.append((True, "."))
        said.append((False, luck.choice(["yes", " no\n"])))
    return said[: luck.randint(1, len(said))] if said[0][0] else said


def values_of(rollouts: rr.Rollouts, segments: rr.Segments, **options: object) -> torch.Tensor:
    found = rr.get_value_estimator("siblings", **options)(None, rollouts=rollouts, segments=segments)
    return torch.where(found.known[:, None], found.values, torch.nan)


@pytest.mark.parametrize("seed", range(8))
def test_states_and_values_as_a_slow_reference_finds_them(seed: int) -> None:
    luck = random.Random(seed)
    dialogues = [random_dialogue(luck) for _ in range(14)]
    groups: list[object] = ["a"] * 6 + ["b"] * 7 + ["alone"]
    rewards = [luck.choice([-1.0, 0.0, 0.5, 1.0]) for _ in dialogues]
    rollouts = rollouts_of(dialogues, rewards, groups)
    segments = rr.get_segmenter("fixed", tokens=1, max_segments=99)(rollouts)
    marks, found = action_fingerprints(rollouts, segments), values_of(rollouts, segments)
    told = [[tuple(done_before(said, at)) for at in segments.starts[row, : int(segments.num_segments[row])].tolist()] for row, said in enumerate(dialogues)]  # fmt: skip
    flat = [(marks[row, k].item(), state) for row, states in enumerate(told) for k, state in enumerate(states)]
    assert len(set(flat)) == len({mark for mark, _ in flat}) == len({state for _, state in flat}) > 3
    for row, states in enumerate(told):
        others = [j for j in range(14) if groups[j] == groups[row] and j != row]
        for k, state in enumerate(states):
            same = [rewards[j] for j in others if state in told[j]]
            mean = sum(rewards[j] for j in others) / max(1, len(others))
            expected = (sum(same) + mean) / (len(same) + 1) if others else float("nan")
            assert found[row, k].item() == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_prose_and_the_order_of_keys_make_no_other_state_and_arguments_and_answers_do() -> None:
    first = [(True, "I ask. "), (True, call(x=1, y=2)), (False, "42"), (True, "So.")]
    others = [
        [(True, call(y=2, x=1)), (False, "\n42 "), (True, "Ah.")],
        [(True, "I ask. "), (True, call(x=1, y=3)), (False, "42"), (True, "So.")],
        [(True, "I ask. "), (True, call(x=1, y=2)), (False, "41"), (True, "So.")],
        [(True, "I ask. "), (True, "no call"), (False, "42"), (True, "So.")],
    ]
    rollouts = rollouts_of([first, *others], [1.0, 0.0, 1.0, 1.0, 1.0])
    marks = action_fingerprints(rollouts, rr.get_segmenter("turn")(rollouts))[:, 1].tolist()
    assert marks[0] == marks[1] and len(set(marks)) == 4
    values = values_of(rollouts, rr.get_segmenter("turn")(rollouts))[:, 1]
    assert rr.get_value_estimator("siblings").reads_texts
    assert values.tolist() == pytest.approx([(0 + 3 / 4) / 2, (1 + 1) / 2, 3 / 4, 3 / 4, 3 / 4])
    segments, bare = (
        rr.get_segmenter("turn")(rollouts),
        dataclasses.replace(rollouts, texts=None, token_offsets=None),
    )
    assert not rr.get_value_estimator("siblings", by="tokens").reads_texts
    tokens = values_of(bare, segments, by="tokens")[:, 1]
    assert tokens[:2].tolist() == pytest.approx([3 / 4, 1]), "other words, another state"


def test_what_is_still_to_come_does_not_count() -> None:
    """A call counts once it has ended, and what a turn says once it was answered."""
    parts = [
        (True, "a"),
        (True, "<tool_call>"),
        (True, '{"x": 1}'),
        (True, "</tool_call>"),
        (False, "no"),
        (True, "b"),
    ]
    rollouts = rollouts_of([parts, parts[:3] + [(False, "no")] + parts[5:]], [0.0, 1.0])
    marks = action_fingerprints(rollouts, rr.get_segmenter("fixed", tokens=1, max_segments=9)(rollouts)).tolist()
    nothing = marks[0][0]
    assert marks[0][:4] == [nothing] * 4 and marks[1][:3] == [nothing] * 3
    assert len({nothing, marks[0][4], marks[1][3]}) == 3


def test_penalties_rewards_that_are_not_finite_and_empty_rows() -> None:
    said = [(True, "a"), (False, "no"), (True, "b")]
    rollouts = rollouts_of([said] * 4, [1.0, float("nan"), 0.0, 0.0])
    penalties = torch.zeros(4, 3)
    penalties[0, 0] = -0.5
    rewards = rollouts.rewards + penalties
    rollouts = dataclasses.replace(rollouts, penalties=penalties, rewards=rewards)
    segments = rr.get_segmenter("turn")(rollouts)
    assert values_of(rollouts, segments)[:, 1].tolist() == pytest.approx([0, 1 / 3, 1 / 2, 1 / 2])
    mask = rollouts.response_mask.clone()
    mask[3] = False
    spans = [*rollouts.token_offsets[:3], []]
    rollouts = dataclasses.replace(rollouts, response_mask=mask, token_offsets=spans)
    found = values_of(rollouts, rr.get_segmenter("turn")(rollouts))
    assert torch.isfinite(found[:3]).all() and found[3].isnan().all()
    with pytest.raises(ValueError, match="the rollouts have none"):
        values_of(dataclasses.replace(rollouts, texts=None, token_offsets=None), segments)
    with pytest.raises(ValueError, match="by='words': expected one of actions, tokens"):
        rr.get_value_estimator("siblings", by="words")


def with_calls(policy: TextPolicy) -> TextPolicy:
    """The same agent, whose calls are written as such: what it says before makes no other state."""

    def written(trace: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(call(x=1) if token == CALL else token for token in trace)

    choices = {written(prefix): written(tokens) for prefix, tokens in AGENTS.choices.items()}
    world = World([written(trace) for trace in AGENTS.traces], AGENTS.own, AGENTS.columns, choices)
    return dataclasses.replace(policy, world=world)


def off(policy: TextPolicy, size: int, **options: object) -> float:
    """‖E[ĝ] − g‖ / ‖g‖."""
    given = {"value_estimator": "siblings", "scale": "none", "calibrate": "none", "baseline": "value", **options}
    found = expected_gradient(policy, rr.RRedCoTConfig.from_mapping(given), size, AnyFit, [0, 3])
    return float((found - policy.exact_gradient).norm() / policy.exact_gradient.norm())


TURNS = {"segmenter": "turn"}
LINES = {"segmenter": "nested", "segmenter_kwargs": {"levels": ["turn", "newline"]}}


@pytest.mark.parametrize("by", ["actions", "tokens"])
@pytest.mark.parametrize("segmenter", [TURNS, LINES])
def test_the_gradient_is_exact(segmenter: dict, by: str) -> None:
    policy = with_calls(random_agent(0, paid=1.0))
    assert off(policy, 2, **segmenter, value_kwargs={"by": by}) < EXACT
    assert (
        off(policy, 2, **segmenter, value_kwargs={"by": by}, calibrate="outcome", baseline="least_variance")
        < EXACT
    )


def test_in_groups_of_three_too_where_states_are_shared_by_several() -> None:
    assert off(with_calls(random_agent(1)), 3, **TURNS) < EXACT


def test_with_the_own_outcome_it_would_be_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    from rredcot_plugin.values import same_state

    plain = same_state.shared

    def with_own(group, marks, row, outcomes, valid):
        found = plain(group, marks, row, outcomes, valid)
        return Shared(found.count + 1, found.total + outcomes[row])

    monkeypatch.setattr(same_state, "shared", with_own)
    assert off(with_calls(random_agent(0)), 2, **TURNS) > BIASED


def test_spans_may_stand_for_every_column() -> None:
    """As `Rollouts` has them: with padding on the left and a tool's answer between, nothing of a state changes."""
    said = [[(True, call(k=k)), (False, f"\n{k}\n"), (True, "so "), (True, f"#### {k}")] for k in (1, 2, 1, 2)]
    of_unmasked = rollouts_of(said, [1.0, 0.0, 1.0, 0.0])
    padding = [(0, 0)] * 3
    every = []
    for words in said:
        ends = torch.tensor([len(word) for _, word in words]).cumsum(0).tolist()
        every.append(padding + [(end - len(word), end) for (_, word), end in zip(words, ends, strict=True)])

    def left(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (len(padding), 0))

    of_columns = rr.Rollouts(
        left(of_unmasked.token_ids), left(of_unmasked.response_mask), left(of_unmasked.rewards), [0] * 4,
        texts=of_unmasked.texts, token_offsets=every,
    )  # fmt: skip
    found = []
    for rollouts in (of_unmasked, of_columns):
        segments = rr.get_segmenter("turn")(rollouts)
        found.append(action_fingerprints(rollouts, segments))
    assert torch.equal(*found) and len(found[0].unique()) > 2
