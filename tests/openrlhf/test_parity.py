"""With one segment a trace the advantages are OpenRLHF's own; with several, what must hold of any credit."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rredcot_plugin.credit.redistribution import mean_per_segment, sum_per_segment
from rredcot_plugin.credit.turn_rewards import expected_of_others
from rredcot_plugin.groups import group_index
from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.integrations.openrlhf import OPTIONS
from rredcot_plugin.integrations.openrlhf.arguments import STANDS_FOR
from rredcot_plugin.integrations.openrlhf.rows import places_of, response_numbers
from rredcot_plugin.integrations.openrlhf.settings import check_flags, for_processes, read_settings
from rredcot_plugin.tiny import CHECKPOINT
from tests.openrlhf.experiences import GROUP, arguments, experiences

openrlhf_cpu.activate()

WHOLE = {"segmenter": "none", "calibrate": "none", "baseline": "value"}
TOKENS = {"tokens": 1, "max_segments": 1000, "answer_markers": []}
SCALES = [("group_norm", "group_std", 1.0), ("dr_grpo", "none", 1.0), ("rloo", "none", (GROUP - 1) / GROUP)]
"""OpenRLHF's estimator, our scale, and ours over theirs: leave-one-out differs from the mean by a factor."""


@pytest.fixture(scope="module")
def host() -> Any:
    module = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")  # where nothing is replaced
    experience = importlib.import_module("openrlhf.trainer.ppo_utils.experience")
    return SimpleNamespace(Stock=module.RemoteExperienceMaker, Experience=experience.Experience)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(CHECKPOINT)


def build(
    cls: Any,
    estimator: str,
    tokenizer: Any,
    coefficient: float = 0.0,
    lam: float = 1.0,
    *,
    rewarded_by_model: bool = False,
    rollouts: int = GROUP,
) -> Any:
    strategy = SimpleNamespace(args=arguments(estimator, lam))
    strategy.args.rollout.n_samples_per_prompt = rollouts
    if rewarded_by_model:
        strategy.args.reward.remote_url, strategy.args.reward.model_name_or_path = None, "a reward model"
    return cls(None, None, None, None, SimpleNamespace(value=coefficient), strategy, tokenizer)


def ours(
    host: Any,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    coefficient: float = 0.0,
    estimator: str = "rredcot",
    rollouts: int = GROUP,
) -> Any:
    monkeypatch.setenv(OPTIONS, for_processes(estimator, options))
    module = importlib.import_module("rredcot_plugin.integrations.openrlhf.maker")
    maker, theirs = module.RRedCoTExperienceMaker, STANDS_FOR[estimator]
    model = estimator == "red"
    return build(maker, theirs, tokenizer, coefficient, rewarded_by_model=model, rollouts=rollouts)


def credited(maker: Any, batch: list[Any]) -> list[Any]:
    """What is left of a step without the model: planned, then credited."""
    maker.step = maker.crediter.plan(batch)
    return maker.compute_advantages_and_returns(batch)


@pytest.mark.parametrize(
    ("theirs", "scale", "factor", "coefficient"),
    [(*one, 0.0) for one in SCALES] + [(*one, 0.01) for one in SCALES[:2]],
)
def test_one_segment_is_their_own_estimator(
    host: Any,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    theirs: str,
    scale: str,
    factor: float,
    coefficient: float,
) -> None:
    """With KL in the reward too, as OpenRLHF has it unless told otherwise; one group's rewards are all equal."""
    batch, same = experiences(host, kl=1.0), experiences(host, kl=1.0)
    for some in (batch, same):
        some[2].rewards = torch.ones_like(some[2].rewards)
    own = credited(ours(host, tokenizer, monkeypatch, {**WHOLE, "scale": scale}, coefficient), batch)
    stock = build(host.Stock, theirs, tokenizer, coefficient).compute_advantages_and_returns(same)
    largest = 0.0
    for mine, other in zip(own, stock, strict=True):
        expected = factor * other.advantages * other.action_mask
        largest = max(largest, float(expected.abs().max()))
        torch.testing.assert_close(mine.advantages, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.returns, expected, rtol=0, atol=1e-6)
    assert largest > 0.3  # there was something to compare


@pytest.mark.parametrize("scale", ["none", "group_std"])
def test_one_rollout_of_a_prompt_and_one_segment_is_the_reward(
    host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    """As in verl, where GRPO takes a group of one to have mean 0 and deviation 1; OpenRLHF's own estimators of groups refuse."""
    maker = ours(host, tokenizer, monkeypatch, {**WHOLE, "scale": scale}, rollouts=1)
    for mine in credited(maker, experiences(host)):
        torch.testing.assert_close(mine.advantages, mine.rewards[:, None] * mine.action_mask, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rollouts", [GROUP, 1])
@pytest.mark.parametrize(
    "options",
    [{}, {"preset": "exact"}, {"preset": "lean"}, {"preset": "low_variance"}, {"segmenter": "fixed", "lam": 0.5}],
)
def test_masked_tokens_and_prompts_get_nothing(
    host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], rollouts: int
) -> None:
    maker = ours(host, tokenizer, monkeypatch, options, rollouts=rollouts)
    found = credited(maker, experiences(host))
    assert maker.metrics["rredcot/credit/return_error/max"] < 1e-5
    assert max(float(own.advantages.abs().max()) for own in found) > 0.0
    for own in found:
        assert own.advantages.shape == own.action_log_probs.shape
        assert bool(torch.isfinite(own.advantages).all())
        assert float((own.advantages * (1 - own.action_mask)).abs().max()) == 0.0


def test_order_and_batches_do_not_matter(host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = credited(ours(host, tokenizer, monkeypatch, {}), experiences(host))
    batch = experiences(host)
    second = credited(ours(host, tokenizer, monkeypatch, {}), batch[::-1])[::-1]
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one.advantages, other.advantages, rtol=0, atol=2e-6)


def test_the_kl_penalty_stays_in_its_segment(host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At λ = 1, with values that do not change, a segment's advantage differs from the next one's by its own penalty, less what
    was expected of it."""
    options = {**WHOLE, "segmenter": "fixed", "segmenter_kwargs": {"tokens": 4}, "scale": "none"}
    maker, batch = ours(host, tokenizer, monkeypatch, options, 0.1), experiences(host, kl=1.0)
    maker.step = step = maker.crediter.plan(batch)
    given = [own.kl for own in batch]
    maker.compute_advantages_and_returns(batch)
    advantages = response_numbers([own.advantages for own in batch], step.places)
    segments, rollouts = step.levels[-1], step.rows.rollouts
    penalties = sum_per_segment(-0.1 * response_numbers(given, step.places), segments)
    group, everyone = group_index(rollouts.group_ids), torch.ones(len(penalties), dtype=torch.bool)
    to_come = expected_of_others(penalties, segments, rollouts.response_mask, group, valid=everyone)
    own = mean_per_segment(advantages, segments)
    both = segments.exists[:, 1:]
    assert int(both.sum()) > 20
    beyond = penalties[:, :-1] - (to_come[:, :-1] - to_come[:, 1:])
    torch.testing.assert_close((own[:, :-1] - own[:, 1:])[both], beyond[both], rtol=0, atol=1e-5)


def test_the_fit_goes_into_checkpoints_and_back(
    host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = ours(host, tokenizer, monkeypatch, {})
    credited(maker, experiences(host))
    module = importlib.import_module("rredcot_plugin.integrations.openrlhf.trainer")
    saved = module.with_fit(SimpleNamespace(experience_maker=maker), {"global_step": 3})
    assert saved["global_step"] == 3
    fresh = ours(host, tokenizer, monkeypatch, {})
    fresh.crediter.calibrator.load_state_dict(saved[module.STATE])
    one, other = (credited(own, experiences(host, seed=1)) for own in (maker, fresh))
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.advantages, theirs.advantages)


@pytest.mark.parametrize("lam", [1.0, 0.9])
def test_a_critic_at_every_token_is_their_gae(
    host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, lam: float
) -> None:
    """Where an environment has spoken in between, theirs takes 0 for the value of its tokens, so λ = 1 alone agrees."""
    every_token = {"segmenter": "fixed", "segmenter_kwargs": TOKENS, "lam": lam, "scale": "none"}
    maker = ours(host, tokenizer, monkeypatch, every_token, 0.1, "rredcot_ppo")
    own = credited(maker, experiences(host, kl=1.0))
    stock = build(host.Stock, "gae", tokenizer, 0.1, lam)
    theirs = stock.compute_advantages_and_returns(experiences(host, kl=1.0))
    whole = slice(0 if lam == 1.0 else 1, None)
    for mine, other in zip(own, theirs, strict=True):
        expected = other.returns * other.action_mask
        torch.testing.assert_close(mine.returns[whole], expected[whole], rtol=0, atol=1e-5)
        gae = (mine.returns - mine.values) * mine.action_mask
        torch.testing.assert_close(mine.advantages, gae, rtol=0, atol=1e-5)


def test_red_reads_the_reward_model_before_each_token(
    host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At λ = 0 a token's advantage is what it adds to the score; the last one's is what the reward is above it."""
    maker = ours(host, tokenizer, monkeypatch, {"lam": 0.0, "scale": "none"}, estimator="red")
    batch = experiences(host)
    places = places_of(batch)
    generator = torch.Generator().manual_seed(3)
    scores = [torch.rand(own.sequences.shape, generator=generator) for own in batch]
    for own, said in zip(batch, scores, strict=True):
        own.action_mask[:, places[0].first :] = own.attention_mask[:, 1 + places[0].first :]  # no environment here
        own.rewards = said.gather(1, own.attention_mask.sum(1, keepdim=True) - 1)[:, 0]
    maker.step = maker.crediter.plan(batch)
    maker.step.scores = scores
    maker.compute_advantages_and_returns(batch)
    compared = 0
    for own, said in zip(batch, scores, strict=True):
        added = said[:, 1:] - said[:, :-1]
        inner = own.action_mask.bool()
        inner[:, : places[0].first + 1] = False  # the first token's value is that of the prompt, the group's mean
        torch.testing.assert_close(own.advantages[inner], added[inner], rtol=0, atol=1e-5)
        compared += int(inner.sum())
    assert compared > 100


def test_what_does_not_go_together_is_named(host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments("group_norm")
    args.reward.clip_range = (-1, 1)
    with pytest.raises(ValueError, match=r"--reward.clip_range -1 1"):
        check_flags(read_settings("rredcot", {}), args)
    args = arguments("group_norm")
    args.data.max_images_per_prompt = 1
    with pytest.raises(
        ValueError, match=r"max_images_per_prompt 1: probes .*support do not see images; use .*confidence"
    ):
        check_flags(read_settings("rredcot", {}), args)
    seeing = {"value_estimator": "confidence"}
    check_flags(read_settings("rredcot", seeing), args)
    with pytest.raises(ValueError, match=r"max_images_per_prompt 1: --algo\.rredcot\.probe_backend packed"):
        check_flags(read_settings("rredcot", {**seeing, "probe_backend": "packed"}), args)
    args = arguments("group_norm")
    args.ds.ring_attn_size = 2
    with pytest.raises(ValueError, match=r"--ds.ring_attn_size 2: packs rows with flash-attn"):
        check_flags(read_settings("rredcot", {}), args)
    args.ds.ring_attn_size, args.ds.tensor_parallel_size = 1, 2
    check_flags(read_settings("rredcot", {}), args)
    with pytest.raises(ValueError, match=r"--algo.rredcot.value_estimator monte_carlo"):
        read_settings("rredcot", {"value_estimator": "monte_carlo"})
    with pytest.raises(ValueError, match=r"value_estimator support.*rredcot_ppo takes its values from critic"):
        read_settings("rredcot_ppo", {"value_estimator": "support"})
    with pytest.raises(ValueError, match=r"--algo.rredcot.histogram_every.*leave it out"):
        read_settings("rredcot", {"histogram_every": 3})
    args = arguments("group_norm")
    for args.reward.remote_url in (None, ""):  # of a variable that a script leaves empty
        with pytest.raises(ValueError, match=r"--reward.remote_url: is not given.*confidence"):
            check_flags(read_settings("rredcot", {}), args)
    with pytest.raises(ValueError, match=r"--reward.model_name_or_path None.*give its path"):
        check_flags(read_settings("red", {}), arguments("group_norm"))


@pytest.mark.parametrize("segmenter", ["entropy", "probability", "newline_entropy", "adaptive"])
def test_segmenters_that_read_log_probs_need_vllm_to_record_them(
    host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, segmenter: str
) -> None:
    args, options = arguments("group_norm"), {"segmenter": segmenter}
    with pytest.raises(
        ValueError, match=rf"--algo\.rredcot\.segmenter {segmenter} reads .*is_correction_level token"
    ):
        check_flags(read_settings("rredcot", options), args)
    args.algo.advantage.is_correction_level = "token"
    check_flags(read_settings("rredcot", options), args)
    batch = experiences(host)
    for own in batch:
        own.rollout_log_probs = own.action_log_probs.clone()
    maker = ours(host, tokenizer, monkeypatch, options)
    for own in credited(maker, batch):
        assert bool(torch.isfinite(own.advantages).all())


def test_the_tokenizer_of_a_processor_is_taken(host: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF's ``tokenizer`` of a model with vision is a processor, also where prompts have no images."""
    from transformers import ProcessorMixin

    class Processor(ProcessorMixin):
        attributes = ("tokenizer",)

        def __init__(self, tokenizer: Any) -> None:
            self.tokenizer = tokenizer

    found = credited(ours(host, Processor(tokenizer), monkeypatch, {}), experiences(host))
    expected = credited(ours(host, tokenizer, monkeypatch, {}), experiences(host))
    for own, other in zip(found, expected, strict=True):
        assert torch.equal(own.advantages, other.advantages)
