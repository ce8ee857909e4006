"""Steps of verl's three trainers from sampling to advantages, without Ray: its own replay buffer over a queue in memory
(``memory.py``), and its own ``_step_once``, whose balancing and actor update are left out."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue as tq

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.trainer import MODES
from tests.contract.memory import PARTITION, MemoryQueue, key_of, lay_down, make_trainer
from tests.contract.runner_steps import NEWLINE


class ListedQueue(MemoryQueue):
    """With the call by which the replay buffer looks for prompts whose sessions are finished."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        patch.setattr(tq, "kv_list", self.kv_list)

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for (partition, key), tag in self.tags.items():
            found.setdefault(partition, {})[key] = tag
        return found

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        super().kv_clear(keys, partition_id)
        for key in keys:
            self.tags.pop((partition_id, key), None)


def rollout(
    queue: ListedQueue,
    rows: PromptedRollouts,
    step: int,
    versions: Mapping[int, tuple[Any, Any]] | None = None,
    **fields: Any,
) -> None:
    """These rows in the queue as the agent loop leaves them, and their prompts as finished. ``versions[row]`` are those that
    began and ended the row, of the weights before ``step`` unless given; ``fields[name][row]`` go to its fields."""
    lay_down(queue, rows, pad=0, seed=step)
    for row in range(len(rows.lengths)):
        first, last = (versions or {}).get(row, (step - 1, step - 1))
        key = (PARTITION, key_of(rows, row))
        queue.tags[key] |= {"global_steps": step, "min_global_steps": first, "max_global_steps": last}
        queue.rows[key] |= {name: own[row] for name, own in fields.items()}
    uids = sorted({str(uid) for uid in rows.rollouts.group_ids})
    tags = [{"is_prompt": True, "status": "finished", "global_steps": step} for _ in uids]
    queue.kv_batch_put(uids, PARTITION, tags=tags)


def trainer_of(queue: ListedQueue, mode: str, options: dict[str, Any], *overrides: str, **attributes: Any) -> Any:
    """A trainer of this mode with verl's own replay buffer, which trains on five prompts a step."""
    trainer = make_trainer(
        queue,
        {**NEWLINE, **options},
        "data.train_batch_size=5",
        "trainer.critic_warmup=1000000",
        *overrides,
        mode=mode,
        use_reference_policy=False,
        curr_step_profile=False,
        reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=[]),
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None, abort_replicas=lambda: None),
        hybrid_rollout_config=SimpleNamespace(enable_switch=False),
        _step_sample_wait_seconds=0.0,
        **attributes,
    )
    trainer._balance_batch = lambda batch, metrics: batch
    trainer.replay_buffer = trainer._build_replay_buffer()
    return trainer


def sampled_step(trainer: Any, step: int, metrics: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Sample and credit five prompts under the weights of version ``step`` − 1; the advantages of every row by its key."""
    queue, actor = trainer.actor_rollout_wg.queue, trainer.actor_rollout_wg
    trainer.global_steps, actor.weights = step, step - 1
    batch = trainer._step_once({} if metrics is None else metrics, {}, 5)
    found = {key: queue.rows[PARTITION, key]["advantages"] for key in batch.keys}
    queue.kv_clear(batch.keys, PARTITION)
    return found


__all__ = ["MODES", "ListedQueue", "rollout", "sampled_step", "trainer_of"]
