"""The arguments and options of `rredcot score`: types and sentences; `score` has the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Rollouts = Annotated[
    Path, typer.Argument(help="JSON lines: verl's rollout_data_dir, or prompt, response, reward.")
]
Model = Annotated[
    str, typer.Option(help="A causal language model: a folder, or its name on the Hugging Face Hub.")
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="File to write.", show_default="ROLLOUTS.scored.jsonl")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of algorithm.rredcot, in YAML."),
]
Config = Annotated[Path | None, typer.Option(help="YAML file with options of algorithm.rredcot.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Temperature = Annotated[float, typer.Option(help="The temperature that the rollouts were sampled with.")]
Prompts = Annotated[
    str,
    typer.Option(
        help="How to read a text prompt: text (as it is), user (as one message), auto (verl's messages, restored)."
    ),
]
ChatTemplate = Annotated[Path | None, typer.Option(help="A Jinja file to use as chat template.")]
GroupsPerChunk = Annotated[int, typer.Option(min=1, help="Prompts that calibration sees at once.")]
BatchTokens = Annotated[int, typer.Option(min=1, help="Padded tokens per forward pass.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow code that comes with the model.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output instead of continuing it.")]
