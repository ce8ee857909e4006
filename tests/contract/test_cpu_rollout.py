"""The transformers rollout for CPUs on a tiny random model: generator, batcher, weights, server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from rredcot_plugin.integrations.verl_cpu.batching import Batcher
from rredcot_plugin.integrations.verl_cpu.generation import Request, generate_batch
from rredcot_plugin.integrations.verl_cpu.sampling import (
    Sampling,
    choose_tokens,
    processed_log_probs,
    request_uniforms,
    token_budget,
)
from rredcot_plugin.integrations.verl_cpu.weight_update import WeightUpdate

VOCAB = 40
PROMPTS = [(5, 6, 7), (8,), (9, 10, 11, 12, 13, 14), (5, 6, 7), (15, 16)]


def tiny_model(*, tied: bool = False, seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.5,  # peaked, distinct distributions
    )
    return Qwen2ForCausalLM(config).float().eval()


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return tiny_model()


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


@pytest.mark.parametrize("tied", [False, True])
def test_complete_update_copies_every_weight(tied: bool) -> None:
    source, target = tiny_model(tied=tied, seed=1), tiny_model(tied=tied, seed=2)
    update = WeightUpdate(target)
    for name, weight in source.state_dict().items():
        if not (tied and name == "lm_head.weight"):  # shares memory with the embedding
            update.add(name, weight)
    update.finish()
    ids = torch.tensor([PROMPTS[2]])
    torch.testing.assert_close(source(ids).logits, target(ids).logits, rtol=0, atol=0)


def test_incomplete_or_foreign_weights_are_named() -> None:
    state = tiny_model().state_dict()
    update = WeightUpdate(tiny_model())
    with pytest.raises(ValueError, match=r"weight nonsense .* does not exist"):
        update.add("nonsense", torch.zeros(2))
    with pytest.raises(ValueError, match=r"lm_head.weight has shape \(3, 2\), the rollout model \(40, 32\)"):
        update.add("lm_head.weight", torch.zeros(3, 2))
    for name, weight in state.items():
        if name != "model.norm.weight":
            update.add(name, weight)
    with pytest.raises(ValueError, match=r"1 of \d+ weights did not arrive: \['model.norm.weight'\]"):
        update.finish()


def test_batcher_groups_concurrent_requests_in_sorted_order() -> None:
    batches: list[list[int]] = []

    def generate(items: list[int]) -> list[int]:
        batches.append(items)
        return [10 * i for i in items]

    async def main() -> list[int]:
        batcher = Batcher(generate, max_batch=3)
        return await asyncio.gather(*[batcher.submit(i) for i in (4, 1, 3, 2, 0)])

    assert asyncio.run(main()) == [40, 10, 30, 20, 0]
    assert batches == [[0, 1, 2], [3, 4]]


def test_batcher_hands_errors_to_the_requesters() -> None:
    def generate(items: list[int]) -> list[int]:
        if 13 in items:
            raise ArithmeticError("thirteen")
        return items

    async def main() -> None:
        batcher = Batcher(generate, max_batch=4)
        with pytest.raises(ArithmeticError, match="thirteen"):
            await batcher.submit(13)
        assert await batcher.submit(1) == 1

    asyncio.run(main())


def test_batcher_pause_and_resume() -> None:
    async def main() -> None:
        def generate(items: list[int]) -> list[str]:
            while not batcher.is_aborting():
                time.sleep(0.001)
            return ["partial"] * len(items)

        batcher = Batcher(generate, max_batch=1)
        running = asyncio.create_task(batcher.submit(1))
        waiting = asyncio.create_task(batcher.submit(2))
        while not batcher.lock.locked():
            await asyncio.sleep(0.001)
        await batcher.abort(reject=True)
        assert (await running, await waiting) == ("partial", None)
        assert await batcher.submit(3) is None
        await batcher.abort(reject=False)
        held = asyncio.create_task(batcher.submit(4))
        await asyncio.sleep(0.01)
        assert not held.done()
        batcher._generate = lambda items: ["full"] * len(items)
        batcher.resume()
        assert await held == "full"

    asyncio.run(main())


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t3", pad_token="t0").save_pretrained(path)
    saved = tiny_model()
    saved.generation_config.eos_token_id = [4, 5]
    saved.save_pretrained(path)
    return path


def test_server_repeats_itself_after_a_restart(model_dir: Path) -> None:
    from omegaconf import OmegaConf
    from verl.workers.config import RolloutConfig

    from rredcot_plugin.integrations.verl_cpu.hf_server import HFServer

    config = RolloutConfig(
        name="hf_cpu",
        prompt_length=16,
        response_length=8,
        max_num_seqs=4,
        dtype="float32",
        seed=7,
        max_model_len=24,
    )
    model_config = OmegaConf.create({"_target_": "verl.workers.config.HFModelConfig", "path": str(model_dir)})
    weights = list(tiny_model(seed=5).state_dict().items())
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "repetition_penalty": 1.0}

    async def wave(server: HFServer, order: Sequence[int]) -> list[tuple[int, ...]]:
        outputs = await asyncio.gather(*[server.generate(list(PROMPTS[i]), params, f"id{i}") for i in order])
        assert all(o.extra_fields["global_steps"] == server.global_steps for o in outputs)
        assert all(o.stop_reason == "completed" and len(o.log_probs) == len(o.token_ids) for o in outputs)
        return sorted(tuple(o.token_ids) for o in outputs)

    async def update(server: HFServer, version: int) -> None:
        await server.begin_weights()
        await server.load_weights(weights)
        await server.finish_weights(version)

    async def life(versions: Sequence[int]) -> list[list[tuple[int, ...]]]:
        server = HFServer(config, model_config, 0)
        assert server.eos_ids == {3, 4, 5}
        with pytest.raises(RuntimeError, match="before it had received a full set of weights"):
            await server.generate([5], params, "early")
        waves = []
        for version in versions:
            await update(server, version)
            waves += [await wave(server, range(5)), await wave(server, [4, 2, 0, 1, 3])]
        return waves

    whole, resumed = asyncio.run(life([1, 2])), asyncio.run(life([2]))
    assert whole[2:] == resumed
    assert len({tuple(w) for w in whole}) == 4  # no wave repeats another
