"""What a dry run has to say."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING_TRAINED = "nothing was trained: a dry run needs a reward that is a Python function"


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``kind`` is ``ok`` (checked), ``need`` (estimated) or ``note`` (to be read)."""

    name: str
    text: str
    kind: str = "ok"
