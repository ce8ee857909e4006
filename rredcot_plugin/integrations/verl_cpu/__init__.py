"""verl on a machine without accelerator: active only with the environment variable `VERL_PLATFORM=cpu`.

verl imports this package (entry point `rredcot_cpu`, group `verl.plugins`) in every one of its processes. The
platform has to exist before verl asks for it; everything else waits for the verl module that it belongs to:

| after the import of                 | runs                      | which gives verl                              |
| ----------------------------------- | ------------------------- | --------------------------------------------- |
| (at once)                           | `platform`                | the platform "cpu"                            |
| `verl.utils.distributed`            | `process_group`           | a process group backend that torch accepts    |
| `verl.utils.fsdp_utils`             | `snapshot`                | weight snapshots that are copies              |
| `verl.trainer.ppo.v1.replay_buffer` | `polling`                 | a poll interval for steps of a second         |
| `verl.utils.model`                  | `value_head`              | critics with the attention of their config    |
| `verl.workers.engine`               | `engine`                  | FSDP2 engines for device "cpu"                |
| `verl.workers.rollout.replica`      | `replicas`                | rollouts `hf_cpu` and `vllm` (vLLM-CPU)       |
| `verl.checkpoint_engine.base`       | `store_checkpoint_engine` | checkpoint engine `cpu_store` (separate_async)|

Nothing else is needed to train: the trainers, workers and loops are verl's own. `rredcot_plugin/tiny/train_cpu.sh` has
the configuration that goes with it.
"""

from __future__ import annotations

import logging
import os

logger = logging.getLogger(__name__)


def _activate() -> None:
    from rredcot_plugin.integrations import lazy
    from rredcot_plugin.integrations.verl_cpu import platform  # noqa: F401

    # Before the method's own hooks: those wrap whatever engine is registered by then.
    lazy.install(
        {
            "verl.utils.distributed": f"{__name__}.process_group",
            "verl.trainer.ppo.v1.replay_buffer": f"{__name__}.polling",
            "verl.utils.fsdp_utils": f"{__name__}.snapshot",
            "verl.utils.model": f"{__name__}.value_head",
            "verl.workers.engine": f"{__name__}.engine",
            "verl.workers.rollout.replica": f"{__name__}.replicas",
            "verl.checkpoint_engine.base": f"{__name__}.store_checkpoint_engine",
        },
        before_others=True,
    )


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    try:
        _activate()
    except Exception:
        logger.exception("the CPU platform for verl could not be set up")  # verl itself logs at DEBUG only
        raise
