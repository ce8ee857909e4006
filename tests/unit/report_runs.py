"""Dumps, and runs of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app

WIDE = {"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"}


ATTACK = '</script><script>alert("1")</script><img src=x onerror=alert(2)> [bold]x[/bold] \x1b[2J\u202e'


def trace(
    credits: list[float], *, step: int = 1, uid: str = "a", text: str = "line", prompt: str = "1 + 1 ="
) -> Any:
    """A dump line as the trainer writes it, of a prompt of value 0.5."""
    values = [0.5]
    for credit in credits:
        values.append(values[-1] + credit)
    segments = [
        {
            "text": f"{text} {i}\n",
            "tokens": 3,
            "value": values[i],
            "reward": credit + (0.5 if i == 0 else 0.0),
            "advantage": values[-1] - values[i],
        }
        for i, credit in enumerate(credits)
    ]
    return {
        "step": step, "uid": uid, "prompt": prompt, "ground_truth": "2", "reward": values[-1], "segments": segments,
    }  # fmt: skip


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in records)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps of a run, in a folder that commands run beside."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "credit" / "1.jsonl", trace([0.1, -0.6]), trace([0.2, 0.3], text="right"))
    write(tmp_path / "credit" / "2.jsonl", trace([0.3, 0.2], step=2), trace([0.2, -0.7], step=2, text="worst"))
    return tmp_path / "credit"


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env=WIDE)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result
