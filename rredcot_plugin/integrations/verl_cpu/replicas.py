"""Runs after `verl.workers.rollout.replica`: the rollouts that work on a CPU, by their `rollout.name`.

`hf_cpu` is new; `vllm` replaces verl's own entry. A rollout has two halves: the replica (starts the server) and
the adapter (lives in the training worker and sends it weights). verl has a `register` for the first table only.
"""

from __future__ import annotations

from typing import Any

from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplicaRegistry

_PACKAGE = "rredcot_plugin.integrations.verl_cpu"


def _load_hf() -> type[Any]:
    from rredcot_plugin.integrations.verl_cpu.hf_replica import HFReplica

    return HFReplica


def _load_vllm() -> type[Any]:
    from rredcot_plugin.integrations.verl_cpu.vllm_replica import CPUvLLMReplica

    return CPUvLLMReplica


RolloutReplicaRegistry.register("hf_cpu", _load_hf)
RolloutReplicaRegistry.register("vllm", _load_vllm)
base._ROLLOUT_REGISTRY[("hf_cpu", "async")] = f"{_PACKAGE}.hf_adapter.HFServerAdapter"
base._ROLLOUT_REGISTRY[("vllm", "async")] = f"{_PACKAGE}.vllm_adapter.CPUvLLMServerAdapter"
