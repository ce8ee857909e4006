"""Does the suite catch bugs? Plants each of a list into a copy of the package and runs the unit tests on it.

make mutants        # closes with 'N of N planted bugs caught'
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIME_LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """A bug: in ``file`` the text ``right`` becomes ``wrong``; ``tests`` are the files that should notice."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


CREDIT, VALUES, CUTS = "test_redistribution.py", "test_values.py", "test_segmenters.py"
ESTIMATORS = "test_estimators.py"
MUTANTS = (
    Mutant("the sign of a change of value", "redistribution.py", "following - values", "values - following", (CREDIT,)),
    Mutant("the outcome one segment early", "redistribution.py", "[:, None] - 1\n", "[:, None] - 2\n", (CREDIT,)),
    Mutant("masked tokens get credit", "redistribution.py", "segment_ids > MASKED, tokens", "segment_ids > -9, tokens", (CREDIT,)),
    Mutant("groups by position", "groups.py", "order.setdefault(gid, len(order)) for gid in group_ids", "i // 2 for i, _ in enumerate(group_ids)", (CREDIT, "test_groups.py")),
    Mutant("importance weight applied twice", "values/importance.py", "(log_pi.exp() * weight)", "((2 * log_pi).exp() * weight)", (VALUES,)),
    Mutant("own reward left in the proposals", "values/proposals.py", "if r != row or not leave_one_out", "if True", (VALUES,)),
    Mutant("own reward left in the prior", "pipeline.py", "stats.others_mean if config.leave_one_out", "stats.mean if config.leave_one_out", (VALUES, CREDIT)),
    Mutant("λ forgotten", "advantages.py", "+ lam * running", "+ running", (CREDIT,)),
    Mutant("calibration sees the group's own outcomes", "values/calibration.py", "torch.where(held_out, 0.0, weight[:, None])", "weight[:, None].expand_as(held_out)", (VALUES,)),
    Mutant("a feature looks one token ahead", "values/features.py", "return padded.gather(1, before).float()", "return padded.gather(1, (before + 1).clamp(max=x.shape[1])).float()", (VALUES,)),
    Mutant("characters are split", "segmenters/assemble.py", "inside &= starts >=", "inside |= starts >=", (CUTS,)),
    Mutant("the answer is cut", "segmenters/assemble.py", "(cuts < end)", "(cuts < trace.length)", (CUTS,)),
    Mutant("the sum is lost in shaping", "pipeline.py", "shaped.scatter_add(1, last, missing[:, None])", "shaped", ("test_shapers.py",)),
    Mutant("a NaN reward counts in its group", "groups.py", "weight = valid.double()", "weight = torch.ones_like(outcomes).double()", (CREDIT,)),
    Mutant("the own outcome among the siblings'", "values/siblings.py", "keys)[key] - (weight * outcomes)[row]", "keys)[key]", ("test_siblings.py",)),
    Mutant("siblings of other prompts", "values/siblings.py", "_mixed(group.astype(np.uint64))", "np.uint64(0)", ("test_siblings.py",)),
    Mutant("a segment counts before it is finished", "values/siblings.py", "(1, 0)))[:, :, :-1]", "(0, 1)))[:, :, 1:]", ("test_siblings.py",)),
    Mutant("the span of rewards knows the own outcome", "values/calibration.py", "for known in (past, torch.cat([past, outcomes.double()])):", "for known in (outcomes.double(),):", ("test_tabular.py",)),
    Mutant("penalties are redistributed", "pipeline.py", "score = total - penalties.sum(dim=1)", "score = total", (ESTIMATORS,)),
    Mutant("a boundary reads the value behind its token", "values/base.py", "segments.starts.clamp(max=", "(segments.starts + 1).clamp(max=", (ESTIMATORS,)),
    Mutant("the own reward is the worst one", "values/importance.py", "lowest_of_others(rollouts.outcomes)", "rollouts.outcomes", ("test_tabular.py", ESTIMATORS)),
    Mutant("a calibrated fit where nothing is to calibrate", "pipeline.py", 'config.calibrate != "none" and calibrates(estimator)', 'config.calibrate != "none"', (ESTIMATORS,)),
    Mutant("λ between turns forgotten", "hierarchy.py", "lam_coarse * ahead[:, 1:]", "ahead[:, 1:]", ("test_hierarchy.py",)),
    Mutant("credit leaks into the next turn", "hierarchy.py", "parent[:, k] == before", "parent[:, k] >= -1", ("test_hierarchy.py",)),
    Mutant("attention behind the answer counts", "values/attribution.py", "(ids < segments.num_segments[:, None] - 1)", "(ids < segments.num_segments[:, None])", ("test_attribution.py",)),
)  # fmt: skip


def catches(mutant: Mutant, folder: Path) -> bool:
    """True if a test fails with the bug in place; raises ``ValueError`` if the text to change is not there once."""
    for name in ("rredcot_plugin", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    path = folder / "rredcot_plugin" / mutant.file
    text = path.read_text()
    if text.count(mutant.right) != 1:
        raise ValueError(
            f"{mutant.name}: expected {mutant.right!r} once in {mutant.file}, got {text.count(mutant.right)}"
        )
    path.write_text(text.replace(mutant.right, mutant.wrong))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    done = subprocess.run(
        [*command, *(f"tests/unit/{test}" for test in mutant.tests)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main() -> int:
    caught = 0
    for mutant in MUTANTS:
        with tempfile.TemporaryDirectory() as folder:
            found = catches(mutant, Path(folder))
        caught += found
        print(f"{'caught' if found else 'MISSED':7s} {mutant.name}", flush=True)
    print(f"{caught} of {len(MUTANTS)} planted bugs caught")
    return 0 if caught == len(MUTANTS) else 1


if __name__ == "__main__":
    sys.exit(main())
