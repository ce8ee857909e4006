"""However a script starts its trainer, the start is written down and does not happen."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import find_launch
from rredcot_plugin.dry_run.stand_in import program_of

TRAINER = "verl.trainer.main_ppo"


def written(folder: Path, text: str) -> Path:
    script = folder / "my.sh"
    script.write_text(f"{text}\n")
    return script


@pytest.mark.parametrize(
    "command",
    [
        f"python3 -u -m {TRAINER} a=1",
        f"python3 -X dev -um {TRAINER} a=1",
        f"{sys.executable} -m {TRAINER} a=1",
        f"{sys.executable} -u -W ignore -m {TRAINER} a=1",
        "python3 -O /src/verl/trainer/main_ppo.py a=1",
        f"nohup python3 -m {TRAINER} a=1 > train.log 2>&1 &",
        f"(python3 -c 'import time; time.sleep(1)'; python3 -m {TRAINER} a=1) > train.log 2>&1 &",
        f"ray job submit --no-wait --address http://a:1 -- python3 -m {TRAINER} a=1",
        f"srun -N 1 -n 1 -w node0 python3 -m {TRAINER} a=1",
        f"srun --nodes 1 --overlap --ntasks=1 -l -c4 bash -c 'python3 -m {TRAINER} a=1'",
        f"head=$(srun --nodes=1 --ntasks=1 -w node0 hostname); python3 -m {TRAINER} a=${{head:+1}}",
    ],
)
def test_a_start_is_found_whatever_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    launch = find_launch(written(tmp_path, command), (), tmp_path / "scratch", {"PYTHONPATH": "/mine"})
    assert launch.overrides == ("a=1",) and launch.program == TRAINER
    assert launch.environment["PYTHONPATH"] == "/mine", "the stand-ins' own folder is not the trainer's"


def test_other_programs_run(tmp_path: Path) -> None:
    script = written(
        tmp_path, f"{sys.executable} -c 'print(1)' > {tmp_path}/a\npython3 -u -m {TRAINER} n=$(cat {tmp_path}/a)"
    )
    assert find_launch(script, (), tmp_path / "scratch").overrides == ("n=1",)
    assert program_of(["-c", "x", "-m", TRAINER]) == program_of(["-m"]) == program_of(["-"]) == ("", [])


def test_what_a_script_leaves_in_the_background_ends_with_it(tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    loop = f"(while sleep 1; do echo >> {beats}; done) > /dev/null 2>&1 &"
    assert find_launch(
        written(tmp_path, f"{loop}\npython -m {TRAINER} a=1"), (), tmp_path / "scratch"
    ).overrides == ("a=1",)
    size = beats.stat().st_size if beats.exists() else 0
    time.sleep(0.5)
    assert (beats.stat().st_size if beats.exists() else 0) == size


def test_a_program_that_slurm_would_not_find_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="srun: no_such_program: No such file"):
        find_launch(written(tmp_path, "srun -n 1 no_such_program"), (), tmp_path / "scratch")


@pytest.mark.parametrize(
    "options",
    [
        "--nodes=2\n#SBATCH --gpus-per-node=8\n#SBATCH --cpus-per-task=16",
        "-N 2\n#SBATCH --gres=gpu:h100:8\n#SBATCH -c 16",
    ],
)
def test_a_batch_script_knows_what_it_asks_for(tmp_path: Path, options: str) -> None:
    names = "$SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_GPUS_ON_NODE $SLURM_CPUS_PER_TASK $SLURM_NODELIST"
    script = written(tmp_path, f"#!/bin/bash\n#SBATCH {options}\nset -u\npython3 -m {TRAINER} {names}")
    assert find_launch(script, (), tmp_path / "scratch").overrides == ("2", "2", "8", "16", "node0,node1")
