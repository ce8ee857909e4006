"""Lines of rollouts for the tests of reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def trace(
    credits: list[float],
    *,
    step: int = 1,
    uid: str = "a",
    prior: float = 0.5,
    text: str = "line",
    prompt: str = "p",
) -> dict[str, Any]:
    """A dump line as the trainer writes it; the reward follows from prior and credits."""
    values = [prior]
    for credit in credits:
        values.append(values[-1] + credit)
    segments = [
        {
            "text": f"{text} {i}\n",
            "tokens": 3 + i,
            "value": values[i],
            "reward": credit + (prior if i == 0 else 0.0),
            "advantage": values[-1] - values[i],
        }
        for i, credit in enumerate(credits)
    ]
    return {
        "step": step, "uid": uid, "prompt": prompt, "ground_truth": "2", "reward": values[-1], "segments": segments,
    }  # fmt: skip


def write(path: Path, records: Iterable[Any]) -> Path:
    lines = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in records)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
