"""Real training steps through ``python -m verl.trainer.main_ppo`` with the transformers rollout."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from rredcot_plugin.commands.app import app
from tests.e2e.harness import Inputs, Run, train

pytestmark = pytest.mark.e2e
ON_THE_SAME_RUN = pytest.mark.xdist_group("uninterrupted")

RREDCOT = ("algorithm.adv_estimator=rredcot", "+algorithm.rredcot.segmenter=newline")
SAME = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "critic/advantages/mean", "response_length/mean")


def assert_close(a: dict, b: dict, names: tuple[str, ...], tolerance: float = 1e-4) -> None:
    for name in names:
        assert a[name] == pytest.approx(b[name], rel=tolerance, abs=tolerance), name


@pytest.fixture(scope="session")
def uninterrupted(demo_inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps with checkpoints and dumps; several tests look at this one run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    left = (f"+algorithm.rredcot.dump_dir={folder}/dump", f"trainer.rollout_data_dir={folder}/rollouts")
    pictures = "+algorithm.rredcot.histogram_every=2"
    return train(demo_inputs, folder, *RREDCOT, *left, pictures, TOTAL_STEPS="4", SAVE_FREQ="2")


@ON_THE_SAME_RUN
def test_one_key_trains_and_logs(uninterrupted: Run) -> None:
    assert uninterrupted.code == 0, uninterrupted.tail()
    assert sorted(uninterrupted.steps) == [1, 2, 3, 4]
    for step in uninterrupted.steps.values():
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["rredcot/probes/per_trace/mean"] > 1
        assert step["rredcot/segments/per_trace/mean"] > 2
        assert step["rredcot/credit/return_error/max"] < 1e-5
        assert 0 < step["rredcot/value/raw/max"] <= 1 + 1e-4
        assert step["timing_s/rredcot_probes"] > 0
        assert step["timing_s/rredcot_plan"] > 0
        assert all(math.isfinite(value) for name, value in step.items() if name.startswith("rredcot/"))
    assert list((uninterrupted.folder / "tensorboard").rglob("events.*"))


@ON_THE_SAME_RUN
def test_every_metric_is_documented(uninterrupted: Run) -> None:
    page = Path("docs/reference/metrics.md").read_text()
    names = {n for step in uninterrupted.steps.values() for n in step if "rredcot" in n}
    assert len(names) > 30
    missing = [n for n in names if n not in page and n.rsplit("/", 1)[0] + "/{" not in page]
    assert not missing


@ON_THE_SAME_RUN
def test_dumped_credit_sums_to_the_reward(uninterrupted: Run) -> None:
    lines = (uninterrupted.folder / "dump" / "3.jsonl").read_text().splitlines()
    traces = [json.loads(line) for line in lines]
    assert len(traces) == 16
    assert all(trace["prompt"].startswith("<|im_start|>user") for trace in traces)
    for trace in traces:
        assert sum(s["reward"] for s in trace["segments"]) == pytest.approx(trace["reward"], abs=1e-4)
    assert any(s["reward"] < 0 for trace in traces for s in trace["segments"])


@ON_THE_SAME_RUN
def test_tensorboard_has_histograms_and_a_table_of_credit(uninterrupted: Run) -> None:
    (file,) = (uninterrupted.folder / "tensorboard").rglob("events.*")
    events = EventAccumulator(str(file), size_guidance={"histograms": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found = events.Histograms("rredcot/credit/histogram")
    assert [event.step for event in found] == [1, 2, 4]
    segments = uninterrupted.steps[2]["rredcot/segments/per_trace/mean"] * 16
    assert found[1].histogram_value.num == pytest.approx(segments)
    assert tags["tensors"] == ["rredcot/credit/worst_segments/text_summary"]


@pytest.mark.parametrize("kind", ["dump", "rollouts"])
@ON_THE_SAME_RUN
def test_a_report_is_made_of_what_the_run_left(uninterrupted: Run, tmp_path: Path, kind: str) -> None:
    page, curves = tmp_path / "report.html", uninterrupted.folder / "tensorboard"
    command = ["report", str(uninterrupted.folder / kind), "-o", str(page), "--tensorboard", f"mine={curves}"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "64 traces in 16 groups at 4 steps were read" in text
    assert "Learning curves" in text
    assert ("mean reward that followed" in text) == (kind == "dump")


@ON_THE_SAME_RUN
def test_a_resumed_run_continues_as_an_uninterrupted_one(
    demo_inputs: Inputs, uninterrupted: Run, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(uninterrupted.folder / "checkpoints" / "global_step_2", checkpoints / "global_step_2")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    assert (checkpoints / "global_step_2" / "rredcot.pt").exists()
    resumed = train(demo_inputs, tmp_path, *RREDCOT, TOTAL_STEPS="4")
    assert resumed.code == 0, resumed.tail()
    assert sorted(resumed.steps) == [3, 4]
    names = (*SAME, "rredcot/value/raw/mean", "rredcot/value/boundary/mean", "rredcot/credit/abs_delta/mean")
    for step in (3, 4):
        assert_close(resumed.steps[step], uninterrupted.steps[step], names, 2e-3)


@pytest.mark.nightly
@ON_THE_SAME_RUN
def test_processes_beside_the_driver_give_the_same_numbers(
    demo_inputs: Inputs, uninterrupted: Run, tmp_path: Path
) -> None:
    """In the first step the driver reads the rows too, for TensorBoard; in the second none of them comes to it."""
    beside = ("+algorithm.rredcot.credit_workers=2", "+algorithm.rredcot.histogram_every=3")
    shared = train(demo_inputs, tmp_path, *RREDCOT, *beside, TOTAL_STEPS="2")
    assert shared.code == 0, shared.tail()
    for step, tolerance in ((1, 1e-4), (2, 2e-3)):
        alone = uninterrupted.steps[step]
        assert shared.steps[step]["rredcot/driver/workers/mean"] == 2
        assert alone["rredcot/driver/workers/mean"] == 0
        names = {name for name in alone if name.startswith("rredcot/")} - {"rredcot/driver/workers/mean"}
        assert_close(shared.steps[step], alone, (*SAME, *sorted(names)), tolerance)


@pytest.mark.nightly
@ON_THE_SAME_RUN
def test_batched_probes_give_the_same_numbers(demo_inputs: Inputs, uninterrupted: Run, tmp_path: Path) -> None:
    batched = train(demo_inputs, tmp_path, *RREDCOT, "+algorithm.rredcot.probe_backend=batched", TOTAL_STEPS="1")
    assert batched.code == 0, batched.tail()
    names = (*SAME, "rredcot/value/raw/mean", "rredcot/value/raw/max", "rredcot/value/boundary/mean")
    assert_close(batched.steps[1], uninterrupted.steps[1], names)
    assert batched.steps[1]["rredcot/probes/in_pass/mean"] == 0


def test_without_segments_it_is_verls_grpo(demo_inputs: Inputs, tmp_path: Path) -> None:
    grpo = train(demo_inputs, tmp_path / "grpo", "algorithm.adv_estimator=grpo")
    none = train(
        demo_inputs, tmp_path / "none", "algorithm.adv_estimator=rredcot", "+algorithm.rredcot.segmenter=none"
    )
    assert grpo.code == 0, grpo.tail()
    assert none.code == 0, none.tail()
    assert not any("rredcot" in name for name in grpo.steps[1])
    for step in (1, 2):
        assert_close(none.steps[step], grpo.steps[step], SAME)


def test_nothing_a_model_or_a_reward_function_does_stops_the_run(hostile_inputs: Inputs, tmp_path: Path) -> None:
    run = train(
        hostile_inputs,
        tmp_path,
        "algorithm.adv_estimator=rredcot",
        "+algorithm.rredcot.probe_backend=packed",
        "actor_rollout_ref.rollout.n=3",
        TRAINER_MODE="colocate_async",
        MICRO_BATCH_SIZE="4",
    )
    assert run.code == 0, run.tail()
    for step in run.steps.values():
        assert step["rredcot/fallback/nonfinite_reward/mean"] > 0
        assert step["rredcot/fallback/process_rewards/mean"] > 0
        assert math.isfinite(step["actor/grad_norm"])
        assert math.isfinite(step["critic/advantages/mean"])
        assert all(math.isfinite(value) for name, value in step.items() if name.startswith("rredcot/"))


@pytest.mark.nightly
def test_rollouts_of_their_own_resources_and_baselines_of_least_variance(
    demo_inputs: Inputs, tmp_path: Path
) -> None:
    baselines = "+algorithm.rredcot.baseline=least_variance"
    run = train(demo_inputs, tmp_path, *RREDCOT, baselines, TRAINER_MODE="separate_async")
    assert run.code == 0, run.tail()
    assert sorted(run.steps) == [1, 2]
    for step in run.steps.values():
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["rredcot/credit/return_error/max"] < 1e-5
        assert math.isfinite(step["actor/grad_norm"])


@pytest.mark.nightly
@ON_THE_SAME_RUN
def test_asynchronous_training_without_staleness_is_synchronous_training(
    demo_inputs: Inputs, uninterrupted: Run, tmp_path: Path
) -> None:
    """Rollouts of the other process alone, none ahead of the weights: the same rollouts, and so the same run."""
    alone = ("actor_rollout_ref.hybrid_engine=False", "trainer.v1.separate_async.num_warmup_batches=0")
    # at INFO verl 0.9.1 ends with a TypeError: it passes flush= to its logger where hybrid_engine=False
    knobs = {"TRAINER_MODE": "separate_async", "TOTAL_STEPS": "3", "VERL_LOGGING_LEVEL": "WARNING"}
    run = train(demo_inputs, tmp_path, *RREDCOT, *alone, **knobs)
    assert run.code == 0, run.tail()
    assert sorted(run.steps) == [1, 2, 3]
    for step, found in run.steps.items():
        assert found["training/off_policy/trajectory_staleness_worst/max"] == 0
        ours = {name for name in found if name.startswith("rredcot/")}
        assert ours == {name for name in uninterrupted.steps[step] if name.startswith("rredcot/")}
        assert_close(found, uninterrupted.steps[step], (*SAME, *sorted(ours)), 1e-3)
    assert run.steps[3]["rredcot/value/window_age/mean"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.nightly
def test_one_baseline_a_trace_asks_no_probes(demo_inputs: Inputs, tmp_path: Path) -> None:
    options = ("+algorithm.rredcot.baseline=trace", "+algorithm.rredcot.value_estimator=confidence")
    run = train(demo_inputs, tmp_path, *RREDCOT, *options)
    assert run.code == 0, run.tail()
    assert sorted(run.steps) == [1, 2]
    for step in run.steps.values():
        assert step["rredcot/probes/per_trace/mean"] == 0
        assert step["rredcot/credit/return_error/max"] < 1e-5
        assert math.isfinite(step["actor/grad_norm"]) and math.isfinite(step["critic/advantages/mean"])


def test_a_bad_option_ends_the_run_with_its_name(demo_inputs: Inputs, tmp_path: Path) -> None:
    run = train(demo_inputs, tmp_path, "algorithm.adv_estimator=rredcot", "+algorithm.rredcot.segmenter=newlin")
    assert run.code != 0
    assert "unknown segmenter 'newlin'. Did you mean 'newline'?" in run.output


@pytest.mark.nightly
@ON_THE_SAME_RUN
def test_the_trainer_over_dataproto_trains_and_goes_on_where_it_stopped(
    demo_inputs: Inputs, tmp_path: Path, uninterrupted: Run
) -> None:
    """``trainer.use_v1=false``: its first step has the credit of the other trainer's, its checkpoints hold the fit."""
    legacy = (*RREDCOT, "trainer.use_v1=false", "+ray_kwargs.ray_init.address=local")
    first = train(demo_inputs, tmp_path, *legacy, TOTAL_STEPS="2", SAVE_FREQ="2")
    assert first.code == 0, first.tail()
    assert_close(first.steps[1], uninterrupted.steps[1], ("critic/score/mean", "response_length/mean"))
    assert (tmp_path / "checkpoints" / "global_step_2" / "rredcot.pt").is_file()
    second = train(demo_inputs, tmp_path, *legacy, TOTAL_STEPS="3")
    assert second.code == 0, second.tail()
    assert max(second.steps) == 3
    for step in second.steps.values():
        assert step["rredcot/probes/in_pass/mean"] == 1
        assert step["rredcot/segments/per_trace/mean"] > 2
        assert step["rredcot/credit/return_error/max"] < 1e-5
