"""Six small sums at once: every line decides for itself, the answer names all results, and all must be right.

What a step was worth shows in the answers that are still possible after it: once a result is wrong, no rewarded answer
is probable any more, and probes see that at once. Rewards come from many decisions, each of which says little alone.
Or every result earns its share, as unit tests do that pass one by one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

PARTS, MINUSES = 6, 4
FIRST, SECOND = (11, 49), (1, 9)
"""From and to of the two numbers of a part."""


def draw_parts(rng: random.Random) -> tuple[str, ...]:
    """Parts such as ``34-7`` and ``12+5``; ``MINUSES`` of them take away, in any places."""
    taken = set(rng.sample(range(PARTS), MINUSES))
    return tuple(
        f"{rng.randint(*FIRST)}{'-' if number in taken else '+'}{rng.randint(*SECOND)}" for number in range(PARTS)
    )


def result(part: str, misread: bool = False) -> int:
    """Of a part; ``misread``: with a minus taken for a plus.

    >>> result("34-7"), result("34-7", misread=True)
    (27, 41)
    """
    first, second = part[:2], part[3:]
    return int(first) + (int(second) if misread or part[2] == "+" else -int(second))


def solve(parts: Sequence[str], misread: Sequence[bool] | None = None) -> tuple[list[str], str]:
    """The line of every part, and the answer; ``misread``: which parts are, none unless given."""
    wrong = [False] * len(parts) if misread is None else misread
    results = [result(part, flag) for part, flag in zip(parts, wrong, strict=True)]
    return [f"{part} {found}" for part, found in zip(parts, results, strict=True)], " ".join(map(str, results))


def misread_parts(parts: Sequence[str], share: float, rng: random.Random) -> tuple[list[str], str]:
    """The same with this share of the parts misread."""
    return solve(parts, [rng.random() < share for _ in parts])


def right_share(answer: str, given: str) -> float:
    """Share of the results that are in their places.

    >>> right_share("27 17 41", "27 17 31 9"), right_share("27 17 41", "x")
    (0.6666666666666666, 0.0)
    """
    wanted = answer.split()
    return sum(map(str.__eq__, wanted, given.split())) / len(wanted)
