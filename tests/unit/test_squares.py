"""Σ π² from logits, in blocks."""

from __future__ import annotations

import pytest
import torch

from rredcot_plugin.probes import squares
from rredcot_plugin.probes.squares import sum_pi_squared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocabulary", "block"), [(7, 11, 33), (7, 11, 1), (1, 1, 99), (0, 5, 99)])
def test_it_is_the_squared_length_of_the_softmax(
    dtype: torch.dtype, rows: int, vocabulary: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(squares.BLOCK, "cpu", block)
    logits = (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(1)) * 5).to(dtype)
    before, temperature = logits.clone(), torch.linspace(0.5, 1.5, rows)
    expected = (logits.double() / temperature[:, None].double()).softmax(1).square().sum(1)
    found = sum_pi_squared(logits, temperature)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)
    assert torch.equal(logits, before), "verl reads the logits afterwards"


def test_extreme_logits_stay_shares() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, -torch.inf], [-3e38, -3e38, -3e38]])
    assert sum_pi_squared(logits, torch.ones(3)).tolist() == pytest.approx([1, 0.5, 1 / 3])


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature is 0\.0; expected a number greater than 0"):
        sum_pi_squared(torch.zeros(2, 3), torch.tensor([1.0, 0.0]))
