"""Train the demo's reasoner from scratch, by plain supervised learning on worked solutions.

    OMP_NUM_THREADS=1 python -m rredcot_plugin.demo.train_reasoner --out rredcot_plugin/tiny/checkpoint

First on right solutions (the skill), at the end on solutions *with mistakes* (the slips). The result is a
mediocre reasoner on purpose: it knows the right step (greedy decoding mostly finds it) but samples a wrong
one often enough for reinforcement learning to have something to do. Every example is seen once. One core,
one thread, fixed seed. After training, accuracy is measured on held-out questions.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rredcot_plugin.demo.prepare_data import DATA_SOURCE_PREFIX
from rredcot_plugin.demo.reward import compute_score
from rredcot_plugin.demo.tasks import NO_MISTAKES, TASKS, MistakeRates, Problem, generate, solve
from rredcot_plugin.tiny import CHECKPOINT
from rredcot_plugin.tiny.reasoner import build_model, build_tokenizer, prompt_text, respond

MISTAKE_RATES = {
    "chain_sum": MistakeRates(easy=0.12, hard=0.32),
    "number_sorting": MistakeRates(easy=0.18, hard=0.40),
}
TASK_SHARES = {"chain_sum": 0.55, "number_sorting": 0.45}  # sums are harder to learn
SKILL_SHARE = 0.8  # of the steps; the rest is the training on mistakes
POOL_BATCHES = 16  # batches are cut from length-sorted pools of this many: less padding
IGNORED = -100

Example = tuple[list[int], int]  # token ids of prompt + response, length of the prompt


def make_examples(
    tokenizer: PreTrainedTokenizerFast, size: int, seed: int, rates: dict[str, MistakeRates] | None = None
) -> list[Example]:
    """`size` tokenized training examples, mixed by `TASK_SHARES`; solutions are right unless `rates` are given."""
    rng = random.Random(seed)
    problems: list[Problem] = []
    for task, share in TASK_SHARES.items():
        problems += generate(task, "train", math.ceil(size * share), seed)
    rng.shuffle(problems)
    prompts = [prompt_text(tokenizer, problem.question) for problem in problems[:size]]
    solutions = [solve(problem, rng, (rates or {}).get(problem.task, NO_MISTAKES)) for problem in problems[:size]]
    texts = [f"{p}{s.text}{tokenizer.eos_token}" for p, s in zip(prompts, solutions, strict=True)]
    lengths = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    return list(zip(tokenizer(texts)["input_ids"], lengths, strict=True))


def batches(examples: list[Example], batch_size: int, seed: int) -> Iterator[list[Example]]:
    """Every example once, in batches of similar length whose order is random within each pool."""
    rng = random.Random(seed)
    pool_size = batch_size * POOL_BATCHES
    for start in range(0, len(examples), pool_size):
        pool = sorted(examples[start : start + pool_size], key=lambda example: len(example[0]))
        cut = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
        yield from rng.sample(cut, len(cut))


def response_loss(model: Qwen3ForCausalLM, batch: Sequence[Example]) -> torch.Tensor:
    """Mean cross entropy over response tokens (nats); prompts and padding carry no loss."""
    return labelled_loss(model, [(ids, [IGNORED] * start + ids[start:]) for ids, start in batch])


def labelled_loss(model: Qwen3ForCausalLM, batch: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Mean cross entropy (nats) over the tokens whose label is not `IGNORED`, of pairs of token ids and labels."""
    width = max(len(ids) for ids, _ in batch)
    pad = model.config.pad_token_id
    ids_BT = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in batch], device=model.device)
    labels_BT = torch.tensor(
        [labels + [IGNORED] * (width - len(labels)) for _, labels in batch], device=model.device
    )
    # right padding under a causal mask is never seen by a real token: no attention mask needed
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED
    )


def train(
    model: Qwen3ForCausalLM,
    steps: Sequence[Any],
    peak_lr: float,
    loss_of: Callable[[Qwen3ForCausalLM, Any], torch.Tensor] = response_loss,
) -> float:
    """One optimizer step per batch, in place: linear warm-up over a twentieth of them, then cosine decay. The last loss, 0
    without a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, len(steps) // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * i / len(steps)))
    )
    model.train()
    loss = torch.tensor(0.0)
    progress = tqdm(steps, desc="train", mininterval=5.0)
    for i, batch in enumerate(progress):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if i % 20 == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}")
    model.eval()
    return loss.item()


def evaluate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, task: str, size: int, group: int, seed: int
) -> dict[str, float]:
    """Accuracy on `size` held-out questions: sampled at temperature 1 (`group` samples each) and greedy, and
    the share of questions whose group is mixed (some samples right, some wrong)."""
    torch.manual_seed(seed)
    problems = generate(task, "val", size, seed)
    sampled = torch.tensor([_accuracies(model, tokenizer, task, problems, 1.0) for _ in range(group)])
    greedy = torch.tensor(_accuracies(model, tokenizer, task, problems, 0.0))
    share = sampled.mean(dim=0)
    mixed = ((share > 0) & (share < 1)).float()
    return {
        "sampled": share.mean().item(),
        "greedy": greedy.mean().item(),
        "mixed_groups": mixed.mean().item(),
    }


def _accuracies(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: str,
    problems: list[Problem],
    temperature: float,
) -> list[float]:
    responses = respond(model, tokenizer, [problem.question for problem in problems], temperature)
    return [
        compute_score(f"{DATA_SOURCE_PREFIX}/{task}", response, problem.answer)["acc"]
        for response, problem in zip(responses, problems, strict=True)
    ]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rredcot_plugin.demo.train_reasoner",
        description="Train the demo's reasoner from scratch on one core and save it with its tokenizer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="folder for model and tokenizer")
    parser.add_argument("--steps", type=int, default=2600, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=32, help="solutions per step")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--eval-size", type=int, default=200, help="held-out questions per task")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, weights and sampling")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: see `--help`."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)  # the order of floating-point sums, and so the result, depends on it
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, arguments.seed)
    skill_steps = int(arguments.steps * SKILL_SHARE)
    skill = make_examples(tokenizer, skill_steps * arguments.batch_size, arguments.seed)
    slip_size = (arguments.steps - skill_steps) * arguments.batch_size
    slips = make_examples(tokenizer, slip_size, arguments.seed + 1, MISTAKE_RATES)
    steps = [batch for part in (skill, slips) for batch in batches(part, arguments.batch_size, arguments.seed)]
    train(model, steps, arguments.lr)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    for task in sorted(TASKS):
        result = evaluate(model, tokenizer, task, arguments.eval_size, group=8, seed=arguments.seed)
        print(task, " ".join(f"{name} {value:.3f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
