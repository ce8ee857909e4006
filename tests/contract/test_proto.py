"""verl's two data planes: the same rollouts over ``DataProto`` get the same credit as over TransferQueue, to the last bit.

Both trainers are verl's own, wrapped by the plugin, without Ray: the actor's workers answer as ``memory.py`` says.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import verl.trainer.ppo.ray_trainer as ray_trainer
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils import tensordict_utils as tu

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import transfer_fields
from rredcot_plugin.integrations.verl.legacy import RRedCoTRayPPOTrainer
from rredcot_plugin.integrations.verl.media import FIELD
from rredcot_plugin.integrations.verl.proto import ProtoBatch, open_proto
from rredcot_plugin.integrations.verl.runner import CreditRunner
from rredcot_plugin.integrations.verl.settings import read_settings
from rredcot_plugin.probes.layout import unpack
from tests.contract.memory import (
    TEMPERATURE,
    MemoryQueue,
    key_of,
    lay_down,
    make_trainer,
    probe_log_prob,
    step,
    token_log_probs,
)
from tests.contract.runner_steps import queue  # noqa: F401  fixtures
from tests.contract.test_verl_options import verl_config
from tests.unit.test_group_work import TOKENIZER, bare_rows


def proto_of(rows: PromptedRollouts, order: list[int]) -> DataProto:
    """The rows as verl's agent loop leaves them: prompts padded on the left, responses on the right, with room to spare."""
    rollouts = rows.rollouts
    before, after = max(len(rows.prompts[i]) for i in order) + 2, rollouts.token_ids.shape[1] + 3
    tables = {
        name: torch.zeros(len(order), after)
        for name in ("responses", "response_mask", "rm_scores", "rollout_log_probs")
    }
    prompts, attention = torch.zeros(len(order), before), torch.zeros(len(order), before + after)
    for row, i in enumerate(order):
        prompt, length = rows.prompts[i], rows.lengths[i]
        prompts[row, before - len(prompt) :] = prompt
        attention[row, before - len(prompt) : before + length] = 1
        tables["responses"][row, :length] = rollouts.token_ids[i, :length]
        tables["response_mask"][row, :length] = rollouts.response_mask[i, :length].float()
        tables["rm_scores"][row, :length] = rollouts.rewards[i, :length]
        tables["rollout_log_probs"][row, :length] = rollouts.log_probs[i, :length]
    whole = {"responses", "response_mask"}
    fields = {name: table.long() if name in whole else table for name, table in tables.items()}
    fields |= {"prompts": prompts.long(), "attention_mask": attention.long()}
    fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]], dim=1)
    fields["position_ids"] = (fields["attention_mask"].cumsum(1) - 1).clamp(min=0)
    objects: dict[str, Any] = {
        "uid": np.array([str(rollouts.group_ids[i]) for i in order], dtype=object),
        "reward_model": np.array([{"ground_truth": rollouts.ground_truths[i]} for i in order], dtype=object),
    }
    meta = {"temperature": TEMPERATURE}
    return DataProto(TensorDict(fields, batch_size=len(order)), objects, meta)


class Workers:
    """The actor's worker group: log-probs, entropies and probes of the batch that verl's own method sends. ``answers``: whether
    its engine runs probes."""

    answers = True

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        traces = list(data["input_ids"].unbind())
        shifted = [torch.tensor(token_log_probs(trace, 0, TEMPERATURE)).roll(-1) for trace in traces]
        found: dict[str, Any] = {
            "log_probs": transfer_fields.jagged(shifted),
            "entropy": transfer_fields.jagged([own.abs().sqrt() for own in shifted]),
        }
        if tu.get_non_tensor_data(data=data, key=transfer_fields.BACKEND, default=None):
            specs = [unpack(vector) for vector in data[transfer_fields.PROBES].unbind()]
            found[transfer_fields.LOG_PROBS] = transfer_fields.jagged(
                [
                    torch.tensor([0.25, *(self._answer(trace, spec) for spec in own)])
                    for trace, own in zip(traces, specs, strict=True)
                ]
            )
        output = tu.get_tensordict(found)
        tu.assign_non_tensor(output, metrics={"mfu": 0.0})
        return output

    def _answer(self, trace: torch.Tensor, spec: Any) -> float:
        return probe_log_prob(trace, spec, 0, TEMPERATURE) if self.answers else float("nan")


def trainer_over(config: Any) -> Any:
    """verl's trainer over ``DataProto`` as it stands before its second step."""
    trainer = object.__new__(ray_trainer.RayPPOTrainer)
    assert isinstance(trainer, RRedCoTRayPPOTrainer)
    trainer.config, trainer.actor_rollout_wg, trainer.use_critic = config, Workers(), False
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 2)
    trainer.global_steps, trainer.parameter_sync_step, trainer.local_trigger_step = 2, 1, 0
    trainer.logger, trainer.timing_raw, trainer._credit_metrics = SimpleNamespace(logger={}), {}, {}
    trainer.rredcot = CreditRunner(trainer, read_settings(config), open_proto)
    trainer.rredcot.attach_tokenizer(TOKENIZER)
    return trainer


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_estimator": "confidence"},
        {"calibrate": "none", "lam": 0.9},
        {"segmenter": "nested", "lam_coarse": 0.8},
    ],
    ids=lambda options: ",".join(options) or "default",
)
def test_both_planes_give_the_same_credit(queue: MemoryQueue, options: dict[str, Any], seed: int) -> None:
    options = {"segmenter": "newline", **options}
    rows = bare_rows(seed=seed)
    batch = lay_down(queue, rows, seed=seed, pad=0)
    over_queue = step(make_trainer(queue, options), batch)
    order = [int(key.split("_")[-2]) for key in batch.keys]
    temperature = f"actor_rollout_ref.rollout.temperature={TEMPERATURE}"
    own = [f"+algorithm.rredcot.{key}={value}" for key, value in options.items()]
    trainer = trainer_over(verl_config(temperature, "trainer.use_v1=False", *own))
    proto = proto_of(rows, order)
    group = trainer.actor_rollout_wg
    found, _ = trainer._compute_old_log_prob(proto)
    assert trainer.actor_rollout_wg is group
    assert found.batch["old_log_probs"].shape == proto.batch["responses"].shape
    estimate = get_adv_estimator_fn("rredcot")
    advantages, returns = estimate(
        token_level_rewards=proto.batch["rm_scores"], response_mask=proto.batch["response_mask"], config=None
    )
    assert torch.equal(advantages, returns) and float(advantages.abs().max()) > 0.01
    for place, row in enumerate(order):
        theirs = over_queue[key_of(rows, row)]
        assert torch.equal(advantages[place, : len(theirs)], theirs)
        assert not advantages[place, len(theirs) :].any()
    output = trainer._with_metrics(SimpleNamespace(meta_info={"metrics": {}}))
    assert output.meta_info["metrics"]["rredcot/credit/return_error/max"][0] < 1e-5
    with pytest.raises(ValueError, match="needs one of verl's own trainers"):
        estimate(token_level_rewards=proto.batch["rm_scores"], response_mask=proto.batch["response_mask"])


def test_an_engine_that_answers_no_probes_is_named() -> None:
    trainer = trainer_over(verl_config("trainer.use_v1=False", "+algorithm.rredcot.segmenter=newline"))
    trainer.actor_rollout_wg.answers = False
    rows = bare_rows(seed=0)
    with pytest.raises(
        ValueError, match=r"cannot run probes in the log-prob pass of this model; set trainer.use_v1=true"
    ):
        trainer._compute_old_log_prob(proto_of(rows, list(range(len(rows.lengths)))))


def test_what_rewards_are_asked_with_reaches_the_plane() -> None:
    rows = bare_rows(seed=0)
    source = open_proto(ProtoBatch.of(proto_of(rows, [1, 0])), [0, 1]).take([1])
    assert source.reward_fields() == [
        {"reward_model": {"ground_truth": rows.rollouts.ground_truths[0]}, "uid": str(rows.rollouts.group_ids[0])}
    ]
    assert source.group_ids() == [str(rows.rollouts.group_ids[0])]
    (values,) = source.numbers(["rm_scores"], 40)
    assert values.shape == (1, 40)


def test_rows_with_images_are_known_in_this_plane_too() -> None:
    proto = proto_of(bare_rows(seed=0), [0, 1])
    assert not open_proto(ProtoBatch.of(proto), [0, 1]).has_media()
    inputs: list[dict[str, Any]] = [{}, {"pixel_values": torch.zeros(1)}]
    proto.non_tensor_batch[FIELD] = np.array(inputs, dtype=object)
    assert [open_proto(ProtoBatch.of(proto), [row]).has_media() for row in (0, 1)] == [False, True]
