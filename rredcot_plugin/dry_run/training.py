"""Two steps of stock verl on the CPU, with the recipe's overrides wherever a CPU leaves them a meaning."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rredcot_plugin.dry_run.batches import SEQUENCE_PARALLEL
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import MAIN, Launch, find_launch
from rredcot_plugin.dry_run.outcome import Outcome, check_metrics
from rredcot_plugin.dry_run.trial import LOG, MICRO_BATCH, MOST_ROLLOUTS, PROMPTS, Trial
from rredcot_plugin.tiny import SCRIPT as CPU_SCRIPT
from rredcot_plugin.tiny.progress import relevant_lines
from rredcot_plugin.tiny.watched import Show, make_ray_folder, run_watched

RECIPES_OWN = (
    "algorithm.",
    "actor_rollout_ref.actor.optim.",
    "actor_rollout_ref.rollout.temperature",
    "reward.custom_reward_function.",
    "data.seed",
    "actor_rollout_ref.rollout.seed",
)
"""Keys that the CPU script sets for the demo, and that stay as the recipe (or verl) has them."""

RAY_PREFIX = re.compile(r"^\([^)]*\bpid=\d+[^)]*\) ?")
EXCEPTION = re.compile(r"^(?!ray\.exceptions\.)([A-Za-z_]\w*\.)*[A-Za-z_]\w*(Error|Exception): ")
MOST_LINES = 100_000

GPU_ONLY = (
    "model_engine",
    "actor_rollout_ref.actor.megatron.",
    "actor_rollout_ref.ref.megatron.",
    "critic.megatron.",
)
"""Overrides of the recipe that verl's configuration has no place for without Megatron."""


def train(config: Any, launch: Launch, trial: Trial, folder: Path, show: Show) -> Outcome:
    """Run ``trial.steps`` steps; log, overrides and metrics stay in ``folder``.

    Raises:
        RecipeError: the run ends with an error (its first exception), or a metric is not finite.
    """
    folder.mkdir(parents=True)
    cpu = _cpu_launch(config, trial, folder)
    forced = _forced(config, cpu, trial)
    keys = {_key(item) for item in forced}
    kept = [item for item in launch.overrides if _key(item) not in keys and not _is_gpu_only(item)]
    ray_folder = make_ray_folder()
    overrides = [*kept, *forced, f"++ray_kwargs.ray_init._temp_dir={ray_folder}"]
    (folder / "overrides.txt").write_text("".join(f"{item}\n" for item in overrides), encoding="utf-8")
    metrics, log = folder / "metrics.jsonl", folder / LOG
    environment = {**launch.environment, **_changed(cpu.environment), "VERL_FILE_LOGGER_PATH": str(metrics)}
    options = [] if launch.config_path is None else [f"--config-path={launch.config_path}"]
    options += [] if launch.config_name is None else [f"--config-name={launch.config_name}"]
    command = ["env", "-C", str(folder), sys.executable, "-m", MAIN, *options, *overrides]
    code = run_watched(command, environment, log, show)
    if code != 0:
        raise RecipeError(f"training: {first_error(log)} (exit code {code}; log: {log})")
    shutil.rmtree(ray_folder, ignore_errors=True)  # Ray's last processes may still be writing
    replaced = sorted(_key(item) for item in launch.overrides if item not in kept)
    return Outcome(_read_metrics(metrics, trial.steps, log), tuple(replaced))


def _cpu_launch(config: Any, trial: Trial, folder: Path) -> Launch:
    """What the demo's CPU script would start: the one place that knows what makes verl run on a CPU."""
    knobs = {
        "MODEL_PATH": trial.model,
        "TRAIN_FILE": trial.train,
        "VAL_FILE": trial.val,
        "REWARD_PATH": "unused",
        "OUT_DIR": folder,
        "ROLLOUT": "hf_cpu",
        "TRAINER_MODE": config.trainer.v1.trainer_mode,
        "MAX_PROMPT_LENGTH": trial.prompt_length,
        "MAX_RESPONSE_LENGTH": trial.response_length,
        "TRAIN_BATCH_SIZE": PROMPTS,
        "ROLLOUT_N": min(MOST_ROLLOUTS, config.actor_rollout_ref.rollout.n),
        "MICRO_BATCH_SIZE": MICRO_BATCH,
        "TOTAL_STEPS": trial.steps,
        "TEST_FREQ": trial.steps,
    }
    variables = {name: str(value) for name, value in knobs.items()}
    return find_launch(CPU_SCRIPT, [], folder / "cpu", variables)


def _forced(config: Any, cpu: Launch, trial: Trial) -> list[str]:
    """Overrides that hold whatever the recipe says, each with ++ (the key may be there or not)."""
    items = [item for item in cpu.overrides if not _key(item).startswith(RECIPES_OWN)]
    updates = max(1, config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size)
    length = trial.prompt_length + trial.response_length
    has_lora = (config.actor_rollout_ref.model.get("lora_rank", 0) or 0) > 0
    items += [
        f"actor_rollout_ref.actor.ppo_mini_batch_size={max(1, PROMPTS // updates)}",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={MICRO_BATCH * length}",
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={MICRO_BATCH * length}",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        "actor_rollout_ref.actor.fsdp_config.fsdp_size=-1",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
        *(f"actor_rollout_ref.actor.{key}=1" for key in SEQUENCE_PARALLEL),
        "actor_rollout_ref.model.use_fused_kernels=False",
        "actor_rollout_ref.rollout.val_kwargs.n=1",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
        "data.filter_overlong_prompts=True",
        "trainer.resume_mode=disable",
        'trainer.logger=["console","file"]',
        "ray_kwargs.ray_init.address=local",
    ]
    if has_lora:
        items += ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora.merge=True"]
    return [f"++{item.lstrip('+')}" for item in items]


def _key(override: str) -> str:
    """The key of a Hydra override.

    >>> _key("++a.b=c"), _key("~a.b"), _key("+group@a.b=c")
    ('a.b', 'a.b', 'group@a.b')
    """
    return override.lstrip("+~").partition("=")[0]


def _is_gpu_only(override: str) -> bool:
    return _key(override).startswith(GPU_ONLY)


def _changed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the CPU script sets and the present environment has not."""
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


def first_error(log: Path) -> str:
    """The first exception of a log (what follows it follows from it), or its last line; without Ray's own frames."""
    lines = [RAY_PREFIX.sub("", line).strip() for line in relevant_lines(log, most=MOST_LINES)]
    return next((line for line in lines if EXCEPTION.match(line)), lines[-1] if lines else "no output")


def _read_metrics(path: Path, steps: int, log: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        record = json.loads(line)
        found.setdefault(int(record["step"]), {}).update(record["data"])
    check_metrics(found, steps, log)
    return found
