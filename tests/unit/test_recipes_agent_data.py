"""recipes/agent: the data of both scripts, and dialogues for the warm-up that are token for token those of verl's loop."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.agent_recipe import AGENT, agent  # noqa: F401  fixture
from tests.unit.recipe_scripts import load


def prepare(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(AGENT / "prepare_data.py"), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_word_problems_are_made_and_apart(tmp_path: Path) -> None:
    arguments = ("--source", "word-problems", "--max-rows", "80", "--val-size", "16", "--seed", "3")
    for folder in ("a", "b"):
        done = prepare(tmp_path / folder, *arguments)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a/checksums.txt").read_text() == (tmp_path / "b/checksums.txt").read_text()
    train, val = (pd.read_parquet(tmp_path / f"a/{split}.parquet") for split in ("train", "val"))
    asked = [message[0]["content"] for frame in (train, val) for message in frame["prompt"]]
    assert (len(train), len(val), len(set(asked))) == (64, 16, 80)
    reward = load(AGENT / "reward.py", "agent_reward_of_data")
    for row in val.to_dict("records"):
        truth = row["reward_model"]["ground_truth"]
        assert reward.compute_score(row["data_source"], row["extra_info"]["solution"], truth)["score"] == 1.0
        assert row["ability"] == "agent" and row["extra_info"]["question"] == row["prompt"][0]["content"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--eval", "math500"), "--exclude, --eval"), (("--max-rows", "8", "--val-size", "9"), "--max-rows 8")],
)
def test_what_word_problems_do_not_have_is_said(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = prepare(tmp_path / "out", "--source", "word-problems", *arguments)
    assert done.returncode in (1, 2) and message in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_sample_goes_the_way_of_the_mathematical_recipe(tmp_path: Path) -> None:
    done = prepare(tmp_path, "--source", str(AGENT / "sample.jsonl"), "--val-size", "4")
    assert done.returncode == 0, done.stderr
    train = pd.read_parquet(tmp_path / "train.parquet")
    lines = [json.loads(line) for line in (AGENT / "sample.jsonl").read_text().splitlines()]
    answers = {line["question"]: line["answer"] for line in lines}
    assert len(train) == len(answers) - 4
    reward = load(AGENT / "reward.py", "agent_reward_of_sample")
    for row in train.to_dict("records"):
        info, truth = row["extra_info"], row["reward_model"]["ground_truth"]
        assert truth == answers[info["question"]]
        assert "run Python with the tool" in row["prompt"][0]["content"]
        assert reward.compute_score(row["data_source"], info["solution"], truth)["score"] == 1.0
    own = prepare(
        tmp_path / "own", "--source", str(AGENT / "sample.jsonl"), "--val-size", "4", "--instruction", "Go."
    )
    assert own.returncode == 0
    assert pd.read_parquet(tmp_path / "own/train.parquet")["prompt"][0][0]["content"].endswith("Go.")


def test_mistakes_are_as_frequent_as_asked_and_are_carried_on(agent: Any) -> None:
    words = agent("word_problems")
    problems = list(words.generate(400, 0))
    right = [words.work(problem, random.Random(1), words.NO_MISTAKES) for problem in problems]
    assert all(said[-1] == f"#### {problem.answer}" for said, problem in zip(right, problems, strict=True))
    assert {len(said) for said in right} == {3, 5}
    rng = random.Random(2)
    slipped = [words.work(problem, rng, words.MistakeRates(0.2, 0.2, 0.2)) for problem in problems]
    wrong = sum(said[-1] != f"#### {p.answer}" for said, p in zip(slipped, problems, strict=True)) / 400
    assert 0.5 < wrong < 0.85
    for said in slipped:
        for expression, result in zip(said[:-1:2], said[1:-1:2], strict=True):
            assert agent("arithmetic").calculate(expression) == result
    assert {len(said) for said in slipped} == {1, 3, 5}


def test_the_questions_of_the_warm_up_are_not_those_of_training(agent: Any) -> None:
    words, seeds = agent("word_problems"), (agent("warm_up").DATA_SEED, 0)
    first, second = ({p.question for p in words.generate(500, seed)} for seed in seeds)
    assert len(first & second) < 10


def test_a_dialogue_is_what_verls_loop_would_have_put_together(agent: Any) -> None:
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    dialogue, words = agent("tool_dialogue"), agent("word_problems")
    tokenizer = dialogue.build_tokenizer()
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen3")
    problem = next(p for p in words.generate(50, 0) if len(p.operations) == 2)
    said = words.work(problem, random.Random(0), words.NO_MISTAKES)
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem.question}]
    tokens = list(builder.build_initial_tokens(messages))
    mask = [False] * len(tokens)
    for turn, text in enumerate(said):
        if turn % 2:
            before, messages = list(messages), [*messages, {"role": "tool", "content": text}]
            tokens = builder.merge_context_tokens(before, messages, tokens).token_ids
            mask += [False] * (len(tokens) - len(mask))
            continue
        last = turn == len(said) - 1
        own = tokenizer.encode((text if last else dialogue.call(text)) + tokenizer.eos_token)
        tokens = builder.merge_assistant_tokens(tokens, own).token_ids
        mask += [True] * len(own)
        _, calls = asyncio.run(ToolParser.get_tool_parser("hermes", tokenizer).extract_tool_calls(own))
        assert [json.loads(call.arguments) for call in calls] == ([] if last else [{"expression": text}])
        messages = [*messages, {"role": "assistant", "content": text}]
    ids, labels = dialogue.encode(tokenizer, problem.question, said)
    assert ids == tokens
    assert [label != dialogue.IGNORED for label in labels] == mask
    assert [i for i, own in zip(ids, mask, strict=True) if own] == [x for x in labels if x != dialogue.IGNORED]


def test_every_dialogue_fits_the_script(agent: Any) -> None:
    warm_up = agent("warm_up")
    examples = warm_up.make_examples(warm_up.build_tokenizer(), 300, 0, warm_up.NO_MISTAKES)
    starts = [next(i for i, label in enumerate(labels) if label >= 0) for _, labels in examples]
    assert max(starts) <= 72
    assert max(len(ids) - start for (ids, _), start in zip(examples, starts, strict=True)) <= 96


def test_a_warm_up_leaves_a_whole_model_or_none(agent: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "models" / "tiny"
    agent("warm_up").main(["--out", str(out), "--steps", "4", "--batch-size", "2"])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert len(tokenizer.encode("<tool_call>")) == 1
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]
