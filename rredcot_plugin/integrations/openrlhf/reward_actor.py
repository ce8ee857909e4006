"""Runs after ``openrlhf.trainer.ray.launcher``: a reward model that also gives its score at every token, for ``red``."""

from __future__ import annotations

from typing import Any

import openrlhf.trainer.ray.launcher as host
import ray
import torch

Base: Any = host.RewardModelActor.__ray_metadata__.modified_class


class RRedCoTRewardModelActor(Base):
    """OpenRLHF's; ``forward`` with ``every_token`` returns a dict."""

    def forward(
        self,
        sequences: torch.Tensor,
        attention_mask: torch.Tensor,
        packed_seq_lens: Any = None,
        pad_sequence: bool = False,
        every_token: bool = False,
    ) -> Any:
        """Rewards (B,); with ``every_token`` a dict with them under ``rewards`` and, under ``scores``, what the head says after
        each token, (B, T) float32, NaN in the padding, normalised as the reward is."""
        given = (sequences, attention_mask, packed_seq_lens, pad_sequence)
        if not every_token:
            return super().forward(*given)
        model: Any = getattr(self.model, "module", self.model)
        kept: list[torch.Tensor] = []
        head = getattr(model, model.value_head_prefix)
        handle = head.register_forward_hook(lambda module, inputs, output: kept.append(output))
        try:
            rewards = super().forward(*given)
        finally:
            handle.remove()
        found = kept[-1].squeeze(-1).float().cpu()
        if model.normalize_reward:
            found = (found - model.mean.float().cpu()) / model.std.float().cpu()
        there = attention_mask.bool()
        scores = torch.full(there.shape, torch.nan)
        # of packed samples the head has seen the real tokens alone, in their order
        scores[there] = found[there] if found.shape == there.shape else found.flatten()[: int(there.sum())]
        return {"rewards": rewards, "scores": scores}


host.RewardModelActor = ray.remote(num_gpus=1)(RRedCoTRewardModelActor)
