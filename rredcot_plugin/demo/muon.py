"""Muon: momentum whose update is orthogonalised, for the weight matrices of the demo's reasoner.

With momentum buffer M_t = μ M_{t-1} + (1 - μ) G_t and its Nesterov look-ahead N_t = μ M_t + (1 - μ) G_t, the
update is U V^T of N_t = U S V^T, so that every direction is learned at the same speed. Five Newton-Schulz
steps approximate it. The update is scaled by 0.2 √max(rows, columns), which gives it AdamW's usual root mean
square, so that one learning rate suits both. On this model it needs under half of AdamW's steps. torch's own
`torch.optim.Muon` iterates in bfloat16, which a CPU without bfloat16 units emulates slowly; this is float32.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); the scale is from
"Muon is scalable for LLM training" (arXiv 2502.16982).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_QUINTIC = (3.4445, -4.7750, 2.0315)  # drives singular values from (0, 1] to about 0.7..1.2
_ITERATIONS = 5


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Approximately U V^T of a matrix U S V^T: its singular values all moved near one."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / (wide.norm() + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Muon for two-dimensional parameters, with decoupled weight decay."""

    def __init__(
        self, params: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; closures are not supported."""
        if closure is not None:
            raise ValueError("closure: got one, expected None")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(gradient, 1 - group["momentum"])
        update = orthogonalize(torch.lerp(gradient, buffer, group["momentum"]))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)
