"""What `rredcot score` reads, leaves out and refuses."""

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

import rredcot_plugin as rr
from rredcot_plugin.commands.score import read_options
from rredcot_plugin.offline.input_columns import Row, group_rows, last_outputs, read_rows
from rredcot_plugin.offline.model import Scorer
from rredcot_plugin.offline.prompts import PromptWriter
from rredcot_plugin.tiny import CHECKPOINT
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


def test_verls_own_dump_gives_the_same_values(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    result = score(write(tmp_path / "7.jsonl", verl_rows()), "-o", str(out), *RAW)
    assert result.exit_code == 0, result.output
    assert values(out) == values(raw)
    assert {(r["uid"], r["step"]) for r in records(out)} == {(f"problem-{i}", 7) for i in range(3)}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("indent", [None, 2])
def test_trls_columns_and_a_json_array_are_read(tmp_path: Path, indent: int | None, encoding: str) -> None:
    asked, said = [{"role": "user", "content": "1 + 1 ="}], [{"role": "assistant", "content": "2"}]
    rows = [
        {"prompt": asked, "completion": said, "rewards": "1.0"},
        {"prompt": asked, "completion": "3", "reward": "0"},
        {"prompt": asked, "completion": "3", "reward": "none"},
    ]
    (tmp_path / "r.json").write_text(json.dumps(rows, indent=indent), encoding=encoding)
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
        (json.dumps({"prompt": "a", "response": "b", "reward": 0, "step": "x"}), "step: expected an integer"),
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
    for folder in (Path(), tmp_path):
        result = score(folder)
        assert result.exit_code == 1
        assert f"{folder}: expected a file of JSON lines, got a folder" in result.stderr
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


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "1e300", "-1e16"])
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
        (["--set", "baseline=token"], "baseline='token' reads sum_pi_squared"),
        (["--device", "tpu"], "device=tpu: expected one of auto, cpu, cuda"),
        (["--dtype", "int8"], "dtype=int8: expected one of auto, float32"),
        (["--prompts", "chat"], "prompts=chat: expected one of auto, text, user"),
        (["--temperature", "0"], "temperature=0.0: expected a number greater than 0"),
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


def test_numbers_are_those_of_other_command_lines(tmp_path: Path) -> None:
    """YAML alone takes each of these for text."""
    (tmp_path / "o.yaml").write_text("lam: 1e-1\n")
    config = read_options(tmp_path / "o.yaml", ["clip=+.5", "bridge=1e3x"])
    assert (config.lam, config.clip, config.bridge) == (0.1, 0.5, "1e3x")


def test_scoring_imports_no_host() -> None:
    code = (
        "import sys, rredcot_plugin.offline.run, rredcot_plugin.commands.score\n"
        "print(sorted({'verl', 'transfer_queue', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
