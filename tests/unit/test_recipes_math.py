"""recipes/math: the reward, the data preparation, and every script's overrides against verl's own configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rredcot_plugin.dry_run.batches import check_batches
from rredcot_plugin.dry_run.errors import RecipeError
from tests.unit.recipe_scripts import (
    RECIPES,
    Argv,
    Compose,
    argv_reader,
    check,
    let_vllm_know_ranks,
    load,
    verls_configuration,
)

MATH = RECIPES / "math"
SCRIPTS = sorted([*MATH.glob("run_*.sh"), *MATH.glob("*.sbatch")])

reward = load(MATH / "reward.py", "reward")  # under this name prepare_data finds it
prepare_data = load(MATH / "prepare_data.py", "prepare_data")
math_problems = sys.modules["math_problems"]  # which prepare_data has imported


def score(text: str, truth: str) -> float:
    return reward.compute_score("any", text, truth)["score"]


def boxed(answer: str) -> str:
    return f"Therefore it is $\\boxed{{{answer}}}$."


# ---- reward -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("4", "4"),
        ("4", "4.0"),
        ("033", "33"),
        ("1000", "1,000"),
        ("1000000", "1\\,000\\,000"),
        ("1000", "1 000"),
        ("-3", "\N{MINUS SIGN}3"),
        ("\\frac{1}{2}", "0.5"),
        ("\\frac12", "\\dfrac{1}{2}"),
        ("1/2", "\\frac{2}{4}"),
        ("4", "x = 4"),
        ("5", "2 + 3 = 5"),
        ("50\\%", "50"),
        ("50", "50\\%"),
        ("50\\%", "0.5"),
        ("72", "72 \\text{ apples}"),
        ("72", "\\$72"),
        ("90", "90^\\circ"),
        ("\\{1, 2\\}", "2, 1"),
        ("(1, 2)", "\\left( 1,\\, 2 \\right)"),
        ("x^2+2x+1", "(x+1)^2"),
        ("\\text{(A)}", "A"),
        ("\\text{Monday}", "\\text{monday}"),
    ],
)
def test_equal_answers_score(truth: str, answer: str) -> None:
    assert score(boxed(answer), truth) == 1.0


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("4", "42"),
        ("4", "4 or 5"),
        ("4", "4, 5"),
        ("5", "4 = 5"),
        ("5", "x = 4 = 5"),
        ("6", "4 = 5 = 6"),
        ("4", "4 \\text{ or } 5"),
        ("4", "\\{4, 5\\}"),
        ("4", "4 \\lor 5"),
        ("45", "4 \\quad 5"),
        ("43", "4 3"),
        ("7", "4 3"),
        ("2", "\\pm 2"),
        ("4", "x"),
        ("(1, 2)", "[1, 2]"),
        ("4", ""),
        ("4", "\\frac{4}"),
    ],
)
def test_other_answers_do_not_score(truth: str, answer: str) -> None:
    assert score(boxed(answer), truth) == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{3}, no: \\boxed{4}", "4"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed {4}", "4"),
        ("\\fbox{4}", "4"),
        ("#### 3\nwait\n#### 4\n", "4"),
        ("The answer is 4.5. Done.", "4.5"),
        ("So the final answer is: 4", "4"),
        ("\\boxed{4}\n#### 5", "4"),
        ("<think>\\boxed{3}</think>It is \\boxed{4}.", "4"),
        ("\\boxed{3}</think>#### 4", "4"),
        ("\\boxed{4} or \\boxed{5}", "4, 5"),
        ("$\\boxed{4}$ and $\\boxed{4}$", "4"),
        ("<think>\\boxed{3}", None),
        ("<think>\\boxed{3}</think>It is clear.", None),
        ("\\boxed{3} so \\boxed{4", None),
        ("\\boxed{" + "1" * 400 + "}", None),
        ("It is 4.", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_final_answer_is_found(text: str, answer: str | None) -> None:
    assert reward.extract_answer(text) == answer


def test_joined_boxes_are_one_answer() -> None:
    assert score("\\boxed{4} or \\boxed{5}", "5") == 0.0
    assert score("\\boxed{4} or \\boxed{5}", "4, 5") == 1.0
    assert score("\\boxed{4}. No, it is \\boxed{5}", "5") == 1.0


def test_values_are_plain_and_always_there() -> None:
    found = reward.compute_score("any", boxed("4"), "4", {"index": 1}, reward_router_address=None)
    missing = reward.compute_score("any", "no idea", "4")
    assert found == {"score": 1.0, "acc": 1.0, "format": 1.0, "pred": "4"}
    assert missing == {"score": 0.0, "acc": 0.0, "format": 0.0, "pred": ""}


@pytest.mark.parametrize("truth", ["", "  ", None, 4])
def test_a_broken_ground_truth_is_named(truth: Any) -> None:
    with pytest.raises(ValueError, match="ground_truth: got"):
        reward.compute_score("any", boxed("4"), truth)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000,
        "}" * 100_000,
        "\\boxed{" * 14_000,
        "\\boxed{}" * 12_000,
        "$\\boxed{4}$ or " * 7_000,
        "####" * 25_000,
        "The answer is" * 8_000,
        "<think>" * 14_000 + "</think>" * 12_000,
        boxed("(" * 140 + ")" * 140),
        boxed("{" * 140 + "}" * 140),
        "\ud800\x00\\boxed{\ud800\x00}",
        boxed("__import__('os').system('touch /tmp/rredcot_was_here')"),
    ],
    ids=range(12),
)
def test_hostile_text_is_quick_and_worth_nothing(text: str) -> None:
    score(boxed("\\frac{1}{2}"), "0.5")  # a worker has been started
    started = time.monotonic()
    assert score(text, "7") == 0.0
    assert time.monotonic() - started < 2.0
    assert not Path("/tmp/rredcot_was_here").exists()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "TIMEOUT_SECONDS", 1.0)
    score(boxed("\\frac{1}{2}"), "0.5")


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "\\prod_{k=1}^{99999999} k", "10000000!!"])
@pytest.mark.usefixtures("short_limit")
def test_endless_comparisons_are_cut_off_and_the_next_one_works(answer: str) -> None:
    started = time.monotonic()
    assert score(boxed(answer), "3") == 0.0
    assert time.monotonic() - started < 15.0
    assert score(boxed("\\frac{6}{2}"), "3") == 1.0


def test_a_worker_that_was_killed_is_replaced() -> None:
    worker = load(MATH / "answer_workers.py", "answer_workers").Worker()
    assert worker.ask({"gold": "3", "answer": "\\frac{6}{2}"}, 30) is True
    worker._process.kill()
    worker._process.wait()
    assert worker.ask({"gold": "3", "answer": "\\frac{6}{2}"}, 30) is True
    worker.stop()


def test_it_works_in_threads_many_at_once() -> None:
    assert threading.current_thread() is threading.main_thread()
    cases = [(boxed(f"\\frac{{{2 * i}}}{{2}}"), str(i + i % 2)) for i in range(1, 41)]
    with ThreadPoolExecutor(max_workers=16) as executor:
        scores = list(executor.map(lambda case: score(*case), cases))
    assert scores == [float(i % 2 == 0) for i in range(1, 41)]


def test_it_goes_through_verls_reward_manager() -> None:
    """verl's naive manager: in an executor thread, `score` as the reward, the dict as extra info."""
    import asyncio

    import torch
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    class Tokenizer:
        def decode(self, ids: torch.Tensor, skip_special_tokens: bool) -> str:
            return bytes(ids.tolist()).decode()

    async def run() -> dict[str, Any]:
        manager = NaiveRewardManager.__new__(NaiveRewardManager)
        manager.tokenizer, manager.compute_score = Tokenizer(), reward.compute_score  # type: ignore[assignment]
        manager.is_async_reward_score, manager.reward_router_address = False, None
        manager.loop = asyncio.get_running_loop()
        ids = torch.tensor([list(boxed("\\frac{8}{2}").encode())])
        tensors = TensorDict({"responses": ids, "attention_mask": torch.ones_like(ids)}, batch_size=1)
        info = {"data_source": "any", "reward_model": {"ground_truth": "4"}, "extra_info": {}}
        data = DataProto.from_dict(dict(tensors.items()), non_tensors={k: _objects([v]) for k, v in info.items()})
        return await manager.run_single(data)

    result = asyncio.run(run())
    assert result["reward_score"] == 1.0
    assert result["reward_extra_info"] == {"score": 1.0, "acc": 1.0, "format": 1.0, "pred": "\\frac{8}{2}"}


def _objects(values: list[Any]) -> Any:
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


LOADED_BY_PATH = """
import sys
from verl.utils.import_utils import load_extern_object
score = load_extern_object(sys.argv[1], "compute_score")
assert score("any", "\\\\boxed{\\\\frac{2}{4}}", "1/2")["score"] == 1.0
assert not {"answer_workers", "math_problems", "prepare_data"} & set(sys.modules)
"""


def test_verl_loads_it_by_its_path_alone(tmp_path: Path) -> None:
    """As a Ray worker does: another working folder, and nothing of the recipe on the import path."""
    arguments = [sys.executable, "-c", LOADED_BY_PATH, str(MATH / "reward.py")]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reward_that_was_copied_alone_says_what_is_missing(tmp_path: Path) -> None:
    copy = tmp_path / "reward.py"
    copy.write_text((MATH / "reward.py").read_text())
    with pytest.raises(ImportError, match=r"answer_workers.py belongs beside reward.py"):
        load(copy, "lonely_reward")


def test_the_files_of_the_recipes_stay_small() -> None:
    for path in RECIPES.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, path


def test_the_reward_needs_nothing_but_math_verify() -> None:
    code = "import sys, reward; assert not {'torch', 'verl', 'rredcot_plugin', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=MATH, check=True)


# ---- data -------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("lines", "more", "message"),
    [
        (['{"problem": "a", "answer": "1"}', "", '{"problem": "b"}'], (), "line 3: no answer and no solution"),
        (['{"text": "a", "answer": "1"}'], (), "line 1: none of the columns question, problem"),
        (['{"problem": "a", "answer": "1"}'], ("--answer-column", "label"), "line 1: no column 'label'"),
        (['{"problem": "a", '], (), "line 1: no JSON"),
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


# ---- scripts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def argv_of(tmp_path_factory: pytest.TempPathFactory) -> Argv:
    return argv_reader(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    with verls_configuration() as build:
        yield build


@pytest.fixture
def vllm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    let_vllm_know_ranks(monkeypatch)


@pytest.mark.usefixtures("vllm_ranks")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_composes_with_verls_configuration(script: Path, argv_of: Argv, compose: Compose) -> None:
    from rredcot_plugin.integrations.verl.settings import read_settings, why_not_in_pass

    config = compose(argv_of(script))
    check(config)
    assert config.algorithm.adv_estimator == "rredcot"
    assert Path(config.reward.custom_reward_function.path).is_file()
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    settings = read_settings(config)
    settings.build_segmenter()
    settings.build_value_estimator()
    assert (why_not_in_pass(config) is None) == ("megatron" not in script.name)


@pytest.mark.usefixtures("vllm_ranks")
def test_the_baseline_composes_and_overrides_come_last(argv_of: Argv, compose: Compose) -> None:
    script = MATH / "run_qwen3_4b_fsdp2_vllm.sh"
    config = compose(argv_of(script, "trainer.project_name=last", ADV_ESTIMATOR="grpo"))
    check(config)
    assert (config.algorithm.adv_estimator, config.trainer.project_name) == ("grpo", "last")
    assert "rredcot" not in config.algorithm


def test_these_checks_see_mistakes(argv_of: Argv, compose: Compose) -> None:
    from hydra.errors import ConfigCompositionException

    script = MATH / "run_qwen3_4b_fsdp2_vllm.sh"
    with pytest.raises(ConfigCompositionException):
        compose([*argv_of(script), "actor_rollout_ref.actor.ppo_mini_batchsize=32"])
    with pytest.raises(RecipeError, match="train_batch_size = 60 is not a multiple"):
        check_batches(compose(argv_of(script, TRAIN_BATCH_SIZE="60")))


def test_the_baseline_differs_in_the_estimator_only(argv_of: Argv) -> None:
    for script in SCRIPTS:
        ours, baseline = argv_of(script), argv_of(script, ADV_ESTIMATOR="grpo")
        ours = [item for item in ours if not item.startswith("+algorithm.rredcot")]
        assert [item.replace("rredcot", "grpo") for item in ours] == [
            item.replace("rredcot", "grpo") for item in baseline
        ], script.name


def test_several_nodes(argv_of: Argv, compose: Compose) -> None:
    config = compose(argv_of(MATH / "run_qwen3_4b_fsdp2_vllm_multinode.sh", NNODES="4"))
    assert (config.trainer.nnodes, config.data.train_batch_size) == (4, 256)
    check_batches(config)


def test_multinode_without_a_cluster_says_so(tmp_path: Path) -> None:
    script = MATH / "run_qwen3_4b_fsdp2_vllm_multinode.sh"
    done = subprocess.run(["bash", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no Ray cluster answers" in done.stderr


def test_every_script_is_executable_and_on_the_page() -> None:
    page = (MATH / "README.md").read_text()
    for script in SCRIPTS:
        assert f"({script.name})" in page, script.name
        assert script.suffix == ".sbatch" or os.access(script, os.X_OK), script.name


def test_links_of_the_pages_lead_somewhere() -> None:
    import re

    for page in (RECIPES / "README.md", MATH / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
