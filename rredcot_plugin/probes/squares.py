"""Σ_v π_v² of distributions that are there as logits."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = {"cpu": 1 << 18}
"""Numbers that are looked at together, by type of device: what stays in the cache of a core."""

OTHER_BLOCK = 1 << 24
"""On other devices: 64 MiB of float32, enough to keep an accelerator busy."""


def sum_pi_squared(logits: Tensor, temperature: Tensor) -> Tensor:
    """Σ_v softmax(logits / temperature)_v² of each row in float32: logits (N, V), temperature (N,) -> (N,), in (0, 1].

    Rows are worked on in float32 in blocks, so no more than a block is held beside the logits, which stay as they are.
    With m the largest logit of a row it is Σ e^{2(x − m)} / (Σ e^{x − m})²: one exponential per logit.

    Raises:
        ValueError: a temperature that is not above 0.
    """
    if bool((temperature <= 0).any()):
        raise ValueError(f"temperature is {float(temperature.min())}; expected a number greater than 0")
    found = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    width = logits.shape[1]
    step = max(1, min(len(logits), BLOCK.get(logits.device.type, OTHER_BLOCK) // width))
    buffer = torch.empty((step, width), dtype=torch.float32, device=logits.device)
    scaled = bool((temperature != 1).any())
    for start in range(0, len(logits), step):
        rows = logits[start : start + step]
        block = torch.sub(rows, rows.amax(dim=1, keepdim=True).float(), out=buffer[: len(rows)])
        if scaled:
            block.div_(temperature[start : start + step, None])
        block.exp_()
        found[start : start + step] = torch.linalg.vecdot(block, block) / block.sum(dim=1).square()
    return found
