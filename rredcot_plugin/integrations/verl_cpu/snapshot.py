"""Runs after `verl.utils.fsdp_utils`: a weight snapshot "on the CPU" is a copy here, too.

verl's decoupled PPO (`separate_async` with `parameter_sync_step` > 1) keeps the old policy with
`fsdp2_sharded_save_to_cpu`, which calls `.cpu()` on every shard. For a shard that already lives on the CPU this
returns the shard itself, and the "old" policy would follow every update.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from verl.utils import fsdp_utils

_save_to_cpu = fsdp_utils.fsdp2_sharded_save_to_cpu


@wraps(_save_to_cpu)
def fsdp2_sharded_save_to_cpu(model: torch.nn.Module) -> tuple[dict[str, tuple[torch.Tensor, Any]], Any]:
    shards, global_spec = _save_to_cpu(model)
    return {name: (shard.clone(), spec) for name, (shard, spec) in shards.items()}, global_spec


fsdp_utils.fsdp2_sharded_save_to_cpu = fsdp2_sharded_save_to_cpu
