"""The demo's orchestration, without training: progress, resuming, summaries, pictures."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from rredcot_plugin.demo import run, training
from rredcot_plugin.demo.pictures import make_pictures
from rredcot_plugin.demo.run import MARKER, DemoSettings, is_finished, run_demo
from rredcot_plugin.demo.summary import HEADER, summarise
from rredcot_plugin.demo.training import TrainingFailedError, TrainingRun, train
from rredcot_plugin.tiny import reasoner
from rredcot_plugin.tiny.progress import Progress, advance, relevant_lines
from tests.unit.test_report import record

OUTPUT = [
    "ray init kwargs: {'num_cpus': 8}",
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m {'actor': 1}",
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m INFO:all initialize finished, ready to fit",
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m Training Progress:   0%|     | 0/3 [00:00<?, ?it/s]",
    "(TaskRunnerV1 pid=7) step:1 - a/b:1.0 - critic/score/mean:0.25 - critic/score/max:1.0",
    "(TaskRunnerV1 pid=7) Training Progress:  33%|█▋   | 1/3 [00:04<00:08, 4.1s/it]Training Progress:  67%|███▎ | "
    "2/3 [00:08<00:04, 4.1s/it]",
]


def write_script(path: Path, body: str) -> Path:
    """A stand-in for the training script: the same interface, no verl."""
    path.write_text(f"#!/usr/bin/env bash\nset -e\n{body}\n")
    return path


@pytest.fixture
def one_run(tmp_path: Path) -> TrainingRun:
    return TrainingRun("rredcot", tmp_path / "rredcot", tmp_path / "data", steps=3, seed=1, rollout="hf_cpu")


def test_progress_shows_verls_bar_and_the_last_reward() -> None:
    lines = [""]
    progress = Progress()
    for line in OUTPUT:
        progress = advance(progress, line)
        lines.append(progress.line())
    assert lines[1:4] == ["starting Ray …", "starting verl's workers …", "validating the untrained model …"]
    assert lines[4] == "Training Progress:   0%|     | 0/3 [00:00<?, ?it/s]"
    assert lines[6] == "Training Progress:  67%|███▎ | 2/3 [00:08<00:04, 4.1s/it]  mean reward 0.25 at step 1"


def test_phases_never_go_back() -> None:
    progress = advance(advance(Progress(), OUTPUT[2]), OUTPUT[1])
    assert progress.phase == "validating the untrained model"


def test_relevant_lines_leave_out_metrics_and_known_warnings(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join([*OUTPUT, "x.py:1: UserWarning: torchtitan", "", "\x1b[31mValueError: lr\x1b[0m"]))
    assert relevant_lines(log)[-1] == "ValueError: lr"
    assert not any("step:1" in line or "UserWarning" in line for line in relevant_lines(log))
    assert relevant_lines(log, most=1) == ["ValueError: lr"]


def test_lengths_fit_the_reasoner() -> None:
    assert training.MAX_PROMPT_LENGTH == reasoner.MAX_PROMPT_TOKENS
    assert training.MAX_RESPONSE_LENGTH == reasoner.MAX_RESPONSE_TOKENS


def test_only_rredcot_gets_its_options(one_run: TrainingRun, tmp_path: Path) -> None:
    assert f"+algorithm.rredcot.dump_dir={one_run.dumps}" in one_run.overrides(tmp_path)
    grpo = TrainingRun("grpo", tmp_path, tmp_path, 3, 1, "hf_cpu")
    assert not any("rredcot" in option for option in grpo.overrides(Path("/ray")))


def test_training_streams_progress_and_logs_all(
    one_run: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(OUTPUT)
    monkeypatch.setattr(
        training, "SCRIPT", write_script(tmp_path / "ok.sh", f"cat <<'EOF'\n{text}\nEOF\necho $SEED $@")
    )
    seen: list[Progress] = []
    train(one_run, seen.append)
    assert seen[-1].reward == 0.25
    log = one_run.log.read_text()
    assert "1 algorithm.adv_estimator=rredcot" in log
    ray_folder = Path(log.partition("_temp_dir=")[2].split()[0])
    assert ray_folder.name.startswith("rredcot_ray_")
    assert not ray_folder.exists()


def test_failed_training_shows_the_end_of_its_log(
    one_run: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        training, "SCRIPT", write_script(tmp_path / "bad.sh", "echo ValueError: no model >&2; exit 3")
    )
    with pytest.raises(TrainingFailedError, match=r"rredcot failed \(exit code 3\)(.|\n)*ValueError: no model"):
        train(one_run, lambda progress: None)


def test_finished_run_is_kept_and_unfinished_one_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []
    monkeypatch.setattr(run, "train", lambda one, show, keep: trained.append(one.estimator))
    monkeypatch.setattr(run, "prepare_data", lambda *_: None)
    settings = DemoSettings(tmp_path, steps=2)
    said: list[str] = []
    for _ in range(2):
        runs = run_demo(settings, said.append, lambda *_: None)
    assert trained == ["grpo", "rredcot"]
    assert all(is_finished(one) for one in runs)
    (tmp_path / "grpo" / MARKER).write_text(json.dumps({"finished": False}))
    (tmp_path / "grpo" / "left over").touch()
    run_demo(settings, said.append, lambda *_: None)
    assert trained == ["grpo", "rredcot", "grpo"]
    assert not (tmp_path / "grpo" / "left over").exists()
    run_demo(DemoSettings(tmp_path, steps=3), said.append, lambda *_: None)
    assert trained[3:] == ["grpo", "rredcot"]


def test_folder_that_the_demo_did_not_make_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare_data", lambda *_: None)
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="not made by rredcot demo"):
        run_demo(DemoSettings(tmp_path), lambda _: None, lambda *_: None)
    assert (tmp_path / "grpo" / "thesis.tex").exists()


SCALARS = {
    "critic/score/mean": [(step, step / 10) for step in range(1, 11)],
    "timing_s/step": [(step, 2.0) for step in range(1, 11)],
    "timing_s/rredcot_plan": [(step, 0.1) for step in range(1, 11)],
    "timing_s/rredcot_probes": [(step, 0.2) for step in range(1, 11)],
    "val-core/rredcot_demo/a/acc/mean@1": [(0, 0.2), (10, 0.6)],
    "val-core/rredcot_demo/b/acc/mean@1": [(0, 0.4), (10, 1.0)],
}


def test_summary_in_numbers() -> None:
    found = summarise("rredcot", SCALARS)
    assert (found.reward_start, found.reward_end) == pytest.approx((0.3, 0.8))
    assert (found.accuracy_before, found.accuracy_after) == pytest.approx((0.3, 0.8))
    assert (found.seconds_per_step, found.added_share) == pytest.approx((2.0, 0.15))
    assert found.cells() == ["rredcot", "0.30", "0.80", "0.30", "0.80", "2.00", "15.0 %"]
    assert len(found.cells()) == len(HEADER)


def test_pictures_from_what_runs_leave(tmp_path: Path) -> None:
    writer_module = import_module("torch.utils.tensorboard")
    runs = DemoSettings(tmp_path, steps=10).estimators
    made = [DemoSettings(tmp_path, steps=10).training_run(name) for name in runs]
    for one in made:
        with writer_module.SummaryWriter(str(one.tensorboard)) as writer:
            for tag, points in SCALARS.items():
                for step, value in points:
                    writer.add_scalar(tag, value, step)
    made[1].dumps.mkdir(parents=True)
    (made[1].dumps / "2.jsonl").write_text(json.dumps(record([0.1, -0.6], texts=["a\n", "<script>"])) + "\n")
    result = make_pictures(tmp_path, made)
    page = result.html.read_text()
    assert "15.0 %" in page
    assert "&lt;script&gt;" in page
    assert page.count("<script") == page.count("script-src 'sha256-") == 1
    assert 'name="colour"' in page
    assert result.png.stat().st_size > 10_000
