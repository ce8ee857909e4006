"""The gradient benchmark: sampling with counts, sketches, statistics with known answers, resuming, broken files."""

from __future__ import annotations

import copy
import dataclasses
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gradient
from grads.credits import credit_steps, gradients, step_of
from grads.moments import Draw, Moments, Reference, draws, moments
from grads.sketch import Sketch, coordinates, measured, segment_gradients, weighted_gradient
from grads.spending import spent_credit
from grads.stage import Setup, Sizes, prepare
from grads.step import config, places
from grads.tree import counted_continuations
from grads.truth import Pool
from grads.values import value_errors
from lab.models import CleanTraining, build_clean, measure_last_layers
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES

from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.reasoner import build_tokenizer

TINY = Sizes(
    prompts=2, steps=16, reference=4, windows=1, candidates=8, pilot=32, pool=8, sketch=2048, resamples=20
)


@pytest.fixture(scope="module")
def actor() -> Actor:
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    return Actor(FAMILIES["sums"], model, build_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gradient")


@pytest.fixture(scope="module")
def setup(actor: Actor, folder: Path) -> Setup:
    return prepare(actor, TINY, Store(folder))


@pytest.fixture(scope="module")
def found(setup: Setup) -> dict[str, Moments]:
    weights = credit_steps(setup, lambda n: None).weights
    sample = Draw(torch.ones(TINY.steps), torch.ones(TINY.prompts))
    return {name: moments(gradients(setup, own), setup.reference, [sample])[0] for name, own in weights.items()}


def test_counts_are_those_of_independent_samples() -> None:
    tokenizer = build_tokenizer()
    model = build_clean(tokenizer, CleanTraining(width=32, layers=1)).eval()
    model.lm_head.weight.data.mul_(12)  # sharp, so that frequencies say something
    prefixes = [(5, 6, 7), (9,), (5, 6, 7, 8, 9)]
    first = counted_continuations(model, prefixes, [4, 1, 3], 500, 0)
    assert first == counted_continuations(model, prefixes, [4, 1, 3], 500, 0)
    assert [sum(count for _, count in own) for own in first] == [500] * 3
    assert [max(len(tokens) for tokens, _ in own) for own in first] == [4, 1, 3]
    with torch.no_grad():
        expected = model(torch.tensor([[9]])).logits[0, -1].double().softmax(-1)
        after = model(torch.tensor([[5, 6, 7, first[0][0][0][0]]])).logits[0, -1].double().softmax(-1)
    counts = torch.zeros(len(expected), dtype=torch.float64)
    for tokens, count in first[1]:
        counts[tokens[0]] += count
    assert float((counts / 500 - expected).abs().max()) < 5 * 0.5 / 500**0.5
    begun = [(tokens, count) for tokens, count in first[0] if tokens[0] == first[0][0][0][0] and len(tokens) > 1]
    total, likely = sum(count for _, count in begun), int(after.argmax())
    share = sum(count for tokens, count in begun if tokens[1] == likely) / total
    assert abs(share - float(after[likely])) < 5 * 0.5 / total**0.5
    with pytest.raises(ValueError, match="at least one token"):
        counted_continuations(model, [()], [4], 2, 0)


def test_segment_gradients_add_up_and_their_sketches_keep_products(actor: Actor) -> None:
    question = actor.family.problems("val", 1, 0)[0]
    prompt = actor.prompt(question)
    response = actor.tokenizer("7 - 2 = 5\n5 + 4 = 9\n#### 9")["input_ids"]
    spans = [(0, 10), (10, 20), (20, len(response))]
    exact = segment_gradients(actor.model, prompt, response, spans)
    whole = weighted_gradient(actor.model, prompt, [response, response[:5]], [2.0, 0.0])
    assert torch.allclose(exact.sum(0) * 2, whole, atol=1e-4 * float(whole.norm()))
    true = exact @ exact.T
    size = 8192
    wrong = [Sketch(coordinates(actor.model), size, seed)(exact) for seed in range(8)]
    errors = torch.stack([s @ s.T for s in wrong]) - true
    norms = exact.norm(dim=1)
    relative = errors / (norms[:, None] * norms[None, :])
    stated = (2 / size) ** 0.5
    assert float(relative.square().mean().sqrt()) < 2 * stated
    assert float(relative.abs().max()) > 0  # it is a sketch


def test_gradients_of_the_last_layers_are_those_of_the_whole_model_there(actor: Actor) -> None:
    """Spans go through an output layer that is not measured together; a measured one takes them one by one."""
    prompt = actor.prompt(actor.family.problems("val", 1, 0)[0])
    response = actor.tokenizer("7 - 2 = 5\n5 + 4 = 9\n#### 9")["input_ids"]
    spans = [(0, 10), (10, 20), (20, len(response))]
    model = copy.deepcopy(actor.model)
    whole = segment_gradients(model, prompt, response, spans).split([p.numel() for p in measured(model)], dim=1)
    asked = {name: own for (name, _), own in zip(model.named_parameters(), whole, strict=True)}
    measure_last_layers(model, 1)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert 0 < len(names) < len(asked) and not model.get_output_embeddings().weight.requires_grad
    found = segment_gradients(model, prompt, response, spans)
    expected = torch.cat([asked[name] for name in names], dim=1)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.norm()))


def test_twice_the_variance_is_half_the_signal_to_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(3, 200, generator=generator)
    noise = torch.randn(400, 3, 200, generator=generator) * 3
    reference = Reference(*(truth + 0.3 * torch.randn(3, 200, generator=generator) for _ in range(2)))
    drawn = list(draws(400, 3, 20, 0))
    once = moments(truth + noise, reference, drawn)
    twice = moments(truth + 2**0.5 * noise, reference, drawn)
    for a, b in zip(once, twice, strict=True):
        assert b.snr / a.snr == pytest.approx(0.5, rel=0.05)
    exact = float(truth.mean(0).square().sum())
    assert once[0].trace == pytest.approx(200 * 9 / 3, rel=0.03)
    assert once[0].square == pytest.approx(exact, rel=0.1)
    assert once[0].cosine == pytest.approx(1.0, abs=0.05)
    tilted = moments(truth + noise + truth.flip(-1), reference, drawn[:1])[0]
    assert tilted.cosine < 0.85 and tilted.bias > 0.8
    longer = moments(3 * (truth + noise), reference, drawn[:1])[0]
    assert longer.snr == pytest.approx(once[0].snr) and longer.bias == pytest.approx(2.0, abs=0.1)


def test_a_prompt_drawn_twice_counts_as_two_independent_groups() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(300, 2, 100, generator=generator)
    reference = Reference(*(torch.ones(2, 100) for _ in range(2)))
    one, two = moments(
        1 + noise, reference, [Draw(torch.ones(300), torch.tensor(w)) for w in ([1.0, 0.0], [2.0, 0.0])]
    )
    assert two.trace == pytest.approx(one.trace / 2, rel=1e-4)
    assert two.square == pytest.approx(one.square, rel=1e-4)


def test_prompts_drawn_at_random_add_the_variance_between_them() -> None:
    """8 prompts, drawn anew 200 times: from the rollouts of 8 alone follows how much their mean varies."""
    generator = torch.Generator().manual_seed(0)
    mean, per_prompt, per_group = torch.randn(50, generator=generator), 2.0, 3.0
    found = []
    for _ in range(200):
        truth = mean + per_prompt * torch.randn(8, 50, generator=generator)
        groups = truth + per_group * torch.randn(6, 8, 50, generator=generator)
        found.append(moments(groups, Reference(truth, truth), [Draw(torch.ones(6), torch.ones(8))])[0])
    assert np.mean([m.prompts for m in found]) == pytest.approx(50 * per_prompt**2 / 8, rel=0.05)
    assert np.mean([m.trace for m in found]) == pytest.approx(50 * per_group**2 / 8, rel=0.05)
    one = found[0]
    assert one.drawn_snr == pytest.approx(one.along_square / one.reference / (one.trace + one.prompts))
    alone = moments(groups, Reference(truth, truth), [Draw(torch.ones(6), torch.eye(8)[2])])[0]
    assert alone.prompts == pytest.approx(0.0, abs=1e-3), "one prompt tells nothing of others"


def test_a_length_that_is_not_there_is_no_number() -> None:
    noise = torch.randn(6, 2, 50, generator=torch.Generator().manual_seed(3))
    nothing = noise - noise.mean(0)
    sample = Draw(torch.ones(6), torch.ones(2))
    found = moments(nothing, Reference(torch.ones(2, 50), torch.ones(2, 50)), [sample])[0]
    assert np.isnan(found.cosine) and np.isnan(found.spread) and found.trace > 0
    opposite = moments(1 + noise, Reference(torch.ones(2, 50), -torch.ones(2, 50)), [sample])[0]
    assert np.isnan(opposite.snr) and np.isnan(opposite.bias)


def test_credit_is_that_of_the_package_and_lam_1_is_unbiased(found: dict[str, Moments], setup: Setup) -> None:
    for name in (
        "leave_one_out",
        "calibrated_lam_1",
        "norm_weighted_mean",
        "default_unscaled",
        "true_lam_1",
        "spend_0.3",
        "spend_1",
    ):
        own = found[name]
        error = (own.trace / TINY.steps / own.reference) ** 0.5  # of the mean, relative to the gradient
        assert own.bias < 2 * error + 0.1, name
    # known: GRPO divides by deviations under 1, and one that looks at the outcome goes elsewhere
    assert found["grpo"].square > 1.5 * found["grpo_no_std"].square
    assert found["leave_one_out"].square == pytest.approx((8 / 7) ** 2 * found["grpo_no_std"].square, rel=1e-3)
    step, _ = step_of(setup, 0)
    assert step.segments.max_segments > 2 and config().segmenter == "newline"


def test_continuations_that_are_all_right_raise_what_failed(setup: Setup) -> None:
    step, _ = step_of(setup, 0)
    right = dataclasses.replace(step, pool=Pool(dict.fromkeys(places(step), 8), 8))
    plain, fitted = torch.zeros(step.segments.exists.shape), torch.full(step.segments.exists.shape, 0.5)
    credits, tokens = spent_credit(right, plain, fitted, np.random.default_rng(0))
    exists, outcomes = step.segments.exists, step.outcomes[:, None].expand(plain.shape)
    last = exists & ~torch.nn.functional.pad(exists[:, 1:], (0, 1))
    for share in (0.1, 0.3, 1.0):
        raised = credits[f"spend_{share:g}"]
        assert not raised[~exists | last | (outcomes == 1)].any()
        number = raised / (1 - raised)  # of n / (1 + n)
        assert torch.allclose(number, number.round(), atol=1e-4) and number.min() >= 0 and number.max() <= 8
        assert 1 < tokens[f"spend_{share:g}"] < 1 + 1.5 * share
        assert credits[f"spend_{share:g}_and_fit"].shape == plain.shape
    assert (credits["spend_1"] > 0).sum() > (credits["spend_0.1"] > 0).sum() > 0


def test_without_continuations_the_rest_is_the_same(actor: Actor, folder: Path, setup: Setup) -> None:
    bare = prepare(actor, dataclasses.replace(TINY, pool=0), Store(folder))
    without, whole = (credit_steps(own, lambda n: None) for own in (bare, setup))
    left_out = whole.weights.keys() - without.weights.keys()
    assert {"true_lam_1", "later_true_1", "monte_carlo_4_lam_0", "spend_0.1"} <= left_out
    assert all(re.match("true_|monte_carlo_|spend_|later_(true|monte)", name) for name in left_out)
    for name, own in without.weights.items():
        assert all(map(torch.equal, own, whole.weights[name])), name
    assert not without.tokens and not value_errors(without.values) and value_errors(whole.values)


def test_a_method_whose_length_cannot_be_told_from_0_costs_no_other_its_number(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    credits = credit_steps(setup, lambda n: None)
    kept = {name: credits.weights[name] for name in (gradient.BASELINE, gradient.TRACE, gradient.SHIPPED)}
    signs = torch.tensor([1.0, -1.0] * (TINY.steps // 2))[:, None]
    nothing = [own * signs for own in kept[gradient.BASELINE]]
    summary, raw = gradient.measure_family(
        setup, dataclasses.replace(credits, weights=kept | {"nothing": nothing})
    )
    assert list(raw) == list(kept) and "snr_vs_grpo/nothing" not in summary
    assert "nothing: left out, the gradient's length cannot be told from 0" in capsys.readouterr().out
    with pytest.raises(ValueError, match="use more steps or prompts"):
        gradient.measure_family(setup, dataclasses.replace(credits, weights=kept | {gradient.TRACE: nothing}))


def test_in_adams_metric_every_coordinate_is_over_the_root_of_its_second_moment(
    actor: Actor, folder: Path, setup: Setup, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "own"))
    scaled = prepare(actor, dataclasses.replace(TINY, adam=True), Store(copied))
    moment = torch.zeros(coordinates(actor.model))
    for rolled in setup.traces.rollouts:
        rewards = np.array([setup.traces.rows[i].row.reward for i in rolled])
        distinct, first, count = np.unique(rolled, return_index=True, return_counts=True)
        for i, centred, times in zip(distinct, (rewards - rewards.mean())[first], count, strict=True):
            row = setup.traces.rows[i]
            gradient = weighted_gradient(actor.model, row.prompt, [row.response], [float(centred)])
            moment += int(times) * gradient.square() / len(rolled) / TINY.prompts
    scale = 1 / (moment.sqrt() + 0.01 * moment.mean().sqrt())
    for (plain, _), (own, _) in zip(setup.halves, scaled.halves, strict=True):
        expected = plain["exact"] * scale
        assert torch.allclose(
            own["exact"], expected, atol=1e-3 * float(expected.norm()) / len(scale) ** 0.5, rtol=1e-2
        )
        assert torch.equal(own["sketch"], Sketch(len(scale), TINY.sketch)(own["exact"]))


def test_resumed_is_the_same_and_a_broken_file_is_named(
    actor: Actor, folder: Path, setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = next(iter(folder.glob("pieces-*.tensors")))
    kept = broken.read_bytes()
    broken.write_bytes(kept[:-4] + b"oops")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path != broken}
    again = prepare(actor, TINY, Store(folder))
    assert f"{broken}: corrupted" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert broken.read_bytes() == kept
    for a, b in zip(setup.pieces, again.pieces, strict=True):
        assert a.number == b.number and torch.equal(a.sketches, b.sketches)
    assert torch.equal(setup.reference.mean, again.reference.mean) and setup.pool == again.pool
    assert all(np.array_equal(a, b) for a, b in zip(setup.traces.rollouts, again.traces.rollouts, strict=True))


def test_too_few_questions_of_medium_success_are_said(actor: Actor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sums: 0 of candidates=4 .* use more candidates"):
        prepare(actor, dataclasses.replace(TINY, candidates=4, low=0.5, high=0.5001), Store(tmp_path))
