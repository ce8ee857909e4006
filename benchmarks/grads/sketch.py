"""Gradients of log-probs, of segments and of weighted traces, and their sketch: short vectors with the same products.

Sketch: coordinate i times a random sign, added up over all i that are equal modulo k. ⟨Sg, Sh⟩ is unbiased for ⟨g, h⟩;
its standard deviation is about ‖g‖‖h‖·√((1 + cos²)/k), 1.6 % of ‖g‖² for k = 8192 (Charikar, Chen and Farach-Colton's
count sketch, with a fixed hash).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch


class Sketch:
    """(…, n) → (…, size), the same signs for the same seed; of gradients times ``scale`` (n,), where there is one."""

    def __init__(
        self,
        coordinates: int,
        size: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        scale: torch.Tensor | None = None,
    ) -> None:
        self.size, self.rows = size, math.ceil(coordinates / size)
        generator = torch.Generator().manual_seed(seed)
        self.padding = self.rows * size - coordinates
        signs = torch.randint(0, 2, (self.rows, size), generator=generator).float() * 2 - 1
        self.signs = signs.to(device)
        self.scale = None if scale is None else scale.to(device)

    @property
    def identity(self) -> Any:
        """What a stored sketch depends on besides its gradient."""
        if self.scale is None:
            return self.size
        return [self.size, hashlib.sha256(self.scale.cpu().numpy().tobytes()).hexdigest()[:12]]

    def scaled(self, gradients: torch.Tensor) -> torch.Tensor:
        """The gradients whose products a sketch has."""
        return gradients if self.scale is None else gradients * self.scale

    def __call__(self, gradients: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(self.scaled(gradients), (0, self.padding))
        return (padded.unflatten(-1, (self.rows, self.size)) * self.signs).sum(-2)


def measured(model: Any) -> list[torch.nn.Parameter]:
    """The parameters whose gradient is measured: those that ask for one, all of a tiny model, the last layers of a large."""
    return [p for p in model.parameters() if p.requires_grad]


def coordinates(model: Any) -> int:
    return sum(p.numel() for p in measured(model))


def segment_gradients(
    model: Any, prompt: Sequence[int], response: Sequence[int], spans: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """∇ Σ_{t in span} log π(o_t) of each half-open span of the response, (spans, parameters). One forward pass.

    Where the output layer is not measured, all spans go through it together: a log-prob depends on the hidden state of
    its own position alone, so that a span's share of that gradient is its own positions.
    """
    if model.get_output_embeddings().weight.requires_grad:
        log_probs = _log_probs(model, [(prompt, response)])[0]
        outputs = torch.stack([log_probs[start:end].sum() for start, end in spans])
        seeds = torch.eye(len(spans), device=model.device)
    else:
        outputs, at_hidden = _at_hidden_states(model, prompt, response)
        position = torch.arange(len(response), device=model.device)
        own = torch.stack([(position >= start) & (position < end) for start, end in spans])
        seeds = own[..., None] * at_hidden
    found = torch.autograd.grad(outputs, measured(model), seeds, is_grads_batched=True)
    return torch.cat([g.flatten(1) for g in found], dim=1)


def _at_hidden_states(
    model: Any, prompt: Sequence[int], response: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states that the response's tokens are predicted from, and the gradient of Σ log π there, both (T, n)."""
    ids = torch.tensor([[*prompt, *response]], device=model.device)
    hidden = model.base_model(ids, use_cache=False).last_hidden_state[0, len(prompt) - 1 : -1]
    leaf = hidden.detach().requires_grad_()
    log_probs = model.get_output_embeddings()(leaf).log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])
    return hidden, torch.autograd.grad(log_probs.sum(), leaf)[0]


def weighted_gradient(
    model: Any,
    prompt: Sequence[int],
    responses: Sequence[Sequence[int]],
    weights: Sequence[float],
    together: int = 64,
) -> torch.Tensor:
    """Σ_i w_i ∇ log π(response i), (parameters,)."""
    total = torch.zeros(coordinates(model), device=model.device)
    for first in range(0, len(responses), together):
        part = responses[first : first + together]
        log_probs = _log_probs(model, [(prompt, response) for response in part])
        own = torch.tensor(weights[first : first + together], dtype=torch.float32, device=model.device)
        loss = (torch.stack([x.sum() for x in log_probs]) * own).sum()
        total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, measured(model))])
    return total


def _log_probs(model: Any, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[torch.Tensor]:
    """Log-probs of each row's response; padding on the right, which causal attention keeps out."""
    width = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    for i, (prompt, response) in enumerate(rows):
        ids[i, : len(prompt) + len(response)] = torch.tensor([*prompt, *response])
    ids = ids.to(model.device)
    normed = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    picked = normed.gather(-1, ids[:, 1:, None])[..., 0]
    return [
        picked[i, len(prompt) - 1 : len(prompt) + len(response) - 1] for i, (prompt, response) in enumerate(rows)
    ]
