"""The demo's problems, reward, data set and shipped checkpoint."""

from __future__ import annotations

import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import reasoning_gym
from hypothesis import given, settings
from hypothesis import strategies as st

from rredcot_plugin.demo.reward import compute_score, extract_answer, parse_number, parse_numbers
from rredcot_plugin.demo.tasks import MistakeRates, Problem, generate, is_hard_sum, solve, split_of
from tests.unit.demo_scores import (
    SOMETIMES_WRONG,
    demo_score,
    one_thread,  # noqa: F401  fixtures
    task_names,
)

ALWAYS_WRONG = MistakeRates(easy=1.0, hard=1.0)


def gym_score(problem: Problem, answer: str) -> float:
    """The score reasoning-gym itself gives, 1.0 only for a right answer."""
    score = reasoning_gym.get_score_answer_fn(problem.task)
    if problem.task == "number_sorting":
        metadata = {"direction": problem.data[0]}
        return score(
            json.dumps(answer.split()), {"answer": json.dumps(problem.answer.split()), "metadata": metadata}
        )
    return score(answer, {"answer": problem.answer})


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
