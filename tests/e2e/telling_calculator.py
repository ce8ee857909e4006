"""The agent recipe's calculator, which says what the state is worth in which the model speaks again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from verl.tools.schemas import ToolResponse

AGENT = Path(__file__).parents[2] / "recipes/agent"
sys.path.insert(0, str(AGENT))

from calculator import Calculator  # noqa: E402

WORTH = 0.125
"""Of each call that was answered."""


class TellingCalculator(Calculator):
    """Nothing is known of the first turn; of later ones, how many calls came before."""

    async def execute(
        self, instance_id: str, parameters: Any, *, agent_data: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        said = agent_data.extra_fields.setdefault("state_values", {})
        said[agent_data.assistant_turns] = WORTH * (len(said) + 1)
        return await super().execute(instance_id, parameters, **kwargs)
