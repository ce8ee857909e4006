"""Numbers of tokens that the actor's pass is read for."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch

from rredcot_plugin.integrations import openrlhf_cpu

openrlhf_cpu.activate()


def test_numbers_of_tokens_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are turned into float32 a block of tokens at a time."""
    module = importlib.import_module("rredcot_plugin.integrations.openrlhf.signals")
    logits = torch.randn(2, 9, 11, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1], [0] * 8])
    spans = [(0, 0, 9), (1, 0, 6)]
    whole = module.signals(logits, spans, mask, squares=True)
    probabilities = logits[:, :-1].softmax(-1)
    expected = {
        "entropies": -(probabilities * probabilities.log()).sum(-1) * mask,
        "sum_pi_squared": probabilities.square().sum(-1) * mask,
    }
    monkeypatch.setattr(module, "BLOCK", 2)
    blocks = module.signals(logits, spans, mask, squares=True)
    assert set(whole) == set(blocks) == set(expected)
    for name, reference in expected.items():
        assert torch.equal(whole[name], blocks[name])
        torch.testing.assert_close(whole[name], reference, rtol=1e-5, atol=1e-6)


def test_their_sequence_level_loss_takes_the_mean_of_advantages() -> None:
    """Why `gspo` is warned of: where credit moves within a trace, each token's gradient is that of the mean."""
    loss = importlib.import_module("openrlhf.models.loss").PolicyLoss(policy_loss_type="gspo")
    gradients = []
    for advantages in ([2.0, 0.0, 0.0, 0.0], [0.5] * 4):
        log_probs = torch.full((1, 4), -1.0, requires_grad=True)
        found = loss(log_probs, log_probs.detach().clone(), torch.tensor([advantages]), torch.ones(1, 4))
        (gradient,) = torch.autograd.grad(found[0], log_probs)
        gradients.append(gradient)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert float(gradients[0].abs().max()) > 0


@pytest.mark.parametrize(("size", "backend"), [(0, "batched"), (3, "cached")])
def test_without_probes_the_pass_keeps_no_keys_and_values(
    size: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("rredcot_plugin.integrations.openrlhf.maker")
    asked: list[dict] = []
    monkeypatch.setattr(
        module.RRedCoTExperienceMaker.__mro__[1],
        "_dispatch_forward",
        lambda self, group, condition, **given: asked.append(given),
    )
    maker = object.__new__(module.RRedCoTExperienceMaker)
    maker.actor_model_group = group = object()
    maker.step = SimpleNamespace(plan=SimpleNamespace(packed=[[]] * 2, size=size))
    maker.settings, maker.crediter = SimpleNamespace(probe_backend="auto"), SimpleNamespace(squares=False)
    maker._dispatch_forward(group, None, sequences=[[1], [2]])
    assert asked[0]["probe_backend"] == [backend] * 2
