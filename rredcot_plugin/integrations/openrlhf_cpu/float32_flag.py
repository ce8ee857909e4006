"""Runs after ``openrlhf.utils.config``: parameters in float32, which OpenRLHF has no flag for."""

from __future__ import annotations

from typing import Any

import openrlhf.utils.config as host

_hierarchize = host.hierarchize


def hierarchize(args: Any) -> Any:
    found = _hierarchize(args)
    if hasattr(found, "ds") and found.ds.tensor_parallel_size == 1:  # else it insists on bfloat16
        found.ds.param_dtype = "fp32"
    return found


host.hierarchize = hierarchize
