"""An output that cannot be written ends each command with one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from tests.unit.test_filter import WIDE, scored  # noqa: F401  fixture

RECIPE = "math/run_qwen3_4b_fsdp2_vllm.sh"


@pytest.mark.parametrize("command", ["filter", "recipe", "demo", "dry-run"])
def test_a_place_below_a_file_is_refused(command: str, scored: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python -m verl.trainer.main_ppo\n")
    words = {
        "filter": ["filter", str(scored), "--where", "reward > 0"],
        "recipe": ["recipe", "print", RECIPE],
        "demo": ["demo"],
        "dry-run": ["dry-run", str(script)],
    }
    below = scored / "below"
    result = CliRunner().invoke(app, [*words[command], "--out", str(below)], env=WIDE)
    assert result.exit_code == 2, result.output
    assert f"out={below}: " in result.output
    assert "cannot be written" in result.output or "no folder" in result.output
