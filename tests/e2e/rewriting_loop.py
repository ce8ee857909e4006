"""An agent loop of verl's that rewrites its context: two outputs a session."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

DRAFT, KEPT = 12, 4
"""Tokens of the draft, and how many of them the second prompt keeps."""


class RewritingLoop(SingleTurnAgentLoop):
    """A short draft, then an answer to the question with the end of the draft behind it."""

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> list[AgentLoopOutput]:
        draft = await super().run({**sampling_params, "max_tokens": DRAFT}, priority, **kwargs)
        *before, question = kwargs["raw_prompt"]
        kept = self.tokenizer.decode(draft.response_ids[-KEPT:])
        rewritten = [*before, {**question, "content": f"{question['content']} {kept}"}]
        answer = await super().run(sampling_params, priority, **{**kwargs, "raw_prompt": rewritten})
        return [draft, answer]
