"""Runs after ``openrlhf.utils.deepspeed.deepspeed``: DeepSpeed on the CPU, with nothing to compile."""

from __future__ import annotations

from typing import Any

import deepspeed.comm.torch
import deepspeed.ops
import openrlhf.utils.deepspeed.deepspeed as host

_init_device_mesh, _train_config = host.init_device_mesh, host.get_train_ds_config


def init_device_mesh(device: str, *args: Any, **kwargs: Any) -> Any:
    return _init_device_mesh("cpu", *args, **kwargs)


def get_train_ds_config(*args: Any, **kwargs: Any) -> Any:
    config = _train_config(*args, **kwargs)
    if "optimizer" in config:
        config["optimizer"]["params"]["torch_adam"] = True  # its own is compiled for minutes
    return config


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at the first start, too
host.init_device_mesh, host.get_train_ds_config = init_device_mesh, get_train_ds_config
