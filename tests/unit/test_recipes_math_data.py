"""The data of the math recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.math_recipe import MATH
from tests.unit.recipe_scripts import (
    load,
)

prepare_data = load(MATH / "prepare_data.py", "prepare_data")


math_problems = sys.modules["math_problems"]  # which prepare_data has imported


ROWS = [
    {"problem": "What is $1+1$?", "answer": "2", "solution": "It is \\boxed{2}"},
    {"problem": "what is  $1 + 1$ ?", "answer": "2.", "solution": "Count: \\boxed{2}"},
    {"problem": "Prove it.", "answer": "proof", "solution": "Clear."},
    {"problem": "Unreadable", "answer": "\\lor", "solution": ""},
    {"problem": "Both", "answer": "6", "solution": None},
    {"problem": "both", "answer": "7", "solution": None},
    {"problem": "In the benchmark", "answer": "8", "solution": None},
    {"problem": "", "answer": "8", "solution": None},
    {"problem": "No answer", "answer": None, "solution": "None given"},
    *({"problem": f"What is {i} + {i}?", "answer": str(2 * i), "solution": ""} for i in range(10, 40)),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "My Problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "bench.csv").write_text("question,answer\nin the  benchmark,8\nanother,033\n")
    return path


def prepare(source: Path, out: Path, *more: str) -> int:
    return prepare_data.main(["--source", str(source), "--out", str(out), "--val-size", "8", *more])


def questions(file: Path) -> list[str]:
    return [info["question"] for info in pd.read_parquet(file)["extra_info"]]


def test_data_are_clean_and_splits_disjoint(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(source, tmp_path / "out", "--eval", str(tmp_path / "bench.csv")) == 0
    train, val = questions(tmp_path / "out/train.parquet"), questions(tmp_path / "out/val.parquet")
    keys = [prepare_data.question_key(question) for question in train + val]
    assert len(val) == 8 and len(keys) == len(set(keys)) == 31
    told = capsys.readouterr().out
    for expected in (
        "39 rows read",
        "bench.csv: 1;",
        "answer that math-verify cannot read: 1;",
        "duplicate question: 2;",
        "no question: 1;",
        "no single answer: 2;",
        "question with different answers: 1",
    ):
        assert expected in told
    bench = pd.read_parquet(tmp_path / "out/bench.parquet")
    assert list(bench["data_source"]) == ["bench", "bench"]
    assert bench["reward_model"][1]["ground_truth"] == "033"


def test_rows_are_verls(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "out")
    both = [pd.read_parquet(tmp_path / f"out/{split}.parquet") for split in ("train", "val")]
    frame = pd.concat(both)
    assert list(frame) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    row = next(row for row in frame.to_dict("records") if row["extra_info"]["question"] == "What is $1+1$?")
    assert row["data_source"] == "my_problems" and row["ability"] == "math"
    assert row["reward_model"] == {"style": "rule", "ground_truth": "2"}
    (message,) = row["prompt"]
    assert message["role"] == "user" and message["content"].startswith("What is $1+1$?\n\n")
    assert list(row["extra_info"]["references"]) == ["It is \\boxed{2}", "Count: \\boxed{2}"]
    assert row["extra_info"]["solution"] == "It is \\boxed{2}"


def test_checksums_hold_and_repeat(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert prepare(source, tmp_path / name) == 0
    sums = (tmp_path / "a/checksums.txt").read_text()
    assert sums == (tmp_path / "b/checksums.txt").read_text()
    assert all(line.split()[0] in capsys.readouterr().out or line for line in sums.splitlines())
    subprocess.run(["sha256sum", "--check", "--quiet", "checksums.txt"], cwd=tmp_path / "a", check=True)


def test_the_split_follows_the_question_alone(source: Path, tmp_path: Path) -> None:
    prepare(source, tmp_path / "a")
    source.write_text("".join(json.dumps(row) + "\n" for row in reversed(ROWS)))
    prepare(source, tmp_path / "b", "--seed", "1")
    key = prepare_data.question_key
    assert list(map(key, questions(tmp_path / "a/val.parquet"))) == list(
        map(key, questions(tmp_path / "b/val.parquet"))
    )
    trains = [list(map(key, questions(tmp_path / name / "train.parquet"))) for name in "ab"]
    assert sorted(trains[0]) == sorted(trains[1]) and trains[0] != trains[1]


def test_max_rows_bounds_both(source: Path, tmp_path: Path) -> None:
    assert prepare(source, tmp_path / "out", "--max-rows", "20") == 0
    assert len(questions(tmp_path / "out/train.parquet")) == 12
    assert len(questions(tmp_path / "out/val.parquet")) == 8


def test_nothing_is_replaced_without_force(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(source, tmp_path / "out") == 0
    before = (tmp_path / "out/train.parquet").read_bytes()
    assert prepare(source, tmp_path / "out", "--seed", "3") == 1
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "out/train.parquet").read_bytes() == before
    assert prepare(source, tmp_path / "out", "--seed", "3", "--force") == 0
    assert (tmp_path / "out/train.parquet").read_bytes() != before


def write_jsonl(folder: Path, *lines: str) -> Path:
    path = folder / "broken.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_question_that_is_one_message_and_an_answer_in_a_list(tmp_path: Path) -> None:
    """As verl's own files and sets of competitions have them."""
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {i} + {i}?"}], "answer": [str(2 * i)]} for i in range(20)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "verl.parquet")
    assert prepare(tmp_path / "verl.parquet", tmp_path / "out") == 0
    found = pd.read_parquet(tmp_path / "out/train.parquet")
    assert {info["question"] for info in found["extra_info"]} <= {f"What is {i} + {i}?" for i in range(20)}
    assert {one["ground_truth"] for one in found["reward_model"]} <= {str(2 * i) for i in range(20)}


def test_a_ground_truth_that_no_answer_can_equal_is_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"problem": f"p{i}", "answer": str(i)} for i in range(20)] + [{"problem": "long", "answer": "1" * 301}]
    assert prepare(write_jsonl(tmp_path, *map(json.dumps, rows)), tmp_path / "out") == 0
    assert "answer that math-verify cannot read: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "more", "message"),
    [
        (['{"problem": "a", "answer": "1"}', "", '{"problem": "b"}'], (), "line 3: no answer and no solution"),
        (['{"text": "a", "answer": "1"}'], (), "line 1: none of the columns question, problem"),
        (['{"problem": "a", "answer": "1"}'], ("--answer-column", "label"), "line 1: no column 'label'"),
        (['{"problem": "a", '], (), "line 1: not JSON"),
        (
            ['{"problem": "a", "answer": ["1", "2"]}'],
            (),
            "line 1, column 'answer': expected a text, or one message",
        ),
        (
            ['{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "answer": "1"}'],
            (),
            "line 1, column 'prompt': expected a text, or one message of the user, got 2 entries",
        ),
        (["[1]"], (), "line 1: got list, expected an object"),
        (['{"problem": "a", "answer": "1"}'], (), "--val-size 8: leaves nothing"),
    ],
)
def test_broken_rows_are_named(
    lines: list[str], more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(write_jsonl(tmp_path, *lines), tmp_path / "out", *more) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "expected one of numina, open-rs"), ("absent.jsonl", "no such file")]
)
def test_unknown_sources_are_named(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_data.main(["--source", name, "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source_name", "row", "answer", "reference"),
    [
        ("numina", {"source": "x", "problem": "q", "solution": "so \\boxed{3}"}, "3", "so \\boxed{3}"),
        ("open-rs", {"problem": "q", "solution": "so", "answer": "3", "level": "Hard"}, "3", "so"),
        ("gsm8k", {"question": "q", "answer": "1+2=<<1+2=3>>3\n#### 3"}, "3", "1+2=<<1+2=3>>3\n#### 3"),
    ],
)
def test_the_known_data_sets_are_read_by_their_columns(
    source_name: str, row: dict[str, str], answer: str, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math_problems, "read_hub", lambda source: [row])
    (problem,) = prepare_data.read_problems(source_name, prepare_data.Columns(), prepare_data.SOURCES)
    assert problem == prepare_data.Problem("q", answer, (reference,))


def test_without_datasets_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(prepare_data.DataError, match="pip install datasets"):
        math_problems.read_hub(prepare_data.SOURCES["numina"])


def test_reasoning_gym_is_the_demos(tmp_path: Path) -> None:
    arguments = ["--source", "reasoning-gym", "--out", str(tmp_path), "--max-rows", "24", "--val-size", "8"]
    assert prepare_data.main(arguments) == 0
    frame = pd.read_parquet(tmp_path / "train.parquet")
    assert len(frame) == 16
    assert set(frame["data_source"]) == {"rredcot_demo/chain_sum", "rredcot_demo/number_sorting"}
