"""Where a benchmark's models run: the CPU, or a CUDA GPU for those that take ``--device``."""

from __future__ import annotations

import argparse
import time

import torch

CPU, CUDA = DEVICES = ("cpu", "cuda")
FLOAT32, BFLOAT16 = MATMULS = ("float32", "bfloat16")
PRECISION = {FLOAT32: "highest", BFLOAT16: "medium"}
"""As torch names them."""


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=CPU,
        help="where the models run (default cpu); other samples are drawn on another type of device",
    )


def add_matmul(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matmul",
        choices=MATMULS,
        default=FLOAT32,
        help="how a CPU multiplies matrices of float32: as they are, or rounded to bfloat16, which is 2 to 4 times as fast where "
        "it has AMX; weights, sums and the optimizer stay in float32 (default float32; a GPU takes TF32)",
    )


def use_matmul(device: str, matmul: str) -> None:
    """How matrices of float32 are multiplied in this process from here on; with bfloat16, in attention too, whose fused
    kernel on CPUs keeps to float32 and takes three times as long on short rows."""
    torch.set_float32_matmul_precision("high" if device == CUDA else PRECISION[matmul])
    torch.backends.cuda.enable_flash_sdp(device == CUDA or matmul == FLOAT32)  # the CPU obeys this switch too


def check_device(device: str) -> None:
    """End the program where ``device`` is a GPU and torch sees none."""
    if device == CUDA and not torch.cuda.is_available():
        raise SystemExit(f"error: --device cuda: torch {torch.__version__} sees no GPU; use --device cpu")


def processor(device: str, cpu: str) -> str:
    """The name of what models run on: ``cpu``, or the card's."""
    return torch.cuda.get_device_name() if device == CUDA else cpu


def clock(device: str) -> float:
    """Seconds of the processor, so that other processes do not count; with a GPU, of the wall once its work is done."""
    if device == CPU:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()
