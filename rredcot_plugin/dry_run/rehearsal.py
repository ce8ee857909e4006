"""All of a dry run in order, up to the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rredcot_plugin.dry_run.architecture import Architecture, find_architecture
from rredcot_plugin.dry_run.batches import check_batches, check_positions
from rredcot_plugin.dry_run.configure import check_with_rredcot, check_with_verl, compose
from rredcot_plugin.dry_run.data import gather
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.findings import NOTHING_TRAINED, Finding
from rredcot_plugin.dry_run.launch import Launch, find_launch
from rredcot_plugin.dry_run.memory_estimate import estimate, probe_length
from rredcot_plugin.dry_run.outcome import algorithm_line
from rredcot_plugin.dry_run.reward import try_reward
from rredcot_plugin.dry_run.tools import try_tools
from rredcot_plugin.dry_run.training import train
from rredcot_plugin.dry_run.trial import LOG, trial_of
from rredcot_plugin.tiny.watched import Show


@dataclass(frozen=True)
class Rehearsal:
    """A recipe and how far to go: ``steps`` 0 trains nothing; ``gpu_gb`` is the memory of one GPU."""

    script: Path
    overrides: tuple[str, ...]
    folder: Path
    steps: int = 2
    gpu_gb: float = 80.0
    verbose: bool = False
    """Name the overrides that had another value on the CPU."""

    @property
    def log(self) -> Path:
        """The log of the training, once there is one."""
        return self.folder / "training" / LOG

    def run(self, show: Show) -> Iterator[Finding]:
        """Findings as they come.

        Raises:
            RecipeError: the first thing that is wrong with the recipe.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        launch = find_launch(self.script, self.overrides, self.folder / "launch")
        if launch.is_openrlhf:
            from rredcot_plugin.dry_run.openrlhf import OpenRLHFRehearsal

            yield from OpenRLHFRehearsal(
                self.script, launch, self.folder, self.steps, self.gpu_gb, self.verbose
            ).run(show)
        elif find_spec("verl") is None:
            raise RecipeError(
                "starts verl, which is not installed in this environment: pip install 'rredcot[verl]'"
            )
        else:
            yield from self._verl(launch, show)

    def _verl(self, launch: Launch, show: Show) -> Iterator[Finding]:
        from rredcot_plugin.integrations.verl.settings import why_not_in_pass

        config = compose(launch)
        yield from self._configuration(config, launch)
        settings = check_with_rredcot(config)
        yield Finding("algorithm", algorithm_line(str(config.algorithm.adv_estimator), settings))
        if settings is not None and (reason := why_not_in_pass(config)):
            yield Finding(
                "algorithm", f"probes will run as rows of their own (slower), because of {reason}", "note"
            )
        yield Finding("batch", check_batches(config))
        found = gather(config, self.script, self.folder, launch.environment)
        yield Finding("data", found.note)
        trial = try_reward(config, found.rows, launch.environment)
        yield Finding("reward", str(trial), "note" if trial.untried else "ok")
        if trial.warning:
            yield Finding("reward", trial.warning, "note")
        tools = try_tools(config, launch.environment)
        yield from tools.findings() if tools else ()
        model = config.actor_rollout_ref.model
        architecture = find_architecture(model.path, model.get("trust_remote_code", False))
        texts = [*map(str, found.rows), *(text or "" for text in trial.best), (tools and tools.call) or ""]
        architecture = architecture.with_tokenizer(texts)
        yield from self._needs(config, settings, architecture, found.rows, trial.best)
        if self.steps > 0 and trial.untried:
            yield Finding("training", NOTHING_TRAINED, "note")
        elif self.steps > 0:
            limits = (config.data.max_response_length, self.steps)
            prompts = [row[config.data.prompt_key] for row in found.rows]
            plan = trial_of(architecture, found, trial, prompts, limits, self.folder, tools)
            outcome = train(config, launch, plan, self.folder / "training", show)
            replaced = f"{len(outcome.replaced)} of {len(launch.overrides)} overrides"
            yield from outcome.findings(
                "verl", "critic/score/mean", replaced, ours=settings is not None, verbose=self.verbose
            )
            yield from tools.outcome(outcome.steps) if tools else ()

    def _configuration(self, config: Any, launch: Launch) -> Iterator[Finding]:
        import verl

        notes = check_with_verl(config, launch.environment)
        text = f"{len(launch.overrides)} overrides on verl {verl.__version__}'s configuration, validated by verl"
        yield Finding("configuration", text)
        for note in notes:
            yield Finding("configuration", note, "note")

    def _needs(
        self,
        config: Any,
        settings: Any,
        architecture: Architecture,
        rows: Sequence[Any],
        solutions: Sequence[str | None],
    ) -> Iterator[Finding]:
        positions = getattr(architecture.config, "max_position_embeddings", None)
        check_positions(config, positions, architecture.name)
        text = f"{architecture.name} ({architecture.config.model_type})"
        yield Finding("model", text)
        if architecture.note:
            yield Finding("model", architecture.note, "note")
        length = probe_length(settings, architecture.tokenizer, rows, solutions)
        needs = estimate(config, settings, architecture, length, self.gpu_gb)
        for name, line in needs.lines(self.gpu_gb):
            yield Finding(name, line, "need")
