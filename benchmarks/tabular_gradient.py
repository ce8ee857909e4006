"""How good is the gradient of each way of giving credit, where the true one can be summed up exactly?

Part 1, on random softmax policies over a tree (5 segments, right answer from half of the last states), groups of 8:
bias ‖E g − ∇‖ / ‖∇‖ (a gradient of another length counts as biased), cosine with ∇, and variance over signal
against GRPO: snr_vs_grpo = noise(GRPO) / noise(method), noise = tr Cov(g) / (E g · ∇/‖∇‖)². Above 1 the method needs
fewer rollouts than GRPO for the same quality. Mean and variance are sums over every group; Monte-Carlo values are
drawn, and ``calibrate: outcome``, which is fitted across groups, is measured on sampled batches, next to GRPO on the
same ones.

Part 2 follows the expected gradient without any noise, with values that read the policy's own confidence: does the
policy climb R or V̂? ``final_reward`` is E[R] at the end.

Medians (part 1) and means (part 2) over policies, with bootstrap 95% intervals.

    OMP_NUM_THREADS=1 python benchmarks/tabular_gradient.py
    OMP_NUM_THREADS=1 python benchmarks/tabular_gradient.py --quick --output quick.json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from record import Summary, picture_of, with_interval, write_record
from tabular.calibrated import VARIANTS, sampled_moments
from tabular.drawing import draw_gradients
from tabular.gaming import CASES, Race, fit, race, starts
from tabular.methods import NOISE_SEED, methods
from tabular.moments import Moments, group_moments
from tabular.prompts import Prompt, random_prompt
from tabular.statistics import mean_interval

OUTPUT = Path(__file__).parent / "results" / "tabular_gradient.json"


@dataclass(frozen=True)
class Settings:
    choices: tuple[int, ...] = (2, 2, 2, 2, 3)
    policies: int = 24
    group: int = 8
    draws: int = 256
    batches: int = 160
    ascent_steps: int = 150
    ascent_rate: float = 0.1


QUICK = Settings((2, 2, 3), 4, 8, 32, 4, 40)

Rows = dict[str, dict[str, list[float]]]
"""Method → measure → one number a policy."""


def measured(moments: Moments, prompt: Prompt, reference: Moments) -> dict[str, float]:
    exact = prompt.exact_gradient
    return {
        "bias": moments.bias(exact),
        "cosine": moments.cosine(exact),
        "snr_vs_grpo": reference.noise(exact) / moments.noise(exact),
        "standard_error": moments.error / float(exact.norm()),
    }


def enumerated(prompts: list[Prompt], settings: Settings) -> Rows:
    """Part 1, everything that can be summed up."""
    rows: Rows = {}
    for i, prompt in enumerate(prompts):
        found = {
            name: group_moments(prompt, method(prompt), settings.group)
            for name, method in methods(settings.group, settings.draws).items()
        }
        for name, moments in found.items():
            append(rows, name, measured(moments, prompt, found["grpo"]))
        print(f"policy {i + 1}/{len(prompts)}: enumerated", flush=True)
    return rows


def sampled(prompts: list[Prompt], settings: Settings) -> Rows:
    """Part 1, the calibrated default and what it is compared with on the same batches."""

    def progress(batch: int) -> None:
        if batch % 20 == 0:
            print(f"calibrated, batch {batch}/{settings.batches}", flush=True)

    rows: Rows = {}
    found = sampled_moments(prompts, settings.group, settings.batches, NOISE_SEED, progress)
    for prompt, by_name in zip(prompts, found, strict=True):
        for name, moments in by_name.items():
            append(rows, name, measured(moments, prompt, by_name["sampled_grpo"]))
    return rows


def append(rows: Rows, name: str, measures: dict[str, float]) -> None:
    for measure, value in measures.items():
        rows.setdefault(name, {}).setdefault(measure, []).append(round(value, 5))


def raced(prompts: list[Prompt], settings: Settings) -> tuple[dict[str, Race], dict[str, list[float]]]:
    """Part 2: "start/case" → race, and how well confidence correlates with V at either start."""
    tree, rewards = prompts[0].tree, torch.stack([p.rewards for p in prompts])
    found, correlation = {}, {}
    for kind, logits in starts(prompts).items():
        correlation[kind] = fit(tree, logits, rewards)[2].tolist()
        for name, case in CASES.items():
            found[f"{kind}/{name}"] = race(
                tree, logits, rewards, case, settings.ascent_steps, settings.ascent_rate
            )
            print(f"ascent {kind}/{name}", flush=True)
    return found, correlation


def summarise(rows: Rows, races: dict[str, Race], correlation: dict[str, list[float]]) -> Summary:
    summary: Summary = {}
    for name, measures in rows.items():
        for measure in ("bias", "cosine", "snr_vs_grpo"):
            summary[f"{measure}/{name}"] = with_interval(measures[measure])
        if any(measures["standard_error"]):
            summary[f"standard_error/{name}"] = with_interval(measures["standard_error"])
    for kind, values in correlation.items():
        summary[f"confidence_vs_value/{kind}"] = mean_interval(values)
    for name, one in races.items():
        first, last = one.ascent.rewards[:, 0], one.ascent.rewards[:, -1]
        summary[f"final_reward/{name}"] = mean_interval(last.tolist())
        summary[f"final_value/{name}"] = mean_interval(one.believed[:, -1].tolist())
        summary[f"share_worse_than_start/{name}"] = mean_interval((last < first - 0.01).double().tolist())
    return summary


def print_tables(summary: Summary, rows: Rows, races: dict[str, Race]) -> None:
    for title, names, columns in (
        ("method", rows, ("bias", "cosine", "snr_vs_grpo")),
        ("start/case", races, ("final_reward", "final_value", "share_worse_than_start")),
    ):
        print(f"\n{title:26s}" + "".join(f"{column:>26s}" for column in columns))
        for name in names:
            entries = [summary[f"{column}/{name}"] for column in columns]
            print(
                f"{name:26s}" + "".join(f"{e['value']:10.3f} [{e['low']:.3f}, {e['high']:.3f}]" for e in entries)
            )


def raw_of(rows: Rows, races: dict[str, Race]) -> dict[str, Any]:
    """One number a policy and measure; of the races every tenth step of the mean."""
    curves = {
        name: {
            "reward": [round(x, 4) for x in one.ascent.rewards.mean(dim=0)[::10].tolist()],
            "value": [round(x, 4) for x in one.believed.mean(dim=0)[::10].tolist()],
            "final_reward": [round(x, 4) for x in one.ascent.rewards[:, -1].tolist()],
        }
        for name, one in races.items()
    }
    return {"gradient": rows, "ascent": curves}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 policies on a smaller tree, few batches")
    parser.add_argument("--seed", type=int, default=0, help="of the first policy; the others count on (default 0)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes; the picture beside it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = QUICK if args.quick else Settings()
    seeds = list(range(args.seed, args.seed + settings.policies))
    prompts = [random_prompt(settings.choices, seed) for seed in seeds]
    rows = enumerated(prompts, settings) | sampled(prompts, settings)
    races, correlation = raced(prompts, settings)
    summary = summarise(rows, races, correlation)
    print_tables(summary, rows, races)
    described = asdict(settings) | {"noise_seed": NOISE_SEED, "sampled": list(VARIANTS)}
    write_record(args.output, described, summary, raw_of(rows, races), seeds=seeds, shown=())
    draw_gradients(picture_of(args.output), summary, races)


if __name__ == "__main__":
    main()
