"""Which of verl's advantage estimators are exact? Every one that verl registers, and ours, with verl's own functions.

1. On policies with so few traces that every group of N = 2, 4 and 8 can be enumerated: E[ĝ] without sampling noise.
``size``: its component along the gradient g over ‖g‖, minus 1. ``degrees``: its angle with g. value, low, high: median and
extremes over the prompts. ``batch_…``: a batch that holds one group of each prompt, the prompts' parameters side by side; for
estimators with statistics of the batch from sampled batches, low and high being two standard errors. ĝ is the mean over the
rollouts of Σ_t A_t ∇ log π(o_t) (``seq-mean-token-sum``, up to a constant factor); ``token_mean_…`` and ``trace_mean_…`` divide
as verl's ``token-mean`` and ``seq-mean-token-mean`` do.

2. On tiny reasoners, families and steps of benchmarks/gradient.py, whose stages it shares: ``size``, ``cosine`` and
``snr_vs_grpo``, (E g · ∇/‖∇‖)² / tr Cov(g) with GRPO = 1, on the same groups for all; bootstrap 95% intervals.

    OMP_NUM_THREADS=1 python benchmarks/estimators.py --page docs/evidence/estimators.md
    OMP_NUM_THREADS=1 python benchmarks/estimators.py --quick --output quick.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from estimators_table.drawing import draw
from estimators_table.enumerated import Plan, enumerate_all, prompts_of, sample_batches, summarise
from estimators_table.measured import measure_family
from estimators_table.stage import get_ready
from estimators_table.tables import fill_page, page_tables, split_page
from gradient import CACHE, QUICK, QUICK_TRAINING
from grads.stage import Sizes
from lab.models import CleanTraining, load_models
from lab.rollouts import Actor
from lab.store import Store
from lab.tasks import FAMILIES, RIGHT_OR_WRONG
from record import Summary, write_record

from rredcot_plugin.tiny.reasoner import build_tokenizer

OUTPUT = Path(__file__).parent / "results" / "estimators.json"
QUICK_PLAN = Plan(seeds=1, sizes=(2, 3), batches=20, shapes=("early_stop",))
DEFAULT = ["habits", "chains", "own_sums", "parts", "sorting", "sums"]
WIDE = {"own_sums": 256, "chains": 256, "parts": 256, "habits": 256}
"""Questions that the prompts are chosen from, where the default finds too few of medium success."""


def enumerated(plan: Plan, store: Store) -> Summary:
    """Part 1."""
    begin = time.monotonic()

    def progress(what: str) -> None:
        print(f"{what} ({time.monotonic() - begin:.0f} s)", flush=True)

    found = enumerate_all(plan, store, progress)
    sampled = {size: sample_batches(plan, store, size) for size in plan.sizes}
    return summarise(found, sampled, plan.sizes)


def on_family(name: str, cache: Path, *, quick: bool, seed: int) -> Summary:
    """Part 2, one family."""
    family, training = FAMILIES[name], QUICK_TRAINING if quick else CleanTraining()
    sizes = dataclasses.replace(QUICK if quick else Sizes(candidates=WIDE.get(name, 64)), seed=seed)
    store = Store(cache / ("quick" if quick else "full"))
    model = load_models(store, training, {family.model})[family.model]
    own = Store(store.folder / (name if family.model == "demo" else f"{name}_{training.steps}"))

    def progress(step: int) -> None:
        if (step + 1) % 8 == 0 or step + 1 == sizes.steps:
            print(f"{name}: step {step + 1}/{sizes.steps}", flush=True)

    return measure_family(get_ready(Actor(family, model, build_tokenizer()), sizes, own), own, progress)


def kept_families(output: Path, plan: Plan, renewed: list[str]) -> Summary:
    """Entries of the families that ``output`` has and that are not measured anew; ValueError if its plan was another."""
    record = json.loads(output.read_text())
    if record["settings"]["plan"] != json.loads(json.dumps(asdict(plan))):
        raise ValueError(
            f"--keep: {output} was measured with another plan; leave --keep out to measure all families"
        )
    old = [name for name in record["settings"]["families"] if name not in renewed]
    return {key: entry for key, entry in record["summary"].items() if key.split("/")[0] in old}


def report(output: Path, page: Path | None) -> None:
    """Picture and tables of what ``output`` holds."""
    record = json.loads(output.read_text())
    summary, sizes, families = (
        record["summary"],
        record["settings"]["plan"]["sizes"],
        record["settings"]["families"],
    )
    draw(
        page.parent.parent / "images" / "estimators.png" if page else output.with_suffix(".png"),
        summary,
        sizes,
        families,
    )
    tables = page_tables(summary, sizes, families)
    if page:
        fill_page(page, tables)
    else:
        print(tables)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    parser.add_argument(
        "--families",
        nargs="*",
        choices=RIGHT_OR_WRONG,
        metavar="NAME",
        help=f"of the gradient benchmark (default {' '.join(DEFAULT)}); no name: enumerable policies alone",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the families' questions and rollouts (default 0)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for models, rollouts and gradients")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    parser.add_argument(
        "--keep", action="store_true", help="keep the families that --output holds of the same plan"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing: picture and page from --output")
    parser.add_argument("--page", type=Path, help="page whose part between the estimators marks is replaced")
    args = parser.parse_args()
    if args.families is None:
        args.families = ["sums"] if args.quick else DEFAULT
    if args.page is not None:
        try:
            split_page(args.page)
        except (OSError, ValueError) as error:
            parser.error(f"--page {error}")
    return args


def main() -> None:
    args = parse_arguments()
    if args.report:
        report(args.output, args.page)
        return
    torch.set_num_threads(1)
    plan = QUICK_PLAN if args.quick else Plan()
    summary = enumerated(plan, Store(args.cache / ("quick" if args.quick else "full") / "enumerable"))
    kept = kept_families(args.output, plan, args.families) if args.keep else {}
    done = list(dict.fromkeys(key.split("/")[0] for key in kept))
    summary |= kept
    for family in [None, *args.families]:
        if family is not None:
            entries = on_family(family, args.cache, quick=args.quick, seed=args.seed)
            summary |= {f"{family}/{key}": entry for key, entry in entries.items()}
            done.append(family)
        # written after every family, so that an interrupted run leaves what it has, and says which families
        settings = {"plan": asdict(plan), "prompts": len(prompts_of(plan)), "families": done, "quick": args.quick}
        write_record(args.output, settings, summary, {}, seeds=[args.seed], shown=())
        report(args.output, args.page)


if __name__ == "__main__":
    main()
