"""The transformers rollout for CPUs on a tiny random model: generator, batcher, weights, server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, Qwen2ForCausalLM
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from rredcot_plugin.integrations.cpu.generation import Request, generate_batch
from rredcot_plugin.integrations.cpu.sampling import (
    Sampling,
    choose_tokens,
    processed_log_probs,
    request_uniforms,
    token_budget,
)
from tests.contract.cpu_models import (
    PROMPTS,
    VOCAB,
    model,  # noqa: F401  fixtures
    tiny_model,
)


def request(prompt: Sequence[int], budget: int = 12, occurrence: int = 0, **sampling: Any) -> Request:
    params = Sampling(**sampling)
    uniforms = request_uniforms(
        budget, seed=1, replica=0, version=3, prompt=prompt, sampling=params, occurrence=occurrence
    )
    return Request(tuple(prompt), params, uniforms)


def fresh_log_probs(
    model: Any, prompt: Sequence[int], response: Sequence[int], sampling: Sampling
) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    log_probs = processed_log_probs(logits, [sampling] * len(response))
    return log_probs.gather(1, torch.tensor(response)[:, None]).squeeze(1)


def test_greedy_equals_transformers_generate(model: Qwen2ForCausalLM) -> None:
    ours = generate_batch(model, [request(p, temperature=0.0) for p in PROMPTS], eos_ids={3})
    for prompt, result in zip(PROMPTS, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=3,
            pad_token_id=0,
        )
        assert result.token_ids == theirs[0, len(prompt) :].tolist()


def test_batch_mates_do_not_matter() -> None:
    model = (
        tiny_model().double()
    )  # in float32 another batch takes other kernels, which round otherwise on each processor
    requests = [request(p, occurrence=i, budget=4 + 3 * i) for i, p in enumerate(PROMPTS)]
    together = generate_batch(model, requests, eos_ids={3, 4})
    for i, alone in enumerate(requests):
        (result,) = generate_batch(model, [alone], eos_ids={3, 4})
        assert result.token_ids == together[i].token_ids
        np.testing.assert_allclose(result.log_probs, together[i].log_probs, atol=1e-5)
    reversed_order = generate_batch(model, requests[::-1], eos_ids={3, 4})
    assert [g.token_ids for g in reversed_order[::-1]] == [g.token_ids for g in together]


def test_finished_rows_leave_the_cache(model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    select = DynamicCache.batch_select_indices
    monkeypatch.setattr(
        DynamicCache, "batch_select_indices", lambda self, keep: (sizes.append(len(keep)), select(self, keep))[1]
    )
    requests = [request(PROMPTS[0], budget=b, occurrence=b) for b in (2, 2, 5, 9)]
    results = generate_batch(model, requests, eos_ids=())
    assert [len(g.token_ids) for g in results] == [2, 2, 5, 9]
    assert sizes == [2, 1]


def test_same_arguments_same_numbers_and_every_argument_counts() -> None:
    base = {"seed": 1, "replica": 0, "version": 2, "prompt": (3, 4), "sampling": Sampling(), "occurrence": 0}
    other = {
        "seed": 2,
        "replica": 1,
        "version": 3,
        "prompt": (3, 5),
        "sampling": Sampling(temperature=0.5),
        "occurrence": 1,
    }
    reference = request_uniforms(6, **base)  # type: ignore[arg-type]
    np.testing.assert_array_equal(reference, request_uniforms(6, **base))  # type: ignore[arg-type]
    np.testing.assert_array_equal(reference[:3], request_uniforms(3, **base))  # type: ignore[arg-type]
    for key, value in other.items():
        assert not np.array_equal(reference, request_uniforms(6, **{**base, key: value})), key  # type: ignore[arg-type]


def test_any_eos_id_ends_a_response_and_is_part_of_it(model: Qwen2ForCausalLM) -> None:
    (free,) = generate_batch(model, [request(PROMPTS[0])], eos_ids=())
    assert (free.finish, len(free.token_ids)) == ("length", 12)
    absent = next(i for i in range(VOCAB) if i not in free.token_ids)
    for stop in set(free.token_ids):
        first = free.token_ids.index(stop)
        (result,) = generate_batch(model, [request(PROMPTS[0])], eos_ids={absent, stop})
        assert result.token_ids == free.token_ids[: first + 1]
        assert (result.finish, len(result.log_probs)) == ("stop", first + 1)
    # `ignore_eos` enters the seed, hence only the length can be compared
    (ignoring,) = generate_batch(model, [request(PROMPTS[0], ignore_eos=True)], eos_ids=range(VOCAB))
    assert (ignoring.finish, len(ignoring.token_ids)) == ("length", 12)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 0.9, "top_k": 7, "top_p": 0.6},
        {"temperature": 0.0},
    ],
)
def test_log_probs_equal_a_fresh_forward(model: Qwen2ForCausalLM, sampling: dict[str, float]) -> None:
    requests = [request(p, **sampling) for p in PROMPTS]
    for r, result in zip(requests, generate_batch(model, requests, eos_ids={3}), strict=True):
        expected = fresh_log_probs(model, r.prompt, result.token_ids, r.sampling)
        torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (-1, 0.7), (6, 0.5), (1, 0.1), (0, 1.0)])
def test_truncation_equals_transformers_warpers(top_k: int, top_p: float) -> None:
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    warpers = LogitsProcessorList()
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    expected = warpers(None, logits / 0.8).log_softmax(-1)
    ours = processed_log_probs(logits, [Sampling(temperature=0.8, top_k=top_k, top_p=top_p)] * 8)
    torch.testing.assert_close(ours, expected)


def test_drawn_frequencies_are_the_probabilities() -> None:
    probs = torch.tensor([0.5, 0.0, 0.2, 0.3])
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    drawn = choose_tokens(probs.log().expand(1000, 4), uniforms, [Sampling()] * 1000)
    assert drawn.bincount(minlength=4).tolist() == [500, 0, 200, 300]


def test_abort_returns_what_there_is(model: Qwen2ForCausalLM) -> None:
    answers = iter([False, False, False, True])
    results = generate_batch(model, [request(p) for p in PROMPTS], eos_ids=(), aborted=lambda: next(answers))
    assert [(g.finish, len(g.token_ids)) for g in results] == [("abort", 3)] * len(PROMPTS)


def test_budget_and_parameters_of_a_request() -> None:
    sizes = {"prompt_length": 10, "response_length": 20, "max_len": 40}
    assert token_budget({}, prompt=8, **sizes) == 20
    assert token_budget({}, prompt=15, **sizes) == 15
    assert token_budget({"max_tokens": 3}, prompt=15, **sizes) == 3
    assert token_budget({"max_new_tokens": 99}, prompt=15, **sizes) == 25
    with pytest.raises(ValueError, match="40 tokens leaves no room in max_model_len=40"):
        token_budget({}, prompt=40, **sizes)
    with pytest.raises(ValueError, match="min_p"):
        Sampling.from_request({"min_p": 0.1}, ignore_eos=False)
    with pytest.raises(ValueError, match=r"repetition_penalty=1\.2"):
        Sampling.from_request({"repetition_penalty": 1.2}, ignore_eos=False)
    with pytest.raises(ValueError, match=r"top_p=0\.0"):
        Sampling(top_p=0.0)
