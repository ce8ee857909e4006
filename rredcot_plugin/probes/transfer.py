"""Moving what follows from a layout to the device."""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, without waiting for what a GPU has yet to compute.

    `tensor.to("cuda")` alone does wait: it returns once the copy is done, and the copy is queued behind the trunk's
    forward. From pinned memory it need not.
    """
    if device.type != "cuda":  # elsewhere torch does not promise that pinned memory outlives the copy
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
