"""The demo's reward as OpenRLHF's ``--reward.remote_url FILE`` calls it; a label is {"source", "answer"} as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from rredcot_plugin.demo.reward import compute_score

END = "<|im_end|>"


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """0 or 1 for each response; a query is its prompt and the response."""
    scores = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        known = json.loads(label)
        response = query.removeprefix(prompt).split(END)[0]
        scores.append(compute_score(known["source"], response, known["answer"])["score"])
    found = torch.tensor(scores)
    return {"rewards": found, "scores": found, "extra_logs": {}}
