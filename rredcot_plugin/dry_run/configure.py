"""A recipe's overrides on verl's configuration, checked by verl and by rredcot as at the start of a run."""

from __future__ import annotations

import contextlib
import copy
import difflib
import io
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from rredcot_plugin.dry_run.errors import RecipeError, one_line
from rredcot_plugin.dry_run.launch import Launch
from rredcot_plugin.presets import known_keys

OURS = "algorithm.rredcot"
UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'")


def compose(launch: Launch) -> Any:
    """The resolved configuration that verl's main program would get.

    Raises:
        RecipeError: an override that verl's configuration does not take (with the nearest key that it has).
    """
    import verl
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    trainer = Path(verl.__file__).parent / "trainer"
    folder = trainer / (launch.config_path or "config")
    name = (launch.config_name or "ppo_trainer").removesuffix(".yaml")
    with mock.patch.dict(os.environ, launch.environment), initialize_config_dir(str(folder), version_base=None):
        try:
            config = hydra_compose(name, list(launch.overrides))
            OmegaConf.resolve(config)
        except (HydraException, OmegaConfBaseException) as error:
            raise RecipeError(f"configuration: {_with_nearest(one_line(str(error)), name)}") from error
        except ValueError as error:  # Hydra does not say which
            groups = [word for word in launch.overrides if "." not in word.partition("=")[0]]
            raise RecipeError(f"configuration: {', '.join(groups)}: {one_line(str(error))}") from error
    return config


def _with_nearest(message: str, config_name: str) -> str:
    """Hydra's message with the key that was probably meant, called while Hydra is initialized.

    Ours are not part of verl's configuration; where one is meant, Hydra's advice to append what was written is left out.
    """
    from hydra import compose as hydra_compose

    found = UNKNOWN_KEY.search(message)
    if found is None:
        return message
    ours = {name: f"+{OURS}.{key}" for key in known_keys() for name in (key, f"{OURS}.{key}")}
    if ".".join(found[1].split(".")[:3]) in ours and "." in found[1]:
        return f"{message} (only the + is missing: {OURS} is not part of verl's configuration)"
    meant = {key: key for key in _keys(hydra_compose(config_name))} | ours
    near = [meant[key] for key in difflib.get_close_matches(found[1], meant, n=1, cutoff=0.6)]
    if near and near[0] in ours.values():
        message = message.partition(" To append")[0]
    return f"{message} (nearest key: {near[0]})" if near else message


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    from omegaconf import DictConfig

    for key in config:
        name = f"{prefix}{key}"
        yield name
        node = config._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from _keys(node, f"{name}.")


def check_with_verl(config: Any, environment: Mapping[str, str]) -> list[str]:
    """verl's ``validate_config`` and its typed configurations of the workers; what could not be checked here.

    Raises:
        RecipeError: what verl objects to, in its words.
    """
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    from rredcot_plugin.integrations.verl.start import check_counts, check_sections

    try:
        check_sections(config)
    except ValueError as error:
        raise RecipeError(f"configuration: {error}") from error
    notes, rollout = [], config.actor_rollout_ref.rollout
    # select: a name that is missing is for the validation to say
    if OmegaConf.select(rollout, "name") == "vllm" and find_spec("vllm") is None:
        # verl's validation asks vLLM for the LoRA ranks that it takes, and for nothing else
        config = copy.deepcopy(config)
        config.actor_rollout_ref.rollout.name = "hf"
        if (config.actor_rollout_ref.model.get("lora_rank", 0) or 0) > 0:
            notes.append("whether vLLM takes this LoRA rank was not checked: vLLM is not installed here")
    with mock.patch.dict(os.environ, environment), _quiet():
        try:
            check_counts(config)
            omega_conf_to_dataclass(rollout)
            validate_config(config, need_reference_policy(config), need_critic(config))
        except MissingMandatoryValue as error:
            raise RecipeError(
                f"verl's validation: {error.full_key}: has no value and no default; set it"
            ) from error
        except InstantiationException as error:  # what the class of a key said stands last
            reason = one_line(str(error.__cause__ or error))
            raise RecipeError(f"verl's validation: {reason}") from error
        except (AssertionError, ValueError, TypeError, NotImplementedError, KeyError) as error:
            raise RecipeError(f"verl's validation: {one_line(str(error)) or type(error).__name__}") from error
    return notes


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """verl's validation prints its success, and warns of what is the default."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_with_rredcot(config: Any) -> Any:
    """rredcot's own options (``RRedCoTConfig``) as a run would read them, its warnings logged; None for another estimator.

    Raises:
        RecipeError: as ``resolve_options``.
    """
    from rredcot_plugin.integrations.verl.advice import warn_of_pointless

    resolved = resolve_options(config)
    if resolved is None:
        return None
    with _as_recipe_errors():
        warn_of_pointless(config, resolved.config)
    return resolved.config


def resolve_options(config: Any) -> Any:
    """rredcot's options, where they come from and what was chosen (``settings.Resolved``); None for another estimator.

    Raises:
        RecipeError: an option that is not allowed, an unknown name, or one that does not go with this run; also an
            estimator that nobody registered.
    """
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from rredcot_plugin.integrations.verl.start import check_run

    with _as_recipe_errors():
        resolved = check_run(config)
        if resolved is None:
            _check_registered(config, get_adv_estimator_fn)
    return resolved


@contextlib.contextmanager
def _as_recipe_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, ImportError, AttributeError) as error:
        raise RecipeError(f"algorithm: {error}") from error


def _check_registered(config: Any, lookup: Any) -> None:
    name = str(config.algorithm.adv_estimator)
    if name not in ("gae",):  # verl computes this one without its registry
        lookup(name)
