"""Reading rollouts for a report: every kind of line, broken ones, large files."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rredcot_plugin.report import read_corpus as module
from rredcot_plugin.report.read_corpus import read_corpus
from tests.unit.corpus_lines import trace, write


def test_all_kinds_of_lines_in_one_file(tmp_path: Path) -> None:
    plain = {"prompt": [{"role": "user", "content": "1 + 1"}], "response": "3", "reward": 0}
    scored = {**trace([-0.5]), "line": 3}
    rollout = {"input": "p", "output": "2", "gts": None, "score": float("nan"), "step": 4, "acc": 1}
    corpus = read_corpus([write(tmp_path / "x.jsonl", [trace([0.5], text="d"), scored, plain, rollout])])
    assert [step.step for step in corpus.steps] == [0, 1, 4]
    assert corpus.has_credit
    assert not corpus.num_problems
    bare = [found for group in corpus.groups for found in group.traces if not found.has_segments]
    assert sorted((found.prompt, found.segments[0].text) for found in bare) == [("p", "2"), ("user: 1 + 1", "3")]
    assert all(math.isnan(part.credit) and part.tokens == 0 for found in bare for part in found.segments)
    assert math.isnan(corpus.steps[0].tokens)
    assert sum(corpus.histograms["segments"].counts) == 2


def verl_file(folder: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str]) -> None:
    """Rollouts as verl's trainer logs them, with its own code from the batch to the file."""
    base = import_module("verl.trainer.ppo.v1.trainer_base")
    torch = import_module("torch")
    count = len(keys)
    data = {
        "uid": np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object),
        "prompts": torch.nested.nested_tensor([torch.tensor([ord(key[0])]) for key in keys]),
        "responses": torch.nested.nested_tensor([torch.arange(65, 66 + i) for i in range(count)]),
        "rm_scores": torch.tensor([[0.0, float(i % 2)] for i in range(count)]),
        "reward_model": np.array([{"ground_truth": "<b>"}] * count, dtype=object),
    }
    monkeypatch.setattr(base.tq, "kv_batch_get", lambda **_: data)

    def dump(
        inputs: Any, outputs: Any, gts: Any, scores: Any, reward_extra_infos_dict: Any, dump_path: Any
    ) -> None:
        base.PPOTrainer._write_generations(inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path, 7)

    tokenizer = SimpleNamespace(
        pad_token_id=0, decode=lambda ids, skip_special_tokens: "".join(chr(i) for i in ids.tolist() if i)
    )
    trainer = SimpleNamespace(tokenizer=tokenizer, _dump_generations=dump)
    batch = SimpleNamespace(keys=keys, partition_id="train")
    base.PPOTrainer._log_rollout_data(trainer, batch, {}, str(folder))


def test_rollouts_that_verl_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["u_1_0_0", "v_1_0_0", "u_1_10_0", "v_1_1_0", "u_1_2_0"]
    verl_file(tmp_path, monkeypatch, keys)
    corpus = read_corpus([tmp_path])
    assert not corpus.num_problems
    assert not corpus.has_credit
    assert (corpus.num_traces, corpus.num_groups) == (5, 2)
    assert {(group.traces[0].uid, group.prompt, group.size) for group in corpus.groups} == {
        ("u_1", "u", 3),
        ("v_1", "v", 2),
    }
    (step,) = corpus.steps
    assert (step.step, step.reward) == (7, pytest.approx(0.4))
    assert corpus.groups[0].ground_truth == "<b>"
    assert corpus.histograms.keys() == {"reward"}
    assert corpus.calibration == ()


def test_rollouts_without_uid_are_grouped_by_prompt(tmp_path: Path) -> None:
    lines = [{"input": prompt, "output": f"{i}", "score": i, "step": 1} for i, prompt in enumerate("aabab")]
    corpus = read_corpus([write(tmp_path / "1.jsonl", lines)])
    assert sorted((group.prompt, group.size) for group in corpus.groups) == [("a", 3), ("b", 2)]


@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        (("prompt", "response", "reward"), 3),
        (("input", "response", "score"), 3),
        (("input", "output", "score"), 1),
    ],
)
def test_only_verls_own_rows_have_the_key_of_a_row_as_uid(
    tmp_path: Path, columns: tuple[str, ...], groups: int
) -> None:
    lines = [{**dict(zip(columns, (f"p{i}", "r", i % 2), strict=True)), "uid": f"aime_2024_{i}"} for i in range(3)]
    assert read_corpus([write(tmp_path / "x.jsonl", lines)]).num_groups == groups


@pytest.mark.parametrize("completion", ["It is 2.", [{"role": "assistant", "content": "It is 2."}]])
def test_rollouts_may_have_every_name_that_score_reads(tmp_path: Path, completion: Any) -> None:
    """TRL's, in both of its forms, among them."""
    message = [{"role": "user", "content": "1 + 1 ="}]
    line = {"prompt": message, "completion": completion, "rewards": 1.0, "step": 3}
    (group,) = read_corpus([write(tmp_path / "trl.jsonl", [line])]).groups
    (found,) = group.traces
    assert (found.step, found.prompt, found.reward) == (3, "user: 1 + 1 =", 1.0)
    assert [segment.text for segment in found.segments] == ["It is 2."]
    rewards = [{**line, "rewards": reward} for reward in ("0.5", True, "nan", None)]
    corpus = read_corpus([write(tmp_path / "rewards.jsonl", rewards)])
    assert corpus.num_traces == 4 and corpus.num_problems == 0
    assert corpus.reward_range == (0.5, 1.0)


BROKEN = [
    ('{"step": 1, "uid"', "no complete JSON"),
    ("[1]", "expected an object, got list"),
    ("\ud800", "no complete JSON"),
    (json.dumps({"step": 1, "answer": 2}), "missing columns: 'segments' (a dump, or from rredcot score) or 'response' or "
                                           "'output' or 'completion' (rollouts, with 'prompt' or 'input' and 'reward' or "
                                           "'score' or 'rewards'): rename yours; found: 'step', 'answer'"),
    (json.dumps({"output": "x", "score": 1, **{f"k{i}": i for i in range(99)}}), "missing columns: 'prompt' or 'input'"),
    (json.dumps({**trace([0.1]), "reward": "1"}), "reward: expected a number or null, got '1'"),
    (json.dumps({**trace([0.1]), "reward": 10**400}), "reward: expected a number below 1e+15 in size"),
    (json.dumps({**trace([0.1]), "step": -1}), "step: expected an integer from 0, got -1"),
    (json.dumps({**trace([0.1]), "step": True}), "step: expected an integer from 0, got True"),
    (json.dumps({**trace([0.1]), "segments": ["x" * 9999]}), "expected an object, got str"),
    (json.dumps({"input": 3, "output": "x", "score": 1}), "prompt: expected a text or a list of messages, got 3"),
    (json.dumps({"input": "3", "output": ["x"], "score": 1}), "response: expected a text, got ['x']"),
    ("[" * 100_000, ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "reason"), BROKEN)
def test_a_broken_line_is_told_and_left_out(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    good = json.dumps(trace([0.5]))
    path.write_bytes(f"{good}\n\n{line}\n{good}".encode("utf-8", "surrogatepass"))
    corpus = read_corpus([path])
    assert (corpus.num_traces, corpus.num_problems) == (2, 1)
    (problem,) = corpus.problems
    assert (problem.path, problem.line) == (str(path), 3)
    assert reason in problem.why
    assert len(problem.why) <= 300
    path.write_bytes(f"{line}\n".encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1: .*no line of 1 can be read"):
        read_corpus([path])


def test_half_a_surrogate_pair_is_read(tmp_path: Path) -> None:
    """The trainer writes such texts with JSON's escapes, and pages replace what is not a character."""
    half = json.dumps({**trace([0.5], text="\ud800", prompt="\ud800"), "uid": "\ud800"})
    rollout = json.dumps({"input": "\udc00", "output": "\udc00", "score": 1})
    corpus = read_corpus([write(tmp_path / "x.jsonl", [half, rollout])])
    assert (corpus.num_traces, corpus.num_problems) == (2, 0)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [trace([0.5])])
    with path.open("ab") as file:
        file.write(b'{"step": "\xff"}\n\x00\x01\n')
    corpus = read_corpus([path])
    assert corpus.num_traces == 1
    assert "no UTF-8 text" in corpus.problems[0].why
    assert corpus.problems[0].why.endswith("expected JSON lines, not compressed")
    assert corpus.num_problems == 2


def test_a_line_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 1000)
    path = write(tmp_path / "x.jsonl", [trace([0.5]), "x" * 5000, trace([0.5]), "y" * 999])
    corpus = read_corpus([path])
    assert corpus.num_traces == 2
    assert [(problem.line, problem.why[:23]) for problem in corpus.problems] == [
        (2, "longer than 1000 bytes"),
        (4, "no complete JSON: Expec"),
    ]


def test_problems_are_counted_beyond_those_that_are_named(tmp_path: Path) -> None:
    corpus = read_corpus([write(tmp_path / "x.jsonl", [*["{"] * 100, trace([0.5])])])
    assert corpus.num_problems == 100
    assert len(corpus.problems) == module.PROBLEMS_KEPT


def test_a_broken_file_of_a_folder_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", [trace([0.5])])
    (tmp_path / "2.jsonl").write_bytes(b"")
    write(tmp_path / "3.jsonl", ["{"])
    corpus = read_corpus([tmp_path])
    assert corpus.num_traces == 1
    assert [(Path(problem.path).name, problem.why[:16]) for problem in corpus.problems] == [
        ("2.jsonl", "the file is empt"),
        ("3.jsonl", "no complete JSON"),
    ]
    with pytest.raises(ValueError, match=r"2\.jsonl, line 1: expected JSON lines, got an empty file"):
        read_corpus([tmp_path / "2.jsonl"])


@pytest.mark.parametrize("step", [2.0, 2, None])
def test_a_step_may_be_written_as_pandas_writes_it(tmp_path: Path, step: float | None) -> None:
    record = {"prompt": "a", "response": "b", "reward": 1.0, "step": step}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    assert [own.step for own in read_corpus([tmp_path / "a.jsonl"]).steps] == [step or 0]


def test_a_json_array_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    for indent in (None, 2):
        path.write_text(json.dumps([{"step": 1}, {"step": 2}], indent=indent))
        with pytest.raises(
            ValueError,
            match=r"array\.json: .* got a JSON array; .* jq -c '\.\[\]' \S+/array\.json > \S+/array\.jsonl",
        ):
            read_corpus([path])
    path = path.rename(tmp_path / "array.jsonl")
    with pytest.raises(ValueError, match=r"jq -c '\.\[\]' \S+/array\.jsonl > \S+/array\.lines\.jsonl"):
        read_corpus([path])


def test_paths_without_rollouts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no rollouts here, expected files called \*\.jsonl"):
        read_corpus([tmp_path])
    with pytest.raises(ValueError, match="nothere: no such file or folder"):
        read_corpus([tmp_path / "nothere"])
    with pytest.raises(ValueError, match="expected at least one file"):
        read_corpus([])
    for name in "12":
        (tmp_path / f"{name}.jsonl").touch()
    with pytest.raises(
        ValueError, match=r"1\.jsonl, line 1: the file is empty \(no line of 2 files can be read\)"
    ):
        read_corpus([tmp_path])


def test_only_the_wanted_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [trace([0.5], step=step) for step in range(10)])
    corpus = read_corpus([path], steps=[(2, 3), (7, 7)])
    assert [step.step for step in corpus.steps] == [2, 3, 7]
    with pytest.raises(ValueError, match="steps: expected steps that the files have"):
        read_corpus([path], steps=[(11, 12)])


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [trace([-0.5], uid="a"), trace([-0.4], uid="b")])

    def overwrite(done: int, total: int) -> None:
        if done == total:
            write(path, [trace([-0.5], uid="z"), trace([-0.4], uid="b")])

    corpus = read_corpus([path], show=overwrite)
    assert [group.traces[0].uid for group in corpus.groups] == ["b"]
    assert [problem.why for problem in corpus.problems] == ["changed while the report was made"]


def test_memory_stays_far_below_the_size_of_the_files(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = ["the", "sum", "of", "these", "numbers", "is", "then", "we", "know", "that", "12", "but", "wait"]
    texts = [" ".join(rng.choices(words, k=60)) for _ in range(200)]
    with (tmp_path / "x.jsonl").open("w") as file:
        for i in range(2_500):
            record = trace([rng.uniform(-0.3, 0.3) for _ in range(20)], uid=str(i % 400), text=str(i))
            for segment in record["segments"]:
                segment["text"] += rng.choice(texts)
            file.write(json.dumps(record) + "\n")
    size = (tmp_path / "x.jsonl").stat().st_size
    assert size > 20_000_000
    seen: list[tuple[int, int]] = []
    tracemalloc.start()
    corpus = read_corpus([tmp_path], max_bytes=500_000, show=lambda done, total: seen.append((done, total)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    assert corpus.num_traces == 2_500
    assert sum(corpus.histograms["credit"].counts) == 50_000
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
