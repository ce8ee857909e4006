"""Let the tiny model read the data's own solutions for a while, so that some of its responses earn a reward.

A random model earns nothing: all advantages are 0, traces have one segment, and a run that works looks like one that
does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

IGNORED = -100
MOST_TOKENS = 768
MOST_ROWS = 16
LEARNING_RATE = 3e-3
MOST_STEPS = 500
GOOD_ENOUGH = 0.01
"""Loss in nats a token at which samples are right often, and differ."""


def practise(folder: Path, tokenizer: Any, pairs: Sequence[tuple[Any, str]], tools: Any = None) -> float:
    """Train the model in ``folder`` on (prompt, response) pairs, and save it there; the last loss.

    Ends at ``GOOD_ENOUGH`` or after ``MOST_STEPS``. Pairs of more than ``MOST_TOKENS`` tokens are left out; without any,
    nothing is done and the loss is infinite. ``tools``: schemas that stand in every prompt.
    """
    from transformers import AutoModelForCausalLM

    encoded = [_encode(tokenizer, messages, response, tools) for messages, response in pairs]
    encoded = [pair for pair in encoded if len(pair[0]) <= MOST_TOKENS][:MOST_ROWS]
    if not encoded:
        return float("inf")
    tokens, targets = _batch(encoded, tokenizer.pad_token_id or 0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    loss = float("inf")
    for _ in range(MOST_STEPS):
        logits = model(input_ids=tokens).logits[:, :-1]
        error = cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        loss = float(error.detach())
        if loss < GOOD_ENOUGH:
            break
    model.save_pretrained(folder)
    return loss


def prompt_ids(tokenizer: Any, prompt: Any, tools: Any) -> list[int]:
    """Token ids of a prompt: messages, which the chat template puts into words, or text as it is."""
    if not isinstance(prompt, str):
        prompt = tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(prompt, add_special_tokens=False))


def _encode(tokenizer: Any, messages: Any, response: str, tools: Any) -> tuple[list[int], int]:
    """Token ids of prompt and response, end of turn included, and the length of the prompt."""
    ids = prompt_ids(tokenizer, messages, tools)
    answer = tokenizer.encode(response, add_special_tokens=False)
    return [*ids, *answer, tokenizer.eos_token_id], len(ids)


def _batch(encoded: Sequence[tuple[list[int], int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids padded on the right, and the targets: ignored in prompts and padding."""
    width = max(len(ids) for ids, _ in encoded)
    tokens = torch.full((len(encoded), width), padding)
    targets = torch.full((len(encoded), width), IGNORED)
    for row, (ids, prompt) in enumerate(encoded):
        tokens[row, : len(ids)] = torch.tensor(ids)
        targets[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
    return tokens, targets
