"""Runs after `verl.workers.engine`: FSDP2 training engines for device "cpu" (actor, reference, critic)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class CPUEngineMixin:
    """verl's FSDP engine, with its two assumptions about an accelerator removed.

    - FSDP1 names the device by index, which a CPU does not have: only `strategy=fsdp2` is supported.
    - FSDP2's offload policy, which verl forces on forward-only (reference) engines, pins host memory for copies to
      the accelerator: here the parameters are where they belong already.

    Raises ValueError for any strategy but fsdp2.
    """

    engine_config: Any

    def __init__(self, model_config: Any, engine_config: Any, *args: Any, **kwargs: Any) -> None:
        if engine_config.strategy != "fsdp2":
            raise ValueError(
                f"strategy={engine_config.strategy} is not supported on the CPU, only fsdp2: set "
                "actor_rollout_ref.actor.strategy=fsdp2 (and critic.strategy=fsdp2 where there is a critic)"
            )
        super().__init__(model_config, engine_config, *args, **kwargs)  # type: ignore[call-arg]

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        configured = self.engine_config
        self.engine_config = dataclasses.replace(configured, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = configured


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithLMHead(CPUEngineMixin, FSDPEngineWithLMHead):
    """Actor and reference policy on the CPU."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithValueHead(CPUEngineMixin, FSDPEngineWithValueHead):
    """Critic on the CPU."""
