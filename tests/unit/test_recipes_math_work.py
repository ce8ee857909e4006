"""recipes/math: answers that leave the work to math-verify, lists of hundreds, units, tiny numbers, and slow moments."""

from __future__ import annotations

import json

import pytest

from tests.unit.math_recipe import MATH
from tests.unit.recipe_scripts import load

reward = load(MATH / "reward.py", "reward")
SAMPLE = [json.loads(line) for line in (MATH / "sample.jsonl").read_text("utf-8").splitlines()]


def score(answer: str, truth: str, question: str = "") -> float:
    return reward.compute_score("any", f"It is $\\boxed{{{answer}}}$.", truth, {"question": question})["score"]


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\sum_{k=1}^{100} k^2", "338350"),
        (r"\prod_{k=1}^{5} k", "120"),
        (r"\int_0^1 x^2 dx", r"\frac{1}{3}"),
        (r"\gcd(12, 18)", "6"),
        (r"2^{10} \mod 7", "2"),
        (r"\lim_{x\to 0} \frac{\sin x}{x}", "1"),
        (r"\max(4, 5)", "5"),
        (r"\frac{d}{dx} x^2", "2x"),
        ("5!", "120"),
    ],
)
def test_what_is_still_to_be_worked_out_is_no_answer(answer: str, truth: str) -> None:
    assert score(answer, truth) == 0.0
    assert score(truth, truth) == 1.0
    assert score(answer, answer) == 1.0, "where the ground truth has it, it is the answer"


@pytest.mark.parametrize("answer", [r"\frac{d}{2}", r"\arctan 2", "x != 5"])
def test_what_only_looks_like_it_is_an_answer(answer: str) -> None:
    assert not reward.leaves_the_work(r"\text{another}", answer, "")


@pytest.mark.parametrize(
    ("answer", "truth", "question", "expected"),
    [
        (r"\frac{18}{24}", r"\frac{3}{4}", r"Write $\frac{18}{24}$ in lowest terms.", 0.0),
        (r"\sqrt{50} - \sqrt{8}", r"3\sqrt{2}", r"Compute $\sqrt{50} - \sqrt{8}$.", 0.0),
        ("x^2 - 9", "(x-3)(x+3)", "Factor completely: $x^2-9$", 0.0),
        (r"\frac{3}{4}", "3/4", r"Which is larger, $\frac{3}{4}$ or $\frac{2}{3}$?", 1.0),
        ("3/4", r"\frac{3}{4}", "Which is larger, 3/4 or 2/3?", 1.0),
        ("-3", "-3", "Is x = -3 or x = 3 a solution?", 1.0),
        ("x^2", "x \\cdot x", "Expand $x^2y$ for y = 1.", 1.0),
    ],
)
def test_an_expression_of_the_question_is_no_answer(
    answer: str, truth: str, question: str, expected: float
) -> None:
    assert score(answer, truth, question) == expected


def test_no_expression_of_a_question_of_the_sample_is_its_answer() -> None:
    for row in SAMPLE:
        question, answer = str(row["question"]), str(row["answer"])
        for part in question.split("$")[1::2]:
            if reward.normalise(part) != reward.normalise(answer):
                assert score(part, answer, question) == 0.0, (part, answer)
        assert score(answer, answer, question) == 1.0


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("200, 100", "100, 200", 1.0),
        ("300, 200, 100", "100, 200, 300", 1.0),
        ("100200", "100, 200", 0.0),
        ("5, 125", "5125", 0.0),
        ("5,125", "5125", 1.0),
        ("5{,}125", "5125", 1.0),
        (r"5,\!125", "5125", 1.0),
        ("(100,200)", "(100, 200)", 1.0),
    ],
)
def test_a_comma_and_a_space_name_two_numbers(answer: str, truth: str, expected: float) -> None:
    assert score(answer, truth) == expected


def test_boxes_that_are_joined_are_a_list() -> None:
    text = r"\boxed{200} and \boxed{100}"
    assert reward.compute_score("any", text, "100, 200")["score"] == 1.0


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("5 dollars", "5", 1.0),
        ("72 clips", "72", 1.0),
        ("1,000 square meters", "1000", 1.0),
        ("6 dollars", "5", 0.0),
        ("5 million", "5", 0.0),
        ("5 hundred dollars", "5", 0.0),
        ("5 thirds", "5", 0.0),
        ("5 or more", "5", 0.0),
        ("5 twenty", "5", 0.0),
    ],
)
def test_a_unit_in_plain_words(answer: str, truth: str, expected: float) -> None:
    assert score(answer, truth) == expected
    assert reward.compute_score("any", f"#### {answer}", truth)["score"] == expected


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("0.000000049", r"1.6\times 10^{-9}", 0.0),
        (r"1.6 \cdot 10^{-9}", r"1.6\times 10^{-9}", 1.0),
        ("0.0", "2^{-30}", 0.0),
        ("0.00000007151", r"\frac{1}{13983816}", 1.0),
        ("10^{-20}", r"6.626\times 10^{-34}", 0.0),
        ("0.0000001", "0", 0.0),
        (r"\sin(\pi)", "0", 1.0),
    ],
)
def test_tiny_numbers_are_compared_by_their_ratio(answer: str, truth: str, expected: float) -> None:
    assert score(answer, truth) == expected


def test_a_slow_moment_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = r"\frac{123}{456}", r"\frac{41}{152}"
    with monkeypatch.context() as slow:
        slow.setattr(reward._pool(), "ask", lambda question, seconds: None)  # what a worker that was ended says
        assert score(*pair) == 0.0 and not reward.is_parsable(r"\frac{77}{3}")
    assert score(*pair) == 1.0 and reward.is_parsable(r"\frac{77}{3}")
