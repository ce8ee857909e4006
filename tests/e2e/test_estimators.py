"""Every kind of value estimator, and extensions of users, through real training steps."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import runpy
from pathlib import Path

import pandas as pd
import pytest

from tests.contract.test_prefix_scores import save_reward_model
from tests.e2e.harness import Inputs, Run, train

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
NEWLINE = "+algorithm.rredcot.segmenter=newline"


def assert_sound(run: Run, steps: int) -> None:
    assert run.code == 0, run.tail()
    assert sorted(run.steps) == list(range(1, steps + 1))
    for step in run.steps.values():
        assert step["rredcot/credit/return_error/max"] < 1e-4
        assert step["rredcot/fallback/group_mean/mean"] < 1, "the estimator found nothing to read"
        assert step["rredcot/value/boundary/max"] > step["rredcot/value/boundary/min"]
        assert math.isfinite(step["actor/grad_norm"]) and step["actor/grad_norm"] > 0
        assert all(math.isfinite(value) for name, value in step.items() if name.startswith("rredcot/"))


def test_monte_carlo_and_extensions_of_users(demo_inputs: Inputs, tmp_path: Path) -> None:
    """Continuations through the rollout server, mixed with an estimator by dotted path; a segmenter by file, a
    shaper by decorator; a reward function that says which lines earned what. Trees grow on the first step for the
    second."""
    run = train(
        dataclasses.replace(demo_inputs, reward=EXAMPLES / "06_process_rewards.py"),
        tmp_path,
        f"+algorithm.rredcot.dump_dir={tmp_path}/dumps",
        "+algorithm.rredcot.dump_every=1",
        "actor_rollout_ref.rollout.val_kwargs.n=2",
        "algorithm.adv_estimator=rredcot",
        f"+algorithm.rredcot.segmenter={{path: {EXAMPLES}/02_custom_segmenter.py, name: AfterEquals}}",
        "+algorithm.rredcot.value_estimator=mixture",
        "+algorithm.rredcot.value_kwargs={estimators: [{name: '03_custom_value:EquationShare', weight: 0.5}, "
        "{name: monte_carlo, options: {samples: 3, concurrency: 16}}]}",
        "+algorithm.rredcot.shapers=[{name: halve_answer, options: {share: 0.25}}]",
        "+algorithm.rredcot.calibrate=trees",
        PYTHONPATH=os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
        VERL_USE_EXTERNAL_MODULES="05_custom_shaper",
    )
    assert_sound(run, 2)
    for step in run.steps.values():
        assert step["rredcot/segments/per_trace/mean"] > 1
        assert step["rredcot/monte_carlo/continuations/mean"] > 1
        assert step["rredcot/monte_carlo/tokens/mean"] > step["rredcot/monte_carlo/continuations/mean"]
        assert step["rredcot/monte_carlo/failed/mean"] == 0
        assert 0 <= step["rredcot/value/raw/min"] <= step["rredcot/value/raw/max"] <= 1
        assert step["timing_s/rredcot_monte_carlo"] > 0
        assert step["rredcot/credit/shaping_residual/max"] < 1e-5
    first, second = (run.steps[number]["rredcot/value/trees_share/mean"] for number in (1, 2))
    assert first == 0 < second < 0.5
    example = runpy.run_path(str(EXAMPLES / "06_process_rewards.py"))
    for number, step in run.steps.items():
        dumps = [json.loads(line) for line in (tmp_path / f"dumps/{number}.jsonl").read_text().splitlines()]
        texts = ["".join(segment["text"] for segment in trace["segments"]) for trace in dumps]
        moved = [example["EARNS"] * len(example["right_lines"](text)) for text in texts]
        assert step["rredcot/credit/process_rewards/mean"] == pytest.approx(sum(moved) / len(texts)) and any(moved)
        assert step["rredcot/fallback/process_rewards/mean"] == 0
        for trace, own in zip(dumps, moved, strict=True):
            assert trace["reward"] - own == pytest.approx(round(trace["reward"] - own)), "0 or 1 for the answer"


@pytest.mark.nightly
def test_many_prompts_with_two_rollouts_of_each(demo_inputs: Inputs, tmp_path: Path) -> None:
    """``low_variance`` has baselines from other groups, so that two rollouts that are both right still train."""
    run = train(
        demo_inputs,
        tmp_path,
        "algorithm.adv_estimator=rredcot",
        NEWLINE,
        "+algorithm.rredcot.preset=low_variance",
        TRAIN_BATCH_SIZE="8",
        ROLLOUT_N="2",
    )
    assert_sound(run, 2)
    for step in run.steps.values():
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["critic/advantages/max"] > step["critic/advantages/min"]


@pytest.mark.nightly
def test_attribution_in_the_pass_beside_references(demo_inputs: Inputs, tmp_path: Path) -> None:
    """One run for what needs nothing but the pass: a mixture of such estimators, measured from a baseline per token."""
    run = train(
        inputs_with_references(demo_inputs, tmp_path),
        tmp_path / "run",
        "algorithm.adv_estimator=rredcot",
        NEWLINE,
        "+algorithm.rredcot.value_estimator=mixture",
        "+algorithm.rredcot.value_kwargs={estimators: [attention, gradient, self_normalized, "
        "{name: iterative, options: {base: reference}}]}",
        "+algorithm.rredcot.calibrate=group_shift",
        "+algorithm.rredcot.max_probe_tokens=96",
        "+algorithm.rredcot.baseline=token",
        "algorithm.use_kl_in_reward=True",
    )
    assert_sound(run, 2)
    for step in run.steps.values():
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["rredcot/probes/proposals/mean"] > 1
        assert step["rredcot/fallback/group_mean/mean"] == 0
        assert step["rredcot/credit/baseline/max"] > step["rredcot/credit/baseline/min"]
        assert step["rredcot/credit/baseline/mean"] != pytest.approx(step["rredcot/value/prompt/mean"], abs=1e-6)


def inputs_with_references(inputs: Inputs, folder: Path) -> Inputs:
    """The same problems with a reference solution each, in ``extra_info`` as data sets carry them."""
    table = pd.read_parquet(inputs.train)
    answers = [entry["ground_truth"] for entry in table["reward_model"]]
    table["extra_info"] = [
        {
            **info,
            "references": [
                {"solution": info["solution"]},
                {"solution": "So I add them up.", "answer": str(answer)},
            ],
        }
        for info, answer in zip(table["extra_info"], answers, strict=True)
    ]
    table.to_parquet(folder / "train.parquet")
    return dataclasses.replace(inputs, train=folder / "train.parquet")


@pytest.mark.nightly
def test_a_critic_at_nested_boundaries_trains(demo_inputs: Inputs, tmp_path: Path) -> None:
    run = train(
        demo_inputs,
        tmp_path,
        "algorithm.adv_estimator=rredcot_ppo",
        "+algorithm.rredcot.segmenter=nested",
        "+algorithm.rredcot.segmenter_kwargs={levels: [turn, newline]}",
        "+algorithm.rredcot.lam_coarse=1.0",
        "critic.optim.lr=1e-3",
    )
    assert_sound(run, 2)
    for step in run.steps.values():
        assert step["rredcot/probes/per_trace/mean"] == 0
        assert math.isfinite(step["critic/vf_loss"])
        assert step["critic/advantages/mean"] == pytest.approx(0, abs=1e-5), "whitened over the batch"
        assert step["critic/returns/max"] == pytest.approx(1), "lam=1: the critic learns the outcome"


def test_red_reads_a_reward_model_at_every_token(demo_inputs: Inputs, tmp_path: Path) -> None:
    path = save_reward_model(tmp_path / "reward_model")
    run = train(
        demo_inputs,
        tmp_path / "run",
        "algorithm.adv_estimator=red",
        f"+algorithm.rredcot.value_kwargs.path={path}",
        "critic.enable=True",
    )
    assert_sound(run, 2)
    for step in run.steps.values():
        assert step["rredcot/segments/tokens/max"] == 1
        assert step["timing_s/rredcot_reward_model"] > 0
        assert step["critic/advantages/mean"] == pytest.approx(0, abs=1e-5), "verl's own GAE whitens"
        assert math.isfinite(step["critic/vf_loss"])
