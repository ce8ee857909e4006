"""All of a dry run of a recipe for OpenRLHF in order, up to the first thing that is wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from rredcot_plugin.adapter.process_rewards import FIELD
from rredcot_plugin.dry_run.architecture import Architecture, find_architecture
from rredcot_plugin.dry_run.data import SAMPLE, SUFFIXES, Data, gather
from rredcot_plugin.dry_run.errors import RecipeError
from rredcot_plugin.dry_run.findings import NOTHING_TRAINED, Finding
from rredcot_plugin.dry_run.launch import Launch
from rredcot_plugin.dry_run.openrlhf_training import prompt_of, train
from rredcot_plugin.dry_run.outcome import algorithm_line
from rredcot_plugin.dry_run.reward import RewardTrial, Score, check_told, tried
from rredcot_plugin.dry_run.trial import trial_of
from rredcot_plugin.installed import installed_version
from rredcot_plugin.planning.memory import ADAM, GB
from rredcot_plugin.planning.models import sizes_of
from rredcot_plugin.tiny.watched import Show

FLAG_SECONDS = 300
KEYS = {
    "data.train_files=": "--data.prompt_dataset ",
    "data.val_files=": "--data.prompt_dataset ",
    "(verl needs": "(--data.input_key names",
    "(DATA_DIR, TRAIN_FILES)": f"(a file here whose name ends in {', '.join(SUFFIXES)})",
    "actor_rollout_ref.model.path=": "--actor.model_name_or_path ",
    "set one with actor_rollout_ref.model.custom_chat_template": "save one with the tokenizer",
}
"""What messages about data and models say of verl, and what is meant here."""


@dataclasses.dataclass(frozen=True)
class OpenRLHFRehearsal:
    """A start of OpenRLHF, and how far to go; as ``rehearsal.Rehearsal``."""

    script: Path
    launch: Launch
    folder: Path
    steps: int
    gpu_gb: float
    verbose: bool

    def run(self, show: Show) -> Iterator[Finding]:
        """Findings as they come.

        Raises:
            RecipeError: the first thing that is wrong with the recipe.
        """
        from rredcot_plugin.integrations.openrlhf.arguments import split_arguments

        args = read_flags(self.launch, self.folder / "flags.json")
        text = f"{len(self.launch.overrides)} words, read by OpenRLHF {version('openrlhf')}'s own parser"
        yield Finding("configuration", text)
        arguments = split_arguments(self.launch.overrides)
        settings = resolve_options(arguments, args)
        name = arguments.estimator or args.algo.advantage.estimator
        yield Finding("algorithm", algorithm_line(name, settings))
        yield Finding("batch", check_sizes(args))
        found = self._data(args)
        yield Finding("data", found.note)
        trial = self._reward(args, found.rows)
        yield Finding("reward", str(trial), "note" if trial.untried else "ok")
        if trial.warning:
            yield Finding("reward", trial.warning, "note")
        with _named_here():
            architecture = find_architecture(_given(args.actor.model_name_or_path, "--actor.model_name_or_path"))
        architecture = architecture.with_tokenizer([*map(str, found.rows), *(text or "" for text in trial.best)])
        yield from self._needs(args, architecture)
        if self.steps > 0 and trial.untried:
            yield Finding("training", NOTHING_TRAINED, "note")
        elif self.steps > 0:
            limits = (args.rollout.max_new_tokens or args.data.max_len, self.steps)
            prompts = [prompt_of(row, args.data) for row in found.rows]
            plan = trial_of(architecture, found, trial, prompts, limits, self.folder)
            outcome = train(args, self.launch, plan, self.folder / "training", show)
            yield from outcome.findings(
                "OpenRLHF",
                "rollout/reward_mean",
                f"{len(outcome.replaced)} flags",
                ours=settings is not None,
                verbose=self.verbose,
            )

    def _data(self, args: Any) -> Data:
        files = [name.strip() for name in _given(args.data.prompt_dataset, "--data.prompt_dataset").split(",")]
        view = SimpleNamespace(data=SimpleNamespace(train_files=files, val_files=files))
        columns = (args.data.input_key,)  # the reward says what it misses of the label
        sample = self._sample_folder(args)
        with _named_here():
            return gather(view, self.script, self.folder, self.launch.environment, sample, columns)

    def _sample_folder(self, args: Any) -> Path | None:
        """Where the sample of the recipe's task lies: beside the folder of the script, or of the reward."""
        task = self.launch.environment.get("RREDCOT_TASK", "")
        own = [self.script, Path(str(args.reward.remote_url or self.script).split(",")[0])]
        folders = [path.resolve().parent.parent / task for path in own]
        return next((folder for folder in folders if (folder / SAMPLE).is_file()), None)

    def _reward(self, args: Any, rows: Sequence[Mapping[str, Any]]) -> RewardTrial:
        """Call the reward as OpenRLHF's rollout actors would, on the first rows; it swallows what a reward raises. A reward model
        and a server are not asked.

        Raises:
            RecipeError: no function in a file, or it raises, or gives something else than a finite number.
        """
        path = str(args.reward.remote_url or "").split(",")[0]
        if not path and args.reward.model_name_or_path:
            return RewardTrial.left_out(f"--reward.model_name_or_path {args.reward.model_name_or_path}", rows)
        if path.startswith(("http://", "https://")):
            return RewardTrial.left_out(f"--reward.remote_url {path}", rows)
        if not path.endswith(".py"):
            raise RecipeError(
                f"--reward.remote_url {path or None}: a dry run takes a Python file with reward_func"
            )
        with mock.patch.dict(os.environ, self.launch.environment):
            return tried(_score(Path(path), args.data.label_key), rows)

    def _needs(self, args: Any, architecture: Architecture) -> Iterator[Finding]:
        positions = getattr(architecture.config, "max_position_embeddings", None)
        if positions is not None and args.data.max_len > positions:
            raise RecipeError(
                f"--data.max_len {args.data.max_len}: {architecture.name} has positions for {positions} tokens"
            )
        yield Finding("model", f"{architecture.name} ({architecture.config.model_type})")
        if architecture.note:
            yield Finding("model", architecture.note, "note")
        parameters = sizes_of(architecture.config, architecture.name).parameters
        gpus = args.actor.num_nodes * args.actor.num_gpus_per_node
        # ZeRO-2 shares gradients and moments, ZeRO-3 the weights too
        whole = 0 if args.ds.zero_stage >= 3 else 2 * parameters
        state = (whole + ADAM * parameters / gpus) / GB
        fits = "fits" if state < self.gpu_gb else "does NOT fit"
        yield Finding("parameters", f"{parameters / 1e6:,.1f} million", "need")
        yield Finding(
            "training state", f"{state:.1f} GB per GPU: {fits} in {self.gpu_gb:g} GB (estimated)", "need"
        )


def _given(value: str | None, flag: str) -> str:
    if not value:
        raise RecipeError(f"{flag}: is not given")
    return value


@contextmanager
def _named_here() -> Iterator[None]:
    """Messages of what both trainers share, in the words of this one."""
    try:
        yield
    except RecipeError as error:
        text = str(error)
        for theirs, here in KEYS.items():
            text = text.replace(theirs, here)
        raise RecipeError(text) from error


def read_flags(launch: Launch, file: Path) -> Any:
    """OpenRLHF's flags as its own parser reads them, nested.

    Raises:
        RecipeError: OpenRLHF is not in this environment, or its parser, or ours, refuses a flag.
    """
    if not installed_version("openrlhf"):
        raise RecipeError(
            "starts OpenRLHF, which is not installed in this environment; run this where it is (make env-openrlhf)"
        )
    from rredcot_plugin.integrations.openrlhf.flags import read

    command = [sys.executable, "-m", "rredcot_plugin.integrations.openrlhf.flags", str(file), *launch.overrides]
    environment = dict(launch.environment)
    done = subprocess.run(
        command,
        env=environment,
        cwd=launch.folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=FLAG_SECONDS,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RecipeError(f"configuration: {said[-1] if said else f'exit code {done.returncode}'}")
    return read(file)


def resolve_options(arguments: Any, args: Any) -> Any:
    """rredcot's options as a run would read them; None for another estimator.

    Raises:
        RecipeError: an option that is not allowed, or that does not go with the flags.
    """
    from rredcot_plugin.integrations.openrlhf.settings import check_flags, follow, read_settings
    from rredcot_plugin.integrations.openrlhf_cpu import PACKED

    if arguments.estimator is None:
        return None
    args.ds.attn_implementation = PACKED  # flash-attn is for the recipe's GPUs
    try:
        settings = follow(read_settings(arguments.estimator, arguments.options), args)
        check_flags(settings, args)
    except (ValueError, ImportError, AttributeError) as error:
        raise RecipeError(f"algorithm: {error}") from error
    return settings


def check_sizes(args: Any) -> str:
    """One line on the sizes of a step.

    Raises:
        RecipeError: two sizes that do not go together, with both flags and values.
    """
    gpus = args.actor.num_nodes * args.actor.num_gpus_per_node
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    total = f"--rollout.batch_size x --rollout.n_samples_per_prompt = {responses}"
    if responses % args.train.batch_size:
        raise RecipeError(f"batch sizes: {total} is not a multiple of --train.batch_size {args.train.batch_size}")
    cut = args.ds.ring_attn_size * args.ds.tensor_parallel_size  # GPUs that have the same rows
    if args.train.batch_size % max(1, gpus // cut):
        shared = f" in groups of {cut}" if cut > 1 else ""
        raise RecipeError(
            f"batch sizes: --train.batch_size {args.train.batch_size} is not a multiple of {gpus // cut}: {gpus} GPUs{shared}"
        )
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    if args.train.colocate_all and not args.train.async_enable and engines != gpus:
        raise RecipeError(
            f"--vllm.num_engines x --vllm.tensor_parallel_size = {engines}: with --train.colocate_all it must be {gpus}, the "
            "actor's GPUs"
        )
    most, share = args.train.max_tokens_per_gpu, -(-args.data.max_len // cut)
    if args.train.dynamic_batch_enable and most < share:
        each = f" / {cut}, a GPU's share" if cut > 1 else ""
        raise RecipeError(
            f"--train.max_tokens_per_gpu {most}: is less than --data.max_len {args.data.max_len}{each}"
        )
    return f"{responses} responses per step, {args.train.batch_size} per update; {gpus} GPUs"


def _score(path: Path, label_key: str | None) -> Score:
    """The file's ``reward_func`` on one row."""
    try:
        spec = importlib.util.spec_from_file_location("reward_func", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = module.reward_func
    except (OSError, ValueError, AttributeError, ImportError, SyntaxError) as error:
        raise RecipeError(f"--reward.remote_url {path}: {error}") from error

    def score(row: Mapping[str, Any], response: str) -> float:
        if label_key and label_key not in row:
            raise RecipeError(f"--data.label_key {label_key}: a row of the data has {', '.join(map(str, row))}")
        label = row[label_key] if label_key else ""
        try:
            returned = function([f"prompt{response}"], ["prompt"], [label])
            found = returned["rewards"]
            numbers = torch.as_tensor(found).flatten().tolist()  # a number alone will do for OpenRLHF too
        except Exception as error:  # the function is the recipe's: anything may come out of it
            raise RecipeError(
                f"--reward.remote_url {path}: {type(error).__name__} on {response!r}: {error}"
            ) from error
        if len(numbers) != 1 or not math.isfinite(numbers[0]):
            raise RecipeError(f"--reward.remote_url {path}: expected one finite reward, got {found}")
        _check_told(returned.get(FIELD), response, path)
        return float(numbers[0])

    return score


def _check_told(said: Any, response: str, path: Path) -> None:
    name = f"--reward.remote_url {path}"
    if said is None or isinstance(said, str):
        return check_told(said, "the response", response, name)
    if not isinstance(said, list | tuple) or len(said) != 1:
        raise RecipeError(
            f"{name}: {FIELD}: expected a list with one entry for each query, here one, got {said!r}"
        )
    check_told(said[0], "the response", response, name)
