"""Redistribution with wrong reward models, and with ones made to steer: where does the policy end?

RED's setting on random policies over a tree (5 segments): V̂ of a prefix is a reward model's score of it, and R is
the true outcome. Reward models of graded quality (Pearson with V), systematically wrong ones (length, a taste for
repetition), redistributions made to steer (all credit to one action, late, swapped between siblings, upside down),
and, worse, values that have seen the outcome. All of them keep Σ r = R; ``sum_gap`` is the largest deviation.

Of each, with each λ: the expected gradient is followed without noise from three starts a policy, and ``regret`` is
1 − E[R] where it ends; the best policy has regret 0. ``difference`` is the regret against λ = 1 of the same values,
paired by policy (mean over its starts), with Wilcoxon's p and q, p corrected for the number of tests. ``group_*`` has no critic at the prompt: mean and
deviation of the group, as in GRPO. ``gradient_gap`` is ‖E g − ∇‖ / ‖∇‖ at the start with λ = 1, worst policy.

Means over policies with bootstrap 95% intervals.

    OMP_NUM_THREADS=1 python benchmarks/return_equivalence.py
    OMP_NUM_THREADS=1 python benchmarks/return_equivalence.py --quick --output quick.json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from record import Summary, picture_of, write_record
from tabular.ascent import Ascent
from tabular.drawing import draw_regret
from tabular.prompts import Prompt, random_prompt
from tabular.statistics import mean_interval, paired, with_false_discovery_rate
from tabular.steering import NOISE_SEED, check_sums, climb, group_tables, grpo_tables, kinds, tables

OUTPUT = Path(__file__).parent / "results" / "return_equivalence.json"


@dataclass(frozen=True)
class Settings:
    choices: tuple[int, ...] = (2, 2, 2, 2, 3)
    policies: int = 24
    starts: int = 3
    group: int = 8
    lambdas: tuple[float, ...] = (1.0, 0.95, 0.9, 0.5, 0.0)
    group_lambdas: tuple[float, ...] = (1.0, 0.9, 0.0)
    steps: int = 400
    rate: float = 0.1


QUICK = Settings((2, 2, 3), 6, 2, 8, (1.0, 0.0), (1.0,), 60)

SETTLED = 0.005
"""A run has settled if E[R] changed by less over its last quarter; regrets that differ by less count as equal."""


@dataclass(frozen=True)
class Field:
    """Every policy from every start, one after the other: N = policies × starts."""

    prompts: list[Prompt]
    settings: Settings

    def climb(self, table: torch.Tensor) -> Ascent:
        """Ascend with a table (policies, 1 or G, M, T)."""
        times = self.settings.starts
        rewards = torch.stack([p.rewards for p in self.prompts]).repeat_interleave(times, dim=0)
        first = torch.cat([self.starts_of(p) for p in self.prompts])
        repeated = table.repeat_interleave(times, dim=0)
        return climb(self.prompts[0].tree, first, rewards, repeated, self.settings.steps, self.settings.rate)

    def starts_of(self, prompt: Prompt) -> torch.Tensor:
        """(starts, S, W): the policy whose values the reward models know, and random ones."""
        generator = torch.Generator().manual_seed(prompt.seed + 10**6)
        shape = (self.settings.starts - 1, *prompt.logits.shape)
        return torch.cat([prompt.logits[None], torch.randn(shape, generator=generator, dtype=torch.float64)])

    def regret(self, ascent: Ascent) -> list[float]:
        """One number a policy, the mean over its starts."""
        return (1 - ascent.rewards[:, -1]).view(-1, self.settings.starts).mean(dim=1).tolist()


def gradient_gap(prompts: list[Prompt], table: torch.Tensor) -> float:
    """Largest ‖E g − ∇‖ / ‖∇‖ at the policies of the prompts."""
    gaps = []
    for p, own in zip(prompts, table[:, 0], strict=True):
        mean = p.tree.gradient(p.logits[None], (p.probabilities[:, None] * own)[None]).flatten()
        gaps.append(float((mean - p.exact_gradient).norm() / p.exact_gradient.norm()))
    return max(gaps)


def settled(ascent: Ascent) -> float:
    quarter = ascent.rewards[:, -ascent.rewards.shape[1] // 4 :]
    return float(((quarter.amax(dim=1) - quarter.amin(dim=1)) < SETTLED).double().mean())


def measure(field: Field) -> tuple[Summary, dict[str, list[float]]]:
    """Summary, and the regret of every policy by "kind/lam"."""
    settings, summary, regrets, steady = field.settings, Summary(), {}, []

    def follow(name: str, table: torch.Tensor) -> None:
        ascent = field.climb(table)
        regrets[name] = field.regret(ascent)
        summary[f"regret/{name}"] = mean_interval(regrets[name])
        steady.append(settled(ascent))
        print(f"{name:32s} regret {summary[f'regret/{name}']['value']:.3f}", flush=True)

    summary["sum_gap"] = exactly(check_sums(field.prompts, kinds()))
    follow("grpo", grpo_tables(field.prompts, settings.group))
    for name, kind in kinds().items():
        for lam in settings.lambdas:
            table = tables(field.prompts, kind, lam)
            if lam == 1.0:
                summary[f"gradient_gap/{name}"] = exactly(gradient_gap(field.prompts, table))
            follow(f"{name}/lam_{lam:g}", table)
        for lam in settings.group_lambdas:
            follow(f"group_{name}/lam_{lam:g}", group_tables(field.prompts, kind, lam, settings.group))
    summary |= differences(regrets)
    summary["settled_share"] = mean_interval(steady)
    return summary, {name: [round(x, 4) for x in values] for name, values in regrets.items()}


def differences(regrets: dict[str, list[float]]) -> Summary:
    """Paired tests of every "kind/lam" against λ = 1; GRPO has nothing to be compared with."""
    tests = {}
    for name, values in regrets.items():
        reference = f"{name.split('/')[0]}/lam_1"
        if name not in ("grpo", reference):
            tests[f"difference/{name}"] = paired(values, regrets[reference], SETTLED)
    return with_false_discovery_rate(tests)


def print_table(summary: Summary, settings: Settings) -> None:
    """Regret of every value function by λ; a star where it differs from λ = 1 (q < 0.05)."""
    columns = [*(("", lam) for lam in settings.lambdas), *(("group_", lam) for lam in settings.group_lambdas)]
    print(f"\n{'regret':20s}" + "".join(f"{f'{start}λ={lam:g}':>14s}" for start, lam in columns))
    for kind in kinds():
        cells = []
        for start, lam in columns:
            name = f"{start}{kind}/lam_{lam:g}"
            star = "*" if summary.get(f"difference/{name}", {"q": 1.0})["q"] < 0.05 else " "
            cells.append(f"{summary[f'regret/{name}']['value']:13.3f}{star}")
        print(f"{kind:20s}" + "".join(cells))


def exactly(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 policies on a smaller tree, fewer λ and steps")
    parser.add_argument("--seed", type=int, default=0, help="of the first policy; the others count on (default 0)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes; the picture beside it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = QUICK if args.quick else Settings()
    seeds = list(range(args.seed, args.seed + settings.policies))
    field = Field([random_prompt(settings.choices, seed) for seed in seeds], settings)
    summary, regrets = measure(field)
    described = asdict(settings) | {"noise_seed": NOISE_SEED}
    write_record(args.output, described, summary, regrets, seeds=seeds, shown=())
    print_table(summary, settings)
    draw_regret(picture_of(args.output), summary, list(kinds()), settings.lambdas)


if __name__ == "__main__":
    main()
