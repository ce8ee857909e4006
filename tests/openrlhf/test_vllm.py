"""Real training steps with vLLM's CPU build as OpenRLHF's engine; runs in the environment that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.openrlhf.running import broken, numbers, run

pytestmark = pytest.mark.vllm

VLLM = {"OPENRLHF_CPU_ENGINE": "vllm"}
RREDCOT = ("--algo.advantage.estimator", "rredcot")


def test_the_engine_generates_with_the_weights_that_trained(tmp_path: Path) -> None:
    """The third step's rollouts come from weights that were sent twice; the actor's log-probs of them are the engine's."""
    log = run(tmp_path, *RREDCOT, "--data.max_samples", "24", changed=VLLM)
    assert len(numbers(log, "rollout/reward_mean")) == 3
    assert "Initializing a V1 LLM engine" in log
    assert max(numbers(log, "rredcot/credit/return_error/max")) < 1e-5
    assert min(numbers(log, "actor_grad_norm")) > 0  # there was something to send
    assert max(map(abs, numbers(log, "vllm_kl"))) < 1e-5


UNKNOWN = """
import rredcot_plugin.integrations.openrlhf_cpu.vllm_extension as extension
received = extension.CPUWorkerWrap.update_weight
def renamed(self, name, *args, **kwargs):
    received(self, name.replace("model.norm", "model.standard"), *args, **kwargs)
extension.CPUWorkerWrap.update_weight = renamed
"""


def test_a_weight_that_vllm_does_not_know_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    changed = broken(tmp_path, "rredcot_plugin.integrations.openrlhf_cpu.vllm_extension", UNKNOWN)
    log = run(tmp_path, *RREDCOT, "--data.max_samples", "16", code=1, changed=VLLM | changed)
    assert "There is no module or parameter named 'standard'" in log
    assert not numbers(log, "rollout/reward_mean")  # no step went on with the old weights
