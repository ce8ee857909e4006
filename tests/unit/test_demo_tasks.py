"""The demo's problems, reward, data set and shipped checkpoint."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import reasoning_gym
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from rredcot_plugin.demo import prepare_data
from rredcot_plugin.demo.reward import compute_score, extract_answer, parse_number, parse_numbers
from rredcot_plugin.demo.tasks import TASKS, MistakeRates, Problem, generate, is_hard_sum, solve, split_of
from rredcot_plugin.demo.train_reasoner import batches, make_examples, response_loss, train
from rredcot_plugin.tiny import CHECKPOINT, reasoner

ALWAYS_WRONG = MistakeRates(easy=1.0, hard=1.0)
SOMETIMES_WRONG = MistakeRates(easy=0.2, hard=0.4)
task_names = pytest.mark.parametrize("task", sorted(TASKS))


def gym_score(problem: Problem, answer: str) -> float:
    """The score reasoning-gym itself gives, 1.0 only for a right answer."""
    score = reasoning_gym.get_score_answer_fn(problem.task)
    if problem.task == "number_sorting":
        metadata = {"direction": problem.data[0]}
        return score(
            json.dumps(answer.split()), {"answer": json.dumps(problem.answer.split()), "metadata": metadata}
        )
    return score(answer, {"answer": problem.answer})


def demo_score(problem: Problem, response: str) -> float:
    return compute_score(f"rredcot_demo/{problem.task}", response, problem.answer)["score"]


# ---- problems and solutions


@task_names
def test_worked_solutions_are_right_by_the_gyms_scorer_and_ours(task: str) -> None:
    for problem in generate(task, "train", 200, seed=1):
        solution = solve(problem)
        assert solution.mistakes == 0
        assert solution.answer == problem.answer
        assert solution.text.splitlines()[-1] == f"#### {problem.answer}"
        assert gym_score(problem, solution.answer) == demo_score(problem, solution.text) == 1.0


@task_names
def test_a_single_mistake_makes_the_answer_wrong(task: str) -> None:
    rng = random.Random(0)
    solutions = [(p, solve(p, rng, SOMETIMES_WRONG)) for p in generate(task, "train", 400, seed=2)]
    slipped = [(problem, solution) for problem, solution in solutions if solution.mistakes == 1]
    assert len(slipped) > 50
    for problem, solution in slipped:
        assert solution.answer != problem.answer
        assert gym_score(problem, solution.answer) < 1.0
        assert demo_score(problem, solution.text) == 0.0


@task_names
def test_a_mistake_is_carried_into_the_next_step(task: str) -> None:
    """Each line continues from the state the line before left behind, right or wrong."""
    rng = random.Random(3)
    for problem in generate(task, "train", 200, seed=3):
        *steps, last = solve(problem, rng, ALWAYS_WRONG).text.splitlines()
        for before, after in itertools.pairwise(steps):
            if task == "chain_sum":
                assert after.split()[0] == before.split()[-1]
            else:
                assert sorted(after.replace("|", "").split()) == sorted(before.split("|")[1].split())
        if task == "chain_sum":
            assert last == f"#### {steps[-1].split()[-1]}"
        else:
            assert last.split()[1:-1] == [step.split()[0] for step in steps]


@task_names
def test_mistake_rates_are_met(task: str) -> None:
    problems = generate(task, "train", 300, seed=4)
    rng = random.Random(5)
    steps = sum(len(solve(p).text.splitlines()) - 1 for p in problems)
    mistakes = sum(solve(p, rng, MistakeRates(0.25, 0.25)).mistakes for p in problems)
    assert mistakes / steps == pytest.approx(0.25, abs=0.06)  # about 4 standard errors; ties cannot slip


@pytest.mark.parametrize(
    ("left", "right", "hard"),
    [
        (15, 7, True),
        (12, 7, False),
        (12, -7, True),
        (17, -2, False),
        (-12, 7, True),
        (-15, -7, True),
        (4, -11, True),
    ],
)
def test_carry_and_borrow(left: int, right: int, hard: bool) -> None:
    assert is_hard_sum(left, right) is hard


@given(st.integers(-300, 300), st.integers(-99, 99))
def test_forgotten_carry_is_ten_off(left: int, right: int) -> None:
    operator = "-" if right < 0 else "+"
    problem = Problem("chain_sum", "", str(left + right), (str(left), operator, str(abs(right))))
    wrong = int(solve(problem, random.Random(0), ALWAYS_WRONG).answer)
    assert wrong != left + right
    if is_hard_sum(left, right):
        assert abs(wrong - left - right) == 10
        assert abs(wrong) % 10 == abs(left + right) % 10 or (wrong < 0) != (left + right < 0)


@task_names
def test_same_seed_same_problems_and_no_duplicates(task: str) -> None:
    first, again, other = (generate(task, "train", 100, seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert len({problem.question for problem in first}) == 100


@task_names
def test_train_and_val_never_share_a_question_whatever_the_seeds(task: str) -> None:
    train_questions = {p.question for seed in (0, 1) for p in generate(task, "train", 300, seed)}
    val_questions = {p.question for seed in (0, 1) for p in generate(task, "val", 60, seed)}
    assert not train_questions & val_questions
    assert {split_of(question) for question in val_questions} == {"val"}


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"task: got 'chess'.*chain_sum"):
        generate("chess", "train", 1, 0)
    with pytest.raises(ValueError, match="split: got 'test'"):
        generate("chain_sum", "test", 1, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size: got -1"):
        generate("chain_sum", "train", -1, 0)
    assert generate("chain_sum", "val", 0, 0) == []


# ---- reward


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12 + 7 = 19\n#### 19", "19"),
        ("#### 3\nno, wait\n####19  \n\n", "19"),
        ("####\n\n  -4\nand more", "-4"),
        ("19", None),
        ("", None),
        ("####", None),
        ("#### \t\n ", None),
        ("### 19", None),
        ("#### " + "1" * 257, None),
        ("#### ١٢", "١٢"),
    ],
)
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize("text", ["1019", "+1019", "1,019", "01019.0", " 1019. ", "1019.000"])
def test_notations_of_one_number(text: str) -> None:
    assert parse_number(text) == 1019


@pytest.mark.parametrize(
    "text", ["", "-", "1e3", "0x1f", "10,19", "1 019", "nan", "inf", "19 or 20", "١٩", "1_0", "--1"]
)
def test_not_a_number(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["3 19 25", "3, 19, 25", "[3, 19, 25]", "['3', '19', \"25\"]", "( 3,19 ,25 )"])
def test_notations_of_one_list(text: str) -> None:
    assert parse_numbers(text) == [3, 19, 25]


@pytest.mark.parametrize("text", ["", "[]", "[3, 19, 25", "3,, 19", "3 19 x", "[[3]]", "3 | 19"])
def test_not_a_list(text: str) -> None:
    assert parse_numbers(text) is None


@pytest.mark.parametrize(
    ("task", "answer", "truth", "score"),
    [
        ("chain_sum", "-10", "-10", 1.0),
        ("chain_sum", "\N{MINUS SIGN}10", "-10", 1.0),
        ("chain_sum", "10", "-10", 0.0),
        ("chain_sum", "-10 -9 -8", "-10", 0.0),
        ("number_sorting", "11 12 30", "11 12 30", 1.0),
        ("number_sorting", "12 11 30", "11 12 30", 0.0),
        ("number_sorting", "11 12 31", "11 12 30", 0.0),
        ("number_sorting", "11 12", "11 12 30", 0.0),
        ("number_sorting", "11 12 30 30", "11 12 30", 0.0),
    ],
)
def test_only_the_whole_right_answer_scores(task: str, answer: str, truth: str, score: float) -> None:
    expected = {"score": score, "acc": score}
    assert compute_score(f"rredcot_demo/{task}", f"#### {answer}", truth, {"num_turns": 1}, extra=1) == expected


@task_names
@settings(max_examples=200)
@given(
    body=st.text(),
    answer=st.text(alphabet=st.one_of(st.sampled_from("#0123456789-+., []'\n"), st.characters())),
)
def test_nothing_a_model_writes_raises(task: str, body: str, answer: str) -> None:
    truth = {"chain_sum": "1", "number_sorting": "1 2"}[task]
    assert compute_score(task, f"{body}####{answer}", truth)["score"] in (0.0, 1.0)


@task_names
@pytest.mark.parametrize(
    "junk", ["#" * 10**6, "#### " + "9" * 10**6, "####" + "[" * 10**6, "#### " + " ,\n" * 10**6]
)
def test_huge_responses_score_zero_from_a_thread(task: str, junk: str) -> None:
    truth = {"chain_sum": "1", "number_sorting": "1 2"}[task]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(compute_score, task, junk, truth).result() == {"score": 0.0, "acc": 0.0}


def test_mistakes_in_the_data_are_loud() -> None:
    with pytest.raises(ValueError, match="data_source: got 'openai/gsm8k'"):
        compute_score("openai/gsm8k", "#### 1", "1")
    with pytest.raises(ValueError, match="ground_truth: got 'one'"):
        compute_score("chain_sum", "#### 1", "one")


def test_verl_loads_the_reward_by_path() -> None:
    import_utils = import_module("verl.utils.import_utils")
    path = str(Path(prepare_data.__file__).with_name("reward.py"))
    loaded: Callable[..., dict[str, float]] = import_utils.load_extern_object(path, "compute_score")
    assert loaded(data_source="rredcot_demo/chain_sum", solution_str="#### 5", ground_truth="5")["score"] == 1.0


# ---- data set


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


# ---- reasoner


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The reasoner is too small to gain from threads, and its sums are reproducible with one only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
