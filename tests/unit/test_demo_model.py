"""The demo's data files, its checkpoint and its training."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rredcot_plugin.demo import prepare_data
from rredcot_plugin.demo.reward import compute_score
from rredcot_plugin.demo.tasks import generate, solve
from rredcot_plugin.demo.train_reasoner import batches, make_examples, response_loss, train
from rredcot_plugin.tiny import CHECKPOINT, reasoner
from tests.unit.demo_scores import (
    SOMETIMES_WRONG,
    demo_score,
    one_thread,  # noqa: F401  fixtures
    task_names,
)


def test_verl_loads_the_reward_by_path() -> None:
    import_utils = import_module("verl.utils.import_utils")
    path = str(Path(prepare_data.__file__).with_name("reward.py"))
    loaded: Callable[..., dict[str, float]] = import_utils.load_extern_object(path, "compute_score")
    assert loaded(data_source="rredcot_demo/chain_sum", solution_str="#### 5", ground_truth="5")["score"] == 1.0


def test_parquet_files_have_verls_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_data.main([str(tmp_path / "new"), "--train-size", "11", "--val-size", "4", "--seed", "3"])
    report = capsys.readouterr().out
    frame = pd.read_parquet(tmp_path / "new" / "train.parquet")
    assert list(frame.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert len(frame) == 11 and len(pd.read_parquet(tmp_path / "new" / "val.parquet")) == 4
    assert report.count("sha256") == 2 and "chain_sum 6, number_sorting 5" in report
    for i, row in enumerate(frame.to_dict("records")):
        assert [message["role"] for message in row["prompt"]] == ["user"]
        assert row["reward_model"]["style"] == "rule"
        assert row["extra_info"]["index"] == i and row["extra_info"]["split"] == "train"
        truth = row["reward_model"]["ground_truth"]
        assert compute_score(row["data_source"], row["extra_info"]["solution"], truth)["score"] == 1.0


def test_rows_and_checksum_follow_the_seed() -> None:
    same = [prepare_data.checksum(prepare_data.make_rows("val", 10, 0, ["chain_sum"])) for _ in range(2)]
    other = prepare_data.checksum(prepare_data.make_rows("val", 10, 1, ["chain_sum"]))
    assert same[0] == same[1] != other
    with pytest.raises(ValueError, match="tasks: got none"):
        prepare_data.make_rows("val", 10, 0, [])


@pytest.fixture(scope="module")
def checkpoint() -> tuple[AutoModelForCausalLM, AutoTokenizer]:
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    return model, AutoTokenizer.from_pretrained(CHECKPOINT)


def test_shipped_checkpoint_is_small_and_float32(checkpoint) -> None:
    model, tokenizer = checkpoint
    assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*")) <= 10 * 2**20
    assert 1_000_000 <= model.num_parameters() <= 3_000_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.model_type == "qwen3" and model.config.max_position_embeddings >= 512
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.is_fast and len(tokenizer) == model.config.vocab_size


def test_shipped_tokenizer_has_one_token_per_byte_and_the_built_template(checkpoint) -> None:
    _, tokenizer = checkpoint
    text = "Wait, 3 - 5 = \N{MINUS SIGN}2 \N{SLIGHTLY SMILING FACE}\n\n####  -2"
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert len(encoded["input_ids"]) == len(text.encode())
    assert tokenizer.decode(encoded["input_ids"]) == text
    assert encoded["offset_mapping"][:3] == [(0, 1), (1, 2), (2, 3)]
    built = reasoner.prompt_text(reasoner.build_tokenizer(), "1 + 1 =")
    assert reasoner.prompt_text(tokenizer, "1 + 1 =") == built
    assert built == "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n"


@task_names
def test_prompts_and_solutions_fit(task: str, checkpoint) -> None:
    _, tokenizer = checkpoint
    rng = random.Random(0)
    for problem in generate(task, "train", 500, seed=11):
        prompt = tokenizer.encode(reasoner.prompt_text(tokenizer, problem.question))
        solution = solve(problem, rng, SOMETIMES_WRONG).text + tokenizer.eos_token
        assert len(prompt) <= reasoner.MAX_PROMPT_TOKENS
        assert len(tokenizer.encode(solution)) <= reasoner.MAX_RESPONSE_TOKENS


@task_names
def test_shipped_reasoner_is_good_when_greedy_and_mediocre_when_sampled(task: str, checkpoint) -> None:
    model, tokenizer = checkpoint
    torch.manual_seed(0)
    problems = generate(task, "val", 48, seed=12)
    questions = [problem.question for problem in problems]
    accuracy = {}
    for temperature in (0.0, 1.0):
        responses = reasoner.respond(model, tokenizer, questions, temperature)
        scores = [demo_score(problem, text) for problem, text in zip(problems, responses, strict=True)]
        accuracy[temperature] = sum(scores) / len(scores)
    assert 0.2 <= accuracy[1.0] <= 0.7  # measured 0.3 to 0.6 on many questions; this is a small sample
    assert accuracy[0.0] > accuracy[1.0] + 0.1


def test_training_lowers_the_loss_of_responses_only_and_is_reproducible() -> None:
    tokenizer = reasoner.build_tokenizer()
    examples = make_examples(tokenizer, 8, seed=0)
    start = examples[0][1]
    assert tokenizer.decode(examples[0][0][:start]).endswith("assistant\n")
    assert examples[0][0][-1] == tokenizer.eos_token_id
    cut = list(batches(examples, 3, seed=0))
    assert sorted(example[0] for batch in cut for example in batch) == sorted(ids for ids, _ in examples)
    losses = []
    for _ in range(2):
        model = reasoner.build_model(tokenizer, seed=0)
        before = response_loss(model, examples).item()
        train(model, [examples] * 2, peak_lr=1e-3)
        losses.append(response_loss(model, examples).item())
        assert losses[-1] < before
    assert losses[0] == losses[1]
