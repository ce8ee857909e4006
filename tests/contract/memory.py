"""verl's trainers without Ray: TransferQueue in memory, a policy of a few lines, and batches as the agent loop leaves
them. Everything between is verl's own code and the plugin's."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import rredcot_plugin as rr
from rredcot_plugin.adapter.group_work import GroupWork
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.integrations.verl.settings import is_ours, read_settings
from rredcot_plugin.pipeline import assign_credit
from rredcot_plugin.probes.layout import ProbeSpec, unpack
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Segments
from rredcot_plugin.values.calibration import OutcomeCalibrator
from rredcot_plugin.values.proposals import floor_of
from tests.contract.test_verl_options import verl_config
from tests.unit.test_group_work import TABLE, TOKENIZER

Entry = tuple[str, dict[str, Any], dict[str, Any]]
"""Key, fields and tags of a row."""

TEMPERATURE = 0.7
PARTITION = "train"


class MemoryQueue:
    """The calls of TransferQueue that a step makes; rows by partition and key, jagged where their lengths differ."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.tags: dict[tuple[str, str], dict[str, Any]] = {}
        for name in ("kv_batch_put", "kv_batch_get", "kv_clear"):
            patch.setattr(tq, name, getattr(self, name))

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: TensorDict | None = None, tags: Any = None
    ) -> KVBatchMeta:
        for i, key in enumerate(keys):
            row = self.rows.setdefault((partition_id, key), {})
            if tags is not None:
                self.tags[partition_id, key] = tags[i]
        for name in fields.keys() if fields is not None else ():
            column = fields[name]
            parts = column.unbind() if isinstance(column, torch.Tensor) else list(column)
            assert len(parts) == len(keys), name
            for key, part in zip(keys, parts, strict=True):
                row = self.rows[partition_id, key]
                row[name] = part.clone() if isinstance(part, torch.Tensor) else getattr(part, "data", part)
        known = [self.tags.get((partition_id, key), {}) for key in keys]
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=known)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: Sequence[str]) -> TensorDict:
        rows = [self.rows[partition_id, key] for key in keys]
        found = [name for name in select_fields if any(name in row for row in rows)]
        for name in found:
            assert all(name in row for row in rows), f"{name} is not ready in all rows"
        plain = [{name: row[name] for name in found} for row in rows]
        data = list_of_dict_to_tensordict(plain)
        for name in found:  # rows of one length come back jagged too
            if isinstance(rows[0][name], torch.Tensor):
                data[name] = transfer_fields.jagged([row[name] for row in rows])
        return data

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.rows[partition_id, key]


def token_log_probs(ids: torch.Tensor, weights: int, temperature: float) -> list[float]:
    """Of every token given all before it, as a policy with these weights might have them: any number from −4 to 0."""
    state, found = 7, []
    for token in ids.tolist():
        state = (state * 31 + token + 1) % 1_000_003
        found.append(-((state * 7919 + weights * 101) % 1000) / 250 / temperature)
    return found


def probe_log_prob(trace: torch.Tensor, spec: ProbeSpec, weights: int, temperature: float) -> float:
    """Sum over the counted tokens of a probe after its prefix."""
    boundary, ids, skip = spec
    row = torch.cat([trace[:boundary], torch.tensor(list(ids))])
    return sum(token_log_probs(row, weights, temperature)[len(row) - len(ids) + skip :])


class Actor:
    """verl's actor worker group with ``weights``; ``calls`` is what it was asked for. ``answers``: whether its engine
    runs probes."""

    def __init__(self, queue: MemoryQueue, *, answers: bool = True) -> None:
        self.queue, self.answers = queue, answers
        self.weights = 0
        self.saved: dict[int, int] = {}
        self.calls: list[str] = []
        self.infos: list[dict[str, Any]] = []

    def compute_log_prob(self, meta: KVBatchMeta) -> KVBatchMeta:
        probes = meta.partition_id != PARTITION
        self.calls.append("probes" if probes else "log-probs")
        self.infos.append({**copy.deepcopy(meta.extra_info), "rows": len(meta.keys)})
        for key in meta.keys:
            self._run(self.queue.rows[meta.partition_id, key], meta.extra_info)
        return meta

    def _run(self, row: dict[str, Any], info: dict[str, Any]) -> None:
        ids, temperature = row["input_ids"], info["temperature"]
        own = torch.tensor(token_log_probs(ids, self.weights, temperature))
        row["log_probs"] = own.roll(-1)  # that of token t + 1 at t
        row["entropy"] = row["log_probs"].abs().sqrt()
        if info.get(transfer_fields.BACKEND):
            specs = unpack(row[transfer_fields.PROBES])
            found = [probe_log_prob(ids, spec, self.weights, temperature) for spec in specs]
            row[transfer_fields.LOG_PROBS] = torch.tensor(
                [0.25, *(x if self.answers else torch.nan for x in found)]
            )
        if info.get(transfer_fields.SQUARES):
            row[transfer_fields.SUM_PI_SQUARED] = row["log_probs"].exp().square()[-1 - len(row["responses"]) : -1]
        for kind in transfer_fields.attributions(info.get(transfer_fields.ATTRIBUTION)):
            length, start = len(row["responses"]), int(row[transfer_fields.ANSWER_START])
            before = max(0, start - len(row["prompts"])) if start >= 0 else 0
            own = torch.linspace(0.1, 1.0, length) * (1 + ids.sum() % 5)
            row[transfer_fields.SCORES[kind]] = torch.where(torch.arange(length) < before, own, 0.0)

    def save_model_to_cpu(self, number: int) -> None:
        self.calls.append(f"save {number}")
        self.saved[number] = self.weights

    def restore_model_from_cpu(self, number: int) -> None:
        self.calls.append(f"restore {number}")
        self.weights = self.saved[number]

    def clear_cpu_model(self, number: int) -> None:
        self.calls.append(f"clear {number}")
        del self.saved[number]

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None: ...

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None: ...


def make_trainer(
    queue: MemoryQueue, options: dict[str, Any], *overrides: str, mode: str = "sync", **attributes: Any
) -> Any:
    """verl's trainer of this mode, wrapped by the plugin, as it stands in its second step."""
    own = [f"+algorithm.rredcot.{key}={value}" for key, value in options.items()]
    temperature = f"actor_rollout_ref.rollout.temperature={TEMPERATURE}"
    config = verl_config(temperature, f"trainer.v1.trainer_mode={mode}", *own, *overrides)
    trainer = object.__new__(get_trainer_cls(mode))
    known = {
        "config": config,
        "trainer_mode": mode,
        "actor_rollout_wg": Actor(queue),
        "resource_pool_manager": SimpleNamespace(get_n_gpus=lambda: 2),
        "replay_buffer": SimpleNamespace(sample=None),
        "parameter_sync_step": 1,
        "local_trigger_step": 0,
        "global_steps": 2,
        "use_critic": False,
        "logger": SimpleNamespace(logger={}),
        "timing_raw": {},
        "train_dataset": SimpleNamespace(),
        "train_dataloader": SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None),
        "checkpoint_callback": SimpleNamespace(on_save=lambda **_: None),
    }
    for name, value in {**known, **attributes}.items():
        setattr(trainer, name, value)
    if is_ours(config):
        trainer.rredcot = CreditRunner(trainer, read_settings(config))
        trainer.rredcot.attach_tokenizer(TOKENIZER)
    return trainer


def key_of(rows: PromptedRollouts, row: int) -> str:
    return f"{rows.rollouts.group_ids[row]}_{row}_0"


def lay_down(
    queue: MemoryQueue,
    rows: PromptedRollouts,
    *,
    earlier: dict[int, int] | None = None,
    pad: int = 3,
    seed: int = 0,
) -> KVBatchMeta:
    """Rows as agent loop, reward and balancing leave them: in another order, with padding among them.

    ``earlier[row]`` outputs of the same session come before that of ``row``; they are other rows' tokens.
    """
    entries: list[Entry] = []
    for row in range(len(rows.lengths)):
        count = (earlier or {}).get(row, 0)
        session = key_of(rows, row).rpartition("_")[0]
        for output in range(count):
            entries.append((f"{session}_{output}", fields_of(rows, (row + 1 + output) % len(rows.lengths)), {}))
        entries.append((f"{session}_{count}", fields_of(rows, row), {}))
    return enqueue(queue, [*entries, *padding(rows, pad)], seed)


def padding(rows: PromptedRollouts, pad: int) -> list[Entry]:
    """Rows that verl fills a batch up with."""
    entries: list[Entry] = []
    for number in range(pad):
        filler = {**fields_of(rows, 0), "uid": "pad", "rm_scores": torch.zeros(rows.lengths[0])}
        filler["response_mask"] = torch.zeros(rows.lengths[0], dtype=torch.int64)
        entries.append((f"pad_{number}_0", filler, {"is_padding": True}))
    return entries


def enqueue(queue: MemoryQueue, entries: Sequence[Entry], seed: int = 0) -> KVBatchMeta:
    """These rows in the queue, in an order that ``seed`` draws."""
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(seed)).tolist()
    keys, fields, tags = zip(*(entries[i] for i in order), strict=True)
    lengths = [len(row["responses"]) for row in fields]
    tags = [{**tag, "response_len": length, "seq_len": 1} for tag, length in zip(tags, lengths, strict=True)]
    queue.kv_batch_put(list(keys), PARTITION, list_of_dict_to_tensordict(list(fields)), tags)
    return KVBatchMeta(partition_id=PARTITION, keys=list(keys), tags=tags, extra_info={"temperature": TEMPERATURE})


def fields_of(rows: PromptedRollouts, row: int) -> dict[str, Any]:
    rollouts, length, prompt = rows.rollouts, rows.lengths[row], rows.prompts[row]
    assert rollouts.ground_truths is not None and rollouts.log_probs is not None
    response = rollouts.token_ids[row, :length]
    return {
        "uid": rollouts.group_ids[row],
        "prompts": prompt,
        "responses": response,
        "input_ids": torch.cat([prompt, response]),
        "response_mask": rollouts.response_mask[row, :length].long(),
        "rm_scores": rollouts.rewards[row, :length].float(),
        "rollout_log_probs": rollouts.log_probs[row, :length],
        "reward_model": {"ground_truth": rollouts.ground_truths[row]},
    }


def step(trainer: Any, batch: KVBatchMeta, metrics: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """The two calls of verl's step that the plugin takes part in; the advantages of every row by its key."""
    metrics = {} if metrics is None else metrics
    trainer._compute_old_log_prob(batch, metrics)
    trainer._compute_advantage(batch, metrics)
    rows = trainer.actor_rollout_wg.queue.rows
    return {key: rows[PARTITION, key]["advantages"] for key in batch.keys}


def expected(
    rows: PromptedRollouts,
    config: rr.RRedCoTConfig,
    calibrator: OutcomeCalibrator | None = None,
    *,
    weights: int = 0,
    **rollout_fields: Any,
) -> tuple[rr.Credit, Segments]:
    """Credit of these rows from the core alone: no plane, no runner. ``rollout_fields`` replace those of the rollouts."""
    encoder = ProbeEncoder(TOKENIZER, config.bridge, config.terminator, config.max_probe_tokens)
    work = GroupWork(config, TABLE, encoder)
    seen = work.read(rows)
    encoder.follow(seen.style)
    plan = work.plan(encoder.state_dict(), floor_of(seen.outcomes, calibrator.lowest if calibrator else None))
    of_outputs, answers = iter(zip(rows.traces(), plan.specs, strict=True)), []
    signals = torch.zeros(rows.rollouts.token_ids.shape)
    for row in range(len(rows.lengths)):
        answers.append([])
        for output in rows.outputs_of(row):
            trace, specs = next(of_outputs)
            answers[row] += [probe_log_prob(trace, spec, weights, TEMPERATURE) for spec in specs]
            own = token_log_probs(trace, weights, TEMPERATURE)[len(output.prompt) :]
            signals[row, output.start : output.start + output.length] = torch.tensor(own)
    assert work.rows is not None
    known: dict[str, Any] = {"log_probs": signals, "entropies": signals.abs().sqrt(), **rollout_fields}
    rollouts = dataclasses.replace(work.rows.rollouts, **known)
    segments = seen.levels[-1]
    probed = plan.probed(answers, length_normalize=config.length_normalize) if plan.size else None
    credit = assign_credit(
        rollouts, config, segments=segments, coarse=seen.levels[0], probed=probed, calibrator=calibrator
    )
    return credit, segments


def assert_credited(
    found: dict[str, torch.Tensor], rows: PromptedRollouts, credit: rr.Credit, **last: int
) -> None:
    """Exactly these advantages under the key of every row; ``last`` is the number of a session's last output."""
    assert float(credit.advantages.abs().max()) > 0.01
    for row, length in enumerate(rows.lengths):
        key = f"{key_of(rows, row)[:-2]}_{last.get(f'row_{row}', 0)}"
        assert torch.allclose(found[key], credit.advantages[row, :length], atol=1e-5), key
