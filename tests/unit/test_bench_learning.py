"""The benchmark on learning: its trainer, its systems, its runs on the disk, its schedule and its statistics."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import learning
from lab.baseline import whole_baseline
from lab.models import load_models
from lab.rollouts import Actor, with_signals
from lab.store import Store
from lab.tasks import FAMILIES
from learn import credit as crediting
from learn.batch import response_log_probs, rollouts, sample
from learn.credit import Crediter, foreign_values, sharpening
from learn.curves import arrival, collect, reach, smoothed, spent
from learn.execute import execute, known_records
from learn.reward_model import every_score, load_reward_model, scores_before, with_score_head
from learn.runs import DONE, FAILED, Run, Sizes, load, merge, save, with_texts
from learn.schedule import Plan
from learn.statistics import improvement, interval, iqm, paired_difference
from learn.summary import summarize, verdicts
from learn.systems import DEFAULT_SYSTEMS, Judging, System, choose, parse_system
from learn.tables import draw, fill_page, make_tables, objections
from learn.trainer import LeanTrainer
from learn.verl_parts import Updater, actor_config
from transformers import Qwen3ForSequenceClassification

from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.demo.reasoner import build_tokenizer
from rredcot_plugin.registry import VALUE_ESTIMATORS

SMALL = Sizes(steps=2, prompts=2, group=4, eval_every=2, eval_questions=4, eval_samples=1, final_samples=1)
TINY = replace(SMALL, steps=1, eval_every=1, eval_questions=2)
NO_MODELS = Path("no clean model is asked for")


def system(name: str) -> System:
    return choose([name], [])[0]


def test_measured_from_values_it_differs_from_the_default(actor: Actor, batch: Any) -> None:
    found = {name: Crediter(system(name), actor, 0)(batch, 1).advantages for name in ("rredcot", "value_baseline")}
    assert torch.isfinite(found["value_baseline"]).all()
    assert not torch.allclose(found["value_baseline"], found["rredcot"], atol=1e-3)
    assert (found["value_baseline"][~batch.rows.rollouts.response_mask] == 0).all()


def test_a_result_says_which_baseline_the_default_was() -> None:
    assert system("rredcot").identity["options"] == {"baseline": "auto"}


def run_of(name: str, sizes: Sizes = SMALL, rate: float = 2e-4, seed: int = 0) -> Run:
    return Run("sums", system(name), rate, seed, sizes)


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
    from rredcot_plugin.integrations.verl.settings import DEFAULTS

    assert system("red").config == replace(RRedCoTConfig(), **DEFAULTS["red"])  # algorithm.adv_estimator=red
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


def test_fast_sampling_draws_what_plain_sampling_draws(actor: Actor) -> None:
    from lab.sampling import continuations

    prompts = [actor.prompt(q) for q in actor.family.problems("val", 2, 0)]
    assert sample(actor, prompts, [40, 40], 3, 5) == continuations(actor.model, prompts, [40, 40], 3, 5)


def test_the_log_probs_that_are_trained_are_those_of_the_old_policy(actor: Actor, batch: Any) -> None:
    found = response_log_probs(actor.model, batch)
    assert found.requires_grad
    assert torch.allclose(found, batch.rows.rollouts.log_probs, atol=1e-4)


def test_one_segment_a_trace_gives_verls_own_numbers(actor: Actor, batch: Any) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    data = batch.rows.rollouts
    expected, _ = compute_grpo_outcome_advantage(
        data.rewards, data.response_mask.float(), np.array(data.group_ids, dtype=object)
    )
    assert float(expected.abs().max()) > 0.3
    grpo = Crediter(system("grpo"), actor, 0)(batch, 1).advantages
    whole = System("whole", options={"segmenter": "none"})
    assert torch.equal(grpo, expected)
    assert torch.allclose(Crediter(whole, actor, 0)(batch, 1).advantages, expected, atol=1e-6)


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


def test_a_run_has_a_number_for_each_step_and_validation() -> None:
    record = LeanTrainer(run_of("rredcot"), NO_MODELS).fit()
    assert all(len(column) == 2 for column in record["steps"].values())
    assert record["evals"]["step"] == [0.0, 2.0]
    every = [x for part in record.values() for column in part.values() for x in column]
    assert np.isfinite(every).all() and min(record["steps"]["seconds_credit"]) > 0


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(("sums",), tuple(choose(["grpo", "rredcot"], [])), (1e-4,), (9001,), (0, 1), TINY)


@pytest.fixture(scope="module")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    records = execute(plan, folder, NO_MODELS, 1, lambda: True)
    assert len(records) == plan.size == 6 and {r["status"] for r in records.values()} == {DONE}
    return folder


def numbers(record: dict[str, Any]) -> Any:
    """What does not depend on the clock."""
    steps = {k: v for k, v in record["steps"].items() if not k.startswith("seconds")}
    return steps, {k: v for k, v in record["evals"].items() if k != "seconds"}


def test_an_interrupted_plan_ends_as_one_that_was_not(plan: Plan, folder: Path, tmp_path: Path) -> None:
    allowed = iter([True, True, True, False])
    first = execute(plan, tmp_path, NO_MODELS, 1, lambda: next(allowed, False))
    assert 0 < len(first) < plan.size
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    again = execute(plan, tmp_path, NO_MODELS, 1, lambda: True)
    whole = known_records(plan, folder)
    assert {run: numbers(r) for run, r in again.items()} == {run: numbers(r) for run, r in whole.items()}
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in done.items())


def test_a_corrupted_file_is_named_and_run_again(
    plan: Plan, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge(tmp_path, [folder]) == plan.size and merge(tmp_path, [folder]) == 0
    run = next(iter(plan.tuning()))
    path = tmp_path / run.file
    path.write_bytes(path.read_bytes()[:-5])
    assert load(tmp_path, run) is None
    assert run.file in capsys.readouterr().out
    assert numbers(execute(plan, tmp_path, NO_MODELS, 1, lambda: True)[run]) == numbers(load(folder, run) or {})
    with pytest.raises(ValueError, match="no such folder"):
        merge(tmp_path, [tmp_path / "nowhere"])


def test_a_result_file_gives_its_runs_back(plan: Plan, folder: Path, tmp_path: Path) -> None:
    known = known_records(plan, folder)
    written = [with_texts({"identity": run.identity, "file": run.file, **record}) for run, record in known.items()]
    result = tmp_path / "learning.json"
    result.write_text(json.dumps({"raw": written}))
    assert merge(tmp_path / "there", [result]) == plan.size
    again = known_records(plan, tmp_path / "there")
    assert again.keys() == known.keys()
    for run, record in known.items():
        assert again[run]["evals"]["accuracy"] == pytest.approx(record["evals"]["accuracy"], rel=1e-3)
        assert again[run]["status"] == record["status"]
    damaged = '{"raw": [{"file": "a.json", "steps": {"accuracy": [1]}}]}'
    for content in ("{}", "[1]", "{", '{"raw": [1]}', damaged, damaged.replace("[1]", '"x"')):
        result.write_text(content)
        with pytest.raises(ValueError, match=r"learning\.json: not a result of this benchmark"):
            merge(tmp_path / "there", [result])


def test_a_report_keeps_the_runs_of_an_earlier_one(
    plan: Plan, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, output = known_records(plan, folder), tmp_path / "learning.json"
    assert learning.published(output) == []
    learning.report(plan, records, output, None, [])
    earlier = learning.published(output)
    assert len(earlier) == plan.size
    half = replace(plan, systems=plan.systems[:1])
    learning.report(half, known_records(half, folder), output, None, earlier)
    again = learning.published(output)
    assert {row["file"] for row in again} == {row["file"] for row in earlier}
    assert merge(tmp_path / "fresh", [output]) == plan.size
    assert len(known_records(plan, tmp_path / "fresh")) == plan.size
    output.write_text("{")
    capsys.readouterr()
    assert learning.published(output) == []
    assert "learning.json: not a result of this benchmark" in capsys.readouterr().out


def test_other_settings_are_other_files() -> None:
    run = run_of("rredcot")
    others = [
        replace(run, seed=1), replace(run, rate=1e-4), replace(run, family="sorting"), replace(run, trainer="verl"),
        replace(run, sizes=replace(SMALL, steps=3)), replace(run, system=System("rredcot", options={"lam": 0.5})),
    ]  # fmt: skip
    assert len({run.file, *(other.file for other in others)}) == 7
    assert replace(run, sizes=replace(SMALL, clean_steps=7)).file == run.file  # sums do not use that model
    assert run.identity["features"] and not run_of("rredcot_paper").identity["features"]


def test_failed_runs_are_named_and_part_of_no_mean(plan: Plan, folder: Path, tmp_path: Path) -> None:
    merge(tmp_path, [folder])
    records = known_records(plan, tmp_path)
    bad = next(run for run in plan.measured(plan.tuned(records)) if run.system.name == "rredcot")
    save(
        tmp_path,
        bad,
        {"status": FAILED, "reason": "FloatingPointError: nan", "commit": "", "cpu": "", "wall_seconds": 1},
    )
    records = known_records(plan, tmp_path)
    runs = [run for run in plan.measured(plan.tuned(records)) if run.system.name == "rredcot"]
    curves = collect(runs, records)
    assert curves.runs == 1 and curves.reasons == ("FloatingPointError: nan",)
    found = {"sums": {"rredcot": curves}}
    tuned = plan.tuned(records)
    assert "1 failed" in make_tables(found, summarize(found), tuned)
    assert any("FloatingPointError: nan" in line for line in objections(found, summarize(found), tuned))
    assert bad not in known_records(plan, tmp_path, retry_failed=True)
    assert bad not in plan.todo(records)


def test_a_gradient_that_is_not_finite_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from learn.execute import perform

    monkeypatch.setattr(crediting, "grpo_advantages", lambda rollouts: rollouts.log_probs * torch.nan)
    record = perform(run_of("grpo"), tmp_path, NO_MODELS)
    assert record["status"] == FAILED and "gradient" in record["reason"]
    assert load(tmp_path, run_of("grpo")) is not None


def made_up(run: Run, accuracy: list[float], seconds: float) -> dict[str, Any]:
    steps = len(accuracy) - 1
    row: dict[str, Any] = dict.fromkeys(("accuracy", "grad_norm", "entropy", "response_tokens"), [1.0] * steps)
    row["continuation_tokens"] = [0.0] * steps
    row |= {f"seconds_{phase}": [seconds / 4] * steps for phase in ("rollout", "log_prob", "credit", "update")}
    evals = {"step": list(range(steps + 1)), "accuracy": accuracy, "all_right": accuracy, "lucky": accuracy}
    return {"status": DONE, "steps": row, "evals": evals, "cpu": "", "commit": "", "wall_seconds": 1.0}


def test_the_schedule_tunes_first_and_with_equal_effort(plan: Plan) -> None:
    plan = replace(plan, rates=(1e-4, 2e-4))
    tuning = plan.tuning()
    assert plan.todo({}) == tuning and not plan.measured(plan.tuned({}))
    accuracy = {1e-4: [0.1] * 5, 2e-4: [0.1, 0.1, 0.1, 0.9, 0.9]}
    records = {run: made_up(run, accuracy[run.rate], 1.0) for run in tuning}
    tuned = plan.tuned(records)
    assert {choice.rate for choice in tuned.values()} == {2e-4} and tuned["sums", "grpo"].at_edge
    assert [(run.seed, run.system.name) for run in plan.todo(records)] == [
        (0, "grpo"), (0, "rredcot"), (1, "grpo"), (1, "rredcot")
    ]  # fmt: skip
    records[tuning[-1]] = {"status": FAILED, "reason": "x"}
    assert plan.tuned(records)["sums", tuning[-1].system.name].scores[2e-4] == 0.0
    with pytest.raises(ValueError, match="9001"):
        replace(plan, seeds=(9001,))


def test_statistics_on_known_numbers() -> None:
    assert iqm(np.array([-100.0, 1, 2, 3, 3, 2, 1, 100])) == 2.0
    assert improvement(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == 0.875
    entry = interval(lambda rows: float(np.arange(100.0)[rows].mean()), [100])
    assert entry["value"] == 49.5 and 42 < entry["low"] < 46 and 53 < entry["high"] < 57
    assert np.isnan(interval(lambda rows: 1.0, [1])["low"])
    few = np.array([1.0, 2.0, 4.0])
    spread = interval(lambda rows: float(few[rows].std(ddof=1)), [3], centred=True)
    plain = interval(lambda rows: float(few[rows].std(ddof=1)), [3])
    assert spread["low"] < spread["value"] < spread["high"] and spread["high"] > plain["high"]
    assert smoothed(np.array([0.0, 1.0])).tolist() == [0.5, 0.5]
    assert arrival(np.arange(3.0), np.array([0.0, 0.5, 0.4]), 0.6) == np.inf
    gap = paired_difference({1: 3.0, 2: 5.0, 7: 9.0, 8: 0.0}, {2: 4.0, 1: 3.0, 7: 7.0})  # 0, 1 and 2
    assert gap["value"] == 1.0 and gap["high"] - 1.0 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert gap["low"] == pytest.approx(2.0 - gap["high"])
    assert np.isnan(paired_difference({1: 3.0}, {1: 1.0})["low"])


def test_ratios_of_steps_and_seconds_on_made_up_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learn.statistics.RESAMPLES", 50)
    line = np.linspace(0, 1, 21)
    shapes = {
        "grpo": (line, 1.0),
        "rredcot": (np.minimum(2 * line, 1), 3.0),
        "mc_grpo": (line, 10.0),
        "attention": (0 * line, 1.0),
    }
    found = {}
    for name, (curve, seconds) in shapes.items():
        runs = [run_of(name, seed=seed) for seed in range(3)]
        found[name] = collect(runs, {run: made_up(run, list(curve), seconds) for run in runs})
    assert spent(made_up(run_of("grpo"), [0.0, 1.0], 2.0))["seconds"].tolist() == [0.0, 2.0]
    assert reach(found["grpo"], found["grpo"], "step")["value"] == pytest.approx(1.0)
    assert reach(found["rredcot"], found["grpo"], "step")["value"] == pytest.approx(0.5, abs=0.02)
    assert reach(found["rredcot"], found["grpo"], "seconds")["value"] == pytest.approx(1.5, abs=0.05)
    never = reach(found["attention"], found["grpo"], "step")
    assert never["reached"] == 0.0 and never["censored"] == 1.0 and never["value"] >= 1.0
    summary = summarize({"sums": found})
    assert summary["time_vs_mc_grpo"]["value"] == pytest.approx(0.15, abs=0.01)
    assert all("MET" in line for line in verdicts(summary))
    assert summary["all/rredcot/area_better_than_grpo"]["value"] == 1.0
    summary["steps_to_grpo_final"] |= {"reached": 0.0}
    assert "MISSED" in verdicts(summary)[0]
    draw(tmp_path / "x.png", {"sums": found})
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_wrong_names_say_which_exist() -> None:
    with pytest.raises(ValueError, match="Did you mean grpo\\? Known: grpo, mc_grpo"):
        choose(["grpoo"], [])
    for words, message in (
        (["grpo"], "taken"),
        (["a", "lam"], "key=value"),
        (["a", "lamb=1"], "lam"),
        (["a-b"], "name"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_system(words)
    own = parse_system(["mine", "lam=0.5"])
    assert own.config.lam == 0.5 and choose(["grpo"], [own])[-1] is own
    with pytest.raises(ValueError, match="prompts"):
        Sizes(prompts=1)


def test_the_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- learning -->\nold\n<!-- learning: end -->\nb\n")
    fill_page(page, "new")
    assert page.read_text() == "a\n<!-- learning -->\n\nnew\n\n<!-- learning: end -->\nb\n"
    page.write_text(page.read_text() + "<!-- learning_large --><!-- learning_large: end -->")
    fill_page(page, "wide", "learning_large")
    assert "new" in page.read_text() and "wide" in page.read_text()
    page.write_text("a")
    with pytest.raises(ValueError, match="no line"):
        fill_page(page, "new")


def test_a_real_run_gets_the_systems_options(tmp_path: Path) -> None:
    from learn.against_verl import compare, real_run

    sizes = Sizes()
    real = real_run(replace(run_of("rredcot_lam95", sizes), trainer="verl"), tmp_path)
    assert "+algorithm.rredcot.lam=0.95" in real.overrides(tmp_path) and real.estimator == "rredcot"
    assert real_run(run_of("grpo", sizes), tmp_path).estimator == "grpo"
    for wrong in (
        run_of("control_no_reward", sizes),
        run_of("grpo", SMALL),
        replace(run_of("grpo", sizes), family="programs"),
    ):
        with pytest.raises(ValueError, match=r"real runs|control"):
            real_run(wrong, tmp_path)
    low, high = ([made_up(run_of("grpo"), [0.0] * 10, 1.0) for _ in range(3)] for _ in range(2))
    for record in high:
        record["steps"]["accuracy"] = [1.5] * 9
    entry = compare(low, high, "x")["x/reward_third_1/difference"]
    assert entry == {"value": -0.5, "low": -0.5, "high": -0.5}


def test_both_batches_generate_as_much_and_validate_as_often() -> None:
    small, large = (learning.BATCHES[name] for name in (learning.SMALL, learning.LARGE))
    assert small.steps * small.prompts * small.group == large.steps * large.prompts * large.group
    assert small.steps / small.eval_every == large.steps / large.eval_every
    assert small.warmup / small.steps == pytest.approx(large.warmup / large.steps, abs=0.02)
    assert (
        learning.BATCHES.keys() == learning.RATES.keys() == learning.TUNING_SEEDS.keys() == learning.OUTPUTS.keys()
    )
