"""`rredcot openrlhf`: a run of OpenRLHF with credit by segment."""

from __future__ import annotations

import typer

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of the command: every word goes on as it is, --help included."""


def openrlhf(context: typer.Context) -> None:
    """Train with OpenRLHF: all flags of openrlhf.cli.train_ppo_ray, and --algo.rredcot.<key>; --help shows them."""
    from rredcot_plugin.integrations.openrlhf.train import main

    main(context.args)
