"""What rredcot has become inside verl: `python -m rredcot_plugin.commands.verl_state FILE`.

verl loads plugins while it is imported and hides their errors, so the only honest check is to import it anew.
The answer goes to FILE as JSON, because verl and its dependencies write to both output streams.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class VerlState:
    """Names that verl knows. ``trainers``: mode -> has our mixin; ``engines``: devices that can answer probes."""

    verl: str
    estimators: list[str]
    trainers: dict[str, bool]
    engines: list[str]
    platform: str
    device: str
    devices: int
    available: bool


def describe() -> VerlState:
    """Import verl's trainer and engines and look at its registries; raises whatever that import raises."""
    import verl
    import verl.trainer.ppo.v1  # its registrations run with this import
    from verl.plugin.platform import get_platform
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.workers.engine import EngineRegistry

    platform = get_platform()
    engines = EngineRegistry._engines["language_model"]
    return VerlState(
        verl=verl.__version__,
        estimators=sorted(str(getattr(name, "value", name)) for name in ADV_ESTIMATOR_REGISTRY),
        trainers={
            **{mode: _has_base(trainer, "RRedCoTTrainerMixin") for mode, trainer in TRAINER_REGISTRY.items()},
            "use_v1=false": _has_base(RayPPOTrainer, "RRedCoTRayPPOTrainer"),
        },
        engines=sorted(
            {
                f"{backend}/{key[0] if isinstance(key, tuple) else key}"
                for backend, entries in engines.items()
                for key, engine in entries.items()
                if _has_base(engine, "ProbeEngineMixin")
            }
        ),
        platform=type(platform).__name__,
        device=platform.device_name,
        devices=platform.device_count() if platform.is_available() else 0,
        available=platform.is_available(),
    )


def _has_base(cls: type, name: str) -> bool:
    return any(base.__name__ == name for base in cls.__mro__)


def compose_group() -> list[str]:
    """Compose our Hydra group on verl's own configuration; the options in it, checked by ``RRedCoTConfig``."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from rredcot_plugin.config import RRedCoTConfig

    overrides = ["hydra.searchpath=[pkg://rredcot_plugin.conf]", "+rredcot@algorithm.rredcot=default"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    options = OmegaConf.to_container(config.algorithm.rredcot, resolve=True)
    assert isinstance(options, dict)
    RRedCoTConfig.from_mapping({str(key): value for key, value in options.items()})
    return sorted(str(key) for key in options)


if __name__ == "__main__":
    report = {**asdict(describe()), "options": compose_group()}
    Path(sys.argv[1]).write_text(json.dumps(report))
