"""Overrides on the command line reach the trainer through the script, or the command says that they did not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import find_launch
from tests.unit.recipe_scripts import RECIPES

OURS = "algorithm.adv_estimator=rredcot"
WAY_OUT = 'end the script\'s command with "$@", or write the key into it'


def written(folder: Path, text: str) -> Path:
    script = folder / "my.sh"
    script.write_text(text)
    return script


@pytest.mark.parametrize("command", [["explain"], ["dry-run", "--steps", "0"]])
def test_an_override_that_the_script_drops_ends_the_command(tmp_path: Path, command: list[str]) -> None:
    script = written(tmp_path, "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo\n")
    result = CliRunner().invoke(app, [*command, str(script), "-O", OURS])
    assert result.exit_code == 1
    assert f"-O {OURS} did not reach verl: {WAY_OUT}" in result.output
    assert "grpo" not in result.output


@pytest.mark.parametrize(
    ("command", "override"),
    [
        ('python -m verl.trainer.main_ppo a.b=2 "$@" a.b=1', "a.b=1"),
        ('python -m verl.trainer.main_ppo "$@"', "+c='x y'"),
        ("python -m verl.trainer.main_ppo $*", "~a.b"),
        ('python -m verl.trainer.main_ppo "${@/#/+}"', "a.b=1"),
        (
            'python -m verl.trainer.main_ppo "${@/#++/}"',
            "++a.b=1",
        ),
        ("python -m openrlhf.cli.train_ppo_ray ${@/=/ } --x", "--rollout.batch_size=8"),
        ('rredcot openrlhf "$@" --x', "--train.colocate_all"),
    ],
)
def test_an_override_may_be_rewritten_on_its_way(tmp_path: Path, command: str, override: str) -> None:
    assert find_launch(written(tmp_path, command), [override], tmp_path / "scratch")


@pytest.mark.parametrize(
    ("command", "trainer"),
    [
        ('python -m verl.trainer.main_ppo "$1"', "verl"),
        ('python -m verl.trainer.main_ppo "$1" c.d=3', "verl"),
        ('rredcot openrlhf "$1"', "OpenRLHF"),
    ],
)
def test_only_what_is_missing_is_named(tmp_path: Path, command: str, trainer: str) -> None:
    with pytest.raises(RecipeError) as caught:
        find_launch(written(tmp_path, command), ["a.b=1", "c.d=2"], tmp_path / "scratch")
    assert str(caught.value) == f"{tmp_path}/my.sh: -O c.d=2 did not reach {trainer}: {WAY_OUT}"


@pytest.mark.parametrize(
    ("command", "override", "later"),
    [
        ('python -m verl.trainer.main_ppo "$@" ++a.b=2', "a.b=1", "2"),
        ('rredcot openrlhf "$@" --a.b 2', "--a.b=1", "2"),
    ],
)
def test_a_key_that_the_script_sets_again_is_named(
    tmp_path: Path, command: str, override: str, later: str
) -> None:
    with pytest.raises(RecipeError, match=rf'sets -O {override} \(to {later}\) again .* with "\$@"$'):
        find_launch(written(tmp_path, command), [override], tmp_path / "scratch")


def test_the_last_of_two_overrides_is_asked_for(tmp_path: Path) -> None:
    script = written(tmp_path, 'python -m verl.trainer.main_ppo "$@"')
    assert find_launch(script, ["a.b=1", "a.b=2"], tmp_path / "scratch").overrides == ("a.b=1", "a.b=2")


@pytest.mark.parametrize(
    "script",
    sorted(RECIPES.glob("*/run_*.sh")),
    ids=lambda script: f"{script.parent.name}/{script.stem}",
)
def test_every_recipe_passes_overrides_on(tmp_path: Path, script: Path) -> None:
    override = "--algo.rredcot.lam=0.9" if script.parent.name == "openrlhf" else "+algorithm.rredcot.lam=0.9"
    made = {name: str(script) for name in ("TRAIN_FILE", "VAL_FILE", "MODEL_PATH")}  # else the tiny ones make them
    launch = find_launch(script, [override], tmp_path / "scratch", {"OUT_DIR": str(tmp_path / "out"), **made})
    assert launch.overrides[-1] == override
