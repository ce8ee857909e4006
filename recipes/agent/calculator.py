"""The calculator as a tool of verl's agent loop; calculator.yaml names it."""

from __future__ import annotations

from typing import Any

from arithmetic import calculate
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Calculator(BaseTool):
    """``calculator(expression)``."""

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """The reply to one call. ``parameters`` is whatever JSON the model wrote; verl logs the metrics nowhere."""
        expression = parameters.get("expression") if isinstance(parameters, dict) else None
        return ToolResponse(text=calculate(expression)), 0.0, {}
