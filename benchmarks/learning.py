"""Does credit by segment learn faster? Tiny reasoners trained with every system, many seeds, equal effort in tuning.

    OMP_NUM_THREADS=1 python benchmarks/learning.py --jobs 2
    OMP_NUM_THREADS=1 python benchmarks/learning.py --quick
    OMP_NUM_THREADS=1 python benchmarks/learning.py --jobs 2 --batch lm --families functions totals --seeds 0 1 2 3 4
    OMP_NUM_THREADS=1 python benchmarks/learning.py --report --page docs/evidence/learning.md
    OMP_NUM_THREADS=1 python benchmarks/learning.py --against-verl --systems grpo rredcot --families sums

A run is one system, learning rate and seed on one family, by a lean trainer around verl's own loss; --against-verl
compares its rewards with those of real verl runs. Each system is tuned on the same rates and seeds, then measured on
other seeds. Every run is a file of --cache, whole or not there: an interrupted plan goes on, several processes may
share a folder, and --merge takes over the files of other machines. A corrupted file is named and its run repeated;
a failed run stays as failed, is named in every report, and no mean includes it. The runs of the result file are taken over
first, and stay in it where a plan does not ask for them: a fresh checkout goes on where the last one was.

    steps_to_grpo_final  steps of the default to GRPO's final accuracy / GRPO's own (target: at most 0.70)
    time_vs_mc_grpo      seconds of the default to MC-GRPO's final accuracy / MC-GRPO's own (target: at most 0.40)

Both on the family where they are worst. What else is measured, and how: docs/evidence/learning.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from lab.devices import check_device
from learn.arguments import add_choices, add_running, check_together
from learn.curves import Curves, collect, pace_of
from learn.execute import execute, known_records, perform
from learn.runs import DONE, FAILED, Record, Run, Sizes, load, merge, rows_of, take_rows, with_texts
from learn.schedule import Plan
from learn.summary import BASE, Summary, summarize, verdicts, without_unknown
from learn.systems import choose, parse_system
from learn.tables import draw, fill_page, make_tables, objections, page_tables, split_page
from record import picture_of, write_record

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / "outputs" / "learning"
MODELS = ROOT / "outputs" / "fidelity" / "full"
DEFAULT_FAMILIES = ("habits", "chains", "wordy", "parts")
QUICK_FAMILIES = ("sums",)  # its model is there, those of the others are trained first
SMALL, LARGE, LM_BATCH, LM_GPU = "small", "large", "lm", "lm_gpu"
BATCHES = {
    SMALL: Sizes(steps=120, prompts=2, eval_every=12, warmup=15),
    LARGE: Sizes(steps=30, prompts=8, eval_every=3, warmup=4),
    LM_BATCH: Sizes(40, prompts=4, eval_every=8, eval_questions=128, eval_samples=1, final_samples=4, warmup=4),
    LM_GPU: Sizes(steps=40, prompts=4, eval_every=4, eval_questions=128, final_samples=4, warmup=4),
}
"""Many noisy steps, or few that hardly differ from the expected gradient, of as many rollouts in all; and what a language
model of 134.5M parameters does in half an hour of a core; the same steps with finer validations, in a minute of a GPU."""

OUTPUTS = {
    SMALL: RESULTS / "learning.json",
    LARGE: RESULTS / "learning_large.json",
    LM_BATCH: RESULTS / "learning_lm.json",
    LM_GPU: RESULTS / "learning_lm_gpu.json",
}

RATES = {
    SMALL: (7e-5, 1e-4, 1.4e-4, 2e-4),
    LARGE: (1e-4, 2e-4, 4e-4),
    LM_BATCH: (1e-5, 2e-5),
    LM_GPU: (1e-5, 3e-5),
}
FURTHER_RATES = {
    SMALL: (2.5e-5, 3.5e-5, 5e-5, 2.8e-4, 4e-4),
    LARGE: (2.5e-5, 5e-5, 8e-4),
    LM_BATCH: (5e-6, 4e-5),
    LM_GPU: (),
}
"""Tried outward, one after the other, where a system does best at the edge of ``RATES``."""

SHAPE = ("steps", "prompts", "group", "eval_every")
"""Sizes that the command line may give."""

TUNING_SEEDS = {SMALL: (9001, 9002, 9003, 9004), LARGE: (9001, 9002), LM_BATCH: (9001,), LM_GPU: (9001,)}
"""Noisy steps break down at a rate on one seed and not on the next."""

QUICK = Sizes(steps=2, prompts=2, group=4, eval_every=2, eval_questions=4, eval_samples=1, final_samples=1)


def parse_arguments() -> tuple[argparse.Namespace, Plan]:
    """The command line, and what it plans; exits with code 2 where they do not go together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, DEFAULT_FAMILIES, tuple(BATCHES))
    add_running(parser, CACHE, MODELS)
    args = parser.parse_args()
    args.batch = args.batch or (LARGE if args.against_verl else SMALL)
    try:
        if args.page is not None:
            split_page(args.page, OUTPUTS[args.batch].stem)
        if args.jobs < 1:
            raise ValueError(f"--jobs {args.jobs}: expected a positive integer")
        return args, plan_of(args)
    except ValueError as error:
        parser.error(str(error))


def plan_of(args: argparse.Namespace) -> Plan:
    """Families, systems, rates, seeds and sizes that the arguments ask for.

    Raises:
        ValueError: an unknown system, an option of one that is none, or arguments that do not go together.
    """
    systems = choose(args.systems, [parse_system(words) for words in args.system])
    sizes = replace(BATCHES[args.batch], clean_steps=args.clean_steps)
    given = {name: value for name in SHAPE if (value := getattr(args, name)) is not None}
    rates = RATES[args.batch] if args.rates is None else tuple(args.rates)
    tuning = TUNING_SEEDS[args.batch] if args.tuning_seeds is None else tuple(args.tuning_seeds)
    families = args.families or (QUICK_FAMILIES if args.quick else DEFAULT_FAMILIES)
    check_together(args, families, systems)
    return Plan(
        tuple(dict.fromkeys(families)),
        tuple(systems),
        rates[:1] if args.quick else rates,
        tuning[:1] if args.quick else tuning,
        tuple(args.seeds[:2] if args.quick else args.seeds),
        QUICK if args.quick else replace(sizes, **given),
        FURTHER_RATES[args.batch] if args.rates is None and not args.quick else (),
        args.device,
        args.matmul,
        args.greedy,
    )


def clock(minutes: float | None) -> Callable[[], bool]:
    """Whether a run may still start."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    return lambda: end is None or time.monotonic() < end


def gather(plan: Plan, records: dict[Run, Record]) -> dict[str, dict[str, Curves]]:
    """Measured runs by family and system, where at least one is done, with seconds at the pace of GRPO's; what is missing
    is printed."""
    measured = plan.measured(plan.tuned(records))
    found: dict[str, dict[str, Curves]] = {}
    for family in plan.families:
        base = [run for run in measured if (run.family, run.system.name) == (family, BASE)]
        done = [records[run] for run in base if run in records and records[run]["status"] == DONE]
        pace = pace_of(done) if done else None
        for system in plan.systems:
            own = [run for run in measured if (run.family, run.system.name) == (family, system.name)]
            there = [run for run in own if run in records]
            if any(records[run]["status"] == DONE for run in there):
                found.setdefault(family, {})[system.name] = collect(there, records, pace)
            missing = len(plan.seeds) - len(there)
            if missing:
                print(f"{family} {system.name}: {missing} of {len(plan.seeds)} seeds are not run yet")
    return found


def leave_out_other_models(found: dict[str, dict[str, Curves]]) -> list[str]:
    """Take out the systems whose runs did not begin with GRPO's model: the same training on another machine makes another
    one, and they differ by more than the systems do. What was taken out, a line each."""
    lines = []
    for family, systems in found.items():
        base = systems.get(BASE)
        for name in [name for name, own in systems.items() if base is not None and own.weights != base.weights]:
            del systems[name]
            lines.append(f"{family} {name}: its runs began with another model than those of {BASE}; left out")
    return lines


def published(output: Path) -> list[Record]:
    """Rows of the report that is there: what it has need not be run again. A broken one is named and counts for nothing."""
    try:
        return rows_of(output) if output.exists() else []
    except ValueError as error:
        print(f"{error}; its runs are run again unless the cache has them")
        return []


def report(plan: Plan, records: dict[Run, Record], output: Path, page: Path | None, earlier: list[Record]) -> None:
    """Tables, verdicts, objections, the record and the picture. Runs of an ``earlier`` report that this plan does not
    ask for stay in the record, beside its own."""
    found, tuned = gather(plan, records), plan.tuned(records)
    others = leave_out_other_models(found)
    for (family, name), choice in tuned.items():
        scores = ", ".join(f"{rate:g}: {score:.3f}" for rate, score in choice.scores.items())
        print(f"{family} {name}: rate {choice.rate:g} of {scores or 'no others'}")
    if not found:
        print("no measured run is there yet: nothing to report")
        return
    summary: Summary = summarize(found)
    text = "\n".join(
        [
            make_tables(found, summary, tuned),
            "",
            *(f"- {line}" for line in verdicts(summary)),
            *(f"- {line}" for line in [*objections(found, summary, tuned), *others]),
        ]
    )
    print(text)
    settings = {
        "sizes": asdict(plan.sizes),
        "rates": plan.rates,
        "tuning_seeds": plan.tuning_seeds,
        "chosen_rates": {f"{family} {name}": choice.rate for (family, name), choice in tuned.items()},
        "failed": [run.name for run, record in records.items() if record["status"] == FAILED],
        "cpus": sorted({record["cpu"] for record in records.values()}),
        "commits": sorted({str(record["commit"]) for record in records.values()}),
    }
    headlines = [name for name in summary if "/" not in name]
    entries = without_unknown(summary)
    shown = [name for name in headlines if name in entries]
    write_record(output, settings, entries, all_rows(records, earlier), seeds=plan.seeds, shown=shown)
    draw(picture_of(output), found)
    if page is not None:
        picture = f"![Held-out accuracy over steps, seconds and tokens](../images/{output.stem}.png)"
        fill_page(page, f"{page_tables(found, summary, tuned)}\n\n{picture}", output.stem)


def against_verl(args: argparse.Namespace, plan: Plan, folder: Path, output: Path) -> None:
    """Real runs and lean ones at the demo's rate, the missing ones run first; those of an earlier result stay in it."""
    from learn.against_verl import LEARNING_RATE, compare, perform_real, real_run, table, twin

    summary: Summary = {}
    earlier = published(output)
    take_rows(folder, earlier)
    found: dict[Run, Record] = {}
    may_start = clock(args.budget)
    for family in plan.families:
        for system in plan.systems:
            lean = [Run(family, system, float(LEARNING_RATE), seed, plan.sizes) for seed in plan.seeds]
            real = [twin(Run(family, system, float(LEARNING_RATE), seed, plan.sizes)) for seed in args.verl_seeds]
            for run in real:
                real_run(run, folder)  # says what cannot be run before anything is
            done = []
            for runs, start in ((lean, lambda run: perform(run, folder, args.models)),
                                (real, lambda run: perform_real(run, folder, folder / "verl", args.models))):  # fmt: skip
                records = {run: load(folder, run) for run in runs}
                for run, record in records.items():
                    if record is None and not args.report and may_start():
                        records[run] = start(run)
                found |= {run: record for run, record in records.items() if record is not None}
                failed = [run.name for run, r in records.items() if r is not None and r["status"] == FAILED]
                print(f"{family} {system.name}: {sum(r is not None for r in records.values())} {runs[0].trainer} runs"
                      + (f", FAILED: {', '.join(failed)}" if failed else ""))  # fmt: skip
                done.append([r for r in records.values() if r is not None and r["status"] == DONE])
            if all(done):
                summary |= compare(done[0], done[1], f"{family}/{system.name}")
    if not summary:
        print("nothing to compare yet: run this again without --report, or with more --budget")
        return
    print(table(summary))
    settings = {"sizes": asdict(plan.sizes), "rate": LEARNING_RATE, "verl_seeds": args.verl_seeds}
    write_record(output, settings, without_unknown(summary), all_rows(found, earlier), seeds=plan.seeds, shown=[])


def all_rows(records: dict[Run, Record], earlier: list[Record]) -> list[Record]:
    """Rows of a result file: of these runs, and of those of an ``earlier`` report that are not among them."""
    rows = [with_texts({"identity": run.identity, "file": run.file, **record}) for run, record in records.items()]
    own = {row["file"] for row in rows}
    return rows + [row for row in earlier if row["file"] not in own]


def main() -> None:
    args, plan = parse_arguments()
    if not args.report:
        check_device(args.device)
    torch.set_num_threads(1)
    folder = args.cache / ("quick" if args.quick else "full")
    output = args.output or (folder / "learning.json" if args.quick else OUTPUTS[args.batch])
    if args.merge:
        print(f"{merge(folder, args.merge)} runs taken over from {', '.join(map(str, args.merge))}")
    if args.against_verl:
        against_verl(args, plan, folder, output.with_stem(f"{output.stem}_verl"))
        return
    earlier = [] if args.quick else published(output)
    take_rows(folder, earlier)
    if args.report:
        records = known_records(plan, folder)
    else:
        try:
            records = execute(plan, folder, args.models, args.jobs, clock(args.budget), args.retry_failed)
        except torch.OutOfMemoryError as error:
            raise SystemExit(
                f"error: --jobs {args.jobs}: the GPU's memory does not hold so many runs at once; use fewer, the same "
                f"command goes on with those that are left ({str(error).splitlines()[0]})"
            ) from None
    report(plan, records, output, args.page, earlier)
    if args.quick:
        print("--quick: tiny runs, none of these numbers says anything")


if __name__ == "__main__":
    main()
