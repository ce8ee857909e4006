"""`rredcot score`: numbers as computed by hand, resumption to the same bytes, bad input named and survived."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import rredcot_plugin as rr
from rredcot_plugin.commands.app import app
from rredcot_plugin.commands.score import read_options
from rredcot_plugin.offline import model as offline_model
from rredcot_plugin.offline.input_columns import Row, group_rows, last_outputs, read_rows
from rredcot_plugin.offline.model import Scorer
from rredcot_plugin.offline.prompts import PromptWriter
from rredcot_plugin.probes import UnsupportedModelError
from rredcot_plugin.report.traces import read_dumps
from rredcot_plugin.tiny import CHECKPOINT
from tests.unit.probe_models import SHAPES, random_ids, tiny_model

WIDE = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
NEWLINE = ("--set", "segmenter=newline")
RAW = (*NEWLINE, "--set", "calibrate=none")

PROBLEMS = {
    "8 + 7 - 9 =": ("6", ["8 + 7 = 15\n15 - 9 = 6\n#### 6", "8 + 7 = 15\n15 - 9 = 4\n#### 4"]),
    "3 + 4 + 5 =": ("12", ["3 + 4 = 7\n7 + 5 = 12\n#### 12", "3 + 4 = 8\n8 + 5 = 13\n#### 13"]),
    "9 - 2 - 1 =": ("6", ["9 - 2 = 7\n7 - 1 = 6\n#### 6", "9 - 2 = 6\n6 - 1 = 5\n#### 5"]),
}
"""Question -> right answer, a right and a wrong response."""


def plain_rows() -> list[dict[str, Any]]:
    """Four rollouts a question: right, right, wrong, and one without an answer."""
    rows = []
    for question, (answer, (right, wrong)) in PROBLEMS.items():
        for response in (right, right, wrong, right.partition("\n")[0]):
            reward = float(response == right)
            prompt = [{"role": "user", "content": question}]
            rows.append({"prompt": prompt, "response": response, "reward": reward, "ground_truth": answer})
    return rows


def verl_rows() -> list[dict[str, Any]]:
    """The same as verl's trainer dumps them: decoded without special tokens, keys of rows as uid."""
    rows = []
    for i, row in enumerate(plain_rows()):
        question = row["prompt"][0]["content"]
        rows.append(
            {
                "input": f"user\n{question}\nassistant\n",
                "output": row["response"],
                "gts": row["ground_truth"],
                "score": row["reward"],
                "step": 7,
                "uid": f"problem-{i // 4}_{i % 4}_0",
            }
        )
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(rollouts: Path, *arguments: str, model: Path | str = CHECKPOINT):
    result = CliRunner().invoke(app, ["score", str(rollouts), "--model", str(model), *arguments], env=WIDE)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def values(path: Path) -> list[list[float]]:
    return [[segment["value"] for segment in record["segments"]] for record in records(path)]


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("rollouts") / "r.jsonl", plain_rows())


@pytest.fixture(scope="module")
def raw(rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scored without calibration, a segment a line."""
    out = tmp_path_factory.mktemp("raw") / "raw.jsonl"
    result = score(rollouts, "-o", str(out), *RAW)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def demo():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(CHECKPOINT)


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


# ---- going on where it stopped


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
    assert ("going on behind 8 of 12" in result.stderr) == (damage == "half a line")
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


# ---- what comes in


def test_verls_own_dump_gives_the_same_values(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    result = score(write(tmp_path / "7.jsonl", verl_rows()), "-o", str(out), *RAW)
    assert result.exit_code == 0, result.output
    assert values(out) == values(raw)
    assert {(r["uid"], r["step"]) for r in records(out)} == {(f"problem-{i}", 7) for i in range(3)}


@pytest.mark.parametrize("indent", [None, 2])
def test_trls_columns_and_a_json_array_are_read(tmp_path: Path, indent: int | None) -> None:
    asked, said = [{"role": "user", "content": "1 + 1 ="}], [{"role": "assistant", "content": "2"}]
    rows = [
        {"prompt": asked, "completion": said, "rewards": "1.0"},
        {"prompt": asked, "completion": "3", "reward": "0"},
        {"prompt": asked, "completion": "3", "reward": "none"},
    ]
    (tmp_path / "r.json").write_text(json.dumps(rows, indent=indent))
    good, bad = read_rows(tmp_path / "r.json")
    assert [(row.prompt, row.response, row.reward) for row in good] == [(asked, "2", 1.0), (asked, "3", 0.0)]
    assert [(line.number, line.reason) for line in bad] == [(3, "reward: expected a number, got 'none'")]


def test_an_interrupt_says_where_it_stopped_and_how_to_go_on(
    rollouts: Path, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rredcot_plugin.offline.run.run_score", interrupt)
    result = score(rollouts, "-o", str(tmp_path / "none.jsonl"), *RAW)
    assert result.exit_code == 130
    assert "nothing was finished yet; run the same command again" in result.stderr
    assert f"what is finished is in {raw}" in score(rollouts, "-o", str(raw), *RAW).stderr


def test_broken_lines_are_named_and_the_rest_is_scored(rollouts: Path, raw: Path, tmp_path: Path) -> None:
    lines = rollouts.read_text().splitlines()
    lines[4:4] = ['{"prompt": "1 +', '{"prompt": "x", "response": "y", "score": null}', '{"a": 1, "b": 2}', "\xff"]
    (tmp_path / "r.jsonl").write_text("\n".join(lines), encoding="latin-1")
    result = score(tmp_path / "r.jsonl", "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 1
    assert values(tmp_path / "o.jsonl") == values(raw)
    for told in (
        "line 5: left out: no complete JSON",
        "line 6: left out: reward: expected a number, got None",
        "line 7: left out: missing columns: 'prompt' or 'input', 'response' or 'output' or 'completion', "
        "'reward' or 'score' or 'rewards'; found: 'a', 'b'",
        "line 8: left out: no UTF-8 text",
    ):
        assert told in result.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "expected JSON lines, got an empty file"),
        (
            '{"prompt": "1", "output": "2"}\n' * 3,
            "line 1: missing columns: 'reward' or 'score' or 'rewards'; found: 'prompt', 'output'",
        ),
        ("[1, 2]", "line 1: expected an object, got list"),
        (
            json.dumps({"prompt": [1], "response": "", "reward": 0}),
            "prompt: expected a text or a list of messages",
        ),
        (json.dumps({"prompt": "a", "response": 3, "reward": 0}), "response: expected a text, got 3"),
        (json.dumps({"prompt": "a", "response": "b", "reward": 0, "step": "x"}), "step: expected a whole number"),
    ],
)
def test_nothing_to_read_exits_with_1(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    result = score(tmp_path / "r.jsonl")
    assert result.exit_code == 1
    assert told in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["r.jsonl"]


def test_no_such_file_or_model(rollouts: Path, tmp_path: Path) -> None:
    assert "no such file" in score(tmp_path / "none.jsonl").stderr
    result = score(rollouts, "-o", str(tmp_path / "o.jsonl"), model=tmp_path)
    assert result.exit_code == 1
    assert f"model={tmp_path}" in result.stderr


def test_messages_need_a_chat_template(rollouts: Path, raw: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(CHECKPOINT, bare, ignore=shutil.ignore_patterns("chat_template.jinja"))
    result = score(rollouts, "-o", str(tmp_path / "o.jsonl"), *RAW, model=bare)
    assert result.exit_code == 1
    assert "has no chat template: give one with --chat-template FILE" in result.stderr
    template = str(CHECKPOINT / "chat_template.jinja")
    result = score(rollouts, "-o", str(tmp_path / "o.jsonl"), *RAW, "--chat-template", template, model=bare)
    assert result.exit_code == 0, result.output
    assert values(tmp_path / "o.jsonl") == values(raw)


def test_prompts_are_restored_only_where_the_template_makes_them(demo) -> None:
    writer = PromptWriter(demo[1])
    row = Row(1, "user\n1 + 1 =\nassistant\n", "2", 1.0, "g", from_verl=True)
    assert writer.write(row) == (TEMPLATE.format("1 + 1 ="), True)
    system = Row(1, "system\nBe brief.\nuser\n1 + 1 =\nassistant\n", "2", 1.0, "g", from_verl=True)
    assert writer.write(system)[0].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1 =")
    for prompt, from_verl in (("Q: 1 + 1 =", True), ("user\n1 + 1 =\nassistant\n", False)):
        assert writer.write(Row(1, prompt, "2", 1.0, "g", from_verl=from_verl)) == (prompt, False)
    assert PromptWriter(demo[1], "text").write(row) == (row.prompt, False)
    assert PromptWriter(demo[1], "user").write(Row(1, "1 + 1 =", "2", 1.0, "g")) == (
        TEMPLATE.format("1 + 1 ="),
        True,
    )


def test_groups_are_uids_else_equal_prompts_and_one_output_counts_a_session(tmp_path: Path) -> None:
    base = {"response": "x", "reward": 0}
    rows, _ = read_rows(
        write(tmp_path / "a.jsonl", [{**base, "prompt": p, **g} for p, g in
              [("a", {}), ("b", {"uid": 1}), ("a", {}), ("c", {"uid": 1}), ("a", {"step": 2})]])
    )  # fmt: skip
    assert [[row.line for row in group] for group in group_rows(rows)] == [[1, 3], [2, 4], [5]]
    keys = ["u_0_0", "u_0_1", "u_1_0", "v_0_0"]
    dump = [{"input": "p", "output": "x", "score": 0, "uid": key} for key in keys]
    rows = last_outputs(read_rows(write(tmp_path / "b.jsonl", dump))[0])
    assert [[row.line for row in group] for group in group_rows(rows)] == [[2, 3], [4]]


def test_traces_that_do_not_fit_and_empty_ones(rollouts: Path, raw: Path, tmp_path: Path) -> None:
    question = plain_rows()[0]["prompt"]
    extra = [
        {"prompt": question, "response": "1" * 2000, "reward": 0.0, "uid": "long"},
        {"prompt": question, "response": "", "reward": 0.0, "uid": "empty"},
        {"prompt": "", "response": "1", "reward": 0.0, "uid": "no prompt"},
    ]
    result = score(write(tmp_path / "r.jsonl", [*plain_rows(), *extra]), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 1
    assert re.search(r"line 13: left out: prompt and response have 20\d\d tokens", result.stderr)
    assert "line 15: left out: prompt: expected at least one token" in result.stderr
    assert values(tmp_path / "o.jsonl") == [*values(raw), []]


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "1e300"])
def test_a_reward_that_is_not_finite_counts_for_nobody(
    rollouts: Path, raw: Path, tmp_path: Path, reward: str
) -> None:
    odd = {"prompt": "1 + 1 =", "response": "1 + 1 = 2\n#### 2", "reward": 1.5, "uid": "odd"}
    text = rollouts.read_text() + json.dumps(odd).replace("1.5", reward) + "\n"
    (tmp_path / "r.jsonl").write_text(text)
    assert score(tmp_path / "r.jsonl", "-o", str(tmp_path / "o.jsonl"), *RAW).exit_code == 0
    assert values(tmp_path / "o.jsonl")[:12] == values(raw)
    assert records(tmp_path / "o.jsonl")[-1]["reward"] is None


def test_what_tokenizers_and_numbers_choke_on_is_a_broken_line(raw: Path, tmp_path: Path) -> None:
    good = {"prompt": "1 + 1 =", "response": "2", "reward": 1.0}
    extra = [{**good, "response": "\ud800"}, {**good, "reward": 10**400}, {**good, "prompt": [{"role": "x"}]}]
    result = score(write(tmp_path / "r.jsonl", [*plain_rows(), *extra]), "-o", str(tmp_path / "o.jsonl"), *RAW)
    assert result.exit_code == 1
    assert "line 13: left out" in result.stderr
    assert "line 14: left out" in result.stderr
    assert values(tmp_path / "o.jsonl")[:12] == values(raw)


def test_references_are_read_and_broken_ones_told_with_their_line(tmp_path: Path) -> None:
    rows = [{**row, "solutions": [f"#### {row['ground_truth']}"]} for row in plain_rows()]
    rows[5]["solutions"] = [3]
    options = ["--set", "value_estimator=reference", "--set", "value_kwargs.column=solutions"]
    result = score(write(tmp_path / "r.jsonl", rows), "-o", str(tmp_path / "o.jsonl"), *RAW, *options)
    assert result.exit_code == 1
    assert "line 6: left out: references of rollout 0: expected texts" in result.stderr
    assert len(records(tmp_path / "o.jsonl")) == 11
    assert values(tmp_path / "o.jsonl")[0][-1] > 0.5  # what is left to write is the right answer


def test_memory_that_does_not_suffice_is_told_with_a_way_out(
    rollouts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(Scorer, "signals", fail)
    result = score(rollouts, "-o", str(tmp_path / "o.jsonl"))
    assert result.exit_code == 1
    assert "Tried to allocate 20 GiB.; a smaller --batch-tokens" in result.stderr


# ---- options


@pytest.mark.parametrize("estimator", ["confidence", "attention", "gradient", "own_ratio", "self_normalized"])
def test_other_estimators(rollouts: Path, tmp_path: Path, estimator: str) -> None:
    result = score(rollouts, "-o", str(tmp_path / "o.jsonl"), *RAW, "--set", f"value_estimator={estimator}")
    assert result.exit_code == 0, result.output
    assert all(value is not None for trace in values(tmp_path / "o.jsonl") for value in trace)
    if estimator in ("attention", "gradient"):
        whole = [record for record in records(tmp_path / "o.jsonl") if len(record["segments"]) == 3]
        assert whole
        for record in whole:  # the whole outcome went to the reasoning
            assert record["segments"][-1]["reward"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "lambda=1"], "Did you mean 'lam'?"),
        (["--set", "lam"], "set=lam: expected KEY=VALUE"),
        (["--set", "lam=["], "options cannot be read"),
        (["--set", "value_estimator=critic"], "reads critic"),
        (["--set", "value_estimator=monte_carlo"], "reads monte_carlo"),
        (["--device", "tpu"], "device=tpu: allowed are auto, cpu, cuda"),
        (["--dtype", "int8"], "dtype=int8: allowed are auto, float32"),
        (["--prompts", "chat"], "prompts=chat: allowed are auto, text, user"),
        (["--temperature", "0"], "temperature=0.0: allowed are numbers greater than 0"),
        (["--config", "none.yaml"], "No such file"),
    ],
)
def test_wrong_usage_exits_with_2(rollouts: Path, arguments: list[str], told: str) -> None:
    result = score(rollouts, *arguments)
    assert result.exit_code == 2, result.output
    assert told in result.stderr


def test_options_come_from_a_file_and_then_from_pairs(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text("lam: 0.5\nsegmenter: fixed\nsegmenter_kwargs: {tokens: 9}\n")
    config = read_options(tmp_path / "o.yaml", ["lam=1.0", "segmenter_kwargs.max_segments=3", "clip=null"])
    assert config == rr.RRedCoTConfig(
        lam=1.0, segmenter="fixed", segmenter_kwargs={"tokens": 9, "max_segments": 3}, clip=None
    )


def test_scoring_imports_no_host() -> None:
    code = (
        "import sys, rredcot_plugin.offline.run, rredcot_plugin.commands.score\n"
        "print(sorted({'verl', 'transfer_queue', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
