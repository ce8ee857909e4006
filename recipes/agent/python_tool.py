"""Python as a tool of verl's agent loop, in rredcot's sandbox; python_tool.yaml names it and sets its limits.

Whatever the program does, the reply is a text: what it wrote, or why it wrote nothing. Only a machine that cannot isolate a
program ends the run, when verl builds the tool: without a sandbox no model's code is run here.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from rredcot_plugin.sandbox import Limits, Result, SandboxFailed, run_code

MAX_CODE_CHARS = 20_000


class PythonTool(BaseTool):
    """``python(code)``. Config: ``limits`` (of `rredcot_plugin.sandbox.Limits`), ``programs`` at once, ``isolation``."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.limits = Limits(**config.get("limits", {}))
        self.isolation = os.environ.get("RREDCOT_SANDBOX") or config.get("isolation", "strong")
        self.threads = ThreadPoolExecutor(max_workers=config.get("programs", 8))
        run_code("pass", limits=self.limits, isolation=self.isolation)  # SandboxUnavailable: now, not at a call

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """The reply to one call; ``parameters`` is whatever JSON the model wrote."""
        code = parameters.get("code") if isinstance(parameters, dict) else None
        if not isinstance(code, str) or not code.strip():
            return ToolResponse(text="error: no code"), 0.0, {}
        if len(code) > MAX_CODE_CHARS:
            return ToolResponse(text=f"error: more than {MAX_CODE_CHARS} characters"), 0.0, {}
        loop = asyncio.get_running_loop()
        return ToolResponse(text=await loop.run_in_executor(self.threads, self._run, code)), 0.0, {}

    def _run(self, code: str) -> str:
        try:
            return said(run_code(code, limits=self.limits, isolation=self.isolation), self.limits)
        except SandboxFailed:
            return "error: the program could not be started"
        except ValueError:  # text that cannot be encoded
            return "error: not a program"


def said(result: Result, limits: Limits) -> str:
    """What a program wrote, then its last error line; or why there is nothing."""
    parts = [result.stdout.rstrip()]
    if result.ended == "timeout":
        parts.append(f"error: not finished after {limits.wall_seconds:g} seconds")
    elif result.ended == "output":
        parts.append(f"error: more than {limits.output_bytes} bytes of output")
    elif not result.ok:
        lines = result.stderr.strip().splitlines()
        parts.append(lines[-1] if lines else f"error: exit status {result.returncode}")
    return "\n".join(filter(None, parts)) or "error: nothing was printed"
