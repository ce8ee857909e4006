"""`rredcot plan`: what a training step will cost on a cluster, with rredcot and without; nothing is run."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console

from rredcot_plugin.planning.gpus import GPUS, find_gpu
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.presets import find_preset

DEFAULT = Setup()
NEEDS = ("transformers",)
WIDTH = 200
"""Columns of the tables where they go to a file or a pipe."""


def plan(
    model: Annotated[
        str,
        typer.Option(help="Name on the hub (known here, or in the local cache), or a folder with a config.json."),
    ],
    gpus: Annotated[int, typer.Option(help="GPUs; actor and rollout share them (colocated).")] = DEFAULT.gpus,
    gpu: Annotated[str, typer.Option(help=f"{', '.join(GPUS)}: peak rate and memory.")] = "H100",
    tflops: Annotated[
        float | None, typer.Option(help="Peak 10^12 bf16 operations/s of a GPU, in place of --gpu's.")
    ] = None,
    gpu_gb: Annotated[float | None, typer.Option(help="Memory of a GPU in GB, in place of --gpu's.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a step.")] = DEFAULT.prompts,
    rollouts: Annotated[int, typer.Option(help="Responses a prompt: the group.")] = DEFAULT.rollouts,
    prompt_length: Annotated[int, typer.Option(help="Mean tokens of a prompt.")] = DEFAULT.prompt_length,
    response_length: Annotated[int, typer.Option(help="Mean tokens of a response.")] = DEFAULT.response_length,
    segments: Annotated[int, typer.Option(help="Mean segments of a response.")] = DEFAULT.segments,
    proposals: Annotated[
        int, typer.Option(help="Mean answers that are probed at a boundary.")
    ] = DEFAULT.proposals,
    probe_tokens: Annotated[int, typer.Option(help="Mean tokens of a probe.")] = DEFAULT.probe_tokens,
    backend: Annotated[str, typer.Option(help="cached, packed or batched.")] = DEFAULT.backend,
    estimator: Annotated[
        str,
        typer.Option(help="support (probes), confidence (no probes), monte_carlo (continuations) or none (GRPO)."),
    ] = DEFAULT.estimator,
    preset: Annotated[
        str | None, typer.Option(help="Take the estimator of this preset (`rredcot list --presets`).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Continuations a boundary with monte_carlo.")] = DEFAULT.samples,
    mfu: Annotated[float, typer.Option(help="Share of the peak in forward and backward: assumed.")] = DEFAULT.mfu,
    decode_tokens_per_second: Annotated[
        float, typer.Option(help="Generated tokens/s of one GPU, all its sequences together: assumed.")
    ] = DEFAULT.decode_rate,
    transfer_gb_per_second: Annotated[
        float, typer.Option(help="GB/s between the driver and TransferQueue: assumed.")
    ] = DEFAULT.transfer_gb,
    tensor_parallel: Annotated[
        int, typer.Option(help="GPUs that share a rollout replica.")
    ] = DEFAULT.tensor_parallel,
    recompute: Annotated[
        bool, typer.Option(help="Compute layers again in the backward (verl's gradient checkpointing).")
    ] = DEFAULT.recompute,
    credit_workers: Annotated[
        int,
        typer.Option(
            help="Cores of the driver's node that share credit and planning of a big step (algorithm.rredcot."
            "credit_workers; auto takes half of the node's, 32 at most); 0 for none."
        ),
    ] = DEFAULT.credit_workers,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with every number instead of tables.")
    ] = False,
) -> None:
    """Estimate a training step with rredcot, with GRPO and with Monte-Carlo continuations: seconds, memory, bytes."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        typer.echo(f"not installed: {', '.join(missing)}; pip install 'rredcot[score]'", err=True)
        raise typer.Exit(2)
    from rredcot_plugin.dry_run.architecture import known_architectures
    from rredcot_plugin.planning.models import find_sizes
    from rredcot_plugin.planning.result import make_plan
    from rredcot_plugin.planning.tables import show

    try:
        if preset is not None:
            estimator = str(find_preset(preset).keys.get("value_estimator", DEFAULT.estimator))
        board = find_gpu(gpu)
        setup = Setup(
            gpus, board.tflops if tflops is None else tflops, board.gb if gpu_gb is None else gpu_gb, prompts,
            rollouts, prompt_length, response_length, segments, proposals, probe_tokens, backend, estimator, samples,
            mfu, decode_tokens_per_second, transfer_gb_per_second, tensor_parallel, recompute, credit_workers,
        )  # fmt: skip
        found = make_plan(find_sizes(model, known_architectures()), setup)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:  # a file has no edge: a table cut to 80 columns would lose digits
            console.width = max(console.width, WIDTH)
        show(found, console)
