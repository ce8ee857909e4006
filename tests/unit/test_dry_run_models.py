"""What a dry run trains: a tiny model of the same architecture, its practice, and the first error of a log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rredcot_plugin.dry_run import architecture
from rredcot_plugin.dry_run.architecture import TINY, find_architecture, tiny_config, train_tokenizer, write_tiny
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.training import first_error
from rredcot_plugin.dry_run.warm_start import GOOD_ENOUGH, practise


@pytest.mark.parametrize(
    "sizes",
    [
        {"model_type": "qwen3", "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
        {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 32},
        {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        {"model_type": "gemma3_text", "num_hidden_layers": 26},
        {"model_type": "mistral"},
    ],
)
def test_a_tiny_model_has_the_same_architecture(sizes: dict[str, Any]) -> None:
    import torch

    config = AutoConfig.for_model(**sizes)
    tokenizer = train_tokenizer(["one two three"] * 8)
    tiny = tiny_config(config, tokenizer)
    assert type(tiny) is type(config)
    assert (tiny.hidden_size, tiny.num_hidden_layers) == (TINY["hidden_size"], 2)
    model = AutoModelForCausalLM.from_config(tiny)
    assert sum(p.numel() for p in model.parameters()) < 2e6
    assert torch.isfinite(model(input_ids=torch.tensor([[1, 2, 3]])).logits).all()


def test_parameters_are_those_of_the_models_card() -> None:
    cards = {
        "Qwen/Qwen3-4B": 4.02,
        "Qwen/Qwen2.5-Math-1.5B": 1.54,
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.78,
        "Qwen/Qwen2.5-Coder-1.5B-Instruct": 1.54,
    }
    for name, billions in cards.items():
        assert round(find_architecture(name).parameters / 1e9, 2) == billions


def test_a_models_own_folder_is_read_and_needs_a_chat_template(tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "rredcot_plugin" / "tiny" / "checkpoint"
    found = find_architecture(str(demo))
    assert found.tokenizer is not None and not found.note
    tokenizer = found.tokenizer
    tokenizer.chat_template = None
    found.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="no chat template"):
        find_architecture(str(tmp_path))


def test_a_model_that_cannot_be_had_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing token or a slip in the name is not the network's fault."""
    with pytest.raises(RecipeError, match=r"path=/models/typo: no such folder"):
        find_architecture("/models/typo")
    monkeypatch.setattr(architecture, "hub_answers", lambda: False)
    with pytest.raises(RecipeError, match="cache, and the hub does not answer; name a folder"):
        find_architecture("nobody/nothing")
    monkeypatch.setattr(architecture, "hub_answers", lambda: True)

    def refuse(path: str, local_files_only: bool, **_: Any) -> None:
        raise OSError("not in the cache" if local_files_only else f"401: {path} is gated\nlog in")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    with pytest.raises(RecipeError, match="the hub says: 401: nobody/nothing is gated; name a folder"):
        find_architecture("nobody/nothing")
    assert find_architecture("Qwen/Qwen3-4B").note.endswith("the hub says: 401: Qwen/Qwen3-4B is gated")


def test_practice_makes_the_solutions_likely(tmp_path: Path) -> None:
    pairs = [([{"role": "user", "content": f"{i} + 1"}], f"It is \\boxed{{{i + 1}}}.") for i in range(4)]
    found = find_architecture("Qwen/Qwen3-4B").with_tokenizer([text for _, text in pairs])
    tokenizer = found.tokenizer
    write_tiny(found, tmp_path)
    assert practise(tmp_path, tokenizer, pairs) < GOOD_ENOUGH
    assert practise(tmp_path, tokenizer, []) == math.inf
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen3"


def test_practice_is_the_same_every_time_and_leaves_the_callers_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rredcot_plugin.dry_run.warm_start.MOST_STEPS", 20)
    pairs = [([{"role": "user", "content": f"{i} + 1"}], f"It is \\boxed{{{i + 1}}}.") for i in range(4)]
    found = find_architecture("Qwen/Qwen3-4B").with_tokenizer([text for _, text in pairs])
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        folder = tmp_path / str(seed)
        write_tiny(found, folder)
        practise(folder, found.tokenizer, pairs)
        drawn = torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(drawn, torch.rand(3))
        weights.append(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_the_first_exception_of_a_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        'ray::TaskRunner.run()\n  File "x.py", line 3\nray.exceptions.RayTaskError(ValueError): ray::f()\n'
        "\x1b[36m(TaskRunner pid=7, ip=10.0.0.1)\x1b[0m mine.RewardError: the reward file is gone\n"
        "RuntimeError: no trajectory\n(TaskRunner pid=7) closing down\n"
    )
    assert first_error(log) == "mine.RewardError: the reward file is gone"
    log.write_text("Killed\n")
    assert first_error(log) == "Killed"
