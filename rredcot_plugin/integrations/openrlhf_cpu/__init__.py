"""OpenRLHF on a machine without accelerator: active only with the environment variable ``OPENRLHF_PLATFORM=cpu``.

For tests and for looking around, in float32. Every process of a run calls ``activate`` first (`openrlhf.hooks`):

| what                                           | runs      | which gives OpenRLHF                                 |
| ---------------------------------------------- | --------- | ---------------------------------------------------- |
| (at once)                                      | `device`  | the functions of ``torch.cuda`` that it calls        |
| (at once, where they are not installed)        |           | ``flash_attn``, ``ring_flash_attn``, ``vllm``: ``stand_ins/`` |
| `openrlhf.utils.config`                        | `float32_flag`  | parameters in float32, tensor-parallel ones apart |
| `openrlhf.utils.utils`                         | `float32_dtype` | the name of that                               |
|                                                | `packed_attention` | an attention for packed rows                |
| `openrlhf.utils.deepspeed.deepspeed`           | `zero`    | a device mesh of the CPU, torch's own Adam           |
| `openrlhf.utils.distributed_util`              | `weights` | weights through a TCP store, without pickle          |
| `openrlhf.trainer.ray.vllm_worker_wrap`        | `engine_worker` | weights that are received in the CPU's memory  |

Needs ``--ds.attn_implementation sdpa`` (for packed rows ``PACKED``) and nothing colocated.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from rredcot_plugin.integrations import lazy

PACKED = "sdpa_flash_attention"
"""Name of an attention that takes packed rows without flash-attn."""
STAND_INS = Path(__file__).parent / "stand_ins"
RESOURCES = {"num_gpus": 8, "num_cpus": 8, "include_dashboard": False}
"""Logical ones of Ray: OpenRLHF asks for a GPU per process."""


def activate() -> None:
    """Everything above, in this process."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in ("flash_attn", "ring_flash_attn", "vllm"):
        if importlib.util.find_spec(name) is None:
            sys.path.append(str(STAND_INS / name))
    from rredcot_plugin.integrations.openrlhf_cpu import device

    device.install()
    lazy.install(
        {
            "openrlhf.utils.config": f"{__name__}.float32_flag",
            "openrlhf.utils.utils": [f"{__name__}.float32_dtype", f"{__name__}.packed_attention"],
            "openrlhf.utils.deepspeed.deepspeed": f"{__name__}.zero",
            "openrlhf.utils.distributed_util": f"{__name__}.weights",
            "openrlhf.trainer.ray.vllm_worker_wrap": f"{__name__}.engine_worker",
        },
        before_others=True,
    )
