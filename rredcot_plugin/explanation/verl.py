"""What the options of a verl run mean."""

from __future__ import annotations

from typing import Any

from rredcot_plugin.dry_run.launch import Launch
from rredcot_plugin.explanation.answer import Explanation, rows_of
from rredcot_plugin.explanation.cost import Sizes, costs, with_model


def explain_verl(launch: Launch) -> Explanation:
    """Its options, where they come from and what is chosen, by verl's own configuration.

    Raises:
        RecipeError: what verl or rredcot object to.
    """
    from rredcot_plugin.dry_run.configure import compose, resolve_options
    from rredcot_plugin.integrations.verl.advice import notes_of, warnings_of

    config = compose(launch)
    name = str(config.algorithm.adv_estimator)
    resolved = resolve_options(config)
    if resolved is None:
        notes = [f"algorithm.adv_estimator={name} is not one of rredcot's: this run does not use it"]
        if config.algorithm.get("rredcot") is not None:
            notes.append("nothing reads the keys of algorithm.rredcot in this run")
        return Explanation(name, notes=tuple(notes))
    settings = resolved.config
    return Explanation(
        name,
        tuple(rows_of(settings, resolved.sources, resolved.choices)),
        tuple(costs(settings, resolved.choices, _sizes(config))),
        tuple(warnings_of(config, settings)),
        tuple(notes_of(config, settings)),
    )


def _sizes(config: Any) -> Sizes:
    """Sizes of a run; the model's from a folder, the local cache or the models known to rredcot."""
    sizes = Sizes(
        config.data.max_prompt_length, config.data.max_response_length, config.actor_rollout_ref.rollout.n, None
    )
    return with_model(sizes, "actor_rollout_ref.model.path", str(config.actor_rollout_ref.model.path))
