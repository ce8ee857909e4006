"""What two steps on the CPU train on: a tiny model that has read the data's solutions, and prompts that it can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rredcot_plugin.dry_run.architecture import Architecture, write_tiny
from rredcot_plugin.dry_run.data import Data, write
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.reward import RewardTrial
from rredcot_plugin.dry_run.tools import Tools
from rredcot_plugin.dry_run.warm_start import practise, prompt_ids

PROMPTS, MOST_ROLLOUTS = 4, 4
MICRO_BATCH = 8
MOST_PROMPT_TOKENS, MOST_RESPONSE_TOKENS = 512, 192
CALL_EVERY = 4
"""Of so many prompts of an agent one is practised with a call of a tool, and the others with their solution."""
TOOL_TOKENS = 64
"""Room for what the tool replies, in which the tiny model may speak again."""
LOG = "train.log"


@dataclass(frozen=True)
class Trial:
    """What a run trains on, and how small."""

    model: Path
    train: Path
    val: Path
    prompt_length: int
    response_length: int
    steps: int


def trial_of(
    architecture: Architecture,
    found: Data,
    reward: RewardTrial,
    prompts: Sequence[Any],
    limits: tuple[int, int],
    folder: Path,
    tools: Tools | None = None,
) -> Trial:
    """Write model and data below ``folder``; ``prompts``: messages or text of each row; ``limits``: the recipe's longest
    response, and steps.

    Raises:
        RecipeError: too few prompts that are short enough.
    """
    model, tokenizer = folder / "tiny_model", architecture.tokenizer
    solutions = [text or "" for text in reward.best]
    write_tiny(architecture, model)
    schemas, call = (list(tools.schemas), tools.call) if tools else (None, None)
    lengths = [len(prompt_ids(tokenizer, prompt, schemas)) for prompt in prompts]
    short = [i for i, length in enumerate(lengths) if length <= MOST_PROMPT_TOKENS]
    if len(short) < PROMPTS:
        raise RecipeError(
            f"data: {len(short)} of {len(prompts)} prompts have at most {MOST_PROMPT_TOKENS} tokens; a dry run needs "
            f"{PROMPTS}"
        )
    pairs = [(prompts[i], solutions[i]) for i in short if solutions[i]]
    if call:
        pairs[::CALL_EVERY] = [(prompt, call) for prompt, _ in pairs[::CALL_EVERY]]
    practise(model, tokenizer, pairs, schemas)
    responses = [len(tokenizer.encode(text)) for text in solutions]
    if call:
        responses = [length + len(tokenizer.encode(call)) + TOOL_TOKENS for length in responses]
    longest, steps = limits
    return Trial(
        model,
        write(found.train.take(short), folder / "train.parquet"),
        write(found.val.slice(0, PROMPTS), folder / "val.parquet"),
        prompt_length=max(lengths[i] for i in short),
        response_length=min(MOST_RESPONSE_TOKENS, max(responses) + 16, longest),
        steps=steps,
    )
