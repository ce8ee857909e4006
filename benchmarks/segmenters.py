"""Tokens a second and core of every segmenter, and how the time grows with the length of a trace.

Traces are arithmetic-looking prose with code fences, about four characters a token, with random log-probs; the same
number of tokens in all as one long and as many short traces.

    OMP_NUM_THREADS=1 python benchmarks/segmenters.py
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from record import with_interval, write_record

import rredcot_plugin as rr

OUTPUT = Path(__file__).parent / "results" / "segmenters.json"
LENGTHS = (2048, 8192, 32768)
LINES = (
    "We add {} and {} to get {}. ",
    "So the sum of {} over {} is {}.\n",
    "Wait, that is wrong: {} * {} = {}.\n\n",
    "But {} is larger than {}, not {}. ",
    "```python\ndef f(x):\n    return x + {}\n\nprint({}, {})\n```\n",
)


def make_rollouts(traces: int, tokens: int, seed: int = 0) -> rr.Rollouts:
    """``traces`` responses of ``tokens`` tokens of four characters."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(traces):
        parts, size = [], 0
        while size < 4 * tokens:
            parts.append(rng.choice(LINES).format(*(rng.randrange(100) for _ in range(3))))
            size += len(parts[-1])
        texts.append("".join(parts)[: 4 * tokens])
    starts = 4 * np.arange(tokens)
    surprise = torch.empty(traces, tokens).exponential_(2.0, generator=generator)
    return rr.Rollouts(
        token_ids=torch.zeros(traces, tokens, dtype=torch.int64),
        response_mask=torch.ones(traces, tokens, dtype=torch.bool),
        rewards=torch.zeros(traces, tokens),
        group_ids=list(range(traces)),
        log_probs=-surprise,
        texts=texts,
        token_offsets=[np.stack([starts, starts + 4], axis=1)] * traces,  # type: ignore[list-item]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=262144, help="tokens in all (default 262144)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    batches = {length: make_rollouts(args.tokens // length, length) for length in LENGTHS}
    seconds: dict[str, dict[int, list[float]]] = {
        name: {length: [] for length in LENGTHS} for name in rr.list_segmenters()
    }
    for name in seconds:
        rr.get_segmenter(name)(make_rollouts(1, 512))
    for _ in range(args.repeats):
        for name, by_length in seconds.items():
            segmenter = rr.get_segmenter(name)
            for length, rollouts in batches.items():
                start = time.perf_counter()
                segmenter(rollouts)
                by_length[length].append(time.perf_counter() - start)
    summary = {}
    for name, by_length in seconds.items():
        summary[f"{name}_million_tokens_per_second"] = with_interval(
            [args.tokens / 1e6 / second for second in by_length[8192]]
        )
        short, long = (median(by_length[length]) for length in (LENGTHS[0], LENGTHS[-1]))
        exponent = 1 + float(np.log(long / short) / np.log(LENGTHS[-1] / LENGTHS[0]))
        summary[f"{name}_exponent"] = {"value": exponent, "low": exponent, "high": exponent}
    write_record(args.output, {"tokens": args.tokens, "lengths": LENGTHS}, summary, seconds, seeds=[0])


if __name__ == "__main__":
    main()
