"""How much slower `import verl` gets with the plugin installed.

Each round imports verl once with `VERL_USE_EXTERNAL_PLUGINS=none` and once with plugins, in fresh processes and in
turning order; the difference is taken within a round, by the wall clock and by CPU time (`*_cpu_*`, which other
jobs disturb least). The CPU platform is included (`VERL_PLATFORM=cpu`), which is
the dearer case.

    python benchmarks/import_time.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from record import with_interval, write_record

OUTPUT = Path(__file__).parent / "results" / "import_time.json"
TIMED_IMPORT = (
    "import time; t, c = time.perf_counter(), time.process_time(); import verl; "
    "print(time.perf_counter() - t, time.process_time() - c)"
)


def import_seconds(plugins: str) -> tuple[float, float]:
    """Wall and CPU seconds of `import verl` in a fresh process."""
    env = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": plugins, "VERL_PLATFORM": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TIMED_IMPORT], env=env, check=True, capture_output=True, text=True
    )
    wall, cpu = map(float, done.stdout.split()[-2:])
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11, help="rounds (default 11)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args()
    import_seconds("auto")  # warms the file cache
    seconds: dict[str, list[tuple[float, float]]] = {"none": [], "auto": []}
    for i in range(args.repeats):
        for plugins in ("none", "auto")[:: 1 if i % 2 else -1]:
            seconds[plugins].append(import_seconds(plugins))
    summary = {}
    for clock, label in ((0, ""), (1, "_cpu")):
        bare, ours = ([run[clock] for run in seconds[plugins]] for plugins in ("none", "auto"))
        summary |= {
            f"import_verl_without_plugins{label}_seconds": with_interval(bare),
            f"import_verl_with_plugins{label}_seconds": with_interval(ours),
            f"added{label}_seconds": with_interval([b - a for a, b in zip(bare, ours, strict=True)]),
        }
    write_record(args.output, {"repeats": args.repeats}, summary, seconds)


if __name__ == "__main__":
    main()
