"""How good is the gradient of a step of few prompts with many rollouts each, or of many prompts with few?

The model stands still. Questions as training draws them, of any success, get 8 rollouts each; 16 questions are a block. Steps of
2 × 8, 4 × 4, 8 × 2 and 16 × 1 rollouts are made of the same blocks, eight of a block in every shape. Credit is that of
learning.py's systems, with a calibrator that has seen the steps before.

``snr_vs_grpo_2x8``: (E g · ∇/‖∇‖)² / tr Cov(g) of a step, that of GRPO with 2 × 8 = 1, at the same number of rollouts;
Cov(g) is over prompts and rollouts, as in training. ``snr_vs_grpo_4x4``, ``snr_vs_grpo_16x1``: GRPO there = 1. ``cosine`` of E g and ∇,
without the noise of either; ∇ is the mean of RLOO's gradients in groups of 8. 95% intervals: bootstrap over blocks,
the same ones for all. Gradients as in gradient.py: sketched, and of a real language model (``--families totals words
functions``) those of its last two layers. Stages are kept in ``--cache``: an interrupted run goes on there.
A tiny family takes about five minutes of a core, 12 blocks of ``words`` a quarter of an hour.

    OMP_NUM_THREADS=1 python benchmarks/shape_signal.py
    OMP_NUM_THREADS=1 python benchmarks/shape_signal.py --families words --blocks 12
    OMP_NUM_THREADS=1 python benchmarks/shape_signal.py --quick --output quick.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from grads.actors import measured_actors
from grads.shapes import GROUPS, Products, Setup, block_gradients, prepare, products, quality, shape_name
from lab.devices import add_device, check_device, processor
from lab.models import CleanTraining
from lab.store import Store
from lab.tasks import FAMILIES
from learn.systems import GRPO, REINFORCE_PLUS_PLUS, RLOO, choose, parse_system
from record import Summary, write_record

OUTPUT = Path(__file__).parent / "results" / "shape_signal.json"
CACHE = Path(__file__).parent.parent / "outputs" / "gradient"
TINY = ("sums", "sorting", "own_sums", "habits", "parts", "chains")
BLOCKS, SKETCH, RESAMPLES = 32, 8192, 1000
QUICK_BLOCKS, QUICK_SKETCH, QUICK_TRAINING = 2, 1024, CleanTraining(steps=120)
SYSTEMS = choose(
    (GRPO, RLOO, REINFORCE_PLUS_PLUS, "no_baseline", "rredcot"),
    [parse_system(["low_variance", "preset=low_variance"])],
)
ALONE = (GRPO, REINFORCE_PLUS_PLUS, "rredcot", "low_variance")
"""What runs with one rollout of a prompt; GRPO has no baseline there."""

BASES = tuple(f"{shape_name(group)}/{GRPO}" for group in (8, 4, 1))
"""GRPO as the other results have it, in its best groups, and where it has no baseline."""

REFERENCE = f"{shape_name(max(GROUPS))}/{RLOO}"


def measure(setup: Setup, seed: int, resamples: int) -> Summary:
    """Entries of every shape and system."""
    gradients = {
        f"{shape_name(group)}/{system.name}": block_gradients(setup, system, group)
        for group in GROUPS
        for system in SYSTEMS
        if group > 1 or system.name in ALONE
    }
    tables = {name: products(found, gradients[REFERENCE]) for name, found in gradients.items()}
    rng, blocks = np.random.default_rng(seed), setup.blocks
    drawn = [np.ones(blocks), *rng.multinomial(blocks, np.full(blocks, 1 / blocks), resamples).astype(float)]
    summary = compared(tables, drawn)
    facts = {"accuracy": float(setup.rewards.mean()), "mixed_pairs": _mixed_pairs(setup.rewards)}
    return summary | {name: {"value": x, "low": x, "high": x} for name, x in facts.items()}


def compared(tables: dict[str, Products], drawn: list[np.ndarray]) -> Summary:
    """Of the sample, which is drawn first, with the interval of the other draws."""
    found = {name: [quality(own, tables[REFERENCE], counts) for counts in drawn] for name, own in tables.items()}
    summary: Summary = {}
    for name, own in found.items():
        for base in BASES:
            ratios = [one.snr / other.snr for one, other in zip(own, found[base], strict=True)]
            summary[f"snr_vs_{'_'.join(reversed(base.split('/')))}/{name}"] = interval(np.array(ratios))
        summary[f"cosine/{name}"] = interval(np.array([one.cosine for one in own]))
    return summary


def interval(numbers: np.ndarray) -> dict[str, float]:
    """The first number, with the 95% interval of those of the others that are there; of few blocks there may be none."""
    drawn = numbers[1:][np.isfinite(numbers[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (numbers[0], numbers[0])
    return {"value": float(numbers[0]), "low": float(low), "high": float(high)}


def _mixed_pairs(rewards: np.ndarray) -> float:
    """Share of groups of two that are not both right or both wrong, the only ones that GRPO learns from."""
    pairs = rewards.reshape(len(rewards), -1, 2)
    return float((pairs[..., 0] != pairs[..., 1]).mean())


def show(family: str, summary: Summary) -> None:
    print(f"\n{family}")
    for key, entry in summary.items():
        print(f"  {key:44s}{entry['value']:9.3f} [{entry['low']:.3f}, {entry['high']:.3f}]")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(TINY), metavar="NAME")
    parser.add_argument("--blocks", type=int, help=f"blocks of 16 questions × 8 rollouts (default {BLOCKS})")
    parser.add_argument("--seed", type=int, default=0, help="of questions and rollouts (default 0)")
    add_device(parser)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and gradients")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    if args.blocks is not None and args.blocks < 2:
        parser.error(f"--blocks {args.blocks}: expected an integer from 2, products are of different blocks")
    return args


def main() -> None:
    args = parse_arguments()
    check_device(args.device)
    torch.set_num_threads(1)
    begin = time.process_time()
    blocks = args.blocks or (QUICK_BLOCKS if args.quick else BLOCKS)
    sketch = QUICK_SKETCH if args.quick else SKETCH
    training = QUICK_TRAINING if args.quick else CleanTraining()
    store = Store(args.cache / ("quick" if args.quick else "full"))
    summary: Summary = {}
    for number, (actor, own) in enumerate(measured_actors(args.families, training, store, args.device), 1):
        name, found = (
            actor.family.name,
            measure(prepare(actor, blocks, sketch, args.seed, own), args.seed, RESAMPLES),
        )
        show(name, found)
        summary |= {f"{name}/{key}": entry for key, entry in found.items()}
        # written after every family, so that an interrupted run leaves what it has, and says which families
        settings = {"blocks": blocks, "sketch": sketch, "families": args.families[:number]}
        settings |= {"device": processor(args.device, "cpu"), "cpu_seconds": time.process_time() - begin}
        write_record(args.output, settings, summary, [], seeds=[args.seed], shown=[])


if __name__ == "__main__":
    main()
