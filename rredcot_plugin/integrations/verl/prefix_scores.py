"""Scores of a reward model at every prefix of every trace: one forward pass on worker processes of verl's own.

A group of verl's ``TrainingWorker`` stands beside the actor's on the same devices. Its engine is verl's FSDP2
engine for value models, forward only, so batches are split over ranks, packed into micro-batches by tokens and
run without gradient or optimizer; between calls its weights lie sharded in host memory. The checkpoint is loaded
as the sequence classifier that it is, and its own score head is read at every token instead of at the last one.

verl's loader for value models is not used: it insists on FlashAttention 2 and turns the checkpoint into a token
classifier, whose head has a bias and a dropout that the reward model does not have.

The price of a group of its own is one more process (and device context) a rank: verl offers no public place to
put a further worker into the actor's processes. It takes one of the ``max_colocate_count`` (three) shares of each
device, as verl's own colocated reward model does.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import ray
import torch
from tensordict import TensorDict
from transformers import AutoConfig, AutoTokenizer
from transformers.modeling_outputs import TokenClassifierOutput
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.utils import Role
from verl.utils import tensordict_utils as tu
from verl.utils.fs import copy_to_local
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
from verl.workers.config import FSDPEngineConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine_workers import TrainingWorker

from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl.transfer_fields import jagged
from rredcot_plugin.values.reward_model import RewardModelEstimator

MODEL_TYPE = "rredcot_reward_model"
SCORES = "rredcot_prefix_scores"
STRATEGY = "fsdp2"
KEY = "algorithm.rredcot.value_kwargs.path"
ACTOR_ROLES = (Role.ActorRolloutRef, Role.ActorRollout, Role.Actor)


class PrefixScorer:
    """Owns the reward model's workers; one a trainer.

    Call ``check`` as soon as there is a tokenizer, ``setup`` once verl's own workers exist, ``scores`` every step.

    Raises:
        ValueError: no path is given.
    """

    def __init__(self, trainer: Any, options: RewardModelEstimator) -> None:
        if options.path is None:
            raise ValueError(f"value_estimator=reward_model needs a reward model: set {KEY} to its directory")
        self.trainer = trainer
        self.options = options
        self.workers: Any = None

    def check(self, tokenizer: Any) -> None:
        """Raise ``ValueError`` unless the checkpoint scores with one number, on the tokens of ``tokenizer``."""
        assert self.options.path is not None
        check_reward_model(self.options.path, tokenizer, self.options.trust_remote_code)

    def setup(self) -> None:
        """Start the workers in the actor's resource pool and load the reward model there."""
        trainer = self.trainer
        role = next(role for role in ACTOR_ROLES if role in trainer.mapping)
        worker = RayClassWithInitArgs(
            cls=ray.remote(PrefixScoreWorker), config=worker_config(trainer.config, self.options)
        )
        self.workers = RayWorkerGroup(
            resource_pool=trainer.resource_pool_manager.get_resource_pool(role),
            ray_cls_with_init=worker,
            device_name=trainer.config.trainer.device,
        )
        self.workers.reset()

    def scores(self, rows: PromptedRollouts) -> torch.Tensor:
        """R_φ(x, y_<t) at each token t, (B, T) float32 in units of the reward model's score.

        Read on exactly the token ids of the rollout (its chat template included, no other added). The score at
        the first token is that of the prompt; NaN after the end of a response.
        """
        scores = torch.full(rows.token_ids.shape, torch.nan)
        places = [(row, output) for row in range(len(rows.lengths)) for output in rows.outputs_of(row)]
        for (row, output), values in zip(places, self.every_token(rows.traces()), strict=True):
            # the head at a token has seen it: the state before token t is read at token t - 1
            columns = slice(output.start, output.start + output.length)
            scores[row, columns] = values[len(output.prompt) - 1 : -1].float()
        return scores

    def every_token(self, traces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The score head at every token of each trace of token ids; per trace (T_i,)."""
        if not traces:
            return []
        order = balanced_order([len(trace) for trace in traces], self.workers.world_size)
        output = self.workers.infer_batch(self._batch([traces[i] for i in order])).get()
        values = dict(zip(order, output[SCORES].unbind(), strict=True))
        return [values[i] for i in range(len(traces))]

    def _batch(self, traces: list[torch.Tensor]) -> TensorDict:
        rollout = self.trainer.config.actor_rollout_ref.rollout
        wanted = self.options.max_tokens_per_gpu or rollout.log_prob_max_token_len_per_gpu
        fields: dict[str, Any] = {
            "input_ids": jagged(traces),
            "position_ids": jagged([torch.arange(len(trace)) for trace in traces]),
            "loss_mask": jagged([torch.ones_like(trace) for trace in traces]),  # verl counts the batch by it
        }
        settings = {
            "compute_loss": False,
            "temperature": 1.0,
            "max_token_len_per_gpu": max(wanted, *map(len, traces)),
        }
        return tu.get_tensordict(tensor_dict=fields, non_tensor_dict=settings)


def balanced_order(lengths: Sequence[int], ranks: int) -> list[int]:
    """Rows in an order that, cut into ``ranks`` equal parts, gives each about as many tokens.

    The shortest row is repeated where the number of rows is not divisible.

    >>> sorted(balanced_order([4, 3, 8], 2))
    [0, 1, 1, 2]
    """
    shortest = min(range(len(lengths)), key=lambda i: lengths[i])
    rows = [*range(len(lengths)), *[shortest] * (-len(lengths) % ranks)]
    parts = get_seqlen_balanced_partitions([lengths[i] for i in rows], ranks, equal_size=True)
    return [rows[j] for part in parts for j in part]


def check_reward_model(path: str, tokenizer: Any, trust_remote_code: bool = False) -> None:
    """Raise ``ValueError`` unless ``path`` holds a sequence classifier with one label on the actor's tokens.

    Scores at single tokens mean something only if both models cut the text alike, so every token of the
    actor must have the same id there; further tokens of the reward model do no harm.
    """
    try:
        local = copy_to_local(path)
        config = AutoConfig.from_pretrained(local, trust_remote_code=trust_remote_code)
        theirs = AutoTokenizer.from_pretrained(local, trust_remote_code=trust_remote_code).get_vocab()
    except (OSError, ValueError) as error:
        raise ValueError(f"{KEY}={path}: no reward model can be read there: {error}") from error
    architecture = next(iter(config.architectures or []), "no architecture")
    if "ForSequenceClassification" not in architecture or config.num_labels != 1:
        raise ValueError(
            f"{KEY}={path} holds {architecture} with {config.num_labels} labels: a reward model with one score is "
            "needed (AutoModelForSequenceClassification, num_labels=1)"
        )
    ours = tokenizer.get_vocab()
    different = [token for token, number in ours.items() if theirs.get(token) != number]
    if different:
        raise ValueError(
            f"{KEY}={path} has another tokenizer than the actor: {len(different)} of the actor's {len(ours)} tokens, "
            f"{different[0]!r} for one, are missing there or have another id. Scores at single tokens need equal "
            "tokens: use a reward model built on the actor's family, or, if it was trained on these tokens and only "
            "its directory lacks the files, save the actor's tokenizer there"
        )


def worker_config(config: Any, options: RewardModelEstimator) -> TrainingWorkerConfig:
    """Settings of the reward model's workers; attention and padding follow the actor's model."""
    assert options.path is not None
    actor = config.actor_rollout_ref.model
    attention = (actor.get("override_config", None) or {}).get("attn_implementation", "flash_attention_2")
    dtype = options.dtype or ("float32" if config.trainer.device == "cpu" else "bfloat16")
    if dtype == "float32" and attention.startswith("flash_attention"):
        attention = "sdpa"  # FlashAttention has no float32
    return TrainingWorkerConfig(
        model_type=MODEL_TYPE,
        model_config=HFModelConfig(
            path=options.path,
            load_tokenizer=False,
            trust_remote_code=options.trust_remote_code,
            override_config={"attn_implementation": attention},
            use_remove_padding=actor.get("use_remove_padding", True),
            enable_gradient_checkpointing=False,
        ),
        engine_config=FSDPEngineConfig(
            strategy=STRATEGY,
            forward_only=True,
            model_dtype=dtype,
            mixed_precision={"param_dtype": dtype},
            use_torch_compile=False,
            use_dynamic_bsz=True,
        ),
        checkpoint_config=CheckpointConfig(save_contents=["model"], load_contents=["model"]),
    )


class PrefixScoreWorker(TrainingWorker):
    """verl's training worker, in a process that knows the engine ``rredcot_reward_model``."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        register_engine()
        super().__init__(config)


@functools.cache
def register_engine() -> None:
    """Derive the engine of this device from verl's engine for value models (or that of its CPU platform)."""
    base = EngineRegistry.get_engine_cls("value_model", STRATEGY)
    engine = type("PrefixScoreEngine", (PrefixScoreEngineMixin, base), {"__module__": __name__})
    # under every name verl may look it up by: a process has one device
    EngineRegistry.register(MODEL_TYPE, STRATEGY, device=["cuda", "npu", "cpu"])(engine)


class PrefixScoreEngineMixin:
    """Loads the sequence classifier as it is, and hands out its score at every token."""

    model_config: Any

    def _build_module(self) -> torch.nn.Module:
        # as a "language model" verl loads the architecture that the checkpoint names
        declared, self.model_config.model_type = self.model_config.model_type, "language_model"
        try:
            return score_every_token(super()._build_module())  # type: ignore[misc]
        finally:
            self.model_config.model_type = declared

    def prepare_model_outputs(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        # under a name of its own: ``values`` are the critic's
        return {SCORES: super().prepare_model_outputs(*args, **kwargs)["values"]}  # type: ignore[misc]


def score_every_token(model: torch.nn.Module) -> torch.nn.Module:
    """Let a sequence classifier answer ``logits`` (B, T, 1), its score of every prefix, instead of the last one.

    Raises:
        ValueError: it has no linear head ``score`` with one output.
    """
    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear) or head.out_features != 1:
        raise ValueError(
            f"{KEY}: {type(model).__name__} has no linear head `score` with one output, which decoder models for "
            "sequence classification have"
        )
    model.forward = types.MethodType(_forward, model)
    return model


def _forward(self: Any, **inputs: Any) -> TokenClassifierOutput:
    hidden = self.base_model(**inputs)[0]
    with torch.autocast(hidden.device.type, enabled=False):
        # differences of successive scores are small beside the scores: bfloat16 would round them away
        bias = None if self.score.bias is None else self.score.bias.float()
        logits: Any = torch.nn.functional.linear(hidden.float(), self.score.weight.float(), bias)
    return TokenClassifierOutput(logits=logits)
