"""Runs after ``openrlhf.utils.distributed_util``: weights go to the engines through a TCP store, as raw bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import openrlhf.utils.distributed_util as host
import torch

PATIENCE = timedelta(minutes=10)


class StoreCommunicator:
    """What OpenRLHF asks of vLLM's communicator: ``broadcast`` from rank 0, tensor by tensor in the same order everywhere.

    Only the last two tensors are kept: OpenRLHF waits for all engines after each one.

    Raises:
        RuntimeError: a tensor of another size than the one that was sent, or none within ten minutes.
    """

    def __init__(self, address: str, port: int, rank: int, world_size: int) -> None:
        self.rank, self.count = rank, 0
        self.store = torch.distributed.TCPStore(address, port, world_size, rank == 0, timeout=PATIENCE)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        key, self.count = f"weight {self.count}", self.count + 1
        if self.rank == src:
            raw: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            self.store.set(key, raw)
            if self.count > 2:
                self.store.delete_key(f"weight {self.count - 3}")
            return
        data = bytearray(self.store.get(key))
        if len(data) != tensor.numel() * tensor.element_size():
            raise RuntimeError(
                f"{key} has {len(data)} bytes, expected {tensor.numel() * tensor.element_size()} for {tuple(tensor.shape)} "
                f"of {tensor.dtype}"
            )
        with torch.no_grad():
            tensor.copy_(torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape))


def stateless_init_process_group(
    address: str, port: int, rank: int, world_size: int, device: Any
) -> StoreCommunicator:
    return StoreCommunicator(address, port, rank, world_size)


host.stateless_init_process_group = stateless_init_process_group
