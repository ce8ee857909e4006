"""The reward model's scores in verl's engine and workers equal its own score of each prefix.

``VERL_PLATFORM=cpu python -m tests.contract.test_prefix_scores engine|workers DIR`` runs what needs a process of
its own, because the platform is chosen once per process.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertConfig
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.model import load_valuehead_model
from verl.workers.engine_workers import TrainingWorker

import rredcot_plugin as rr
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.integrations.verl import prefix_scores
from rredcot_plugin.integrations.verl.prefix_scores import PrefixScorer, check_reward_model, score_every_token
from rredcot_plugin.values.reward_model import RewardModelEstimator
from tests.unit.probe_models import random_ids, tiny_model

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "rredcot_plugin" / "tiny" / "checkpoint"
LENGTHS = [(9, 14), (5, 3), (7, 0), (4, 1), (6, 11)]  # prompt and response tokens; an odd number for two ranks


def save_reward_model(folder: Path, shape: str | None = None) -> Path:
    """A random reward model of a tiny shape, or of the demo checkpoint's, with the demo's tokenizer."""
    config = tiny_model(shape).config if shape else AutoConfig.from_pretrained(CHECKPOINT)
    config.num_labels = 1
    config.initializer_range = 0.15  # far from the usual 0.02, so that scores differ
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(folder)
    return folder


def make_rows() -> PromptedRollouts:
    sequences = [torch.tensor(random_ids(sum(pair), seed=i)) for i, pair in enumerate(LENGTHS)]
    prompts = [ids[:prompt] for ids, (prompt, _) in zip(sequences, LENGTHS, strict=True)]
    lengths = [response for _, response in LENGTHS]
    ids = torch.zeros(len(LENGTHS), max(lengths), dtype=torch.int64)
    for i, (prompt, length) in enumerate(LENGTHS):
        ids[i, :length] = sequences[i][prompt:]
    mask = torch.arange(ids.shape[1])[None] < torch.tensor(lengths)[:, None]
    rollouts = rr.Rollouts(ids, mask, torch.zeros(ids.shape), list(range(len(ids))))
    return PromptedRollouts(rollouts, prompts, [""] * len(ids), lengths)


def expected_scores(path: Path, rows: PromptedRollouts) -> torch.Tensor:
    """The model's own answer to each prefix alone."""
    model = AutoModelForSequenceClassification.from_pretrained(path, attn_implementation="sdpa").eval()
    scores = torch.full(rows.rollouts.token_ids.shape, torch.nan)
    for i, prompt in enumerate(rows.prompts):
        for t in range(rows.lengths[i]):
            prefix = torch.cat([prompt, rows.rollouts.token_ids[i, :t]])
            with torch.no_grad():
                scores[i, t] = model(input_ids=prefix[None]).logits[0, 0]
    return scores


def verl_config(*overrides: str):
    from hydra import compose, initialize_config_module

    cpu = ["trainer.device=cpu", "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*cpu, *overrides])


def assert_equal_scores(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == torch.float32
    assert torch.equal(torch.isnan(got), torch.isnan(expected)), "NaN exactly behind the end of a response"
    real = ~torch.isnan(expected)
    assert expected[real].std() > 0.05, "scores that hardly differ prove nothing"
    error = float((got - expected)[real].abs().max())
    assert error < 1e-5, error


# ---- scripts


class OneEngine:
    """Stands in for the worker group: the engine of this very process, micro-batches of 20 tokens or one row."""

    world_size = 1

    def __init__(self, config, options: RewardModelEstimator) -> None:
        from verl.workers.engine import EngineRegistry

        prefix_scores.register_engine()
        made = prefix_scores.worker_config(config, options)
        self.remove_padding = made.model_config.use_remove_padding
        self.engine = EngineRegistry.new(
            model_type=made.model_type,
            backend=made.engine_config.strategy,
            model_config=made.model_config,
            engine_config=made.engine_config,
            optimizer_config=made.optimizer_config,
            checkpoint_config=made.checkpoint_config,
        )
        self.engine.initialize()
        assert self.engine.optimizer is None

    def infer_batch(self, batch):
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(batch, use_remove_padding=self.remove_padding, use_dynamic_bsz=True)
        with self.engine.eval_mode():
            output = self.engine.infer_batch(batch)["model_output"]
        assert set(output) == {prefix_scores.SCORES}, "`values` would clash with a critic's"
        return SimpleNamespace(get=lambda: output)


def check_engine(folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo", rank=0, world_size=1, init_method=f"file://{folder}/rendezvous")
    rows = make_rows()
    for shape in ("qwen3", "llama", "gemma2"):
        path = save_reward_model(folder / shape, shape)
        expected = expected_scores(path, rows)
        for padding in ("True", "False"):
            config = verl_config(f"actor_rollout_ref.model.use_remove_padding={padding}")
            for dtype in ("float32", "bfloat16"):
                options = RewardModelEstimator(str(path), dtype=dtype, max_tokens_per_gpu=20)
                scorer = PrefixScorer(SimpleNamespace(config=config), options)
                scorer.workers = OneEngine(config, options)
                got = scorer.scores(rows)
                if dtype == "float32":
                    assert_equal_scores(got, expected)
                else:  # rounded layers, but a head in float32: more values than bfloat16 has between them
                    real = ~torch.isnan(expected)
                    assert (got - expected)[real].abs().max() < 0.2
                    assert not torch.equal(got[real], got[real].bfloat16().float())
        print(f"{shape}: equal")
    dist.destroy_process_group()


def check_workers(folder: Path) -> None:
    """Two ranks under Ray, in a pool as verl's trainer makes it."""
    import ray
    from verl.trainer.ppo.utils import Role
    from verl.trainer.ppo.v1.trainer_base import ResourcePoolManager

    ray.init(num_cpus=8, num_gpus=2, include_dashboard=False, object_store_memory=10**8)
    try:
        mapping = {Role.ActorRollout: "global_pool"}
        pools = ResourcePoolManager(resource_pool_spec={"global_pool": [2]}, mapping=mapping)
        pools.create_resource_pool()
        config = verl_config("actor_rollout_ref.model.use_remove_padding=False")
        path = save_reward_model(folder / "model")
        trainer = SimpleNamespace(config=config, mapping=mapping, resource_pool_manager=pools)
        scorer = PrefixScorer(trainer, RewardModelEstimator(str(path), max_tokens_per_gpu=20))
        scorer.check(AutoTokenizer.from_pretrained(CHECKPOINT))
        scorer.setup()
        rows = make_rows()
        assert scorer.workers.world_size == 2
        for _ in range(2):  # a second step finds the workers as the first did
            assert_equal_scores(scorer.scores(rows), expected_scores(path, rows))
        one = PromptedRollouts(
            rr.Rollouts(rows.rollouts.token_ids[:1], rows.rollouts.response_mask[:1], torch.zeros(1, 14), [0]),
            rows.prompts[:1],
            [""],
            rows.lengths[:1],
        )
        assert_equal_scores(scorer.scores(one), expected_scores(path, one))
    finally:
        ray.shutdown()
    print("workers: equal")


# ---- tests


def script(name: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tests.contract.test_prefix_scores", name, str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            **{"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            # no idle Ray workers in advance
            **{"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"},
        },
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(("name", "equal"), [("engine", 3), ("workers", 1)])
def test_scores_equal_the_models_own_at_every_prefix(name: str, equal: int, tmp_path: Path) -> None:
    done = script(name, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(": equal") == equal


def test_balanced_order_is_an_even_deal() -> None:
    lengths = [40, 3, 17, 25, 8]
    order = prefix_scores.balanced_order(lengths, 2)
    assert sorted(order) == [0, 1, 1, 2, 3, 4], "the shortest row fills up"
    halves = [sum(lengths[i] for i in order[:3]), sum(lengths[i] for i in order[3:])]
    assert abs(halves[0] - halves[1]) <= 16


def test_a_path_is_needed() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.rredcot\.value_kwargs\.path"):
        PrefixScorer(SimpleNamespace(), RewardModelEstimator())


def test_what_is_no_reward_model_is_refused(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    check_reward_model(str(save_reward_model(tmp_path / "good")), tokenizer)
    with pytest.raises(ValueError, match=r"value_kwargs\.path=.*Qwen3ForCausalLM.*num_labels=1"):
        check_reward_model(str(CHECKPOINT), tokenizer)
    with pytest.raises(ValueError, match="no reward model can be read there"):
        check_reward_model(str(tmp_path), tokenizer)
    encoder = AutoModelForSequenceClassification.from_config(
        BertConfig(num_labels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    with pytest.raises(ValueError, match="no linear head `score`"):
        score_every_token(encoder)


def test_the_tokenizer_must_have_the_actors_tokens(tmp_path: Path) -> None:
    actor = AutoTokenizer.from_pretrained(CHECKPOINT)
    path = save_reward_model(tmp_path)
    actor.add_tokens(["<new>"])
    with pytest.raises(ValueError, match=r"value_kwargs\.path=.*another tokenizer.* 1 of .*'<new>'"):
        check_reward_model(str(path), actor)
    actor.save_pretrained(path)  # a further token of the reward model does no harm
    check_reward_model(str(path), AutoTokenizer.from_pretrained(CHECKPOINT))


def test_facts_of_verl_that_the_workers_stand_on() -> None:
    assert 'attn_implementation="flash_attention_2"' in inspect.getsource(load_valuehead_model), (
        "why it is not used"
    )
    setup = inspect.getsource(PPOTrainer._setup)
    assert "self.resource_pool_manager.create_resource_pool()" in setup
    assert "self.mapping[role]" in inspect.getsource(PPOTrainer._init_resource_pool_mgr)
    assert "model_type=self.config.model_type" in inspect.getsource(TrainingWorker.__init__)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"engine": check_engine, "workers": check_workers}[sys.argv[1]](Path(sys.argv[2]))
