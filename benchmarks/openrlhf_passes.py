"""What probes cost on top of OpenRLHF's log-prob pass, over the floor of their tokens, from its own actor on the CPU.

    .venv-openrlhf/bin/python benchmarks/openrlhf_passes.py

Model, trace and probes are those of `probe_overhead.py`; the pass is that of OpenRLHF's policy actor, and with probes it also
reads the entropies of actions. Plain, cached and packed take turns in one process (two minutes); ratios are taken within a
round, then the median over rounds with its bootstrap 95 % interval. The floor is (T + K·A) / T.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from probe_passes import SEED, VOCAB_SIZE, Pass, ProbeSizes, build_model, draw_probes, rotated, time_round
from record import with_interval, write_record
from torch import nn

from rredcot_plugin.integrations import openrlhf_cpu
from rredcot_plugin.probes.layout import pack

OUTPUT = Path(__file__).parent / "results" / "openrlhf_passes.json"
PROMPT = 256
"""Tokens of the trace that are not actions."""


class Engine(nn.Module):
    """The shape of DeepSpeed's engine: a module that has the model inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def build_worker() -> Any:
    """The policy actor of a run, without Ray and DeepSpeed around it."""
    openrlhf_cpu.activate()
    from openrlhf.models import Actor

    from rredcot_plugin.integrations.openrlhf.actor import RRedCoTPolicyActor

    worker: Any = object.__new__(RRedCoTPolicyActor)
    worker.actor = Actor(Engine(build_model()))
    worker.actor.packing_samples = False
    worker.strategy = SimpleNamespace(ring_attn_group=None, ds_tensor_parallel_size=1, stage=2)
    return worker


def passes_of(worker: Any, sizes: ProbeSizes) -> dict[str, Pass]:
    traces, specs = draw_probes(sizes)
    sequences = torch.tensor(traces)
    mask = (torch.arange(sizes.tokens - 1) >= PROMPT - 1).expand(len(traces), -1)
    given = (sequences, mask, torch.ones_like(sequences))
    probes = [pack(own) for own in specs]

    def probed(backend: str) -> Pass:
        return lambda: worker.forward(*given, probes=probes, probe_backend=backend)["answers"][0]

    def plain() -> None:
        worker.forward(*given)

    return {"plain": plain, "cached": probed("cached"), "packed": probed("packed")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens T of the trace, the prompt included")
    parser.add_argument("--probes", type=int, default=64, help="probes K")
    parser.add_argument("--probe-tokens", type=int, default=12, help="tokens A of a probe")
    parser.add_argument("--repeats", type=int, default=9, help="rounds")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    if args.tokens <= PROMPT:
        parser.error(f"--tokens {args.tokens}: expected more than the {PROMPT} of the prompt")
    torch.set_num_threads(args.threads)
    sizes = ProbeSizes(args.tokens, args.probes, args.probe_tokens)
    passes = passes_of(build_worker(), sizes)
    expected = passes["cached"]()
    assert expected is not None
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(args.repeats):
        for name, took in time_round(passes, rotated(list(passes), number), expected).items():
            seconds[name].append(took["wall"])
        print(
            f"round {number}: " + ", ".join(f"{name} {own[-1]:.2f}s" for name, own in seconds.items()), flush=True
        )
    summary = {"token_floor": dict.fromkeys(("value", "low", "high"), sizes.floor)}
    for name in ("cached", "packed"):
        ratios = [probed / plain for probed, plain in zip(seconds[name], seconds["plain"], strict=True)]
        summary[f"{name}_over_plain"] = with_interval(ratios)
        summary[f"{name}_over_floor"] = with_interval([ratio / sizes.floor for ratio in ratios])
    settings = {
        "tokens": sizes.tokens,
        "probes": sizes.probes,
        "probe_tokens": sizes.probe_tokens,
        "prompt": PROMPT,
    }
    write_record(args.output, settings | {"vocab_size": VOCAB_SIZE}, summary, {"seconds": seconds}, seeds=[SEED])


if __name__ == "__main__":
    main()
