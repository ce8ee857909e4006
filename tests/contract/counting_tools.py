"""The agent recipe's calculator, which counts its calls; and one that cannot be played again, because it says the count."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from verl.tools.schemas import ToolResponse

AGENT = Path(__file__).parents[2] / "recipes/agent"
sys.path.insert(0, str(AGENT))
try:
    from calculator import Calculator
    from tool_dialogue import build_tokenizer, call
finally:
    sys.path.remove(str(AGENT))

__all__ = ["AGENT", "CountingCalculator", "UnsteadyCalculator", "build_tokenizer", "call"]


class CountingCalculator(Calculator):
    """Answers as it always does."""

    calls: ClassVar[list[Any]] = []

    async def execute(
        self, instance_id: str, parameters: Any, *, agent_data: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        self.calls.append(parameters["expression"])
        agent_data.extra_fields["called"] = agent_data.extra_fields.get("called", 0) + 1
        return await super().execute(instance_id, parameters, **kwargs)


class UnsteadyCalculator(CountingCalculator):
    """Never answers alike."""

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        reply, reward, metrics = await super().execute(instance_id, parameters, **kwargs)
        return ToolResponse(text=f"{reply.text} {len(self.calls)}"), reward, metrics
