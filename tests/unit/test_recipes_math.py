"""recipes/math: the reward, the data preparation, and every script's overrides against verl's own configuration."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.math_recipe import MATH
from tests.unit.recipe_scripts import (
    RECIPES,
    load,
)

reward = load(MATH / "reward.py", "reward")  # under this name prepare_data finds it


def score(text: str, truth: str) -> float:
    return reward.compute_score("any", text, truth)["score"]


def cpu_seconds() -> float:
    """Of this process and of the workers that compare, alive or not."""
    times = [psutil.Process().cpu_times()]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(child.cpu_times())
    return sum(time.user + time.system for time in times) + times[0].children_user + times[0].children_system


def boxed(answer: str) -> str:
    return f"Therefore it is $\\boxed{{{answer}}}$."


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
        ("90", "90\N{DEGREE SIGN}"),
        ("90\N{DEGREE SIGN}", "90^{\\circ}"),
        ("(-\\infty, 3]", "(-\N{INFINITY}, 3]"),
        ("6", "2\N{MIDDLE DOT}3"),
        ("\\{1, 2\\}", "2, 1"),
        ("(1, 2)", "\\left( 1,\\, 2 \\right)"),
        ("x^2+2x+1", "(x+1)^2"),
        ("\\text{(A)}", "A"),
        ("\\text{Monday}", "\\text{monday}"),
        ("\\log_{2}{3}", "\\log_2 3"),
        ("\\log_2(3)", "\\log_2 3"),
        ("\\frac{\\ln 3}{\\ln 2}", "\\log _2 3"),
        ("\\frac{1}{2}", "\\frac 1 2"),
        ("2.5", "2 \\tfrac1 2"),
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
        ("8", "\\log_2 3 8"),
        ("1.5", "\\frac 1 2 3"),
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
        ("The answer is **5**.", "5"),
        ("**The answer is 5.**", "5"),
        ("**The answer is:** `5`", "5"),
        ("#### **5**\n", "5"),
        ("#### \\[5\\]", "$5$"),
        ("The answer is: \\[5\\] or \\[6\\]", "$5$ or $6$"),
        ("The answer is:\n$$\n5\n$$\nwhich was asked for", "$5$"),
        ("The answer is 2**3 * x * y", "2**3 * x * y"),
        ("The answer is ____.", None),
        ("#### **" + "1" * 400, None),
        ("It is **$\\boxed 5$**", "5"),
        ("\\boxed -1,000.5.", "-1,000.5"),
        ("\\boxed 4 or \\boxed{5}", "4, 5"),
        ("\\boxed 5x", None),
        ("\\boxed 5 + 3", None),
        ("\\boxed 5\\sqrt{2}", None),
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
        "The answer is" + "**" * 40_000,
        "#### " + "\\[*" * 30_000,
        "\\boxed " * 14_000,
        "<think>" * 14_000 + "</think>" * 12_000,
        boxed("(" * 140 + ")" * 140),
        boxed("{" * 140 + "}" * 140),
        "\ud800\x00\\boxed{\ud800\x00}",
        boxed("__import__('os').system('touch /tmp/rredcot_was_here')"),
    ],
    ids=range(15),
)
def test_hostile_text_is_quick_and_worth_nothing(text: str) -> None:
    score(boxed("\\frac{1}{2}"), "0.5")  # a worker has been started
    before = cpu_seconds()
    assert score(text, "7") == 0.0
    assert cpu_seconds() - before < 2.0
    assert not Path("/tmp/rredcot_was_here").exists()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "TIMEOUT_SECONDS", 1.0)
    score(boxed("\\frac{1}{2}"), "0.5")


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "\\prod_{k=1}^{99999999} k", "10000000!!"])
@pytest.mark.usefixtures("short_limit")
def test_endless_comparisons_are_cut_off_and_the_next_one_works(answer: str) -> None:
    before = cpu_seconds()
    assert score(boxed(answer), "3") == 0.0
    assert cpu_seconds() - before < 15.0
    assert score(boxed("\\frac{6}{2}"), "3") == 1.0


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
assert not {"answer_workers", "final_answer", "math_problems", "prepare_data"} & set(sys.modules)
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
    with pytest.raises(ImportError, match=r"put answer_workers.py beside reward.py"):
        load(copy, "lonely_reward")


def test_the_files_of_the_recipes_stay_small() -> None:
    for path in RECIPES.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, path


def test_the_reward_needs_nothing_but_math_verify() -> None:
    code = "import sys, reward; assert not {'torch', 'verl', 'rredcot_plugin', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=MATH, check=True)
