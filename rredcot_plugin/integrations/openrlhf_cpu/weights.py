"""Runs after ``openrlhf.utils.distributed_util``: weights go to the engines through a TCP store, as raw bytes."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any

import openrlhf.utils.distributed_util as host
import torch

PATIENCE = timedelta(minutes=10)
PART_BYTES = 4 << 20  # the store refuses values above 8 MiB
KEPT = 2


class StoreCommunicator:
    """What OpenRLHF asks of vLLM's communicator: ``broadcast`` from rank 0, tensor by tensor in the same order everywhere.

    Only the last two tensors are kept: OpenRLHF waits for all engines after each one. A tensor travels in parts.

    Raises:
        RuntimeError: a tensor of another size than the one that was sent, or none within ten minutes.
    """

    def __init__(self, address: str, port: int, rank: int, world_size: int) -> None:
        self.rank, self.count = rank, 0
        self.sent: deque[list[str]] = deque()
        self.store = torch.distributed.TCPStore(address, port, world_size, rank == 0, timeout=PATIENCE)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        key, self.count = f"weight {self.count}", self.count + 1
        if self.rank == src:
            self._send(key, tensor.detach().cpu().contiguous().flatten().view(torch.uint8))
        else:
            data = self._receive(key, tensor)
            with torch.no_grad():
                tensor.copy_(torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape))

    def _send(self, key: str, data: torch.Tensor) -> None:
        keys = [key]
        for number, part in enumerate(data.split(PART_BYTES)):
            keys.append(f"{key} part {number}")
            raw: Any = part.numpy().tobytes()
            self.store.set(keys[-1], raw)
        self.store.set(key, str(len(data)))
        self.sent.append(keys)
        for old in self.sent.popleft() if len(self.sent) > KEPT else ():
            self.store.delete_key(old)

    def _receive(self, key: str, tensor: torch.Tensor) -> bytearray:
        expected, size = tensor.numel() * tensor.element_size(), int(self.store.get(key))
        if size != expected:
            raise RuntimeError(
                f"{key} has {size} bytes, expected {expected} for {tuple(tensor.shape)} of {tensor.dtype}"
            )
        data = bytearray()
        for number in range(-(-size // PART_BYTES)):
            data += self.store.get(f"{key} part {number}")
        return data


def stateless_init_process_group(
    address: str, port: int, rank: int, world_size: int, device: Any
) -> StoreCommunicator:
    return StoreCommunicator(address, port, rank, world_size)


host.stateless_init_process_group = stateless_init_process_group
