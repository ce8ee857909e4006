"""Runs after ``openrlhf.utils.utils``: the name of float32. 16 bits are slow on CPUs, and too coarse for parity tests."""

from __future__ import annotations

import openrlhf.utils.utils as host
import torch

_convert = host.convert_to_torch_dtype


def convert_to_torch_dtype(name: str) -> torch.dtype:
    return torch.float32 if name == "fp32" else _convert(name)


host.convert_to_torch_dtype = convert_to_torch_dtype
