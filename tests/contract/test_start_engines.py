"""What an engine or a trainer of verl cannot do with credit is refused before anything is built."""

from __future__ import annotations

import pytest

from rredcot_plugin.integrations.verl.start import check_run
from tests.contract.test_verl_options import verl_config

CONFIDENCE = "+algorithm.rredcot.value_estimator=confidence"


def replaying(engine: str, mode: str, *overrides: str) -> list[str]:
    """Overrides of a run whose actor replays experts."""
    key = f"actor_rollout_ref.actor.{engine}.router_replay.mode"
    return [f"model_engine={engine}", f"{key}={mode}", *overrides]


@pytest.mark.parametrize("engine", ["megatron", "veomni"])
@pytest.mark.parametrize("options", [[], ["+algorithm.rredcot.probe_backend=batched"]], ids=["auto", "named"])
def test_experts_of_the_rollout_are_not_replayed_in_probes(engine: str, options: list[str]) -> None:
    key = rf"actor_rollout_ref\.actor\.{engine}\.router_replay\.mode"
    ways_out = rf"{key}=R2 or {key}=disabled, or \+algorithm\.rredcot\.value_estimator=confidence"
    with pytest.raises(ValueError, match=rf"^{key}=R3 .*{ways_out}"):
        check_run(verl_config(*replaying(engine, "R3", *options)))


@pytest.mark.parametrize("engine", ["megatron", "veomni"])
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("R2", []),
        ("disabled", []),
        ("R3", [CONFIDENCE]),
        ("R3", [CONFIDENCE, "+algorithm.rredcot.probe_backend=batched"]),
        ("R3", ["+algorithm.rredcot.segmenter=none"]),
        ("R3", ["algorithm.adv_estimator=grpo"]),
    ],
)
def test_the_ways_out_of_replayed_experts_are_open(engine: str, mode: str, options: list[str]) -> None:
    check_run(verl_config(*replaying(engine, mode, *options)))
