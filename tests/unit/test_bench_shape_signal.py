"""Steps of one shape or another from the same rollouts: their parts, their gradients, and statistics with known answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import shape_signal
from grads.shapes import (
    GROUPS,
    PROMPTS,
    ROLLOUTS,
    STEP,
    Gradients,
    Setup,
    block_gradients,
    prepare,
    products,
    quality,
    step_gradient,
    steps_of,
)
from grads.sketch import weighted_gradient
from grads.traces import make_sketch
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES
from learn.systems import choose

from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.reasoner import build_tokenizer

SKETCH = 2048


@pytest.fixture(scope="module")
def actor() -> Actor:
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    return Actor(FAMILIES["sums"], model, build_tokenizer())


@pytest.fixture(scope="module")
def setup(actor: Actor, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return prepare(actor, 1, SKETCH, 0, Store(tmp_path_factory.mktemp("shapes")))


@pytest.mark.parametrize("group", GROUPS)
def test_every_rollout_of_a_block_is_in_one_step(group: int) -> None:
    steps = steps_of(1, group)
    found = [(p, r) for questions, own in steps for p in questions for r in range(ROLLOUTS)[own]]
    assert sorted(found) == [(p, r) for p in range(PROMPTS, 2 * PROMPTS) for r in range(ROLLOUTS)]
    assert {len(questions) * (own.stop - own.start) for questions, own in steps} == {STEP}


def test_a_step_has_the_gradient_of_its_rollouts(actor: Actor, setup: Setup) -> None:
    """Segment by segment as that of whole traces, weighted by their rewards."""
    (system,) = choose(("no_baseline",), ())
    questions, own = steps_of(0, 4)[1]
    expected = torch.zeros(SKETCH)
    for p in questions:
        rows = [setup.traces.rows[int(i)] for i in setup.traces.rollouts[p][own]]
        weights = [row.row.reward / STEP for row in rows]
        exact = weighted_gradient(actor.model, rows[0].prompt, [row.response for row in rows], weights)
        expected += make_sketch(actor, SKETCH)(exact)
    found = step_gradient(setup, system, questions, own, None)
    assert float(expected.norm()) > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.norm()))


def test_shapes_share_a_mean_where_credit_looks_at_no_sibling(setup: Setup) -> None:
    (system,) = choose(("no_baseline",), ())
    means = [block_gradients(setup, system, group).means for group in GROUPS]
    for other in means[1:]:
        torch.testing.assert_close(other, means[0], rtol=1e-3, atol=1e-4 * float(means[0].norm()))


def drawn(blocks: int, seed: int, noise: float, mean: torch.Tensor) -> Gradients:
    """Four steps a block, independent of each other."""
    generator = torch.Generator().manual_seed(seed)
    steps = mean + noise * torch.randn(blocks, 4, len(mean), generator=generator)
    return Gradients(steps.mean(1), steps.square().sum(2).mean(1))


def test_signal_variance_and_cosine_of_gradients_that_are_known() -> None:
    mean, reference = torch.zeros(50), torch.zeros(50)
    mean[0], mean[1], reference[0] = 3.0, 4.0, 2.0
    found, towards = drawn(4000, 0, 2.0, mean), drawn(4000, 1, 1.0, reference)
    own = quality(products(found, towards), products(towards, towards), np.ones(4000))
    assert own.signal == pytest.approx((3.0 * 2.0) ** 2, rel=0.05)
    assert own.variance == pytest.approx(50 * 2.0**2, rel=0.02)
    assert own.cosine == pytest.approx(0.6, abs=0.02)
    assert own.snr == own.signal / own.variance


def test_a_block_that_is_drawn_twice_is_not_multiplied_with_itself() -> None:
    found = drawn(3, 0, 5.0, torch.ones(7))
    counts = np.array([2.0, 1.0, 0.0])
    own = quality(products(found, found), products(found, found), counts)
    cross = float(found.means[0].double() @ found.means[1].double())
    assert own.signal == pytest.approx(cross**2)
    assert own.variance == pytest.approx(float(2 * found.squares[0] + found.squares[1]) / 3 - cross)
    alone = quality(products(found, found), products(found, found), np.array([3.0, 0.0, 0.0]))
    assert np.isnan(alone.signal) and np.isnan(alone.variance) and np.isnan(alone.cosine)


def test_the_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the shipped model, two blocks: with groups of two GRPO and RLOO differ by a factor, so their quality does not."""
    output = tmp_path / "found.json"
    words = ["--families", "habits", "--blocks", "2", "--cache", str(tmp_path / "cache"), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["shape_signal.py", *words])
    shape_signal.main()
    summary = json.loads(output.read_text())["summary"]
    assert {key.rpartition("/")[2] for key in summary} >= {system.name for system in shape_signal.SYSTEMS}
    grpo, rloo = (summary[f"habits/snr_vs_grpo_4x4/8x2/{name}"]["value"] for name in ("grpo", "rloo"))
    assert grpo == pytest.approx(rloo, rel=1e-3)
    assert summary["habits/snr_vs_grpo_2x8/2x8/grpo"] == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_one_block_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["shape_signal.py", "--blocks", "1"])
    with pytest.raises(SystemExit, match="2"):
        shape_signal.main()
    assert "--blocks 1: expected an integer from 2" in capsys.readouterr().err
