"""Is `rredcot plan` right about what probes cost? Its predicted ratio probed pass / plain pass, against measured ones.

Per cell of T trace tokens × K boundaries × A probe tokens, in one process with one thread: the plain log-prob pass and
the same plus probes with each backend, in rounds with a rotating order, `batched` in the first rounds only. The ratio is
of CPU seconds, which other jobs on the machine disturb least (wall seconds are in the raw rows), and taken within a
round; of `batched` over the cell's median plain pass. Low and high of a cell are a bootstrap 95% interval of the median.
A cell's error is |predicted / measured − 1|; `plan_ratio_error` is the largest of all cells, with the errors at both
ends of that cell's interval (0 where the prediction lies inside). The committed cell of probe_overhead.json is compared
as well.

The driver's share: CPU seconds of planning probes (`plan_probes`), and of finding the text of a token, on traces like
those of assign_credit.py; rredcot_plugin/planning/driver.py has these numbers, and credit's from assign_credit_hybrid.json.
Memory is that of a plan's tensors.

    nice -n 19 env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/plan_check.py
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from assign_credit import ANSWER, GROUP, LINES, lines_with_widths, one_trace
from probe_passes import SEED, ProbeSizes, build_model, draw_probes, make_passes, rotated, time_round
from record import Summary, with_interval, write_record

from rredcot_plugin import RRedCoTConfig
from rredcot_plugin.adapter.probe_plan import plan_probes
from rredcot_plugin.adapter.prompted_rollouts import PromptedRollouts
from rredcot_plugin.dry_run.architecture import train_tokenizer
from rredcot_plugin.planning.check import predicted_ratio
from rredcot_plugin.planning.models import ModelSizes, sizes_of
from rredcot_plugin.text.alignment import TokenBytes
from rredcot_plugin.text.encoding import ProbeEncoder
from rredcot_plugin.types import Rollouts

CELLS = ((512, 16, 12), (1024, 16, 12), (1024, 64, 12), (1024, 16, 32), (2048, 32, 12))
BACKENDS = ("cached", "packed", "batched")
BATCHED = 2
"""The first cells, which `batched` runs in as well."""

RESULTS = Path(__file__).parent / "results"
DRIVER_TOKENS = (1024, 4096)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds of plain, cached, packed (default 5)")
    parser.add_argument("--batched-repeats", type=int, default=3, help="rounds that run batched too (default 3)")
    parser.add_argument("--output", type=Path, default=RESULTS / "plan_check.json", help="where the JSON goes")
    return parser.parse_args()


def predicted(model_sizes: ModelSizes, backend: str, cell: ProbeSizes) -> float:
    """The plan's ratio for the boundaries that `make_passes` draws for this cell."""
    boundaries = [boundary for boundary, _, _ in draw_probes(cell)[1][0]]
    return predicted_ratio(model_sizes, backend, cell.tokens, boundaries, cell.probe_tokens)


def measure_cell(
    model: torch.nn.Module, model_sizes: ModelSizes, cell: ProbeSizes, repeats: int, batched: int
) -> list[dict[str, Any]]:
    """One row a backend: seconds of every round by clock, their ratios, the predicted ratio."""
    passes = make_passes(cell, model)
    expected = passes["cached"]()
    assert expected is not None
    rounds = []
    for number in range(repeats):
        names = rotated(["plain", "cached", "packed"], number) + (["batched"] if number < batched else [])
        rounds.append(time_round(passes, names, expected))
    rows = []
    for name in BACKENDS if batched else BACKENDS[:2]:
        own = [found for found in rounds if name in found]
        row = {
            **describe(cell, name),
            "predicted": predicted(model_sizes, name, cell),
            "ratios": ratios_of(
                name, [found[name]["cpu"] for found in own], [found["plain"]["cpu"] for found in rounds]
            ),
            "seconds": {"plain": [found["plain"] for found in rounds], name: [found[name] for found in own]},
        }
        rows.append(row)
        print(f"{label(row)}: measured {median(row['ratios']):.3f}, predicted {row['predicted']:.3f}", flush=True)
    return rows


def ratios_of(backend: str, probed: list[float], plain: list[float]) -> list[float]:
    """Within the round; `batched` runs for twenty times as long, and is compared with the median plain pass."""
    if backend == "batched":
        return [seconds / median(plain) for seconds in probed]
    return [seconds / reference for seconds, reference in zip(probed, plain, strict=True)]


def describe(cell: ProbeSizes, backend: str) -> dict[str, Any]:
    return {"backend": backend, "tokens": cell.tokens, "probes": cell.probes, "probe_tokens": cell.probe_tokens}


def label(row: dict[str, Any]) -> str:
    return "_".join(str(row[key]) for key in ("backend", "tokens", "probes", "probe_tokens"))


def clocked(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def committed_rows(model_sizes: ModelSizes) -> list[dict[str, Any]]:
    """The cell of probe_overhead.json, in the form of `measure_cell`."""
    record = json.loads((RESULTS / "probe_overhead.json").read_text())
    settings, cpu = record["settings"], record["raw"]["seconds"]["cpu"]
    cell = ProbeSizes(settings["tokens"], settings["probes"], settings["probe_tokens"])
    return [
        {
            **describe(cell, name),
            "source": "probe_overhead.json",
            "predicted": predicted(model_sizes, name, cell),
            "ratios": ratios_of(name, cpu[name], cpu["plain"]),
        }
        for name in BACKENDS
    ]


def error_of(row: dict[str, Any]) -> dict[str, float]:
    """|predicted / measured − 1| at the median; low and high over the interval of the ratio."""
    ratio, predicted = with_interval(row["ratios"]), row["predicted"]
    ends = [abs(predicted / ratio[end] - 1) for end in ("low", "high")]
    inside = ratio["low"] <= predicted <= ratio["high"]
    return {"value": abs(predicted / ratio["value"] - 1), "low": 0.0 if inside else min(ends), "high": max(ends)}


def make_step(tokens: int, traces: int = 8 * GROUP) -> tuple[PromptedRollouts, ProbeEncoder, TokenBytes]:
    """Traces of about ``tokens`` tokens that read like assign_credit.py's, four right answers a group."""
    rng = random.Random(0)
    pool = [line for template in LINES for line in lines_with_widths(template, 200, rng)]
    answers = lines_with_widths(ANSWER, 4, rng)
    tokenizer = train_tokenizer([text for text, _ in [*pool, *answers]])
    texts = [one_trace(tokens, pool, answers[row % 4], rng)[0] for row in range(traces)]
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    table, lengths = TokenBytes.from_tokenizer(tokenizer), [len(row) for row in ids]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]
    rewards = torch.zeros(padded.shape)
    rewards[torch.arange(traces), torch.tensor(lengths) - 1] = 1.0
    aligned = [table.align(row.numpy()) for row in ids]
    rollouts = Rollouts(
        padded, mask, rewards, [row // GROUP for row in range(traces)],
        texts=[text for text, _ in aligned], token_offsets=[spans for _, spans in aligned],
    )  # fmt: skip
    rows = PromptedRollouts(rollouts, [torch.arange(64)] * traces, [""] * traces, lengths)
    return rows, ProbeEncoder(tokenizer), table


def measure_driver(tokens: int, repeats: int) -> dict[str, Any]:
    """CPU seconds of the driver's parts by repeat, and the memory of a plan."""
    torch.set_num_threads(1)
    rows, encoder, table = make_step(tokens)
    config = RRedCoTConfig()
    segments = config.build_levels(rows.rollouts)[-1]
    plan = plan_probes(rows, segments, config, encoder)
    ids = [rows.rollouts.token_ids[i, :n].numpy() for i, n in enumerate(rows.lengths)]
    parts: dict[str, Callable[[], Any]] = {
        "align": lambda: [table.align(row) for row in ids],
        "plan": lambda: plan_probes(rows, segments, config, encoder),
    }
    found = {f"{name}_seconds": [clocked(run)[0] for _ in range(repeats)] for name, run in parts.items()}
    boundaries = int((segments.num_segments - 1).clamp(min=0).sum())
    return {
        "tokens": sum(rows.lengths), "traces": len(rows.lengths), "boundaries": boundaries,
        "characters": sum(len(text) for text in rows.rollouts.texts or []),
        "probes": plan.size, "plan_bytes": sum(x.nbytes for x in (*plan.packed, *plan.places)), **found,
    }  # fmt: skip


def summarise_driver(rows: list[dict[str, Any]]) -> Summary:
    longest = rows[-1]
    summary: Summary = {
        "align_seconds_per_token": with_interval([s / longest["tokens"] for s in longest["align_seconds"]]),
    }
    for row in rows:
        name = f"plan_seconds_per_probe_at_{row['tokens'] // row['traces']}_tokens"
        summary[name] = with_interval([s / row["probes"] for s in row["plan_seconds"]])
    return summary


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    model = build_model()
    model_sizes = sizes_of(model.config, "the model of probe_passes.py")
    rows = committed_rows(model_sizes)
    for number, cell in enumerate(CELLS):
        batched = args.batched_repeats if number < BATCHED else 0
        rows += measure_cell(model, model_sizes, ProbeSizes(*cell), args.repeats, batched)
    errors = [error_of(row) for row in rows]
    summary: Summary = {"plan_ratio_error": max(errors, key=lambda error: error["value"])}
    for row, error in zip(rows, errors, strict=True):
        summary[f"{label(row)}_measured"] = with_interval(row["ratios"])
        summary[f"{label(row)}_predicted"] = dict.fromkeys(("value", "low", "high"), row["predicted"])
        summary[f"{label(row)}_error"] = error
    driver = [measure_driver(tokens, args.repeats) for tokens in DRIVER_TOKENS]
    summary |= summarise_driver(driver)
    settings = {"cells": CELLS, "repeats": args.repeats, "model_parameters": model_sizes.parameters, "target": 0.2}
    write_record(args.output, settings, summary, {"cells": rows, "driver": driver}, seeds=[SEED])


if __name__ == "__main__":
    main()
