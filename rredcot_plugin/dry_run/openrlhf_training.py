"""Two steps of stock OpenRLHF on the CPU, with the recipe's flags wherever a CPU leaves them a meaning."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.launch import Launch
from rredcot_plugin.dry_run.outcome import Outcome, check_metrics
from rredcot_plugin.dry_run.training import first_error
from rredcot_plugin.dry_run.trial import LOG, MICRO_BATCH, MOST_ROLLOUTS, PROMPTS, Trial
from rredcot_plugin.tiny.openrlhf import steps_of
from rredcot_plugin.tiny.watched import Show, run_watched

SWITCHES = {
    "--train.colocate_all",
    "--train.colocate_actor_ref",
    "--train.colocate_critic_reward",
    "--vllm.enable_sleep",
    "--vllm.sync_with_ray",
    "--ds.enable_sleep",
    "--ds.adam_offload",
    "--ds.use_liger_kernel",
    "--ds.load_in_4bit",
    "--ds.deepcompile",
    "--ds.overlap_comm",
    "--ref.offload",
    "--reward.offload",
    "--ckpt.load_enable",
    "--ckpt.save_hf",
    "--algo.dynamic_filtering_enable",
}
"""Flags without a value that need a GPU, or an earlier run, or would leave too few rollouts for a step."""

ELSEWHERE = ("--eval.", "--logger.", "--ckpt.", "--use_ms", "--data.prompt_")
"""What a rehearsal leaves alone: validation, trackers, checkpoints, and how the recipe's data are mixed and split, of which one file is
left."""


def prompt_of(row: Mapping[str, Any], data: Any) -> Any:
    """A row's prompt as OpenRLHF reads it: messages where its chat template is asked for, else text.

    Raises:
        RecipeError: messages without a chat template.
    """
    given = row[data.input_key]
    if data.apply_chat_template:
        return [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(given, str):
        raise RecipeError(
            f"--data.input_key {data.input_key}: expected text, got {str(given)[:80]}; give --data.apply_chat_template with messages"
        )
    return data.input_template.format(given) if data.input_template else given


def train(args: Any, launch: Launch, trial: Trial, folder: Path, show: Show) -> Outcome:
    """Run ``trial.steps`` steps; log and flags stay in ``folder``.

    Raises:
        RecipeError: the run ends with an error (its first exception), or a metric is not finite.
    """
    folder.mkdir(parents=True)
    forced = _forced(args, trial, folder)
    groups = _by_flag(launch.overrides)
    kept = _kept(groups, forced)
    words = [word for group in kept for word in group]
    words += [word for flag, value in forced.items() for word in (flag, *value)]
    (folder / "flags.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    environment = {**launch.environment, "OPENRLHF_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("RAY_ADDRESS", None)
    command = ["env", "-C", str(folder), sys.executable, "-m", launch.program, *words]
    log = folder / LOG
    code = run_watched(command, environment, log, show)
    if code != 0:
        raise RecipeError(f"training: {first_error(log)} (exit code {code}; log: {log})")
    replaced = sorted({group[0] for group in groups if group not in kept})
    return Outcome(_read_metrics(log, trial.steps), tuple(replaced))


def _kept(groups: Sequence[list[str]], forced: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """What of the recipe's flags holds in a rehearsal too."""
    left = {*forced, *SWITCHES}
    return [group for group in groups if group[0] not in left and not group[0].startswith(ELSEWHERE)]


def _forced(args: Any, trial: Trial, folder: Path) -> dict[str, list[str]]:
    """Flags that hold whatever the recipe says, with their values."""
    rollouts = min(MOST_ROLLOUTS, args.rollout.n_samples_per_prompt)
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    updates = max(1, responses // args.train.batch_size)
    length = trial.prompt_length + trial.response_length
    numbers = {
        "--data.max_len": length,
        "--data.max_samples": PROMPTS,
        "--rollout.max_new_tokens": trial.response_length,
        "--rollout.batch_size": PROMPTS,
        "--rollout.n_samples_per_prompt": rollouts,
        "--rollout.micro_batch_size": min(MICRO_BATCH, PROMPTS * rollouts),
        "--rollout.max_tokens_per_gpu": MICRO_BATCH * length,
        "--train.batch_size": max(1, PROMPTS * rollouts // updates),
        "--train.micro_batch_size": min(MICRO_BATCH, max(1, PROMPTS * rollouts // updates)),
        "--train.max_tokens_per_gpu": MICRO_BATCH * length,
        "--train.num_episodes": trial.steps,
        "--vllm.num_engines": 1,
        "--vllm.tensor_parallel_size": 1,
        "--ds.ring_attn_size": 1,
        "--ds.tensor_parallel_size": 1,
        "--logger.logging_steps": 1,
    }
    numbers |= {
        f"--{model}.{what}": 1
        for model in ("actor", "ref", "critic", "reward")
        for what in ("num_nodes", "num_gpus_per_node")
    }
    if args.reward.overlong_buffer_len is not None:
        numbers["--reward.overlong_buffer_len"] = min(args.reward.overlong_buffer_len, trial.response_length)
    if args.rollout.vllm_generate_batch_size is not None:
        numbers["--rollout.vllm_generate_batch_size"] = PROMPTS
    texts = {
        "--actor.model_name_or_path": trial.model,
        "--data.prompt_dataset": trial.train,
        "--ds.attn_implementation": _attention(args),
        "--ckpt.output_dir": folder / "model",
        "--ckpt.path": folder / "checkpoints",
    }
    if args.critic.model_name_or_path:
        texts["--critic.model_name_or_path"] = trial.model
    return {flag: [str(value)] for flag, value in {**numbers, **texts}.items()} | {"--vllm.enforce_eager": []}


def _attention(args: Any) -> str:
    from rredcot_plugin.integrations.openrlhf_cpu import PACKED

    packs = args.ds.packing_samples or args.train.dynamic_batch_enable or args.ds.ring_attn_size > 1
    return PACKED if packs else "sdpa"


def _by_flag(words: Sequence[str]) -> list[list[str]]:
    """Each flag with its values.

    >>> _by_flag(["--a", "1", "2", "--b=3", "--c", "--d", "-1"])
    [['--a', '1', '2'], ['--b', '3'], ['--c'], ['--d', '-1']]
    """
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            groups.append([flag, value] if equals else [flag])
        elif groups:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _read_metrics(log: Path, steps: int) -> dict[int, dict[str, float]]:
    found = {
        number: {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        for number, metrics in steps_of(log.read_text(encoding="utf-8", errors="replace")).items()
    }
    check_metrics(found, steps, log)
    return found
