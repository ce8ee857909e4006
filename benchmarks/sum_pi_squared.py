"""What Σ_v π_v² of every token adds to a log-prob pass, at the vocabulary of Qwen3 (151,936).

The model is random and has exactly the shape of Qwen3-0.6B, the smallest model that people train with such a vocabulary:
28 layers, hidden size 1,024, MLP 3,072, 16 heads and 8 for keys and values of 128, tied embeddings; float32. A larger
model spends more on each logit, so its share is smaller. The pass is the forward and what verl computes from its logits:
log-probs and entropy, with verl's own functions. One thread; seconds are CPU time of the process, so that other work on
the machine counts little, and each repetition is a pair: a pass, then the output from that pass's logits. Summary (median,
bootstrap 95% interval over repetitions):

    share            seconds of ``sum_pi_squared`` over those of the pass, in percent
    share_of_verls   the same of verl's ``calculate_sum_pi_squared_from_logits``
    milliseconds, milliseconds_of_verls   per token
    pass_milliseconds                     per token
    memory, memory_of_verls               peak of the resident set above that before, over the bytes of the logits
    error, error_of_verls                 largest relative error with bfloat16 logits (standard deviation 3, 64 rows)

    OMP_NUM_THREADS=1 python benchmarks/sum_pi_squared.py
    OMP_NUM_THREADS=1 python benchmarks/sum_pi_squared.py --quick --output quick.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from record import with_interval, write_record
from torch import Tensor
from verl.utils.torch_functional import (
    calculate_sum_pi_squared_from_logits,
    entropy_from_logits,
    logprobs_from_logits_v2,
)

from rredcot_plugin.probes.squares import sum_pi_squared

OUTPUT = Path(__file__).parent / "results" / "sum_pi_squared.json"
SHAPE = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
QUICK_SHAPE = {**SHAPE, "num_hidden_layers": 1}
SEED, ERROR_ROWS, DEVIATION = 0, 64, 3.0


def ours(logits: Tensor) -> Tensor:
    return sum_pi_squared(logits, torch.ones(len(logits)))


VARIANTS: dict[str, Callable[[Tensor], Tensor]] = {"": ours, "_of_verls": calculate_sum_pi_squared_from_logits}


def clocked(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    found = work()
    return found, time.process_time() - begin


def resident(key: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def peak_above(work: Callable[[], Any]) -> int:
    """How far the resident set rises above where it stands."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    work()
    return max(0, resident("VmHWM") - before)


def log_prob_pass(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Logits (T, V), after what verl makes of them."""
    logits: Tensor = model(input_ids=ids[None], use_cache=False).logits[0]
    entropy_from_logits(logits)
    logprobs_from_logits_v2(logits, ids.roll(-1))
    return logits


def repetition(model: torch.nn.Module, ids: Tensor) -> dict[str, float]:
    logits, seconds = clocked(lambda: log_prob_pass(model, ids))
    row = {"pass_milliseconds": 1e3 * seconds / len(ids)}
    for name, variant in VARIANTS.items():
        _, own = clocked(lambda variant=variant: variant(logits))
        row[f"milliseconds{name}"] = 1e3 * own / len(ids)
        row[f"share{name}"] = 100 * own / seconds
        row[f"memory{name}"] = peak_above(lambda variant=variant: variant(logits)) / (4 * logits.numel())
    return row


def errors() -> dict[str, float]:
    generator = torch.Generator().manual_seed(SEED)
    logits = (DEVIATION * torch.randn(ERROR_ROWS, SHAPE["vocab_size"], generator=generator)).bfloat16()
    exact = logits.double().softmax(1).square().sum(1)
    return {
        f"error{name}": float(((variant(logits).double() - exact) / exact).abs().max())
        for name, variant in VARIANTS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one layer, 16 tokens, two repetitions")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    shape, tokens, repeats = SHAPE, arguments.tokens, arguments.repeats
    if arguments.quick:
        shape, tokens, repeats = QUICK_SHAPE, 16, 2
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**shape)).eval()
    ids = torch.randint(0, shape["vocab_size"], (tokens,))
    with torch.no_grad():
        log_prob_pass(model, ids[:8])  # loads what is loaded lazily
        rows = [repetition(model, ids) for _ in range(repeats)]
        row_of_errors = errors()
    summary = {name: with_interval([row[name] for row in rows]) for name in rows[0]}
    summary |= {name: dict.fromkeys(("value", "low", "high"), value) for name, value in row_of_errors.items()}
    settings = {
        "shape": shape,
        "tokens": tokens,
        "repeats": repeats,
        "dtype": "float32",
        "clock": "process CPU time",
    }
    write_record(arguments.output, settings, summary, rows, seeds=[SEED])


if __name__ == "__main__":
    main()
