"""`rredcot dry-run`: what is wrong with a recipe is named in one line. Training itself: tests/e2e/test_dry_run.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import find_launch
from rredcot_plugin.dry_run.rehearsal import Finding, Rehearsal

RECIPES = Path(__file__).parents[2] / "recipes"
QWEN3 = RECIPES / "math" / "run_qwen3_4b_fsdp2_vllm.sh"
MEGATRON = RECIPES / "math" / "run_qwen3_4b_megatron_vllm.sh"


@pytest.fixture(autouse=True)
def no_data_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("N", raising=False)  # a knob of the recipe below
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def rehearse(script: Path, folder: Path, *overrides: str, gpu_gb: float = 80.0) -> list[Finding]:
    return list(Rehearsal(script, overrides, folder / "out", 0, gpu_gb).run(lambda progress: None))


def broken(script: Path, folder: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        rehearse(script, folder, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def text_of(findings: list[Finding], name: str, kind: str | None = None) -> str:
    return "; ".join(f.text for f in findings if f.name == name and kind in (None, f.kind))


def rows(count: int = 8, **columns: Any) -> pd.DataFrame:
    """Rows in verl's format; a column given as None is left out."""
    found = [
        {
            "data_source": "mine",
            "prompt": [{"role": "user", "content": f"What is {i} + 1?"}],
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"solution": f"It is $\\boxed{{{i + 1}}}$."},
            **{name: value for name, value in columns.items() if value is not None},
        }
        for i in range(count)
    ]
    return pd.DataFrame(found).drop(columns=[name for name, value in columns.items() if value is None])


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A user's own recipe: data, reward and model are files of theirs."""
    for split in ("train", "val"):
        rows().to_parquet(tmp_path / f"{split}.parquet")
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
        "    return float(ground_truth in solution_str)\n"
    )
    script = tmp_path / "run_mine.sh"
    script.write_text(
        "set -euo pipefail\nN=${N:-4}\n"
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rredcot "
        f"data.train_files={tmp_path}/train.parquet data.val_files={tmp_path}/val.parquet "
        "data.train_batch_size=8 data.max_prompt_length=64 data.max_response_length=64 "
        "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=$N "
        "actor_rollout_ref.rollout.calculate_log_probs=True "
        "actor_rollout_ref.model.path=Qwen/Qwen3-4B "
        "actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
        f"reward.custom_reward_function.path={tmp_path}/reward.py "
        'trainer.n_gpus_per_node=2 trainer.nnodes=1 "$@"\n'
    )
    return script


# ---- recipes that are right ---------------------------------------------------------------------------------------


def test_a_shipped_recipe_without_its_data_is_tried_on_its_sample(tmp_path: Path) -> None:
    findings = rehearse(QWEN3, tmp_path)
    assert "validated by verl" in text_of(findings, "configuration")
    assert "64 prompts x 8 = 512 responses per step" in text_of(findings, "batch")
    assert "sample.jsonl of the recipe, because" in text_of(findings, "data")
    assert "the data's own solutions 1 (" in text_of(findings, "reward")
    assert "4,022.5 million" in text_of(findings, "parameters")
    assert "fits in 80 GB" in text_of(findings, "peak")
    assert "at most" in text_of(findings, "probes")
    assert "does NOT fit in 24 GB" in text_of(rehearse(QWEN3, tmp_path / "small", gpu_gb=24.0), "peak")


@pytest.mark.parametrize(
    ("flags", "state", "peak"),
    [
        ("", "32.2 GB per GPU", "62.2 GB per GPU: does NOT fit in 60 GB (estimated)"),
        ("optimizer_offload", "32.2 GB per GPU, 16.1 GB during the rollout", "46.1 GB per GPU: fits in 60 GB"),
        ("optimizer_offload param_offload", "32.2 GB per GPU, 0.0 GB during the rollout", "33."),
        ("offload_policy", "0.0 GB per GPU", "30.0 GB per GPU: fits in 60 GB"),
    ],
)
def test_what_is_moved_off_the_gpu_is_not_counted_there(
    recipe: Path, tmp_path: Path, flags: str, state: str, peak: str
) -> None:
    """Only ``offload_policy`` keeps it off during the update."""
    actor = "actor_rollout_ref.actor"
    overrides = [f"{actor}.strategy=fsdp2", *(f"{actor}.fsdp_config.{flag}=True" for flag in flags.split())]
    findings = rehearse(recipe, tmp_path, *overrides, gpu_gb=60.0)
    assert text_of(findings, "training state") == state
    assert text_of(findings, "peak").startswith(peak)


def test_a_recipe_that_cannot_probe_in_the_pass_says_so(tmp_path: Path) -> None:
    findings = rehearse(MEGATRON, tmp_path)
    assert "actor_rollout_ref.actor.strategy=megatron" in text_of(findings, "algorithm", "note")
    assert text_of(findings, "probes") == "at most 14 rows of their own per trace, together as long as 7 traces"


def test_a_users_own_recipe_and_the_baseline(recipe: Path, tmp_path: Path) -> None:
    findings = rehearse(recipe, tmp_path)
    assert text_of(findings, "data") == "8 rows of train.parquet"
    assert "8 prompts x 4 = 32 responses per step, 32 per update; 2 GPUs" in text_of(findings, "batch")
    assert not any(finding.kind == "note" and finding.name == "reward" for finding in findings)
    baseline = rehearse(recipe, tmp_path / "grpo", "algorithm.adv_estimator=grpo")
    assert text_of(baseline, "algorithm") == "grpo"
    assert text_of(baseline, "probes") == ""


def test_knobs_of_the_environment_reach_the_script(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("N", "6")
    assert "8 prompts x 6" in text_of(rehearse(recipe, tmp_path), "batch")


# ---- recipes that are broken ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batchsize=8", ("ppo_mini_batchsize", "ppo_mini_batch_size)")),
        ("+algorithm.rredcot.segmentr=newline", ("segmentr", "segmenter")),
        ("+algorithm.rredcot.segmenter=newlines", ("newlines", "newline")),
        ("algorithm.adv_estimator=rredcott", ("rredcott",)),
        ("data.train_batch_size=6", ("verl's validation",)),
        ("actor_rollout_ref.rollout.n=abc", ("actor_rollout_ref.rollout.n='abc'", "expected an integer from 1")),
        ("actor_rollout_ref.rollout.name=???", ("actor_rollout_ref.rollout.name", "set it")),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null", ("[actor] Please set", "ppo_micro_batch_size_per_gpu")),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=3", ("update and rank = 6", "ppo_micro_batch_size_per_gpu = 4")),
        ("trainer.n_gpus_per_node=3", ("3",)),
        ("actor_rollout_ref.rollout.max_model_len=100", ("rollout.max_model_len = 100", "128")),
        ("data.max_response_length=50000", ("50064", "40960", "max_position_embeddings")),
        ("data.prompt_key=question", ("missing 'question'", "found 'data_source', 'prompt'")),
        ("data.val_files=nowhere.parquet", ("data.val_files=nowhere.parquet", "no such file")),
        ("data.train_files=nowhere.parquet", ("data.train_files=nowhere.parquet", "sample.jsonl")),
        ("reward.custom_reward_function.path=nowhere.py", ("reward.custom_reward_function.path=nowhere.py",)),
        ("reward.custom_reward_function.name=score_it", ("score_it",)),
        ("actor_rollout_ref.model.path=nobody/nothing", ("nobody/nothing", "MODEL_PATH")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(recipe: Path, tmp_path: Path, override: str, parts: tuple[str, ...]) -> None:
    message = broken(recipe, tmp_path, override)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("    x = {}\n    return x['score']\n", ("line 3", "KeyError", "'score'")),
        ("    return 'good'\n", ("expected a finite number", "'good'")),
        ("    return float('nan')\n", ("expected a finite number", "nan")),
        ("    return {'acc': 1.0}\n", ("expected a finite number", "'acc'")),
        ("    return [1.0]\n", ("expected a finite number", "[1.0]")),
        ("    return {'score': 1.0, 'process_rewards': [[1, 0.5]]}\n", ("return json.dumps([(1, 0.5)])",)),
        (
            "    return {'score': 1.0, 'process_rewards': '[[1, null]]'}\n",
            ("expected pairs of a character", "null"),
        ),
        ("    return {'score': 1.0, 'process_rewards': '[[99, 0.5]]'}\n", ("here at most 0",)),
    ],
)
def test_a_reward_that_raises_or_returns_nonsense(
    recipe: Path, tmp_path: Path, body: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "reward.py").write_text(f"def compute_score(**kwargs):\n{body}")
    message = broken(recipe, tmp_path)
    for part in (str(tmp_path / "reward.py"), *parts):
        assert part in message


def test_a_reward_that_pays_nothing_is_doubted_not_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("async def compute_score(**kwargs):\n    return {'score': 0.0}\n")
    assert "check the reward and the data" in text_of(rehearse(recipe, tmp_path), "reward", "note")


@pytest.mark.parametrize("column", ["prompt", "data_source", "reward_model"])
def test_a_missing_column_is_named_with_what_was_found(recipe: Path, tmp_path: Path, column: str) -> None:
    rows(**{column: None}).to_parquet(tmp_path / "train.parquet")
    message = broken(recipe, tmp_path)
    assert (
        f"missing '{column}'; found 'data_source'" in message or f"missing '{column}'; found 'prompt'" in message
    )


def test_other_mistakes_in_the_data(recipe: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.parquet"
    rows(reward_model={"style": "rule"}).to_parquet(train)
    assert "no 'ground_truth'; found 'style'" in broken(recipe, tmp_path)
    rows(count=8).iloc[:0].to_parquet(train)
    assert "train.parquet" in broken(recipe, tmp_path / "b")
    train.write_text("no parquet")
    assert "no parquet file" in broken(recipe, tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("echo hello\n", ("expected one start of `python -m verl.trainer.main_ppo`", "no trainer")),
        ("echo first; echo 'DATA_DIR is not set' >&2; exit 3\n", ("exit code 3: DATA_DIR is not set",)),
        ("python -m verl.trainer.main_eval\n", ("starts verl.trainer.main_eval",)),
        ("python -m verl.trainer.main_ppo --multirun a=1,2\n", ("option --multirun",)),
        ("python -m verl.trainer.main_ppo\npython -m verl.trainer.main_ppo\n", ("expected one start",)),
        ("python -m verl.trainer.main_ppo --config-name=nothing\n", ("configuration: ", "nothing")),
    ],
)
def test_scripts_that_do_not_start_a_training(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(text)
    message = broken(script, tmp_path)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("name", "first", "runs"),
    [
        ("README.md", "# a title", False),
        ("reward.py", "#!/usr/bin/env python3", False),
        ("run.sh", "#!/usr/bin/env python3", False),
        ("run", "#!/usr/bin/env -S bash -e", True),
        ("run", "#!/bin/zsh", True),
        ("run.slurm", "", True),
    ],
)
def test_only_shell_scripts_are_run(tmp_path: Path, name: str, first: str, runs: bool) -> None:
    script = tmp_path / name
    script.write_text(f"{first}\ntouch {tmp_path}/was_run\n")
    message = broken(script, tmp_path)
    assert (f"{script}: expected a shell script" in message) != runs
    assert (tmp_path / "was_run").exists() == runs


def test_the_command_ends_with_the_codes_it_promises(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, scratch = CliRunner().invoke, tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    wrong = run(app, ["dry-run", str(recipe), "--steps", "0", "-O", "data.train_batch_size=6"])
    assert wrong.exit_code == 1
    assert "✗ broken" in wrong.output
    assert sum("✗" in line for line in wrong.output.splitlines()) == 1
    absent = run(app, ["dry-run", "nowhere.sh"])
    assert absent.exit_code == 2 and "nowhere.sh: no such file (looked in" in " ".join(absent.output.split())
    assert run(app, ["dry-run", str(recipe), "--out", str(tmp_path)]).exit_code == 2
    both = run(app, ["dry-run", str(recipe), str(QWEN3), "--steps", "0"])
    assert both.exit_code == 0
    assert "2 of 2 recipes passed" in both.output
    assert not list(scratch.glob("rredcot_*"))


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_the_launch_is_what_the_script_would_have_run(tmp_path: Path) -> None:
    script = tmp_path / "run.sbatch"
    script.write_text(
        "#SBATCH --nodes=3\nexport KNOB=$SLURM_JOB_NUM_NODES\nsleep 1000\nNNODES=3 ray status | grep -c node_ >&2\n"
        "python -c 'print(6 * 7)' > computed\n"
        'srun --nodes=1 "$PYTHON" -m verl.trainer.main_ppo --config-path /conf --config-name=mine a.b=$(cat computed) '
        '+c="x y" "$@"\n'
    )
    launch = find_launch(script, ["d=e"], tmp_path / "scratch", {"PYTHON": "/usr/bin/mine"})
    assert launch.overrides == ("a.b=42", "+c=x y", "d=e")
    assert (launch.config_path, launch.config_name) == ("/conf", "mine")
    assert (launch.environment["KNOB"], launch.environment["PYTHON"]) == ("3", "/usr/bin/mine")
    assert launch.environment["PATH"] == os.environ["PATH"]
    assert not any(name.startswith("RREDCOT_") for name in launch.environment.keys() - os.environ.keys())
