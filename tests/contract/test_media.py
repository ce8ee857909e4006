"""Models that read images beside tokens: probes of text are right, and rows with images are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.models.transformers import qwen2_vl

from rredcot_plugin.integrations.verl.batched import _fields
from rredcot_plugin.integrations.verl.engine import _check_text
from rredcot_plugin.integrations.verl.media import FIELD, position_axes, text_positions
from rredcot_plugin.probes import UnsupportedModelError
from tests.contract.memory import (
    MemoryQueue,
    assert_credited,
    expected,
    fields_of,
    key_of,
    make_trainer,
    step,
)
from tests.contract.memory import enqueue as put
from tests.contract.runner_steps import NEWLINE, config, queue  # noqa: F401  fixtures
from tests.unit.test_group_work import bare_rows

IMAGE = {"pixel_values": torch.zeros(4, 12), "image_grid_thw": torch.tensor([[1, 2, 2]])}


@pytest.fixture(scope="module")
def model() -> Qwen2_5_VLForConditionalGeneration:
    """A model of the family whose positions have several axes."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "rope_parameters": rope,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    found = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config={**text, **heads}, vision_config=vision)
    )
    return found.eval()


def processor_of(model: Any) -> Any:
    """As verl's ``hf_processor`` leaves it: with the function of the model that counts positions."""
    return SimpleNamespace(get_rope_index=model.model.get_rope_index)


def test_positions_of_text_are_those_that_verl_gives(model: Any) -> None:
    ids = torch.arange(5, 16)[None]
    for processor in (None, SimpleNamespace(), processor_of(model)):
        worker = SimpleNamespace(processor=processor)
        kinds = {"mm_token_type_ids": torch.zeros_like(ids)}
        theirs = AgentLoopWorker._compute_position_ids(worker, ids, torch.ones_like(ids), kinds)
        ours = text_positions(ids.shape[1], position_axes(SimpleNamespace(processor=processor)))
        assert torch.equal(theirs[0], ours)


def test_rows_of_probes_have_the_axes_that_actors_of_this_family_ask_for() -> None:
    """verl puts a forward of its own into them; with one axis it fails."""
    rows = [(torch.arange(5, 13), 2), (torch.arange(3), 1)]
    axes = [_fields(rows, axes=axes)["position_ids"].values() for axes in (4, 1)]
    assert qwen2_vl.process_position_ids(axes[0][:, None]).shape == (4, 1, 11)
    with pytest.raises(ValueError, match="3D tensor of shape"):
        qwen2_vl.process_position_ids(axes[1][None])


def lay_down_with(queue: MemoryQueue, rows: Any, inputs: list[dict[str, Any]]) -> Any:
    """Rows of a run with a processor, each with what it made of the row's images."""
    numbers = range(len(rows.lengths))
    return put(queue, [(key_of(rows, i), {**fields_of(rows, i), FIELD: inputs[i]}, {}) for i in numbers])


def test_rows_of_text_are_credited_as_ever(queue: MemoryQueue, model: Any) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": "batched"}, processor=processor_of(model))
    found = step(trainer, lay_down_with(queue, rows, [{} for _ in rows.lengths]))
    assert_credited(found, rows, expected(rows, config())[0])


@pytest.mark.parametrize("answers", [True, False], ids=["batched", "fallback"])
def test_rows_with_images_are_refused_where_probes_would_not_see_them(
    queue: MemoryQueue, model: Any, answers: bool
) -> None:
    rows = bare_rows()
    options = {**NEWLINE, "probe_backend": "batched" if answers else "cached"}
    trainer = make_trainer(queue, options, processor=processor_of(model))
    trainer.actor_rollout_wg.answers = answers
    inputs = [{} for _ in rows.lengths]
    inputs[-1] = IMAGE
    named = "probe_backend=" + (
        "batched" if answers else "cached, which with this model is probe_backend=batched,"
    )
    with pytest.raises(ValueError, match=rf"^\S+{named} does not see the images.*value_estimator=confidence"):
        step(trainer, lay_down_with(queue, rows, inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"probe_backend": "packed"},
            "^algorithm.rredcot.probe_backend=packed does not .*use algorithm.rredcot.probe_backend=cached or .*=confidence",
        ),
        (
            {"value_estimator": "gradient"},
            "^The gradient that algorithm.rredcot.value_estimator=gradient reads does not .*use .*=confidence",
        ),
    ],
    ids=["packed", "gradient"],
)
def test_forwards_of_the_engines_own_are_refused_for_all_rows_at_once(
    queue: MemoryQueue, options: dict[str, str], message: str
) -> None:
    """With one axis of positions, rows of text and rows with images differ only in what lies beside them."""
    rows = bare_rows()
    trainer = make_trainer(queue, {**NEWLINE, **options}, processor=SimpleNamespace())
    text = [{} for _ in rows.lengths]
    step(trainer, lay_down_with(queue, rows, text))
    assert trainer.actor_rollout_wg.calls == ["log-probs"]
    with pytest.raises(ValueError, match=message):
        step(trainer, lay_down_with(queue, rows, [*text[:-1], IMAGE]))
    assert trainer.actor_rollout_wg.calls == ["log-probs"], "no rank was asked"


def test_cached_probes_of_rows_with_images_are_asked_for(queue: MemoryQueue) -> None:
    rows = bare_rows()
    trainer = make_trainer(queue, {**NEWLINE, "probe_backend": "cached"}, processor=SimpleNamespace())
    found = step(trainer, lay_down_with(queue, rows, [IMAGE for _ in rows.lengths]))
    assert_credited(found, rows, expected(rows, config())[0])


def test_continuations_of_rows_with_images_are_refused(queue: MemoryQueue, model: Any) -> None:
    rows = bare_rows()
    batch = lay_down_with(queue, rows, [IMAGE for _ in rows.lengths])
    trainer = make_trainer(
        queue,
        {**NEWLINE, "value_estimator": "monte_carlo"},
        "actor_rollout_ref.rollout.name=vllm",
        replay_buffer=SimpleNamespace(sample=lambda: (batch, {})),
        get_llm_client=lambda: None,
        get_reward_handles=lambda: [],
        checkpoint_manager=SimpleNamespace(sleep_replicas=lambda: None),
        curr_step_profile=False,
        processor=processor_of(model),
    )
    trainer.replay_buffer.sample()
    with pytest.raises(ValueError, match=r"value_estimator=monte_carlo does not see the images.*=confidence"):
        trainer.on_sample_end()


def test_the_engine_makes_no_forward_of_its_own_of_rows_with_images() -> None:
    batch = TensorDict({FIELD: NonTensorStack({}, IMAGE)}, batch_size=2)
    with pytest.raises(UnsupportedModelError, match="rows have images"):
        _check_text(batch)
    _check_text(TensorDict({FIELD: NonTensorStack({}, {})}, batch_size=2))
    _check_text(TensorDict({}, batch_size=2))
