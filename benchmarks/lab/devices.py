"""Where a benchmark's models run: the CPU, or a CUDA GPU for those that take ``--device``."""

from __future__ import annotations

import argparse
import time

import torch

CPU, CUDA = DEVICES = ("cpu", "cuda")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=CPU,
        help="where the models run (default cpu); other samples are drawn on another type of device",
    )


def check_device(device: str) -> None:
    """End the program where ``device`` is a GPU and torch sees none."""
    if device == CUDA and not torch.cuda.is_available():
        raise SystemExit(f"error: --device cuda: torch {torch.__version__} sees no GPU; take --device cpu")


def processor(device: str, cpu: str) -> str:
    """The name of what models run on: ``cpu``, or the card's."""
    return torch.cuda.get_device_name() if device == CUDA else cpu


def clock(device: str) -> float:
    """Seconds of the processor, so that other processes do not count; with a GPU, of the wall once its work is done."""
    if device == CPU:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()
