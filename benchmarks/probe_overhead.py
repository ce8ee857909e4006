"""What probes cost on top of the log-prob pass of a trace, on CPU.

Times, interleaved in one process: the plain pass (forward and log-probs of the trace's tokens), and the same
plus K probes of A tokens with each backend. Ratios are taken within a round, then the median over rounds; low
and high are a bootstrap 95% interval of that median. The floor is (T + K*A) / T: the cost if a probe token cost
what a trace token costs. Wall time is the headline; CPU time of all threads (`*_cpu_*`) is kept beside it, since
it is what other jobs on the machine disturb least. Peak memory comes from a fresh process for every T, with K/T
kept fixed.

The model is random and Qwen3-shaped; its vocabulary is small (8,192), so that the LM head takes the share of the
work it has in a real model of several billion parameters, and not most of it.

    OMP_WAIT_POLICY=passive python benchmarks/probe_overhead.py
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from record import with_interval, write_record
from torch import Tensor

from rredcot_plugin.probes import build_layout, capture_trunk, forward_batched, forward_packed, forward_probes
from rredcot_plugin.probes.layout import ProbeSpec
from rredcot_plugin.probes.log_probs import selected_log_probs

VOCAB_SIZE = 8192
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


def build_model() -> torch.nn.Module:
    config = transformers.Qwen3Config(
        vocab_size=VOCAB_SIZE, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, max_position_embeddings=65536,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def make_methods(args: argparse.Namespace, model: torch.nn.Module) -> dict[str, Callable[[], Tensor | None]]:
    """Each does the trace's log-prob pass; all but `plain` return the probes' log-probs as well."""
    rng = random.Random(0)
    trace = [rng.randrange(VOCAB_SIZE) for _ in range(args.tokens)]
    boundaries = sorted(rng.sample(range(1, args.tokens + 1), args.probes))
    specs: list[ProbeSpec] = [
        (b, [rng.randrange(VOCAB_SIZE) for _ in range(args.probe_tokens)], args.bridge_tokens) for b in boundaries
    ]
    ids = torch.tensor(trace)

    def plain() -> None:
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        selected_log_probs(logits[:-1], ids[1:])

    def cached() -> Tensor:
        layout = build_layout([specs], [trace])
        with capture_trunk(model) as captured:
            plain()
        return forward_probes(model, captured, layout, [(0, 0, len(trace))])

    def packed() -> Tensor:
        logits, probes = forward_packed(model, [ids], build_layout([specs], [trace]))
        selected_log_probs(logits[:-1], ids[1:])
        return probes

    def batched() -> Tensor:
        plain()
        return forward_batched(model, [specs], [trace])

    return {"plain": plain, "cached": cached, "packed": packed, "batched": batched}


def measure_times(args: argparse.Namespace, model: torch.nn.Module) -> dict[str, dict[str, list[float]]]:
    """Seconds of every run by clock; the order in a round rotates, batched runs in the first rounds only."""
    methods = make_methods(args, model)
    expected = methods["cached"]()
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    seconds: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in methods} for clock in clocks}
    for round_index in range(args.repeats):
        names = ["plain", "cached", "packed"]
        names = names[round_index % 3 :] + names[: round_index % 3]
        if round_index < args.batched_repeats:
            names.append("batched")
        for name in names:
            start = {clock: now() for clock, now in clocks.items()}
            result = methods[name]()
            for clock, now in clocks.items():
                seconds[clock][name].append(now() - start[clock])
            if result is not None:
                torch.testing.assert_close(result, expected, rtol=0, atol=1e-3)
        print(
            f"round {round_index}: " + ", ".join(f"{n} {seconds['wall'][n][-1]:.2f}s" for n in names),
            flush=True,
        )
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


def run_memory_worker(args: argparse.Namespace) -> None:
    """Print how far one pass raises this process's peak resident memory, in MiB."""
    model = build_model()
    warm_up = argparse.Namespace(**{**vars(args), "tokens": 64, "probes": 4})
    make_methods(warm_up, model)[args.memory_worker]()
    method = make_methods(args, model)[args.memory_worker]
    before = memory_status("VmRSS")
    method()
    print(memory_status("VmHWM") - before)


def memory_status(name: str) -> float:
    """A field of /proc/self/status in MiB. Not getrusage: its peak is inherited from the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1024


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
    if args.memory_worker:
        run_memory_worker(args)
        return
    memory = [] if args.skip_memory else measure_memory(args)
    model = build_model()
    parameters = sum(p.numel() for p in model.parameters())
    seconds = measure_times(args, model)
    summary = summarize_times(seconds, (args.tokens + args.probes * args.probe_tokens) / args.tokens)
    if memory:
        summary["cached_memory_exponent"] = memory_exponent(memory)
    settings = {
        "tokens": args.tokens, "probes": args.probes, "probe_tokens": args.probe_tokens,
        "bridge_tokens": args.bridge_tokens, "model_parameters": parameters, "vocab_size": VOCAB_SIZE,
    }  # fmt: skip
    write_record(args.output, settings, summary, {"seconds": seconds, "memory": memory})


if __name__ == "__main__":
    main()
