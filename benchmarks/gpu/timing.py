"""Seconds and peak memory of passes that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UP_ROUNDS = 2


def measure_passes(passes: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, Any]:
    """Per pass the seconds and the peak GiB above what was allocated before, one entry a round.

    Warm-up rounds come first and are kept apart (`warm_up_seconds`): where they are much slower in every cell, a
    kernel is built anew for each size, which training would pay again and again. The order rotates from round to
    round. A pass that the device or the compiler refuses (RuntimeError, out of memory among them) is noted under
    `failed` by its message, and left out.
    """
    failed: dict[str, str] = {}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    warm_up: dict[str, list[float]] = {name: [] for name in passes}
    peaks: dict[str, list[float]] = {name: [] for name in passes}
    for i in range(WARM_UP_ROUNDS + rounds):
        names = [name for name in passes if name not in failed]
        shift = i % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            try:
                took, peak = time_once(passes[name], device)
            except RuntimeError as error:
                failed[name] = str(error).strip().splitlines()[0]
                continue
            if i < WARM_UP_ROUNDS:
                warm_up[name].append(took)
                continue
            seconds[name].append(took)
            peaks[name].append(peak)
    return {"seconds": seconds, "warm_up_seconds": warm_up, "peak_gib": peaks, "failed": failed}


def time_once(run: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Seconds and peak GiB of one run; on a GPU between two events, on a CPU by the clock with peak 0."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start, 0.0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    result = run()
    last.record()
    torch.cuda.synchronize(device)
    del result
    return first.elapsed_time(last) / 1000, (torch.cuda.max_memory_allocated(device) - before) / 2**30
