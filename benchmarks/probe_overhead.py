"""What probes cost on top of the log-prob pass of a trace, on CPU: one size, many rounds, all three backends.

Times, interleaved in one process: the plain pass (forward and log-probs of the trace's tokens), and the same
plus K probes of A tokens with each backend. Ratios are taken within a round, then the median over rounds; low
and high are a bootstrap 95% interval of that median. The floor is (T + K*A) / T: the cost if a probe token cost
what a trace token costs. Wall time is the headline; CPU time of all threads (`*_cpu_*`) is kept beside it, since
it is what other jobs on the machine disturb least. Peak memory comes from a fresh process for every T, with K/T
kept fixed. Over a grid of sizes: `overhead.py`.

    OMP_WAIT_POLICY=passive python benchmarks/probe_overhead.py
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from probe_passes import SEED, VOCAB_SIZE, ProbeSizes, build_model, make_passes, peak_growth, rotated, time_round
from record import with_interval, write_record

MEMORY_TOKENS = (1024, 2048, 4096)
OUTPUT = Path(__file__).parent / "results" / "probe_overhead.json"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="trace tokens T (default 4096)")
    parser.add_argument("--probes", type=int, default=64, help="probes K (default 64)")
    parser.add_argument("--probe-tokens", type=int, default=12, help="tokens A of a probe (default 12)")
    parser.add_argument("--bridge-tokens", type=int, default=0, help="how many of the A are bridge (default 0)")
    parser.add_argument("--repeats", type=int, default=11, help="rounds of plain, cached, packed (default 11)")
    parser.add_argument("--batched-repeats", type=int, default=2, help="rounds that run batched too (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--skip-memory", action="store_true", help="leave the memory measurement out")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    parser.add_argument("--memory-worker", choices=("plain", "cached"), help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_times(
    args: argparse.Namespace, sizes: ProbeSizes, model: torch.nn.Module
) -> dict[str, dict[str, list[float]]]:
    """Seconds of every run by clock; the order in a round rotates, batched runs in the first rounds only."""
    passes = make_passes(sizes, model)
    expected = passes["cached"]()
    assert expected is not None
    seconds: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in passes} for clock in ("wall", "cpu")
    }
    for round_index in range(args.repeats):
        names = rotated(["plain", "cached", "packed"], round_index)
        if round_index < args.batched_repeats:
            names.append("batched")
        found = time_round(passes, names, expected)
        for name, by_clock in found.items():
            for clock, value in by_clock.items():
                seconds[clock][name].append(value)
        print(f"round {round_index}: " + ", ".join(f"{n} {s['wall']:.2f}s" for n, s in found.items()), flush=True)
    return seconds


def summarize_times(seconds: dict[str, dict[str, list[float]]], floor: float) -> dict[str, dict[str, float]]:
    summary: dict[str, dict[str, float]] = {"token_floor": {"value": floor, "low": floor, "high": floor}}
    for clock, label in (("wall", ""), ("cpu", "_cpu")):
        by_name = seconds[clock]
        summary |= {f"{n}{label}_seconds": with_interval(values) for n, values in by_name.items() if values}
        for name in ("cached", "packed", "batched"):
            ratios = [probed / plain for probed, plain in zip(by_name[name], by_name["plain"], strict=False)]
            if ratios:
                summary[f"{name}{label}_over_plain"] = with_interval(ratios)
                summary[f"{name}{label}_over_floor"] = with_interval([ratio / floor for ratio in ratios])
    summary["probe_overhead_vs_floor"] = summary["cached_over_floor"]
    return summary


def measure_memory(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for tokens in MEMORY_TOKENS:
        probes = max(1, args.probes * tokens // args.tokens)
        row: dict[str, Any] = {"tokens": tokens, "probes": probes}
        for mode in ("plain", "cached"):
            command = [
                sys.executable, __file__, "--memory-worker", mode, "--tokens", str(tokens), "--probes", str(probes),
                "--probe-tokens", str(args.probe_tokens), "--bridge-tokens", str(args.bridge_tokens),
                "--threads", str(args.threads),
            ]  # fmt: skip
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row[f"{mode}_mib"] = float(done.stdout)
        rows.append(row)
        print(f"T={tokens} K={probes}: peak growth plain {row['plain_mib']:.0f} MiB, "
              f"cached {row['cached_mib']:.0f} MiB", flush=True)  # fmt: skip
    return rows


def memory_exponent(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponent e of peak growth ~ T^e for cached over the whole range; low and high: over its two halves."""
    peak, tokens = [row["cached_mib"] for row in rows], [row["tokens"] for row in rows]

    def slope(i: int, j: int) -> float:
        return math.log(peak[j] / peak[i]) / math.log(tokens[j] / tokens[i])

    halves = [slope(i, i + 1) for i in range(len(rows) - 1)]
    return {"value": slope(0, len(rows) - 1), "low": min(halves), "high": max(halves)}


@torch.no_grad()
def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    sizes = ProbeSizes(args.tokens, args.probes, args.probe_tokens, args.bridge_tokens)
    if args.memory_worker:
        print(peak_growth(sizes, args.memory_worker))
        return
    memory = [] if args.skip_memory else measure_memory(args)
    model = build_model()
    parameters = sum(p.numel() for p in model.parameters())
    seconds = measure_times(args, sizes, model)
    summary = summarize_times(seconds, sizes.floor)
    if memory:
        summary["cached_memory_exponent"] = memory_exponent(memory)
    settings = {
        "tokens": args.tokens, "probes": args.probes, "probe_tokens": args.probe_tokens,
        "bridge_tokens": args.bridge_tokens, "model_parameters": parameters, "vocab_size": VOCAB_SIZE,
    }  # fmt: skip
    write_record(args.output, settings, summary, {"seconds": seconds, "memory": memory}, seeds=[SEED])


if __name__ == "__main__":
    main()
