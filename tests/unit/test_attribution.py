"""Attribution: scores equal slow references in every layout, leave nothing behind, and share out the outcome."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rredcot_plugin.probes import capture_trunk, gradient_scores
from rredcot_plugin.probes.attention_scores import (
    QUERY_BLOCK,
    answer_attention,
    attention_attribution,
    capture_attention,
)
from rredcot_plugin.probes.gradient_scores import gradient_attribution, log_prob_gradient
from rredcot_plugin.probes.kernels import AttentionOptions
from rredcot_plugin.probes.layout import row_spans_of
from tests.unit.attribution_rows import LENGTHS, ROWS, STARTS, padded_inputs
from tests.unit.probe_models import SHAPES, tiny_model

TEMPERATURE = 0.7


SCORED = [0, 1, 4]  # rows that have something before an answer


def close(actual: list[Tensor], expected: list[Tensor], atol: float = 1e-5) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=atol)


def packed_inputs() -> tuple[dict[str, Tensor], list[tuple[int, int, int]]]:
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return {"input_ids": torch.cat(ROWS)[None], "position_ids": positions[None]}, row_spans_of(LENGTHS)


def watched(model: nn.Module, inputs: dict[str, Tensor], spans: list[tuple[int, int, int]]) -> list[Tensor]:
    with torch.no_grad(), capture_attention(model, spans, STARTS) as captured:
        model(**inputs, use_cache=False)
    return captured.scores()


def naive_attention(shape: str) -> list[Tensor]:
    """Every row on its own through eager attention, all T x T probabilities kept."""
    model, out = tiny_model(shape, "eager"), []
    for row, answer in zip(ROWS, STARTS, strict=True):
        scores = torch.zeros(len(row))
        if 0 < answer < len(row):
            with torch.no_grad():
                layers = model(input_ids=row[None], output_attentions=True).attentions
            assert len(layers) == 3
            scores[:answer] = torch.stack(layers)[:, 0, :, answer:, :answer].mean(dim=(0, 1, 2))
        out.append(scores)
    return out


def naive_gradient(model: nn.Module, temperature: float = TEMPERATURE) -> list[Tensor]:
    """Every row on its own, full logits, plain autograd to `inputs_embeds`."""
    out = []
    for row, answer in zip(ROWS, STARTS, strict=True):
        scores = torch.zeros(len(row))
        if 0 < answer < len(row):
            embeds = model.get_input_embeddings()(row[None]).detach().requires_grad_()
            logits = model(inputs_embeds=embeds).logits[0] / temperature
            picked = logits.log_softmax(-1)[torch.arange(answer - 1, len(row) - 1), row[answer:]].sum()
            (gradient,) = torch.autograd.grad(picked, embeds)
            scores[:answer] = (gradient * embeds).detach()[0].sum(-1).abs()[:answer]
        out.append(scores)
    return out


@pytest.mark.parametrize("layout", ["left", "right", "packed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_equals_the_eager_reference(shape: str, layout: str) -> None:
    expected = naive_attention(shape)
    inputs, spans = packed_inputs() if layout == "packed" else padded_inputs(layout)
    model = tiny_model(shape, "eager")
    close(watched(model, inputs, spans), expected)
    if shape != "gemma2":  # transformers' sdpa drops the soft-capping of gemma2, so it is another function
        close(watched(tiny_model(shape), inputs, spans), expected)
    for row in SCORED:
        assert 0 < float(expected[row].sum()) <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_in_a_forward_of_its_own(shape: str) -> None:
    close(attention_attribution(tiny_model(shape, "eager"), ROWS, STARTS), naive_attention(shape))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_equals_plain_autograd_on_full_logits(shape: str, attention: str) -> None:
    model = tiny_model(shape, attention)
    expected = naive_gradient(model)
    actual = gradient_attribution(model, ROWS, STARTS, TEMPERATURE)
    scale = max(float(row.max()) for row in expected)
    close(actual, expected, atol=1e-5 * scale)
    for row in SCORED:
        assert float(actual[row][: STARTS[row]].min()) > 0


def test_gradient_equals_finite_differences() -> None:
    """The score of token t is the change of log pi when its embedding is scaled."""
    model = tiny_model("qwen3").double()
    row, answer, step = ROWS[1], STARTS[1], 3e-3  # transformers' norms run in float32 even here
    embeds = model.get_input_embeddings()(row[None]).detach()

    def log_pi(scales: Tensor) -> float:
        with torch.no_grad():
            logits = model(inputs_embeds=embeds * scales[None, :, None]).logits[0] / TEMPERATURE
        return float(logits.log_softmax(-1)[torch.arange(answer - 1, len(row) - 1), row[answer:]].sum())

    scores = torch.zeros(len(row))
    for t in range(answer):
        change = torch.zeros(len(row), dtype=torch.float64)
        change[t] = step
        scores[t] = abs(log_pi(1 + change) - log_pi(1 - change)) / (2 * step)
    close(gradient_attribution(model, [row], [answer], TEMPERATURE), [scores], atol=1e-3)


@pytest.mark.parametrize("shape", ["qwen3", "gemma3"])
def test_rows_are_independent_of_each_other(shape: str) -> None:
    model = tiny_model(shape)
    for method in (attention_attribution, gradient_attribution):
        together = method(model, ROWS, STARTS)
        alone = [method(model, [row], [start])[0] for row, start in zip(ROWS, STARTS, strict=True)]
        close(together, alone)
        close(method(model, ROWS[::-1], STARTS[::-1])[::-1], together)


def test_rows_without_answer_or_without_anything_before_it_get_zeros() -> None:
    model = tiny_model("qwen3")
    for method in (attention_attribution, gradient_attribution):
        scores = method(model, ROWS, STARTS)
        assert [len(row) for row in scores] == LENGTHS
        for row, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
            assert (scores[row][start:] == 0).all()
            if start in (0, length):
                assert (scores[row] == 0).all()
        # nothing to score at all: the model is called all the same
        assert all((row == 0).all() for row in method(model, ROWS, LENGTHS))


def test_watching_changes_no_output_and_composes_with_captured_probes() -> None:
    model = tiny_model("gemma3")
    inputs, spans = padded_inputs("right")
    with torch.no_grad():
        plain = model(**inputs, use_cache=False).logits
        with capture_trunk(model) as trunk, capture_attention(model, spans, STARTS) as seen:
            logits = model(**inputs, use_cache=False).logits
    assert torch.equal(logits, plain)
    assert len(trunk.layers) == 3
    close(seen.scores(), watched(model, inputs, spans))


@pytest.mark.parametrize("window", [None, 1, 2, 30, 10_000])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_answer_attention_over_several_blocks(window: int | None, softcap: float | None) -> None:
    num_tokens, answer = 2 * QUERY_BLOCK + 90, 75
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, num_tokens, 8, generator=generator)
    key = torch.randn(2, num_tokens, 8, generator=generator)
    scores = query @ key.repeat_interleave(2, 0).mT * 0.4
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    distance = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)
    visible = (distance >= 0) & (distance < (window or num_tokens))
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    expected = torch.zeros(num_tokens)
    expected[:answer] = weights[:, answer:, :answer].mean(dim=(0, 1))
    actual = answer_attention(query, key, answer, AttentionOptions(0.4, window, softcap))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # stays in float32
        assert torch.equal(answer_attention(query, key, answer, AttentionOptions(0.4, window, softcap)), actual)


def test_log_prob_gradient_in_chunks_equals_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_scores, "ROWS_PER_CHUNK", 3)
    logits = torch.randn(8, 11, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.arange(8)
    total = (logits / TEMPERATURE).log_softmax(-1)[torch.arange(8), targets].sum()
    (expected,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(log_prob_gradient(logits.detach(), targets, TEMPERATURE), expected)


def test_gradient_leaves_nothing_behind() -> None:
    model = tiny_model("qwen3").train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    registry = dict(ALL_ATTENTION_FUNCTIONS)
    with torch.no_grad():
        scores = gradient_attribution(model, ROWS, STARTS, TEMPERATURE)
        assert not torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    assert dict(ALL_ATTENTION_FUNCTIONS) == registry
    assert not model.get_input_embeddings()._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(row.requires_grad for row in scores)
    # a gradient of an open training step stays what it was
    model.lm_head.weight.grad = kept = torch.ones_like(model.lm_head.weight)
    gradient_attribution(model, ROWS, STARTS, TEMPERATURE)
    assert model.lm_head.weight.grad is kept
    assert (kept == 1).all()


def test_everything_is_put_back_after_an_error() -> None:
    model, registry = tiny_model("qwen3").train(), dict(ALL_ATTENTION_FUNCTIONS)
    with pytest.raises(IndexError):
        gradient_attribution(model, [torch.tensor([3, 4, 10_000])], [1])
    assert all(module.training for module in model.modules())
    assert dict(ALL_ATTENTION_FUNCTIONS) == registry
    assert not model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_give_the_same_gradient(reentrant: bool) -> None:
    model = tiny_model("gemma3")
    expected = gradient_attribution(model, ROWS, STARTS)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    runs: list[int] = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: runs.append(1))
    close(gradient_attribution(model, ROWS, STARTS), expected)
    assert len(runs) == (1 if reentrant else 2)  # recomputed in the backward, where that is possible
    assert not any(module.training for module in model.modules())


def test_dropout_is_off_whatever_the_mode() -> None:
    model = tiny_model("qwen3")
    expected = gradient_attribution(model, ROWS, STARTS)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
        layer.mlp.act_fn = nn.Sequential(layer.mlp.act_fn, nn.Dropout(0.5))
    close(gradient_attribution(model.train(), ROWS, STARTS), expected)


def test_autocast_runs_and_stays_near_float32() -> None:
    model = tiny_model("qwen3")
    for method in (attention_attribution, gradient_attribution):
        exact = torch.cat(method(model, ROWS, STARTS))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = torch.cat(method(model, ROWS, STARTS))
        assert rough.dtype == torch.float32
        assert float(torch.corrcoef(torch.stack([exact, rough]))[0, 1]) > 0.98


def test_a_peft_model_is_reached_through_its_wrapper() -> None:
    peft = import_module("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny_model("qwen2", "eager"), config).eval()
    merged = peft.get_peft_model(tiny_model("qwen2", "eager"), config)
    merged.load_state_dict(model.state_dict())
    merged = merged.merge_and_unload().eval()
    for method in (attention_attribution, gradient_attribution):
        close(method(model, ROWS, STARTS), method(merged, ROWS, STARTS))
    model.enable_input_require_grads()
    close(gradient_attribution(model, ROWS, STARTS), gradient_attribution(merged, ROWS, STARTS))


@pytest.mark.parametrize("tied", [False, True])
def test_a_sharded_model_is_reached_through_its_wrapper(tmp_path: Path, tied: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = tiny_model("qwen3")
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    expected = gradient_attribution(model, ROWS, STARTS), attention_attribution(model, ROWS, STARTS)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        alone = [] if tied else [model.model.embed_tokens, model.lm_head]
        for module in [*model.model.layers, *alone, model]:
            fully_shard(module, mesh=mesh)
        inputs, spans = padded_inputs("right")
        for _ in range(2):  # a pass leaves the shards in a state that the next one can start from
            close(watched(model, inputs, spans), expected[1])
            with torch.no_grad():
                close(gradient_attribution(model, ROWS, STARTS), expected[0])
            assert all(parameter.grad is None for parameter in model.parameters())
        model(**inputs, use_cache=False).logits.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    finally:
        torch.distributed.destroy_process_group()
