"""Scores of the demo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rredcot_plugin.demo.reward import compute_score
from rredcot_plugin.demo.tasks import TASKS, MistakeRates, Problem

SOMETIMES_WRONG = MistakeRates(easy=0.2, hard=0.4)


task_names = pytest.mark.parametrize("task", sorted(TASKS))


def demo_score(problem: Problem, response: str) -> float:
    return compute_score(f"rredcot_demo/{problem.task}", response, problem.answer)["score"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The reasoner is too small to gain from threads, and its sums are reproducible with one only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
