"""The benchmarks on enumerable policies: their files, and that their numbers would show a bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos

import rredcot_plugin as rr
from rredcot_plugin.credit import shaping

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tabular.ascent import stacked
from tabular.credit import group_table, one_token_each, own_table, rollouts_of
from tabular.gaming import Believed, confidence
from tabular.methods import methods
from tabular.moments import binomial, group_moments
from tabular.prompts import Prompt, random_prompt
from tabular.statistics import paired, with_false_discovery_rate
from tabular.steering import check_sums, climb, kinds, tables
from tabular.value_functions import by_state, graded, swapped

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EXACT = 1e-5
GROUP = 8


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    return random_prompt((2, 2, 3), 0)


@pytest.fixture(scope="module", params=["tabular_gradient", "return_equivalence"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    output = tmp_path_factory.mktemp("results") / f"{request.param}.json"
    command = [sys.executable, str(BENCHMARKS / f"{request.param}.py"), "--quick", "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return request.param, json.loads(output.read_text())


def test_a_quick_run_says_what_it_did(result: tuple[str, dict[str, Any]]) -> None:
    name, record = result
    assert record["benchmark"] == name
    assert record["command"].startswith(f"python benchmarks/{name}.py --quick")
    assert record["seeds"] == list(range(record["settings"]["policies"]))
    assert {"commit", "machine", "raw"} <= set(record)
    for entry in record["summary"].values():
        assert entry["low"] - 1e-12 <= entry["value"] <= entry["high"] + 1e-12


def test_a_quick_run_finds_what_theory_says(result: tuple[str, dict[str, Any]]) -> None:
    name, record = result
    value = {key: entry["value"] for key, entry in record["summary"].items()}
    if name == "tabular_gradient":
        exact = [key for key in value if key.startswith("bias/") and key.endswith("_lam_1") and "carlo" not in key]
        assert all(value[key] < EXACT for key in exact if "calibrated" not in key)
        assert value["bias/exact_lam_0"] < EXACT < 0.01 < value["bias/pearson_0.5_lam_0"]
        assert value["snr_vs_grpo/grpo"] == 1.0
    else:
        gaps = {
            key.removeprefix("gradient_gap/"): v for key, v in value.items() if key.startswith("gradient_gap/")
        }
        assert {kind for kind, gap in gaps.items() if gap > EXACT} == {"sees_outcome", "sees_twice_outcome"}
        assert value["sum_gap"] < EXACT
        assert value["difference/turned/lam_0"] > 0.2


# ---- the moments


def test_enumerated_moments_are_those_of_drawn_groups(prompt: Prompt) -> None:
    draws = 20_000
    generator = torch.Generator().manual_seed(0)
    rows = torch.multinomial(prompt.probabilities, draws * GROUP, replacement=True, generator=generator)
    rollouts = rollouts_of(prompt, rows, [row // GROUP for row in range(len(rows))])
    config = rr.RRedCoTConfig(scale="group_std", segmenter="none")
    drawn = rr.assign_credit(rollouts, config, segments=one_token_each(rollouts, whole=True)).advantages.double()
    steps, traces = drawn.shape[1], len(prompt.tree.traces)
    slot = torch.arange(draws).repeat_interleave(GROUP) * traces + rows
    weights = torch.zeros(draws * traces, steps, dtype=torch.float64).index_add_(0, slot, drawn / GROUP)
    gradients = prompt.tree.gradient(prompt.logits[None], weights.view(draws, traces, steps)).flatten(1)
    moments = group_moments(prompt, methods(GROUP, 2)["grpo"](prompt), GROUP)
    error = (moments.trace / draws) ** 0.5
    assert float((gradients.mean(dim=0) - moments.mean).norm()) < 3 * error
    assert float(gradients.var(dim=0).sum()) == pytest.approx(moments.trace, rel=0.05)


def test_binomial_sums_to_one_and_has_its_mean() -> None:
    found = binomial(7, torch.tensor([0.2, 0.7]))
    assert torch.allclose(found.sum(dim=1), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(found @ torch.arange(8.0).double(), torch.tensor([1.4, 4.9]).double())


@pytest.mark.parametrize("by_std", [True, False])
def test_the_grpo_table_is_verls(prompt: Prompt, by_std: bool) -> None:
    options = {"scale": "group_std" if by_std else "none"}
    table = group_table(prompt, options, GROUP, whole=True)[0]
    for trace in range(len(prompt.tree.traces)):
        for solved in range(GROUP):
            rewards = torch.zeros(GROUP, 1)
            rewards[0], rewards[1 : 1 + solved] = prompt.rewards[trace].float(), 1.0
            expected, _ = core_algos.compute_grpo_outcome_advantage(
                rewards, torch.ones(GROUP, 1), np.zeros(GROUP, dtype=int), norm_adv_by_std_in_grpo=by_std
            )
            assert table[solved, trace].tolist() == pytest.approx([float(expected[0])] * 3, abs=1e-5)


def bias_of(prompt: Prompt, name: str) -> float:
    return group_moments(prompt, methods(GROUP, 2)[name](prompt), GROUP).bias(prompt.exact_gradient)


def test_a_planted_bug_shows_in_the_bias(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    right = shaping.redistribute

    def wrong(values: torch.Tensor, outcome: torch.Tensor, num_segments: torch.Tensor) -> torch.Tensor:
        deltas = right(values, outcome, num_segments).clone()
        deltas[:, 1] *= -1
        return deltas

    names = ("exact_lam_0", "exact_lam_1", "pearson_0.7_lam_1", "support_early_lam_1")
    assert all(bias_of(prompt, name) < EXACT for name in names)
    monkeypatch.setattr(shaping, "redistribute", wrong)
    assert all(bias_of(prompt, name) > 0.05 for name in names)


# ---- value functions


@pytest.mark.parametrize("pearson", [0.9, 0.5])
def test_graded_values_have_the_correlation_they_claim(prompt: Prompt, pearson: float) -> None:
    truth, found = by_state(prompt, prompt.values), by_state(prompt, graded(prompt, pearson, 1))
    covariance = torch.cov(torch.stack([truth, found]), aweights=prompt.reach)
    assert float(covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt()) == pytest.approx(pearson)


def test_swapped_values_are_the_siblings(prompt: Prompt) -> None:
    values, found = prompt.values.view(2, 2, 3, 3), swapped(prompt).view(2, 2, 3, 3)
    assert torch.equal(found[..., 1], values.flip(0)[..., 1])
    assert torch.equal(found[..., 2], values.flip(1)[..., 2])


def test_confidence_is_the_mean_log_prob_before_the_state(prompt: Prompt) -> None:
    found = confidence(prompt.tree, prompt.logits[None])[0]
    assert torch.allclose(found[:, 2], prompt.log_probs[:, :2].mean(dim=1))
    assert float(found[:, 0].abs().max()) == 0.0


def test_lagged_and_frozen_values_do_not_see_the_policy_at_hand(prompt: Prompt) -> None:
    rewards = prompt.rewards[None]
    changed = prompt.logits[None] + torch.randn(prompt.logits.shape, generator=torch.Generator().manual_seed(1))
    for source, same in (("frozen", True), ("lagged", True), ("confidence", False)):
        believed = Believed(prompt.tree, prompt.logits[None], rewards, source)
        assert torch.equal(believed(prompt.logits[None]), believed(changed)) == same


# ---- where it leads


def test_every_redistribution_keeps_the_sum(prompt: Prompt) -> None:
    assert check_sums([prompt], kinds()) < EXACT


def test_credit_upside_down_leads_astray_unless_lambda_is_one() -> None:
    prompts = [random_prompt((2, 2, 3), seed) for seed in range(6)]
    start, rewards = stacked(prompts)
    found = {}
    for lam in (1.0, 0.0):
        ascent = climb(prompts[0].tree, start, rewards, tables(prompts, kinds()["turned"], lam), 80, 0.1)
        found[lam] = ascent.rewards[:, -1]
    assert (found[1.0] > 0.95).all()
    assert (found[0.0] < 0.05).any()


def test_a_reward_models_scores_and_values_are_the_same_credit(prompt: Prompt) -> None:
    values = graded(prompt, 0.7, 1)[None]
    by_scores = {"value_estimator": "reward_model", "prior_from_group": False, "lam": 0.5}
    assert torch.equal(
        own_table(prompt, by_scores, values, "reward_model"), own_table(prompt, {"lam": 0.5}, values)
    )


def test_paired_intervals_and_p_values() -> None:
    nothing = paired([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert nothing == {"value": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    base = np.linspace(0, 1, 24)
    moved = paired(list(base + 0.2), list(base))
    assert moved["p"] < 1e-4
    assert moved["low"] == pytest.approx(0.2)
    assert paired(list(base + 0.2), list(base), margin=0.3)["p"] == 1.0
    corrected = with_false_discovery_rate({"moved": moved, "nothing": nothing})
    assert corrected["moved"]["q"] == pytest.approx(2 * moved["p"])
    assert corrected["nothing"]["q"] == 1.0
