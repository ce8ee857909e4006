"""Teach the tiny reasoner to use the calculator, in about a minute on one core, by supervised learning.

    python warm_up.py --out data/tiny_tool_user

Starts from the tiny reasoner of the package, first on right dialogues, at the end on dialogues *with mistakes*, so that
reinforcement learning has something to do. One thread and fixed seeds: the same machine gives the same model.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

if __package__ in (None, ""):  # run or loaded as a file
    sys.path[:0] = [str(Path(__file__).resolve().parent)]
from tool_dialogue import build_tokenizer, encode
from word_problems import NO_MISTAKES, MistakeRates, generate, work

from rredcot_plugin.demo.train_reasoner import labelled_loss, train
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
    batches = [examples[i : i + size] for i in range(0, len(examples), size)]
    loss = train(model, batches, arguments.lr, labelled_loss)
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
