"""Sizes of a run that must divide each other, and lengths that must fit: verl finds these out on the GPUs only."""

from __future__ import annotations

import math
from typing import Any

from rredcot_plugin.dry_run.errors import RecipeError

ULYSSES = "ulysses_sequence_parallel_size"
SEQUENCE_PARALLEL = (f"fsdp_config.{ULYSSES}", ULYSSES)
"""Keys of the actor: what the engine reads, and what verl still accepts in its place."""


def check_batches(config: Any) -> str:
    """One line on the sizes of a step.

    Raises:
        RecipeError: two sizes that do not go together, with both keys and values.
    """
    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    split = _ranks_a_copy(config)
    prompts, mini, n = data.train_batch_size, actor.ppo_mini_batch_size, rollout.n
    _divides("GPUs (trainer.nnodes x n_gpus_per_node)", gpus, "GPUs that hold one copy of the actor", split)
    tensor_parallel = rollout.tensor_model_parallel_size
    _divides(
        "GPUs (trainer.nnodes x n_gpus_per_node)", gpus, "rollout.tensor_model_parallel_size", tensor_parallel
    )
    ranks = gpus // split
    _divides(
        "responses per update (actor.ppo_mini_batch_size x rollout.n)", mini * n, "data-parallel ranks", ranks
    )
    filled = _padded(config, ranks)
    if not actor.use_dynamic_bsz:
        if (micro := actor.ppo_micro_batch_size_per_gpu) is None:
            raise RecipeError(
                "batch sizes: actor.ppo_micro_batch_size_per_gpu is not given, and verl's engines do not read "
                "actor.ppo_micro_batch_size; set the former, or actor.use_dynamic_bsz=True"
            )
        _divides("responses per update and rank", mini * n // ranks, "actor.ppo_micro_batch_size_per_gpu", micro)
    _check_lengths(config)
    padding = "" if filled == prompts * n else f", which verl pads to {filled}"
    return (
        f"{prompts} prompts x {n} = {prompts * n} responses per step{padding}, {mini * n} per update; {gpus} GPUs, "
        f"{filled // ranks} responses a rank"
    )


def _padded(config: Any, ranks: int) -> int:
    """Responses of a step, with those that verl's trainers add so that updates are whole; the trainer over ``DataProto`` and
    ``separate_async`` add none.

    Raises:
        RecipeError: a step that is no whole number of updates, where none are added.
    """
    prompts, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    responses, update = prompts * config.actor_rollout_ref.rollout.n, mini * config.actor_rollout_ref.rollout.n
    if not config.trainer.use_v1 or config.trainer.v1.trainer_mode == "separate_async":
        _divides("data.train_batch_size", prompts, "actor.ppo_mini_batch_size", mini)
        _divides("responses per step (data.train_batch_size x rollout.n)", responses, "data-parallel ranks", ranks)
        return responses
    multiple = math.lcm(update, ranks)
    return -(-responses // multiple) * multiple


def _ranks_a_copy(config: Any) -> int:
    actor = config.actor_rollout_ref.actor
    if actor.strategy == "megatron":
        m = actor.megatron
        return m.tensor_model_parallel_size * m.pipeline_model_parallel_size * m.context_parallel_size
    return _sequence_parallel(actor)


def _sequence_parallel(actor: Any) -> int:
    engine = actor.get("fsdp_config") or {}
    return max(engine.get(ULYSSES) or 1, actor.get(ULYSSES) or 1)


def _divides(name: str, number: int, divisor_name: str, divisor: int) -> None:
    if divisor < 1 or number < divisor or number % divisor:
        raise RecipeError(f"batch sizes: {name} = {number} is not a multiple of {divisor_name} = {divisor}")


def _check_lengths(config: Any) -> None:
    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    length = data.max_prompt_length + data.max_response_length
    limits = {"rollout.max_model_len": rollout.max_model_len}
    sequence_parallel = _sequence_parallel(actor)
    if actor.use_dynamic_bsz:
        limits["actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu * sequence_parallel
    if rollout.log_prob_use_dynamic_bsz:
        limits["rollout.log_prob_max_token_len_per_gpu"] = (
            rollout.log_prob_max_token_len_per_gpu * sequence_parallel
        )
    for name, limit in limits.items():
        if limit is not None and limit < length:
            raise RecipeError(
                f"lengths: {name} = {limit} is less than data.max_prompt_length + data.max_response_length = {length}"
            )


def check_positions(config: Any, positions: int | None, model: str) -> None:
    """RecipeError if a full-length trace has more tokens than the model has positions for."""
    length = config.data.max_prompt_length + config.data.max_response_length
    if positions is not None and length > positions:
        raise RecipeError(
            f"lengths: data.max_prompt_length + data.max_response_length = {length}, but {model} has positions for "
            f"{positions} (max_position_embeddings)"
        )
