"""The rewards of ../math and ../code in the form that OpenRLHF's ``--reward.remote_url FILE`` asks for.

    RREDCOT_TASK=math        ../math/reward.py: does the final answer equal the ground truth?
    RREDCOT_TASK=code        ../code/reward.py: do all tests pass in the sandbox?

``--data.label_key reward_model`` hands over the column that the recipes' ``prepare_data.py`` writes: a mapping with
``ground_truth``. OpenRLHF swallows what a reward raises and counts the rollout as one without a reward, so mistakes of
the data are looked for before (``rredcot dry-run``).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

TASKS = ("math", "code")
TASK = os.environ.get("RREDCOT_TASK", "math")
ENDS = ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>")
"""What closes a response; OpenRLHF decodes it with its special tokens."""


def _load() -> Any:
    if TASK not in TASKS:
        raise ValueError(f"RREDCOT_TASK={TASK}: expected one of {', '.join(TASKS)}")
    here = Path(__file__).resolve().parent
    path = next(path for path in (here.parent / TASK / "reward.py", here / TASK / "reward.py") if path.is_file())
    spec = importlib.util.spec_from_file_location(f"rredcot_{TASK}_reward", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


compute_score = _load()


def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
    """0 or 1 for each response, on the CPU; a query is its prompt and the response.

    Raises:
        ValueError: a label without a ground truth (a mistake in the data, or another ``--data.label_key``).
    """
    scores = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        if not isinstance(label, Mapping) or "ground_truth" not in label:
            raise ValueError(f"--data.label_key: expected a mapping with 'ground_truth', got {str(label)[:200]!r}")
        response = _without_ends(_response(query, prompt))
        score = compute_score("", response, label["ground_truth"], {"question": prompt})
        scores.append(float(score["score"]))
    found = torch.tensor(scores)
    return {"rewards": found, "scores": found, "extra_logs": {"acc": found}}


def _without_ends(response: str) -> str:
    """The response without what closes it. One look from its end: a regular expression would begin anew at each blank."""
    left = response.rstrip()
    while left.endswith(ENDS):
        left = left.removesuffix(next(end for end in ENDS if left.endswith(end))).rstrip()
    return left


def _response(query: str, prompt: str) -> str:
    """What follows the prompt in a query; OpenRLHF cuts a prompt that is too long from the left in the query alone."""
    cut = query.lstrip("\ufffd")  # a cut within a character
    for text in (query, cut):
        for start in (i for i, character in enumerate(prompt) if character == text[:1]):
            if text.startswith(prompt[start:]):
                return text[len(prompt) - start :]
    return query
