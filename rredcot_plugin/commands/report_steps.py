"""Training steps of `rredcot report`: those that are asked for, and those that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

STEPS = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step of ``N`` or ``N-M``."""
    match = STEPS.fullmatch(text.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise typer.BadParameter(f"step={text}: expected a step such as 40, or a range such as 40-60")
    return low, high


def steps_there(paths: Sequence[Path], *, each: bool) -> str:
    """What steps the files have, ``each`` path on its own; nothing where they cannot be read whatever the steps."""
    from rredcot_plugin.report.read_corpus import read_corpus

    groups = [[path] for path in paths] if each else [list(paths)]
    try:
        found = [sorted(step.step for step in read_corpus(group, max_traces=1).steps) for group in groups]
    except (ValueError, OSError):
        return ""
    names = [f"{group[0]} has" if each else "they have" for group in groups]
    return "; " + "; ".join(
        f"{name} {', '.join(_ranges(steps))}" for name, steps in zip(names, found, strict=True)
    )


def _ranges(steps: Sequence[int]) -> Iterator[str]:
    """Sorted steps as ranges of those that follow each other.

    >>> list(_ranges([1, 2, 3, 7]))
    ['1-3', '7']
    """
    begin = 0
    for end in range(1, len(steps) + 1):
        if end == len(steps) or steps[end] != steps[end - 1] + 1:
            yield f"{steps[begin]}" if end - begin == 1 else f"{steps[begin]}-{steps[end - 1]}"
            begin = end
