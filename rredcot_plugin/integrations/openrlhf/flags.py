"""What OpenRLHF's own parser makes of flags, for whoever only looks: ``python -m rredcot_plugin.integrations.openrlhf.flags FILE FLAGS``.

In a process of its own, because OpenRLHF's parser runs with its program, and on the CPU platform, because that needs no GPU.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rredcot_plugin.integrations.openrlhf.arguments import split_arguments
from rredcot_plugin.integrations.openrlhf.hooks import activate
from rredcot_plugin.integrations.openrlhf.train import parsed


def main(file: str, words: Sequence[str]) -> None:
    """Write the flags, nested as ``args`` of OpenRLHF's ``train`` are, to a file as JSON."""
    os.environ["OPENRLHF_PLATFORM"] = "cpu"
    activate()
    Path(file).write_text(json.dumps(parsed(split_arguments(words)), default=_as_dict), encoding="utf-8")


def read(file: Path) -> SimpleNamespace:
    """What ``main`` wrote."""
    found: SimpleNamespace = json.loads(
        file.read_text(encoding="utf-8"), object_hook=lambda fields: SimpleNamespace(**fields)
    )
    return found


def _as_dict(value: Any) -> Any:
    return vars(value) if isinstance(value, SimpleNamespace) else str(value)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
