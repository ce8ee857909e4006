"""The arguments and options of `rredcot plan`: types and sentences; `plan` has the defaults."""

from __future__ import annotations

from typing import Annotated

import typer

from rredcot_plugin.planning.gpus import GPUS

ASSUMED = "Assumed, not measured"
"""A table of its own in the help, where names as long as these fit into 80 columns."""

Model = Annotated[
    str,
    typer.Option(
        help="Name on the Hugging Face Hub (known here, or in the local cache), or a folder with a config.json."
    ),
]
Gpus = Annotated[int, typer.Option(help="GPUs; actor and rollout share them (colocated).")]
GpuName = Annotated[str, typer.Option(help=f"{', '.join(GPUS)}: peak rate and memory.")]
Tflops = Annotated[float | None, typer.Option(help="Peak 10^12 bf16 operations/s of a GPU, in place of --gpu's.")]
GpuGb = Annotated[float | None, typer.Option(help="Memory of a GPU in GB, in place of --gpu's.")]
Prompts = Annotated[int, typer.Option(help="Prompts per step.")]
Rollouts = Annotated[int, typer.Option(help="Responses per prompt: the group.")]
PromptLength = Annotated[int, typer.Option(help="Mean length of a prompt in tokens.")]
ResponseLength = Annotated[int, typer.Option(help="Mean length of a response in tokens.")]
Segments = Annotated[int, typer.Option(help="Mean number of segments per response.")]
Proposals = Annotated[
    int | None,
    typer.Option(help="Mean number of answers probed at a boundary; 4, or --rollouts if that is less."),
]
ProbeTokens = Annotated[int, typer.Option(help="Mean length of a probe in tokens.")]
Backend = Annotated[str, typer.Option(help="cached, packed or batched.")]
Estimator = Annotated[
    str | None,
    typer.Option(
        help="support (probes; the default), confidence (no probes), monte_carlo (continuations) or none (GRPO)."
    ),
]
Preset = Annotated[str | None, typer.Option(help="Use the estimator of this preset (`rredcot list --presets`).")]
Samples = Annotated[int, typer.Option(help="Continuations per boundary with monte_carlo.")]
Mfu = Annotated[
    float, typer.Option(help="Share of the peak rate reached in forward and backward.", rich_help_panel=ASSUMED)
]
DecodeTokensPerSecond = Annotated[
    float,
    typer.Option(help="Tokens/s that one GPU generates, all its sequences together.", rich_help_panel=ASSUMED),
]
TransferGbPerSecond = Annotated[
    float, typer.Option(help="GB/s between the driver and TransferQueue.", rich_help_panel=ASSUMED)
]
TensorParallel = Annotated[int, typer.Option(help="GPUs that share a rollout replica.")]
Recompute = Annotated[
    bool, typer.Option(help="Recompute layers in the backward pass (verl's gradient checkpointing).")
]
CreditWorkers = Annotated[
    int,
    typer.Option(
        help="Cores of the driver's node that share credit and planning of a big step: credit_workers of a run, where auto "
        "takes half of the node's, 32 at most. 0 for none."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with every number instead of tables.")]
