"""verl's estimators in one table: expectations by enumeration, and gradients of token baselines on the families."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, AdvantageEstimator, agg_loss

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from estimators_table import ours
from estimators_table.batch import VERL
from estimators_table.enumerated import Plan, Prompt, compared, enumerate_all, prompts_of, summarise
from estimators_table.exact import AGGREGATIONS, Groups, advantages, all_groups, joined, moments, of_policy
from estimators_table.families import flat_gradients, is_flat, without_multiples
from estimators_table.policies import SHAPES, Policy, independent_policy, tree_policy
from estimators_table.tables import MARKS, angle, fill_page, signed, table, verdict
from lab.store import Store

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SUM, TOKEN_MEAN, TRACE_MEAN = AGGREGATIONS


@pytest.fixture(scope="module", params=list(SHAPES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return tree_policy(request.param, 1, graded=True)


def parts_of_gradient(name: str, policy: Policy, size: int) -> torch.Tensor:
    """E[ĝ] / g of every parameter."""
    groups = all_groups(policy, size)
    return moments(groups, advantages(VERL[name], groups)).mean / policy.gradient


def ordered_groups(policy: Policy, size: int) -> Groups:
    """Every order of every group, with its probability: the slow form of ``all_groups``."""
    rows = torch.tensor(list(itertools.product(range(len(policy.rewards)), repeat=size)))
    return Groups(policy, rows, policy.probabilities[rows].prod(1))


def test_verl_registers_nothing_that_is_not_in_the_table() -> None:
    names = {str(getattr(name, "value", name)) for name in AdvantageEstimator}
    assert names <= set(VERL)
    assert names <= {str(getattr(name, "value", name)) for name in ADV_ESTIMATOR_REGISTRY}


def test_the_policies_gradient_is_that_of_its_expected_reward() -> None:
    ones, rewards = torch.tensor([0.6, 0.15, 0.3], dtype=torch.float64), [0.0, 1, 1, 0, 0.5, 0, 0, 1]
    logits = (ones / (1 - ones)).log().requires_grad_()
    traces = torch.tensor(list(itertools.product((0, 1), repeat=3)))
    masses = torch.where(traces == 1, logits.sigmoid(), 1 - logits.sigmoid()).prod(1)
    (expected,) = torch.autograd.grad((masses * torch.tensor(rewards)).sum(), logits)
    policy = independent_policy(ones.tolist(), rewards)
    assert torch.allclose(policy.gradient, expected)
    assert float(policy.values[0, 0]) == pytest.approx(float((masses * torch.tensor(rewards)).sum().detach()))


def test_groups_with_their_orders_counted_are_all_groups(policy: Policy) -> None:
    slow, fast = ordered_groups(policy, 3), all_groups(policy, 3)
    assert float(fast.mass.sum()) == pytest.approx(1)
    for name in ("opo", "optimal_token_baseline"):
        expected, found = (moments(own, advantages(VERL[name], own)) for own in (slow, fast))
        assert torch.allclose(found.mean, expected.mean)
        assert found.trace == pytest.approx(expected.trace)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_loss_aggregations_are_verls(policy: Policy, aggregation: str) -> None:
    groups = all_groups(policy, 2)
    batch, table = groups.batch(), torch.randn(groups.rows.shape + policy.mask.shape[1:], dtype=torch.float64)
    direction = torch.randn(policy.scores.shape[2], dtype=torch.float64)
    slopes = policy.scores @ direction
    for c in (0, len(groups.rows) - 2):
        own = Groups(policy, groups.rows[c : c + 1], torch.ones(1, dtype=torch.float64))
        found = moments(own, table[c : c + 1], aggregation).mean @ direction
        loss = agg_loss(table[c] * slopes[groups.rows[c]], batch.mask[2 * c : 2 * c + 2], aggregation)
        assert float(found) == pytest.approx(float(loss), abs=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_leave_one_out_means_are_exact_and_own_means_a_factor(policy: Policy, size: int) -> None:
    found = of_policy(
        {name: VERL[name] for name in ("rloo", "remax", "grpo_no_std", "rloo_vectorized")}, policy, size
    )
    for name in ("rloo", "remax", "rloo_vectorized"):
        assert abs(found[name, SUM].size) < 1e-9
        assert found[name, SUM].off < 1e-9
    assert found["grpo_no_std", SUM].size == pytest.approx(-1 / size)
    assert found["grpo_no_std", SUM].off < 1e-9


def test_division_by_the_deviation_turns_graded_rewards_only() -> None:
    for graded in (False, True):
        found = of_policy({"grpo": VERL["grpo"]}, tree_policy("early_stop", 0, graded=graded), 4)["grpo", SUM]
        assert (found.off < 1e-9) == (not graded)


def test_prompts_weighted_by_their_deviation_turn_the_batch() -> None:
    policies = [tree_policy("early_stop", seed, graded=False) for seed in (0, 1)]
    for name, exact in (("grpo", False), ("grpo_no_std", True)):
        parts = [of_policy({name: VERL[name]}, policy, 4)[name, SUM] for policy in policies]
        assert (joined(parts).degrees < 1e-6) == exact


@pytest.mark.parametrize(
    ("size", "uniform", "by_token"), [(2, 0.5, (0.46, 0.59, 0.72)), (4, 0.75, (0.73, 0.82, 0.91))]
)
def test_own_sample_on_three_binary_tokens(size: int, uniform: float, by_token: tuple[float, ...]) -> None:
    """OPO: one factor where all traces are equally long. The token baseline: another one for each token."""
    policy = independent_policy((0.6, 0.575, 0.55), [0.0, 0, 0, 0, 1, 0, 0, 1])
    assert torch.allclose(parts_of_gradient("rloo", policy, size), torch.ones(3).double(), atol=1e-9)
    assert torch.allclose(parts_of_gradient("opo", policy, size), torch.full((3,), uniform).double(), atol=1e-9)
    found = parts_of_gradient("optimal_token_baseline", policy, size)
    assert found.tolist() == pytest.approx(by_token, abs=0.005)
    if size == 2:  # of the first token, whatever is rewarded: π(1 − π) / (π² + (1 − π)²)
        assert float(found[0]) == pytest.approx(0.24 / 0.52)


def test_opo_turns_where_lengths_differ(policy: Policy) -> None:
    found = of_policy({"opo": VERL["opo"]}, policy, 4)["opo", SUM]
    same_length = bool((policy.mask == 1).all())
    assert (found.off < 1e-9) == same_length


def test_pass_at_k_climbs_the_best_of_the_group(policy: Policy) -> None:
    found = of_policy({"best": VERL["grpo_passk_no_std"]}, policy, 4)["best", SUM]
    assert torch.allclose(found.mean, policy.gradient_of_best(4), atol=1e-12)


@pytest.mark.parametrize("graded", [False, True])
def test_ours_is_exact_where_nothing_is_divided(graded: bool) -> None:
    for shape in ("early_stop", "long_tail"):
        policy = tree_policy(shape, 1, graded=graded)
        found = of_policy(ours.estimators(shape, graded=graded), policy, 2)
        for name in ("otb_leave_one_out", "rredcot_value", "rredcot_no_std", "rredcot_trace", "rredcot_token"):
            assert abs(found[name, SUM].size) < 1e-6, name
            assert found[name, SUM].off < 1e-6, name
        assert found["rredcot_none", SUM].size == pytest.approx(-0.5)
        assert found["rredcot", SUM].off > 1e-3


def test_a_bias_of_one_token_would_be_seen(policy: Policy) -> None:
    groups = all_groups(policy, 4)
    table = advantages(VERL["rloo"], groups)
    table[:, :, 0] *= 1 + 1e-4
    assert moments(groups, table).off > 1e-7


def test_sampled_angle_agrees_with_the_exact_one() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    noise = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    turned = torch.tensor([2.0, 0.2, 0], dtype=torch.float64)
    found = compared(
        turned + 2 * noise + 0.1 * torch.randn(4000, 3, generator=generator).double(), exact + noise, exact
    )
    assert found.degrees == pytest.approx(float(np.degrees(np.arctan(0.1))), abs=3 * found.error)
    assert found.error < 0.2


def test_enumeration_is_kept_and_summarised(tmp_path: Path) -> None:
    plan, seen = Plan(seeds=1, sizes=(2,), batches=2, shapes=("same_length",)), []
    found = enumerate_all(plan, Store(tmp_path), seen.append)
    again = enumerate_all(plan, Store(tmp_path), seen.append)
    assert len(prompts_of(plan)) == 2
    assert all(torch.equal(a.mean, b.mean) for key in found for a, b in zip(found[key], again[key], strict=True))
    assert prompts_of(plan)[0] == Prompt("same_length", False, 0)
    summary = summarise(found, {2: {}}, (2,))
    assert summary["size/grpo_no_std/2"]["value"] == pytest.approx(-0.5)
    assert [verdict(summary, name, (2,)) for name in ("rloo", "grpo_no_std", "grpo")] == [
        "**yes**",
        "direction",
        "no",
    ]


def test_whole_traces_stand_in_for_flat_advantages() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    assert is_flat(torch.tensor([[2.0, 2, 0], [3, 3, 3]]), mask)
    assert not is_flat(torch.tensor([[2.0, 1, 0], [3, 3, 3]]), mask)
    found = flat_gradients(torch.tensor([1.0, 3]), torch.eye(2), 2)
    assert torch.equal(found, torch.tensor([[0.5, 1.5]]))


def test_a_division_by_the_deviation_is_found_to_be_a_multiple() -> None:
    first = torch.randn(4, 3)
    second = first * torch.tensor([2.0, 2, 0.5, 0.5])[:, None]
    distinct, same = without_multiples({"a": first, "b": second, "c": torch.randn(4, 3)}, 2)
    assert list(distinct) == ["a", "c"]
    assert same["b"][0] == "a"
    assert torch.allclose(same["b"][1], torch.tensor([2.0, 0.5]))


def test_cells_and_marks(tmp_path: Path) -> None:
    assert [signed(x) for x in (1e-9, -0.125, 2.0)] == ["0", "−0.12", "+2.00"]
    assert [angle(x) for x in (1e-6, 0.01, 3.21, 45.6)] == ["0", "<.1°", "3.2°", "46°"]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    fill_page(page, table(["a"], [["b"]]))
    assert page.read_text() == f"before\n{MARKS[0]}\n\n| a |\n| --- |\n| b |\n\n{MARKS[1]}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="add both"):
        fill_page(page, "x")


def test_the_script_runs(tmp_path: Path) -> None:
    output = tmp_path / "quick.json"
    command = [
        sys.executable,
        "benchmarks/estimators.py",
        "--quick",
        "--cache",
        f"{tmp_path}",
        "--output",
        f"{output}",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=BENCHMARKS.parent, env=environment, check=True, capture_output=True)
    record = json.loads(output.read_text())
    assert record["settings"]["families"] == ["sums"]
    assert abs(record["summary"]["size/rloo/2"]["value"]) < 1e-9
    assert "sums/cosine/rredcot_token" in record["summary"]
    page = tmp_path / "docs" / "evidence" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("\n".join(MARKS))
    subprocess.run([*command, "--report", "--page", f"{page}"], cwd=BENCHMARKS.parent, env=environment, check=True)
    assert "leave-one-out OTB" in page.read_text() and "| `sums` | least cosine |" in page.read_text()
    assert (tmp_path / "docs" / "images" / "estimators.png").exists()
