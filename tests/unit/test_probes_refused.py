"""What probes leave behind them, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    PretrainedConfig,
    PreTrainedModel,
    XGLMConfig,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rredcot_plugin.probes import (
    UnsupportedModelError,
    attention_attribution,
    capture_trunk,
    gradient_attribution,
    probe_log_probs,
)
from tests.unit.probe_models import VOCAB_SIZE, tiny_model
from tests.unit.probed_rows import PROBES, TRACE, captured_log_probs, padded_trunk


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_registry_is_restored_after_an_exception(attention: str) -> None:
    model, before = tiny_model("qwen2", attention), dict(ALL_ATTENTION_FUNCTIONS)
    capture = capture_trunk(model)
    capture.__enter__()
    assert dict(ALL_ATTENTION_FUNCTIONS) != before
    error = RuntimeError("from inside")
    assert not capture.__exit__(RuntimeError, error, None)
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    with pytest.raises(IndexError):
        probe_log_probs(model, TRACE, [3], [[VOCAB_SIZE + 5, 4]], "packed")
    assert dict(ALL_ATTENTION_FUNCTIONS) == before


def test_a_local_registry_entry_is_put_back() -> None:
    model = tiny_model("qwen2")

    def users_own(*args: object, **kwargs: object) -> object:
        return sdpa(*args, **kwargs)

    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = users_own
    try:
        probe_log_probs(model, TRACE, [3], PROBES)
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is users_own
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "fast"}, "expected one of cached, packed, batched"),
        ({"boundaries": [41]}, "expected 0 to 40"),
        ({"boundaries": [-1]}, "expected 0 to 40"),
        ({"boundaries": [0]}, "a bridge of at least one token"),
        ({"boundaries": [1.5]}, "boundaries has dtype"),
        ({"trace_ids": []}, "trace_ids is empty"),
        ({"trace_ids": [[1, 2]]}, "trace_ids has dtype"),
        ({"trace_ids": [True, False]}, "trace_ids has dtype"),
        ({"probes": [[3], []]}, r"probes\[1\] is empty"),
        ({"probes": [[3.0]]}, r"probes\[0\] has dtype"),
        ({"temperature": 0.0}, "greater than 0"),
    ],
)
@pytest.mark.parametrize("backend", ["cached", "packed", "batched"])
def test_wrong_arguments_are_named(backend: str, changes: dict[str, object], message: str) -> None:
    arguments = {"trace_ids": TRACE, "boundaries": [3], "probes": [[3]], "backend": backend} | changes
    with pytest.raises(ValueError, match=message):
        probe_log_probs(tiny_model("qwen2"), **arguments)


def test_nothing_to_score_gives_an_empty_table() -> None:
    model = tiny_model("qwen2")
    assert probe_log_probs(model, TRACE, [], PROBES).shape == (0, 3)
    assert probe_log_probs(model, TRACE, [4], []).shape == (1, 0)


def test_spans_that_do_not_fit_the_layout_are_refused() -> None:
    model = tiny_model("qwen2")
    inputs, spans = padded_trunk("right")
    with pytest.raises(ValueError, match="a probe stands in row 2"):
        captured_log_probs(model, inputs, spans[:2])
    with pytest.raises(ValueError, match="its span has 5"):
        captured_log_probs(model, inputs, [(0, 0, 5), *spans[1:]])


def without_registry(model: PreTrainedModel) -> PreTrainedModel:
    """A model whose second layer computes its attention without asking the registry."""
    attention = model.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **_: (torch.zeros_like(hidden_states), None)
    return model


@pytest.mark.parametrize("backend", ["cached", "packed"])
def test_models_that_cannot_be_forked_name_the_way_out(backend: str) -> None:
    hybrid = tiny_model("qwen2")
    hybrid.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    mask_only = tiny_model("llama")
    mask_only.config.sliding_window = 5
    for model in (without_registry(tiny_model("qwen2")), hybrid, mask_only, nn.Linear(2, 2)):
        with pytest.raises(UnsupportedModelError, match='backend="batched"'):
            probe_log_probs(model, TRACE, [3], PROBES, backend)


def test_angles_that_depend_on_the_length_of_the_trunk_are_refused() -> None:
    """Half of what the probes see is rotated by long factors in the trunk, and by short ones in a probe."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    config = tiny_model("llama").config
    config.max_position_embeddings, config.rope_parameters = 256, rope | {"original_max_position_embeddings": 16}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for backend in ("cached", "packed"):
        with pytest.raises(UnsupportedModelError, match=r'longrope.*backend="batched"'):
            probe_log_probs(model, TRACE, [3], PROBES, backend)
    found = probe_log_probs(model, TRACE, [3, 30], PROBES, "batched")
    alone = [probe_log_probs(model, TRACE[:end], [end], PROBES, "batched") for end in (3, 30)]
    assert torch.allclose(found, torch.cat(alone), atol=1e-5)


SIZES = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OTHER_SIZES = {"vocab_size": VOCAB_SIZE, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 32}


@pytest.mark.parametrize(
    "config", [BloomConfig(**SIZES), FalconConfig(**SIZES, alibi=True), XGLMConfig(**OTHER_SIZES)]
)
def test_models_that_read_the_mask_themselves_name_the_way_out(config: PretrainedConfig) -> None:
    model, row = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval(), torch.tensor(TRACE)
    for backend in ("cached", "packed"):
        with pytest.raises(UnsupportedModelError, match='backend="batched"'):
            probe_log_probs(model, TRACE, [3], PROBES, backend)
    for attribution in (gradient_attribution, attention_attribution):
        with pytest.raises(UnsupportedModelError, match="attention mask"):
            attribution(model, [row], [10])
    assert probe_log_probs(model, TRACE, [3], PROBES, "batched").isfinite().all()


def test_two_trunk_forwards_in_one_capture_are_refused() -> None:
    model = tiny_model("qwen2")
    with capture_trunk(model):
        model(input_ids=torch.tensor([TRACE]))
        with pytest.raises(UnsupportedModelError, match="ran twice"):
            model(input_ids=torch.tensor([TRACE]))


def test_import_needs_no_transformers() -> None:
    code = "import sys, rredcot_plugin.probes; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
