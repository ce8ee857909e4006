"""`rredcot score`: numbers as computed by hand, resumption to the same bytes, bad input named and survived."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rredcot_plugin as rr
from rredcot_plugin.commands.app import app
from rredcot_plugin.offline import model as offline_model
from rredcot_plugin.offline.model import Scorer
from rredcot_plugin.probes import UnsupportedModelError
from rredcot_plugin.report.traces import read_dumps
from rredcot_plugin.tiny import CHECKPOINT
from tests.unit.probe_models import SHAPES, random_ids, tiny_model
from tests.unit.scored import (  # noqa: F401  fixtures
    NEWLINE,
    PROBLEMS,
    RAW,
    TEMPLATE,
    WIDE,
    demo,
    plain_rows,
    raw,
    records,
    rollouts,
    score,
    values,
    write,
)


def test_help() -> None:
    result = CliRunner().invoke(app, ["score", "--help"], env=WIDE)
    assert result.exit_code == 0
    assert "--groups-per-chunk" in result.output


def test_end_to_end(rollouts: Path) -> None:
    result = score(rollouts, *NEWLINE)
    assert result.exit_code == 0, result.output
    assert "share of credit at the answer" in result.stdout
    assert "12/12" in result.stderr
    traces = read_dumps(rollouts.with_suffix(".scored.jsonl"))
    assert [trace.reward for trace in traces] == [row["reward"] for row in plain_rows()]
    assert len({trace.uid for trace in traces}) == 3
    for trace, row in zip(traces, plain_rows(), strict=True):
        assert "".join(segment.text for segment in trace.segments) == row["response"]
        assert trace.prompt == TEMPLATE.format(row["prompt"][0]["content"])
        assert sum(s.credit for s in trace.segments) == pytest.approx(trace.reward - trace.values[0], abs=1e-4)
    assert [record["line"] for record in records(rollouts.with_suffix(".scored.jsonl"))] == list(range(1, 13))


def test_few_prompts_and_few_segments_are_warned_of(rollouts: Path, tmp_path: Path) -> None:
    few = score(rollouts, "-o", str(tmp_path / "few.jsonl"), "--set", "segmenter=think_answer")
    assert few.exit_code == 0, few.output
    assert "warning: Calibration had too few prompts here (3 at step 0)" in few.stdout
    assert "segments on average" in few.stdout and "segmenter=newline" in few.stdout
    shared = score(rollouts, "-o", str(tmp_path / "shared.jsonl"), "--set", "value_estimator=attention")
    assert shared.exit_code == 0 and "Calibration" not in shared.stdout, "these values are not fitted"
    lines = score(
        rollouts,
        "-o",
        str(tmp_path / "lines.jsonl"),
        "--set",
        "segmenter=fixed",
        "--set",
        "segmenter_kwargs.tokens=4",
        "--set",
        "calibrate=none",
    )
    assert lines.exit_code == 0, lines.output
    assert "segments on average" not in lines.stdout
    assert "Calibration" not in lines.stdout


def test_scored_rollouts_hold_the_probed_answers(raw: Path, demo) -> None:
    """The probability of an answer at a boundary is what the raw value of ``support`` is made of."""
    for record in records(raw):
        if not record.get("proposals"):
            continue
        assert len(record["proposals"]) <= 8
        for i, segment in enumerate(record["segments"]):
            assert len(segment["probabilities"]) == len(record["proposals"])
            asked = [p for p in segment["probabilities"] if p is not None]
            assert bool(asked) == (i > 0), "the prompt has the mean of its group"
            if i and all(one["kind"] == "group" for one in record["proposals"]):
                worth = sum(p * one["utility"] for p, one in zip(asked, record["proposals"], strict=True))
                assert segment["value"] == pytest.approx(worth, abs=2e-3)
    assert any(record.get("proposals") for record in records(raw))


def test_values_equal_probe_log_probs_computed_by_hand(raw: Path, demo) -> None:
    model, tokenizer = demo
    question, (_, (right, wrong)) = next(iter(PROBLEMS.items()))
    record = records(raw)[2]  # the wrong one: two others say 6 and earn 1, nobody else says 4
    assert "".join(segment["text"] for segment in record["segments"]) == wrong
    prompt = tokenizer(TEMPLATE.format(question))["input_ids"]
    trace = [*prompt, *tokenizer(wrong)["input_ids"]]
    boundaries, at = [], len(prompt)
    for segment in record["segments"][:-1]:
        at += segment["tokens"]
        boundaries.append(at)
    answer = [*tokenizer(right.rpartition(" ")[2])["input_ids"], tokenizer.eos_token_id]
    bridge = tokenizer("#### ")["input_ids"]
    expected = rr.probe_log_probs(model, trace, boundaries, [answer], "batched", bridge=bridge).exp()[:, 0]
    found = [segment["value"] for segment in record["segments"]]
    assert len(boundaries) == 2
    assert found[1:] == pytest.approx(expected.tolist(), abs=2e-6)
    assert found[0] == pytest.approx(2 / 3, abs=1e-6)  # the other three earned 1, 1, 0


@pytest.mark.parametrize("backend", ["cached", "packed", "batched"])
def test_other_backends_and_sizes_give_the_same_values(
    rollouts: Path, raw: Path, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline_model, "PROBE_TOKENS", 20)
    out, sizes = tmp_path / "o.jsonl", ("--batch-tokens=100", "--set", f"probe_backend={backend}")
    assert score(rollouts, "-o", str(out), *RAW, *sizes).exit_code == 0
    for found, expected in zip(values(tmp_path / "o.jsonl"), values(raw), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_a_model_that_cannot_be_forked_is_scored_row_by_row(
    rollouts: Path, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedModelError("no attention here.")

    monkeypatch.setattr(offline_model, "capture_trunk", refuse)
    assert score(rollouts, "-o", str(tmp_path / "o.jsonl"), *RAW).exit_code == 0
    for found, expected in zip(values(tmp_path / "o.jsonl"), values(raw), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_signals_equal_those_of_a_plain_forward(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_model, "LOGIT_ROWS", 6)
    model = tiny_model(shape)
    rows = [random_ids(length, seed=length) for length in (9, 17, 12)]
    found = Scorer(model, temperature=0.7).signals(rows, [3, 1, 12])
    for row, start, (log_probs, entropies) in zip(rows, [3, 1, 12], found, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row])).logits[0, start - 1 : -1] / 0.7
        expected = torch.log_softmax(logits, dim=-1)
        torch.testing.assert_close(log_probs, expected.gather(1, torch.tensor(row[start:])[:, None])[:, 0])
        torch.testing.assert_close(entropies, -(expected.exp() * expected).sum(dim=-1))
    assert "forward" not in vars(getattr(model, model.base_model_prefix))


@pytest.mark.parametrize("shape", SHAPES)
def test_probes_behind_the_signals_own_forward_are_the_same(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside verl, where the log-prob pass is the trunk of the probes; of some of its rows, in any order."""
    model = tiny_model(shape)
    rows = [random_ids(length, seed=length) for length in (9, 17, 12)]
    scorer, starts = Scorer(model, temperature=0.7), [3, 1, 12]
    found, trunk = scorer.signals_and_trunk(rows, starts)
    for own, expected in zip(found, scorer.signals(rows, starts), strict=True):
        torch.testing.assert_close(own, expected)
    assert trunk is not None
    asked, specs = [rows[2], rows[0]], [[(5, [7, 8], 1), (9, [3, 4, 5], 0)], [(4, [6, 2], 1)]]
    forwards: list[int] = []
    monkeypatch.setattr(model, "forward", lambda *a, f=model.forward, **k: forwards.append(1) or f(*a, **k))
    behind = scorer.probes(asked, specs, trunk)
    with_trunk = len(forwards)
    alone = scorer.probes(asked, specs)
    assert len(forwards) == 2 * with_trunk + 1, "one forward less: the trunk's"
    for own, other in zip(behind, alone, strict=True):
        assert own == pytest.approx(other, abs=1e-5)


def test_without_one_forward_of_all_rows_no_trunk_is_kept() -> None:
    model = tiny_model(SHAPES[0])
    rows = [random_ids(length, seed=length) for length in (9, 17)]
    for scorer in (Scorer(model, backend="batched"), Scorer(model, max_tokens=20)):
        found, trunk = scorer.signals_and_trunk(rows, [1, 1])
        assert trunk is None and [len(log_probs) for log_probs, _ in found] == [8, 16]
    _, trunk = Scorer(model).signals_and_trunk(rows, [1, 1])
    assert trunk is not None and trunk.spans([random_ids(4, seed=1)]) is None


@pytest.fixture(scope="module")
def finished(rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scored with calibration, a group a chunk."""
    out = tmp_path_factory.mktemp("finished") / "o.jsonl"
    assert score(rollouts, "-o", str(out), *NEWLINE, "--groups-per-chunk", "1").exit_code == 0
    return out


@pytest.mark.parametrize("damage", ["half a line", "a line too many", "only the first line", "state lost"])
def test_after_a_cut_the_file_is_the_same_again(
    rollouts: Path, finished: Path, tmp_path: Path, damage: str
) -> None:
    for file in finished.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    out, whole = tmp_path / finished.name, finished.read_bytes()
    out.write_bytes(
        {
            "half a line": whole[:-40],
            "a line too many": whole + b'{"step": 0, "uid"',
            "only the first line": whole[: whole.index(b"\n")],
            "state lost": whole,
        }[damage]
    )
    if damage == "state lost":
        (tmp_path / "o.jsonl.state.pt").write_bytes(b"nothing")
    result = score(rollouts, "-o", str(out), *NEWLINE, "--groups-per-chunk", "1")
    assert result.exit_code == 0, result.output
    assert ("continuing after 8 of 12" in result.stderr) == (damage == "half a line")
    assert out.read_bytes() == whole


def test_a_finished_file_is_left_alone(rollouts: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rredcot_plugin.offline.run.load_model", None)  # not even loaded
    before = finished.read_bytes()
    result = score(rollouts, "-o", str(finished), *NEWLINE, "--groups-per-chunk", "1")
    assert result.exit_code == 0, result.output
    assert "nothing was left to score" in result.stdout
    assert finished.read_bytes() == before


def test_other_arguments_are_named_and_force_overwrites(rollouts: Path, raw: Path, tmp_path: Path) -> None:
    for file in raw.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    out, before = tmp_path / raw.name, raw.read_bytes()
    result = score(rollouts, "-o", str(out), *NEWLINE, "--temperature", "2")
    assert result.exit_code == 2
    assert "options.calibrate: 'none' there, 'outcome' now; temperature: 1.0 there, 2.0 now" in result.stderr
    assert "--force" in result.stderr
    assert out.read_bytes() == before
    assert score(rollouts, "-o", str(out), *NEWLINE, "--temperature", "2", "--force").exit_code == 0
    assert out.read_bytes() != before


def test_a_file_of_somebody_else_is_not_touched(rollouts: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    out.write_text("mine")
    assert score(rollouts, "-o", str(out)).exit_code == 2
    assert score(rollouts, "-o", str(rollouts)).exit_code == 2
    assert out.read_text() == "mine"


def test_a_run_that_finished_nothing_does_not_bind_the_next(rollouts: Path, tmp_path: Path) -> None:
    out, broken = tmp_path / "o.jsonl", tmp_path / "model"
    shutil.copytree(CHECKPOINT, broken)
    (broken / "model.safetensors").write_bytes(b"cut")
    failed = CliRunner().invoke(app, ["score", str(rollouts), "--model", str(broken), "-o", str(out)])
    assert failed.exit_code == 1
    assert out.read_bytes() == b""
    again = score(rollouts, "-o", str(out), *NEWLINE)
    assert again.exit_code == 0, again.output
