"""Numbers of tokens that the actor's pass is read for."""

from __future__ import annotations

import importlib

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
