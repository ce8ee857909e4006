"""A Ray cluster and rows for the tests of credit workers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import rredcot_plugin as rr
from rredcot_plugin.adapter.data_plane import DataPlane
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.batch import BatchSource, open_rows
from rredcot_plugin.integrations.verl.credit_workers import CreditWorkers
from rredcot_plugin.integrations.verl.session_plane import as_sessions, layout_of
from rredcot_plugin.integrations.verl.sessions import row_roles
from rredcot_plugin.text.encoding import ProbeEncoder
from tests.contract.cut_sessions import cut_entries, tool_rows
from tests.unit.test_group_work import TABLE, TOKENIZER

NUMBER = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8, logging_level=logging.ERROR)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
    ray.shutdown()


def lay_down(rows: PromptedRollouts, *, without: tuple[str, ...] = ()) -> BatchSource:
    """Rows where verl's agent loop and log-prob pass put theirs; a name of its own for every batch."""
    rollouts, generator = rows.rollouts, torch.Generator().manual_seed(1)
    signal = rollouts.log_probs
    assert signal is not None and rollouts.ground_truths is not None
    entropies = torch.rand(signal.shape, generator=generator)
    partition = f"batch {next(NUMBER)}"
    fields = []
    for row, length in enumerate(rows.lengths):
        columns = {
            "responses": rollouts.token_ids,
            "response_mask": rollouts.response_mask.long(),
            "rm_scores": rollouts.rewards,
            "rollout_log_probs": signal,
            "old_log_probs": signal - 0.1,
            "entropy": entropies,
        }
        tokens = {name: column[row, :length] for name, column in columns.items() if name not in without}
        truth = {"ground_truth": rollouts.ground_truths[row]}
        fields.append(
            {"uid": rollouts.group_ids[row], "prompts": rows.prompts[row], "reward_model": truth, **tokens}
        )
    keys = [f"{name}_{row}_0" for row, name in enumerate(rollouts.group_ids)]
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields))
    return BatchSource(keys, partition)


def lay_down_sessions() -> DataPlane:
    """The turns of ``cut_sessions``, a row each, as the runner opens them: a session of several rows is one."""
    entries, partition = cut_entries(tool_rows()), f"batch {next(NUMBER)}"
    keys, fields = [key for key, _, _ in entries], []
    for _, own, _ in entries:
        signal = own["rollout_log_probs"]
        fields.append({**own, "old_log_probs": signal - 0.1, "entropy": signal.abs()})
    tags = [{"response_len": len(own["responses"])} for own in fields]
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields))
    batch, roles = KVBatchMeta(partition_id=partition, keys=keys, tags=tags), row_roles(keys, tags)
    return as_sessions(open_rows(batch, roles.active), layout_of(batch, roles))


def make_workers(options: dict[str, Any], *, delivers: bool = True) -> CreditWorkers:
    config = rr.RRedCoTConfig.from_mapping(options)
    encoder = ProbeEncoder(TOKENIZER, config.bridge, config.terminator, config.max_probe_tokens)
    return CreditWorkers(config, TABLE, encoder, delivers=delivers)
