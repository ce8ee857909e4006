"""Seconds and memory of ``assign_credit`` without model calls, and how the seconds grow with the length of a trace.

Traces read like mathematical reasoning (lines, discourse markers, a boxed answer), in groups of 8, every token
unmasked, with log-probs and entropies; segmenter ``sentence`` and ``calibrate: outcome``, the defaults. Three cases
of a first step: nothing given, values given, and random log-probs of eight proposals at every boundary (``Probed``). Two
of a later one, with four such steps past: the first case again, and ``calibrate: trees``.

Every case and length runs in a fresh process with one thread, after a small call that loads what is loaded lazily.
Seconds of wall time tell what a busy machine made of it; seconds of CPU time (``cpu``) tell what it would take on a
free core. Extra memory is the high-water mark of the resident set during the first call (VmHWM, reset before it) above the
resident set before it, results included, over the bytes of token_ids, response_mask, rewards, log_probs and
entropies; a second figure counts texts and offsets among the inputs.

    OMP_NUM_THREADS=1 python benchmarks/assign_credit.py
    OMP_NUM_THREADS=1 python benchmarks/assign_credit.py --quick
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from record import Summary, with_interval, write_record

import rredcot_plugin as rr
from rredcot_plugin.values.base import Probed

OUTPUT = Path(__file__).parent / "results" / "assign_credit.json"
FIRST_STEP = ("nothing_given", "values_given", "probed")
CASES = (*FIRST_STEP, "with_past", "with_past_trees")
PAST = 4
GROUP = 8
PROPOSALS = 8
LINES = (
    "First, we add {a} and {b} to get {c}. ",
    "So the sum of {a} over {b} is {c}.\n",
    "Wait, that is wrong: {a} * {b} = {c}, not {a}.\n\n",
    "But {a} is larger than {b}, which means that x = {c}. ",
    "Let me check this again with n = {a}, because the second factor was {b}.\n",
    "Therefore {a}x + {b}y = {c}, and the left-hand side has to be even.\n\n",
    "Hmm, the remainder of {a} modulo {b} is {c}. ",
    "If we call the angle α, then cos α = {a}/{b} and sin² α = 1 − ({a}/{b})².\n",
    "The number of ways to choose {a} out of {b} elements is {c}. ",
)
ANSWER = "\n\n**Final Answer**\n\\boxed{{{a}}}"
TOKEN = re.compile(r" ?[A-Za-zα]{1,7}|\d|²| ?[^\w\s]|\s+")
"""About what a byte-level vocabulary makes of such lines: four characters a token."""


def lines_with_widths(template: str, count: int, rng: random.Random) -> list[tuple[str, np.ndarray]]:
    """Filled-in copies of a line, each with the characters of its tokens."""
    found = []
    for _ in range(count):
        a, b, c = (rng.randrange(1000) for _ in range(3))
        line = template.format(a=a, b=b, c=c)
        tokens = TOKEN.findall(line)
        assert "".join(tokens) == line
        found.append((line, np.array([len(token) for token in tokens])))
    return found


def one_trace(tokens: int, pool: list[tuple[str, np.ndarray]], answer: tuple[str, np.ndarray], rng: random.Random):
    """Text and spans (tokens, 2): lines of the pool, then the answer."""
    parts, widths, size = [], [], 0
    while size < tokens - len(answer[1]):
        line, width = rng.choice(pool)
        width = width[: tokens - len(answer[1]) - size]
        parts.append(line[: width.sum()])
        widths.append(width)
        size += len(width)
    ends = np.concatenate([*widths, answer[1]])[:tokens].cumsum()
    starts = np.concatenate([[0], ends[:-1]])
    return "".join([*parts, answer[0]])[: ends[-1]], np.stack([starts, ends], axis=1)


def make_rollouts(traces: int, tokens: int, seed: int = 0) -> rr.Rollouts:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    pool = [line for template in LINES for line in lines_with_widths(template, 200, rng)]
    answers = lines_with_widths(ANSWER, 20, rng)
    texts, offsets = zip(*(one_trace(tokens, pool, rng.choice(answers), rng) for _ in range(traces)), strict=True)
    entropies = torch.empty(traces, tokens).exponential_(2.0, generator=generator)
    rewards = torch.zeros(traces, tokens)
    rewards[:, -1] = (torch.rand(traces, generator=generator) < 0.4).float()
    return rr.Rollouts(
        token_ids=torch.randint(0, 150_000, (traces, tokens), generator=generator),
        response_mask=torch.ones(traces, tokens, dtype=torch.bool),
        rewards=rewards,
        group_ids=[f"prompt {row // GROUP}" for row in range(traces)],
        log_probs=-torch.empty(traces, tokens).exponential_(2.0, generator=generator),
        entropies=entropies,
        texts=list(texts),
        token_offsets=list(offsets),
    )


def given(case: str, rollouts: rr.Rollouts) -> dict[str, Any]:
    """What the case hands over besides the rollouts."""
    if case == "nothing_given":
        return {}
    if case.startswith("with_past"):
        config = rr.RRedCoTConfig(calibrate="trees" if case == "with_past_trees" else "outcome")
        calibrator = config.build_calibrator()
        for _ in range(PAST):
            rr.assign_credit(rollouts, config, calibrator=calibrator)
        return {"config": config, "calibrator": calibrator}
    segments = rr.RRedCoTConfig().build_segmenter()(rollouts)
    B, S = segments.exists.shape
    generator = torch.Generator().manual_seed(1)
    if case == "values_given":
        return {"values": torch.rand(B, S, generator=generator)}
    probed = Probed(
        log_pi=-torch.empty(B, S, PROPOSALS).exponential_(0.5, generator=generator),
        utility=(torch.rand(B, PROPOSALS, generator=generator) < 0.4).float(),
        valid=torch.ones(B, PROPOSALS, dtype=torch.bool),
        num_segments=segments.num_segments,
    )
    return {"probed": probed}


def memory(field: str) -> int:
    """A field of this process's /proc status (VmRSS, VmHWM) in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE).group(1)) * 1024


def measure(case: str, traces: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Run the case in this process."""
    torch.set_num_threads(1)
    small = make_rollouts(4 * GROUP, 512)
    rr.assign_credit(small, **given(case, small))
    rollouts = make_rollouts(traces, tokens)
    extras = given(case, rollouts)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from the present resident set
    before, seconds, cpu_seconds = memory("VmRSS"), [], []
    for repeat in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        credit = rr.assign_credit(rollouts, **extras)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        if repeat == 0:
            extra = memory("VmHWM") - before
        segments = float(credit.segments.num_segments.float().mean())
        del credit
    names = ("token_ids", "response_mask", "rewards", "log_probs", "entropies")
    tensors = sum(getattr(rollouts, name).nbytes for name in names)
    words = sum(sys.getsizeof(text) for text in rollouts.texts) + sum(o.nbytes for o in rollouts.token_offsets)
    return {
        "case": case,
        "traces": traces,
        "tokens": tokens,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "segments_per_trace": segments,
        "extra_bytes": extra,
        "tensor_bytes": tensors,
        "text_and_offset_bytes": words,
    }


def in_fresh_process(case: str, traces: int, tokens: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", case, str(traces), str(tokens), str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{case} {traces} x {tokens}: {', '.join(f'{s:.2f}' for s in row['seconds'])} s, "
        f"CPU {', '.join(f'{s:.2f}' for s in row['cpu_seconds'])} s",
        flush=True,
    )
    return row


def summarise(rows: list[dict[str, Any]], growth: list[dict[str, Any]]) -> Summary:
    summary: Summary = {}
    for row in rows:
        case = row["case"]
        summary[f"{case}_seconds"] = with_interval(row["seconds"])
        summary[f"{case}_cpu_seconds"] = with_interval(row["cpu_seconds"])
        summary[f"{case}_memory_over_tensors"] = exactly(row["extra_bytes"] / row["tensor_bytes"])
        inputs = row["tensor_bytes"] + row["text_and_offset_bytes"]
        summary[f"{case}_memory_over_inputs"] = exactly(row["extra_bytes"] / inputs)
    for row in growth:
        summary[f"cpu_seconds_at_{row['tokens']}_tokens"] = with_interval(row["cpu_seconds"])
    lengths = np.log([row["tokens"] for row in growth])
    logs = np.log([median(row["cpu_seconds"]) for row in growth])
    summary["exponent_of_cpu_seconds"] = exactly(float(np.polyfit(lengths, logs, 1)[0]))
    return summary


def exactly(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=1024, help="rollouts (default 1024)")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a rollout (default 8192)")
    parser.add_argument("--repeats", type=int, default=5, help="calls a case (default 5)")
    parser.add_argument("--quick", action="store_true", help="64 rollouts of 1024 tokens, nothing written")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        case, *sizes = args.worker
        print(json.dumps(measure(case, *map(int, sizes))))
        return
    torch.set_num_threads(1)
    traces, tokens = (64, 1024) if args.quick else (args.traces, args.tokens)
    rows = [in_fresh_process(case, traces, tokens, args.repeats) for case in CASES]
    shorter = [in_fresh_process(CASES[0], traces, tokens // part, args.repeats) for part in (4, 2)]
    summary = summarise(rows, [*shorter, rows[0]])
    settings = {
        "traces": traces,
        "tokens": tokens,
        "group": GROUP,
        "proposals": PROPOSALS,
        "repeats": args.repeats,
    }
    output = Path(os.devnull) if args.quick else args.output
    write_record(output, settings, summary, [*rows, *shorter], seeds=[0])


if __name__ == "__main__":
    main()
