"""Runs after ``openrlhf.trainer.ppo_utils.samples_generator``: experiences that keep what was told of parts of a response."""

from __future__ import annotations

from typing import Any

import openrlhf.trainer.ppo_utils.samples_generator as host

from rredcot_plugin.integrations.openrlhf.earned import KEPT

Base: Any = host.SamplesGenerator


class RRedCoTSamplesGenerator(Base):
    """OpenRLHF's, which makes a number of each of the ``extra_logs``; ours go beside them, a list of one entry for each row."""

    def _process_response_into_experience(self, response: dict[str, Any], **kwargs: Any) -> Any:
        logs = response.get("extra_logs") or {}
        numbers = {name: value for name, value in logs.items() if name not in KEPT}
        made = super()._process_response_into_experience({**response, "extra_logs": numbers}, **kwargs)
        made.info |= {name: [logs.get(name)] for name in KEPT}
        return made


host.SamplesGenerator = RRedCoTSamplesGenerator
