"""Metrics of a step are logged once, with OpenRLHF's own, and do not travel with its samples."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.tiny import CHECKPOINT
from tests.openrlhf.experiences import experiences
from tests.openrlhf.test_parity import credited, ours

openrlhf_cpu.activate()


def test_seconds_of_probes_are_those_of_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors work at the same time; those of a ring or of tensor parallelism return what the first of them does."""
    host = importlib.import_module("openrlhf.trainer.ppo_utils.experience")
    maker = ours(host, AutoTokenizer.from_pretrained(CHECKPOINT), monkeypatch, {"segmenter": "newline"})
    maker.step = SimpleNamespace()
    batch = {"answers": [], "seconds": 0.5, "log_probs": None}
    monkeypatch.setattr("ray.get", lambda refs: refs)
    assert maker._flatten_results([[batch, batch]] * 4, 2) == [None] * 4
    assert maker.step.seconds == 1.0


def test_what_openrlhf_logs_of_a_step_has_our_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its samples have its own ``info`` alone: OpenRLHF sends each entry with every sample, and all-reduces each once per
    micro-batch."""
    host = importlib.import_module("openrlhf.trainer.ppo_utils.experience")
    trainer = importlib.import_module("rredcot_plugin.integrations.openrlhf.trainer")
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    own = SimpleNamespace(experience_maker=ours(host, tokenizer, monkeypatch, {"segmenter": "newline"}))
    batch = experiences(host)

    def step(self: SimpleNamespace, samples: list[object], number: int) -> tuple[dict[str, float], int]:
        credited(self.experience_maker, batch)
        return {"policy_loss": 0.5}, number + 1

    monkeypatch.setattr(trainer, "_train_step", step)
    status, number = trainer.RRedCoTTrainerMixin.train_step(own, [], 3)
    assert (number, own.experience_maker.global_step, status["policy_loss"]) == (4, 4, 0.5)
    assert status["rredcot/segments/per_trace/mean"] >= 1.0
    assert {"timing_s/rredcot_plan", "timing_s/rredcot_probes", "timing_s/rredcot_credit"} < set(status)
    assert all(type(value) is float for value in status.values())
    assert {name for one in batch for name in one.info} == {"group_reward_std", "return"}
