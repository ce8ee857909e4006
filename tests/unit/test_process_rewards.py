"""What a reward function says of parts of a response lands on the tokens of these parts, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

import rredcot_plugin as rr
from rredcot_plugin.adapter.process_rewards import moved, moves, parse
from rredcot_plugin.adapter.prompted_rollouts import Output, PromptedRollouts
from rredcot_plugin.integrations.openrlhf.earned import shown_by
from rredcot_plugin.text.alignment import TokenBytes
from tests.unit.test_alignment_families import FAMILIES
from tests.unit.test_group_work import TABLE, TOKENIZER, bare_rows, in_parts, work


def row_of(*texts: str, masked: tuple[int, ...] = (), told: Any = None) -> PromptedRollouts:
    """One response; of several texts, a session with an output for each."""
    parts = [torch.tensor(TOKENIZER(text)["input_ids"]) for text in texts]
    gap = torch.zeros(1, dtype=torch.int64)
    ids = torch.cat([piece for part in parts for piece in (part, gap)][:-1])
    mask = torch.ones_like(ids).bool()
    starts = np.cumsum([0, *(len(part) + 1 for part in parts)])[:-1].tolist()
    for column in [*(start - 1 for start in starts[1:]), *masked]:
        mask[column] = False
    rewards = torch.zeros(1, len(ids))
    rewards[0, -1] = 1.0
    prompt = torch.tensor([1])
    outputs = [Output(prompt, start, len(part)) for start, part in zip(starts, parts, strict=True)]
    rollouts = rr.Rollouts(ids[None], mask[None], rewards, ["a"])
    whole = [outputs] if len(texts) > 1 else None
    return PromptedRollouts(rollouts, [prompt], [""], [len(ids)], whole, [told])


def written(rows: PromptedRollouts, added: torch.Tensor | None) -> dict[str, float]:
    """What was added where, by the text of the row up to there."""
    assert added is not None
    return {
        TOKENIZER.decode(rows.token_ids[0, : column + 1], skip_special_tokens=True): float(added[0, column])
        for column in added[0].nonzero().flatten().tolist()
    }


TEXT = "1 + 2 = 3\n3 + 4 = 7\n#### 7"


def test_rewards_go_from_the_end_to_the_characters_that_earned_them() -> None:
    rows = row_of(TEXT, told=[[9, 0.25], [19, 0.5]])
    added, unread = moves(rows, TABLE)
    assert written(rows, added) == {TEXT[:9]: 0.25, TEXT[:19]: 0.5, TEXT: -0.75} and unread == 0
    assert float(moved(rows, added).rollouts.outcomes) == pytest.approx(1.0)
    assert moved(rows, None) is rows


def test_json_says_the_same() -> None:
    said = [[9, 0.25], [19, 0.5]]
    as_text, as_list = (moves(row_of(TEXT, told=told), TABLE)[0] for told in (json.dumps(said), said))
    assert as_text is not None and as_list is not None and torch.equal(as_text, as_list)


def test_special_tokens_are_no_characters() -> None:
    end = TOKENIZER.eos_token
    rows = row_of(f"1 + 2 = 3\n{end}3 + 4 = 7\n#### 7{end}", told=[[19, 0.5]])
    added, _ = moves(rows, TABLE)
    assert written(rows, added) == {TEXT[:19]: 0.5, TEXT: -0.5}


def test_what_a_tool_wrote_counts_for_the_tokens_before_it() -> None:
    ids = TOKENIZER(TEXT)["input_ids"]
    starts = TABLE.shown_starts(np.array(ids)).tolist()
    tool = tuple(i for i, start in enumerate(starts) if 10 <= start < 20)
    rows = row_of(TEXT, masked=tool, told=[[19, 0.5]])
    added, _ = moves(rows, TABLE)
    assert written(rows, added) == {TEXT[:10]: 0.5, TEXT: -0.5}


def test_of_a_session_the_last_output_is_meant() -> None:
    rows = row_of("9 + 9 = 18\n", TEXT, told=[[9, 0.25]])
    added, _ = moves(rows, TABLE)
    assert added is not None and sorted(added[0][added[0] != 0].tolist()) == [-0.25, 0.25]
    last = rows.outputs_of(0)[-1]
    column = int((added[0] > 0).nonzero())
    assert TOKENIZER.decode(rows.token_ids[0, last.start : column + 1]) == TEXT[:9]


def test_an_end_beyond_the_text_is_the_end() -> None:
    for end in (len(TEXT), len(TEXT) + 1, 10**30):
        assert moves(row_of(TEXT, told=[[end, 0.5]]), TABLE) == (None, 0)


NONSENSE: list[Any] = [
    "no JSON", "[" * 100_000, "3", '"text"', '{"9": 1}', "[[9]]", b"\xff", 3.0, {"a": 1}, [9, 0.5], [["x", 1.0]], [[None, None]],
    [[9, float("nan")]], [[9, float("inf")]], [[float("inf"), 1.0]], [[0, 1.0]], [[-3, 1.0]], [[9, "much"]], [[9, 10**400]],
    np.array(0.5), ["12"], [b"12"],
]  # fmt: skip


@pytest.mark.parametrize("said", NONSENSE, ids=lambda said: repr(said)[:20])
def test_nonsense_is_counted_and_moves_nothing(said: Any) -> None:
    assert moves(row_of(TEXT, told=said), TABLE) == (None, 1)


def test_what_can_be_read_counts_beside_nonsense() -> None:
    assert parse([[9, 0.5], "x", [19, 0.25]]) == ([(9, 0.5), (19, 0.25)], False)
    assert parse(None) == ([], True) and parse([]) == ([], True)


def test_sums_that_no_number_holds_move_nothing() -> None:
    assert moves(row_of(TEXT, told=[[9, 3e38]] * 4), TABLE) == (None, 1)


def test_a_response_without_a_token_of_the_model_has_no_place_for_them() -> None:
    rows = row_of("12", masked=(0, 1), told=[[1, 0.5]])
    assert not rows.rollouts.response_mask.any()
    assert moves(rows, TABLE) == (None, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_starts_are_those_of_the_text_that_a_reward_function_gets(family: str) -> None:
    """Slow reference: the text of the tokens up to each one, by the tokenizer's own decoder."""
    tokenizer = FAMILIES[family]()
    table, rng = TokenBytes.from_tokenizer(tokenizer), random.Random(0)
    for _ in range(20):
        ids = tokenizer("so 12 + 7 = 19, then\n#### 19", add_special_tokens=False)["input_ids"]
        for special in tokenizer.all_special_ids[:3]:
            ids.insert(rng.randint(0, len(ids)), special)
        starts = table.shown_starts(np.array(ids))
        for place in range(len(ids)):
            assert starts[place] == len(shown(tokenizer, ids[:place])), (ids, place)


@pytest.mark.parametrize("family", FAMILIES)
def test_behind_a_prompt_the_first_token_keeps_its_space(family: str) -> None:
    """OpenRLHF decodes prompt and response together; decoders of SentencePiece drop the space that begins a text."""
    tokenizer = FAMILIES[family]()
    table = shown_by(TokenBytes.from_tokenizer(tokenizer))
    prompt = tokenizer("so 12", add_special_tokens=False)["input_ids"]
    ids = tokenizer("then 19\n#### 19", add_special_tokens=False)["input_ids"]
    before = len(tokenizer.decode(prompt, clean_up_tokenization_spaces=False))
    for place in range(len(ids)):
        expected = len(tokenizer.decode(prompt + ids[:place], clean_up_tokenization_spaces=False)) - before
        assert table.shown_starts(np.array(ids))[place] == expected, place


@pytest.mark.parametrize("family", ["byte_level", "demo", "unigram_first"])
def test_broken_characters_are_as_many_as_in_the_text_that_a_reward_function_gets(family: str) -> None:
    tokenizer = FAMILIES[family]()
    table, rng = TokenBytes.from_tokenizer(tokenizer), random.Random(0)
    whole = tokenizer("😀 é 日本 a\n", add_special_tokens=False)["input_ids"]
    for _ in range(100):
        ids = [token for token in whole * 3 if rng.random() < 0.7]
        text, starts = shown(tokenizer, ids), table.shown_starts(np.array(ids, dtype=np.int64))
        for place in range(len(ids)):
            before = shown(tokenizer, ids[:place])
            if before + shown(tokenizer, ids[place:]) == text:  # no character goes across
                assert starts[place] == len(before), (ids, place)


def shown(tokenizer: Any, ids: list[int]) -> str:
    """What verl's reward managers decode."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def told_rows(seed: int = 0) -> PromptedRollouts:
    """Rows of which most say what their lines earned, each in its own way."""
    rows, generator = bare_rows(seed=seed), random.Random(seed)
    told: list[Any] = []
    for row, length in enumerate(rows.lengths):
        text = TOKENIZER.decode(rows.token_ids[row, :length])
        said = [[end + 1, generator.choice([0.0, 0.25, -0.5])] for end, c in enumerate(text) if c == "\n"]
        told.append([None, json.dumps(said), said][row % 3])
    return dataclasses.replace(rows, told=told)


@pytest.mark.parametrize("options", [{}, {"turn_rewards": "redistribute"}], ids=["keep", "redistribute"])
def test_parts_of_a_batch_move_what_the_whole_moves(options: dict[str, Any]) -> None:
    rows, config = told_rows(), rr.RRedCoTConfig.from_mapping({"segmenter": "newline", **options})
    added, _ = moves(rows, TABLE)
    assert added is not None
    seen, _, _ = in_parts(rows, config, 3)
    whole = work(config)
    expected = whole.read(rows)
    assert seen.moved is not None and torch.equal(seen.moved, added) and torch.equal(added, expected.moved)
    assert torch.equal(seen.outcomes, expected.outcomes)
    assert whole.rows is not None and torch.equal(whole.rows.rollouts.rewards, rows.rollouts.rewards + added)
    kept = torch.allclose(seen.outcomes, rows.rollouts.outcomes, atol=1e-6)
    assert kept == (options.get("turn_rewards") == "redistribute")
    assert seen.metrics == expected.metrics and seen.metrics["rredcot/credit/process_rewards/mean"] > 0
