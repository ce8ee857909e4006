"""Runs after `verl.utils.distributed`: the default process group of a CPU worker is "cpu:gloo".

verl builds the backend string `cpu:gloo,<device>:<backend>`, which on this platform names "cpu" twice, and torch
refuses that. The string is only a default of `initialize_global_process_group_ray(backend=None)`, so this changes
the default: of the function object itself, which also reaches modules that imported it earlier.
"""

from __future__ import annotations

from verl.utils import distributed

from rredcot_plugin.integrations.verl_cpu.override import set_default

set_default(distributed.initialize_global_process_group_ray, "backend", "cpu:gloo")
