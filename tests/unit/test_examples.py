"""Every example runs by itself (together inside verl: tests/e2e/test_estimators.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(file: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_example_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert not [file.name for file in EXAMPLES.glob("*.py") if f"({file.name})" not in page]
