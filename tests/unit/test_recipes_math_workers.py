"""The processes that compare answers: replaced where they end, and gone when the run is."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from tests.unit.math_recipe import MATH
from tests.unit.recipe_scripts import load


def test_a_worker_that_was_killed_is_replaced() -> None:
    worker = load(MATH / "answer_workers.py", "answer_workers").Worker()
    assert worker.ask({"gold": "3", "answer": "\\frac{6}{2}"}, 30) is True
    worker._process.kill()
    worker._process.wait()
    assert worker.ask({"gold": "3", "answer": "\\frac{6}{2}"}, 30) is True
    worker.stop()


ENDLESS = """
import sys
import answer_workers
worker = answer_workers.Worker()
worker.ask({"gold": "3", "answer": "4"}, 60)
print(worker._process.pid, flush=True)
worker.ask({"gold": "3", "answer": "10000000!!"}, 1)
"""


def test_a_worker_ends_with_a_run_that_was_killed() -> None:
    """Its input is closed then, and it would see that only after an answer that never comes."""
    run = subprocess.Popen([sys.executable, "-c", ENDLESS], cwd=MATH, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    worker = psutil.Process(int(run.stdout.readline()))
    time.sleep(0.3)
    run.kill()
    run.communicate()
    assert psutil.wait_procs([worker], timeout=30.0)[1] == []
