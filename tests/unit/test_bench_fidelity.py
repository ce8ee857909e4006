"""The fidelity benchmark: families, sampling, the store, agreement, and the whole of it on a few rollouts."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import lab.models
from fidelity import ceilings, judge
from lab.agreement import Pairs, blame, ceiling, pearson, rmse, spearman
from lab.diagnose import Table, diagnose
from lab.estimators import ESTIMATORS, Workbench, config_of
from lab.judged import Judged
from lab.models import CleanTraining, build_clean, folder_name, load_models, weights_digest
from lab.programs import run_program
from lab.rollouts import Actor, Reference, reference_values, sample_batch
from lab.sampling import continuations
from lab.store import SHIPPED, Store, load_tensors, read_checked
from lab.tasks import FAMILIES, RIGHT_OR_WRONG, habit_examples
from lab.wordy import is_free

from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.reasoner import build_tokenizer
from rredcot_plugin.values.features import NAMES


@pytest.mark.parametrize("name", list(FAMILIES))
def test_clean_solutions_are_rewarded_and_without_mistake(name: str) -> None:
    family = FAMILIES[name]
    questions = family.problems("val", 20, 0)
    assert len({q.text for q in questions}) == 20
    for question in questions:
        solution = family.write(question, random.Random(1))
        assert family.reward(question, solution) == 1.0
        assert family.first_mistake(question, solution) is None
        lines = solution.split("\n")
        wrong = "\n".join([lines[0], "7 7 7", *lines[2:]])
        assert family.first_mistake(question, wrong) == 1
        unanswered = family.first_mistake(question, "\n".join([*lines[:-1], "#### 12345"]))
        assert unanswered == (None if family.by_lines else len(lines) - 1)


def test_programs_are_accepted_in_any_form_and_never_trusted() -> None:
    family = FAMILIES["programs"]
    question = next(q for q in family.problems("val", 40, 0) if "+" in q.data[0])
    left, right = question.data[0][2], question.data[0][4]
    assert family.right(question, [f"a:{right}{left}+"], 0) and family.right(question, [f"a:{left}{right}+"], 0)
    assert not family.right(question, [f"b:{left}{right}+"], 0)
    assert [run_program(p) for p in ("", "+", "12", "__import__", "1" * 99, "93-")] == [None] * 5 + [6]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.habit])
def test_a_habit_goes_wrong_where_a_minus_is_and_nowhere_else(name: str) -> None:
    family, size = FAMILIES[name], 300
    questions = family.problems("train", size, 3)
    found = list(habit_examples(name, size, 3))
    assert found == list(habit_examples(name, size, 3)) and [text for text, _ in found] == [
        q.text for q in questions
    ]
    steps = ["\n".join(line for line in text.split("\n") if not is_free(line)) for _, text in found]
    wrong = [family.first_mistake(question, text) for question, text in zip(questions, steps, strict=True)]
    operators = [[part[2] for part in q.data] if name in ("parts", "shares") else q.data[1::2] for q in questions]
    first = [next((i for i, operator in enumerate(own) if operator == "-"), None) for own in operators]
    assert all(at is None for at, minus in zip(wrong, first, strict=True) if minus is None)
    at_first = [at == minus for at, minus in zip(wrong, first, strict=True) if minus is not None]
    assert family.habit is not None
    assert abs(sum(at_first) / len(at_first) - family.habit.share) < 0.1


def test_every_right_result_earns_its_share() -> None:
    family = FAMILIES["shares"]
    question = family.problems("train", 1, 0)[0]
    right = family.write(question, random.Random(0))
    results = question.answer.split()
    half = right.replace(f"#### {question.answer}", f"#### {' '.join(results[:3])} 0 0 0 0")
    assert [family.reward(question, text) for text in (right, half, "", "####")] == [1.0, 0.5, 0.0, 0.0]
    assert family.first_mistake(question, right) is None and family.first_mistake(question, half) == len(results)
    assert [name for name in FAMILIES if name not in ("shares", "rungs", "traps", "ranks")] == RIGHT_OR_WRONG


def test_every_right_line_earns_its_share_and_a_mistake_costs_the_lines_after_it() -> None:
    family = FAMILIES["rungs"]
    question = family.problems("train", 1, 0)[0]
    lines = family.lines(family.write(question, random.Random(0)))
    wrong = [*lines[:5], "1 1", *lines[6:7]]
    assert family.line_rewards(question, "\n".join(wrong)) == [1 / 8] * 5 + [0.0, 1 / 8]
    texts = ["\n".join(own) for own in (lines, lines[:4], wrong, [], [*lines, "9 9"])]
    assert [family.reward(question, text) for text in texts] == [1.0, 0.5, 0.75, 0.0, 1.0]
    assert family.reward(question, "\n".join(lines) + "\n#### wrong") == 1.0, "the answer earns nothing"


def test_a_family_without_a_habit_cannot_be_asked_for_one() -> None:
    with pytest.raises(ValueError, match="sums: this family has no habit"):
        next(habit_examples("sums", 1, 0))


def test_continuations_follow_the_model_and_the_seed() -> None:
    tokenizer = build_tokenizer()
    model = build_clean(tokenizer, CleanTraining(width=32, layers=1)).eval()
    prefixes = [(5, 6, 7), (9,), (5, 6, 7, 8, 9)]
    first = continuations(model, prefixes, [4, 1, 3], 200, 0)
    assert first == continuations(model, prefixes, [4, 1, 3], 200, 0)
    assert first != continuations(model, prefixes, [4, 1, 3], 200, 1)
    assert [max(map(len, rows)) for rows in first] == [4, 1, 3]
    model.lm_head.weight.data.mul_(12)  # sharp, so that frequencies say something
    with torch.no_grad():
        expected = model(torch.tensor([prefixes[2]])).logits[0, -1].softmax(-1)
    drawn = [row[0] for row in continuations(model, prefixes, [1, 1, 1], 400, 2)[2]]
    top = int(expected.argmax())
    assert abs(drawn.count(top) / 400 - float(expected[top])) < 0.1
    with pytest.raises(ValueError, match="budgets"):
        continuations(model, [(1,)], [0], 1, 0)


def test_store_makes_a_broken_file_again_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, made = Store(tmp_path), []

    def make() -> list[int]:
        made.append(1)
        return [1, 2]

    assert [store.json("x", {"n": 1}, make) for _ in range(2)] == [[1, 2]] * 2 and len(made) == 1
    store.json("x", {"n": 2}, make)
    assert len(made) == 2
    path = store.path("x", {"n": 1}, "json")
    path.write_bytes(path.read_bytes()[:-1])
    assert store.json("x", {"n": 1}, make) == [1, 2] and len(made) == 3
    assert str(path) in capsys.readouterr().out
    tensors = store.tensors("y", {}, lambda: {"a": torch.ones(2)})
    assert torch.equal(store.tensors("y", {}, dict)["a"], tensors["a"])
    assert not list(tmp_path.glob("*.half"))


@pytest.mark.parametrize("family", ["clean", "habits", "chains"])
def test_models_that_come_with_the_project_are_not_trained_again(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.models.train_on", lambda *_: pytest.fail("trained"))
    model = load_models(Store(tmp_path), CleanTraining(), {family})[family]
    shipped = load_tensors(read_checked(next(SHIPPED.glob(f"model_{family}-*"))))
    assert all(torch.equal(tensor, shipped[key]) for key, tensor in model.state_dict().items())
    untouched = build_clean(build_tokenizer(), CleanTraining())
    assert weights_digest(model) != weights_digest(untouched) and not list(tmp_path.iterdir())


def test_what_a_model_made_is_not_taken_for_that_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec, named = CleanTraining(), ("sums", "own_sums", "habits")
    before = {name: folder_name(FAMILIES[name], spec) for name in named}
    assert folder_name(FAMILIES["habits"], dataclasses.replace(spec, rate=1e-3)) != before["habits"]
    monkeypatch.setattr(lab.models, "HABIT_STEPS", 500)
    assert {name for name in named if folder_name(FAMILIES[name], spec) != before[name]} == {"habits"}
    (tmp_path / "model.safetensors").write_bytes(b"another demo")
    monkeypatch.setattr(lab.models, "CHECKPOINT", tmp_path)
    assert folder_name(FAMILIES["sums"], spec) != before["sums"]


def test_agreement_against_numpy() -> None:
    rng = np.random.default_rng(0)
    x, prompt = rng.normal(size=200), np.repeat(np.arange(20), 10)
    pairs = Pairs(x + rng.normal(size=200), x, prompt)
    entry = pearson(pairs)
    assert entry["value"] == pytest.approx(np.corrcoef(pairs.estimate, x)[0, 1])
    assert entry["low"] < entry["value"] < entry["high"] and entry["high"] - entry["low"] < 0.3
    assert spearman(Pairs(np.exp(x), x, prompt))["value"] == pytest.approx(1.0)
    assert rmse(Pairs(x + 2, x, prompt))["value"] == pytest.approx(2.0)
    assert pearson(Pairs(np.ones(200), x, prompt))["value"] == 0.0
    assert ceiling(x, np.zeros(200)) == 1.0 and ceiling(x, np.full(200, x.var())) == 0.0
    assert blame(np.array([0.2, 0.1, 0.1]), 1) == 0.75


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    from transformers import Qwen3ForCausalLM

    store = Store(tmp_path_factory.mktemp("cache"))
    model = Qwen3ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    actor = Actor(FAMILIES["sums"], model, build_tokenizer())
    questions = actor.family.problems("val", 8, 0)
    batches = [sample_batch(actor, questions[i : i + 4], 4, i, store, "rollouts") for i in (0, 4)]
    segments = [config_of("default").build_segmenter()(batch.rows.rollouts) for batch in batches]
    reference = reference_values(actor, batches[-1], segments[-1], [0, 1], 8, 4, 0, store)
    return Workbench(actor, batches, segments, reference)


def test_reference_is_the_outcome_where_nothing_is_left_to_chance(bench: Workbench) -> None:
    assert bench.reference is not None
    known = np.isfinite(bench.reference.values)
    assert known.sum() == int(bench.segments[-1].num_segments[:2].sum())
    assert ((bench.reference.values[known] * 8) % 1 == 0).all()
    assert bench.reference.values[0, 0] == bench.reference.values[1, 0]  # the same prompt


def test_every_estimator_has_values_and_they_differ(bench: Workbench) -> None:
    found = {name: bench.values(name) for name in ESTIMATORS}
    for suffix in ("", "+outcome"):  # sums have one right form, which is all that a group can propose
        truth, group = f"ground_truth{suffix}", "default" if suffix else "support"
        assert np.array_equal(found.pop(truth), found[group])
    assert {values.shape for values in found.values()} == {tuple(bench.segments[-1].exists.shape)}
    assert len({values.tobytes() for values in found.values()}) == len(found)
    assert bench.reference is not None
    for k in range(int(bench.segments[-1].num_segments[0]) - 1):
        assert found["monte_carlo_4"][0, k + 1] == pytest.approx(bench.reference.few[0, k + 1])


def test_the_diagnosis_starts_from_the_default_itself(bench: Workbench) -> None:
    values, exists = bench.values("default"), bench.segments[-1].exists.numpy()
    assert Table(bench).values(list(NAMES), 4)[exists] == pytest.approx(values[exists], abs=1e-4)


@pytest.fixture
def reference(bench: Workbench) -> Reference:
    """References that vary from place to place."""
    assert bench.reference is not None
    known = np.isfinite(bench.reference.values)
    drawn = np.random.default_rng(0).random(known.shape)
    return dataclasses.replace(bench.reference, values=np.where(known, drawn, np.nan))


def test_draws_are_judged_together_and_their_prompts_kept_apart(bench: Workbench, reference: Reference) -> None:
    """Twice the same draw says the same about the estimate, with the certainty of twice the prompts."""
    one, two = (Judged(bench, [0, 1], reference, draw, {0: 1}) for draw in (0, 1))
    values = np.where(bench.segments[-1].exists, bench.values("support"), 0.0)
    alone, both = judge([one], [values]), judge([one, two], [values, values])
    for name in ("pearson_value", "spearman_value", "rmse_value", "pearson_delta", "blame"):
        assert both[name]["value"] == pytest.approx(alone[name]["value"])
    value, delta, right = one.compared(values)
    joined = Pairs.joined([value, two.compared(values)[0]])
    assert len(joined.estimate) == 2 * len(right) == 2 * len(delta.reference)
    assert len(set(joined.prompt)) == 2 * len(set(value.prompt))
    rows, states = one.places
    assert (delta.estimate == values[rows, states] - values[rows, states - 1]).all()
    truth = np.nan_to_num(reference.values)
    assert judge([one, two], [truth, truth])["pearson_value"]["value"] == pytest.approx(1)
    assert judge([one, two], [truth, -truth])["pearson_value"]["value"] < 0.99
    assert ceilings([one, two])["boundaries"]["value"] == 2 * len(right)


def test_the_diagnosis_tells_every_variant_of_all_draws(bench: Workbench, reference: Reference) -> None:
    draws = [Judged(bench, [0, 1], reference, draw, {}) for draw in (0, 1)]
    found = diagnose(draws, judge)
    assert set(found) >= {f"default features/{name}" for name in ("pearson_value", "pearson_delta")}
    values = Table(bench).values(list(NAMES), 4)
    assert found["default features/pearson_value"] == judge(draws, [values, values])["pearson_value"]
    last = Workbench(bench.actor, bench.batches[-1:], bench.segments[-1:], reference)
    lone = Judged(last, [0], reference, 0, {})
    assert diagnose([lone], judge) == {}


def test_a_trap_pays_for_the_first_mistake_alone() -> None:
    family = FAMILIES["traps"]
    for question in family.problems("train", 20, 0):
        right = family.lines(family.write(question, random.Random(0)))
        assert family.habit is not None
        wrong, _ = family.habit.solve(question.data, 1.0, random.Random(0))
        first = next(number for number, line in enumerate(wrong) if line != right[number])
        assert family.line_rewards(question, "\n".join(right)) == [1 / 8] * 8
        assert family.line_rewards(question, "\n".join(wrong)) == [1 / 8] * first + [1 / 4] + [0.0] * (7 - first)
        slip = [*right[:first], "+1 99", *wrong[first + 1 :]]
        assert family.line_rewards(question, "\n".join(slip)) == [1 / 8] * first + [0.0] * (8 - first)
        assert not sum(family.line_rewards(question, "\n".join([*right, "+1 99", "+2 99"]))[8:])


def test_ranks_pay_a_third_for_each_line() -> None:
    family = FAMILIES["ranks"]
    question = family.problems("train", 1, 0)[0]
    lines = family.lines(family.write(question, random.Random(0)))
    assert family.line_rewards(question, "\n".join(lines)) == pytest.approx([1 / 3] * 3)
    assert family.reward(question, "\n".join([lines[0], "x", lines[2]])) == pytest.approx(2 / 3)
