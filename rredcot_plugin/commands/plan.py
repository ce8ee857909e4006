"""`rredcot plan`: what a training step will cost on a cluster, with rredcot and without; nothing is run."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from rredcot_plugin.commands import plan_options as opts
from rredcot_plugin.commands.needs import require
from rredcot_plugin.planning.gpus import find_gpu
from rredcot_plugin.planning.setup import Setup
from rredcot_plugin.presets import find_preset

DEFAULT = Setup()
NEEDS = ("transformers",)
WIDTH = 200
"""Columns of the tables where they go to a file or a pipe."""


def plan(
    model: opts.Model,
    gpus: opts.Gpus = DEFAULT.gpus,
    gpu: opts.GpuName = "H100",
    tflops: opts.Tflops = None,
    gpu_gb: opts.GpuGb = None,
    prompts: opts.Prompts = DEFAULT.prompts,
    rollouts: opts.Rollouts = DEFAULT.rollouts,
    prompt_length: opts.PromptLength = DEFAULT.prompt_length,
    response_length: opts.ResponseLength = DEFAULT.response_length,
    segments: opts.Segments = DEFAULT.segments,
    proposals: opts.Proposals = None,
    probe_tokens: opts.ProbeTokens = DEFAULT.probe_tokens,
    backend: opts.Backend = DEFAULT.backend,
    estimator: opts.Estimator = None,
    preset: opts.Preset = None,
    samples: opts.Samples = DEFAULT.samples,
    mfu: opts.Mfu = DEFAULT.mfu,
    decode_tokens_per_second: opts.DecodeTokensPerSecond = DEFAULT.decode_rate,
    transfer_gb_per_second: opts.TransferGbPerSecond = DEFAULT.transfer_gb,
    tensor_parallel: opts.TensorParallel = DEFAULT.tensor_parallel,
    recompute: opts.Recompute = DEFAULT.recompute,
    credit_workers: opts.CreditWorkers = DEFAULT.credit_workers,
    as_json: opts.AsJson = False,
) -> None:
    """Estimate a training step with rredcot, with GRPO and with Monte-Carlo continuations: seconds, memory, bytes."""
    require(NEEDS, "score", code=2)
    from rredcot_plugin.dry_run.architecture import known_architectures
    from rredcot_plugin.planning.models import find_sizes
    from rredcot_plugin.planning.result import make_plan
    from rredcot_plugin.planning.tables import show

    try:
        estimator = choose_estimator(estimator, preset)
        if proposals is None:  # the ground truth and what the siblings answered
            proposals = min(DEFAULT.proposals, max(1, rollouts))
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


def choose_estimator(estimator: str | None, preset: str | None) -> str:
    """The one that is named, or that of the preset.

    Raises:
        ValueError: a preset that does not exist, or one beside another estimator.
    """
    if preset is None:
        return DEFAULT.estimator if estimator is None else estimator
    own = str(find_preset(preset).keys.get("value_estimator", DEFAULT.estimator))
    if estimator not in (None, own):
        raise ValueError(f"estimator={estimator}: preset={preset} uses {own}; leave one of the two out")
    return own
