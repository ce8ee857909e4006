"""Rollouts, and runs of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.tiny import CHECKPOINT

WIDE = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}


TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


NEWLINE = ("--set", "segmenter=newline")


RAW = (*NEWLINE, "--set", "calibrate=none")


PROBLEMS = {
    "8 + 7 - 9 =": ("6", ["8 + 7 = 15\n15 - 9 = 6\n#### 6", "8 + 7 = 15\n15 - 9 = 4\n#### 4"]),
    "3 + 4 + 5 =": ("12", ["3 + 4 = 7\n7 + 5 = 12\n#### 12", "3 + 4 = 8\n8 + 5 = 13\n#### 13"]),
    "9 - 2 - 1 =": ("6", ["9 - 2 = 7\n7 - 1 = 6\n#### 6", "9 - 2 = 6\n6 - 1 = 5\n#### 5"]),
}
"""Question -> right answer, a right and a wrong response."""


def plain_rows() -> list[dict[str, Any]]:
    """Four rollouts a question: right, right, wrong, and one without an answer."""
    rows = []
    for question, (answer, (right, wrong)) in PROBLEMS.items():
        for response in (right, right, wrong, right.partition("\n")[0]):
            reward = float(response == right)
            prompt = [{"role": "user", "content": question}]
            rows.append({"prompt": prompt, "response": response, "reward": reward, "ground_truth": answer})
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(rollouts: Path, *arguments: str, model: Path | str = CHECKPOINT):
    result = CliRunner().invoke(app, ["score", str(rollouts), "--model", str(model), *arguments], env=WIDE)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def values(path: Path) -> list[list[float]]:
    return [[segment["value"] for segment in record["segments"]] for record in records(path)]


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rollouts") / "r.jsonl", plain_rows())


@pytest.fixture(scope="module")
def raw(rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scored without calibration, a segment a line."""
    out = tmp_path_factory.mktemp("raw") / "raw.jsonl"
    result = score(rollouts, "-o", str(out), *RAW)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def demo():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(CHECKPOINT)
