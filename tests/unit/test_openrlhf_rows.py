"""OpenRLHF's experiences as rollouts, and its command line; neither needs OpenRLHF."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rredcot_plugin.integrations.openrlhf.arguments import split_arguments
from rredcot_plugin.integrations.openrlhf.rows import (
    places_of,
    read_rows,
    response_numbers,
    right_answer,
    write_tokens,
)
from rredcot_plugin.integrations.openrlhf.train import environment_of_processes, main


def experience(**changed: object) -> SimpleNamespace:
    """Two rows: a prompt of two tokens and three actions; a prompt of one, an action, what a tool said, an action. A third
    has no action."""
    fields = {
        "sequences": torch.tensor([[1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 0, 0], [1, 2, 3, 0, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]),
        "action_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]),
        "action_log_probs": torch.tensor([[0, -1, -2, -3, 0], [-4, 0, -5, 0, 0], [0, 0, 0, 0, 0.0]]),
        "rollout_log_probs": None,
        "rewards": torch.tensor([1.0, 0.5, 7.0]),
        "index": [0, 1, 2],
        "labels": ["7", '{"answer": "8"}', "9"],
    }
    return SimpleNamespace(**{**fields, **changed})


def test_rows_have_their_tokens_masks_and_rewards() -> None:
    given = [experience(), experience(index=[3, 4, 5])]
    rows = read_rows(given, places_of(given), group_size=2)
    assert [prompt.tolist() for prompt in rows.prompts[:3]] == [[1, 2], [1], [1, 2, 3]]
    assert rows.lengths == [3, 3, 0] * 2
    rollouts = rows.rollouts
    assert rows.token_ids[:2].tolist() == [[3, 4, 5], [2, 3, 4]]
    assert rollouts.response_mask[:3].tolist() == [[True] * 3, [True, False, True], [False] * 3]
    assert rollouts.rewards[:3].tolist() == [
        [0, 0, 1],
        [0, 0, 0.5],
        [0, 0, 0],
    ]  # nothing earns the third one's reward
    assert list(rollouts.group_ids) == ["0", "0", "1", "1", "2", "2"]
    assert list(rollouts.ground_truths or []) == ["7", "8", "9"] * 2


def test_log_probs_of_the_engine_are_read_where_it_recorded_them() -> None:
    recorded = torch.tensor([[9, -1, float("nan"), -3, 9], [-4, -9, -5, 9, 9], [9, 9, 9, 9, 9]])
    given = [experience(rollout_log_probs=recorded)]
    rows = read_rows(given, places_of(given), group_size=2)
    assert rows.rollouts.log_probs is not None
    assert rows.rollouts.log_probs.tolist() == [[-1, 0, -3], [-4, 0, -5], [0, 0, 0]]
    given.append(experience())
    assert read_rows(given, places_of(given), group_size=2).rollouts.log_probs is None


def test_numbers_come_from_responses_and_go_back_there() -> None:
    given = [experience()]
    places = places_of(given)
    numbers = response_numbers([given[0].action_log_probs], places)
    assert numbers.tolist() == [[-1, -2, -3], [-4, 0, -5], [0, 0, 0]]
    write_tokens(given, places, "advantages", numbers)
    assert torch.equal(given[0].advantages, given[0].action_log_probs)


def test_rewards_that_are_not_there_yet_are_zero() -> None:
    given = [experience(rewards=None)]
    assert not read_rows(given, places_of(given), 3).rollouts.rewards.any()


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        ("[1, 2]", "[1, 2]"),
        ('{"x": 1}', None),
        ("{", "{"),
        (None, None),
        ({"answer": None, "ground_truth": "42"}, "42"),  # Arrow fills in what other rows have
        ('{"answer": null}', None),
        ('{"answer": 0}', "0"),
        pytest.param("[" * 100_000, "[" * 100_000, id="deeper than JSON is read"),
    ],
)
def test_right_answers(label: Any, answer: str | None) -> None:
    assert right_answer(label) == answer


def test_other_estimators_are_left_alone() -> None:
    words = ["--algo.advantage.estimator", "rloo", "--train.batch_size=64", "--data.apply_chat_template"]
    assert split_arguments(words).host == words
    assert split_arguments(words).estimator is None


def test_options_are_yaml_and_may_be_nested() -> None:
    words = ["--a", "1", "--algo.rredcot.lam=0.5", "--algo.advantage.estimator=rredcot"]
    words += ["--algo.rredcot.value_kwargs.max_proposals", "2", "--algo.rredcot.leave_one_out", "false"]
    found = split_arguments(words)
    assert found.host == ["--a", "1", "--algo.advantage.estimator", "flash_reinforce"]
    assert found.options == {"lam": 0.5, "value_kwargs": {"max_proposals": 2}, "leave_one_out": False}


@pytest.mark.parametrize(
    ("word", "value"),
    [("lam=5e-1", 0.5), ("clip=-2E+1", -20.0), ("value_kwargs={x: [1e-3]}", {"x": [0.001]}), ("bridge=1e3x", "1e3x"),
     ("terminator=--", "--"), ("terminator='---'", "---"), ("bridge=''", ""), ("dump_every=-1", -1)],
)  # fmt: skip
def test_values_are_read_as_those_of_other_flags(word: str, value: object) -> None:
    """YAML alone takes 5e-1 for text; what follows a sign is a value, dashes or not."""
    words = ["--algo.advantage.estimator", "rredcot", f"--algo.rredcot.{word}"]
    assert split_arguments(words).options == {word.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--algo.advantage.estimator", "red", "--algo.rredcot.bridge", ""],
            r"got nothing; an empty text is \"''\"",
        ),
        (
            ["--algo.rredcot.lam", "1"],
            "--algo.rredcot.lam: needs --algo.advantage.estimator rredcot, rredcot_ppo, red; got none",
        ),
        (["--algo.advantage.estimator", "rredcot", "--algo.rredcot.lam"], "--algo.rredcot.lam: expected a value"),
        (["--algo.advantage.estimator", "red", "--algo.rredcot.lam", "--x"], "expected a value after it, got --x"),
        (
            ["--algo.advantage.estimator", "rredcot", "--algo.rredcot.terminator", "}"],
            r"--algo\.rredcot\.terminator }: expected a value in YAML; .* \"'}'\"",
        ),
        (
            ["--algo.advantage.estimator", "rredcot", "--algo.rredcot.bridge", "**Answer**: "],
            "bridge .*: expected a value in YAML",
        ),
        (
            ["--algo.rredcot.segmenter", "newline", "--algo.rredcot.segmenter.tokens", "8"],
            r"--algo\.rredcot\.segmenter\.tokens: --algo\.rredcot\.segmenter has a value of its own already, 'newline'",
        ),
    ],
)
def test_what_does_not_go_together_is_named(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_arguments(words)


def test_variables_of_a_submitted_job_are_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray job submit --runtime-env-json`; Ray refuses a variable that is given twice."""
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.setenv("RREDCOT_TASK", "math")
    assert environment_of_processes()["RREDCOT_TASK"] == "math"
    job = {"runtime_env": {"env_vars": {"RREDCOT_TASK": "math", "NCCL_DEBUG": "INFO"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert not {"RREDCOT_TASK", "NCCL_DEBUG"} & set(environment_of_processes())
    assert environment_of_processes()["TOKENIZERS_PARALLELISM"] == "true"


def test_without_openrlhf_help_is_that_of_our_own_flags(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    said = capsys.readouterr().out
    assert "--algo.advantage.estimator rredcot " in said
    assert said.endswith("openrlhf is not installed in this environment, so its flags are not shown.\n")


@pytest.mark.parametrize("words", ["", "--algo.advantage.estimator rredcot", "--algo.advantage.estimater rredcot"])
def test_without_openrlhf_it_says_what_to_install(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rredcot_plugin.integrations.openrlhf.train.start_ray", lambda: pytest.fail("starts Ray"))
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: openrlhf is not installed in this environment: it needs openrlhf==0.11.2\n"
    )
