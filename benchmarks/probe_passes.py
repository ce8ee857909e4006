"""The passes that the probe benchmarks time: a trace's log-prob pass alone, and the same with probes.

The model is random and Qwen3-shaped; its vocabulary is small (8,192), so that the LM head takes the share of the
work it has in a real model of several billion parameters, and not most of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from rredcot_plugin.probes import build_layout, capture_trunk, forward_batched, forward_packed, forward_probes
from rredcot_plugin.probes.layout import ProbeSpec
from rredcot_plugin.probes.log_probs import selected_log_probs

VOCAB_SIZE = 8192
SEED = 0
"""Of the model's weights, the traces, the boundaries and the probes."""

Pass = Callable[[], Tensor | None]


@dataclass(frozen=True)
class ProbeSizes:
    """`traces` rows of `tokens` tokens, each with `probes` probes of `probe_tokens`, `bridge_tokens` of them bridge."""

    tokens: int
    probes: int
    probe_tokens: int
    bridge_tokens: int = 0
    traces: int = 1

    @property
    def floor(self) -> float:
        """(T + K A) / T: the cost if a probe token cost what a trace token costs."""
        return (self.tokens + self.probes * self.probe_tokens) / self.tokens


def build_model() -> nn.Module:
    """25 million parameters besides the embeddings, float32, eval mode."""
    config = transformers.Qwen3Config(
        vocab_size=VOCAB_SIZE, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, max_position_embeddings=65536,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(SEED)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def draw_probes(sizes: ProbeSizes) -> tuple[list[list[int]], list[list[ProbeSpec]]]:
    """Random traces, and their probes after random boundaries (different ones while there are enough tokens)."""
    rng = random.Random(SEED)
    traces = [[rng.randrange(VOCAB_SIZE) for _ in range(sizes.tokens)] for _ in range(sizes.traces)]
    places = range(1, sizes.tokens + 1)
    draw = rng.sample if sizes.probes <= sizes.tokens else lambda population, k: rng.choices(population, k=k)
    specs: list[list[ProbeSpec]] = [
        [
            (boundary, [rng.randrange(VOCAB_SIZE) for _ in range(sizes.probe_tokens)], sizes.bridge_tokens)
            for boundary in sorted(draw(places, sizes.probes))
        ]
        for _ in traces
    ]
    return traces, specs


def make_passes(sizes: ProbeSizes, model: nn.Module) -> dict[str, Pass]:
    """Each does the traces' log-prob pass; all but `plain` return the probes' log-probs as well."""
    traces, specs = draw_probes(sizes)
    ids = torch.tensor(traces)

    def plain() -> None:
        for logits, trace in zip(model(input_ids=ids, use_cache=False).logits, ids, strict=True):
            selected_log_probs(logits[:-1], trace[1:])

    def cached() -> Tensor:
        layout = build_layout(specs, traces)
        with capture_trunk(model) as captured:
            plain()
        return forward_probes(model, captured, layout, [(i, 0, sizes.tokens) for i in range(sizes.traces)])

    def packed() -> Tensor:
        logits, probes = forward_packed(model, list(ids), build_layout(specs, traces))
        for part, trace in zip(logits.split(sizes.tokens), ids, strict=True):
            selected_log_probs(part[:-1], trace[1:])
        return probes

    def batched() -> Tensor:
        plain()
        return forward_batched(model, specs, traces)

    return {"plain": plain, "cached": cached, "packed": packed, "batched": batched}


@torch.no_grad()
def time_round(passes: Mapping[str, Pass], names: list[str], expected: Tensor) -> dict[str, dict[str, float]]:
    """Wall and CPU seconds by pass, in the order of `names`; AssertionError if probes differ from `expected`."""
    found: dict[str, dict[str, float]] = {}
    for name in names:
        wall, cpu = time.perf_counter(), time.process_time()
        result = passes[name]()
        found[name] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        if result is not None:
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-3)
    return found


def rotated(names: list[str], round_index: int) -> list[str]:
    """The names in the order of this round: everyone is first, second, ... equally often."""
    shift = round_index % len(names)
    return [*names[shift:], *names[:shift]]


@torch.no_grad()
def peak_growth(sizes: ProbeSizes, name: str) -> float:
    """MiB by which one pass raises this process's peak resident memory; for a fresh process."""
    model = build_model()
    make_passes(ProbeSizes(64, 4, sizes.probe_tokens, sizes.bridge_tokens), model)[name]()  # warm-up
    run = make_passes(sizes, model)[name]
    before = memory_status("VmRSS")
    run()
    return memory_status("VmHWM") - before


def memory_status(name: str) -> float:
    """A field of /proc/self/status in MiB. Not getrusage: its peak is inherited from the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1024
