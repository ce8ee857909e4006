"""What the CPU platform relies on in the installed verl, and what verl sees once the platform is active.

The platform is chosen once per process, so everything "active" runs in subprocesses with VERL_PLATFORM=cpu.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rredcot_plugin.integrations.verl_cpu.override import set_default


def verl_source(path: str) -> str:
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / path).read_text()


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=inherited | {"OMP_NUM_THREADS": "1"} | env,
        capture_output=True,
        text=True,
        timeout=300,
    )


# ---- what we rely on


def test_defaults_that_we_change_exist() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.utils import distributed

    backend = inspect.signature(distributed.initialize_global_process_group_ray).parameters["backend"]
    poll = inspect.signature(ReplayBuffer.__init__).parameters["poll_interval"]
    assert (backend.default, poll.default) == (None, 2.0)
    assert "initialize_global_process_group_ray(timeout_second=None)" in verl_source("workers/engine_workers.py")
    assert "poll_interval" not in verl_source("trainer/ppo/v1/trainer_base.py"), "a key reaches it now: use that"
    assert 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in verl_source("utils/distributed.py")


def test_changing_a_default_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="has no parameter 'no_such' with a default"):
        set_default(run_python, "no_such", 1)


def test_engine_registry_has_no_cpu_engine_and_the_switches_we_turn() -> None:
    from verl.workers.config import FSDPEngineConfig
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    for model_type in ("language_model", "value_model"):
        for backend in ("fsdp", "fsdp2"):
            assert "cpu" not in EngineRegistry._engines[model_type][backend]
    source = inspect.getsource(transformer_impl.FSDPEngine._build_fsdp_module)
    assert "if self.engine_config.offload_policy or self.engine_config.forward_only:" in source
    config = FSDPEngineConfig(strategy="fsdp2", forward_only=True, offload_policy=True)
    off = dataclasses.replace(config, forward_only=False, offload_policy=False)
    assert (off.forward_only, off.offload_policy, off.strategy) == (False, False, "fsdp2")


def test_rollout_registries_have_the_shapes_that_we_write() -> None:
    from verl.workers.rollout import base, replica

    assert base._ROLLOUT_REGISTRY["vllm", "async"].endswith("vllm_rollout.ServerAdapter")
    assert "_ROLLOUT_REGISTRY[(rollout_name, mode)]" in inspect.getsource(base.get_rollout_class)
    assert callable(replica.RolloutReplicaRegistry._registry["vllm"])


def test_server_has_every_method_that_verl_calls_on_it() -> None:
    from verl.workers.rollout.replica import RolloutReplica

    from rredcot_plugin.integrations.verl_cpu.hf_server import HFServer

    called = set(re.findall(r"server\.(\w+)\.remote", inspect.getsource(RolloutReplica)))
    called |= set(re.findall(r"server\.(\w+)\.remote", verl_source("workers/rollout/llm_server.py")))
    assert {"generate", "abort_all_requests", "sleep"} <= called
    assert [name for name in called if not callable(getattr(HFServer, name, None))] == []


def test_llm_client_reads_the_weight_version_where_we_put_it() -> None:
    source = verl_source("workers/rollout/llm_server.py")
    assert 'output.extra_fields.get("global_steps")' in source
    assert 'output.stop_reason not in ("aborted", "abort")' in source


def test_platform_has_no_ipc_and_vllm_then_uses_shared_memory() -> None:
    from rredcot_plugin.integrations.verl_cpu.platform import PlatformCPU

    platform = PlatformCPU()  # an abstract method that is new in verl would raise here
    assert not platform.is_ipc_supported()
    assert not platform.is_platform_available(use_smi_check=True)
    assert "self.use_shm = not is_support_ipc()" in verl_source("workers/rollout/vllm_rollout/vllm_rollout.py")


def test_watched_socket_covers_what_the_sender_uses() -> None:
    source = verl_source("workers/rollout/vllm_rollout/bucketed_weight_transfer.py")
    sender = source[source.index("class BucketedWeightSender") : source.index("class BucketedWeightReceiver")]
    used = set(re.findall(r"self\.socket\.(\w+)", sender)) - {"bind"}  # bound before it is watched
    assert used == {"send_pyobj", "recv", "close"}


def test_snapshots_are_looked_up_at_the_time_of_the_call() -> None:
    source = verl_source("experimental/separation/engine_workers.py")
    body = source[source.index("def _get_strategy_handlers") :]
    assert re.search(
        r"from verl\.utils\.fsdp_utils import \(\s+fsdp2_sharded_load_from_cpu,\s+fsdp2_sharded_save", body
    )


# ---- what verl sees

ACTIVE = """
import json, os, dataclasses, torch
import verl
from verl.checkpoint_engine.base import CheckpointEngineRegistry
from verl.plugin.platform import get_platform
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.utils import distributed, fsdp_utils
from verl.utils.device import get_device_name, get_torch_device
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry
import inspect
from rredcot_plugin.integrations.verl_cpu.engine import CPUEngineWithLMHead, CPUEngineWithValueHead

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
distributed.initialize_global_process_group_ray()
total = torch.ones(3)
torch.distributed.all_reduce(total)

config = FSDPEngineConfig(strategy="fsdp")
engines = [EngineRegistry.get_engine_cls(kind, "fsdp2") for kind in ("language_model", "value_model")]
try:
    engines[0](None, config, None, None)
    refusal = ""
except ValueError as error:
    refusal = str(error)

model = torch.nn.Linear(4, 4)
torch.distributed.fsdp.fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
shards, _ = fsdp_utils.fsdp2_sharded_save_to_cpu(model)
before = shards["weight"][0].clone()
with torch.no_grad():
    model.weight.zero_()

print(json.dumps(dict(
    device=get_device_name(), resource=get_platform().ray_resource_name(),
    memory=get_torch_device().max_memory_allocated() > 2**20,
    engines=[issubclass(a, b) for a, b in zip(engines, (CPUEngineWithLMHead, CPUEngineWithValueHead))],
    refusal=refusal, backend=torch.distributed.get_backend(), total=total.tolist(),
    poll=inspect.signature(ReplayBufferAsync.__init__).parameters["poll_interval"].default,
    adapter=get_rollout_class("hf_cpu").__name__, replica=RolloutReplicaRegistry.get("hf_cpu").__name__,
    store=CheckpointEngineRegistry.get("cpu_store").__name__,
    snapshot_is_a_copy=bool(torch.equal(shards["weight"][0], before) and before.any()),
)))
"""


def test_active_platform() -> None:
    result = run_python(ACTIVE, VERL_PLATFORM="cpu")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "device": "cpu",
        "resource": "GPU",
        "memory": True,
        "engines": [True, True],
        "refusal": (
            "strategy=fsdp is not supported on the CPU, only fsdp2: set "
            "actor_rollout_ref.actor.strategy=fsdp2 (and critic.strategy=fsdp2 where there is a critic)"
        ),
        "backend": "cpu:gloo",
        "total": [1.0, 1.0, 1.0],
        "poll": 0.2,
        "adapter": "HFServerAdapter",
        "replica": "HFReplica",
        "store": "StoreCheckpointEngine",
        "snapshot_is_a_copy": True,
    }


LOADED = """
import json, sys, verl
print(json.dumps(sorted(m for m in sys.modules if m.split(".")[0] in ("verl", "rredcot_plugin", "vllm"))))
"""


def loaded_by_import_verl(**env: str) -> set[str]:
    result = run_python(LOADED, VERL_USE_EXTERNAL_PLUGINS="rredcot_cpu", **env)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_inactive_without_the_variable_and_light_with_it() -> None:
    package = "rredcot_plugin.integrations.verl_cpu"
    off, on = loaded_by_import_verl(), loaded_by_import_verl(VERL_PLATFORM="cpu")
    assert {m for m in off if m.startswith("rredcot_plugin.integrations")} <= {
        "rredcot_plugin.integrations",
        package,
    }
    assert on - off == {"rredcot_plugin.integrations.lazy", f"{package}.platform"}


def test_failure_to_set_up_is_loud() -> None:
    code = "import sys; sys.modules['rredcot_plugin.integrations.verl_cpu.platform'] = None; import verl"
    result = run_python(code, VERL_PLATFORM="cpu")
    assert "the CPU platform for verl could not be set up" in result.stderr
    assert "Traceback" in result.stderr
