"""One trace with its credit as a plain mapping: what dumps and `rredcot score` write, and reports read."""

from __future__ import annotations

from typing import Any

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.types import Credit, Rollouts

MAX_PROMPT_TOKENS = 2048
"""Of a longer prompt only its end is written."""


def trace_record(
    step: int, row: int, rows: PromptedRollouts, rollouts: Rollouts, credit: Credit, table: TokenBytes
) -> dict[str, Any]:
    prompt, _ = table.align(rows.prompts[row][-MAX_PROMPT_TOKENS:].cpu().numpy())
    truth = rollouts.ground_truths[row] if rollouts.ground_truths is not None else None
    return {
        "step": step,
        "uid": str(rollouts.group_ids[row]),
        "prompt": prompt,
        "ground_truth": None if truth is None else str(truth),
        "reward": _number(float(rollouts.outcomes[row])),
        "segments": _segments(row, rows, rollouts, credit, table),
    }


def _segments(
    row: int, rows: PromptedRollouts, rollouts: Rollouts, credit: Credit, table: TokenBytes
) -> list[dict[str, Any]]:
    """Text, value before it, redistributed reward and advantage (the mean over its tokens) of each segment."""
    ids = credit.segments.segment_ids[row][rollouts.response_mask[row]].tolist()
    tokens = credit.advantages[row][rollouts.response_mask[row]].tolist()
    text, spans = rows.text_of(row, table)
    found = []
    for segment in range(int(credit.segments.num_segments[row])):
        inside = [i for i, number in enumerate(ids) if number == segment]
        start, end = int(spans[inside[0]][0]), int(spans[inside[-1]][1])
        found.append(
            {
                "text": text[start:end],
                "tokens": len(inside),
                "value": _number(float(credit.values[row, segment])),
                "reward": _number(float(credit.segment_rewards[row, segment])),
                "advantage": _number(sum(tokens[i] for i in inside) / len(inside)),
            }
        )
    return found


def _number(x: float) -> float | None:
    """JSON has no NaN."""
    return round(x, 6) if abs(x) != float("inf") and x == x else None
