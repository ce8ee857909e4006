"""OpenRLHF's checkpoints hold the fit of past steps and how they answered, and give both back."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from rredcot_plugin.adapter.state import STYLE
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.integrations.openrlhf.step import Crediter
from rredcot_plugin.text.encoding import AnswerStyle
from rredcot_plugin.tiny import CHECKPOINT
from tests.openrlhf.experiences import GROUP, experiences

openrlhf_cpu.activate()


def trainer_with(crediter: Crediter) -> SimpleNamespace:
    return SimpleNamespace(experience_maker=SimpleNamespace(crediter=crediter))


def test_a_resumed_run_knows_how_its_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that goes on from a checkpoint that holds the fit alone."""
    module = importlib.import_module("rredcot_plugin.integrations.openrlhf.trainer")
    given = {"segmenter": "fixed", "segmenter_kwargs": {"tokens": 4}, "value_estimator": "confidence"}
    settings = RRedCoTConfig.from_mapping({**given, "scale": "group_std"})
    run, fresh, older = (Crediter(settings, AutoTokenizer.from_pretrained(CHECKPOINT), GROUP) for _ in range(3))
    batch = experiences(importlib.import_module("openrlhf.trainer.ppo_utils.experience"))
    run.credit(batch, run.plan(batch), [own.kl for own in batch], 0.0)
    run.encoder.follow(run.encoder.due(AnswerStyle.of(["1 + 1 = 2\n#### 2"] * 4, [])))
    saved, untaught = module.with_fit(trainer_with(run), {"global_step": 3}), older.encoder.state_dict()
    alone = {name: own for name, own in saved[module.STATE].items() if name != STYLE}
    for resumed, state in ((fresh, saved), (older, {**saved, module.STATE: alone})):
        monkeypatch.setattr(module, "_init", lambda trainer, state=state: dict(state))
        left = module.RRedCoTTrainerMixin.init_checkpoint_states(trainer_with(resumed))
        assert left == {"global_step": 3}
        assert len(resumed.calibrator.state_dict()["outcome"]) == 1
    assert fresh.encoder.state_dict() == run.encoder.state_dict() != untaught
    assert older.encoder.state_dict() == untaught


@pytest.mark.parametrize(("steps", "said"), [(0, 0), (3, 1)])
def test_a_checkpoint_of_a_run_without_rredcot_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, steps: int, said: int
) -> None:
    module = importlib.import_module("rredcot_plugin.integrations.openrlhf.trainer")
    monkeypatch.setattr(module, "_init", lambda trainer: {"global_step": steps})
    assert module.RRedCoTTrainerMixin.init_checkpoint_states(SimpleNamespace()) == {"global_step": steps}
    assert caplog.text.count("saved without rredcot") == said
