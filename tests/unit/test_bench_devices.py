"""Benchmarks on a GPU: what can be shown of it without one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import lab.rollouts
import learn.trainer
import learning
from grads.tree import inverted
from lab.devices import use_matmul
from lab.lm.tasks import LM_FAMILIES
from lab.rollouts import Actor
from lab.sampling import SMALL_VOCABULARY, _sample, draw_tokens, sample_at_fixed_addresses
from lab.tasks import FAMILIES
from learn.fast_sampling import folded
from learn.runs import load
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.learning_cases import run_of, small_plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_device_that_is_not_there_is_named() -> None:
    for script, more in (("learning.py", ["--systems", "grpo"]), ("gradient.py", []), ("fidelity.py", [])):
        command = [sys.executable, str(BENCHMARKS / script), "--quick", "--device", "cuda", *more]
        done = subprocess.run(
            command, capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}, check=False
        )
        assert done.returncode == 1 and "--device cuda" in done.stderr and "use --device cpu" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("asked", [["--against-verl"], ["--systems", "grpo", "red"]])
def test_what_knows_no_gpu_is_refused(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", "--device", "cuda", *asked])
    with pytest.raises(SystemExit, match="2"):
        learning.parse_arguments()
    assert "--device cuda: " in capsys.readouterr().err


def test_runs_on_a_gpu_are_runs_of_their_own() -> None:
    plan = replace(small_plan(), device="cuda")
    here, there = small_plan().tuning({}), plan.tuning({})
    assert [run.device for run in there] == ["cuda"] * len(here) and "device" not in here[0].identity
    assert not {run.file for run in here} & {run.file for run in there}


def test_products_in_bfloat16_are_runs_of_their_own_and_another_arithmetic() -> None:
    plan = replace(small_plan(), matmul="bfloat16")
    here, there = small_plan().tuning({}), plan.tuning({})
    assert [run.matmul for run in there] == ["bfloat16"] * len(here) and "matmul" not in here[0].identity
    assert not {run.file for run in here} & {run.file for run in there}
    one, other = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0)).unbind()
    exact = one @ other
    try:
        use_matmul("cpu", "bfloat16")
        assert torch.get_float32_matmul_precision() == "medium" and not torch.backends.cuda.flash_sdp_enabled()
        assert float(((one @ other) - exact).abs().max()) < 0.2
    finally:
        use_matmul("cpu", "float32")
    assert torch.backends.cuda.flash_sdp_enabled() and torch.equal(one @ other, exact)


@pytest.mark.parametrize("other", [["--device", "cuda"], ["--against-verl"]])
def test_rounded_products_are_refused_where_they_do_not_exist(
    other: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", "--matmul", "bfloat16", "--systems", "grpo", *other])
    with pytest.raises(SystemExit, match="2"):
        learning.parse_arguments()
    assert "--matmul bfloat16: for --device cpu alone" in capsys.readouterr().err


def test_a_full_gpu_is_no_result_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 348 MiB.\nmore")

    monkeypatch.setattr(learn.trainer.LeanTrainer, "__init__", full)
    monkeypatch.setattr(sys, "argv", ["learning.py", "--quick", "--cache", str(tmp_path)])
    with pytest.raises(
        SystemExit, match=r"--jobs 1: .*use fewer, the same command goes on .*Tried to allocate 348 MiB\.\)"
    ):
        learning.main()
    assert load(tmp_path / "quick", run_of("grpo")) is None and not list(tmp_path.rglob("*.json"))


def test_sampling_at_fixed_addresses_is_sampling() -> None:
    """All but the capture itself, which needs a GPU: every call fills the same tables again, with rows to spare."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=97, tie_word_embeddings=True, eos_token_id=5,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.model.embed_tokens.weight.data *= 300  # so sharp that all draws agree
    prefixes, budgets = [(1, 2, 3), (9, 8, 7, 6, 1, 4, 3), (11,), (9, 8, 7)], [20, 50, 40, 1]
    [[row], *_] = _sample(model, prefixes, budgets, 1, torch.Generator())
    model.config.eos_token_id = row[7]
    for order in (slice(None), slice(None, None, -1)):
        asked = prefixes[order], budgets[order], 3
        with torch.inference_mode():
            expected = _sample(model, *asked, torch.Generator().manual_seed(0))
            found = sample_at_fixed_addresses(model, *asked, torch.Generator().manual_seed(1))
            with folded(model):
                again = sample_at_fixed_addresses(model, *asked, torch.Generator().manual_seed(2))
        assert found == expected and again == expected
        lengths = [len(own[0]) for own in found][order]
        assert lengths[0] < 20 and lengths[-1] == 1 and max(lengths) > 20


def test_tokens_of_a_large_vocabulary_have_their_distribution() -> None:
    likely = {7: 0.5, 4000: 0.3, SMALL_VOCABULARY + 1: 0.2}
    probs = torch.zeros(1, SMALL_VOCABULARY + 2)
    probs[0, list(likely)] = torch.tensor(list(likely.values()))
    drawn = draw_tokens(probs.expand(20_000, -1), torch.Generator().manual_seed(0))
    assert drawn.shape == (20_000, 1)
    shares = drawn[:, 0].bincount(minlength=probs.shape[1]) / len(drawn)
    assert float((shares - probs[0]).abs().max()) < 0.02 and float(shares[list(likely)].sum()) == pytest.approx(1)


def test_counts_read_off_cumulated_probabilities_have_their_distribution() -> None:
    torch.manual_seed(0)
    logits, count = torch.randn(3, 9) * 2, np.array([20_000, 1, 40_000])
    logits[0, 4] = -torch.inf
    parent, token, taken = inverted(logits, count, np.random.default_rng(0))
    assert [int(taken[parent == row].sum()) for row in range(3)] == count.tolist()
    assert not ((parent == 0) & (token == 4)).any()
    for row in (0, 2):
        found = np.zeros(9)
        found[token[parent == row]] = taken[parent == row] / count[row]
        expected = logits[row].double().softmax(-1).numpy()
        assert (np.abs(found - expected) < 5 * np.sqrt(expected / count[row]) + 1e-12).all()
    again = inverted(logits, count, np.random.default_rng(0))
    assert all((one == other).all() for one, other in zip((parent, token, taken), again, strict=True))


def test_the_sandbox_is_asked_ahead_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    family = LM_FAMILIES["functions"]
    [question] = family.problems("val", 1, 1)
    asked: list[str] = []
    counted = replace(family, accepts=lambda _, code: asked.append(code) is None)
    monkeypatch.setattr(lab.rollouts.Actor, "text", lambda _, tokens: f"def f(xs): return {tokens[0]}")
    actor = Actor(counted, None, None)
    actor.judge_ahead([question, question], [[[1], [2]], [[3]]])
    assert sorted(asked) == [f"def f(xs): return {i}" for i in (1, 2, 3)]
    sums = Actor(replace(FAMILIES["sums"], accepts=lambda *_: asked.append("") is None), None, None)
    sums.judge_ahead([question], [[[1]]])
    assert len(asked) == 3, "an answer in words takes no time"
