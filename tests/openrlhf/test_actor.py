"""What the policy actor's pass does once, and what it lets go, with OpenRLHF's own model around tiny ones."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.probes.layout import pack

openrlhf_cpu.activate()

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


class Engine(torch.nn.Module):
    """DeepSpeed's engine holds the model as its ``module``."""

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


@pytest.fixture(scope="module")
def ours() -> Any:
    return importlib.import_module("rredcot_plugin.integrations.openrlhf.actor")


def worker_of(ours: Any, model: PreTrainedModel) -> Any:
    actor = importlib.import_module("openrlhf.models.actor").Actor(Engine(model.eval()))
    actor.packing_samples, actor.temperature = False, 1.0
    worker = object.__new__(ours.RRedCoTPolicyActor)
    worker.strategy = SimpleNamespace(ring_attn_group=None, ds_tensor_parallel_size=1, stage=2)
    worker.actor = actor
    return worker


def asked(worker: Any) -> dict[str, Any]:
    """A pass over two rows of twelve tokens, with a probe of two tokens in each."""
    sequences = torch.randint(5, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    actions = torch.zeros(2, 11, dtype=torch.int64)
    actions[:, 5:] = 1
    given = (sequences, actions, torch.ones_like(sequences), None, None)
    found: dict[str, Any] = worker.forward(*given, probes=[pack([(8, [7, 9], 0)])] * 2)
    return found


def test_a_model_that_cannot_be_forked_is_found_out_once(ours: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = FalconForCausalLM(FalconConfig(**SIZES))
    worker, passes = worker_of(ours, model), []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    counts = []
    for _ in range(3):
        passes.clear()
        asked(worker)
        counts.append(len(passes))
    assert caplog.text.count("run as rows of their own") == 1
    assert counts[1] == counts[2] == counts[0] - 1


def test_logits_of_the_pass_are_gone_when_probes_run(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, alive = worker_of(ours, LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=32))), []
    kept, taken = [], ours._taken

    def watch(own: SimpleNamespace, read: Any) -> Any:
        kept.append(own)
        return taken(own, read)

    def probes(*args: Any) -> Any:
        alive.extend(own.output for own in kept)
        return forward_probes(*args)

    forward_probes = ours.forward_probes
    monkeypatch.setattr(ours, "_taken", watch)
    monkeypatch.setattr(ours, "forward_probes", probes)
    found = asked(worker)
    assert alive == [None]
    assert found["entropies"].shape == (2, 11) and bool((found["entropies"][:, 5:] > 0).all())
    assert all(bool((own < 0).all()) for own in found["answers"])
