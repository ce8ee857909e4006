"""What the tests of recipes/ share: a script's own command line, verl's configuration of it, and verl's checks."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rredcot_plugin.dry_run.batches import check_batches

RECIPES = Path(__file__).parents[2] / "recipes"
Argv = Callable[..., tuple[str, ...]]
Compose = Callable[[Sequence[str]], Any]
STUBS = {
    "python3": 'import json, os, sys\nif "verl.trainer.main_ppo" in sys.argv:\n'
    '    open(os.environ["ARGV_FILE"], "w").write(json.dumps(sys.argv[1:]))\n',
    "ray": 'import sys\nprint("1 node_a\\n 1 node_b" if sys.argv[1] == "status" else "")\n',
    "scontrol": 'print("a\\nb")\n',
    "hostname": 'print("10.0.0.1 10.0.0.2")\n',
    "srun": "import os, sys\nrest = sys.argv[1:]\nwhile rest[0].startswith('-'):\n    rest.pop(0)\n"
    "os.execvp(rest[0], rest)\n",
}


def load(path: Path, name: str) -> ModuleType:
    """A file of a recipe as a module of its own, as verl loads reward functions."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def code_preparation() -> Iterator[ModuleType]:
    """recipes/code/prepare_data.py with the reward next to it, whichever recipe's `reward` was loaded before."""
    before = sys.modules.get("reward")
    load(RECIPES / "code/reward.py", "reward")
    yield load(RECIPES / "code/prepare_data.py", "code_prepare_data")
    if before is not None:
        sys.modules["reward"] = before


def argv_reader(folder: Path) -> Argv:
    """A function that says what a script would hand to Python, with knobs; nothing is started."""
    for name, code in STUBS.items():
        stub = folder / name
        stub.write_text(f"#!{sys.executable}\n{code}")
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)

    @cache
    def run(script: Path, *overrides: str, **knobs: str) -> tuple[str, ...]:
        argv_file = folder / "argv.json"
        argv_file.unlink(missing_ok=True)
        slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "a,b", "SLURM_SUBMIT_DIR": str(script.parent)}
        env = {
            "PATH": f"{folder}:/usr/bin:/bin",
            "HOME": str(folder),
            "ARGV_FILE": str(argv_file),
            "HEAD_START_SECONDS": "0",
            **(slurm if script.suffix == ".sbatch" else {}),
            **knobs,
        }
        done = subprocess.run(
            ["bash", str(script), *overrides], env=env, cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        argv = json.loads(argv_file.read_text())
        assert argv[:2] == ["-m", "verl.trainer.main_ppo"]
        return tuple(argv[2:])

    return run


@contextlib.contextmanager
def verls_configuration() -> Iterator[Compose]:
    """A function from a script's overrides to verl's own configuration, everything resolved."""
    import verl
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    folder = Path(verl.__file__).parent / "trainer/config"
    with initialize_config_dir(str(folder), version_base=None):

        def build(overrides: Sequence[str]) -> Any:
            config = hydra_compose("ppo_trainer", list(overrides))
            OmegaConf.resolve(config)
            return config

        yield build


def let_vllm_know_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only question that validate_config asks vLLM: whether it knows this LoRA rank."""
    module = ModuleType("verl.workers.rollout.vllm_rollout.utils")
    module.get_vllm_max_lora_rank = {8: 8, 16: 16, 32: 32, 64: 64}.__getitem__  # type: ignore[attr-defined]
    for name in ("verl.workers.rollout.vllm_rollout", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)


def check(config: Any) -> None:
    """verl's own check before it starts anything, and the dry run's of the batch sizes."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, need_reference_policy(config), need_critic(config))
    check_batches(config)
