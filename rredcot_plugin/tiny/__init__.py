"""The tiny reasoner that the demo trains and `rredcot dry-run` borrows, and a verl run of it on two cores."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
SCRIPT = Path(__file__).parent / "train_cpu.sh"
