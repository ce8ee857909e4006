"""`rredcot recipe`: what it prints starts the same training as the scripts it comes from, wherever it lies."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackagePath
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rredcot_plugin
from rredcot_plugin.commands import recipe as command
from rredcot_plugin.commands.app import app
from rredcot_plugin.dry_run.launch import Launch, find_launch
from tests.unit.recipe_scripts import RECIPES

ROOT = RECIPES.parent
SCRIPTS = command.scripts_of(RECIPES)
OF_SHELLS = {"_", "OLDPWD", "PWD", "SHLVL"}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["recipe", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def launch_of(script: Path, scratch: Path, variables: Mapping[str, str]) -> tuple[Any, Any]:
    """Overrides and environment of a launch, with the folder of the script taken out of both."""
    scratch.mkdir(parents=True)
    launch: Launch = find_launch(script, ("trainer.total_epochs=3", "+a.b=[c, d]"), scratch, variables)
    folder = str(script.parent)
    environment = {k: v.replace(folder, "HERE") for k, v in launch.environment.items() if k not in OF_SHELLS}
    return [item.replace(folder, "HERE") for item in launch.overrides], environment


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scripts printed into a folder with nothing else in it."""
    folder = tmp_path_factory.mktemp("printed")
    for name, path in SCRIPTS.items():
        done = run("print", name, "--out", str(folder / path.name))
        assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("estimator", ["rredcot", "grpo"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_printed_script_starts_the_same_training(
    name: str, estimator: str, printed: Path, tmp_path: Path
) -> None:
    data = tmp_path / "any.parquet"
    data.touch()  # so that the scripts of tiny models have their data, and the tool user its model
    variables = {
        "MODEL_PATH": str(data),
        "TRAIN_FILE": str(data),
        "VAL_FILE": str(data),
        "PYTHONPATH": str(ROOT),
        "ADV_ESTIMATOR": estimator,
        "OUT_DIR": "/out",
    }
    original = launch_of(SCRIPTS[name], tmp_path / "a", variables)
    assert launch_of(printed / SCRIPTS[name].name, tmp_path / "b", variables) == original
    flag = "--algo.advantage.estimator" in original[0]
    assert (estimator if flag else f"algorithm.adv_estimator={estimator}") in original[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_left_to_source_and_the_rest_is_named(name: str, printed: Path) -> None:
    text = (printed / SCRIPTS[name].name).read_text()
    assert "\nsource " not in text and 'exec bash "$HERE' not in text
    commands = [line.split() for line in text.splitlines() if line.startswith("#   rredcot recipe print ")]
    assert {Path(words[-1]).name for words in commands} >= {"reward.py", "prepare_data.py", "data_files.py"}
    for words in commands:
        assert run("print", words[4]).exit_code == 0, words
    assert SCRIPTS[name].suffix == ".sbatch" or os.access(printed / SCRIPTS[name].name, os.X_OK)


def test_what_is_printed_is_what_is_written(printed: Path) -> None:
    name = "math/run_qwen3_4b_fsdp2_vllm.sh"
    assert run("print", name).output == (printed / Path(name).name).read_text()
    assert run("print", "math/reward.py").output == (RECIPES / "math/reward.py").read_text()


def test_the_files_of_a_printed_recipe_work_side_by_side(tmp_path: Path) -> None:
    import subprocess
    import sys

    text = run("print", "run_qwen25_math_1p5b_fsdp2_vllm").output
    for line in text.splitlines():
        if line.startswith("#   rredcot recipe print "):
            words = line.split()
            assert run("print", words[4], "--out", str(tmp_path / words[6])).exit_code == 0
    (tmp_path / "mine.csv").write_text("question,answer\na,1\nb,2\nc,3\n")
    arguments = ["--source", "mine.csv", "--out", "data", "--val-size", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "prepare_data.py", *arguments], cwd=tmp_path, env=environment, check=True, timeout=300
    )
    code = "import reward; assert reward.compute_score('a', '\\\\boxed{1/2}', '0.5')['score'] == 1.0"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=300)


def test_the_files_of_a_printed_recipe_for_openrlhf_find_each_other(tmp_path: Path) -> None:
    import subprocess
    import sys

    text = run("print", "openrlhf/run_qwen25_math_1p5b.sh").output
    (tmp_path / "math").mkdir()
    for line in text.splitlines():
        if line.startswith("#   rredcot recipe print "):
            words = line.split()
            assert run("print", words[4], "--out", str(tmp_path / words[6])).exit_code == 0
    code = (
        "import reward; found = reward.reward_func(['p\\\\boxed{1/2}<|im_end|>', 'p'], ['p', 'p'], [{'ground_truth': '0.5'}] * 2); "
        "assert found['rewards'].tolist() == [1.0, 0.0], found"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=300)


def test_the_list_names_every_script_and_what_it_needs() -> None:
    done = run("list")
    assert done.exit_code == 0
    for name in (*SCRIPTS, "math/reward.py", "data_files.py", "8 x 80 GB", "1 x 40 GB or more"):
        assert name in done.output
    assert len(SCRIPTS) == len([*RECIPES.glob("*/run_*")])
    narrow = CliRunner().invoke(app, ["recipe", "list"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    assert {line.split()[0] for line in narrow.splitlines() if line.strip()} >= set(SCRIPTS), "names can be copied"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math/run_qwen3_4b_fsdp_vllm.sh", "math/run_qwen3_4b_fsdp2_vllm.sh"),
        ("multinode", "math/run_qwen3_4b_fsdp2_vllm_multinode.sh"),
        ("reward.py", "expected one of agent/reward.py, code/reward.py, math/reward.py"),
        ("zzz", "`rredcot recipe list` shows all"),
        ("../pyproject.toml", "no recipe has this name"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, message: str) -> None:
    done = run("print", name)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", "").split())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "reward.py"
    mine.write_text("mine")
    assert run("print", "math/reward.py", "--out", str(mine)).exit_code == 2
    assert mine.read_text() == "mine"
    done = run("print", "math/reward.py", "--out", str(tmp_path / "absent/reward.py"))
    assert done.exit_code == 2 and "there is no folder" in done.stderr


def test_an_installation_without_a_checkout_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "share/rredcot/recipes"
    share.mkdir(parents=True)
    (share / "common.sh").touch()

    class Installed(PackagePath):
        def locate(self) -> Path:
            return tmp_path / self

    monkeypatch.setattr(rredcot_plugin, "__file__", str(tmp_path / "site-packages/rredcot_plugin/__init__.py"))
    monkeypatch.setattr(command, "files", lambda name: [Installed("share/rredcot/recipes/common.sh")])
    assert command.recipes_folder() == share
    monkeypatch.setattr(command, "files", lambda name: [])
    done = run("list")
    assert done.exit_code == 1 and "recipes/ of a checkout" in done.stderr


def test_a_wheel_has_every_file_of_the_recipes() -> None:
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    shipped = {path for patterns in given.values() for pattern in patterns for path in ROOT.glob(pattern)}
    there = {path for path in RECIPES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert shipped == {path for path in there if "data/" not in path.relative_to(RECIPES).as_posix()}
    for target, (pattern,) in given.items():
        assert f"share/rredcot/{Path(pattern).parent}" == target
