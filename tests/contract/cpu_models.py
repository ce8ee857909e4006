"""A tiny model for the tests of the CPU rollout."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

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
