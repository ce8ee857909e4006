"""Teach the tiny reasoner to use the calculator, in a minute or two on one core, by supervised learning.

    python warm_up.py --out data/tiny_tool_user

Starts from the tiny reasoner of the package, first on right dialogues, at the end on dialogues *with mistakes*, so that
reinforcement learning has something to do. One thread and fixed seeds: the same machine gives the same model.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3ForCausalLM

if __package__ in (None, ""):  # run or loaded as a file
    sys.path[:0] = [str(Path(__file__).resolve().parent)]
from tool_dialogue import IGNORED, build_tokenizer, encode
from word_problems import NO_MISTAKES, MistakeRates, generate, work

from rredcot_plugin.tiny import CHECKPOINT

MISTAKES = MistakeRates(operation=0.16, number=0.14, early=0.12)
SKILL_SHARE = 0.5  # of the steps; the rest is the training on mistakes
DATA_SEED = 1_000_003
"""Apart from the seeds of the data that reinforcement learning sees, which are small."""

Example = tuple[list[int], list[int]]


def make_examples(tokenizer: PreTrainedTokenizerFast, size: int, seed: int, rates: MistakeRates) -> list[Example]:
    """Token ids and labels of `size` dialogues."""
    rng = random.Random(seed)
    return [
        encode(tokenizer, problem.question, work(problem, rng, rates))
        for problem in generate(size, DATA_SEED + seed)
    ]


def loss_of(model: Qwen3ForCausalLM, batch: Sequence[Example]) -> torch.Tensor:
    """Mean cross entropy over the tokens that the model says (nats); padding on the right is seen by none of them."""
    width = max(len(ids) for ids, _ in batch)
    pad = model.config.pad_token_id
    ids_BT = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in batch])
    labels_BT = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in batch])
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    return cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)


def train(model: Qwen3ForCausalLM, batches: Sequence[Sequence[Example]], peak_lr: float) -> float:
    """One optimizer step per batch, in place: linear warm-up over a twentieth of them, then cosine decay; the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, len(batches) // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * i / len(batches)))
    )
    model.train()
    loss = torch.tensor(0.0)
    for batch in batches:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Teach the tiny reasoner to use the calculator.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for model and tokenizer")
    parser.add_argument("--steps", type=int, default=240, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=8, help="dialogues per step")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of data and order")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: see `--help`. The folder is there when it is complete, never before."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)  # the order of floating-point sums, and so the result, depends on it
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    skill = int(arguments.steps * SKILL_SHARE) * arguments.batch_size
    slips = arguments.steps * arguments.batch_size - skill
    examples = make_examples(tokenizer, skill, arguments.seed, NO_MISTAKES)
    examples += make_examples(tokenizer, slips, arguments.seed + 1, MISTAKES)
    size = arguments.batch_size
    loss = train(model, [examples[i : i + size] for i in range(0, len(examples), size)], arguments.lr)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out.parent) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        os.chmod(folder, 0o755)
        arguments.out.mkdir(exist_ok=True)
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(arguments.out / path.name)  # config.json last: the script looks for it
    print(f"{arguments.out}: {arguments.steps} steps, last loss {loss:.3f} nats a token")


if __name__ == "__main__":
    main()
