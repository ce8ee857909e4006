"""The benchmark on learning: its rollouts, the credit of its systems, its update."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from estimators_table.batch import VERL, Batch
from estimators_table.leave_one_out import otb_leave_one_out
from lab.baseline import whole_baseline
from lab.models import load_models
from lab.rollouts import Actor, with_signals
from lab.store import Store
from lab.tasks import FAMILIES
from learn import credit as crediting
from learn.batch import response_log_probs, rollouts, sample, with_squares
from learn.credit import Crediter, foreign_values, sharpening
from learn.reward_model import every_score, load_reward_model, scores_before, with_score_head
from learn.systems import DEFAULT_SYSTEMS, Judging, System
from learn.verl_parts import Updater, actor_config
from transformers import Qwen3ForSequenceClassification

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.registry import VALUE_ESTIMATORS
from rredcot_plugin.tiny.reasoner import build_tokenizer
from tests.unit.learning_cases import system


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Actor:
    from lab.models import CleanTraining

    model = load_models(Store(tmp_path_factory.mktemp("models")), CleanTraining(), {"demo"})["demo"]
    return Actor(FAMILIES["sums"], model, build_tokenizer())


@pytest.fixture(scope="module")
def batch(actor: Actor) -> Any:
    questions = actor.family.problems("train", 4, 3)
    rows = rollouts(actor, questions, 4, 0)
    return with_signals(actor, rows, [q for q in questions for _ in range(4)])


@pytest.fixture(scope="module")
def reward_model(actor: Actor, tmp_path_factory: pytest.TempPathFactory) -> Qwen3ForSequenceClassification:
    store = Store(tmp_path_factory.mktemp("reward_model"))
    judging = Judging(questions=6, group=2, epochs=2, batch=4)
    made = load_reward_model(actor, store, "the demo's", judging)
    again = load_reward_model(actor, store, "the demo's", judging)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters(), strict=True))
    return made


def test_fast_sampling_draws_what_plain_sampling_draws(actor: Actor) -> None:
    from lab.sampling import continuations

    prompts = [actor.prompt(q) for q in actor.family.problems("val", 2, 0)]
    assert sample(actor, prompts, [40, 40], 3, 5) == continuations(actor.model, prompts, [40, 40], 3, 5)


def test_the_log_probs_that_are_trained_are_those_of_the_old_policy(actor: Actor, batch: Any) -> None:
    found = response_log_probs(actor.model, batch)
    assert found.requires_grad
    assert torch.allclose(found, batch.rows.rollouts.log_probs, atol=1e-4)


def test_systems_without_segments_have_verls_own_numbers(actor: Actor, batch: Any) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_rloo_outcome_advantage

    data = batch.rows.rollouts
    given = data.rewards, data.response_mask.float(), np.array(data.group_ids, dtype=object)
    expected, _ = compute_grpo_outcome_advantage(*given)
    assert float(expected.abs().max()) > 0.3
    grpo = Crediter(system("grpo"), actor, 0)(batch, 1).advantages
    whole = System("whole", options={"segmenter": "none"})
    assert torch.equal(grpo, expected)
    rloo = Crediter(system("rloo"), actor, 0)(batch, 1).advantages
    assert torch.equal(rloo, compute_rloo_outcome_advantage(*given)[0]) and not torch.allclose(
        rloo, grpo, atol=0.1
    )
    assert torch.allclose(Crediter(whole, actor, 0)(batch, 1).advantages, expected, atol=1e-6)
    whitened = Crediter(system("reinforce_plus_plus"), actor, 0)(batch, 1).advantages
    tokens, earned = whitened[given[1].bool()], batch.rows.rollouts.outcomes[:, None].expand_as(whitened)
    assert abs(float(tokens.mean())) < 1e-4 and float(tokens.std()) == pytest.approx(1, rel=1e-2)
    assert whitened[earned == 1].min() >= 0 >= whitened[earned == 0].max()
    reward = Crediter(system("no_baseline"), actor, 0)(batch, 1).advantages
    assert torch.equal(reward, data.rewards.sum(1, keepdim=True) * data.response_mask) and 0 < reward.mean() < 1


def test_token_baselines_are_verls_and_the_same_without_the_own_reward(actor: Actor, batch: Any) -> None:
    found = with_squares(actor.model, batch).rows.rollouts
    row, start = 3, len(batch.rows.prompts[3])
    with torch.no_grad():
        probabilities = actor.model(torch.tensor([batch.tokens[row]])).logits[0, start - 1 : -1].softmax(-1)
    squares = probabilities.square().sum(1)
    assert torch.allclose(found.sum_pi_squared[row, : len(squares)], squares, atol=1e-5)
    assert float(found.sum_pi_squared[~found.response_mask].abs().max()) == 0
    data = Batch(found.token_ids, found.rewards, found.response_mask.float(), np.array(found.group_ids, dtype=object),
                 found.log_probs, found.sum_pi_squared, found.rewards, found.rewards)  # fmt: skip
    theirs = VERL["optimal_token_baseline"].call(data)
    otb = Crediter(system("otb"), actor, 0)(batch, 1)
    assert torch.equal(otb.advantages, theirs)
    given = Crediter(system("otb_leave_one_out"), actor, 0)(batch, 1)
    assert given.probe_tokens == given.continuation_tokens == 0
    left_out = otb_leave_one_out(data)
    alive = left_out != found.outcomes[:, None] * found.response_mask  # where a sibling is, verl's 0 is not meant
    assert alive.float().mean() > 0.4
    assert float((given.advantages - left_out)[alive].abs().median()) < 0.02  # weights of ours have a floor
    assert not torch.allclose(given.advantages, otb.advantages, atol=0.1)


def test_the_actor_has_verls_defaults() -> None:
    import verl.trainer.config
    from omegaconf import OmegaConf

    folder = Path(verl.trainer.config.__path__[0])
    theirs = OmegaConf.load(folder / "actor" / "actor.yaml")
    optim = OmegaConf.load(folder / "optim" / "fsdp.yaml")
    ours = actor_config(1e-4, 8, 8, 4)
    for key in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "use_kl_loss",
                "entropy_coeff", "ppo_epochs"):  # fmt: skip
        assert ours[key] == theirs[key], key
    assert ours.policy_loss.loss_mode == theirs.policy_loss.loss_mode
    for key in ("optimizer", "weight_decay", "betas", "clip_grad", "lr_warmup_steps_ratio",
                "lr_scheduler_type"):  # fmt: skip
        assert (list(ours.optim[key]) if key == "betas" else ours.optim[key]) == optim[key], key


def test_every_system_gives_other_credit_and_counts_its_tokens(
    actor: Actor, batch: Any, reward_model: Qwen3ForSequenceClassification
) -> None:
    before = VALUE_ESTIMATORS.names()
    found = {s.name: Crediter(s, actor, 0, reward_model)(batch, 1) for s in DEFAULT_SYSTEMS}
    assert len({x.advantages.numpy().tobytes() for x in found.values()}) == len(found)
    mask = batch.rows.rollouts.response_mask
    for name, own in found.items():
        assert torch.isfinite(own.advantages).all() and float(own.advantages[~mask].abs().max()) == 0.0
        assert (own.continuation_tokens > 0) == (name == "mc_grpo"), name
        asks = name in ("rredcot", "rredcot_paper", "rredcot_lam95", "value_baseline", "control_shuffled_values")
        assert (own.probe_tokens > 0) == asks, name
    assert VALUE_ESTIMATORS.names() == before


def test_measured_from_values_it_differs_from_the_default(actor: Actor, batch: Any) -> None:
    found = {name: Crediter(system(name), actor, 0)(batch, 1).advantages for name in ("rredcot", "value_baseline")}
    assert torch.isfinite(found["value_baseline"]).all()
    assert not torch.allclose(found["value_baseline"], found["rredcot"], atol=1e-3)
    assert (found["value_baseline"][~batch.rows.rollouts.response_mask] == 0).all()


def test_monte_carlo_values_are_mean_rewards_of_continuations(
    actor: Actor, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crediter = Crediter(system("mc_grpo"), actor, 0)
    segments = crediter.segmenter(batch.rows.rollouts)
    solution = {q.text: actor.tokenizer(actor.family.write(q, None))["input_ids"] for q in batch.questions}  # type: ignore[arg-type]

    def right_then_wrong(_: Any, prefixes: Any, budgets: Any, copies: int, seed: int) -> Any:
        whole = {
            tuple(batch.tokens[row][: len(batch.rows.prompts[row])]): q for row, q in enumerate(batch.questions)
        }
        question = [next(q for prompt, q in whole.items() if p[: len(prompt)] == prompt) for p in prefixes]
        answers = [[10, *solution[q.text]] for q in question]
        return [[answer] + [[10]] * (copies - 1) for answer in answers]

    monkeypatch.setattr(crediting, "sample", right_then_wrong)
    table, tokens = crediter._continued(batch, segments, 1)
    seen = table[torch.isfinite(table)]
    assert tokens > 0 and len(seen) == int((segments.num_segments - 1).clamp(min=0).sum())
    assert set(seen.tolist()) == {0.25}


def test_one_baseline_a_trace_leaves_out_the_own_reward(actor: Actor, batch: Any) -> None:
    segments = Crediter(system("trace_baseline"), actor, 0).segmenter(batch.rows.rollouts)
    data = batch.rows.rollouts
    found = whole_baseline(data, segments)
    rewards = data.rewards.clone()
    rewards[5] = 1 - rewards[5]
    changed = whole_baseline(replace(data, rewards=rewards), segments)
    assert torch.equal(found[5], changed[5]) and not torch.allclose(found[4], changed[4], atol=1e-4)
    first = found[:, :1].expand_as(found)
    assert torch.equal(torch.where(segments.exists, first, 0.0), found)


def test_controls_know_nothing_of_right_and_wrong(actor: Actor, batch: Any) -> None:
    segments = Crediter(system("rredcot"), actor, 0).segmenter(batch.rows.rollouts)
    data = batch.rows.rollouts
    paid = replace(batch, rows=replace(batch.rows, rollouts=replace(data, rewards=1 - data.rewards)))
    assert torch.equal(sharpening(batch, segments), sharpening(paid, segments))
    group = torch.tensor([int(g) for g in data.group_ids])
    values = (10.0 * group[:, None] + torch.arange(segments.max_segments)) * segments.exists
    strange = foreign_values(values, segments, data.group_ids, 1)
    at = segments.exists.clone()
    assert torch.equal(strange[:, 0], values[:, 0])
    at[:, 0] = False
    assert not (strange[at] // 10 == values[at] // 10).any()  # nothing of the own group


@torch.no_grad()
def test_a_reward_model_is_read_at_the_prefix_before_each_token(
    batch: Any, reward_model: Qwen3ForSequenceClassification
) -> None:
    prompts, lengths = [len(p) for p in batch.rows.prompts], batch.rows.lengths
    found = scores_before(reward_model, batch.tokens, prompts, batch.rows.rollouts.token_ids.shape[1])
    for row, t in ((0, 0), (3, 7), (5, int(lengths[5]) - 1)):
        prefix = torch.tensor([batch.tokens[row][: prompts[row] + t]])
        expected = reward_model(input_ids=prefix).logits[0, 0]  # transformers' own reading of the last token
        assert float(found[row, t]) == pytest.approx(float(expected), abs=1e-5)
    assert torch.equal(torch.isnan(found), ~batch.rows.rollouts.response_mask)


@torch.no_grad()
def test_a_reward_model_learns_what_its_rollouts_earned(
    actor: Actor, batch: Any, reward_model: Qwen3ForSequenceClassification
) -> None:
    def loss(network: Qwen3ForSequenceClassification) -> float:
        last = torch.stack([own[-1] for own in every_score(network, batch.tokens)])
        return float((last - batch.rows.rollouts.outcomes).square().mean())

    assert loss(reward_model) < loss(with_score_head(actor.model))


def test_red_measures_a_token_from_the_score_of_what_stands_before_it(
    actor: Actor, batch: Any, reward_model: Qwen3ForSequenceClassification
) -> None:
    from rredcot_plugin.options import ESTIMATOR_DEFAULTS

    assert system("red").config == replace(
        RRedCoTConfig(), **ESTIMATOR_DEFAULTS["red"]
    )  # algorithm.adv_estimator=red
    with pytest.raises(ValueError, match="red: value_estimator=reward_model needs a reward model"):
        Crediter(system("red"), actor, 0)
    plain = System("red_unscaled", options={**system("red").options, "scale": "none"})
    found = Crediter(plain, actor, 0, reward_model)(batch, 1).advantages
    data = batch.rows.rollouts
    scores = scores_before(
        reward_model, batch.tokens, [len(p) for p in batch.rows.prompts], data.token_ids.shape[1]
    )
    expected = torch.where(data.response_mask, data.outcomes[:, None] - scores, 0.0)
    assert torch.allclose(found[:, 1:], expected[:, 1:], atol=1e-5)  # the first token has the mean of its group


def test_an_update_makes_rewarded_answers_likelier_than_others(actor: Actor, batch: Any) -> None:
    rows = batch.rows.rollouts
    mixed = Crediter(system("grpo"), actor, 0)(batch, 1).advantages
    right, wrong = (mixed > 0).any(1), (mixed < 0).any(1)
    assert right.any() and wrong.any()
    before = {name: tensor.clone() for name, tensor in actor.model.state_dict().items()}

    @torch.no_grad()
    def gap() -> float:
        sums = response_log_probs(actor.model, batch).sum(1)
        return float(sums[right].mean() - sums[wrong].mean())

    found = []
    for sign in (1, -1):
        actor.model.load_state_dict(before)
        updater, start = Updater(actor.model, actor_config(2e-4, 4, 4, 0)), gap()
        norm = updater(response_log_probs(actor.model, batch), rows, sign * mixed)
        assert norm > 0
        found.append(gap() - start)
    actor.model.load_state_dict(before)
    assert found[0] > 0.05 and found[1] < -0.05
