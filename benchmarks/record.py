"""What every benchmark result says about itself, in one JSON form."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from rredcot_plugin.installed import installed_version

Summary = dict[str, dict[str, float]]
PACKAGES = ("torch", "transformers", "verl", "openrlhf")
"""Those of them that are installed are named in a result."""


def with_interval(values: Sequence[float]) -> dict[str, float]:
    """Median and its bootstrap 95% interval."""
    samples = np.random.default_rng(0).choice(values, size=(2000, len(values)))
    low, high = np.quantile(np.median(samples, axis=1), [0.025, 0.975])
    return {"value": float(median(values)), "low": float(low), "high": float(high)}


def picture_of(output: Path) -> Path:
    """Where the picture of a result goes: to the pages' images for a committed one, else beside the result."""
    committed = output.resolve().parent == Path(__file__).parent / "results"
    folder = Path(__file__).parents[1] / "docs" / "images" if committed else output.parent
    return folder / f"{output.stem}.png"


def write_record(
    output: Path,
    settings: dict[str, Any],
    summary: Summary,
    raw: Any,
    *,
    seeds: Sequence[int] | None = None,
    shown: Sequence[str] | None = None,
) -> None:
    """Print the summary and write it with command, commit, machine, settings and raw rows.

    ``seeds`` of what was drawn at random go with it; ``shown`` are the entries to print, None for all.
    """
    for name in summary if shown is None else shown:
        entry = summary[name]
        print(f"{name:34s} {entry['value']:8.3f}  [{entry['low']:.3f}, {entry['high']:.3f}]")
    record = {
        "benchmark": output.stem,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "commit": git_head(),
        "machine": describe_machine(),
        "settings": settings,
        **({} if seeds is None else {"seeds": list(seeds)}),
        "summary": summary,
        "raw": raw,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    half = output.with_suffix(".half")
    half.write_text(json.dumps(record, indent=2) + "\n")
    half.replace(output)  # whole or not at all
    print(f"written: {output}")


def describe_machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        **{name: found for name in PACKAGES if (found := installed_version(name))},
        "python": platform.python_version(),
    }


def git_head() -> str | None:
    root = Path(__file__).parent
    if not (root.parent / ".git").exists():
        return None
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
