"""`rredcot score` of a model that is not there, and into what is not a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.scored import rollouts, score  # noqa: F401  fixtures


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            "/nowhere/m",
            "no such folder; expected a folder with config.json, tokenizer and weights, or a name on the",
        ),
        ("./nowhere", "no such folder; expected a folder with config.json"),
        ("~/nowhere", "the shell did not expand ~: write $HOME instead"),
        (__file__, "is a file; expected a folder with config.json"),
        (str(Path(__file__).parent), "no config.json in this folder; expected a folder with config.json"),
    ],
)
def test_a_path_to_nothing_is_no_name_on_the_hub(rollouts: Path, model: str, told: str) -> None:
    result = score(rollouts, model=model)
    assert result.exit_code == 1
    assert f"model={model}: " in result.stderr
    assert told in result.stderr
    assert "Repo id" not in result.stderr


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_is_no_output(rollouts: Path, tmp_path: Path, force: list[str]) -> None:
    result = score(rollouts, "-o", str(tmp_path), *force)
    assert result.exit_code == 2
    assert f"{tmp_path}: expected a file to write to, got a folder" in result.stderr
