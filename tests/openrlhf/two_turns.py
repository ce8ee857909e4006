"""An agent for ``--train.agent_func_path``: a wrong answer gets a second try, after a turn of the user that is masked; the first
try is paid a little."""

from __future__ import annotations

import json
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from rredcot_plugin.demo.reward import compute_score

END = "<|im_end|>"
TRIED = 0.125
AGAIN = f"\n<|im_start|>user\nAgain\n{END}\n<|im_start|>assistant\n"


class AgentInstance(AgentInstanceBase):
    """One conversation."""

    def __init__(self) -> None:
        self.turns = 0

    async def reset(self, states: dict[str, Any], **unused: Any) -> dict[str, Any]:
        return {"observation": states["observation"]}

    async def step(self, states: dict[str, Any], **unused: Any) -> dict[str, Any]:
        self.turns += 1
        known = json.loads(states["label"])
        score = compute_score(known["source"], states["action_text"].split(END)[0], known["answer"])["score"]
        done = self.turns == 2 or score > 0
        return {
            "rewards": torch.tensor(score if done else TRIED),
            "scores": torch.tensor(score),
            "environment_feedback": "" if done else AGAIN,
            "done": done,
            "extra_logs": {"turns": torch.tensor(float(self.turns))},
            "sampling_params": states["sampling_params"],
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF looks for in the file."""

    def __init__(self) -> None:
        super().__init__(AgentInstance)
