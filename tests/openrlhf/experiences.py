"""A step's experiences in OpenRLHF's own class, with traces of many shapes, and the arguments that its maker reads."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch

GROUP, BATCH, ORDER = 4, 4, (3, 0, 5, 1, 4, 2)
PROMPT = 10


def arguments(estimator: str, lam: float = 1.0) -> SimpleNamespace:
    """What ``hierarchize`` makes of a command line, as far as it is read."""
    space = SimpleNamespace
    return space(
        algo=space(
            advantage=space(
                estimator=estimator, gamma=1.0, lambd=lam, no_std_norm=False, is_correction_level="off"
            ),
            kl=space(use_loss=False),
        ),
        rollout=space(n_samples_per_prompt=GROUP, micro_batch_size=BATCH, max_new_tokens=40),
        reward=space(
            clip_range=(-10, 10),
            overlong_buffer_len=None,
            stop_properly_penalty_coef=None,
            remote_url=["reward.py"],
            model_name_or_path=None,
        ),
        ds=space(ring_attn_size=1, tensor_parallel_size=1, packing_samples=False, attn_implementation="sdpa"),
        data=space(max_images_per_prompt=0),
        train=space(dynamic_batch_enable=False, agent_func_path=None),
    )


def experiences(host: Any, *, kl: float = 0.0, seed: int = 0) -> list[Any]:
    """Six micro-batches of four rows, a group each, in another order than they were drawn in; some tokens are masked."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(len(ORDER)):
        lengths = (PROMPT + torch.randint(8, 30, (BATCH,), generator=generator)).tolist()
        width = max(lengths)
        actions, attention = (
            torch.zeros(BATCH, width - 1, dtype=torch.long),
            torch.zeros(BATCH, width, dtype=torch.long),
        )
        for row, length in enumerate(lengths):
            actions[row, PROMPT - 1 : length - 1], attention[row, :length] = 1, 1
        actions[0, PROMPT + 2 : PROMPT + 5] = 0  # what an environment said
        rewards = torch.randint(0, 2, (BATCH,), generator=generator).float()
        found.append(
            host.Experience(
                sequences=torch.randint(20, 90, (BATCH, width), generator=generator),
                attention_mask=attention,
                action_mask=actions,
                action_log_probs=-torch.rand(BATCH, width - 1, generator=generator) * actions,
                values=torch.rand(BATCH, width - 1, generator=generator) * actions,
                rewards=rewards,
                index=list(range(BATCH * number, BATCH * (number + 1))),
                labels=[json.dumps({"answer": "1"})] * BATCH,
                kl=kl * torch.rand(BATCH, width - 1, generator=generator) * actions,
                total_length=torch.tensor(lengths).float(),
                response_length=torch.tensor(lengths) - PROMPT,
                truncated=torch.zeros(BATCH, dtype=torch.bool),
                info={},
            )
        )
    return [found[i] for i in ORDER]
