"""What in a run of OpenRLHF leaves the method without something it can use; the run goes on all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from rredcot_plugin.biases import biases_of
from rredcot_plugin.config import RRedCoTConfig
from rredcot_plugin.integrations.advice import entropies_later, few_segments, loses_credit, no_siblings
from rredcot_plugin.integrations.openrlhf.arguments import PREFIX
from rredcot_plugin.integrations.openrlhf.settings import longest_response, without_recorded

logger = logging.getLogger(__name__)


def warn_of_pointless(settings: RRedCoTConfig, args: Any) -> None:
    """Log every warning at the start of a run."""
    for text in warnings_of(settings, args):
        logger.warning("rredcot: %s", text)


def warnings_of(settings: RRedCoTConfig, args: Any) -> Iterator[str]:
    """One sentence or two per warning; ``args`` are OpenRLHF's, as its parser has read them."""
    if args.rollout.n_samples_per_prompt == 1 and (
        text := no_siblings("--rollout.n_samples_per_prompt 1", settings)
    ):
        yield text
    for name, instead in (("lambd", f"{PREFIX}lam counts"), ("gamma", "credit is not discounted")):
        value = getattr(args.algo.advantage, name)
        if value != 1:
            yield f"--algo.advantage.{name} {value} is OpenRLHF's own and is not read here; {instead}"
    if args.algo.advantage.no_std_norm and settings.scale not in (None, "none"):
        yield (
            f"--algo.advantage.no_std_norm has no effect here: {PREFIX}scale is {settings.scale}; what counts is {PREFIX}scale none"
        )
    if args.actor.policy_loss_type == "gspo" and settings.segmenter != "none":
        yield loses_credit("--actor.policy_loss_type gspo", "ppo")
    yield from biases_of(settings)
    if text := without_recorded(settings, args):
        yield text


def notes_of(settings: RRedCoTConfig, args: Any) -> Iterator[str]:
    """What is as it should be and yet good to know; `rredcot explain` prints it, a run does not."""
    if args.algo.kl.init_coef > 0 and not args.algo.kl.use_loss:
        yield (
            f"--algo.kl.init_coef {args.algo.kl.init_coef}: the penalty is not redistributed; it stays on the segment whose "
            "tokens incur it"
        )
    if text := entropies_later(settings):
        yield text
    flag, length = longest_response(args)
    turns = None if args.train.agent_func_path else "--train.agent_func_path"
    if text := few_segments(settings, length, f"{flag} ", turns):
        yield text
