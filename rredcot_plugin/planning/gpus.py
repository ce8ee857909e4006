"""Public peak rates and memory of GPUs: dense bf16 (no sparsity), from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from rredcot_plugin.registry import nearest


@dataclass(frozen=True)
class Gpu:
    """``tflops``: 10¹² operations a second, dense bf16; ``gb``: 10⁹ bytes of memory."""

    name: str
    tflops: float
    gb: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100-40", 312, 40),
        Gpu("A100-80", 312, 80),
        Gpu("L40S", 362, 48),
        Gpu("H20", 148, 96),
        Gpu("H100", 989, 80),
        Gpu("H200", 989, 141),
        Gpu("B200", 2250, 180),
        Gpu("MI300X", 1307, 192),
    )
}
"""SXM or OAM boards."""


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case.

    Raises:
        ValueError: an unknown name.
    """
    by_name = {known.lower(): gpu for known, gpu in GPUS.items()}
    if name.lower() not in by_name:
        raise ValueError(
            f"gpu={name}: expected one of {', '.join(GPUS)}, or any of them with --tflops and --gpu-gb.{nearest(name, list(GPUS))}"
        )
    return by_name[name.lower()]
