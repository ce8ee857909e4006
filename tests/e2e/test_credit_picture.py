"""The README's picture can be drawn again from the dumps of a run."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_report import record

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def draw(folder: Path, picture: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "credit_picture.py"), str(folder), "--output", str(picture)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def lines(prompts: list[str]) -> list[dict]:
    """Two responses that go wrong apart and a right one of each prompt."""
    credits = [[-0.75, 0.25, 0.0], [0.25, -0.75, 0.0], [0.25, 0.25, 0.0]]
    return [
        {**record(own, uid=prompt, texts=[f"{i}{k}\n" for k in range(3)]), "prompt": prompt}
        for prompt in prompts
        for i, own in enumerate(credits)
    ]


def test_two_tasks_become_one_picture_and_one_task_is_said(tmp_path: Path) -> None:
    dump, picture = tmp_path / "1.jsonl", tmp_path / "credit.png"
    dump.write_text("\n".join(map(json.dumps, lines(["Sort ascending: 2 1", "1 + 1 ="]))))
    done = draw(tmp_path, picture)
    assert done.returncode == 0, done.stderr
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert width == 1824 and 600 < height < 3000
    dump.write_text("\n".join(map(json.dumps, lines(["1 + 1 ="]))))
    done = draw(tmp_path, picture)
    assert done.returncode == 2 and "no prompt with two wrong responses" in done.stderr
