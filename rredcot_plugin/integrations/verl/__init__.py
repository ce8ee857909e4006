"""verl's side of rredcot: what ``algorithm.adv_estimator=rredcot`` switches on.

verl imports this package (entry point ``rredcot``, group ``verl.plugins``) in every one of its processes, in
the middle of its own import. So nothing heavy happens here: each part waits for the verl module it belongs to.

| after the import of           | runs        | which                                                        |
| ----------------------------- | ----------- | ------------------------------------------------------------ |
| ``verl.trainer.ppo.core_algos`` | ``estimator`` | registers the advantage estimator                          |
| ``verl.trainer.ppo.v1``       | ``trainer`` | wraps the registered trainers under their own names          |
| ``verl.workers.engine``       | ``engine``  | registers FSDP engines that can answer probes                |
| ``verl.trainer.ppo.ray_trainer`` | ``legacy`` | extends the trainer over ``DataProto`` (``use_v1=false``)  |
| ``verl.utils.config``         | ``main_program`` | lets ``validate_config`` check our options before Ray starts |

All of them do nothing at all unless the estimator is ours.
"""

from __future__ import annotations

import logging

from rredcot_plugin.integrations import lazy

logger = logging.getLogger(__name__)

SUPPORTED_VERL = "0.9.1"

try:
    lazy.install(
        {
            "verl.trainer.ppo.core_algos": f"{__name__}.estimator",
            "verl.trainer.ppo.v1": f"{__name__}.trainer",
            "verl.workers.engine": f"{__name__}.engine",
            "verl.trainer.ppo.ray_trainer": f"{__name__}.legacy",
            "verl.utils.config": f"{__name__}.main_program",
        }
    )
except Exception:
    logger.exception("rredcot could not be registered with verl")  # verl itself logs this at DEBUG only
    raise
