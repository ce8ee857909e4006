"""What a dry run of a recipe for OpenRLHF says, up to the training, which `make dry-run` runs for every recipe."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.openrlhf import _score, check_sizes
from rredcot_plugin.dry_run.openrlhf_training import _by_flag, _forced, _kept
from rredcot_plugin.dry_run.trial import Trial
from rredcot_plugin.integrations import openrlhf_cpu

openrlhf_cpu.activate()

SCRIPT = Path(__file__).parents[2] / "recipes/openrlhf/run_qwen25_math_1p5b.sh"


def dry_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> Any:
    monkeypatch.chdir(tmp_path)  # where no data are, so that the sample is taken
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = [part for word in words for part in ("-O", word)]
    return CliRunner().invoke(app, ["dry-run", str(SCRIPT), "--steps", "0", *flags], env={"COLUMNS": "300"})


def test_everything_before_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = dry_run(monkeypatch, tmp_path)
    assert done.exit_code == 0, done.output
    for part in (
        "read by OpenRLHF 0.11.2's own parser",
        "rredcot: segmenter sentence, values support, lam 1",
        "1024 responses per step, 512 per update; 2 GPUs",
        "12 rows of sample.jsonl of the recipe",
        "the data's own solutions 1 (12 rows)",
        "12.3 GB per GPU: fits in 80 GB",
    ):
        assert part in done.output


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "--algo.rredcot.segmenterr=newline",
            "algorithm: unknown key 'segmenterr' in --algo.rredcot. Did you mean 'segmenter'?",
        ),
        ("--no_such_flag=1", "unrecognized arguments: --no_such_flag=1"),
        ("--train.batch_size=500", "is not a multiple of --train.batch_size 500"),
        ("--ds.tensor_parallel_size=2", ""),
        ("--actor.model_name_or_path=/nowhere", "--actor.model_name_or_path /nowhere: no such folder"),
        ("--data.prompt_dataset=", "--data.prompt_dataset: is not given"),
        ("--data.max_len=100000", "--train.max_tokens_per_gpu 16384: is less than --data.max_len 100000"),
        ("--reward.remote_url=nothing.py", "--reward.remote_url nothing.py"),
        ("--data.label_key=answr", "--data.label_key answr: a row of the data has "),
        ("--data.label_key=data_source", "expected a mapping with 'ground_truth'"),
        ("--data.prompt_dataset=x.parquet", ""),
    ],
)
def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, message: str) -> None:
    done = dry_run(monkeypatch, tmp_path, word)
    assert done.exit_code == (1 if message else 0)
    assert message in done.output


@pytest.mark.parametrize(
    ("words", "source"),
    [
        (
            [
                "--reward.remote_url=",
                "--algo.rredcot.value_estimator=confidence",
                "--algo.rredcot.value_kwargs={}",
            ],
            "--reward.model_name_or_path /rm",
        ),
        (["--reward.remote_url=http://judge:5000/score"], "--reward.remote_url http://judge:5000/score"),
    ],
)
def test_rewards_of_a_model_or_a_server_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], source: str
) -> None:
    done = dry_run(monkeypatch, tmp_path, *words, "--reward.model_name_or_path=/rm")
    assert done.exit_code == 0, done.output
    assert f"{source}: not tried here" in done.output and "training state" in done.output


def test_a_recipe_for_verl_says_that_verl_is_missing() -> None:
    script = SCRIPT.parents[1] / "math/run_qwen3_4b_fsdp2_vllm.sh"
    done = CliRunner().invoke(app, ["dry-run", str(script)], env={"COLUMNS": "300"})
    assert done.exit_code == 1
    assert "starts verl, which is not installed in this environment" in done.output


def test_an_explanation_follows_openrlhfs_own_flags() -> None:
    flags = ["-O", "--algo.advantage.no_std_norm"]
    done = CliRunner().invoke(app, ["explain", str(SCRIPT), *flags, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["options"]["scale"]["becomes"] == "none"
    assert found["options"]["scale"]["reason"] == "follows --algo.advantage.no_std_norm, which is given"
    assert found["options"]["segmenter_kwargs.max_response_tokens"]["value"] == 3072
    assert "in the log-prob pass" in found["costs"][0]


def test_an_explanation_of_an_agent_spreads_segments_over_the_whole_sequence() -> None:
    flags = [
        "-O",
        f"--train.agent_func_path={Path(__file__).with_name('two_turns.py')}",
        "-O",
        "--data.max_len=5000",
    ]
    done = CliRunner().invoke(app, ["explain", str(SCRIPT), *flags, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["options"]["segmenter_kwargs.max_response_tokens"]
    assert found["value"] == 5000
    assert "the longest response, --data.max_len, unless" in found["reason"]


def test_an_explanation_warns_as_that_of_verl() -> None:
    flags = ["--rollout.n_samples_per_prompt", "1", "--algo.advantage.lambd", "0.9", "--algo.rredcot.lam", "0.95",
             "--algo.rredcot.segmenter", "turn", "--algo.kl.init_coef", "0.01",
             "--actor.policy_loss_type", "gspo"]  # fmt: skip
    done = CliRunner().invoke(
        app, ["explain", str(SCRIPT), *itertools.chain(*(("-O", flag) for flag in flags)), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    siblings, theirs, loss, bias = found["warnings"]
    assert siblings.startswith("--rollout.n_samples_per_prompt 1 leaves no siblings")
    assert theirs.startswith("--algo.advantage.lambd 0.9 is OpenRLHF's own") and "--algo.rredcot.lam" in theirs
    assert loss.startswith("--actor.policy_loss_type gspo gives every token of a trace the mean of its advantages")
    assert bias.startswith("lam=0.95 uses values in place of what later segments earn")
    penalty, turns = found["notes"]
    assert "the penalty is not redistributed" in penalty
    assert "one in a run without --train.agent_func_path" in turns


REWARD = """
import torch
def reward_func(query, prompts, label):  # OpenRLHF gives them by position
    queries = query
    n = len(queries[0]) - len(prompts[0])
    return {"rewards": torch.ones(1), "extra_logs": {}, "process_rewards": SAID if n else [[]]}
"""


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("[[[n, 0.5]]]", ""),
        ("'[[1, 0.5]]'", ""),
        (
            "[[1, 0.5], [2, 0.5]]",
            "process_rewards: expected a list with one entry for each query, here one, got [[1, 0.5]",
        ),
        ("[[['a', 0.5]]]", "process_rewards: expected pairs of a character of the response, here at most"),
        ("[[[10 ** 6, 0.5]]]", "process_rewards: expected pairs of a character of the response, here at most"),
    ],
)
def test_process_rewards_are_read_as_in_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, message: str
) -> None:
    (tmp_path / "reward.py").write_text(REWARD.replace("SAID", said))
    done = dry_run(monkeypatch, tmp_path, "--reward.remote_url=reward.py")
    assert done.exit_code == (1 if message else 0), done.output
    assert message in done.output


SIZES = """
actor.num_nodes 1 actor.num_gpus_per_node 8 rollout.batch_size 64 rollout.n_samples_per_prompt 8 vllm.num_engines 8
vllm.tensor_parallel_size 1 ds.ring_attn_size 2 ds.tensor_parallel_size 1 train.batch_size 256 train.max_tokens_per_gpu 16384
train.dynamic_batch_enable 1 train.colocate_all 0 train.async_enable 0 data.max_len 32768
"""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"ds.ring_attn_size": 8, "train.batch_size": 4}, ""),
        ({"ds.ring_attn_size": 1}, "--train.max_tokens_per_gpu 16384: is less than --data.max_len 32768"),
        ({"data.max_len": 32769}, "--train.max_tokens_per_gpu 16384: is less than --data.max_len 32769 / 2, a GPU's share"),
        ({"train.batch_size": 2}, "--train.batch_size 2 is not a multiple of 4: 8 GPUs in groups of 2"),
    ],
)  # fmt: skip
def test_gpus_that_share_rows_hold_more_tokens_and_count_once(changed: dict[str, int], message: str) -> None:
    words = SIZES.split()
    config = importlib.import_module("openrlhf.utils.config")
    numbers = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    args = config.hierarchize(SimpleNamespace(**(numbers | changed)))
    if message:
        with pytest.raises(RecipeError, match=re.escape(message)):
            check_sizes(args)
    else:
        assert check_sizes(args).endswith("8 GPUs")


@pytest.mark.parametrize("returned", ["0.5", "torch.tensor(0.5)", "[0.5]", "torch.tensor([0.5])"])
def test_a_reward_may_be_what_openrlhf_takes(tmp_path: Path, returned: str) -> None:
    file = tmp_path / "reward.py"
    file.write_text(f"import torch\ndef reward_func(q, p, l):\n    return {{'rewards': {returned}}}\n")
    assert _score(file, None)({}, "x") == 0.5


def test_of_mixed_data_one_file_is_left_with_its_only_split() -> None:
    """OpenRLHF wants a probability for each file, and the split that the flag names."""
    flags = [["--data.prompt_probs", "0.5,0.5"], ["--data.prompt_split", "test"], ["--data.input_key", "prompt"]]
    assert _kept([*flags, ["--data.prompt_dataset", "a,b"]], {"--data.prompt_dataset": ["c"]}) == flags[2:]


@pytest.mark.parametrize("estimator", ["rredcot", "rredcot_ppo"])
def test_flags_that_depend_on_sizes_fit_those_of_a_rehearsal(tmp_path: Path, estimator: str) -> None:
    """By OpenRLHF's own parser and its length penalty."""
    from rredcot_plugin.dry_run.launch import find_launch
    from rredcot_plugin.dry_run.openrlhf import read_flags

    words = {
        "--algo.advantage.estimator": estimator,
        "--reward.overlong_buffer_len": "512",
        "--rollout.vllm_generate_batch_size": "128",
        "--critic.model_name_or_path": "nobody/has-this",
    }
    launch = find_launch(SCRIPT, [f"{flag}={value}" for flag, value in words.items()], tmp_path)
    args = read_flags(launch, tmp_path / "flags.json")
    trial = Trial(tmp_path, tmp_path, tmp_path, prompt_length=20, response_length=48, steps=2)
    forced = _forced(args, trial, tmp_path)
    kept = _kept([*_by_flag(launch.overrides), ["--algo.dynamic_filtering_enable"]], forced)
    rehearsed = [word for group in kept for word in group] + [
        word for flag, own in forced.items() for word in (flag, *own)
    ]
    assert "--algo.dynamic_filtering_enable" not in rehearsed and "nobody/has-this" not in rehearsed
    found = read_flags(dataclasses.replace(launch, overrides=tuple(rehearsed)), tmp_path / "rehearsed.json")
    assert found.reward.overlong_buffer_len <= found.rollout.max_new_tokens == 48
    assert found.rollout.vllm_generate_batch_size == found.rollout.batch_size
    assert found.critic.model_name_or_path == str(tmp_path)


def test_data_of_ones_own_have_the_columns_that_the_flags_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = '{"q": "1 + 1 = ?", "a": {"ground_truth": "2"}}\n' * 8
    (tmp_path / "train.jsonl").write_text(rows, encoding="utf-8")
    words = ["--data.prompt_dataset=train.jsonl", "--data.label_key=a"]
    done = dry_run(monkeypatch, tmp_path, *words, "--data.input_key=q")
    assert done.exit_code == 0, done.output
    assert "8 rows of train.jsonl" in done.output
    done = dry_run(monkeypatch, tmp_path, *words)
    assert done.exit_code == 1
    assert "train.jsonl: missing 'prompt'; found 'q', 'a' (--data.input_key names 'prompt')" in done.output
