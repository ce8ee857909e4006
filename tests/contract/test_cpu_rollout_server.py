"""Weights that reach the CPU rollout, its batcher and its server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from rredcot_plugin.integrations.cpu.batching import Batcher
from rredcot_plugin.integrations.verl_cpu.weight_update import WeightUpdate
from tests.contract.cpu_models import (
    PROMPTS,
    VOCAB,
    model,  # noqa: F401  fixtures
    tiny_model,
)


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
