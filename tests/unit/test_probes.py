"""Probes: all backends give the numbers of independent forwards; nothing leaks between probes and trunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rredcot_plugin.probes import (
    build_layout,
    capture_trunk,
    forward_batched,
    forward_packed,
    forward_probes,
    probe_log_probs,
)
from rredcot_plugin.probes.fork_attention import plan_fork
from rredcot_plugin.probes.kernels import AttentionOptions, additive_mask
from rredcot_plugin.probes.trunk_attention import BLOCK_SIZE, trunk_attention
from tests.unit.probe_models import SHAPES, VOCAB_SIZE, WINDOW, random_ids, tiny_model
from tests.unit.probed_rows import PROBES, ROW_PROBES, ROW_TOKENS, TRACE, captured_log_probs, padded_trunk

TOLERANCE = 1e-5


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def naive_log_prob(model: nn.Module, prefix: list[int], counted: list[int], temperature: float) -> float:
    """One plain forward and a Python loop: what every backend must equal."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prefix + counted])).logits[0]
    table = torch.log_softmax(logits.double() / temperature, dim=-1)
    return sum(float(table[len(prefix) + i - 1, token]) for i, token in enumerate(counted))


@pytest.mark.parametrize("bridge", [[], [11, 12, 13]], ids=["no_bridge", "bridge"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", SHAPES)
def test_backends_equal_independent_forwards(shape: str, attention: str, bridge: list[int]) -> None:
    model = tiny_model(shape, attention)
    boundaries = [40, 1, WINDOW, WINDOW + 1, 22] + ([0] if bridge else [])
    expected = torch.tensor([
        [naive_log_prob(model, TRACE[:b] + bridge, probe, 0.7) for probe in PROBES] for b in boundaries
        if b + len(bridge) > 0
    ])  # fmt: skip
    for backend in ("cached", "packed", "batched"):
        actual = probe_log_probs(model, TRACE, boundaries, PROBES, backend, bridge=bridge, temperature=0.7)
        assert actual.shape == (len(boundaries), len(PROBES))
        assert actual.dtype == torch.float32
        close(actual, expected)


def packed_trunk() -> tuple[dict[str, Tensor], list[tuple[int, int, int]]]:
    """All rows in one sequence: transformers finds the rows by their position ids."""
    starts = [0, 23, 29, 60]
    spans = [(0, start, end) for start, end in pairwise(starts)]
    positions = torch.cat([torch.arange(len(tokens)) for tokens in ROW_TOKENS])
    ids = torch.tensor([token for tokens in ROW_TOKENS for token in tokens])
    return {"input_ids": ids[None], "position_ids": positions[None]}, spans


@pytest.mark.parametrize("trunk", ["left", "right", "packed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_rows_in_every_trunk_layout(shape: str, trunk: str) -> None:
    model = tiny_model(shape)
    inputs, spans = packed_trunk() if trunk == "packed" else padded_trunk(trunk)
    with torch.no_grad():
        plain_logits = model(**inputs, use_cache=False).logits
    logits, actual = captured_log_probs(model, inputs, spans)
    assert torch.equal(logits, plain_logits)
    close(actual, forward_batched(model, ROW_PROBES, ROW_TOKENS, 0.7, max_tokens=64))


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_backend_on_several_rows(shape: str) -> None:
    model = tiny_model(shape)
    rows = [torch.tensor(tokens) for tokens in ROW_TOKENS]
    with torch.no_grad():
        logits, actual = forward_packed(model, rows, build_layout(ROW_PROBES, ROW_TOKENS), 0.7)
        expected_logits = torch.cat([model(input_ids=row[None]).logits[0] for row in rows])
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-4)
    close(actual, forward_batched(model, ROW_PROBES, ROW_TOKENS, 0.7))


@pytest.mark.parametrize("group_size", [1, 3, 8, 1000])
@pytest.mark.parametrize("shape", ["qwen3", "gemma3"])
def test_group_size_does_not_change_results(shape: str, group_size: int) -> None:
    model = tiny_model(shape)
    inputs, spans = padded_trunk("right")
    expected = captured_log_probs(model, inputs, spans)[1]
    close(captured_log_probs(model, inputs, spans, group_size=group_size)[1], expected)


@pytest.mark.parametrize("backend", ["cached", "packed"])
@pytest.mark.parametrize("shape", ["qwen2", "gemma3"])
def test_nothing_behind_the_boundary_leaks(shape: str, backend: str) -> None:
    model = tiny_model(shape)
    before = probe_log_probs(model, TRACE, [20], PROBES, backend)
    other_future = TRACE[:20] + random_ids(20, seed=99)
    assert torch.equal(probe_log_probs(model, other_future, [20], PROBES, backend), before)
    other_sibling = [PROBES[0], random_ids(2, seed=98), PROBES[2]]
    after = probe_log_probs(model, TRACE, [20], other_sibling, backend)
    assert torch.equal(after[:, [0, 2]], before[:, [0, 2]])
    # the check can fail: the same change in front of the boundary is seen
    other_past = TRACE[:19] + [TRACE[19] % (VOCAB_SIZE - 1) + 1] + TRACE[20:]
    assert (probe_log_probs(model, other_past, [20], PROBES, backend) - before).abs().min() > 1e-3


@pytest.mark.parametrize("window", [None, 1, 30, BLOCK_SIZE + 5])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_trunk_attention_over_several_blocks(window: int | None, softcap: float | None) -> None:
    lengths = [2 * BLOCK_SIZE + 17, 40]
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, sum(lengths), 8, generator=generator)
    key, value = torch.randn(2, 1, 2, sum(lengths), 8, generator=generator).unbind(0)
    spans = [(0, 0, lengths[0]), (0, lengths[0], sum(lengths))]
    actual = trunk_attention(query, key, value, spans, AttentionOptions(0.4, window, softcap))
    for _, start, end in spans:
        scores = query[0, :, start:end] @ key[0].repeat_interleave(2, 0)[:, start:end].mT * 0.4
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        visible = (distance >= 0) & (distance < (window or end))
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        expected = weights @ value[0].repeat_interleave(2, 0)[:, start:end]
        close(actual[0, :, start:end], expected)


def test_layout_refeeds_one_token_and_never_feeds_the_last() -> None:
    layout = build_layout([[(3, [7, 8], 0), (2, [5, 6, 7], 1)]], [[20, 21, 22, 23]])
    # by limit: probe 0 sees two trunk tokens and re-feeds 22, probe 1 sees two and feeds its bridge
    assert layout.order.tolist() == [0, 1]
    assert layout.limit.tolist() == [2, 2]
    assert layout.ids.tolist() == [22, 7, 5, 6]
    assert layout.target_ids.tolist() == [7, 8, 6, 7]
    assert layout.position_ids.tolist() == [2, 3, 2, 3]
    assert layout.skip.tolist() == [0, 0]


def test_a_layout_without_probes_still_calls_the_model_once() -> None:
    model = tiny_model("qwen2")
    inputs, spans = padded_trunk("right")
    with torch.no_grad(), capture_trunk(model) as captured:
        model(**inputs, use_cache=False)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert forward_probes(model, captured, build_layout([[], [], []], ROW_TOKENS), spans).shape == (0,)
    forward_probes(model, captured, build_layout(ROW_PROBES, ROW_TOKENS), spans)
    assert len(calls) == 2
    assert forward_packed(model, [torch.tensor(TRACE)], build_layout([[]], [TRACE]))[1].shape == (0,)


def test_packed_probes_carry_gradients_to_the_trunk() -> None:
    model = tiny_model("qwen3")
    layout = build_layout([[(20, PROBES[2], 0)]], [TRACE])
    forward_packed(model, [torch.tensor(TRACE)], layout)[1].sum().backward()
    gradient = model.get_input_embeddings().weight.grad
    last_seen, unseen = TRACE[0], set(TRACE[20:]) - set(TRACE[:20]) - set(PROBES[2])
    assert gradient[last_seen].abs().max() > 0
    assert gradient[sorted(unseen)].abs().max() == 0


def test_autocast_runs_and_stays_near_float32() -> None:
    model = tiny_model("qwen3")
    exact = probe_log_probs(model, TRACE, [5, 30], PROBES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = [probe_log_probs(model, TRACE, [5, 30], PROBES, backend) for backend in ("cached", "packed")]
    for value in values:
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact, rtol=0.05, atol=0.2)


def test_a_peft_model_is_reached_through_its_wrapper() -> None:
    peft = import_module("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny_model("qwen2"), config).eval()
    expected = probe_log_probs(model, TRACE, [5, 40], PROBES, "batched")
    close(probe_log_probs(model, TRACE, [5, 40], PROBES, "cached"), expected)
    close(probe_log_probs(model, TRACE, [5, 40], PROBES, "packed"), expected)


@contextmanager
def single_process_group(path: str) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_sharded_model_is_reached_through_its_wrapper(tmp_path: Path, attention: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = tiny_model("qwen3", attention)
    expected = probe_log_probs(model, TRACE, [5, 40], PROBES, "batched")
    with single_process_group(f"{tmp_path}/rendezvous"):
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer.self_attn, mesh=mesh)
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for backend in ("cached", "packed"):
            close(probe_log_probs(model, TRACE, [5, 40], PROBES, backend), expected)


def test_groups_suit_the_device() -> None:
    layout = build_layout([[(10, [1] * 16, 0)] * 128], [list(range(20))])
    sizes = {
        name: max(group.stop - group.start for group in plan_fork(layout, torch.device(name)).groups)
        for name in ("cpu", "meta")
    }
    assert sizes == {"cpu": 96, "meta": 1024}
    assert len(plan_fork(layout, torch.device("cpu"), 4096).groups) == 1


@pytest.mark.parametrize("keys", [1, 8, 13])
def test_rows_of_a_mask_start_where_attention_reads_them_in_place(keys: int) -> None:
    visible = torch.rand(5, keys) < 0.5
    mask = additive_mask(visible, 3, torch.bfloat16)
    assert torch.equal(mask == 0, visible.repeat(3, 1)) and torch.isneginf(mask[~visible.repeat(3, 1)]).all()
    assert mask.stride(0) % 8 == 0 and mask.stride(1) == 1
